// Binary layers with AVX-512 and its population count: a lane is a filter, an activation word is broadcast.
//
// Prepared weights are [strip][tap][unit][16 lanes]. Blocks of up to 4 strips and 5 pixels keep their sums in
// registers; each word costs an exclusive or, a population count and an addition.
#include <immintrin.h>

#include <cstring>

#include "binary_kernels.h"
#include "binary_strips.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 4;
constexpr int kMostStrips = 4, kMostPixels = 5;

// --- packing

__mmask16 compare(const float* x, const float* threshold, __mmask16 lanes) {
    return _mm512_mask_cmp_ps_mask(lanes, _mm512_maskz_loadu_ps(lanes, x), _mm512_maskz_loadu_ps(lanes, threshold),
                                   _CMP_GE_OQ);
}

// The bits of 32 elements, of which `lanes` exist.
uint32_t word_of(const float* x, const float* threshold, __mmask32 lanes) {
    return compare(x, threshold, static_cast<__mmask16>(lanes)) |
           uint32_t(compare(x + 16, threshold + 16, static_cast<__mmask16>(lanes >> 16))) << 16;
}

uint32_t word_of(const int16_t* x, const int16_t* threshold, __mmask32 lanes) {
    return _mm512_mask_cmpge_epi16_mask(lanes, _mm512_maskz_loadu_epi16(lanes, x),
                                        _mm512_maskz_loadu_epi16(lanes, threshold));
}

template <typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint8_t* packed, ptrdiff_t packed_stride) {
    const int whole = channels / 32;
    const __mmask32 rest = (1u << (channels % 32)) - 1;
    for (int pixel = 0; pixel < pixels; ++pixel, x += stride, packed += packed_stride) {
        for (int unit = 0; unit < whole; ++unit) {
            const uint32_t word = word_of(x + unit * 32, threshold + unit * 32, ~0u) ^ flip[unit];
            std::memcpy(packed + unit * kUnitBytes, &word, kUnitBytes);
        }
        if (rest) {
            const uint32_t word = word_of(x + whole * 32, threshold + whole * 32, rest) ^ flip[whole];
            std::memcpy(packed + whole * kUnitBytes, &word, kUnitBytes);
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

void store(const BinaryConvRun& run, ptrdiff_t at, __m512i sums, __mmask16 lanes) {
    if (run.number == Number::f32) {
        __m512 result = _mm512_cvtepi32_ps(sums);
        if (run.addend) {
            result = _mm512_add_ps(result, _mm512_maskz_loadu_ps(lanes, static_cast<const float*>(run.addend) + at));
        }
        _mm512_mask_storeu_ps(static_cast<float*>(run.output) + at, lanes, result);
    } else {
        __m256i result = _mm512_cvtepi32_epi16(sums);
        if (run.addend) {
            const int16_t* addend = static_cast<const int16_t*>(run.addend) + at;
            result = _mm256_add_epi16(result, _mm256_maskz_loadu_epi16(lanes, addend));
        }
        _mm256_mask_storeu_epi16(static_cast<int16_t*>(run.output) + at, lanes, result);
    }
}

struct Block {
    const Strip* strips;
    const uint8_t* window;  // of the first pixel, at the group's first unit
    ptrdiff_t output;       // index of the first pixel's filter 0
};

template <int kStrips, int kPixels>
void convolve_block(const BinaryConvRun& run, const Block& block) {
    const Runs runs = runs_of(run, kUnitBytes);
    const ptrdiff_t pixel_step = run.conv->stride_w * run.pixel_bytes;
    const size_t strip_step = strip_words(*run.conv);
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strips[0].index * strip_step;

    __m512i sums[kPixels][kStrips];
    for (int p = 0; p < kPixels; ++p) {
        for (int s = 0; s < kStrips; ++s) sums[p][s] = _mm512_setzero_si512();
    }
    for (int y = 0; y < runs.rows; ++y) {
        for (int x = 0; x < runs.columns; ++x) {
            const uint8_t* from = block.window + y * runs.row_step + x * runs.step;
            for (int unit = 0; unit < runs.units; ++unit, from += kUnitBytes, weights += kLanes) {
                __m512i w[kStrips];
                for (int s = 0; s < kStrips; ++s) w[s] = _mm512_load_si512(weights + s * strip_step);
                for (int p = 0; p < kPixels; ++p) {
                    int word;
                    std::memcpy(&word, from + p * pixel_step, sizeof(word));
                    const __m512i a = _mm512_set1_epi32(word);
                    for (int s = 0; s < kStrips; ++s) {
                        sums[p][s] = _mm512_add_epi32(sums[p][s], _mm512_popcnt_epi32(_mm512_xor_si512(a, w[s])));
                    }
                }
            }
        }
    }

    const Affine affine = affine_of_differing(*run.conv);
    const __m512i constant = _mm512_set1_epi32(affine.constant);
    for (int s = 0; s < kStrips; ++s) {
        const __mmask16 lanes = (1u << (block.strips[s].end - block.strips[s].begin)) - 1;
        for (int p = 0; p < kPixels; ++p) {
            const __m512i differing = affine.scale == 1 ? sums[p][s] : _mm512_slli_epi32(sums[p][s], 1);
            store(run, block.output + p * run.output_pixel + block.strips[s].begin,
                  _mm512_sub_epi32(constant, differing), lanes);
        }
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Block&);

template <int kStrips>
constexpr ConvolveBlock kPixelBlocks[kMostPixels] = {convolve_block<kStrips, 1>, convolve_block<kStrips, 2>,
                                                     convolve_block<kStrips, 3>, convolve_block<kStrips, 4>,
                                                     convolve_block<kStrips, 5>};
constexpr const ConvolveBlock* kBlocks[kMostStrips] = {kPixelBlocks<1>, kPixelBlocks<2>, kPixelBlocks<3>,
                                                       kPixelBlocks<4>};

void convolve(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const int pixel_blocks = (run.columns + kMostPixels - 1) / kMostPixels;
    for_each_strip_block<kMostStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        for (int row = 0; row < run.rows; ++row) {
            for (int b = 0; b < pixel_blocks; ++b) {  // of nearly equal sizes
                const int begin = int64_t(run.columns) * b / pixel_blocks;
                const int pixels = int64_t(run.columns) * (b + 1) / pixel_blocks - begin;
                const uint8_t* window =
                    input + row * conv.stride_h * run.row_bytes + begin * conv.stride_w * run.pixel_bytes;
                kBlocks[count - 1][pixels - 1](run, {strips, window, row * run.output_row + begin * run.output_pixel});
            }
        }
    });
}

}  // namespace

const BinaryKernels& binary_kernels_avx512() {
    static const BinaryKernels kernels = {"avx512",      kUnitBytes,    kLanes,          pack<float>,
                                          pack<int16_t>, weights_bytes, prepare_weights, convolve};
    return kernels;
}

}  // namespace bmx
