// Fused multiply-add of the vectors of WebAssembly, which has no such instruction with a defined result.
//
// There are two modules (docs/webassembly.md). That for engines whose f32x4.relaxed_madd rounds once, compiled with
// -mrelaxed-simd, uses this instruction. The other computes with float64, in which the product of two float32 numbers
// is exact.
#pragma once
#include <wasm_simd128.h>

#include <cstdint>

#ifdef __wasm_relaxed_simd__  // the builtin has two names
#if __has_builtin(__builtin_wasm_relaxed_madd_f32x4)
#define BMX_RELAXED_MADD __builtin_wasm_relaxed_madd_f32x4
#elif __has_builtin(__builtin_wasm_fma_f32x4)  // until Clang 15
#define BMX_RELAXED_MADD __builtin_wasm_fma_f32x4
#endif
#endif

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

#ifdef BMX_RELAXED_MADD

inline v128_t fused_multiply_add(v128_t a, v128_t b, v128_t c) {
    using Floats = float __attribute__((vector_size(16)));
    return v128_t(BMX_RELAXED_MADD(Floats(a), Floats(b), Floats(c)));
}

#else

inline v128_t low_promoted(v128_t x) { return wasm_f64x2_promote_low_f32x4(x); }
inline v128_t high_promoted(v128_t x) { return wasm_f64x2_promote_low_f32x4(wasm_i32x4_shuffle(x, x, 2, 3, 2, 3)); }

inline v128_t demoted(v128_t low, v128_t high) {
    return wasm_i32x4_shuffle(wasm_f32x4_demote_f64x2_zero(low), wasm_f32x4_demote_f64x2_zero(high), 0, 1, 4, 5);
}

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

// Not inlined: its registers would be taken from the inner loops, which then take 50 % longer.
__attribute__((noinline)) v128_t multiply_add_rounded_to_odd(v128_t a, v128_t b, v128_t c) {
    return demoted(rounded_to_odd(low_promoted(a), low_promoted(b), low_promoted(c)),
                   rounded_to_odd(high_promoted(a), high_promoted(b), high_promoted(c)));
}

// Returns, in lanes of 32 bits, whether sums in two vectors of float64, rounded to float32, may differ from the exact
// sums rounded once to float32.
//
// Let s be the exact sum rounded to float64. Rounding is monotone and keeps the numbers of float64, so that the exact
// sum is on the same side as s of each such number that is not s. Midpoints of adjacent float32 numbers are such
// numbers, and the midpoint of the largest one and 2^128, from which on results are infinite. If s is not a midpoint,
// both are rounded to the same float32 number. The lower 29 bits of midpoints of at least 2^-126 are 1 and zeros,
// because the significand of float32 has 29 bits less. Smaller numbers have other places: all numbers below 2^-126 but
// 0 are in doubt. If s is 0, the exact sum is 0, because a multiple of 2^-298 does not underflow in float64.
inline v128_t in_doubt(v128_t low, v128_t high) {
    const v128_t lower = wasm_i32x4_shuffle(low, high, 0, 2, 4, 6), upper = wasm_i32x4_shuffle(low, high, 1, 3, 5, 7);
    const v128_t midpoint = wasm_i32x4_eq(wasm_i32x4_shl(lower, 3), wasm_i32x4_splat(INT32_MIN));
    // The upper half without its sign, 0 moved above all others, and the highest bit flipped for a signed comparison.
    constexpr uint32_t moved = INT32_MAX, limit = (1023u - 126) << 21;  // the exponent of 2^-126
    const v128_t size = wasm_i32x4_add(wasm_i32x4_shl(upper, 1), wasm_i32x4_splat(int32_t(moved)));
    return wasm_v128_or(midpoint, wasm_i32x4_lt(size, wasm_i32x4_splat(int32_t(limit + moved))));
}

inline v128_t fused_multiply_add(v128_t a, v128_t b, v128_t c) {
    const v128_t low = wasm_f64x2_add(wasm_f64x2_mul(low_promoted(a), low_promoted(b)), low_promoted(c));
    const v128_t high = wasm_f64x2_add(wasm_f64x2_mul(high_promoted(a), high_promoted(b)), high_promoted(c));
    return wasm_v128_any_true(in_doubt(low, high)) ? multiply_add_rounded_to_odd(a, b, c) : demoted(low, high);
}

#endif

}  // namespace
}  // namespace bmx
