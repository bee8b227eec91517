// Comparison of activations with thresholds, to bits, with AVX-512.
#pragma once
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"

namespace bmx {
namespace {

// Compares the elements of a few words; `lanes` elements of the last one exist (all of them if kWhole). The bits are
// stored from mask registers in parts, because joining masks uses the same execution ports as comparisons.
template <int kWords, bool kWhole>
struct F32Comparison {
    __mmask16 lanes[2 * kWords], flips[2 * kWords];
    __m512 limits[2 * kWords];
    F32Comparison(const float* threshold, const uint32_t* flip, __mmask32 last) {
        for (int i = 0; i < 2 * kWords; ++i) {
            lanes[i] = static_cast<__mmask16>((i / 2 == kWords - 1 ? last : ~0u) >> i % 2 * 16);
            flips[i] = static_cast<__mmask16>(flip[i / 2] >> i % 2 * 16);
            limits[i] = _mm512_maskz_loadu_ps(lanes[i], threshold + 16 * i);
        }
    }
    void operator()(const float* x, uint32_t* words) const {
        for (int i = 0; i < 2 * kWords; ++i) {
            __mmask16 bits;
            if constexpr (kWhole) {
                bits = _mm512_cmp_ps_mask(_mm512_loadu_ps(x + 16 * i), limits[i], _CMP_GE_OQ);
            } else {
                bits = _mm512_mask_cmp_ps_mask(lanes[i], _mm512_maskz_loadu_ps(lanes[i], x + 16 * i), limits[i],
                                               _CMP_GE_OQ);
            }
            bits ^= flips[i];
            std::memcpy(reinterpret_cast<uint8_t*>(words) + sizeof(bits) * i, &bits, sizeof(bits));
        }
    }
};

template <int kWords, bool kWhole>
struct I16Comparison {
    __mmask32 lanes[kWords];
    uint32_t flips[kWords];
    __m512i limits[kWords];
    I16Comparison(const int16_t* threshold, const uint32_t* flip, __mmask32 last) {
        for (int i = 0; i < kWords; ++i) {
            lanes[i] = i == kWords - 1 ? last : ~0u;
            flips[i] = flip[i];
            limits[i] = _mm512_maskz_loadu_epi16(lanes[i], threshold + 32 * i);
        }
    }
    void operator()(const int16_t* x, uint32_t* words) const {
        for (int i = 0; i < kWords; ++i) {
            if constexpr (kWhole) {
                words[i] = _mm512_cmpge_epi16_mask(_mm512_loadu_si512(x + 32 * i), limits[i]) ^ flips[i];
            } else {
                const __m512i elements = _mm512_maskz_loadu_epi16(lanes[i], x + 32 * i);
                words[i] = _mm512_mask_cmpge_epi16_mask(lanes[i], elements, limits[i]) ^ flips[i];
            }
        }
    }
};

template <template <int, bool> class Comparison, typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint32_t* words) {
    const int units = (channels + 31) / 32;
    const auto pack_words = [&](const auto& compare, int unit) {
        const T* from = x + unit * 32;
        uint32_t* to = words + unit;
        for (int pixel = 0; pixel < pixels; ++pixel, from += stride, to += units) {
            compare(from, to);
        }
    };
    int unit = 0;
    for (; channels - unit * 32 >= 64; unit += 2) {
        pack_words(Comparison<2, true>(threshold + unit * 32, flip + unit, ~0u), unit);
    }
    for (; unit < units; ++unit) {
        const int left = channels - unit * 32;
        if (left >= 32) {
            pack_words(Comparison<1, true>(threshold + unit * 32, flip + unit, ~0u), unit);
        } else {
            pack_words(Comparison<1, false>(threshold + unit * 32, flip + unit, (1u << left) - 1), unit);
        }
    }
}

// A bit of a word for the pixel of each lane.
struct alignas(64) Bits {
    uint32_t bits[32];
    constexpr Bits() : bits() {
        for (int i = 0; i < 32; ++i) {
            bits[i] = 1u << i;
        }
    }
};
constexpr Bits kBits;

// Lanes are pixels: the comparison of a channel sets its bit in their words.
void pack_planes(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                 const uint32_t* flip, uint32_t* words) {
    constexpr int kVectors =
        4;  // vectors of neighbouring pixels per channel, since each channel is at a different place in memory
    const int units = (channels + 31) / 32;
    const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i places = _mm512_mullo_epi32(lanes, _mm512_set1_epi32(units));
    for (int pixel = 0; pixel < pixels; pixel += kVectors * kLanes) {
        __mmask16 there[kVectors];
        for (int v = 0; v < kVectors; ++v) {
            const int left = pixels - pixel - v * kLanes;
            there[v] = static_cast<__mmask16>(left >= kLanes ? 0xffff : left > 0 ? (1u << left) - 1 : 0);
        }
        for (int unit = 0; unit < units; ++unit) {
            const int begin = unit * 32, end = channels - begin < 32 ? channels : begin + 32;
            const float* from = x + begin * stride + pixel;
            __m512i sums[kVectors];
            for (auto& sum : sums) {
                sum = _mm512_set1_epi32(static_cast<int>(flip[unit]));
            }
            for (int c = begin; c < end; ++c, from += stride) {
                const __m512 limit = _mm512_set1_ps(threshold[c]);
                const __m512i bit = _mm512_set1_epi32(static_cast<int>(kBits.bits[c - begin]));
                for (int v = 0; v < kVectors; ++v) {
                    const __m512 numbers = _mm512_maskz_loadu_ps(there[v], from + v * kLanes);
                    const __mmask16 set = _mm512_cmp_ps_mask(numbers, limit, _CMP_GE_OQ);
                    sums[v] = _mm512_mask_xor_epi32(sums[v], set, sums[v], bit);
                }
            }
            for (int v = 0; v < kVectors; ++v) {
                uint32_t* to = words + ptrdiff_t(pixel + v * kLanes) * units + unit;
                _mm512_mask_i32scatter_epi32(to, there[v], places, sums[v], sizeof(uint32_t));
            }
        }
    }
}

}  // namespace
}  // namespace bmx
