// Fused multiply-add, rounded once, on every processor: float kernels give the same bits with all instruction sets.
#pragma once
#include <cstdint>
#include <cstring>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Returns a b + c, computed exactly and then rounded.
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
inline float multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
// Without the instruction: the product is exact in float64, and the sum is rounded to odd there, that is, an inexact
// sum to the neighbour whose last bit is 1, so that the second rounding, to float32, acts as if it were the only one
// (Boldo and Melquiond, Emulation of FMA and correctly rounded sums, 2008). A compiler can vectorize this, unlike calls
// of fmaf.
inline float multiply_add(float a, float b, float c) {
    const double product = double(a) * b, sum = product + c;
    const double rest = sum - product, error = (product - (sum - rest)) + (c - rest);  // of the sum, exact (TwoSum)
    int64_t bits;
    std::memcpy(&bits, &sum, sizeof bits);
    const bool inexact = error > 0 || error < 0;  // false for NaN, as in overflow
    const int64_t step = (error > 0) == (sum > 0) ? 1 : -1;
    bits += inexact && !(bits & 1) ? step : 0;
    double odd;
    std::memcpy(&odd, &bits, sizeof odd);
    return static_cast<float>(odd);
}
#endif

}  // namespace
}  // namespace bmx
