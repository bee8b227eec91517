#include <arm_neon.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kVectors = 6;

struct ByteSums {
    uint8x16_t bytes, shifted;
};

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+w"(x)); };

}  // namespace

// The steps of binary_lookup.h: a lookup counts four elements of 16 filters and a pair of pixels, and six of its
// results can be added before a nibble overflows.
double lookup_dotprod(Operands operands, double seconds) {
    static const uint8_t kCounts[16] = {0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4};
    const uint8x16_t table = vld1q_u8(kCounts), zero = vdupq_n_u8(0);
    return rate_of_chains<8, 8, kVectors>(operands, seconds, kVectors * 16. * 4 * 2, ByteSums{zero, zero}, table, kHide,
                                          [&](ByteSums& sums, const uint8x16_t(&x)[kVectors]) BMX_INLINED {
                                              uint8x16_t sum = vqtbl1q_u8(table, x[0]);
                                              for (int i = 1; i < kVectors; ++i) {
                                                  sum = vaddq_u8(sum, vqtbl1q_u8(table, x[i]));
                                              }
                                              sums.bytes = vaddq_u8(sums.bytes, sum);
                                              sums.shifted = vsraq_n_u8(sums.shifted, sum, 4);
                                          });
}

double int8_dotprod(Operands operands, double seconds) {
    const int8x16_t weights = vdupq_n_s8(3);
    return rate_of_chains<24, 8, 1>(operands, seconds, 16, vdupq_n_s32(0), weights, kHide,
                                    [&](int32x4_t& sum, const int8x16_t(&x)[1])
                                        BMX_INLINED { sum = vdotq_s32(sum, x[0], weights); });
}

}  // namespace bmx
