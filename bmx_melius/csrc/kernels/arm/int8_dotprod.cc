// Kernels of 8-bit layers with the dot products of ARMv8.2: sdot adds four products of signed bytes to 32 bits,
// exactly.
//
// Activations are unsigned: x w = (x - 128) w + 128 w, and x - 128 is a signed byte. Sums begin with 128 times the sum
// of the weights of their lane, which are added once for a row of outputs.
#include "kernels/arm/int8_lanes_neon.h"

namespace bmx {
namespace {

class DotProducts {
  public:
    static constexpr int kPixels = 5;  // 20 sums in 32 registers

    DotProducts(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row), blocks_(blocks), step_bytes_(blocks.count * 64) {
        const int8x16_t ones = vdupq_n_s8(1);
        const ptrdiff_t steps = ptrdiff_t(row.tap_count) * blocks.words;
        for (int v = 0; v < blocks.count * kBlockVectors; ++v) {
            int32x4_t sum = vdupq_n_s32(0);
            const int8_t* weights = blocks.weights + v * 16;
            for (ptrdiff_t step = 0; step < steps; ++step, weights += step_bytes_) {
                sum = vdotq_s32(sum, vld1q_s8(weights), ones);
            }
            vst1q_s32(first_ + v * kVectorLanes, vshlq_n_s32(sum, 7));
        }
    }

    template <int kPeriod, int pixels>
    [[gnu::always_inline]] void add(int block, int pixel, int32x4_t (&sums)[pixels][kBlockVectors]) const {
        unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
            const int32x4_t first = vld1q_s32(first_ + block * kInt8Lanes + v * kVectorLanes);
            unrolled<pixels>([&](auto i) BMX_INLINED { sums[i][v] = first; });
        });
        const uint8_t* const x = row_.x + pixel * row_.step + 4 * blocks_.first_word;
        const int8_t* weights = blocks_.weights + block * 64;
        const uint8_t* from[pixels];
        unrolled<pixels>([&](auto i) BMX_INLINED { from[i] = x + i * row_.step; });
        for (int tap = 0; tap < row_.tap_count; ++tap) {
            ptrdiff_t offset = row_.taps[tap];
            int left = blocks_.words;
            if constexpr (kPeriod == 1) {
                for (; left >= 4; left -= 4, offset += 16) {
                    add_four<pixels>(from, offset, weights, sums);
                }
            }
            for (; left > 0; --left, offset += 4 * kPeriod, weights += step_bytes_) {
                add_word<kPeriod, pixels>(from, offset, weights, sums);
            }
        }
    }

  private:
    // Adds the products of a word of activations. In assembly language, because GCC copies some of the sums.
    template <int word>
    [[gnu::always_inline]] static void add_products(int32x4_t& sum, int8x16_t weights, int8x16_t x) {
        asm("sdot %0.4s, %1.16b, %2.4b[%3]" : "+w"(sum) : "w"(weights), "w"(x), "i"(word));
    }

    template <int kPeriod, int pixels>
    [[gnu::always_inline]] static void add_word(const uint8_t* const (&from)[pixels], ptrdiff_t offset,
                                                const int8_t* weights, int32x4_t (&sums)[pixels][kBlockVectors]) {
        int8x16_t w[2][2];
        load_weights<0>(weights, w[0]);
        load_weights<1>(weights, w[1]);
        unrolled<pixels>([&](auto i) BMX_INLINED {
            if constexpr (kPeriod == 1) {
                const int8x16_t x = centred(load_word(from[i], offset));
                unrolled<kBlockVectors>([&](auto v) BMX_INLINED { add_products<0>(sums[i][v], w[v / 2][v % 2], x); });
            } else {
                const uint8_t* at = from[i] + offset;
                const int8x16_t even = centred(next_words<kPeriod>(at));
                const int8x16_t odd = kPeriod == 8 ? centred(next_words<kPeriod>(at)) : even;
                unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                    sums[i][v] = vdotq_s32(sums[i][v], w[v / 2][v % 2], v % 2 ? odd : even);
                });
            }
        });
    }

    // Four words of each pixel are loaded at once.
    template <int pixels>
    [[gnu::always_inline]] void add_four(const uint8_t* const (&from)[pixels], ptrdiff_t offset, const int8_t*& weights,
                                         int32x4_t (&sums)[pixels][kBlockVectors]) const {
        int8x16_t x[pixels];
        unrolled<pixels>([&](auto i) BMX_INLINED { x[i] = centred(load_channels(from[i], offset)); });
        unrolled<4>([&](auto word) BMX_INLINED {
            unrolled<kBlockVectors / 2>([&](auto pair) BMX_INLINED {
                int8x16_t w[2];
                load_weights<pair>(weights, w);
                unrolled<pixels>([&](auto i) BMX_INLINED {
                    unrolled<2>([&](auto v) BMX_INLINED { add_products<word>(sums[i][2 * pair + v], w[v], x[i]); });
                });
            });
            weights += step_bytes_;
        });
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const ptrdiff_t step_bytes_;  // of the weights of a word
    int32_t first_[kInt8Blocks * kInt8Lanes];
};

}  // namespace

const Int8Kernels& int8_kernels_dotprod() { return kernels_with<Lanes, DotProducts>(); }

}  // namespace bmx
