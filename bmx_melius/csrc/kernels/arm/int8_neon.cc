// Kernels of 8-bit layers with NEON, for processors without dot products.
//
// Activations are unsigned: x w = (x - 128) w + 128 w, and x - 128 is a signed byte. smull multiplies eight signed
// bytes to 16 bits, smlal adds eight products to these, and sadalp adds neighbours to sums of 32 bits. Two products fit
// into 16 bits unless both weights are -128, because 2 * 128 * 127 < 2^15 <= 2 * 128 * 128; where a weight of a block
// is -128, which conversion does not make, single products are added.
//
// Sums of a lane are in two places until the end. To them are added 128 times the sums of the weights of their lane,
// which are added once for a row of outputs.
#include "kernels/arm/int8_lanes_neon.h"

namespace bmx {
namespace {

class PairedProducts {
  public:
    static constexpr int kPixels = 2;  // 16 sums in 32 registers

    PairedProducts(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row), blocks_(blocks), step_bytes_(blocks.count * 64) {
        const ptrdiff_t steps = ptrdiff_t(row.tap_count) * blocks.words;
        int8x16_t least = vdupq_n_s8(127);
        for (int v = 0; v < blocks.count * kBlockVectors; ++v) {
            int32x4_t sum = vdupq_n_s32(0);
            const int8_t* weights = blocks.weights + v * 16;
            for (ptrdiff_t step = 0; step < steps; ++step, weights += step_bytes_) {
                const int8x16_t w = vld1q_s8(weights);
                sum = vpadalq_s16(sum, vpaddlq_s8(w));
                least = vminq_s8(least, w);
            }
            vst1q_s32(last_ + v * kVectorLanes, vshlq_n_s32(sum, 7));
        }
        pairs_fit_ = vminvq_s8(least) > -128;
    }

    template <int kPeriod, int pixels>
    [[gnu::always_inline]] void add(int block, int pixel, int32x4_t (&sums)[pixels][kBlockVectors]) const {
        if (pairs_fit_) {
            add_all<kPeriod, true>(block, pixel, sums);
        } else {
            add_all<kPeriod, false>(block, pixel, sums);
        }
    }

  private:
    template <int pixels>
    using Halves = int32x4_t[pixels][kBlockVectors][2];  // lanes 0 and 1 of a vector, lanes 2 and 3, two sums each

    template <int kPeriod, bool kPairs, int pixels>
    [[gnu::always_inline]] void add_all(int block, int pixel, int32x4_t (&sums)[pixels][kBlockVectors]) const {
        Halves<pixels> halves;
        unrolled<pixels>([&](auto i) BMX_INLINED {
            unrolled<kBlockVectors>([&](auto v) BMX_INLINED { halves[i][v][0] = halves[i][v][1] = vdupq_n_s32(0); });
        });
        const uint8_t* const x = row_.x + pixel * row_.step + 4 * blocks_.first_word;
        const int8_t* weights = blocks_.weights + block * 64;
        const uint8_t *first[pixels], *second[pixels];
        const int words = blocks_.words, taps = row_.tap_count;
        for (int tap = 0; tap < taps; ++tap) {
            int left = words;
            unrolled<pixels>([&](auto i) BMX_INLINED { first[i] = x + i * row_.step + row_.taps[tap]; });
            if (kPairs && words == 1 && tap + 1 < taps) {  // words of two taps
                ++tap;
                unrolled<pixels>([&](auto i) BMX_INLINED { second[i] = x + i * row_.step + row_.taps[tap]; });
                add_words<kPeriod, 2>(first, second, weights, halves);
                left = 0;
            }
            for (; kPairs && left >= 2; left -= 2) {
                add_words<kPeriod, 2>(first, first, weights, halves);
            }
            for (; left > 0; --left) {
                add_words<kPeriod, 1>(first, first, weights, halves);
            }
        }
        unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
            const int32x4_t last = vld1q_s32(last_ + block * kInt8Lanes + v * kVectorLanes);
            unrolled<pixels>([&](auto i) BMX_INLINED {
                sums[i][v] = vaddq_s32(vpaddq_s32(halves[i][v][0], halves[i][v][1]), last);
            });
        });
    }

    // Adds the products of a word, or of two, of each pixel, and moves to the next words.
    template <int kPeriod, int words, int pixels>
    [[gnu::always_inline]] void add_words(const uint8_t* (&first)[pixels], const uint8_t* (&second)[pixels],
                                          const int8_t*& weights, Halves<pixels>& halves) const {
        constexpr int kKinds = kPeriod == 8 ? 2 : 1;  // of words for the vectors of a block
        int8x16_t x[words][pixels][kKinds];
        unrolled<words>([&](auto word) BMX_INLINED {
            unrolled<pixels>([&](auto i) BMX_INLINED {
                unrolled<kKinds>([&](auto kind) BMX_INLINED {
                    x[word][i][kind] = centred(next_words<kPeriod>(word ? second[i] : first[i]));
                });
            });
        });
        unrolled<kBlockVectors / 2>([&](auto pair) BMX_INLINED {
            int8x16_t w[words][2];
            unrolled<words>([&](auto word) BMX_INLINED { load_weights<pair>(weights + word * step_bytes_, w[word]); });
            unrolled<2>([&](auto v) BMX_INLINED {
                unrolled<pixels>([&](auto i) BMX_INLINED {
                    constexpr int kind = kKinds > 1 ? v : 0;
                    int32x4_t(&sums)[2] = halves[i][2 * pair + v];
                    int16x8_t low = vmull_s8(vget_low_s8(w[0][v]), vget_low_s8(x[0][i][kind]));
                    int16x8_t high = vmull_high_s8(w[0][v], x[0][i][kind]);
                    if constexpr (words > 1) {
                        low = vmlal_s8(low, vget_low_s8(w[1][v]), vget_low_s8(x[1][i][kind]));
                        high = vmlal_high_s8(high, w[1][v], x[1][i][kind]);
                    }
                    sums[0] = vpadalq_s16(sums[0], low);
                    sums[1] = vpadalq_s16(sums[1], high);
                });
            });
        });
        weights += words * step_bytes_;
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const ptrdiff_t step_bytes_;  // of the weights of a word
    bool pairs_fit_;              // two products into 16 bits
    int32_t last_[kInt8Blocks * kInt8Lanes];
};

}  // namespace

const Int8Kernels& int8_kernels_neon() { return kernels_with<Lanes, PairedProducts>(); }

}  // namespace bmx
