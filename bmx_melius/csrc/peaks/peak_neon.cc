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

// Two products of signed bytes add up in 16 bits, pairs of these sums in 32.
double int8_neon(Operands operands, double seconds) {
    const int8x16_t weights = vdupq_n_s8(3);
    return rate_of_chains<16, 4, 1>(operands, seconds, 16, vdupq_n_s32(0), weights, kHide,
                                    [&](int32x4_t& sum, const int8x16_t(&x)[1]) BMX_INLINED {
                                        const int16x8_t pairs = vmull_s8(vget_low_s8(x[0]), vget_low_s8(weights));
                                        sum = vpadalq_s16(sum, vmlal_high_s8(pairs, x[0], weights));
                                    });
}

}  // namespace bmx
