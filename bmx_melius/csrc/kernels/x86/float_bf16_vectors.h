// Vectors of pairs of bfloat16, the upper halves of float32, for the kernels of Precision::bf16 (AVX512_BF16).
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace bmx {
namespace {

constexpr int kLanes = 16;

inline __mmask16 first_lanes(int count) {
    return count >= kLanes ? __mmask16(-1) : __mmask16(count > 0 ? (1u << count) - 1 : 0);
}

inline __m512bh as_pairs(__m512i x) { return reinterpret_cast<__m512bh>(x); }

// Returns 32 rounded numbers: first the numbers of `low`.
inline __m512i rounded(__m512 low, __m512 high) { return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)); }

// Returns 16 pairs of rounded numbers, with the numbers of `low` in the lower halves.
inline __m512i rounded_pairs(__m512 low, __m512 high) {
    const __m512i all = rounded(low, high);
    const __m512i lower = _mm512_cvtepu16_epi32(_mm512_castsi512_si256(all));
    const __m512i upper = _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(all, 1));
    return _mm512_or_si512(lower, _mm512_slli_epi32(upper, 16));
}

inline uint32_t rounded_pair(float low, float high) {
    return static_cast<uint32_t>(_mm512_cvtsi512_si32(rounded_pairs(_mm512_set1_ps(low), _mm512_set1_ps(high))));
}

}  // namespace
}  // namespace bmx
