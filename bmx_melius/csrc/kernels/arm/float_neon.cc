// Float kernels with 128-bit vectors (aarch64).
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace bmx {
namespace {

struct Lanes {  // documented in float_avx512.cc
    using Real = float32x4_t;
    static constexpr int width = 4;

    // Size of the tiles: 24 sums in 32 registers.
    static constexpr int planar_outputs = 4, planar_vectors = 6, planar_taps = 3;
    static constexpr int gemm_rows = 6, gemm_vectors = 4;

    static Real zero() { return vdupq_n_f32(0); }
    static Real broadcast(float x) { return vdupq_n_f32(x); }
    static Real load(const float* x) { return vld1q_f32(x); }
    static void store(float* x, Real value) { vst1q_f32(x, value); }
    static Real load_first(const float* x, int count) {
        float elements[width] = {};
        std::memcpy(elements, x, count * sizeof(float));
        return vld1q_f32(elements);
    }
    static void store_first(float* x, Real value, int count) {
        float elements[width];
        vst1q_f32(elements, value);
        std::memcpy(x, elements, count * sizeof(float));
    }

    static Real add(Real a, Real b) { return vaddq_f32(a, b); }
    static Real multiply_add(Real a, Real b, Real c) { return vfmaq_f32(c, a, b); }
    // fmax has other results for NaN and for zeros of different signs than the other instruction sets. Clang would
    // compute the selection between 0 and a number by it, were the comparison not hidden from it.
    static Real max(Real a, Real b) {
        uint32x4_t greater = vcgtq_f32(a, b);
        asm("" : "+w"(greater));
        return vbslq_f32(greater, a, b);
    }

    static Real even(Real a, Real b) { return vuzp1q_f32(a, b); }
    static Real odd(Real a, Real b) { return vuzp2q_f32(a, b); }
    static Real shifted(Real a, Real b) { return vextq_f32(a, b, 3); }

    static void transpose(Real (&x)[width]) {
        const Real a = vzip1q_f32(x[0], x[2]), b = vzip1q_f32(x[1], x[3]);  // columns 0 and 1, of rows 0 2 and 1 3
        const Real c = vzip2q_f32(x[0], x[2]), d = vzip2q_f32(x[1], x[3]);  // columns 2 and 3
        x[0] = vzip1q_f32(a, b);
        x[1] = vzip2q_f32(a, b);
        x[2] = vzip1q_f32(c, d);
        x[3] = vzip2q_f32(c, d);
    }

    using Integers = int16x4_t;

    static Integers load_integers(const int16_t* x, int count) {
        if (count >= width) {
            return vld1_s16(x);
        }
        int16_t elements[width] = {};
        std::memcpy(elements, x, count * sizeof(int16_t));
        return vld1_s16(elements);
    }
    static Integers max(Integers a, Integers b) { return vmax_s16(a, b); }
    static Integers min(Integers a, Integers b) { return vmin_s16(a, b); }
    static Real to_real(Integers x) { return vcvtq_f32_s32(vmovl_s16(x)); }
    static Integers negative(Real sign, Integers a, Integers b) {
        const uint16x4_t signs = vreinterpret_u16_s16(vmovn_s32(vshrq_n_s32(vreinterpretq_s32_f32(sign), 31)));
        return vbsl_s16(signs, a, b);
    }
};

}  // namespace
}  // namespace bmx

#include "kernels/common/float_vector_kernels.h"

namespace bmx {

const FloatKernels& float_kernels_neon() {
    static const FloatKernels kernels = table("neon");
    return kernels;
}

}  // namespace bmx
