// Kernels of 8-bit layers with vectors of 256 bits. Products are added by a class:
//   Weights(memory)                      from eight words of weights
//   PreparedWeights(memory)              from what its function `store` has made of them, or the same class
//   Activations(vector)                  from eight words of a pixel
//   add(sum, activations, weights)       adds the four products of each lane; weights are of either class
#pragma once
#include <immintrin.h>

#include "kernels/common/int8_orders.h"
#include "kernels/common/short_vectors.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kHalfLanes = kInt8Lanes / 2;

// Rescaling of eight numbers, with 32 bits.
struct NarrowHalf {
    __m256i low, high, factor, summand, shift;

    static __m256i load(const int32_t* x) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)); }
    explicit NarrowHalf(const Rescaling& r)
        : low(load(r.low)),
          high(load(r.high)),
          factor(load(r.factor)),
          summand(load(r.summand)),
          shift(_mm256_set1_epi32(r.shift)) {}
    __m256i slope() const { return factor; }
    __m256i operator()(__m256i n) const {
        const __m256i limited = _mm256_min_epi32(_mm256_max_epi32(n, low), high);
        return _mm256_srav_epi32(_mm256_add_epi32(_mm256_mullo_epi32(limited, factor), summand), shift);
    }
};

// With 64 bits, of a shift of at most 32: products of even and of odd lanes are computed one after the other. They are
// limited before they are shifted, by zeros, because AVX2 neither shifts signs in nor has a minimum of 64 bits.
struct WideHalf {
    static constexpr int kMaxShift = 32;

    __m256i even, odd, even_offset, odd_offset, min, max;
    __m128i shift;

    explicit WideHalf(const Rescaling& r) {
        const __m256i one = _mm256_set1_epi64x(int64_t(1) << (r.shift - kOffsetShift));
        const __m256i half = _mm256_set1_epi64x(int64_t(1) << (r.shift - 1));
        const __m256i offset = NarrowHalf::load(r.offset);
        even = NarrowHalf::load(r.multiplier);
        odd = _mm256_srli_epi64(even, 32);
        even_offset = _mm256_add_epi64(_mm256_mul_epi32(offset, one), half);
        odd_offset = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(offset, 32), one), half);
        min = _mm256_set1_epi64x(r.min * (int64_t(1) << r.shift));
        max = _mm256_set1_epi64x(r.max * (int64_t(1) << r.shift));
        shift = _mm_cvtsi32_si128(r.shift);
    }
    __m256i slope() const { return even; }
    __m256i limited(__m256i product, __m256i offset) const {
        const __m256i exact = _mm256_add_epi64(product, offset);
        const __m256i upper = _mm256_blendv_epi8(exact, min, _mm256_cmpgt_epi64(min, exact));
        const __m256i y = _mm256_blendv_epi8(upper, max, _mm256_cmpgt_epi64(upper, max));
        return _mm256_srl_epi64(y, shift);
    }
    __m256i operator()(__m256i n) const {
        const __m256i low = limited(_mm256_mul_epi32(n, even), even_offset);
        const __m256i high = limited(_mm256_mul_epi32(_mm256_srli_epi64(n, 32), odd), odd_offset);
        return _mm256_blend_epi32(low, _mm256_slli_epi64(high, 32), 0xaa);
    }
};

[[gnu::always_inline]] inline __m256i load_integers(const int16_t* x) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}

