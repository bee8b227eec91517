// Binary layers with NEON (aarch64). Lanes of 32 bits are filters, and activation words are broadcast.
//
// The layout of the prepared weights is [strip][tap][unit][filter]; a strip has up to 32 filters, 8 vectors. Blocks of
// a strip and up to 3 pixels (more of narrower strips) keep their sums in 24 registers. Each vector costs an exclusive
// or, a count of the bits of bytes and an addition of bytes. Sums of bytes are added to sums of 32 bits before they
// can overflow.
#include <arm_neon.h>

#include <cstring>

#include "kernels/arm/binary_pack_neon.h"
#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_word_lanes.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {

constexpr int kMaxVectors = 8, kStripFilters = kMaxVectors * kVectorLanes;
constexpr int kMaxUnits = 31;  // whose counts, 0 to 8 in a byte, add up in a byte

// Returns the number of pixels of a block. A pixel takes a register for its word and one for each of its sums; weights
// and temporary values take 5 of the 32. Each pixel also takes a general register.
constexpr int max_pixels(int vectors) { return vectors < 3 ? 7 : 27 / (vectors + 1); }

struct Vectors {
    static int32x4_t results_of(uint32x4_t sums, const Affine& affine) {
        return vmlsq_s32(vdupq_n_s32(affine.constant), vreinterpretq_s32_u32(sums), vdupq_n_s32(affine.scale));
    }
    static void store(int32x4_t results, float* output, const float* addend) {
        const float32x4_t numbers = vcvtq_f32_s32(results);
        vst1q_f32(output, addend ? vaddq_f32(numbers, vld1q_f32(addend)) : numbers);
    }
    static void store(int32x4_t results, int16_t* output, const int16_t* addend) {
        const int16x4_t numbers = vmovn_s32(results);
        vst1_s16(output, addend ? vadd_s16(numbers, vld1_s16(addend)) : numbers);
    }
};

// The loads of the inner loop. Compilers move loads ahead of the computations before them until sums no longer fit in
// registers (gcc 12); volatile statements keep their order.

using Memory = const uint8_t (*)[1 << 30];  // declares the memory that a statement reads, of any size

// Returns a word of activations in all lanes, and moves to the next one.
inline uint8x16_t next_word(const uint8_t*& from, Memory map) {
    uint8x16_t word;
    asm volatile("ld1r {%0.4s}, [%1], #4" : "=w"(word), "+r"(from) : "m"(*map));
    return word;
}

// Loads a pair of the vectors of weights of a unit. The first pair moves to the next unit.
template <int kVectors, int pair>
inline void next_weights(const uint32_t*& weights, uint8x16_t (&w)[2], Memory all) {
    constexpr int bytes = kVectors * 16, offset = pair * 32 - bytes;
    if constexpr (kVectors == 1) {
        asm volatile("ldr %q0, [%1], #16" : "=w"(w[0]), "+r"(weights) : "m"(*all));
    } else if constexpr (pair == 0) {
        asm volatile("ldp %q0, %q1, [%2], %3" : "=w"(w[0]), "=w"(w[1]), "+r"(weights) : "i"(bytes), "m"(*all));
    } else {
        asm volatile("ldp %q0, %q1, [%2, %3]" : "=w"(w[0]), "=w"(w[1]) : "r"(weights), "i"(offset), "m"(*all));
    }
}

// Adds the numbers of differing bits of `units` contiguous units to the sums of bytes. `next` and `weights` move on.
template <int kVectors, int kPixels>
[[gnu::always_inline]] inline void add_units(const uint8_t* (&next)[kPixels], Memory map, const uint32_t*& weights,
                                             Memory all_weights, int units, uint8x16_t (&sums)[kPixels][kVectors]) {
    const uint32_t* const end = weights + units * kVectors * kVectorLanes;
    while (weights != end) {
        uint8x16_t words[kPixels];
        unrolled<kPixels>([&](auto p) __attribute__((always_inline)) { words[p] = next_word(next[p], map); });
        unrolled<ceil_div(kVectors, 2)>([&](auto pair) __attribute__((always_inline)) {
            uint8x16_t w[2];
            next_weights<kVectors, pair>(weights, w, all_weights);
            unrolled<kVectors == 1 ? 1 : 2>([&](auto i) __attribute__((always_inline)) {
                asm volatile("" : "+w"(w[i]));
                unrolled<kPixels>([&](auto p) __attribute__((always_inline)) {
                    uint8x16_t& sum = sums[p][2 * pair + i];
                    sum = vaddq_u8(sum, vcntq_u8(veorq_u8(words[p], w[i])));
                });
            });
        });
    }
}

