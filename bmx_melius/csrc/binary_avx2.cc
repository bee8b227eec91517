// Binary layers with AVX2, which cannot count bits: a byte shuffle looks up in how many of four elements the
// activations and the weights of a filter differ. The activations choose the table, the weights are the indices.
//
// Prepared weights are [strip][tap][unit][byte][32]: for 8 elements the low half bytes of 16 filters, then the high
// ones.
#include <immintrin.h>

#include <cstring>

#include "binary_kernels.h"
#include "binary_strips.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 4;
constexpr int kVectorBytes = 32;
constexpr int kMostStrips = 4, kMostPixels = 2;  // 8 sums, 4 weights, a table and temporaries: 16 registers

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

// Units are words. (Loops are faster here than calls of memcpy.)
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride) {
        for (int unit = 0; unit < units; ++unit) std::memcpy(packed + unit * kUnitBytes, words++, kUnitBytes);
    }
}

// --- weights

size_t strip_bytes(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kUnitBytes * kVectorBytes;
}

size_t weights_bytes(const BinaryConv& conv) { return count_strips(conv) * strip_bytes(conv); }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * conv.group_units();
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        uint8_t* to = static_cast<uint8_t*>(prepared) + strip.index * strip_bytes(conv);
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            for (size_t k = 0; k < filter_words * kUnitBytes; ++k) {
                const uint8_t byte = words[filter * filter_words + k / kUnitBytes] >> k % kUnitBytes * 8;
                uint8_t* vector = to + k * kVectorBytes + (filter - strip.begin);
                vector[0] = byte & 15;
                vector[kLanes] = byte >> 4;
            }
        }
    });
}

// --- convolution

// For each activation byte two tables of 16: in how many elements its low and high half differ from each half byte.
struct alignas(64) Tables {
    uint8_t differing[256][kVectorBytes] = {};
    constexpr Tables() {
        for (int byte = 0; byte < 256; ++byte) {
            for (int i = 0; i < kVectorBytes; ++i) {
                const int half = i < 16 ? byte & 15 : byte >> 4;
                for (int different = half ^ (i & 15); different; different >>= 1) {
                    differing[byte][i] += different & 1;
                }
            }
        }
    }
};
constexpr Tables kTables;

// Sums of up to 4 a byte are kept in bytes, then in 16 bits, then in 32.
constexpr int kBytesSteps = 255 / 4;
constexpr int kWordsFlushes = 65535 / (8 * kBytesSteps);

template <int kStrips, int kPixels>
class Sums {
  public:
    Sums() {
        std::memset(words_, 0, sizeof(words_));
        std::memset(totals_, 0, sizeof(totals_));
    }

    void add_bytes(const __m256i (&bytes)[kPixels][kStrips]) {
        for (int p = 0; p < kPixels; ++p) {
            for (int s = 0; s < kStrips; ++s) {
                const __m256i low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(bytes[p][s]));
                const __m256i high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256(bytes[p][s], 1));
                words_[p][s] = _mm256_add_epi16(words_[p][s], _mm256_add_epi16(low, high));
            }
        }
        if (++flushes_ == kWordsFlushes) add_words();
    }

    // The numbers of differing elements for 8 of a strip's filters.
    __m256i total(int pixel, int strip, int half) {
        if (flushes_ > 0) add_words();
        return totals_[pixel][strip][half];
    }

  private:
    void add_words() {
        flushes_ = 0;
        for (int p = 0; p < kPixels; ++p) {
            for (int s = 0; s < kStrips; ++s) {
                const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(words_[p][s]));
                const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(words_[p][s], 1));
                totals_[p][s][0] = _mm256_add_epi32(totals_[p][s][0], low);
                totals_[p][s][1] = _mm256_add_epi32(totals_[p][s][1], high);
                words_[p][s] = _mm256_setzero_si256();
            }
        }
    }

    int flushes_ = 0;
    __m256i words_[kPixels][kStrips];
    __m256i totals_[kPixels][kStrips][2];
};

void store(__m256i low, __m256i high, float* output, const float* addend) {
    __m256 results[2] = {_mm256_cvtepi32_ps(low), _mm256_cvtepi32_ps(high)};
    for (int half = 0; half < 2; ++half) {
        if (addend) results[half] = _mm256_add_ps(results[half], _mm256_loadu_ps(addend + half * 8));
        _mm256_storeu_ps(output + half * 8, results[half]);
    }
}

void store(__m256i low, __m256i high, int16_t* output, const int16_t* addend) {
    __m256i result = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);  // packs works in halves
    if (addend) result = _mm256_add_epi16(result, load(addend));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(output), result);
}

template <typename T>
void store_lanes(__m256i low, __m256i high, int lanes, T* output, const T* addend) {
    if (lanes == kLanes) return store(low, high, output, addend);
    T results[kLanes], addends[kLanes] = {};
    if (addend) std::memcpy(addends, addend, lanes * sizeof(T));
    store(low, high, results, addend ? addends : nullptr);
    std::memcpy(output, results, lanes * sizeof(T));
}

