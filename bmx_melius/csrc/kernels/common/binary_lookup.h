// Counts of differing elements by table lookup, for the binary convolution with AVX2 and with NEON (dotprod).
//
// A step covers four elements (a nibble) of a pair of pixels and 32 filters, a strip: the activations of the pair
// select a table of 16 bytes, and a byte shuffle looks up one byte in it for each filter, with the weights as indices.
// The low half of the byte is the number of the first pixel, the high half of the second.
//
// The tables do not hold the number of differing elements d, which is 0 to 4, but a number e that is 0 to 2, so that
// more of them can be added before a half overflows. With |x| the number of set bits of x and odd(x) = |x| % 2,
//     d = |a| + |w| - 2 |a & w| = 4 - 2 e + odd(a) - odd(w),    e = |a & w| - |a| / 2 - (|w| + 1) / 2 + 2,
// where / rounds down. (e is |a & w| and a term of a and one of w. No such number has fewer values: its change from
// a = 0 to a = 15 is |w| and a constant.) The sum of 4 - odd(w) is a constant of the filter. The sum of odd(a) is one
// number for each pixel.
//
// The layout of the prepared weights is [strip]: constants of its filters, then [tap][unit][byte][32], where each byte
// of the map has a vector: a nibble of filters 0, 16, 1, 17, ...
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/unrolled.h"

#if defined(__AVX2__)
#include "kernels/x86/lookup_vectors_avx2.h"
#else
#include "kernels/arm/lookup_vectors_dotprod.h"
#endif

namespace bmx {
namespace {

constexpr int kUnitSteps = 8;
constexpr int kTableBits = 4, kTableBytes = 1 << kTableBits, kVectorBytes = 32, kStripFilters = 32;
constexpr int kSumSteps = 6;         // steps whose sum, up to 12, fits in a nibble
constexpr int kBlockUnits = 3;       // units of a whole number of such sums
constexpr int kMaxUnits = 15;        // units whose sum, up to 15 * 8 * 2, fits in a byte
constexpr int kWideWeights = 32767;  // with more weights, results need 32 bits

// The tables, indexed by a nibble of the first pixel and, times 16, of the second one.
struct alignas(64) Tables {
    uint8_t bytes[256 * kTableBytes] = {};

    static constexpr int count(int x) { return (x & 1) + (x >> 1 & 1) + (x >> 2 & 1) + (x >> 3 & 1); }
    static constexpr int number(int a, int w) { return count(a & w) - count(a) / 2 - (count(w) + 1) / 2 + 2; }
    constexpr Tables() {
        for (int pair = 0; pair < 256; ++pair) {
            for (int w = 0; w < kTableBytes; ++w) {
                bytes[pair * kTableBytes + w] =
                    static_cast<uint8_t>(number(pair & 15, w) + (number(pair >> 4, w) << 4));
            }
        }
    }
};
constexpr Tables kTables;

// Constant expressions: the compiler refuses an offset outside of the array, also one outside of a row of it.
constexpr const uint8_t* bytes_at(uint16_t offset) { return kTables.bytes + offset; }
static_assert(*bytes_at(255 * kTableBytes + 15) == 2 + (2 << 4), "the last entry: four equal bits of each pixel");

inline Table table_at(uint16_t offset) { return load_table(bytes_at(offset)); }

// --- weights

inline size_t units_of_window(const BinaryConv& conv) {
    return size_t(conv.kernel_h) * conv.kernel_w * conv.group_units();
}

struct StripWeights {
    int constants[kStripFilters];  // result of a filter where e and odd(a) are 0
    uint8_t steps[];
};

inline size_t bytes_of_strip(const BinaryConv& conv) {
    return sizeof(StripWeights) + units_of_window(conv) * kUnitSteps * kVectorBytes;
}

inline size_t weights_bytes(const BinaryConv& conv) { return count_strips<kStripFilters>(conv) * bytes_of_strip(conv); }

inline void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const size_t filter_words = units_of_window(conv);
    const Affine affine = affine_of_differing(conv);
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip<kStripFilters>(conv, [&](const Strip& strip) {
        uint8_t* const at = static_cast<uint8_t*>(prepared) + strip.index * bytes_of_strip(conv);
        StripWeights& to = *reinterpret_cast<StripWeights*>(at);
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const int i = filter - strip.begin, byte = i % kLanes * 2 + i / kLanes;
            int differing = 0;
            for (size_t k = 0; k < filter_words * kUnitSteps; ++k) {
                const int nibble = words[filter * filter_words + k / kUnitSteps] >> k % kUnitSteps * 4 & 15;
                to.steps[k * kVectorBytes + byte] = static_cast<uint8_t>(nibble);
                differing += 4 - Tables::count(nibble) % 2;
            }
            to.constants[i] = affine.constant - affine.scale * differing;
        }
    });
}

