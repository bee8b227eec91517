// Operations of AVX-512 for the training of binary convolutions (common/binary_training_parts.h).
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/x86/transpose_avx512.h"

namespace bmx {
namespace {

constexpr int kLanes = 16;

using Floats = __m512;
using Words = __m512i;  // of 32 bits
using Mask = __mmask16;

inline Mask first_lanes(int count) { return count < kLanes ? Mask((1u << count) - 1) : Mask(0xffff); }

inline Floats broadcast(float x) { return _mm512_set1_ps(x); }
inline Floats load(const float* from) { return _mm512_loadu_ps(from); }
inline Words load(const int32_t* from) { return _mm512_loadu_si512(from); }
inline void store(uint32_t* to, Words words) { _mm512_storeu_si512(to, words); }
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }

// The lanes of the mask, and `others` elsewhere.
inline Floats load_lanes(Mask mask, const float* from, Floats others) {
    return _mm512_mask_loadu_ps(others, mask, from);
}
inline Words load_lanes(Mask mask, const uint32_t* from) { return _mm512_maskz_loadu_epi32(mask, from); }
inline Floats gather_lanes(Mask mask, const float* base, const int* offsets) {
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), mask, _mm512_loadu_si512(offsets), base, 4);
}
inline void store_lanes(Mask mask, float* to, Floats x) { _mm512_mask_storeu_ps(to, mask, x); }
inline void store_lanes(Mask mask, uint32_t* to, Words words) { _mm512_mask_storeu_epi32(to, mask, words); }

// Sets a bit of each word whose number is >= 0.
inline Words set_bit(Words words, Floats x, int bit) {
    return _mm512_mask_or_epi32(words, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_GE_OQ), words,
                                _mm512_set1_epi32(int(1u << bit)));
}

// Whether one of the numbers that it has seen is NaN or infinite.
class NotFinite {
  public:
    void see(Floats x) { wrong_ |= _mm512_fpclass_ps_mask(x, 0x99); }
    bool any() const { return wrong_; }

  private:
    Mask wrong_ = 0;
};

inline Floats magnitude_of(Floats x) { return _mm512_abs_ps(x); }
// x where a <= b, else 0.
inline Floats where_at_most(Floats a, Floats b, Floats x) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_LE_OQ), x);
}
// The differences of integers as numbers.
inline Floats difference(Words a, Words b) { return _mm512_cvtepi32_ps(_mm512_sub_epi32(a, b)); }

// Counts differing bits of kLanes filters and kLanes pixels: sums[pixel], from [products][lane] words of both.
inline void count_differing(const uint32_t* weights, const uint32_t* pixels, int products, Words (&sums)[kLanes]) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; i++) {
        sums[i] = _mm512_setzero_si512();
    }
    for (int k = 0; k < products; k++) {
        const __m512i weight = _mm512_loadu_si512(weights + k * kLanes);
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
            const __m512i different = _mm512_xor_si512(weight, _mm512_set1_epi32(int(pixels[k * kLanes + i])));
            sums[i] = _mm512_add_epi32(sums[i], _mm512_popcnt_epi32(different));
        }
    }
}

}  // namespace
}  // namespace bmx
