// Binary layers with AVX2, which cannot count bits: a byte shuffle looks up in how many of four elements the
// activations and the weights of a filter differ. The activations choose the table, the weights are the indices.
//
// A table has the numbers of two pixels, one in each half of a byte: one shuffle serves both. Three such bytes can be
// added up before a half is full; then both are added to sums of whole bytes, these now and then to sums of 16 bits.
//
// Prepared weights are [strip][tap][unit][byte][32]: for 8 elements the low half bytes of 16 filters, then the high
// ones.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "binary_kernels.h"
#include "binary_strips.h"

namespace bmx {
namespace {

constexpr int kUnitSteps = 4, kStepBytes = 2, kUnitBytes = kUnitSteps * kStepBytes;
constexpr int kVectorBits = 5, kVectorBytes = 1 << kVectorBits;
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
    const __m256i below = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);  // packs works in halves
    return ~static_cast<uint32_t>(_mm256_movemask_epi8(below));
}

template <typename T>
uint32_t word_of_some(const T* x, const T* threshold, int count) {
    uint32_t word = 0;
    for (int i = 0; i < count; ++i) word |= uint32_t(x[i] >= threshold[i]) << i;
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
        if (rest) *words++ = word_of_some(x + whole * 32, threshold + whole * 32, rest) ^ flip[whole];
    }
}

// Lanes are pixels: a channel's comparison sets its bit in their words. Several vectors at once, since each channel is
// another place in memory; `width` pixels are there.
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
        for (auto& sum : sums) sum = _mm256_set1_epi32(static_cast<int>(flip[unit]));
        for (int c = begin; c < end; ++c, from += stride) {
            const __m256 limit = _mm256_set1_ps(threshold[c]);
            const __m256i bit = _mm256_set1_epi32(static_cast<int>(1u << (c - begin)));
            for (int v = 0; v < kVectors; ++v) {
                const __m256 set = _mm256_cmp_ps(_mm256_maskload_ps(from + 8 * v, there[v]), limit, _CMP_GE_OQ);
                sums[v] = _mm256_xor_si256(sums[v], _mm256_and_si256(_mm256_castps_si256(set), bit));
            }
        }
        uint32_t column[8 * kVectors];
        std::memcpy(column, sums, sizeof(column));
        for (int i = 0; i < width; ++i) words[ptrdiff_t(i) * units + unit] = column[i];
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

// A unit is the bytes of its word as distances in the tables below, 16 bits each.
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride) {
        for (int unit = 0; unit < units; ++unit) {
            const __m128i bytes = _mm_cvtsi32_si128(static_cast<int>(*words++));
            const __m128i distances = _mm_slli_epi16(_mm_cvtepu8_epi16(bytes), kVectorBits);
            _mm_storel_epi64(reinterpret_cast<__m128i*>(packed + unit * kUnitBytes), distances);
        }
    }
}

// --- weights

size_t strip_bytes(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kUnitSteps * kVectorBytes;
}

size_t weights_bytes(const BinaryConv& conv) { return count_strips(conv) * strip_bytes(conv); }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * conv.group_units();
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        uint8_t* to = static_cast<uint8_t*>(prepared) + strip.index * strip_bytes(conv);
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            for (size_t k = 0; k < filter_words * kUnitSteps; ++k) {
                const uint8_t byte = words[filter * filter_words + k / kUnitSteps] >> k % kUnitSteps * 8;
                uint8_t* vector = to + k * kVectorBytes + (filter - strip.begin);
                vector[0] = byte & 15;
                vector[kLanes] = byte >> 4;
            }
        }
    });
}

// --- convolution

// For each activation byte two tables of 16: in how many elements its low and high half differ from each half byte.
// Once for the first pixel of a pair, once for the second.
struct alignas(64) Tables {
    uint8_t differing[2][256][kVectorBytes] = {};
    constexpr Tables() {
        for (int byte = 0; byte < 256; ++byte) {
            for (int i = 0; i < kVectorBytes; ++i) {
                const int half = i < 16 ? byte & 15 : byte >> 4;
                for (int different = half ^ (i & 15); different; different >>= 1) {
                    differing[0][byte][i] += different & 1;
                    differing[1][byte][i] += (different & 1) << 4;
                }
            }
        }
    }
};
constexpr Tables kTables;

// The table of a step for a pair of pixels.
inline __m256i table_of(const uint8_t* first, const uint8_t* second) {
    uint16_t distances[2];
    std::memcpy(distances, first, kStepBytes);
    std::memcpy(distances + 1, second, kStepBytes);
    return _mm256_or_si256(load(kTables.differing[0][0] + distances[0]), load(kTables.differing[1][0] + distances[1]));
}

constexpr int kMostInWord = 65535;
constexpr int kStepsAtOnce = 15 / 4;                                            // sums of up to 4 a step in 4 bits
constexpr int kMostSums = 255 / (4 * kStepsAtOnce);                             // of these in 8 bits
constexpr int kMostFlushes = kMostInWord / (2 * 4 * kStepsAtOnce * kMostSums);  // of the sums of both halves in 16 bits

