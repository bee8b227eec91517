// Operations of AVX2 for the training of binary convolutions (common/binary_training_parts.h).
#pragma once
#include <immintrin.h>

#include <cstdint>

#include "kernels/common/arithmetic.h"
#include "kernels/x86/transpose_avx2.h"

namespace bmx {
namespace {

constexpr int kLanes = 8;

using Floats = __m256;
using Words = __m256i;  // of 32 bits
using Mask = uint32_t;  // a bit for each lane

inline Mask first_lanes(int count) { return count < kLanes ? (1u << count) - 1 : (1u << kLanes) - 1; }

// All bits of the lanes of a mask.
inline Words lanes_of(Mask mask) {
    const Words bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bits), bits);
}

inline Floats broadcast(float x) { return _mm256_set1_ps(x); }
inline Floats load(const float* from) { return _mm256_loadu_ps(from); }
inline Words load(const int32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const Words*>(from)); }
inline void store(uint32_t* to, Words words) { _mm256_storeu_si256(reinterpret_cast<Words*>(to), words); }
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x); }

// The lanes of the mask, and `others` elsewhere.
inline Floats load_lanes(Mask mask, const float* from, Floats others) {
    if (mask == first_lanes(kLanes)) {
        return load(from);
    }
    const Words lanes = lanes_of(mask);
    return _mm256_blendv_ps(others, _mm256_maskload_ps(from, lanes), _mm256_castsi256_ps(lanes));
}
inline Words load_lanes(Mask mask, const uint32_t* from) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(from), lanes_of(mask));
}
inline Floats gather_lanes(Mask mask, const float* base, const int* offsets) {
    return _mm256_mask_i32gather_ps(broadcast(0), base, load(offsets), _mm256_castsi256_ps(lanes_of(mask)), 4);
}
inline void store_lanes(Mask mask, float* to, Floats x) {
    if (mask == first_lanes(kLanes)) {
        store(to, x);
        return;
    }
    alignas(32) float lanes[kLanes];  // a masked store takes longer on processors of AMD
    store(lanes, x);
    for (; mask; mask &= mask - 1) {
        const int lane = __builtin_ctz(mask);
        to[lane] = lanes[lane];
    }
}
inline void store_lanes(Mask mask, uint32_t* to, Words words) {
    store_lanes(mask, reinterpret_cast<float*>(to), _mm256_castsi256_ps(words));
}

// Sets a bit of each word whose number is >= 0.
inline Words set_bit(Words words, Floats x, int bit) {
    const Words lanes = _mm256_castps_si256(_mm256_cmp_ps(x, broadcast(0), _CMP_GE_OQ));
    return _mm256_or_si256(words, _mm256_and_si256(lanes, _mm256_set1_epi32(int(1u << bit))));
}

// Whether one of the numbers that it has seen is NaN or infinite.
class NotFinite {
  public:
    void see(Floats x) { sum_ = _mm256_add_ps(sum_, _mm256_mul_ps(x, broadcast(0))); }
    bool any() const { return _mm256_movemask_ps(_mm256_cmp_ps(sum_, sum_, _CMP_UNORD_Q)); }

  private:
    Floats sum_ = broadcast(0);  // of products with 0: 0 or NaN
};

inline Floats magnitude_of(Floats x) { return _mm256_andnot_ps(broadcast(-0.0f), x); }
// x where a <= b, else 0.
inline Floats where_at_most(Floats a, Floats b, Floats x) { return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_LE_OQ), x); }
// The differences of integers as numbers.
inline Floats difference(Words a, Words b) { return _mm256_cvtepi32_ps(_mm256_sub_epi32(a, b)); }

// Counts differing bits of kLanes filters and kLanes pixels: sums[pixel], from [products][lane] words of both.
inline void count_differing(const uint32_t* weights, const uint32_t* pixels, int products, Words (&sums)[kLanes]) {
    constexpr int kMost = 31;  // products whose counts, up to 8, fit in a byte
    constexpr int kPart = 4;   // pixels for which compilers keep everything in registers
    const Words low = _mm256_set1_epi8(15), ones = _mm256_set1_epi8(1), pairs = _mm256_set1_epi16(1);
    const Words counts = _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
    for (int part = 0; part < kLanes; part += kPart) {
        Words sum[kPart] = {};
        for (int begin = 0; begin < products; begin += kMost) {
            const int end = min(begin + kMost, products);
            Words bytes[kPart] = {};
            for (int k = begin; k < end; k++) {
                const Words weight = _mm256_loadu_si256(reinterpret_cast<const Words*>(weights + k * kLanes));
#pragma GCC unroll 4
                for (int i = 0; i < kPart; i++) {
                    const Words pixel = _mm256_set1_epi32(int(pixels[k * kLanes + part + i]));
                    const Words different = _mm256_xor_si256(weight, pixel);
                    const Words first = _mm256_and_si256(different, low);
                    const Words second = _mm256_and_si256(_mm256_srli_epi16(different, 4), low);
                    bytes[i] = _mm256_add_epi8(bytes[i], _mm256_shuffle_epi8(counts, first));
                    bytes[i] = _mm256_add_epi8(bytes[i], _mm256_shuffle_epi8(counts, second));
                }
            }
#pragma GCC unroll 4
            for (int i = 0; i < kPart; i++) {
                sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(_mm256_maddubs_epi16(bytes[i], ones), pairs));
            }
        }
        for (int i = 0; i < kPart; i++) {
            sums[part + i] = sum[i];
        }
    }
}

}  // namespace
}  // namespace bmx
