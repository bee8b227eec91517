// Fused multiply-add of the vectors of WebAssembly, which has no such instruction with a defined result.
#pragma once
#include <wasm_simd128.h>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Returns a b + c of two lanes of float64 that hold float32 numbers, rounded to odd: see multiply_add.h.
inline v128_t rounded_to_odd(v128_t a, v128_t b, v128_t c) {
    const v128_t zero = wasm_f64x2_splat(0), one = wasm_i64x2_splat(1);
    const v128_t product = wasm_f64x2_mul(a, b), sum = wasm_f64x2_add(product, c);
    const v128_t rest = wasm_f64x2_sub(sum, product);
    const v128_t error = wasm_f64x2_add(wasm_f64x2_sub(product, wasm_f64x2_sub(sum, rest)), wasm_f64x2_sub(c, rest));
    const v128_t above = wasm_f64x2_gt(error, zero), inexact = wasm_v128_or(above, wasm_f64x2_lt(error, zero));
    const v128_t step = wasm_v128_or(wasm_v128_xor(above, wasm_f64x2_gt(sum, zero)), one);  // 1, or -1 if they differ
    const v128_t even = wasm_i64x2_sub(wasm_v128_and(sum, one), one);                       // all bits set, or none
    return wasm_i64x2_add(sum, wasm_v128_and(step, wasm_v128_and(inexact, even)));
}

inline v128_t fused_multiply_add(v128_t a, v128_t b, v128_t c) {
    const auto low = [](v128_t x) { return wasm_f64x2_promote_low_f32x4(x); };
    const auto high = [](v128_t x) { return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shuffle(x, x, 2, 3, 2, 3)); };
    return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(rounded_to_odd(low(a), low(b), low(c))),
                              wasm_f32x4_demote_f64x2_zero(rounded_to_odd(high(a), high(b), high(c))), 0, 1, 4, 5);
}

}  // namespace
}  // namespace bmx
