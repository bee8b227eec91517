// Binary layers with AVX-512 and VPOPCNTDQ. Lanes are filters, and activation words are broadcast.
//
// The layout of the prepared weights is [strip][tap][unit][16 lanes]. Blocks of up to 4 strips and 5 pixels keep their
// sums in registers. Each word costs an exclusive or, a population count and an addition.
//
// If many words are contiguous, two words cost five operations instead of six. With x and y the differing bits of the
// next two words and s the parities of all bits before, maj(s, x, y) are the carries of the sum of the three, which
// count twice, and s ^ x ^ y are the next parities:
//     bits of all words = 2 * carries + bits of the last parities - bits of the first.
// If weights and activations are stored as the exclusive or of all words before and including them, one exclusive or
// gives s ^ x =: t, another s ^ x ^ y =: next, and the carries are t ? ~next : s, one ternary operation.
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/x86/binary_pack_avx512.h"
#include "kernels/x86/binary_store_avx512.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 4;
constexpr int kMaxStrips = 4, kMaxPixels = 5;
constexpr int kMinParityUnits = 12;  // of a piece

// --- packing

// Units are words, which are only copied. (Loops are faster here than calls of memcpy.)
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride) {
        for (int unit = 0; unit < units; ++unit) {
            std::memcpy(packed + unit * kUnitBytes, words++, kUnitBytes);
        }
    }
}

// --- weights

size_t strip_words(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units() * kLanes;
}

size_t weights_bytes(const BinaryConv& conv) { return count_strips(conv) * strip_words(conv) * sizeof(uint32_t); }