struct Block {
    const Strip* strips;
    const uint8_t* window;  // of the first pixel, at the group's first unit
    ptrdiff_t output;       // index of the first pixel's filter 0
};

template <int kStrips, int kPixels>
void convolve_block(const BinaryConvRun& run, const Runs& runs, size_t strip_step, const Block& block) {
    const ptrdiff_t pixel_step = run.conv->stride_w * run.pixel_bytes;
    const uint8_t* weights = static_cast<const uint8_t*>(run.weights) + block.strips[0].index * strip_step;
    Sums<kStrips, kPixels> sums;
    __m256i bytes[kPixels][kStrips];
    const auto clear_bytes = [&] {
        for (auto& pixel : bytes) {
            for (auto& strip : pixel) strip = _mm256_setzero_si256();
        }
    };
    clear_bytes();
    int steps = 0;
    for (int y = 0; y < runs.rows; ++y) {
        for (int x = 0; x < runs.columns; ++x) {
            const uint8_t* from = block.window + y * runs.row_step + x * runs.step;
            const uint8_t* const end = from + runs.units * kUnitBytes;
            while (from < end) {
                const ptrdiff_t count = end - from < kBytesSteps - steps ? end - from : kBytesSteps - steps;
                steps += static_cast<int>(count);
                for (const uint8_t* stop = from + count; from < stop; ++from, weights += kVectorBytes) {
                    __m256i w[kStrips];
                    for (int s = 0; s < kStrips; ++s) w[s] = load(weights + s * strip_step);
                    for (int p = 0; p < kPixels; ++p) {
                        const __m256i table = load(kTables.differing[from[p * pixel_step]]);
                        for (int s = 0; s < kStrips; ++s) {
                            bytes[p][s] = _mm256_add_epi8(bytes[p][s], _mm256_shuffle_epi8(table, w[s]));
                        }
                    }
                }
                if (steps == kBytesSteps) {
                    sums.add_bytes(bytes);
                    clear_bytes();
                    steps = 0;
                }
            }
        }
    }
    if (steps > 0) sums.add_bytes(bytes);

    const Affine affine = affine_of_differing(*run.conv);
    const __m256i constant = _mm256_set1_epi32(affine.constant);
    const __m128i shift = _mm_cvtsi32_si128(affine.scale - 1);
    for (int p = 0; p < kPixels; ++p) {
        for (int s = 0; s < kStrips; ++s) {
            __m256i results[2];
            for (int half = 0; half < 2; ++half) {
                results[half] = _mm256_sub_epi32(constant, _mm256_sll_epi32(sums.total(p, s, half), shift));
            }
            const int lanes = block.strips[s].end - block.strips[s].begin;
            const ptrdiff_t at = block.output + p * run.output_pixel + block.strips[s].begin;
            if (run.number == Number::f32) {
                const float* addend = static_cast<const float*>(run.addend);
                store_lanes(results[0], results[1], lanes, static_cast<float*>(run.output) + at,
                            addend ? addend + at : nullptr);
            } else {
                const int16_t* addend = static_cast<const int16_t*>(run.addend);
                store_lanes(results[0], results[1], lanes, static_cast<int16_t*>(run.output) + at,
                            addend ? addend + at : nullptr);
            }
        }
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Runs&, size_t strip_step, const Block&);

constexpr ConvolveBlock kBlocks[kMostStrips][kMostPixels] = {{convolve_block<1, 1>, convolve_block<1, 2>},
                                                             {convolve_block<2, 1>, convolve_block<2, 2>},
                                                             {convolve_block<3, 1>, convolve_block<3, 2>},
                                                             {convolve_block<4, 1>, convolve_block<4, 2>}};

void convolve(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const Runs runs = runs_of(run);
    const size_t strip_step = strip_bytes(conv);
    for_each_strip_block<kMostStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        for (int row = 0; row < run.rows; ++row) {
            for (int column = 0; column < run.columns; column += kMostPixels) {
                const int pixels = run.columns - column < kMostPixels ? run.columns - column : kMostPixels;
                const uint8_t* window =
                    input + row * conv.stride_h * run.row_bytes + column * conv.stride_w * run.pixel_bytes;
                const ptrdiff_t output = row * run.output_row + column * run.output_pixel;
                kBlocks[count - 1][pixels - 1](run, runs, strip_step, {strips, window, output});
            }
        }
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx2() {
    static const BinaryKernels kernels = {"avx2", kUnitBytes,    kLanes,          pack<float>,      pack<int16_t>,
                                          expand, weights_bytes, prepare_weights, no_scratch_bytes, convolve};
    return kernels;
}

}  // namespace bmx
