// Binary layers with AVX2, which has no population count: differing elements are counted by table lookup, for two
// pixels at once (see binary_lookup.h). Blocks of up to 2 strips of filters are computed in tiles of pixels (see
// binary_tiles.h).
#include <immintrin.h>

#include <cstring>

#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_lookup.h"
#include "kernels/common/binary_pack_words.h"
#include "kernels/common/binary_pairs.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/binary_tiles.h"
#include "kernels/x86/lookup_blocks_avx2.h"

namespace bmx {
namespace {

// --- packing

struct Comparison {
    static uint32_t word(const float* x, const float* threshold) {
        uint32_t word = 0;
        for (int i = 0; i < 32; i += 8) {
            const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(threshold + i), _CMP_GE_OQ);
            word |= uint32_t(_mm256_movemask_ps(above)) << i;
        }
        return word;
    }

    static uint32_t word(const int16_t* x, const int16_t* threshold) {
        const __m256i low = _mm256_cmpgt_epi16(load(threshold), load(x));
        const __m256i high = _mm256_cmpgt_epi16(load(threshold + 16), load(x + 16));
        const __m256i below =
            _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);  // packs works within 128-bit halves
        return ~static_cast<uint32_t>(_mm256_movemask_epi8(below));
    }
};

// Lanes are pixels: the comparison of a channel sets its bit in their words. Several vectors are processed at once,
// because each channel is at a different place in memory, more places than the hardware prefetcher tracks. `width`
// pixels exist.
template <int kVectors>
void pack_columns(const float* x, ptrdiff_t stride, int width, int channels, const float* threshold,
                  const uint32_t* flip, uint32_t* words) {
    const int units = (channels + 31) / 32;
    __m256i there[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const __m256i lanes = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
        there[v] = _mm256_cmpgt_epi32(_mm256_set1_epi32(width - 8 * v), lanes);
    }
    for (int unit = 0; unit < units; ++unit) {
        const int begin = unit * 32, end = channels - begin < 32 ? channels : begin + 32;
        const float* from = x + begin * stride;
        __m256i sums[kVectors];
        for (auto& sum : sums) {
            sum = _mm256_set1_epi32(static_cast<int>(flip[unit]));
        }
        for (int c = begin; c < end; ++c, from += stride) {
            const __m256 limit = _mm256_set1_ps(threshold[c]);
            const __m256i bit = _mm256_set1_epi32(static_cast<int>(1u << (c - begin)));
            for (int v = 0; v < kVectors; v += 2) {
                __builtin_prefetch(from + 8 * (kVectors + v));  // the next pixels
            }
            for (int v = 0; v < kVectors; ++v) {
                const __m256 set = _mm256_cmp_ps(_mm256_maskload_ps(from + 8 * v, there[v]), limit, _CMP_GE_OQ);
                sums[v] = _mm256_xor_si256(sums[v], _mm256_and_si256(_mm256_castps_si256(set), bit));
            }
        }
        uint32_t column[8 * kVectors];
        std::memcpy(column, sums, sizeof(column));
        for (int i = 0; i < width; ++i) {
            words[ptrdiff_t(i) * units + unit] = column[i];
        }
    }
}

void pack_planes(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                 const uint32_t* flip, uint32_t* words) {
    constexpr int kVectors = 4;
    const ptrdiff_t units = (channels + 31) / 32;
    for (int pixel = 0; pixel < pixels; pixel += 8 * kVectors) {
        const int width = pixels - pixel < 8 * kVectors ? pixels - pixel : 8 * kVectors;
        pack_columns<kVectors>(x + pixel, stride, width, channels, threshold, flip, words + pixel * units);
    }
}

// A unit holds the nibbles of a word, each in a byte.
void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    const __m128i low = _mm_set1_epi8(15);
    const auto nibbles = [&](__m128i bytes) {
        return _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    };
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride, words += stride) {
        int unit = 0;
        for (; unit + 1 < units; unit += 2) {
            const __m128i two = nibbles(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words + unit)));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), two);
        }
        if (unit < units) {
            const __m128i one = nibbles(_mm_cvtsi32_si128(static_cast<int>(words[unit])));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), one);
        }
    }
}

}  // namespace

const BinaryKernels& binary_kernels_avx2() {
    static const BinaryKernels kernels = {"avx2",
                                          kUnitBytes,
                                          kStripFilters,
                                          kBandPixels,
                                          pack_words<Comparison, float>,
                                          pack_words<Comparison, int16_t>,
                                          pack_planes,
                                          expand,
                                          weights_bytes,
                                          prepare_weights,
                                          PairRows::scratch_bytes,
                                          convolve};
    return kernels;
}

}  // namespace bmx
