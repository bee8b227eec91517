// Binary layers with AVX-512 and its population count: a lane is a filter, an activation word is broadcast.
//
// Prepared weights are [strip][tap][unit][16 lanes]. Blocks of up to 4 strips and 5 pixels keep their sums in
// registers; each word costs an exclusive or, a population count and an addition.
#include <immintrin.h>

#include <cstring>

#include "binary_kernels.h"
#include "binary_store_avx512.h"
#include "binary_strips.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 4;
constexpr int kMostStrips = 4, kMostPixels = 5;

// --- packing

struct F32Threshold {  // of 32 elements, of which `lanes` exist
    __mmask16 low_lanes, high_lanes;
    __m512 low, high;
    F32Threshold(const float* threshold, __mmask32 lanes)
        : low_lanes(static_cast<__mmask16>(lanes)),
          high_lanes(static_cast<__mmask16>(lanes >> 16)),
          low(_mm512_maskz_loadu_ps(low_lanes, threshold)),
          high(_mm512_maskz_loadu_ps(high_lanes, threshold + 16)) {}
    uint32_t operator()(const float* x) const {
        const __m512 x_low = _mm512_maskz_loadu_ps(low_lanes, x), x_high = _mm512_maskz_loadu_ps(high_lanes, x + 16);
        return _mm512_mask_cmp_ps_mask(low_lanes, x_low, low, _CMP_GE_OQ) |
               uint32_t(_mm512_mask_cmp_ps_mask(high_lanes, x_high, high, _CMP_GE_OQ)) << 16;
    }
};

struct I16Threshold {
    __mmask32 lanes;
    __m512i limit;
    I16Threshold(const int16_t* threshold, __mmask32 which)
        : lanes(which), limit(_mm512_maskz_loadu_epi16(which, threshold)) {}
    uint32_t operator()(const int16_t* x) const {
        return _mm512_mask_cmpge_epi16_mask(lanes, _mm512_maskz_loadu_epi16(lanes, x), limit);
    }
};

template <typename Threshold, typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint8_t* packed, ptrdiff_t packed_stride) {
    for (int unit = 0; unit * 32 < channels; ++unit) {
        const int left = channels - unit * 32;
        const Threshold word_of(threshold + unit * 32, left < 32 ? (1u << left) - 1 : ~0u);
        const T* from = x + unit * 32;
        uint8_t* to = packed + unit * kUnitBytes;
        for (int pixel = 0; pixel < pixels; ++pixel, from += stride, to += packed_stride) {
            const uint32_t word = word_of(from) ^ flip[unit];
            std::memcpy(to, &word, kUnitBytes);
        }
    }
}

// --- weights

size_t strip_words(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kLanes;
}

size_t weights_bytes(const BinaryConv& conv) { return count_strips(conv) * strip_words(conv) * sizeof(uint32_t); }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = strip_words(conv) / kLanes;
    for_each_strip(conv, [&](const Strip& strip) {
        uint32_t* to = static_cast<uint32_t*>(prepared) + strip.index * strip_words(conv);
        for (size_t k = 0; k < filter_words; ++k) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const int filter = strip.begin + lane;
                *to++ = filter < strip.end ? words[filter * filter_words + k] : 0;
            }
        }
    });
}

// --- convolution

struct Block {
    const Strip* strips;
    const uint8_t* window;  // of the first pixel, at the group's first unit
    ptrdiff_t output;       // index of the first pixel's filter 0
};

// What all blocks of a run share.
struct Shape {
    Runs runs;
    ptrdiff_t pixel_step;
    size_t strip_step;
    Affine affine;
};

