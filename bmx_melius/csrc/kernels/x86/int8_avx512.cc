// Kernels of 8-bit layers with AVX-512 VNNI, whose dot product of four bytes is exact: it adds four products of an
// unsigned and a signed byte to 32 bits.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstring>
#include <new>

#include "kernels/common/int8_loops.h"

namespace bmx {
namespace {

// Rescaling of 16 numbers. Products have 64 bits: those of even and of odd lanes are computed one after the other.
struct Rescaler {
    __m512i even, odd, even_offset, odd_offset, min, max;
    __m128i shift;

    explicit Rescaler(const Rescaling& r) {
        const __m512i multiplier = _mm512_loadu_si512(r.multiplier), offset = _mm512_loadu_si512(r.offset);
        const __m512i half = _mm512_set1_epi64(int64_t(1) << (r.shift - 1));
        const __m128i scale = _mm_cvtsi32_si128(r.shift - kOffsetShift);
        even = multiplier;
        odd = _mm512_srli_epi64(multiplier, 32);
        const __m512i low = _mm512_srai_epi64(_mm512_slli_epi64(offset, 32), 32), high = _mm512_srai_epi64(offset, 32);
        even_offset = _mm512_add_epi64(_mm512_sll_epi64(low, scale), half);
        odd_offset = _mm512_add_epi64(_mm512_sll_epi64(high, scale), half);
        min = _mm512_set1_epi64(r.min);
        max = _mm512_set1_epi64(r.max);
        shift = _mm_cvtsi32_si128(r.shift);
    }

    __m512i limited(__m512i product, __m512i offset) const {
        const __m512i y = _mm512_sra_epi64(_mm512_add_epi64(product, offset), shift);
        return _mm512_min_epi64(_mm512_max_epi64(y, min), max);
    }

    __m512i operator()(__m512i n) const {
        const __m512i low = limited(_mm512_mul_epi32(n, even), even_offset);
        const __m512i high = limited(_mm512_mul_epi32(_mm512_srli_epi64(n, 32), odd), odd_offset);
        return _mm512_mask_mov_epi32(low, 0xaaaa, _mm512_slli_epi64(high, 32));
    }
};

__mmask16 first(int count) { return __mmask16((1u << count) - 1); }

__m512i integers(const int16_t* x, __mmask16 mask) {
    return _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, x));
}
// Magnitudes beyond 2^23 become the limit, and so does NaN.
__m512i nearest(__m512 x) {
    const __m512 limit = _mm512_set1_ps(8388608.0f);
    return _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, limit), _mm512_set1_ps(-8388608.0f)));
}

template <class T>
void rescale_lanes(const RescaleRow& row, const T* x) {
    for (int c = 0; c < row.channels; c += kInt8Lanes) {
        const __mmask16 mask = row.channels - c >= kInt8Lanes ? 0xffff : first(row.channels - c);
        const Rescaler rescale(row.rescaling.from(c));
        const __m512 scale = row.scale ? _mm512_maskz_loadu_ps(mask, row.scale + c) : _mm512_setzero_ps();
        const __m512 shift = row.scale ? _mm512_maskz_loadu_ps(mask, row.shift + c) : _mm512_setzero_ps();
        for (int i = 0; i < row.pixels; ++i) {
            const T* from = x + i * row.x_pixel + c;
            __m512i n;
            if constexpr (sizeof(T) == sizeof(float)) {
                const __m512 number = _mm512_maskz_loadu_ps(mask, from);
                n = nearest(row.scale ? _mm512_fmadd_ps(number, scale, shift) : number);
            } else {
                n = integers(from, mask);
                n = row.scale ? nearest(_mm512_fmadd_ps(_mm512_cvtepi32_ps(n), scale, shift)) : n;
            }
            _mm512_mask_cvtepi32_storeu_epi8(row.y + i * row.y_pixel + c, mask, rescale(n));
        }
    }
}

void rescale(const RescaleRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) { rescale_lanes(row, x); });
}

