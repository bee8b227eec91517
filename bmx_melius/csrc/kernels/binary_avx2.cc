// Binary layers with AVX2, which has no population count: differing elements are counted by table lookup, for two
// pixels at once (see binary_lookup_avx2.h). Blocks of up to 2 strips and 2 pairs of pixels keep their sums in
// registers.
#include <immintrin.h>

#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/binary_kernels.h"
#include "kernels/binary_lookup_avx2.h"
#include "kernels/binary_pack_words.h"
#include "kernels/binary_pairs_avx2.h"
#include "kernels/binary_strips.h"

namespace bmx {
namespace {

constexpr int kMostStrips = 2,
              kMostPairs = 2;  // 4 sums, 8 sums of bytes, 2 weights, a table, a temporary: 16 registers

// --- packing

uint32_t word_of(const float* x, const float* threshold) {
    uint32_t word = 0;
    for (int i = 0; i < 32; i += 8) {
        const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(threshold + i), _CMP_GE_OQ);
        word |= uint32_t(_mm256_movemask_ps(above)) << i;
    }
    return word;
}

uint32_t word_of(const int16_t* x, const int16_t* threshold) {
    const __m256i low = _mm256_cmpgt_epi16(load(threshold), load(x));
    const __m256i high = _mm256_cmpgt_epi16(load(threshold + 16), load(x + 16));
    const __m256i below =
        _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);  // packs works within 128-bit halves
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(below));
}

template <typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint32_t* words) {
    pack_words(x, stride, pixels, channels, threshold, flip, words,
               [](const T* from, const T* limits) { return word_of(from, limits); });
}

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

// A unit holds the half bytes of a word, each in a byte.
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    const __m128i low = _mm_set1_epi8(15);
    const auto half_bytes = [&](__m128i bytes) {
        return _mm_unpacklo_epi8(_mm_and_si128(bytes, low), _mm_and_si128(_mm_srli_epi16(bytes, 4), low));
    };
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride, words += units) {
        int unit = 0;
        for (; unit + 1 < units; unit += 2) {
            const __m128i two = half_bytes(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words + unit)));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), two);
        }
        if (unit < units) {
            const __m128i one = half_bytes(_mm_cvtsi32_si128(static_cast<int>(words[unit])));
            _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), one);
        }
    }
}

// --- convolution

// Up to kMostStrips strips of filters, for all pixels of a run.
struct Block {
    const BinaryConvRun& run;
    const Strip* strips;
    int count;
    Affine affine;
    size_t strip_bytes;
    const uint8_t* weights;
    alignas(32) int16_t constants[kMostStrips][kStripFilters];  // used if results fit in 16 bits
    PairRows rows;

    Block(const BinaryConvRun& run, const Strip* strips, int count)
        : run(run),
          strips(strips),
          count(count),
          affine(affine_of_differing(*run.conv)),
          strip_bytes(bytes_of_strip(*run.conv)),
          weights(static_cast<const uint8_t*>(run.weights) + strips[0].index * strip_bytes),
          rows(run, strips[0].group) {
        for (int s = 0; s < count; ++s) {
            for (int i = 0; i < kStripFilters; ++i) {
                constants[s][i] = static_cast<int16_t>(strip(s).constants[i]);
            }
        }
    }

    const StripWeights& strip(int s) const { return *reinterpret_cast<const StripWeights*>(weights + s * strip_bytes); }
};

// The sums of the windows of a few pixels, beginning with a column of the row that the block has moved to. Those in
// bytes are added when they end: the last ones only when results are stored.
template <int kStrips, int kPairs, bool kWide>
struct WindowSums {
    PairSums<kWide> all_but_last[kPairs][kStrips];
    ByteSums last[kPairs][kStrips];
    bool several = false;

    [[gnu::always_inline]] WindowSums(const Block& block, int column) {
        PairWindow window = block.rows.window(column);
        const ptrdiff_t pair_offsets = 2 * block.rows.pixel_step();
        const uint8_t* weights = block.strip(0).steps;
        for (;;) {
            ByteSums some[kPairs][kStrips];
            add_pieces(window, pair_offsets, weights, block.strip_bytes, some);
            if (window.pieces == window.end) {
                unrolled<kPairs>([&](auto p) { unrolled<kStrips>([&](auto s) { last[p][s] = some[p][s]; }); });
                return;
            }
            unrolled<kPairs>([&](auto p) { unrolled<kStrips>([&](auto s) { add(some[p][s], all_but_last[p][s]); }); });
            several = true;
        }
    }
    [[gnu::always_inline]] PairSums<kWide> of(int pair, int strip) const {
        PairSums<kWide> sums;
        sums.set(last[pair][strip]);
        if (several) {
            sums.add(all_but_last[pair][strip]);
        }
        return sums;
    }