// Rescales 16 channels of integers to bytes. Rescaling keeps the order of numbers, or reverses it where the slope is
// negative: the largest result comes from the largest or, where ~n replaces n, from the smallest number of a window.
template <class Half>
void rescale_integers(const RescaleRow& row, const int16_t* x, int channel) {
    const Rescaling r = row.rescaling.from(channel);
    const Half low(r), high(r.from(kHalfLanes));
    const __m256i slopes = _mm256_permute4x64_epi64(_mm256_packs_epi32(low.slope(), high.slope()), 0xd8);
    const __m256i flips = _mm256_srai_epi16(slopes, 15);
    for (int i = 0; i < row.pixels; ++i) {
        const int16_t* from = x + i * row.step + channel;
        __m256i n = _mm256_xor_si256(load_integers(from + row.window[0]), flips);
        for (int tap = 1; tap < row.window_size; ++tap) {
            n = _mm256_max_epi16(n, _mm256_xor_si256(load_integers(from + row.window[tap]), flips));
        }
        n = _mm256_xor_si256(n, flips);
        const __m256i first = low(_mm256_cvtepi16_epi32(_mm256_castsi256_si128(n)));
        const __m256i second = high(_mm256_cvtepi16_epi32(_mm256_extracti128_si256(n, 1)));
        const __m256i y = _mm256_permute4x64_epi64(_mm256_packs_epi32(first, second), 0xd8);
        const __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(row.y + i * row.y_pixel + channel), bytes);
    }
}

[[maybe_unused]] void rescale_at_once(const RescaleRow& row) {
    const bool is_narrow = row.rescaling.low;
    if (row.type == DataType::f32 || row.scale || (!is_narrow && row.rescaling.shift > WideHalf::kMaxShift)) {
        const int done = rescale_floats(row);
        if (done < row.channels) {
            rescale_row(rest_of(row, done));
        }
        return;
    }
    const int16_t* x = static_cast<const int16_t*>(row.x);
    int c = 0;
    for (; c + kInt8Lanes <= row.channels; c += kInt8Lanes) {
        is_narrow ? rescale_integers<NarrowHalf>(row, x, c) : rescale_integers<WideHalf>(row, x, c);
    }
    if (c < row.channels) {
        rescale_row(rest_of(row, c));
    }
}

[[maybe_unused]] void max_at_once(const MaxRow& row) {
    constexpr int kVectors = 4;
    const int whole = row.channels / (kVectors * kInt8Lanes) * (kVectors * kInt8Lanes);
    for (int i = 0; i < row.pixels; ++i) {
        for (int c = 0; c < whole; c += kVectors * kInt8Lanes) {
            const int16_t* from = row.x + i * row.step + c;
            int16_t* to = row.y + i * row.y_pixel + c;
            __m256i best[kVectors];
            unrolled<kVectors>([&](auto v)
                                   BMX_INLINED { best[v] = load_integers(from + row.window[0] + v * kInt8Lanes); });
            for (int tap = 1; tap < row.window_size; ++tap) {
                unrolled<kVectors>([&](auto v) BMX_INLINED {
                    best[v] = _mm256_max_epi16(best[v], load_integers(from + row.window[tap] + v * kInt8Lanes));
                });
            }
            unrolled<kVectors>([&](auto v) BMX_INLINED {
                _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + v * kInt8Lanes), best[v]);
            });
        }
    }
    if (whole < row.channels) {
        max_row(rest_of(row, whole));
    }
}

// Rescales planes, eight pixels at once. Limiting before rounding gives the same integers; NaN becomes the largest.
[[maybe_unused]] void rescale_planes_at_once(const RescalePlanes& row) {
    constexpr int kWord = 4;
    const Rescaling& r = row.rescaling;
    const int whole = row.y_pixel == kWord && row.channels <= kWord && r.low ? row.pixels / kHalfLanes * kHalfLanes : 0;
    const __m256i shift = _mm256_set1_epi32(r.shift);
    for (int i = 0; i < whole; i += kHalfLanes) {
        __m256i words = _mm256_setzero_si256();
        for (int c = row.channels; c-- > 0;) {
            __m256 x = _mm256_loadu_ps(row.x + c * row.plane + i);
            if (row.scale) {
                x = _mm256_fmadd_ps(x, _mm256_set1_ps(row.scale[c]), _mm256_set1_ps(row.shift[c]));
            }
            const __m256 upper = _mm256_min_ps(x, _mm256_set1_ps(static_cast<float>(r.high[c])));
            const __m256i n = _mm256_cvtps_epi32(_mm256_max_ps(upper, _mm256_set1_ps(static_cast<float>(r.low[c]))));
            const __m256i product = _mm256_mullo_epi32(n, _mm256_set1_epi32(r.factor[c]));
            const __m256i byte = _mm256_srav_epi32(_mm256_add_epi32(product, _mm256_set1_epi32(r.summand[c])), shift);
            words = _mm256_or_si256(_mm256_slli_epi32(words, 8), byte);
        }
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(row.y + i * kWord), words);
    }
    if (whole < row.pixels) {
        rescale_planes(rest_of(row, whole));
    }
}