// Numbers of differing elements, of a pair of pixels and the filters of some strips.
template <int kStrips>
class Sums {
  public:
    // Of each byte's numbers a and b, for the first and the second pixel: all a + 16 b, and these divided by 16 as if
    // two bytes were an integer, which leaves b in the upper one and b + 16 times the upper one's a in the lower one.
    __m256i bytes[kStrips], shifted[kStrips];

    // However many steps there are, no more elements differ than there are weights.
    explicit Sums(int64_t weights) : may_overflow_(weights > kMostInWord) { clear_bytes(); }

    void flush() {
        const __m256i low = _mm256_set1_epi16(255);
        const auto without = [=](__m256i sums, __m256i others) {
            return _mm256_and_si256(_mm256_sub_epi16(sums, _mm256_slli_epi16(others, 4)), low);
        };
        if (may_overflow_ && flushes_ == kMostFlushes) add_words();
        for (int s = 0; s < kStrips; ++s) {
            const __m256i second_odd = _mm256_srli_epi16(shifted[s], 8);
            const __m256i first_odd = without(_mm256_srli_epi16(bytes[s], 8), second_odd);
            const __m256i second_even = without(shifted[s], first_odd);
            const __m256i first_even = without(bytes[s], second_even);
            const __m256i flushed[4] = {first_even, first_odd, second_even, second_odd};
            for (int i = 0; i < 4; ++i) {
                words_[s][i] = flushes_ == 0 ? flushed[i] : _mm256_add_epi16(words_[s][i], flushed[i]);
            }
        }
        clear_bytes();
        ++flushes_;
    }

    // Of a strip's filters, in 16 bits: after a flush, and where these cannot overflow.
    __m256i total(int strip, int pixel) const {
        const auto both_halves = [](__m256i word) {
            return _mm_add_epi16(_mm256_castsi256_si128(word), _mm256_extracti128_si256(word, 1));
        };
        const __m128i even = both_halves(words_[strip][2 * pixel]), odd = both_halves(words_[strip][2 * pixel + 1]);
        return _mm256_set_m128i(_mm_unpackhi_epi16(even, odd), _mm_unpacklo_epi16(even, odd));
    }

    // Of 8 of them, in 32 bits.
    __m256i total(int strip, int pixel, int half) const {
        const __m256i words = total(strip, pixel);
        const __m128i some = half ? _mm256_extracti128_si256(words, 1) : _mm256_castsi256_si128(words);
        const __m256i sum = _mm256_cvtepu16_epi32(some);
        return has_totals_ ? _mm256_add_epi32(totals_[strip][pixel][half], sum) : sum;
    }

  private:
    void clear_bytes() {
        for (int s = 0; s < kStrips; ++s) bytes[s] = shifted[s] = _mm256_setzero_si256();
    }

    void add_words() {
        for (int s = 0; s < kStrips; ++s) {
            for (int i = 0; i < 4; ++i) totals_[s][i / 2][i % 2] = total(s, i / 2, i % 2);
        }
        has_totals_ = true;
        flushes_ = 0;
    }

    const bool may_overflow_;
    int flushes_ = 0;
    bool has_totals_ = false;
    __m256i words_[kStrips][4];  // of the first pixel even filters and odd ones, of the second pixel likewise
    __m256i totals_[kStrips][2][2];
};

template <int kStrips>
void store(const Affine& affine, const Sums<kStrips>& sums, int strip, int pixel, float* output, const float* addend) {
    const __m256i constant = _mm256_set1_epi32(affine.constant);
    const __m128i shift = _mm_cvtsi32_si128(affine.scale - 1);
    for (int half = 0; half < 2; ++half) {
        const __m256i scaled = _mm256_sll_epi32(sums.total(strip, pixel, half), shift);
        __m256 result = _mm256_cvtepi32_ps(_mm256_sub_epi32(constant, scaled));
        if (addend) result = _mm256_add_ps(result, _mm256_loadu_ps(addend + half * 8));
        _mm256_storeu_ps(output + half * 8, result);
    }
}

// Every sum and result fits in 16 bits, and the differing elements are fewer still.
template <int kStrips>
void store(const Affine& affine, const Sums<kStrips>& sums, int strip, int pixel, int16_t* output,
           const int16_t* addend) {
    const __m256i constant = _mm256_set1_epi16(static_cast<int16_t>(affine.constant));
    const __m256i scaled = _mm256_sll_epi16(sums.total(strip, pixel), _mm_cvtsi32_si128(affine.scale - 1));
    __m256i result = _mm256_sub_epi16(constant, scaled);
    if (addend) result = _mm256_add_epi16(result, load(addend));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output), result);
}

