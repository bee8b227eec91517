// Binary layers with AVX2, which has no population count: a byte shuffle looks up the number of differing elements
// among four elements of the activations and the weights of a filter. The activations select the table, the weights are
// the indices.
//
// A table holds the numbers for two pixels, one in each half of a byte, so that one shuffle serves both. Up to three
// such bytes can be added before a half overflows. Then they are added to sums in whole bytes, and these to sums in 16
// bits.
//
// The layout of the prepared weights is [strip][tap][unit][byte][32]: for 8 elements the low half bytes of 16 filters,
// then the high ones.
#include <immintrin.h>

#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/binary_kernels.h"
#include "kernels/binary_strips.h"

namespace bmx {
namespace {

constexpr int kUnitSteps = 8, kUnitBytes = 8;
constexpr int kTableBits = 4, kTableBytes = 1 << kTableBits, kVectorBytes = 32;
constexpr int kSumSteps = 15 / 4;  // steps (with up to 4 differing elements each) whose sum fits in half a byte
constexpr int kStripFilters = kVectorBytes;
constexpr int kMostStrips = 4;  // 8 sums, 3 tables and temporaries: 16 registers

// --- packing

uint32_t word_of(const float* x, const float* threshold) {
    uint32_t word = 0;
    for (int i = 0; i < 32; i += 8) {
        const __m256 above = _mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(threshold + i), _CMP_GE_OQ);
        word |= uint32_t(_mm256_movemask_ps(above)) << i;
    }
    return word;
}

__m256i load(const void* from) { return _mm256_loadu_si256(static_cast<const __m256i*>(from)); }

uint32_t word_of(const int16_t* x, const int16_t* threshold) {
    const __m256i low = _mm256_cmpgt_epi16(load(threshold), load(x));
    const __m256i high = _mm256_cmpgt_epi16(load(threshold + 16), load(x + 16));
    const __m256i below =
        _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);  // packs works within 128-bit halves
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(below));
}

template <typename T>
uint32_t word_of_some(const T* x, const T* threshold, int count) {
    uint32_t word = 0;
    for (int i = 0; i < count; ++i) {
        word |= uint32_t(x[i] >= threshold[i]) << i;
    }
    return word;
}

template <typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint32_t* words) {
    const int whole = channels / 32;
    const int rest = channels % 32;
    for (int pixel = 0; pixel < pixels; ++pixel, x += stride) {
        for (int unit = 0; unit < whole; ++unit) {
            *words++ = word_of(x + unit * 32, threshold + unit * 32) ^ flip[unit];
        }
        if (rest) {
            *words++ = word_of_some(x + whole * 32, threshold + whole * 32, rest) ^ flip[whole];
        }
    }
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
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride) {
        for (int unit = 0; unit < units; ++unit) {
            const __m128i bytes = _mm_cvtsi32_si128(static_cast<int>(*words++));
            const __m128i first = _mm_and_si128(bytes, low), second = _mm_and_si128(_mm_srli_epi16(bytes, 4), low);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), _mm_unpacklo_epi8(first, second));
        }
    }
}

// --- weights

// The steps of a strip are padded to whole sums with half bytes that never differ.
size_t bytes_of_strip(const BinaryConv& conv) {
    const size_t steps = size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kUnitSteps;
    return ceil_div(steps, kSumSteps) * kSumSteps * kVectorBytes;
}

size_t weights_bytes(const BinaryConv& conv) { return count_strips<kStripFilters>(conv) * bytes_of_strip(conv); }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * conv.group_units();
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip<kStripFilters>(conv, [&](const Strip& strip) {
        uint8_t* to = static_cast<uint8_t*>(prepared) + strip.index * bytes_of_strip(conv);
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const int i = filter - strip.begin, byte = i % kLanes * 2 + i / kLanes;
            for (size_t k = 0; k < filter_words * kUnitSteps; ++k) {
                const uint32_t word = words[filter * filter_words + k / kUnitSteps];
                to[k * kVectorBytes + byte] = word >> k % kUnitSteps * 4 & 15;
            }
        }
    });
}

// --- convolution