template <int kPeriod>
[[gnu::always_inline]] inline __m256i repeated(const uint8_t* x) {
    if constexpr (kPeriod == 1) {
        int32_t word;
        std::memcpy(&word, x, sizeof word);
        return _mm256_set1_epi32(word);
    } else if constexpr (kPeriod == 2) {
        int64_t words;
        std::memcpy(&words, x, sizeof words);
        return _mm256_set1_epi64x(words);
    } else if constexpr (kPeriod == 4) {
        return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    } else {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    }
}

[[gnu::always_inline]] inline __m128i load_order(const uint8_t* order) {
    return _mm_load_si128(reinterpret_cast<const __m128i*>(order));
}

// Stores the results of one block and pixel.
[[gnu::always_inline]] inline void store_block(const Int8Row& row, const Int8Blocks& blocks, const OutputOrder& order,
                                               int block, int pixel, __m256i low, __m256i high) {
    const int left = blocks.outputs - block * kInt8Lanes;
    const ptrdiff_t at = pixel * row.y_pixel + blocks.first_output + block * kInt8Lanes;
    if (row.result == Int8Result::floats) {
        float* y = static_cast<float*>(row.y) + at;
        if (!order.moves && left >= kInt8Lanes) {
            _mm256_storeu_ps(y, _mm256_cvtepi32_ps(low));
            _mm256_storeu_ps(y + kHalfLanes, _mm256_cvtepi32_ps(high));
            return;
        }
        alignas(32) int32_t lanes[kInt8Lanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes), low);
        _mm256_store_si256(reinterpret_cast<__m256i*>(lanes + kHalfLanes), high);
        for (int output = 0; output < kInt8Lanes && output < left; ++output) {
            y[output] = static_cast<float>(lanes[order.bytes[output]]);
        }
        return;
    }
    const __m256i integers = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
    const __m128i first = _mm256_castsi256_si128(integers), second = _mm256_extracti128_si256(integers, 1);
    if (row.result == Int8Result::bytes) {
        uint8_t* y = static_cast<uint8_t*>(row.y) + at;
        const __m128i bytes = _mm_shuffle_epi8(_mm_packus_epi16(first, second), load_order(order.bytes));
        if (left >= kInt8Lanes) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bytes);
        } else {
            std::memcpy(y, &bytes, left);
        }
        return;
    }
    __m128i parts[2];
    for (int part = 0; part < 2; ++part) {
        parts[part] = _mm_or_si128(_mm_shuffle_epi8(first, load_order(order.integers[part][0])),
                                   _mm_shuffle_epi8(second, load_order(order.integers[part][1])));
    }
    int16_t* y = static_cast<int16_t*>(row.y) + at;
    if (left >= kInt8Lanes) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y), parts[0]);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + kHalfLanes), parts[1]);
    } else {
        std::memcpy(y, parts, sizeof(int16_t) * left);
    }
}

// Calls visit(count, pixel) for kPixels pixels at a time, then for single pixels; `count` is an integral constant.
template <int kPixels, class Visit>
void visit_pixels(int pixels, const Visit& visit) {
    int pixel = 0;
    for (; pixel + kPixels <= pixels; pixel += kPixels) {
        visit(std::integral_constant<int, kPixels>(), pixel);
    }
    for (; pixel < pixels; ++pixel) {
        visit(std::integral_constant<int, 1>(), pixel);
    }
}

