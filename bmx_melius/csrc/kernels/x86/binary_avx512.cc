// Binary layers with AVX-512 and VPOPCNTDQ. Lanes are filters, and activation words are broadcast.
//
// The layout of the prepared weights is [strip][tap][unit][16 lanes]. Blocks of up to 4 strips and 5 pixels keep their
// sums in registers. Each word costs an exclusive or, a population count and an addition.
//
// Layers with at least 64 filters in a group are counted by parities instead, unless windows have fewer than 20 words
// (binary_parities_avx512.h). Large maps have the kernels of binary_planes_avx512.cc, which uses these for runs of few
// pixels.
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/x86/binary_pack_avx512.h"
#include "kernels/x86/binary_parities_avx512.h"
#include "kernels/x86/binary_store_avx512.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 4;
constexpr int kMaxStrips = 4, kMaxPixels = 5;

// --- packing

// Units are words, which are only copied.
void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    if (units == 2) {  // common: layers of DenseNet and MeliusNet add 64 channels
        for (int pixel = 0; pixel < pixels; ++pixel, words += stride, packed += packed_stride) {
            std::memcpy(packed, words, 2 * kUnitBytes);
        }
        return;
    }
    for (int begin = 0; begin < units; begin += kLanes) {
        const auto lanes = static_cast<__mmask16>((1u << min(kLanes, units - begin)) - 1);
        const uint32_t* from = words + begin;
        uint8_t* to = packed + begin * kUnitBytes;
        for (int pixel = 0; pixel < pixels; ++pixel, from += stride, to += packed_stride) {
            _mm512_mask_storeu_epi32(to, lanes, _mm512_maskz_loadu_epi32(lanes, from));
        }
    }
}

// --- weights

size_t weights_bytes(const BinaryConv& conv) { return count_strips(conv) * strip_words(conv) * sizeof(uint32_t); }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const int units = conv.group_units(), filter_words = window_units(conv);
    const bool parities = uses_parities(conv);
    for_each_strip(conv, [&](const Strip& strip) {
        uint32_t* to = static_cast<uint32_t*>(prepared) + strip.index * strip_words(conv);
        for (int k = 0; k < filter_words; ++k) {
            const int tap = k / units;
            const int from = parities ? tap % conv.kernel_h * conv.kernel_w + tap / conv.kernel_h : tap;
            for (int lane = 0; lane < kLanes; ++lane) {
                const int filter = strip.begin + lane;
                const uint32_t word =
                    filter < strip.end ? words[ptrdiff_t(filter) * filter_words + from * units + k % units] : 0;
                *to = parities && k > 0 ? word ^ to[-kLanes] : word;
                ++to;
            }
        }
    });
}

// --- convolution

struct Block {
    const Strip* strips;
    const uint8_t* window;  // window of the first pixel, at the first unit of the group
    ptrdiff_t output;       // index of filter 0 of the first pixel
};

// State shared by all blocks of a run.
struct Shape {
    PiecesInMap pieces;
    ptrdiff_t pixel_step;
    size_t strip_step;
};

template <typename T, int kStrips, int kPixels>
inline __attribute__((always_inline)) void store_block(const BinaryConvRun& run, const Block& block,
                                                       const __m512i (&sums)[kPixels][kStrips]) {
    const StripStore<kStrips, T> store(run, block.strips);
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
        store(sums[p], 0, block.output + p * run.output_pixel);
    }
}

template <int kStrips, int kPixels>
void convolve_block(const BinaryConvRun& run, const Shape& shape, const Block& block) {
    const PiecesInMap pieces = shape.pieces;
    const ptrdiff_t pixel_step = shape.pixel_step;
    const size_t strip_step = shape.strip_step;
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strips[0].index * strip_step;

    __m512i sums[kPixels][kStrips];
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
        for (int s = 0; s < kStrips; ++s) {
            sums[p][s] = _mm512_setzero_si512();
        }
    }
    for (int y = 0; y < pieces.rows; ++y) {
        for (int x = 0; x < pieces.columns; ++x) {
            const uint8_t* from = block.window + y * pieces.row_step + x * pieces.step;
            for (int unit = 0; unit < pieces.units; ++unit, from += kUnitBytes, weights += kLanes) {
                __m512i w[kStrips];
#pragma GCC unroll 8
                for (int s = 0; s < kStrips; ++s) {
                    w[s] = _mm512_load_si512(weights + s * strip_step);
                }
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

    if (run.type == DataType::f32) {
        store_block<float>(run, block, sums);
    } else {
        store_block<int16_t>(run, block, sums);
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Shape&, const Block&);

template <int kStrips>
constexpr ConvolveBlock kPixelBlocks[kMaxPixels] = {convolve_block<kStrips, 1>, convolve_block<kStrips, 2>,
                                                    convolve_block<kStrips, 3>, convolve_block<kStrips, 4>,
                                                    convolve_block<kStrips, 5>};
constexpr const ConvolveBlock* kBlocks[kMaxStrips] = {kPixelBlocks<1>, kPixelBlocks<2>, kPixelBlocks<3>,
                                                      kPixelBlocks<4>};

void convolve_blocks(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const Shape shape = {pieces_in_map(run), conv.stride_w * run.pixel_bytes, strip_words(conv)};
    const int pixel_blocks = ceil_div(run.columns, kMaxPixels);
    for_each_strip_block<kMaxStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        for (int row = 0; row < run.rows; ++row) {
            const uint8_t* window = input + row * conv.stride_h * run.row_bytes;
            for (int b = 0; b < pixel_blocks; ++b) {  // of nearly equal sizes
                const int begin = static_cast<int>(int64_t(run.columns) * b / pixel_blocks);
                const int end = static_cast<int>(int64_t(run.columns) * (b + 1) / pixel_blocks);
                kBlocks[count - 1][end - begin - 1](
                    run, shape,
                    {strips, window + begin * shape.pixel_step, row * run.output_row + begin * run.output_pixel});
            }
        }
    });
}

size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) {
    return uses_parities(conv) ? ParityRows(conv, columns).bytes(rows) : 0;
}

void convolve(const BinaryConvRun& run) { uses_parities(*run.conv) ? convolve_by_parities(run) : convolve_blocks(run); }

}  // namespace

const BinaryKernels& binary_kernels_avx512() {
    static const BinaryKernels kernels = {
        "avx512",    kUnitBytes, kLanes,        kBandPixels,     pack<F32Comparison>, pack<I16Comparison>,
        pack_planes, expand,     weights_bytes, prepare_weights, scratch_bytes,       convolve};
    return kernels;
}

}  // namespace bmx