// Tables indexed by the half bytes of activations of a pair of pixels, the second one times 16. A table holds the
// numbers of elements that differ from each half byte of weights.
struct alignas(64) Tables {
    uint8_t differing[256][kTableBytes] = {};
    constexpr Tables() {
        for (int activations = 0; activations < 256; ++activations) {
            for (int weights = 0; weights < kTableBytes; ++weights) {
                for (int bit = 0; bit < 4; ++bit) {
                    const int first = activations >> bit, second = activations >> (4 + bit), weight = weights >> bit;
                    differing[activations][weights] += ((first ^ weight) & 1) + (((second ^ weight) & 1) << 4);
                }
            }
        }
    }
};
constexpr Tables kTables;

// State shared by all pixels of a run.
struct Work {
    const BinaryConvRun& run;
    PiecesInMap pieces;
    Affine affine;
    size_t strip_bytes;

    explicit Work(const BinaryConvRun& run)
        : run(run),
          pieces(pieces_in_map(run)),
          affine(affine_of_differing(*run.conv)),
          strip_bytes(bytes_of_strip(*run.conv)) {}
};

// A pair of pixels. If only the first one exists, both windows are the same.
struct Pair {
    int pixels;
    const uint8_t* windows[2];  // at the first unit of the group
    ptrdiff_t outputs[2];       // indices of filter 0
};

// Computes the table offsets for the steps of a pair, in the order of the weights, a limited number at a time.
class TableFinder {
  public:
    TableFinder(const PiecesInMap& pieces, const Pair& pair) : pieces_(pieces), pair_(pair) {}

    // Computes the next offsets. Returns the number of sums, 0 after the last one.
    int find() {
        int units = 0, unit = unit_, column = column_, row = row_;
        while (row < pieces_.rows && units < kMostUnits) {
            const int left = pieces_.units - unit, some = left < kMostUnits - units ? left : kMostUnits - units;
            find(row * pieces_.row_step + column * pieces_.step + unit * kUnitBytes, some,
                 offsets_ + units * kUnitSteps);
            units += some;
            unit += some;
            if (unit < pieces_.units) {
                break;
            }
            unit = 0;
            if (++column < pieces_.columns) {
                continue;
            }
            column = 0;
            ++row;
        }
        unit_ = unit;
        column_ = column;
        row_ = row;
        store(offsets_ + units * kUnitSteps, _mm256_setzero_si256());  // for the padding steps of the weights
        return ceil_div(units * kUnitSteps, kSumSteps);
    }

    const uint16_t* offsets() const { return offsets_; }

  private:
    static constexpr int kMostUnits = 63;  // gives a multiple of kMostSums whole sums

    static void store(uint16_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }

    // Processes two units at a time. The excess of an odd number of units is overwritten later.
    void find(ptrdiff_t place, int units, uint16_t* to) const {
        const uint8_t *first = pair_.windows[0] + place, *second = pair_.windows[1] + place;
        for (int unit = 0; unit < units; unit += 2) {
            const __m128i of_first = _mm_loadu_si128(reinterpret_cast<const __m128i*>(first + unit * kUnitBytes));
            const __m128i of_second = _mm_loadu_si128(reinterpret_cast<const __m128i*>(second + unit * kUnitBytes));
            const __m128i activations = _mm_or_si128(of_first, _mm_slli_epi16(of_second, 4));
            store(to + unit * kUnitSteps, _mm256_slli_epi16(_mm256_cvtepu8_epi16(activations), kTableBits));
        }
    }

    const PiecesInMap& pieces_;
    const Pair& pair_;
    int row_ = 0, column_ = 0, unit_ = 0;
    uint16_t offsets_[(kMostUnits + 2) * kUnitSteps];
};

inline __m256i table_at(uint16_t offset) {
    return _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(kTables.differing[0] + offset)));
}

constexpr int kMostInWord = 65535;
constexpr int kMostSums = 255 / (4 * kSumSteps);                       // sums in half bytes that fit in 8 bits
constexpr int kMostAdded = kMostInWord / (4 * kSumSteps * kMostSums);  // of these, the number that fits in 16 bits

// Accumulators of up to kMostSums sums in half bytes, for the filters of a strip: `bytes` is their sum, `shifted` the
// sum of their 16-bit words divided by 16. With a and b the numbers of the first and the second pixel, each byte of
// `bytes` is a + 16 b. The upper byte of a word of `shifted` is b, its lower byte is b + 16 times the a of the upper
// byte.
struct ByteSums {
    __m256i bytes = _mm256_setzero_si256(), shifted = _mm256_setzero_si256();