// Adds the products of kPixels outputs and one block. `weights` begins with the weights of the block, of which there is
// a vector for each half, and has `step_bytes` for each word of a tap.
template <class Weights, class Products, int kPeriod, int kPixels>
[[gnu::always_inline]] inline void add_block(const Int8Row& row, const Int8Blocks& blocks, const uint8_t* weights,
                                             ptrdiff_t step_bytes, int pixel, __m256i (&sums)[kPixels][2]) {
    unrolled<kPixels>([&](auto i) BMX_INLINED { sums[i][0] = sums[i][1] = _mm256_setzero_si256(); });
    const ptrdiff_t step = row.step;
    const uint8_t* const x = row.x + pixel * step + 4 * blocks.first_word;
    for (int tap = 0; tap < row.tap_count; ++tap) {
        const uint8_t* from = x + row.taps[tap];
        for (int word = 0; word < blocks.words; ++word, from += 4 * kPeriod, weights += step_bytes) {
            const Weights low(weights), high(weights + Weights::kBytes);
            unrolled<kPixels>([&](auto i) BMX_INLINED {
                const typename Products::Activations activations(repeated<kPeriod>(from + i * step));
                Products::add(sums[i][0], activations, low);
                Products::add(sums[i][1], activations, high);
            });
        }
    }
}

// Computes one block of all pixels, whose outputs are its lanes.
template <class Weights, class Products, int kPeriod>
void convolve_block(const Int8Row& row, const Int8Blocks& blocks, int block, const uint8_t* weights,
                    ptrdiff_t step_bytes) {
    const OutputOrder order(blocks, block, true);
    visit_pixels<Products::kPixels>(row.pixels, [&](auto count, int pixel) BMX_INLINED {
        constexpr int kPixels = decltype(count)::value;
        __m256i sums[kPixels][2];
        add_block<Weights, Products, kPeriod>(row, blocks, weights, step_bytes, pixel, sums);
        const NarrowHalf low(blocks.rescaling.from(block * kInt8Lanes));
        const NarrowHalf high(blocks.rescaling.from(block * kInt8Lanes + kHalfLanes));
        unrolled<kPixels>([&](auto i) BMX_INLINED {
            store_block(row, blocks, order, block, pixel + i, low(sums[i][0]), high(sums[i][1]));
        });
    });
}

const uint8_t* weights_of(const Int8Blocks& blocks, int block) {
    return reinterpret_cast<const uint8_t*>(blocks.weights) + block * 4 * kInt8Lanes;
}

// Computes one pixel, all kCount blocks at once, so that their weights are read one after the other, as they are in
// memory. The outputs of each block are its lanes.
template <class Products, int kPeriod, int kCount>
void convolve_pixel(const Int8Row& row, const Int8Blocks& blocks) {
    using Weights = typename Products::Weights;
    __m256i sums[kCount][2];
    unrolled<kCount>([&](auto block) BMX_INLINED { sums[block][0] = sums[block][1] = _mm256_setzero_si256(); });
    const uint8_t* weights = weights_of(blocks, 0);
    for (int tap = 0; tap < row.tap_count; ++tap) {
        const uint8_t* from = row.x + 4 * blocks.first_word + row.taps[tap];
        for (int word = 0; word < blocks.words; ++word, from += 4 * kPeriod, weights += kCount * 4 * kInt8Lanes) {
            const typename Products::Activations activations(repeated<kPeriod>(from));
            unrolled<kCount>([&](auto block) BMX_INLINED {
                Products::add(sums[block][0], activations, Weights(weights + 2 * block * Weights::kBytes));
                Products::add(sums[block][1], activations, Weights(weights + (2 * block + 1) * Weights::kBytes));
            });
        }
    }
    unrolled<kCount>([&](auto block) BMX_INLINED {
        const NarrowHalf low(blocks.rescaling.from(block * kInt8Lanes));
        const NarrowHalf high(blocks.rescaling.from(block * kInt8Lanes + kHalfLanes));
        store_block(row, blocks, OutputOrder(blocks, block, true), block, 0, low(sums[block][0]), high(sums[block][1]));
    });
}

