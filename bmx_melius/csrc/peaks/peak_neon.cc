#include <arm_neon.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr uint8_t kSeed = 0x35;

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+w"(x)); };

}  // namespace

// Sums of bytes, which wrap around here: their widening is not part of the inner loop.
double popcount_neon(Operands operands, double seconds) {
    const uint8x16_t word = vdupq_n_u8(kSeed);
    return rate_of_chains<24, 8, 1>(operands, seconds, 128, vdupq_n_u8(0), vdupq_n_u8(0xff ^ kSeed), kHide,
                                    [&](uint8x16_t& sum, const uint8x16_t(&x)[1])
                                        BMX_INLINED { sum = vaddq_u8(sum, vcntq_u8(veorq_u8(x[0], word))); });
}

double float_neon(Operands operands, double seconds) {
    const float32x4_t factor = vdupq_n_f32(1e-3f);
    return rate_of_chains<24, 8, 1>(operands, seconds, 4, factor, factor, kHide,
                                    [&](float32x4_t& sum, const float32x4_t(&x)[1])
                                        BMX_INLINED { sum = vfmaq_f32(sum, x[0], factor); });
}

}  // namespace bmx
