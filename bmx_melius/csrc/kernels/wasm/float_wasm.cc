// Float kernels with the 128-bit vectors of WebAssembly.
#include <wasm_simd128.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/wasm/multiply_add_wasm.h"

namespace bmx {
namespace {

struct Lanes {  // documented in float_avx512.cc
    using Real = v128_t;
    static constexpr int width = 4;

    // Size of the tiles: 8 sums in the 16 registers that an engine for x86-64 has.
    static constexpr int planar_outputs = 4, planar_vectors = 2, planar_taps = 3;
    static constexpr int gemm_rows = 4, gemm_vectors = 2;

    static Real zero() { return wasm_f32x4_splat(0); }
    static Real broadcast(float x) { return wasm_f32x4_splat(x); }
    static Real load(const float* x) { return wasm_v128_load(x); }
    static void store(float* x, Real value) { wasm_v128_store(x, value); }
    static Real load_first(const float* x, int count) {
        float elements[width] = {};
        std::memcpy(elements, x, count * sizeof(float));
        return wasm_v128_load(elements);
    }
    static void store_first(float* x, Real value, int count) {
        float elements[width];
        wasm_v128_store(elements, value);
        std::memcpy(x, elements, count * sizeof(float));
    }

    static Real add(Real a, Real b) { return wasm_f32x4_add(a, b); }
    static Real multiply_add(Real a, Real b, Real c) { return fused_multiply_add(a, b, c); }
    static Real max(Real a, Real b) { return wasm_f32x4_pmax(b, a); }  // a > b ? a : b

    static Real even(Real a, Real b) { return wasm_i32x4_shuffle(a, b, 0, 2, 4, 6); }
    static Real odd(Real a, Real b) { return wasm_i32x4_shuffle(a, b, 1, 3, 5, 7); }
    static Real shifted(Real a, Real b) { return wasm_i32x4_shuffle(a, b, 3, 4, 5, 6); }

    static void transpose(Real (&x)[width]) {
        const Real a = wasm_i32x4_shuffle(x[0], x[2], 0, 4, 1, 5), b = wasm_i32x4_shuffle(x[1], x[3], 0, 4, 1, 5);
        const Real c = wasm_i32x4_shuffle(x[0], x[2], 2, 6, 3, 7), d = wasm_i32x4_shuffle(x[1], x[3], 2, 6, 3, 7);
        x[0] = wasm_i32x4_shuffle(a, b, 0, 4, 1, 5);
        x[1] = wasm_i32x4_shuffle(a, b, 2, 6, 3, 7);
        x[2] = wasm_i32x4_shuffle(c, d, 0, 4, 1, 5);
        x[3] = wasm_i32x4_shuffle(c, d, 2, 6, 3, 7);
    }

    struct Integers {  // 4 numbers of 16 bits in the lower half
        v128_t lanes;
    };

    static Integers load_integers(const int16_t* x, int count) {
        if (count >= width) {
            return {wasm_v128_load64_zero(x)};
        }
        int16_t elements[width] = {};
        std::memcpy(elements, x, count * sizeof(int16_t));
        return {wasm_v128_load64_zero(elements)};
    }
    static Integers max(Integers a, Integers b) { return {wasm_i16x8_max(a.lanes, b.lanes)}; }
    static Integers min(Integers a, Integers b) { return {wasm_i16x8_min(a.lanes, b.lanes)}; }
    static Real to_real(Integers x) { return wasm_f32x4_convert_i32x4(wasm_i32x4_extend_low_i16x8(x.lanes)); }
    static Integers negative(Real sign, Integers a, Integers b) {
        const v128_t signs = wasm_i32x4_shr(sign, 31);
        return {wasm_v128_bitselect(a.lanes, b.lanes, wasm_i16x8_narrow_i32x4(signs, signs))};
    }
};

}  // namespace
}  // namespace bmx

#include "kernels/common/float_vector_kernels.h"

namespace bmx {

const FloatKernels& float_kernels_wasm() {
    static const FloatKernels kernels = table("wasm");
    return kernels;
}

}  // namespace bmx