  private:
    [[gnu::always_inline]] void add(const ByteSums& some, PairSums<kWide>& to) const {
        PairSums<kWide> sums;
        sums.set(some);
        if (several) {
            sums.add(to);
        }
        to = sums;
    }
};

// Computes the results of a pixel from sums, for the filters in even or odd bytes of a strip.
template <bool kWide, bool kAdds>
class Results {
  public:
    Results(const Block& block, int odd_in_window)
        : block_(block),
          shift_(_mm_cvtsi32_si128(block.affine.scale)),
          of_pixel_(kWide ? _mm256_set1_epi32(odd_in_window * block.affine.scale)
                          : _mm256_set1_epi16(static_cast<int16_t>(odd_in_window * block.affine.scale))) {}

    void store_to(float* output, const float* addend, const Sum<kWide>& sum, int strip, int odd) const {
        __m256i both[2];
        if constexpr (kWide) {
            both[0] = total(sum.parts[0], strip, odd, 0);
            both[1] = total(sum.parts[1], strip, odd, 1);
        } else {
            const __m256i results = words(sum.parts[0], strip, odd);
            both[0] = _mm256_cvtepi16_epi32(_mm256_castsi256_si128(results));
            both[1] = _mm256_cvtepi16_epi32(_mm256_extracti128_si256(results, 1));
        }
        for (int half = 0; half < 2; ++half) {
            const __m256 result = _mm256_cvtepi32_ps(both[half]);
            _mm256_storeu_ps(output + half * 8,
                             kAdds ? _mm256_add_ps(result, _mm256_loadu_ps(addend + half * 8)) : result);
        }
    }
    void store_to(int16_t* output, const int16_t* addend, const Sum<kWide>& sum, int strip, int odd) const {
        const __m256i result = words(sum.parts[0], strip, odd);
        store(output, kAdds ? _mm256_add_epi16(result, load(addend)) : result);
    }

  private:
    // 16 results in 16 bits, which must hold them.
    __m256i words(__m256i sum, int strip, int odd) const {
        const __m256i constant = load(block_.constants[strip] + odd * kLanes);
        return _mm256_sub_epi16(_mm256_add_epi16(_mm256_sll_epi16(sum, shift_), constant), of_pixel_);
    }
    // 8 of them in 32 bits.
    __m256i total(__m256i sum, int strip, int odd, int half) const {
        const __m256i constant = load(block_.strip(strip).constants + odd * kLanes + half * 8);
        return _mm256_sub_epi32(_mm256_add_epi32(_mm256_sll_epi32(sum, shift_), constant), of_pixel_);
    }

    const Block& block_;
    const __m128i shift_;
    const __m256i of_pixel_;
};

// Stores the results of 2 kPairs pixels, `pixel` elements apart, for all filters of kStrips complete strips.
template <bool kAdds, int kStrips, int kPairs, bool kWide, typename T>
[[gnu::always_inline]] inline void store_results(const Block& block, int column,
                                                 const WindowSums<kStrips, kPairs, kWide>& sums, T* output,
                                                 const T* addend, ptrdiff_t pixel) {
    unrolled<kPairs>([&](auto p) {
        const Results<kWide, kAdds> results[] = {{block, block.rows.odd_in_window(column + 2 * p)},
                                                 {block, block.rows.odd_in_window(column + 2 * p + 1)}};
        unrolled<kStrips>([&](auto s) {
            const PairSums<kWide> pair = sums.of(p, s);
            unrolled<4>([&](auto part) {
                const ptrdiff_t at = (2 * p + part / 2) * pixel + s * kStripFilters + part % 2 * kLanes;
                results[part / 2].store_to(output + at, kAdds ? addend + at : nullptr, pair.of[part], s, part % 2);
            });
        });
    });
}

