// Binary layers with AVX-512 and VPOPCNTDQ. Lanes are filters, and activation words are broadcast.
//
// The layout of the prepared weights is [strip][tap][unit][16 lanes]. Blocks of up to 4 strips and 5 pixels keep their
// sums in registers. Each word costs an exclusive or, a population count and an addition.
// Windows of many words are counted by parities instead (binary_parities_avx512.h).
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
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    if (units == 2) {  // most layers have 64 channels more than the one before
        for (int pixel = 0; pixel < pixels; ++pixel, words += 2, packed += packed_stride) {
            std::memcpy(packed, words, 2 * kUnitBytes);
        }
        return;
    }
    for (int begin = 0; begin < units; begin += kLanes) {
        const auto lanes = static_cast<__mmask16>((1u << min(kLanes, units - begin)) - 1);
        const uint32_t* from = words + begin;
        uint8_t* to = packed + begin * kUnitBytes;
        for (int pixel = 0; pixel < pixels; ++pixel, from += units, to += packed_stride) {
            _mm512_mask_storeu_epi32(to, lanes, _mm512_maskz_loadu_epi32(lanes, from));
        }
    }
}

// --- weights

size_t strip_words(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kLanes;
}

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
    Affine affine;
};

template <int kStrips, int kPixels, typename T>
inline __attribute__((always_inline)) void store_block(const BinaryConvRun& run, const Affine& affine,
                                                       const Block& block, const __m512i (&sums)[kPixels][kStrips]) {
    const __m512i constant = _mm512_set1_epi32(affine.constant);
    const auto doubled = static_cast<__mmask16>(affine.scale == 2 ? -1 : 0);  // scales are 1 and 2
    const auto result = [&](int p, int s) {
        return _mm512_sub_epi32(constant, _mm512_mask_add_epi32(sums[p][s], doubled, sums[p][s], sums[p][s]));
    };
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
        store_block<kStrips, kPixels, float>(run, shape.affine, block, sums);
    } else {
        store_block<kStrips, kPixels, int16_t>(run, shape.affine, block, sums);
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Shape&, const Block&);

template <int kStrips>
constexpr ConvolveBlock kPixelBlocks[kMaxPixels] = {convolve_block<kStrips, 1>, convolve_block<kStrips, 2>,
                                                    convolve_block<kStrips, 3>, convolve_block<kStrips, 4>,
                                                    convolve_block<kStrips, 5>};
constexpr const ConvolveBlock* kBlocks[kMaxStrips] = {kPixelBlocks<1>, kPixelBlocks<2>, kPixelBlocks<3>,
                                                      kPixelBlocks<4>};

// Calls body(block, strips) for the first pixel of each row and block of strips.
template <typename Body>
void for_each_row(const BinaryConvRun& run, const Body& body) {
    const BinaryConv& conv = *run.conv;
    for_each_strip_block<kMaxStrips>(run, [&](const Strip* strips, int count) {
        const uint8_t* input = run.input + strips[0].group * conv.group_units() * kUnitBytes;
        for (int row = 0; row < run.rows; ++row) {
            body(Block{strips, input + row * conv.stride_h * run.row_bytes, row * run.output_row}, count);
        }
    });
}

Shape shape_of(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    return {pieces_in_map(run), conv.stride_w * run.pixel_bytes, strip_words(conv), affine_of_differing(conv)};
}

void convolve_blocks(const BinaryConvRun& run) {
    const Shape shape = shape_of(run);
    const int pixel_blocks = ceil_div(run.columns, kMaxPixels);
    for_each_row(run, [&](const Block& row, int strips) {
        for (int b = 0; b < pixel_blocks; ++b) {  // of nearly equal sizes
            const int begin = static_cast<int>(int64_t(run.columns) * b / pixel_blocks);
            const int end = static_cast<int>(int64_t(run.columns) * (b + 1) / pixel_blocks);
            kBlocks[strips - 1][end - begin - 1](
                run, shape, {row.strips, row.window + begin * shape.pixel_step, row.output + begin * run.output_pixel});
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
        "avx512",    kUnitBytes, kLanes,        pack<F32Comparison>, pack<I16Comparison>,
        pack_planes, expand,     weights_bytes, prepare_weights,     scratch_bytes,
        convolve};
    return kernels;
}

}  // namespace bmx