// Smaller pieces gain nothing, because each piece costs two additional operations.
bool uses_parities(const BinaryConv& conv) { return pieces_of(conv).units >= kMinParityUnits; }

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = strip_words(conv) / kLanes;
    for_each_strip(conv, [&](const Strip& strip) {
        uint32_t* to = static_cast<uint32_t*>(prepared) + strip.index * strip_words(conv);
        const int piece = pieces_of(conv).units;
        const bool parities = uses_parities(conv);
        for (size_t k = 0; k < filter_words; ++k) {
            for (int lane = 0; lane < kLanes; ++lane) {
                const int filter = strip.begin + lane;
                const uint32_t word = filter < strip.end ? words[filter * filter_words + k] : 0;
                *to = parities && k % piece > 0 ? word ^ to[-kLanes] : word;
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

// The same on a map and weights of parities (see the top of this file). The word before the window holds the first
// parities.
template <int kStrips, int kPixels>
inline __attribute__((always_inline)) void convolve_block_by_parities(const BinaryConvRun& run, const Shape& shape,
                                                                      const Block& block) {
    const PiecesInMap pieces = shape.pieces;
    const ptrdiff_t pixel_step = shape.pixel_step;
    const size_t strip_step = shape.strip_step;
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strips[0].index * strip_step;
    const auto broadcast = [](const uint8_t* from) {
        int word;
        std::memcpy(&word, from, sizeof(word));
        return _mm512_set1_epi32(word);
    };

    __m512i twos[kPixels][kStrips], ones[kPixels][kStrips];
    int before[kPixels] = {};
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
        for (int s = 0; s < kStrips; ++s) {
            twos[p][s] = ones[p][s] = _mm512_setzero_si512();
        }
    }
    for (int y = 0; y < pieces.rows; ++y) {
        for (int x = 0; x < pieces.columns; ++x) {
            const uint8_t* from = block.window + y * pieces.row_step + x * pieces.step;
            __m512i parity[kPixels][kStrips];
#pragma GCC unroll 8
            for (int p = 0; p < kPixels; ++p) {
                uint32_t word;
                std::memcpy(&word, from + p * pixel_step, sizeof(word));
                before[p] += __builtin_popcount(word);
#pragma GCC unroll 8
                for (int s = 0; s < kStrips; ++s) {
                    parity[p][s] = _mm512_set1_epi32(static_cast<int>(word));
                }
            }
            from += kUnitBytes;
            for (int unit = 0; unit + 1 < pieces.units; unit += 2, from += 2 * kUnitBytes, weights += 2 * kLanes) {
#pragma GCC unroll 8
                for (int p = 0; p < kPixels; ++p) {
                    const __m512i a = broadcast(from + p * pixel_step);
                    const __m512i b = broadcast(from + p * pixel_step + kUnitBytes);
#pragma GCC unroll 8
                    for (int s = 0; s < kStrips; ++s) {
                        const __m512i odd = _mm512_xor_si512(a, _mm512_load_si512(weights + s * strip_step));
                        const __m512i next = _mm512_xor_si512(b, _mm512_load_si512(weights + s * strip_step + kLanes));
                        const __m512i carry = _mm512_ternarylogic_epi32(odd, next, parity[p][s], 0x3a);
                        twos[p][s] = _mm512_add_epi32(twos[p][s], _mm512_popcnt_epi32(carry));
                        parity[p][s] = next;
                    }
                }
            }
            const bool single = pieces.units % 2;
#pragma GCC unroll 8
            for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
                for (int s = 0; s < kStrips; ++s) {
                    if (single) {
                        const __m512i w = _mm512_load_si512(weights + s * strip_step);
                        const __m512i last =
                            _mm512_ternarylogic_epi32(broadcast(from + p * pixel_step), w, parity[p][s], 0x96);
                        ones[p][s] = _mm512_add_epi32(ones[p][s], _mm512_popcnt_epi32(last));
                    }
                    ones[p][s] = _mm512_add_epi32(ones[p][s], _mm512_popcnt_epi32(parity[p][s]));
                }
            }
            if (single) {
                weights += kLanes;
            }
        }
    }
#pragma GCC unroll 8
    for (int p = 0; p < kPixels; ++p) {
#pragma GCC unroll 8
        for (int s = 0; s < kStrips; ++s) {
            const __m512i sum = _mm512_add_epi32(ones[p][s], _mm512_add_epi32(twos[p][s], twos[p][s]));
            ones[p][s] = _mm512_sub_epi32(sum, _mm512_set1_epi32(before[p]));
        }
    }
    if (run.type == DataType::f32) {
        store_block<kStrips, kPixels, float>(run, shape.affine, block, ones);
    } else {
        store_block<kStrips, kPixels, int16_t>(run, shape.affine, block, ones);
    }
}

using ConvolveBlock = void (*)(const BinaryConvRun&, const Shape&, const Block&);

template <int kStrips>
constexpr ConvolveBlock kPixelBlocks[kMaxPixels] = {convolve_block<kStrips, 1>, convolve_block<kStrips, 2>,
                                                    convolve_block<kStrips, 3>, convolve_block<kStrips, 4>,
                                                    convolve_block<kStrips, 5>};
constexpr const ConvolveBlock* kBlocks[kMaxStrips] = {kPixelBlocks<1>, kPixelBlocks<2>, kPixelBlocks<3>,
                                                      kPixelBlocks<4>};

// Computes a row. Within one function the next pair of pixels begins while the results of the last one are stored.
template <int kStrips>
void convolve_row_by_parities(const BinaryConvRun& run, const Shape& shape, const Block& row) {
    Block block = row;
    int left = run.columns;
    for (; left >= 2; left -= 2) {
        convolve_block_by_parities<kStrips, 2>(run, shape, block);
        block.window += 2 * shape.pixel_step;
        block.output += 2 * run.output_pixel;
    }
    if (left) {
        convolve_block_by_parities<kStrips, 1>(run, shape, block);
    }
}

constexpr ConvolveBlock kParityRows[kMaxStrips] = {convolve_row_by_parities<1>, convolve_row_by_parities<2>,
                                                   convolve_row_by_parities<3>, convolve_row_by_parities<4>};

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

// Computes the parities of the part of the map under the output: each row is 0 followed by the cumulative exclusive ors
// of its words. These begin at the beginning of a cache line.
struct ParityMap {
    ptrdiff_t rows, vectors;

    ParityMap(const BinaryConv& conv, int output_rows, int output_columns)
        : rows(ptrdiff_t(output_rows - 1) * conv.stride_h + (conv.kernel_h - 1) * conv.dilation_h + 1) {
        const ptrdiff_t columns =
            ptrdiff_t(output_columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        vectors = ceil_div(columns * conv.units(), ptrdiff_t(kLanes));
    }

    ptrdiff_t row_words() const { return (vectors + 1) * kLanes; }

    // Returns the address of the 0 of the first row.
    const uint8_t* fill(const BinaryConvRun& run) const {
        uint32_t* to = static_cast<uint32_t*>(run.scratch) + kLanes;
        const auto* first = reinterpret_cast<const uint8_t*>(to - 1);
        for (ptrdiff_t row = 0; row < rows; ++row, to += row_words()) {
            to[-1] = 0;
            accumulate(run.input + row * run.row_bytes, to);
        }
        return first;
    }

    void accumulate(const uint8_t* from, uint32_t* to) const {
        const __m512i zero = _mm512_setzero_si512(), last = _mm512_set1_epi32(kLanes - 1);
        __m512i before = zero;
        for (ptrdiff_t i = 0; i < vectors; ++i, from += kLanes * kUnitBytes, to += kLanes) {
            __m512i x = _mm512_loadu_si512(from);
            x = _mm512_xor_si512(x, _mm512_alignr_epi32(x, zero, 15));
            x = _mm512_xor_si512(x, _mm512_alignr_epi32(x, zero, 14));
            x = _mm512_xor_si512(x, _mm512_alignr_epi32(x, zero, 12));
            x = _mm512_xor_si512(x, _mm512_alignr_epi32(x, zero, 8));
            x = _mm512_xor_si512(x, before);
            _mm512_store_si512(to, x);
            before = _mm512_permutexvar_epi32(last, x);
        }
    }
};

size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) {
    if (!uses_parities(conv)) {
        return 0;
    }
    const ParityMap map(conv, rows, columns);
    return map.rows * map.row_words() * kUnitBytes;
}

void convolve(const BinaryConvRun& run) {
    if (!uses_parities(*run.conv)) {
        return convolve_blocks(run);
    }
    const ParityMap map(*run.conv, run.rows, run.columns);
    BinaryConvRun on_parities = run;
    on_parities.input = map.fill(run);
    on_parities.row_bytes = map.row_words() * kUnitBytes;
    const Shape shape = shape_of(on_parities);
    for_each_row(on_parities, [&](const Block& row, int strips) { kParityRows[strips - 1](on_parities, shape, row); });
}

}  // namespace

const BinaryKernels& binary_kernels_avx512() {
    static const BinaryKernels kernels = {
        "avx512",    kUnitBytes, kLanes,        pack<F32Comparison>, pack<I16Comparison>,
        pack_planes, expand,     weights_bytes, prepare_weights,     scratch_bytes,
        convolve};
    return kernels;
}

}  // namespace bmx
