#include <arm_neon.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr auto kHide = [](uint8x16_t& x) BMX_INLINED { asm("" : "+w"(x)); };

}  // namespace

double int8_i8mm(Operands operands, double seconds) {
    const int8x16_t weights = vdupq_n_s8(3);
    return rate_of_chains<24, 8, 1>(operands, seconds, 32, vdupq_n_s32(0), vdupq_n_u8(3), kHide,
                                    [&](int32x4_t& sum, const uint8x16_t(&x)[1])
                                        BMX_INLINED { sum = vusmmlaq_s32(sum, x[0], weights); });
}

}  // namespace bmx
