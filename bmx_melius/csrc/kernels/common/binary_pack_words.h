// Comparison of activations with thresholds, to bits, a word at a time.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Packs pixels. Comparison::word(x, threshold) returns the word of 32 elements.
template <class Comparison, typename T>
void pack_words(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
                uint32_t* words) {
    const int whole = channels / 32;
    const int rest = channels % 32;
    for (int pixel = 0; pixel < pixels; ++pixel, x += stride) {
        for (int unit = 0; unit < whole; ++unit) {
            *words++ = Comparison::word(x + unit * 32, threshold + unit * 32) ^ flip[unit];
        }
        if (rest) {
            uint32_t word = 0;
            for (int i = 0; i < rest; ++i) {
                word |= uint32_t(x[whole * 32 + i] >= threshold[whole * 32 + i]) << i;
            }
            *words++ = word ^ flip[whole];
        }
    }
}

// Packs a pixel of planes of channels, `stride` elements apart.
inline void pack_column(const float* x, ptrdiff_t stride, int channels, const float* threshold, const uint32_t* flip,
                        uint32_t* words) {
    std::memcpy(words, flip, ceil_div(channels, 32) * sizeof(uint32_t));
    for (int c = 0; c < channels; ++c) {
        words[c / 32] ^= uint32_t(x[c * stride] >= threshold[c]) << c % 32;
    }
}

}  // namespace
}  // namespace bmx