// Computes kPixels outputs of kBlocks blocks that read the same words.
template <int kBlocks, int kPixels>
void tile(const Int8Row& row, const Int8Block* blocks, const Rescaler* rescale, int pixel) {
    __m512i sums[kBlocks][kPixels];
    for (int b = 0; b < kBlocks; ++b) {
        for (int i = 0; i < kPixels; ++i) {
            sums[b][i] = _mm512_setzero_si512();
        }
    }
    const int words = blocks[0].words;
    const uint8_t* const x = row.x + pixel * row.step + 4 * blocks[0].first_word;
    const int8_t* weights[kBlocks];
    for (int b = 0; b < kBlocks; ++b) {
        weights[b] = blocks[b].weights;
    }
    for (int tap = 0; tap < row.tap_count; ++tap) {
        const uint8_t* from = x + row.taps[tap];
        for (int word = 0; word < words; ++word, from += 4) {
            __m512i w[kBlocks];
            for (int b = 0; b < kBlocks; ++b) {
                w[b] = _mm512_loadu_si512(weights[b]);
                weights[b] += 4 * kInt8Lanes;
            }
            for (int i = 0; i < kPixels; ++i) {
                int32_t bytes;
                std::memcpy(&bytes, from + i * row.step, sizeof bytes);
                const __m512i activation = _mm512_set1_epi32(bytes);
                for (int b = 0; b < kBlocks; ++b) {
                    sums[b][i] = _mm512_dpbusd_epi32(sums[b][i], activation, w[b]);
                }
            }
        }
    }
    for (int b = 0; b < kBlocks; ++b) {
        const __mmask16 mask = blocks[b].filters == kInt8Lanes ? 0xffff : first(blocks[b].filters);
        for (int i = 0; i < kPixels; ++i) {
            const ptrdiff_t at = (pixel + i) * row.y_pixel + blocks[b].first_filter;
            const __m512i y = rescale[b](sums[b][i]);
            if (row.to_bytes) {
                _mm512_mask_cvtepi32_storeu_epi8(static_cast<uint8_t*>(row.y) + at, mask, y);
            } else {
                _mm512_mask_cvtepi32_storeu_epi16(static_cast<int16_t*>(row.y) + at, mask, y);
            }
        }
    }
}

template <int kBlocks, int kPixels>
void rest(const Int8Row& row, const Int8Block* blocks, const Rescaler* rescale, int pixel) {
    if constexpr (kPixels > 0) {
        row.pixels - pixel == kPixels ? tile<kBlocks, kPixels>(row, blocks, rescale, pixel)
                                      : rest<kBlocks, kPixels - 1>(row, blocks, rescale, pixel);
    }
}

template <int kBlocks, int kPixels>
void blocks(const Int8Row& row, int number) {
    const Int8Block* first_block = row.blocks + number;
    // Not an array of Rescaler, which has no default.
    alignas(64) unsigned char storage[kBlocks * sizeof(Rescaler)];
    Rescaler* rescale = reinterpret_cast<Rescaler*>(storage);
    for (int b = 0; b < kBlocks; ++b) {
        new (rescale + b) Rescaler(row.rescaling.from((number + b) * kInt8Lanes));
    }
    int pixel = 0;
    for (; pixel + kPixels <= row.pixels; pixel += kPixels) {
        tile<kBlocks, kPixels>(row, first_block, rescale, pixel);
    }
    rest<kBlocks, kPixels - 1>(row, first_block, rescale, pixel);
}

bool together(const Int8Block* block, int count) {
    for (int b = 1; b < count; ++b) {
        if (block[b].first_word != block[0].first_word || block[b].words != block[0].words) {
            return false;
        }
    }
    return true;
}

void convolve(const Int8Row& row) {
    for (int number = 0; number < row.block_count;) {
        const int left = row.block_count - number;
        if (left >= 4 && together(row.blocks + number, 4)) {
            blocks<4, 6>(row, number);
            number += 4;
        } else if (left >= 2 && together(row.blocks + number, 2)) {
            blocks<2, 12>(row, number);
            number += 2;
        } else {
            blocks<1, 14>(row, number);
            number += 1;
        }
    }
}

}  // namespace

const Int8Kernels& int8_kernels_avx512() {
    static const Int8Kernels kernels = {rescale, convolve};
    return kernels;
}

}  // namespace bmx