template <int kStrips, int kPixels, typename T>
inline __attribute__((always_inline)) void store_block(const BinaryConvRun& run, const Affine& affine,
                                                       const Block& block, const __m512i (&sums)[kPixels][kStrips]) {
    const __m512i constant = _mm512_set1_epi32(affine.constant);
    const __m128i shift = _mm_cvtsi32_si128(affine.scale - 1);
    const auto result = [&](int p, int s) { return _mm512_sub_epi32(constant, _mm512_sll_epi32(sums[p][s], shift)); };
    T* output = static_cast<T*>(run.output) + block.output;
    const T* addend = run.addend ? static_cast<const T*>(run.addend) + block.output : nullptr;
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
        for (int s = 0; s < kStrips; s += 2) {
            const Strip& strip = block.strips[s];
            const ptrdiff_t at = p * run.output_pixel + strip.begin;
            T* to = output + at;
            const T* add = addend ? addend + at : nullptr;
            if (s + 1 == kStrips) {
                store(result(p, s), to, add, lanes_of(strip));
                continue;
            }
            const Strip& next = block.strips[s + 1];
            if (side_by_side(strip, next)) {
                store_pair(result(p, s), result(p, s + 1), to, add, lanes_of(strip, next));
            } else {
                const ptrdiff_t apart = next.begin - strip.begin;
                store(result(p, s), to, add, lanes_of(strip));
                store(result(p, s + 1), to + apart, add ? add + apart : nullptr, lanes_of(next));
            }
        }
    }
}

template <int kStrips, int kPixels>
void convolve_block(const BinaryConvRun& run, const Shape& shape, const Block& block) {
    const Runs runs = shape.runs;
    const ptrdiff_t pixel_step = shape.pixel_step;
    const size_t strip_step = shape.strip_step;
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strips[0].index * strip_step;

    __m512i sums[kPixels][kStrips];
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
        for (int s = 0; s < kStrips; ++s) sums[p][s] = _mm512_setzero_si512();
    }
    for (int y = 0; y < runs.rows; ++y) {
        for (int x = 0; x < runs.columns; ++x) {
            const uint8_t* from = block.window + y * runs.row_step + x * runs.step;
            for (int unit = 0; unit < runs.units; ++unit, from += kUnitBytes, weights += kLanes) {
                __m512i w[kStrips];
#pragma GCC unroll 8
                for (int s = 0; s < kStrips; ++s) w[s] = _mm512_load_si512(weights + s * strip_step);
#pragma GCC unroll 8
                for (int p = 0; p < kPixels; ++p) {
                    int word;
                    std::memcpy(&word, from + p * pixel_step, sizeof(word));
                    const __m512i a = _mm512_set1_epi32(word);
#pragma GCC unroll 8
                    for (int s = 0; s < kStrips; ++s) {
                        sums[p][s] = _mm512_add_epi32(sums[p][s], _mm512_popcnt_epi32(_mm512_xor_si512(a, w[s])));
                    }
                }
            }
        }
    }

    if (run.number == Number::f32) {
        store_block<kStrips, kPixels, float>(run, shape.affine, block, sums);
    } else {
        store_block<kStrips, kPixels, int16_t>(run, shape.affine, block, sums);
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Shape&, const Block&);

template <int kStrips>
constexpr ConvolveBlock kPixelBlocks[kMostPixels] = {convolve_block<kStrips, 1>, convolve_block<kStrips, 2>,
                                                     convolve_block<kStrips, 3>, convolve_block<kStrips, 4>,
                                                     convolve_block<kStrips, 5>};
constexpr const ConvolveBlock* kBlocks[kMostStrips] = {kPixelBlocks<1>, kPixelBlocks<2>, kPixelBlocks<3>,
                                                       kPixelBlocks<4>};

void convolve(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const Shape shape = {runs_of(run, kUnitBytes), conv.stride_w * run.pixel_bytes, strip_words(conv),
                         affine_of_differing(conv)};
    const int pixel_blocks = (run.columns + kMostPixels - 1) / kMostPixels;
    for_each_strip_block<kMostStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        for (int row = 0; row < run.rows; ++row) {
            for (int b = 0; b < pixel_blocks; ++b) {  // of nearly equal sizes
                const int begin = static_cast<int>(int64_t(run.columns) * b / pixel_blocks);
                const int end = static_cast<int>(int64_t(run.columns) * (b + 1) / pixel_blocks);
                const uint8_t* window = input + row * conv.stride_h * run.row_bytes + begin * shape.pixel_step;
                const ptrdiff_t output = row * run.output_row + begin * run.output_pixel;
                kBlocks[count - 1][end - begin - 1](run, shape, {strips, window, output});
            }
        }
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx512() {
    static const BinaryKernels kernels = {"avx512",           kUnitBytes,    kLanes,          pack<F32Threshold>,
                                          pack<I16Threshold>, weights_bytes, prepare_weights, convolve};
    return kernels;
}

}  // namespace bmx
