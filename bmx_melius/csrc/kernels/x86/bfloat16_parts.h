// A float32 as an exact sum of three bfloat16, the upper halves of float32: the rounded number, its rounded error, and
// the remaining error; x = x0 + x1 + x2, |x1| <= 2^-8 |x|, |x2| <= 2^-16 |x|.
//
// AMX treats parts below 2^-126 as 0, so that numbers below 2^-110 lose their last bits. Infinities, and numbers that
// round to them (from 3.39e38), become NaN. NaN remains NaN, and may become part of its pair.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bmx {
namespace {

constexpr int kParts = 3;

// The parts of 16 numbers, in the upper halves of integers.
struct Split {
    __m512i parts[kParts];

    explicit Split(__m512 x) {
        const __m512i half = _mm512_set1_epi32(0x8000), upper_half = _mm512_set1_epi32(int(0xffff0000));
        for (int i = 0; i < kParts - 1; ++i) {
            parts[i] = _mm512_and_si512(_mm512_add_epi32(_mm512_castps_si512(x), half), upper_half);
            x = _mm512_sub_ps(x, _mm512_castsi512_ps(parts[i]));
        }
        parts[kParts - 1] = _mm512_castps_si512(x);  // its lower half is 0 already
    }
};

// Stores 16 pairs of bfloat16 for each part: a pair is an element of `even` and the element of `odd` 16 positions
// later. step: bytes between the parts.
inline void store_pairs(const Split& even, const Split& odd, uint8_t* to, ptrdiff_t step) {
    for (int i = 0; i < kParts; ++i, to += step) {
        _mm512_store_si512(to, _mm512_or_si512(_mm512_srli_epi32(even.parts[i], 16), odd.parts[i]));
    }
}

}  // namespace
}  // namespace bmx