template <typename T, int kStrips>
void store_pixel(const BinaryConvRun& run, const Sums<kStrips>& sums, const Strip* strips, int pixel,
                 ptrdiff_t output_index) {
    const Affine affine = affine_of_differing(*run.conv);
    T* const output = static_cast<T*>(run.output) + output_index;
    const T* const addend = run.addend ? static_cast<const T*>(run.addend) + output_index : nullptr;
    for (int s = 0; s < kStrips; ++s) {
        const int begin = strips[s].begin, lanes = strips[s].end - begin;
        if (lanes == kLanes) {
            store(affine, sums, s, pixel, output + begin, addend ? addend + begin : nullptr);
            continue;
        }
        T results[kLanes], addends[kLanes] = {};
        if (addend) std::memcpy(addends, addend + begin, lanes * sizeof(T));
        store(affine, sums, s, pixel, results, addends);
        std::memcpy(output + begin, results, lanes * sizeof(T));
    }
}

// A pair of pixels, of which only the first one may exist; then the second one's window is the same.
struct Pair {
    int pixels;
    const uint8_t* windows[2];  // at the group's first unit
    ptrdiff_t outputs[2];       // indices of filter 0
};

template <int kStrips>
void convolve_pair(const BinaryConvRun& run, const Runs& runs, size_t strip_step, const Strip* strips,
                   const Pair& pair) {
    const uint8_t* weights[kStrips];
    for (int s = 0; s < kStrips; ++s) {
        weights[s] = static_cast<const uint8_t*>(run.weights) + (strips[0].index + s) * strip_step;
    }
    Sums<kStrips> sums(run.conv->weights_per_output());
    int left = kMostSums;  // sums of some steps until bytes are full
    for (int y = 0; y < runs.rows; ++y) {
        for (int x = 0; x < runs.columns; ++x) {
            const ptrdiff_t piece = y * runs.row_step + x * runs.step;
            const uint8_t *first = pair.windows[0] + piece, *second = pair.windows[1] + piece;
            int steps = runs.units * kUnitSteps;
            const auto add_steps = [&](auto count) {
                constexpr int kCount = count;
                __m256i tables[kCount];
#pragma GCC unroll 4
                for (int step = 0; step < kCount; ++step) {
                    tables[step] = table_of(first + step * kStepBytes, second + step * kStepBytes);
                }
#pragma GCC unroll 4
                for (int s = 0; s < kStrips; ++s) {  // strip by strip: in another order registers do not suffice
                    __m256i some = _mm256_shuffle_epi8(tables[0], load(weights[s]));
#pragma GCC unroll 4
                    for (int step = 1; step < kCount; ++step) {
                        const __m256i w = load(weights[s] + step * kVectorBytes);
                        some = _mm256_add_epi8(some, _mm256_shuffle_epi8(tables[step], w));
                    }
                    weights[s] += kCount * kVectorBytes;
                    sums.bytes[s] = _mm256_add_epi8(sums.bytes[s], some);
                    sums.shifted[s] = _mm256_add_epi8(sums.shifted[s], _mm256_srli_epi16(some, 4));
                }
                first += kCount * kStepBytes;
                second += kCount * kStepBytes;
                steps -= kCount;
            };
            while (steps > 0) {
                const int whole = steps / kStepsAtOnce < left ? steps / kStepsAtOnce : left;
                for (int i = 0; i < whole; ++i) add_steps(std::integral_constant<int, kStepsAtOnce>());
                left -= whole;
                if (left > 0 && steps > 0) {  // fewer than kStepsAtOnce
                    while (steps > 0) add_steps(std::integral_constant<int, 1>());
                    --left;
                }
                if (left == 0) {
                    sums.flush();
                    left = kMostSums;
                }
            }
        }
    }
    sums.flush();
    for (int p = 0; p < pair.pixels; ++p) {
        if (run.number == Number::f32) {
            store_pixel<float>(run, sums, strips, p, pair.outputs[p]);
        } else {
            store_pixel<int16_t>(run, sums, strips, p, pair.outputs[p]);
        }
    }
}

using ConvolvePair = void (*)(const BinaryConvRun&, const Runs&, size_t strip_step, const Strip*, const Pair&);

constexpr ConvolvePair kPairs[kMostStrips] = {convolve_pair<1>, convolve_pair<2>, convolve_pair<3>, convolve_pair<4>};

void convolve(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const Runs runs = runs_of(run);
    const size_t strip_step = strip_bytes(conv);
    for_each_strip_block<kMostStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        Pair pair = {};
        for (int row = 0; row < run.rows; ++row) {
            for (int column = 0; column < run.columns; ++column) {
                pair.windows[pair.pixels] =
                    input + row * conv.stride_h * run.row_bytes + column * conv.stride_w * run.pixel_bytes;
                pair.outputs[pair.pixels] = row * run.output_row + column * run.output_pixel;
                if (++pair.pixels < 2) continue;
                kPairs[count - 1](run, runs, strip_step, strips, pair);
                pair.pixels = 0;
            }
        }
        if (pair.pixels == 0) return;
        pair.windows[1] = pair.windows[0];
        kPairs[count - 1](run, runs, strip_step, strips, pair);
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx2() {
    static const BinaryKernels kernels = {"avx2",          kUnitBytes,       kLanes,  pack<float>,
                                          pack<int16_t>,   pack_planes,      expand,  weights_bytes,
                                          prepare_weights, no_scratch_bytes, convolve};
    return kernels;
}

}  // namespace bmx
