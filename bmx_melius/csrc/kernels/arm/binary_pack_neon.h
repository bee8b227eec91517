// Packing of activations with NEON.
#pragma once
#include <arm_neon.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_pack_words.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kColumnLanes = 4;

// Returns a word of the lowest bits of 32 bytes, each 0 or 255, in two vectors.
inline uint32_t bits_of(const uint8x16_t (&masks)[2]) {
    static const uint8_t kBits[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x16_t bits = vld1q_u8(kBits);
    uint8x16_t sum = vpaddq_u8(vandq_u8(masks[0], bits), vandq_u8(masks[1], bits));
    sum = vpaddq_u8(sum, sum);
    return vgetq_lane_u32(vreinterpretq_u32_u8(vpaddq_u8(sum, sum)), 0);
}

inline uint16x8_t at_least(const float* x, const float* threshold) {
    const uint32x4_t low = vcgeq_f32(vld1q_f32(x), vld1q_f32(threshold));
    const uint32x4_t high = vcgeq_f32(vld1q_f32(x + 4), vld1q_f32(threshold + 4));
    return vuzp1q_u16(vreinterpretq_u16_u32(low), vreinterpretq_u16_u32(high));
}

inline uint16x8_t at_least(const int16_t* x, const int16_t* threshold) {
    return vcgeq_s16(vld1q_s16(x), vld1q_s16(threshold));
}

struct Comparison {
    template <typename T>
    static uint32_t word(const T* x, const T* threshold) {
        uint8x16_t masks[2];
        for (int i = 0; i < 2; ++i) {
            const uint16x8_t low = at_least(x + 16 * i, threshold + 16 * i);
            const uint16x8_t high = at_least(x + 16 * i + 8, threshold + 16 * i + 8);
            masks[i] = vuzp1q_u8(vreinterpretq_u8_u16(low), vreinterpretq_u8_u16(high));
        }
        return bits_of(masks);
    }
};

// Lanes are pixels, of which kVectors * 4 exist: the comparison of a channel is shifted into their words. Several
// vectors are processed at once, because each channel is at a different place in memory.
template <int kVectors>
void pack_columns(const float* x, ptrdiff_t stride, int channels, const float* threshold, const uint32_t* flip,
                  uint32_t* words) {
    const int units = ceil_div(channels, 32);
    for (int unit = 0; unit < units; ++unit) {
        const int begin = unit * 32, count = min(32, channels - begin);
        const float* from = x + begin * stride;
        uint32x4_t sums[kVectors];
        for (auto& sum : sums) {
            sum = vdupq_n_u32(0);
        }
        for (int c = 0; c < count; ++c, from += stride) {
            const float32x4_t limit = vdupq_n_f32(threshold[begin + c]);
            for (int v = 0; v < kVectors; ++v) {  // bits move down from the highest place
                sums[v] = vsriq_n_u32(vcgeq_f32(vld1q_f32(from + v * kColumnLanes), limit), sums[v], 1);
            }
        }
        const int32x4_t down = vdupq_n_s32(count - 32);
        for (int v = 0; v < kVectors; ++v) {
            uint32_t column[kColumnLanes];
            vst1q_u32(column, veorq_u32(vshlq_u32(sums[v], down), vdupq_n_u32(flip[unit])));
            for (int i = 0; i < kColumnLanes; ++i) {
                words[ptrdiff_t(v * kColumnLanes + i) * units + unit] = column[i];
            }
        }
    }
}

inline void pack_planes(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                        const uint32_t* flip, uint32_t* words) {
    constexpr int kVectors = 4, kColumns = kVectors * kColumnLanes;
    const ptrdiff_t units = ceil_div(channels, 32);
    int pixel = 0;
    for (; pixels - pixel >= kColumns; pixel += kColumns) {
        pack_columns<kVectors>(x + pixel, stride, channels, threshold, flip, words + pixel * units);
    }
    for (; pixels - pixel >= kColumnLanes; pixel += kColumnLanes) {
        pack_columns<1>(x + pixel, stride, channels, threshold, flip, words + pixel * units);
    }
    for (; pixel < pixels; ++pixel) {
        pack_column(x + pixel, stride, channels, threshold, flip, words + pixel * units);
    }
}

}  // namespace
}  // namespace bmx