// Stores results of complete strips for the filters of the block, `count` pixels.
template <int kStrips, typename T>
[[gnu::noinline]] void store_some(const Block& block, const T* results, int count, T* output, const T* addend) {
    for (int i = 0; i < count; ++i) {
        for (int s = 0; s < kStrips; ++s, results += kStripFilters) {
            const Strip& strip = block.strips[s];
            const ptrdiff_t at = i * block.run.output_pixel + strip.begin;
            for (int filter = 0; filter < strip.end - strip.begin; ++filter) {
                output[at + filter] = static_cast<T>(addend ? results[filter] + addend[at + filter] : results[filter]);
            }
        }
    }
}

// Loads the cache lines of the results, usually also of the addends, while sums are computed: these lines are far
// apart, and in large maps outside the second-level cache.
template <int kStrips, typename T>
[[gnu::always_inline]] inline void prefetch_results(const T* results, ptrdiff_t pixel, int count) {
    for (int i = 0; i < count; ++i) {
        for (int s = 0; s < kStrips; ++s) {
            __builtin_prefetch(results + i * pixel + s * kStripFilters, 1);
        }
    }
}

// Computes the pixels of a row of the output from `column` on in groups of kPairs pairs, as long as more than
// 2 kPairs - 2 pixels are left. Returns the column after them.
template <int kStrips, int kPairs, bool kWide, typename T>
int convolve_pairs(const Block& block, int row, int column, T* outputs) {
    const BinaryConvRun& run = block.run;
    const int first = block.strips[0].begin;
    const bool complete = block.strips[kStrips - 1].end - first == kStrips * kStripFilters;
    for (; run.columns - column > 2 * kPairs - 2; column += 2 * kPairs) {
        prefetch_results<kStrips>(outputs + row * run.output_row + column * run.output_pixel + first, run.output_pixel,
                                  2 * kPairs);
        const WindowSums<kStrips, kPairs, kWide> sums(block, column);
        const ptrdiff_t at = row * run.output_row + column * run.output_pixel;
        T* const output = outputs + at;
        const T* const addend = run.addend ? static_cast<const T*>(run.addend) + at : nullptr;
        if (!complete || column + 2 * kPairs > run.columns) {
            T results[2 * kPairs * kStrips * kStripFilters];
            store_results<false>(block, column, sums, results, results, kStrips * kStripFilters);
            store_some<kStrips>(block, results, least(2 * kPairs, run.columns - column), output, addend);
        } else if (addend) {
            store_results<true>(block, column, sums, output + first, addend + first, run.output_pixel);
        } else {
            store_results<false>(block, column, sums, output + first, output, run.output_pixel);
        }
    }
    return column;
}

template <int kStrips, bool kWide>
void convolve_row(const Block& block, int row) {
    const auto convolve_to = [&](auto* outputs) {
        const int column = convolve_pairs<kStrips, 2, kWide>(block, row, 0, outputs);
        convolve_pairs<kStrips, 1, kWide>(block, row, column, outputs);
    };
    if constexpr (kWide) {  // only float32 can hold such results
        convolve_to(static_cast<float*>(block.run.output));
    } else {
        visit_numbers(block.run.number, block.run.output, convolve_to);
    }
}

size_t scratch_bytes(const BinaryConv& conv, int, int columns) { return PairRows::scratch_bytes(conv, columns); }

void convolve(const BinaryConvRun& run) {
    using ConvolveRow = void (*)(const Block&, int row);
    constexpr ConvolveRow rows[kMostStrips][2] = {{convolve_row<1, false>, convolve_row<1, true>},
                                                  {convolve_row<2, false>, convolve_row<2, true>}};
    const bool wide = run.conv->weights_per_output() > kWideWeights;
    for_each_strip_block<kMostStrips, kStripFilters>(run, [&](const Strip* strips, int count) {
        Block block(run, strips, count);
        for (int row = 0; row < run.rows; ++row) {
            block.rows.move_to(row);
            rows[count - 1][wide](block, row);
        }
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx2() {
    static const BinaryKernels kernels = {"avx2",          kUnitBytes,    kStripFilters, pack<float>,
                                          pack<int16_t>,   pack_planes,   expand,        weights_bytes,
                                          prepare_weights, scratch_bytes, convolve};
    return kernels;
}

}  // namespace bmx
