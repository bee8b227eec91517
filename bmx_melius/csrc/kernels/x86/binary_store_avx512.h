// Storing the results of strips in 512-bit registers, the last step of a convolution.
#pragma once
#include <immintrin.h>

#include <type_traits>

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

// The lower 16 bits of the lanes of two vectors.
inline __m512i low_halves(__m512i x, __m512i y) {
    const __m512i places = _mm512_set_epi16(62, 60, 58, 56, 54, 52, 50, 48, 46, 44, 42, 40, 38, 36, 34, 32, 30, 28, 26,
                                            24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    return _mm512_permutex2var_epi16(x, places, y);
}

// Stores 32 results, of which `lanes` exist, or all of them without masks, which are slow.
template <bool kAll>
inline void store_words(__m512i results, int16_t* output, const int16_t* addend, __mmask32 lanes = -1) {
    if (addend) {
        const __m512i numbers = kAll ? _mm512_loadu_si512(addend) : _mm512_maskz_loadu_epi16(lanes, addend);
        results = _mm512_add_epi16(results, numbers);
    }
    if (kAll) {
        _mm512_storeu_si512(output, results);
    } else {
        _mm512_mask_storeu_epi16(output, lanes, results);
    }
}

inline void store_pair(__m512i results, __m512i next, int16_t* output, const int16_t* addend, __mmask32 lanes) {
    store_words<false>(low_halves(results, next), output, addend, lanes);
}

inline bool side_by_side(const Strip& strip, const Strip& next) { return next.begin == strip.begin + kLanes; }

inline __mmask16 lanes_of(const Strip& strip) { return static_cast<__mmask16>((1u << (strip.end - strip.begin)) - 1); }

// Lanes of two adjacent strips, of which the first one is complete.
inline __mmask32 lanes_of(const Strip& strip, const Strip& next) {
    return lanes_of(strip) | static_cast<__mmask32>(lanes_of(next)) << kLanes;
}

// Stores the results of pixels for kStrips strips of filters, from numbers of differing bits.
template <int kStrips, typename T>
class StripStore {
  public:
    StripStore(const BinaryConvRun& run, const Strip* strips)
        : strips_(strips),
          affine_(affine_of_differing(*run.conv)),
          output_(static_cast<T*>(run.output)),
          addend_(static_cast<const T*>(run.addend)),
          complete_(kStrips % 2 == 0 && strips[kStrips - 1].end - strips[0].begin == kStrips * kLanes) {}

    // `excess` is subtracted from all numbers. `at`: index in the output of filter 0 of the pixel.
    void operator()(const __m512i (&sums)[kStrips], int excess, ptrdiff_t at) const {
        const int constant = affine_.constant + affine_.scale * excess;
        T* output = output_ + at;
        const T* addend = addend_ ? addend_ + at : nullptr;
        if constexpr (std::is_same_v<T, int16_t>) {
            if (complete_) {
                return store_complete(sums, constant, output + strips_[0].begin,
                                      addend ? addend + strips_[0].begin : nullptr);
            }
        }
        const __m512i constants = _mm512_set1_epi32(constant);
        const auto doubled = static_cast<__mmask16>(affine_.scale == 2 ? -1 : 0);  // scales are 1 and 2
#pragma GCC unroll 4
        for (int s = 0; s < kStrips; ++s) {
            const Strip& strip = strips_[s];
            const __m512i sum = _mm512_mask_add_epi32(sums[s], doubled, sums[s], sums[s]);
            store(_mm512_sub_epi32(constants, sum), output + strip.begin, addend ? addend + strip.begin : nullptr,
                  lanes_of(strip));
        }
    }

  private:
    void store_complete(const __m512i (&sums)[kStrips], int constant, int16_t* output, const int16_t* addend) const {
        const __m512i constants = _mm512_set1_epi16(static_cast<int16_t>(constant));
#pragma GCC unroll 2
        for (int s = 0; s + 1 < kStrips; s += 2) {
            __m512i sum = low_halves(sums[s], sums[s + 1]);
            sum = _mm512_sub_epi16(constants, affine_.scale == 2 ? _mm512_add_epi16(sum, sum) : sum);
            store_words<true>(sum, output + s * kLanes, addend ? addend + s * kLanes : nullptr);
        }
    }

    const Strip* strips_;
    const Affine affine_;
    T* output_;
    const T* addend_;
    const bool complete_;  // two complete strips are stored at once
};

}  // namespace
}  // namespace bmx