// Computes one pixel of as many blocks as there are.
template <class Products, int kPeriod, int kCount = kInt8Blocks>
void convolve_single_pixel(const Int8Row& row, const Int8Blocks& blocks) {
    if (blocks.count == kCount) {
        convolve_pixel<Products, kPeriod, kCount>(row, blocks);
    } else if constexpr (kCount > 1) {
        convolve_single_pixel<Products, kPeriod, kCount - 1>(row, blocks);
    }
}

// Computes one block after the other, so that its weights are read from the first-level cache.
template <class Products, int kPeriod>
void convolve_each_block(const Int8Row& row, const Int8Blocks& blocks) {
    using Weights = typename Products::Weights;
    using Prepared = typename Products::PreparedWeights;
    constexpr int kPreparedSteps = 160, kLeastPixels = 4 * Products::kPixels;  // that justify preparation
    if (kPeriod == 1 && row.pixels == 1) {
        return convolve_single_pixel<Products, kPeriod>(row, blocks);
    }
    const ptrdiff_t step_bytes = blocks.count * 4 * kInt8Lanes;
    const int steps = row.tap_count * blocks.words;
    for (int block = 0; block < blocks.count; ++block) {
        const uint8_t* const weights = weights_of(blocks, block);
        if constexpr (!std::is_same<Weights, Prepared>::value) {
            if (steps <= kPreparedSteps && row.pixels >= kLeastPixels) {
                alignas(32) uint8_t prepared[kPreparedSteps * 2 * Prepared::kBytes];
                for (int step = 0; step < steps; ++step) {
                    for (int half = 0; half < 2; ++half) {
                        Prepared::store(Weights(weights + step * step_bytes + half * Weights::kBytes),
                                        prepared + (2 * step + half) * Prepared::kBytes);
                    }
                }
                convolve_block<Prepared, Products, kPeriod>(row, blocks, block, prepared, 2 * Prepared::kBytes);
                continue;
            }
        }
        convolve_block<Weights, Products, kPeriod>(row, blocks, block, weights, step_bytes);
    }
}

// Computes blocks whose outputs are not their own lanes, or are rescaled with 64 bits.
template <class Products, int kPeriod>
void convolve_any_blocks(const Int8Row& row, const Int8Blocks& blocks) {
    visit_pixels<Products::kPixels>(row.pixels, [&](auto count, int pixel) BMX_INLINED {
        constexpr int kPixels = decltype(count)::value;
        int32_t lanes[kPixels][kInt8Blocks * kInt8Lanes];
        for (int block = 0; block < blocks.count; ++block) {
            __m256i sums[kPixels][2];
            add_block<typename Products::Weights, Products, kPeriod>(row, blocks, weights_of(blocks, block),
                                                                     blocks.count * 4 * kInt8Lanes, pixel, sums);
            unrolled<kPixels>([&](auto i) BMX_INLINED {
                __m256i* to = reinterpret_cast<__m256i*>(lanes[i] + block * kInt8Lanes);
                _mm256_storeu_si256(to, sums[i][0]);
                _mm256_storeu_si256(to + 1, sums[i][1]);
            });
        }
        for (int i = 0; i < kPixels; ++i) {
            store_sums(row, blocks, pixel + i, lanes[i]);
        }
    });
}

template <class Products>
void convolve_with(const Int8Row& row) {
    for (const Int8Blocks* blocks = row.blocks; blocks < row.blocks + row.blocks_count; ++blocks) {
        const auto convolve = [&](auto period) {
            blocks->rescaling.low&& keeps_blocks(*blocks)
                ? convolve_each_block<Products, decltype(period)::value>(row, *blocks)
                : convolve_any_blocks<Products, decltype(period)::value>(row, *blocks);
        };
        switch (blocks->period) {
            case 1:
                convolve(std::integral_constant<int, 1>());
                break;
            case 2:
                convolve(std::integral_constant<int, 2>());
                break;
            case 4:
                convolve(std::integral_constant<int, 4>());
                break;
            default:
                convolve(std::integral_constant<int, kInt8Period>());
        }
    }
}

}  // namespace
}  // namespace bmx
