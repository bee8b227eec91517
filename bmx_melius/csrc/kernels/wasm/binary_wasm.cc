// Binary layers with the 128-bit vectors of WebAssembly. Lanes of 32 bits are filters, and activation words are
// broadcast, as with NEON.
//
// The layout of the prepared weights is [strip][tap][unit][filter]; a strip has up to 16 filters, 4 vectors. A block of
// a strip and 2 pixels has 8 sums, which fit in the 16 registers that an engine for x86-64 has. Each vector costs an
// exclusive or, a count of the bits of bytes and an addition of bytes. Sums of bytes are added to sums of 32 bits
// before they can overflow.
#include <wasm_simd128.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_pack_words.h"
#include "kernels/common/binary_word_lanes.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {

constexpr int kStripFilters = 4 * kVectorLanes;
constexpr int kMaxPixels = 2;
constexpr int kMaxUnits = 31;  // whose counts, 0 to 8 in a byte, add up in a byte

// --- packing

// Returns the comparisons of 8 elements, lanes of 16 bits.
v128_t at_least(const float* x, const float* threshold) {
    const v128_t low = wasm_f32x4_ge(wasm_v128_load(x), wasm_v128_load(threshold));
    const v128_t high = wasm_f32x4_ge(wasm_v128_load(x + 4), wasm_v128_load(threshold + 4));
    return wasm_i16x8_narrow_i32x4(low, high);
}

v128_t at_least(const int16_t* x, const int16_t* threshold) {
    return wasm_i16x8_ge(wasm_v128_load(x), wasm_v128_load(threshold));
}

struct Comparison {
    template <typename T>
    static uint32_t word(const T* x, const T* threshold) {
        uint32_t word = 0;
        for (int i = 0; i < 32; i += 16) {
            const v128_t low = at_least(x + i, threshold + i), high = at_least(x + i + 8, threshold + i + 8);
            word |= uint32_t(wasm_i8x16_bitmask(wasm_i8x16_narrow_i16x8(low, high))) << i;
        }
        return word;
    }
};

// Lanes are 4 pixels: the comparison of a channel is shifted into their words.
void pack_columns(const float* x, ptrdiff_t stride, int channels, const float* threshold, const uint32_t* flip,
                  uint32_t* words) {
    const v128_t highest = wasm_i32x4_splat(INT32_MIN);
    const int units = ceil_div(channels, 32);
    for (int unit = 0; unit < units; ++unit) {
        const int begin = unit * 32, count = min(32, channels - begin);
        const float* from = x + begin * stride;
        v128_t sum = wasm_i32x4_splat(0);
        for (int c = 0; c < count; ++c, from += stride) {  // bits move down from the highest place
            const v128_t bits = wasm_f32x4_ge(wasm_v128_load(from), wasm_f32x4_splat(threshold[begin + c]));
            sum = wasm_v128_or(wasm_u32x4_shr(sum, 1), wasm_v128_and(bits, highest));
        }
        uint32_t column[kVectorLanes];
        wasm_v128_store(column, wasm_u32x4_shr(sum, 32 - count));
        for (int i = 0; i < kVectorLanes; ++i) {
            words[i * units + unit] = column[i] ^ flip[unit];
        }
    }
}

void pack_planes(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                 const uint32_t* flip, uint32_t* words) {
    const ptrdiff_t units = ceil_div(channels, 32);
    int pixel = 0;
    for (; pixels - pixel >= kVectorLanes; pixel += kVectorLanes) {
        pack_columns(x + pixel, stride, channels, threshold, flip, words + pixel * units);
    }
    for (; pixel < pixels; ++pixel) {
        pack_column(x + pixel, stride, channels, threshold, flip, words + pixel * units);
    }
}

// --- convolution

