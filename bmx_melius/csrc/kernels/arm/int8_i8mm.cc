// Kernels of 8-bit layers with the matrix products of ARMv8.6, of unsigned and signed bytes, exact in 32 bits: usmmla
// adds eight products to each sum of two pixels and two lanes, usdot four to each of four lanes.
#include "kernels/arm/int8_lanes_neon.h"

namespace bmx {
namespace {

class MatrixProducts {
  public:
    static constexpr int kPixels = 6;  // 24 sums in 32 registers

    MatrixProducts(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row), blocks_(blocks), step_bytes_(blocks.count * 64) {}

    template <int kPeriod, int pixels>
    [[gnu::always_inline]] void add(int block, int pixel, int32x4_t (&sums)[pixels][kBlockVectors]) const {
        const uint8_t* const x = row_.x + pixel * row_.step + 4 * blocks_.first_word;
        const int8_t* const weights = blocks_.weights + block * 64;
        if constexpr (kPeriod == 1 && pixels % 2 == 0) {
            if (blocks_.words > 1) {
                add_matrices<pixels>(x, weights, sums);
                return;
            }
        }
        add_dots<kPeriod, pixels>(x, weights, sums);
    }

  private:
    // Sums of lanes, which may read different words.
    template <int kPeriod, int pixels>
    [[gnu::always_inline]] void add_dots(const uint8_t* x, const int8_t* weights,
                                         int32x4_t (&sums)[pixels][kBlockVectors]) const {
        unrolled<kBlockVectors>(
            [&](auto v) BMX_INLINED { unrolled<pixels>([&](auto i) BMX_INLINED { sums[i][v] = vdupq_n_s32(0); }); });
        const uint8_t* from[pixels];
        unrolled<pixels>([&](auto i) BMX_INLINED { from[i] = x + i * row_.step; });
        for (int tap = 0; tap < row_.tap_count; ++tap) {
            ptrdiff_t offset = row_.taps[tap];
            for (int left = blocks_.words; left > 0; --left, offset += 4 * kPeriod, weights += step_bytes_) {
                int8x16_t w[2][2];
                load_weights<0>(weights, w[0]);
                load_weights<1>(weights, w[1]);
                unrolled<pixels>([&](auto i) BMX_INLINED {
                    if constexpr (kPeriod == 1) {
                        const uint8x16_t word = vreinterpretq_u8_s8(load_word(from[i], offset));
                        unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                            sums[i][v] = vsudotq_laneq_s32(sums[i][v], w[v / 2][v % 2], word, 0);
                        });
                    } else {
                        const uint8_t* at = from[i] + offset;
                        const int8x16_t even = next_words<kPeriod>(at);
                        const int8x16_t odd = kPeriod == 8 ? next_words<kPeriod>(at) : even;
                        unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                            const uint8x16_t words = vreinterpretq_u8_s8(v % 2 ? odd : even);
                            sums[i][v] = vusdotq_s32(sums[i][v], words, w[v / 2][v % 2]);
                        });
                    }
                });
            }
        }
    }

    // Sums of two pixels and two lanes, of which all read the same words, two at a time.
    template <int pixels>
    using Matrices = int32x4_t[pixels / 2][kBlockVectors][2];

    template <int pixels>
    [[gnu::always_inline]] void add_matrices(const uint8_t* x, const int8_t* weights,
                                             int32x4_t (&sums)[pixels][kBlockVectors]) const {
        Matrices<pixels> matrices;
        unrolled<pixels / 2>([&](auto i) BMX_INLINED {
            unrolled<kBlockVectors>([&](auto v)
                                        BMX_INLINED { matrices[i][v][0] = matrices[i][v][1] = vdupq_n_s32(0); });
        });
        for (int tap = 0; tap < row_.tap_count; ++tap) {
            const auto pointers_to = [&](int word, const uint8_t*(&to)[pixels]) BMX_INLINED {
                unrolled<pixels>([&](auto i) BMX_INLINED { to[i] = x + row_.taps[tap] + i * row_.step + 4 * word; });
            };
            const uint8_t* from[pixels];
            pointers_to(0, from);
            for (int left = blocks_.words; left >= 2; left -= 2, weights += 2 * step_bytes_) {
                uint8x16_t pairs[pixels / 2];
                unrolled<pixels / 2>([&](auto i) BMX_INLINED { pairs[i] = next_pairs(from[2 * i], from[2 * i + 1]); });
                add_pairs<2, pixels>(pairs, weights, matrices);
            }
            if (blocks_.words % 2) {  // a word and, in the place of the second one, weights of 0
                const uint8_t* last[pixels];
                pointers_to(blocks_.words - 1, last);
                uint8x16_t pairs[pixels / 2];
                unrolled<pixels / 2>([&](auto i) BMX_INLINED {
                    const uint64x2_t even = vreinterpretq_u64_s8(next_words<1>(last[2 * i]));
                    const uint64x2_t odd = vreinterpretq_u64_s8(next_words<1>(last[2 * i + 1]));
                    pairs[i] = vreinterpretq_u8_u64(vzip1q_u64(even, odd));
                });
                add_pairs<1, pixels>(pairs, weights, matrices);
                weights += step_bytes_;
            }
        }
        unrolled<pixels / 2>([&](auto i) BMX_INLINED {
            unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                const int64x2_t low = vreinterpretq_s64_s32(matrices[i][v][0]);
                const int64x2_t high = vreinterpretq_s64_s32(matrices[i][v][1]);
                sums[2 * i][v] = vreinterpretq_s32_s64(vzip1q_s64(low, high));
                sums[2 * i + 1][v] = vreinterpretq_s32_s64(vzip2q_s64(low, high));
            });
        });
    }

    // The next two words of two pixels.
    [[gnu::always_inline]] static uint8x16_t next_pairs(const uint8_t*& first, const uint8_t*& second) {
        uint8x16_t x;
        asm volatile("ldr %d0, [%1], #8" : "=w"(x), "+r"(first) : "m"(*reinterpret_cast<Memory>(first)));
        asm volatile("ld1 {%0.d}[1], [%1], #8" : "+w"(x), "+r"(second) : "m"(*reinterpret_cast<Memory>(second)));
        return x;
    }

    // In assembly language, because Clang copies sums otherwise.
    [[gnu::always_inline]] static void add_products(int32x4_t& sums, uint8x16_t x, int8x16_t weights) {
        asm volatile("usmmla %0.4s, %1.16b, %2.16b" : "+w"(sums) : "w"(x), "w"(weights));
    }

    // Adds the products of two words of each pixel, or of one.
    template <int words, int pixels>
    [[gnu::always_inline]] void add_pairs(const uint8x16_t (&pairs)[pixels / 2], const int8_t* weights,
                                          Matrices<pixels>& matrices) const {
        unrolled<kBlockVectors / 2>([&](auto half) BMX_INLINED {
            int8x16_t w[2][2];
            load_weights<half>(weights, w[0]);
            if constexpr (words > 1) {
                load_weights<half>(weights + step_bytes_, w[1]);
            } else {
                w[1][0] = w[1][1] = vdupq_n_s8(0);
            }
            unrolled<2>([&](auto v) BMX_INLINED {
                int8x16_t low, high = w[1][v];  // the words of two lanes
                asm volatile("zip1 %0.4s, %2.4s, %1.4s\n\tzip2 %1.4s, %2.4s, %1.4s"
                             : "=&w"(low), "+w"(high)
                             : "w"(w[0][v]));
                unrolled<pixels / 2>([&](auto i) BMX_INLINED {
                    int32x4_t(&sums)[2] = matrices[i][2 * half + v];
                    add_products(sums[0], pairs[i], low);
                    add_products(sums[1], pairs[i], high);
                });
            });
        });
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const ptrdiff_t step_bytes_;  // of the weights of a word
};

}  // namespace

const Int8Kernels& int8_kernels_i8mm() { return kernels_with<Lanes, MatrixProducts>(); }

}  // namespace bmx
