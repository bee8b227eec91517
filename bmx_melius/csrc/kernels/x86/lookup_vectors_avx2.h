// Operations of AVX2 on the vectors of binary_lookup.h, of 32 bytes.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

namespace bmx {
namespace {

constexpr int kUnitBytes = 8;  // of the packed map: a nibble in each

using Vector = __m256i;
using Table = __m256i;  // the same 16 bytes in both halves

inline Vector zeros() { return _mm256_setzero_si256(); }
inline Vector load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }
inline void store(void* to, Vector x) { _mm256_storeu_si256(static_cast<__m256i*>(to), x); }
inline Table load_table(const uint8_t* from) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(from)));
}
inline Vector look_up(Table table, Vector indices) { return _mm256_shuffle_epi8(table, indices); }

inline Vector add8(Vector a, Vector b) { return _mm256_add_epi8(a, b); }
inline Vector add16(Vector a, Vector b) { return _mm256_add_epi16(a, b); }
inline Vector add32(Vector a, Vector b) { return _mm256_add_epi32(a, b); }
inline Vector subtract16(Vector a, Vector b) { return _mm256_sub_epi16(a, b); }
inline Vector subtract32(Vector a, Vector b) { return _mm256_sub_epi32(a, b); }
inline Vector set16(int x) { return _mm256_set1_epi16(static_cast<int16_t>(x)); }
inline Vector set32(int x) { return _mm256_set1_epi32(x); }

struct Shift {
    __m128i count;
    explicit Shift(int count) : count(_mm_cvtsi32_si128(count)) {}
    Vector of16(Vector x) const { return _mm256_sll_epi16(x, count); }
    Vector of32(Vector x) const { return _mm256_sll_epi32(x, count); }
};

// Widens the first (half = 0) or the last 8 numbers of 16 bits.
template <int half>
inline __m128i half_of(Vector x) {
    return _mm256_extracti128_si256(x, half);
}
template <int half>
inline Vector widen_unsigned(Vector words) {
    return _mm256_cvtepu16_epi32(half_of<half>(words));
}
template <int half>
inline Vector widen_signed(Vector words) {
    return _mm256_cvtepi16_epi32(half_of<half>(words));
}

// Stores 8 integers of 32 bits as floats; with an addend, its sums with them.
template <bool kAdds>
inline void store_floats(float* to, const float* addend, Vector x) {
    const __m256 floats = _mm256_cvtepi32_ps(x);
    _mm256_storeu_ps(to, kAdds ? _mm256_add_ps(floats, _mm256_loadu_ps(addend)) : floats);
}

// Sums of bytes a + 16 b for the filters of a strip: `bytes` is the sum of the looked up bytes, `shifted` the sum of
// their 16-bit words divided by 16. With a and b the sums of the first and the second pixel, each byte of `bytes` is
// a + 16 b. The upper byte of a word of `shifted` is b, its lower byte is b + 16 times the a of the upper byte.
struct ByteSums {
    Vector bytes = zeros(), shifted = zeros();

    [[gnu::always_inline]] void add(Vector sum) {
        bytes = add8(bytes, sum);
        shifted = add8(shifted, _mm256_srli_epi16(sum, 4));
    }

    // Computes the sums of the even and odd bytes of the first pixel, then of the second one, in 16 bits.
    [[gnu::always_inline]] void separate(Vector (&words)[4]) const {
        const auto without = [](Vector some, Vector others) {
            return _mm256_and_si256(subtract16(some, _mm256_slli_epi16(others, 4)), _mm256_set1_epi16(255));
        };
        words[3] = _mm256_srli_epi16(shifted, 8);
        words[1] = without(_mm256_srli_epi16(bytes, 8), words[3]);
        words[2] = without(shifted, words[1]);
        words[0] = without(bytes, words[2]);
    }
};

// Computes 16 numbers of 16 bits, 16 a + 256 b, from 16 bytes a and b.
inline Vector offsets_of(const uint8_t* first, const uint8_t* second) {
    const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(first)));
    const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(second)));
    return _mm256_or_si256(_mm256_slli_epi16(a, 4), _mm256_slli_epi16(b, 8));
}

// Returns the number of nibbles, of `units` units of the map, with an odd number of set bits.
inline int count_odd(const uint8_t* from, ptrdiff_t units) {
    const __m128i is_odd = _mm_setr_epi8(0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0);
    __m128i count = _mm_setzero_si128();
    ptrdiff_t unit = 0;
    for (; unit + 1 < units; unit += 2) {
        const __m128i two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + unit * kUnitBytes));
        count = _mm_add_epi32(count, _mm_sad_epu8(_mm_shuffle_epi8(is_odd, two), _mm_setzero_si128()));
    }
    if (unit < units) {
        const __m128i one = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + unit * kUnitBytes));
        count = _mm_add_epi32(count, _mm_sad_epu8(_mm_shuffle_epi8(is_odd, one), _mm_setzero_si128()));
    }
    return _mm_cvtsi128_si32(_mm_add_epi32(count, _mm_unpackhi_epi64(count, count)));
}

}  // namespace
}  // namespace bmx