struct Vectors {
    static v128_t results_of(v128_t sums, const Affine& affine) {
        return wasm_i32x4_sub(wasm_i32x4_splat(affine.constant), wasm_i32x4_mul(sums, wasm_i32x4_splat(affine.scale)));
    }
    static void store(v128_t results, float* output, const float* addend) {
        const v128_t numbers = wasm_f32x4_convert_i32x4(results);
        wasm_v128_store(output, addend ? wasm_f32x4_add(numbers, wasm_v128_load(addend)) : numbers);
    }
    static void store(v128_t results, int16_t* output, const int16_t* addend) {
        const v128_t numbers = wasm_i16x8_narrow_i32x4(results, results);
        const v128_t sums = addend ? wasm_i16x8_add(numbers, wasm_v128_load64_zero(addend)) : numbers;
        wasm_v128_store64_lane(output, sums, 0);
    }
};

// Adds sums of bytes to sums of 32 bits.
v128_t widened(v128_t totals, v128_t sums) {
    return wasm_i32x4_add(totals, wasm_u32x4_extadd_pairwise_u16x8(wasm_u16x8_extadd_pairwise_u8x16(sums)));
}

template <int kVectors, int kPixels>
void convolve_block(const BinaryConvRun& run, const Shape& shape, const Block& block) {
    const PiecesInMap& pieces = shape.pieces;
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strip->index * shape.strip_words;
    v128_t sums[kPixels][kVectors], totals[kPixels][kVectors];
    const auto each = [](const auto& body) {
        unrolled<kPixels>([&](auto p) { unrolled<kVectors>([&](auto v) { body(p, v); }); });
    };
    each([&](auto p, auto v) { sums[p][v] = totals[p][v] = wasm_i32x4_splat(0); });
    const auto widen = [&] {
        each([&](auto p, auto v) {
            totals[p][v] = widened(totals[p][v], sums[p][v]);
            sums[p][v] = wasm_i32x4_splat(0);
        });
    };
    int room = kMaxUnits;  // units that the sums of bytes can take
    for (int y = 0; y < pieces.rows; ++y) {
        for (int x = 0; x < pieces.columns; ++x) {
            const uint8_t* from = block.window + y * pieces.row_step + x * pieces.step;
            for (int left = pieces.units; left > 0;) {
                const int units = min(left, room);
                for (int unit = 0; unit < units; ++unit, from += kUnitBytes, weights += kVectors * kVectorLanes) {
                    v128_t words[kPixels];
                    unrolled<kPixels>([&](auto p) { words[p] = wasm_v128_load32_splat(from + p * shape.pixel_step); });
                    unrolled<kVectors>([&](auto v) {
                        const v128_t w = wasm_v128_load(weights + v * kVectorLanes);
                        unrolled<kPixels>([&](auto p) {
                            const v128_t counts = wasm_i8x16_popcnt(wasm_v128_xor(words[p], w));
                            sums[p][v] = wasm_i8x16_add(sums[p][v], counts);
                        });
                    });
                }
                left -= units;
                room -= units;
                if (room == 0) {
                    widen();
                    room = kMaxUnits;
                }
            }
        }
    }
    widen();
    store_block<Vectors>(run, shape.affine, block, totals);
}

template <int kVectors>
void convolve_strip(const BinaryConvRun& run, const Shape& shape, const Strip& strip) {
    const BinaryConv& conv = *run.conv;
    const uint8_t* input = run.input + strip.group * conv.group_units() * kUnitBytes;
    for (int row = 0; row < run.rows; ++row) {
        for (int column = 0; column < run.columns; column += kMaxPixels) {
            const uint8_t* window = input + row * conv.stride_h * run.row_bytes + column * shape.pixel_step;
            const Block block = {&strip, window, row * run.output_row + column * run.output_pixel};
            if (run.columns - column >= kMaxPixels) {
                convolve_block<kVectors, kMaxPixels>(run, shape, block);
            } else {
                convolve_block<kVectors, 1>(run, shape, block);
            }
        }
    }
}

void convolve(const BinaryConvRun& run) {
    for_each_strip_of_vectors<kStripFilters>(
        run, [&](auto vectors, const Shape& shape, const Strip& strip) { convolve_strip<vectors>(run, shape, strip); });
}

}  // namespace

const BinaryKernels& binary_kernels_wasm() {
    static const BinaryKernels kernels = word_lane_kernels<kStripFilters>(
        "wasm", pack_words<Comparison, float>, pack_words<Comparison, int16_t>, pack_planes, convolve);
    return kernels;
}

}  // namespace bmx