    void add(__m256i sum) {
        bytes = _mm256_add_epi8(bytes, sum);
        shifted = _mm256_add_epi8(shifted, _mm256_srli_epi16(sum, 4));
    }
};

// Numbers of differing elements for a pair of pixels and the filters of some strips.
template <int kStrips>
class Sums {
  public:
    // The number of differing elements is at most `weights`, independently of the number of steps.
    explicit Sums(int64_t weights) : may_overflow_(weights > kMostInWord) {}

    void add(const ByteSums (&sums)[kStrips]) {
        const __m256i low = _mm256_set1_epi16(255);
        const auto without = [=](__m256i some, __m256i others) {
            return _mm256_and_si256(_mm256_sub_epi16(some, _mm256_slli_epi16(others, 4)), low);
        };
        if (may_overflow_ && added_ == kMostAdded) {
            add_words();
        }
        for (int s = 0; s < kStrips; ++s) {
            const __m256i second_odd = _mm256_srli_epi16(sums[s].shifted, 8);
            const __m256i first_odd = without(_mm256_srli_epi16(sums[s].bytes, 8), second_odd);
            const __m256i second_even = without(sums[s].shifted, first_odd);
            const __m256i first_even = without(sums[s].bytes, second_even);
            const __m256i words[4] = {first_even, first_odd, second_even, second_odd};
            for (int i = 0; i < 4; ++i) {
                words_[s][i] = added_ == 0 ? words[i] : _mm256_add_epi16(words_[s][i], words[i]);
            }
        }
        ++added_;
    }

    // The numbers for the filters in even or odd bytes of a strip, in 16 bits, if these cannot overflow.
    __m256i total(int strip, int pixel, int odd) const { return words_[strip][2 * pixel + odd]; }

    // The numbers for 8 of these filters, in 32 bits.
    __m256i total(int strip, int pixel, int odd, int half) const {
        const __m256i words = total(strip, pixel, odd);
        const __m128i some = half ? _mm256_extracti128_si256(words, 1) : _mm256_castsi256_si128(words);
        const __m256i sum = _mm256_cvtepu16_epi32(some);
        return has_totals_ ? _mm256_add_epi32(totals_[strip][2 * pixel + odd][half], sum) : sum;
    }

  private:
    void add_words() {
        for (int s = 0; s < kStrips; ++s) {
            for (int i = 0; i < 4; ++i) {
                for (int half = 0; half < 2; ++half) {
                    totals_[s][i][half] = total(s, i / 2, i % 2, half);
                }
            }
        }
        has_totals_ = true;
        added_ = 0;
    }

    const bool may_overflow_;
    int added_ = 0;
    bool has_totals_ = false;
    __m256i words_[kStrips][4];  // even and odd bytes of the first pixel, then of the second one
    __m256i totals_[kStrips][4][2];
};

// Stores kLanes results of a pixel, for the filters in even or in odd bytes.
template <int kStrips>
void store(const Affine& affine, const Sums<kStrips>& sums, int strip, int pixel, int odd, float* output,
           const float* addend) {
    const __m256i constant = _mm256_set1_epi32(affine.constant);
    const __m128i shift = _mm_cvtsi32_si128(affine.scale - 1);
    for (int half = 0; half < 2; ++half) {
        const __m256i scaled = _mm256_sll_epi32(sums.total(strip, pixel, odd, half), shift);
        __m256 result = _mm256_cvtepi32_ps(_mm256_sub_epi32(constant, scaled));
        if (addend) {
            result = _mm256_add_ps(result, _mm256_loadu_ps(addend + half * 8));
        }
        _mm256_storeu_ps(output + half * 8, result);
    }
}

// In 16 bits, which hold every result and sum, and so the smaller number of differing elements.
template <int kStrips>
void store(const Affine& affine, const Sums<kStrips>& sums, int strip, int pixel, int odd, int16_t* output,
           const int16_t* addend) {
    const __m256i constant = _mm256_set1_epi16(static_cast<int16_t>(affine.constant));
    const __m256i scaled = _mm256_sll_epi16(sums.total(strip, pixel, odd), _mm_cvtsi32_si128(affine.scale - 1));
    __m256i result = _mm256_sub_epi16(constant, scaled);
    if (addend) {
        result = _mm256_add_epi16(result, load(addend));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output), result);
}