// --- sums (ByteSums, for up to kMaxUnits units, is in the headers of vectors)

// Adds `blocks` blocks of kSteps steps, in sums of kSum, of kPairs pairs of pixels and kStrips strips, `strip_bytes`
// apart. The weights of the first strip begin at `weights`. Pointers move on.
template <int kSteps, int kSum, int kStrips, int kPairs>
[[gnu::always_inline]] inline void add_blocks(const uint16_t*& first, const uint16_t*& second, int blocks,
                                              const uint8_t*& weights, size_t strip_bytes,
                                              ByteSums (&sums)[kPairs][kStrips]) {
    for (int left = blocks * (kSteps / kSum); left > 0; --left) {
        const uint16_t* const from[] = {first, second};
        Vector sum[kPairs][kStrips];
        unrolled<kSum>([&](auto step) {
            Vector w[kStrips];
            unrolled<kStrips>([&](auto s) { w[s] = load(weights + s * strip_bytes + step * kVectorBytes); });
            unrolled<kPairs>([&](auto p) {
                const Table table = table_at(from[p][step]);
                unrolled<kStrips>([&](auto s) {
                    const Vector numbers = look_up(table, w[s]);
                    sum[p][s] = step == 0 ? numbers : add8(sum[p][s], numbers);
                });
            });
        });
        unrolled<kPairs>([&](auto p) { unrolled<kStrips>([&](auto s) { sums[p][s].add(sum[p][s]); }); });
        first += kSum;
        second += kSum;
        weights += kSum * kVectorBytes;
    }
}

// Adds `units` units: blocks of whole sums, then the remaining units, each two sums.
template <int kStrips, int kPairs>
[[gnu::always_inline]] inline void add_units(const uint16_t* first, const uint16_t* second, int units,
                                             const uint8_t*& weights, size_t strip_bytes,
                                             ByteSums (&sums)[kPairs][kStrips]) {
    const int blocks = units / kBlockUnits, rest = units % kBlockUnits;
    if (blocks) {
        add_blocks<kBlockUnits * kUnitSteps, kSumSteps>(first, second, blocks, weights, strip_bytes, sums);
    }
    if (rest) {
        add_blocks<kUnitSteps, kUnitSteps / 2>(first, second, rest, weights, strip_bytes, sums);
    }
}

// A part of a window that is contiguous in both the map and the weights.
struct Piece {
    ptrdiff_t offset;  // where the offsets of its tables begin
    int units;
    bool ends_sum;  // a sum in bytes ends here
};

// Returns the first piece after the sum that begins with `piece`.
inline const Piece* end_of_sum(const Piece* piece) {
    while (!piece->ends_sum) {
        ++piece;
    }
    return piece + 1;
}

// Adds the pieces from `piece` up to the end of a sum, for kPairs pairs of pixels and kStrips strips. `offsets` belong
// to the window of the first pair, the second pair's are `to_second` behind them.
template <int kStrips, int kPairs>
[[gnu::always_inline]] inline void add_pieces(const Piece* piece, const uint16_t* offsets, ptrdiff_t to_second,
                                              const uint8_t* weights, size_t strip_bytes,
                                              ByteSums (&sums)[kPairs][kStrips]) {
    do {
        const uint16_t* const from = offsets + piece->offset;
        add_units(from, from + to_second, piece->units, weights, strip_bytes, sums);
    } while (!piece++->ends_sum);
}

// Sums of the filters in even or odd bytes of a strip, in 16 bits or, if kWide, in 32 bits. Vectors are assigned one by
// one: GCC copies structures of them by halves, and a load of a whole vector has to wait until these are in the cache.
template <bool kWide>
struct Sum {
    Vector parts[kWide ? 2 : 1];

    [[gnu::always_inline]] void set(Vector words) {
        if constexpr (kWide) {
            parts[0] = widen_unsigned<0>(words);
            parts[1] = widen_unsigned<1>(words);
        } else {
            parts[0] = words;
        }
    }
    [[gnu::always_inline]] void add(Vector words) {
        if constexpr (kWide) {
            parts[0] = add32(parts[0], widen_unsigned<0>(words));
            parts[1] = add32(parts[1], widen_unsigned<1>(words));
        } else {
            parts[0] = add16(parts[0], words);
        }
    }
};

// Sums of a strip for a pair of pixels: even and odd bytes of the first pixel, then of the second one.
template <bool kWide>
struct PairSums {
    Sum<kWide> of[4];

    [[gnu::always_inline]] void set(const ByteSums& sums) {
        Vector words[4];
        sums.separate(words);
        unrolled<4>([&](auto i) { of[i].set(words[i]); });
    }
    [[gnu::always_inline]] void add(const ByteSums& sums) {
        Vector words[4];
        sums.separate(words);
        unrolled<4>([&](auto i) { of[i].add(words[i]); });
    }
};

}  // namespace
}  // namespace bmx