template <int kVectors, int kPixels>
void convolve_block(const BinaryConvRun& run, const Shape& shape, const Block& block) {
    const PiecesInMap& pieces = shape.pieces;
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + block.strip->index * shape.strip_words;
    const Memory map = reinterpret_cast<Memory>(block.window), all_weights = reinterpret_cast<Memory>(weights);
    uint8x16_t sums[kPixels][kVectors];
    uint32x4_t totals[kPixels][kVectors];
    const auto each = [](const auto& body) __attribute__((always_inline)) {
        unrolled<kPixels>([&](auto p) __attribute__((always_inline)) {
            unrolled<kVectors>([&](auto v) __attribute__((always_inline)) { body(p, v); });
        });
    };
    each([&](auto p, auto v) {
        sums[p][v] = vdupq_n_u8(0);
        totals[p][v] = vdupq_n_u32(0);
    });
    const auto widen = [&] {
        each([&](auto p, auto v) {
            totals[p][v] = vpadalq_u16(totals[p][v], vpaddlq_u8(sums[p][v]));
            sums[p][v] = vdupq_n_u8(0);
        });
        asm("" : "+m"(totals));  // in memory: registers are for the sums of bytes
    };
    int room = kMaxUnits;  // units that the sums of bytes can take
    for (int y = 0; y < pieces.rows; ++y) {
        for (int x = 0; x < pieces.columns; ++x) {
            const uint8_t* from[kPixels];
            unrolled<kPixels>(
                [&](auto p) { from[p] = block.window + y * pieces.row_step + x * pieces.step + p * shape.pixel_step; });
            for (int left = pieces.units; left > 0;) {
                const int units = min(left, room);
                const uint8_t* next[kPixels];
                unrolled<kPixels>([&](auto p) {
                    next[p] = from[p];
                    from[p] += units * kUnitBytes;
                    asm("" : "+r"(next[p]));  // otherwise gcc 12 copies pointers in the inner loop
                });
                add_units<kVectors>(next, map, weights, all_weights, units, sums);
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

using ConvolveBlock = void (*)(const BinaryConvRun&, const Shape&, const Block&);

// The kernels of strips of kVectors vectors, for 1, 2, ... pixels.
template <int kVectors, int... pixels>
const ConvolveBlock* blocks_of(std::integer_sequence<int, pixels...>) {
    static constexpr ConvolveBlock blocks[] = {convolve_block<kVectors, pixels + 1>...};
    return blocks;
}

// Computes a strip, in blocks of nearly equal numbers of pixels.
template <int kVectors>
void convolve_strip(const BinaryConvRun& run, const Shape& shape, const Strip& strip) {
    constexpr int block_pixels = max_pixels(kVectors);
    static const ConvolveBlock* const blocks = blocks_of<kVectors>(std::make_integer_sequence<int, block_pixels>());
    const BinaryConv& conv = *run.conv;
    const uint8_t* input = run.input + strip.group * conv.group_units() * kUnitBytes;
    const int count = ceil_div(run.columns, block_pixels);
    for (int row = 0; row < run.rows; ++row) {
        for (int i = 0; i < count; ++i) {
            const int begin = static_cast<int>(int64_t(run.columns) * i / count);
            const int end = static_cast<int>(int64_t(run.columns) * (i + 1) / count);
            const uint8_t* window = input + row * conv.stride_h * run.row_bytes + begin * shape.pixel_step;
            blocks[end - begin - 1](run, shape, {&strip, window, row * run.output_row + begin * run.output_pixel});
        }
    }
}

void convolve(const BinaryConvRun& run) {
    for_each_strip_of_vectors<kStripFilters>(
        run, [&](auto vectors, const Shape& shape, const Strip& strip) { convolve_strip<vectors>(run, shape, strip); });
}

}  // namespace

const BinaryKernels& binary_kernels_neon() {
    static const BinaryKernels kernels = word_lane_kernels<kStripFilters>(
        "neon", pack_words<Comparison, float>, pack_words<Comparison, int16_t>, pack_planes, convolve);
    return kernels;
}

}  // namespace bmx