template <int kStrips, typename T>
void store_pair(const Work& work, const Sums<kStrips>& sums, const Strip* strips, const Pair& pair, T* outputs) {
    for (int pixel = 0; pixel < pair.pixels; ++pixel) {
        T* const output = outputs + pair.outputs[pixel];
        const T* const addend =
            work.run.addend ? static_cast<const T*>(work.run.addend) + pair.outputs[pixel] : nullptr;
        for (int s = 0; s < kStrips; ++s) {
            for (int odd = 0; odd < 2; ++odd) {
                const int begin = strips[s].begin + odd * kLanes, lanes = strips[s].end - begin;
                if (lanes >= kLanes) {
                    store(work.affine, sums, s, pixel, odd, output + begin, addend ? addend + begin : nullptr);
                } else if (lanes > 0) {
                    T results[kLanes], addends[kLanes] = {};
                    if (addend) {
                        std::memcpy(addends, addend + begin, lanes * sizeof(T));
                    }
                    store(work.affine, sums, s, pixel, odd, results, addends);
                    std::memcpy(output + begin, results, lanes * sizeof(T));
                }
            }
        }
    }
}

template <int kStrips>
void convolve_pair(const Work& work, const Strip* strips, const Pair& pair) {
    const uint8_t* weights[kStrips];
    for (int s = 0; s < kStrips; ++s) {
        weights[s] = static_cast<const uint8_t*>(work.run.weights) + (strips[0].index + s) * work.strip_bytes;
    }
    Sums<kStrips> sums(work.affine.constant);
    TableFinder tables(work.pieces, pair);
    while (int left = tables.find()) {
        const uint16_t* offsets = tables.offsets();
        while (left > 0) {
            const int count = left < kMostSums ? left : kMostSums;
            ByteSums some[kStrips];
            for (int i = 0; i < count; ++i, offsets += kSumSteps) {
                __m256i table[kSumSteps];
#pragma GCC unroll 4
                for (int step = 0; step < kSumSteps; ++step) {
                    table[step] = table_at(offsets[step]);
                }
#pragma GCC unroll 4
                for (int s = 0; s < kStrips; ++s) {  // in this order, because in others the registers do not suffice
                    __m256i sum = _mm256_shuffle_epi8(table[0], load(weights[s]));
#pragma GCC unroll 4
                    for (int step = 1; step < kSumSteps; ++step) {
                        const __m256i w = load(weights[s] + step * kVectorBytes);
                        sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(table[step], w));
                    }
                    some[s].add(sum);
                    weights[s] += kSumSteps * kVectorBytes;
                    asm(""
                        : "+r"(weights[s]));  // keeps it a pointer, because shuffles from pointer + index take two
                                              // operations
                }
            }
            sums.add(some);
            left -= count;
        }
    }
    visit_numbers(work.run.number, work.run.output,
                  [&](auto* outputs) { store_pair(work, sums, strips, pair, outputs); });
}

using ConvolvePair = void (*)(const Work&, const Strip*, const Pair&);

constexpr ConvolvePair kPairs[kMostStrips] = {convolve_pair<1>, convolve_pair<2>, convolve_pair<3>, convolve_pair<4>};

void convolve(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const Work work(run);
    for_each_strip_block<kMostStrips, kStripFilters>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        Pair pair = {};
        for (int row = 0; row < run.rows; ++row) {
            for (int column = 0; column < run.columns; ++column) {
                pair.windows[pair.pixels] =
                    input + row * conv.stride_h * run.row_bytes + column * conv.stride_w * run.pixel_bytes;
                pair.outputs[pair.pixels] = row * run.output_row + column * run.output_pixel;
                if (++pair.pixels < 2) {
                    continue;
                }
                kPairs[count - 1](work, strips, pair);
                pair.pixels = 0;
            }
        }
        if (pair.pixels == 0) {
            return;
        }
        pair.windows[1] = pair.windows[0];
        kPairs[count - 1](work, strips, pair);
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx2() {
    static const BinaryKernels kernels = {"avx2",          kUnitBytes,       kStripFilters, pack<float>,
                                          pack<int16_t>,   pack_planes,      expand,        weights_bytes,
                                          prepare_weights, no_scratch_bytes, convolve};
    return kernels;
}

}  // namespace bmx
