#include <wasm_simd128.h>

#include "kernels/wasm/multiply_add_wasm.h"
#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr char kSeed = 0x35;

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+r"(x)); };

}  // namespace

// Sums of bytes, which wrap around here: their widening is not part of the inner loop.
double popcount_wasm(Operands operands, double seconds) {
    const v128_t word = wasm_i8x16_splat(kSeed);
    return rate_of_chains<8, 2, 1>(operands, seconds, 128, wasm_i8x16_splat(0), wasm_i8x16_splat(~kSeed), kHide,
                                   [&](v128_t& sum, const v128_t(&x)[1]) BMX_INLINED {
                                       sum = wasm_i8x16_add(sum, wasm_i8x16_popcnt(wasm_v128_xor(x[0], word)));
                                   });
}

double float_wasm(Operands operands, double seconds) {
    const v128_t factor = wasm_f32x4_splat(1e-3f);
    return rate_of_chains<8, 2, 1>(operands, seconds, 4, factor, factor, kHide,
                                   [&](v128_t& sum, const v128_t(&x)[1])
                                       BMX_INLINED { sum = fused_multiply_add(x[0], factor, sum); });
}

// Bytes are extended to 16 bits before, as in int8_wasm.cc.
double int8_wasm(Operands operands, double seconds) {
    const v128_t weights = wasm_i16x8_splat(3);
    return rate_of_chains<8, 2, 1>(operands, seconds, 8, wasm_i32x4_splat(0), weights, kHide,
                                   [&](v128_t& sum, const v128_t(&x)[1])
                                       BMX_INLINED { sum = wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(x[0], weights)); });
}

}  // namespace bmx
