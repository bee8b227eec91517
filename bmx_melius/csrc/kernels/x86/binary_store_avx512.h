// Storing the results of one or two strips in 512-bit registers, the last step of a convolution.
#pragma once
#include <immintrin.h>

#include "kernels/common/binary_strips.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline void store(__m512i results, float* output, const float* addend, __mmask16 lanes) {
    __m512 numbers = _mm512_cvtepi32_ps(results);
    if (addend) {
        numbers = _mm512_add_ps(numbers, _mm512_maskz_loadu_ps(lanes, addend));
    }
    _mm512_mask_storeu_ps(output, lanes, numbers);
}

inline void store(__m512i results, int16_t* output, const int16_t* addend, __mmask16 lanes) {
    __m256i numbers = _mm512_cvtepi32_epi16(results);
    if (addend) {
        numbers = _mm256_add_epi16(numbers, _mm256_maskz_loadu_epi16(lanes, addend));
    }
    _mm256_mask_storeu_epi16(output, lanes, numbers);
}

// Stores two adjacent strips.
inline void store_pair(__m512i results, __m512i next, float* output, const float* addend, __mmask32 lanes) {
    store(results, output, addend, static_cast<__mmask16>(lanes));
    store(next, output + kLanes, addend ? addend + kLanes : nullptr, static_cast<__mmask16>(lanes >> kLanes));
}

inline void store_pair(__m512i results, __m512i next, int16_t* output, const int16_t* addend, __mmask32 lanes) {
    const __m512i low_halves = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28,
                                                26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i numbers = _mm512_permutex2var_epi16(results, low_halves, next);
    if (addend) {
        numbers = _mm512_add_epi16(numbers, _mm512_maskz_loadu_epi16(lanes, addend));
    }
    _mm512_mask_storeu_epi16(output, lanes, numbers);
}

inline bool side_by_side(const Strip& strip, const Strip& next) { return next.begin == strip.begin + kLanes; }

inline __mmask16 lanes_of(const Strip& strip) { return static_cast<__mmask16>((1u << (strip.end - strip.begin)) - 1); }

// Lanes of two adjacent strips, of which the first one is complete.
inline __mmask32 lanes_of(const Strip& strip, const Strip& next) {
    return lanes_of(strip) | static_cast<__mmask32>(lanes_of(next)) << kLanes;
}

}  // namespace
}  // namespace bmx
