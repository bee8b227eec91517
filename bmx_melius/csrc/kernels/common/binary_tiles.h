// Tiles of pixels of the binary convolution by lookup. A chunk of the weights, whose sums fit in bytes, is used for all
// pixels of a tile before the next chunk, so that it is read from the first-level cache; between chunks, sums in 16 or
// 32 bits are in memory.
#pragma once
#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_lookup.h"
#include "kernels/common/binary_pairs.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {

constexpr int kMaxStrips = 2,
              kMaxPairs = 2;    // 4 sums, 8 sums of bytes, 2 weights, a table, a temporary: 16 registers
constexpr int kMaxGroups = 14;  // of pairs in a tile: 56 pixels, whose sums take 7 KB
constexpr int kChunkBytes = kMaxUnits * kUnitSteps * kVectorBytes;  // of a strip
constexpr int kLineBytes = 64;                                      // of the cache

// Up to kMaxStrips strips of filters, for all pixels of a run.
struct Block {
    const BinaryConvRun& run;
    const Strip* strips;
    int count;
    Affine affine;
    size_t strip_bytes;
    const uint8_t* weights;
    alignas(32) int16_t constants[kMaxStrips][kStripFilters];  // used if results fit in 16 bits
    PairRows rows;

    Block(const BinaryConvRun& run, const Strip* strips, int count)
        : run(run),
          strips(strips),
          count(count),
          affine(affine_of_differing(*run.conv)),
          strip_bytes(bytes_of_strip(*run.conv)),
          weights(static_cast<const uint8_t*>(run.weights) + strips[0].index * strip_bytes),
          rows(run, strips[0].group) {
        for (int s = 0; s < count; ++s) {
            for (int i = 0; i < kStripFilters; ++i) {
                constants[s][i] = static_cast<int16_t>(strip(s).constants[i]);
            }
        }
    }

    const StripWeights& strip(int s) const { return *reinterpret_cast<const StripWeights*>(weights + s * strip_bytes); }
    bool complete() const { return strips[count - 1].end - strips[0].begin == count * kStripFilters; }

    const uint8_t* chunk(int index) const { return strip(0).steps + ptrdiff_t(index) * kChunkBytes; }

    // Loads a part of the weights of a chunk into the first-level cache. It is inlined because GCC removes calls of
    // functions that only prefetch.
    [[gnu::always_inline]] void prefetch(int index, int part, int parts) const {
        const int units = min(kMaxUnits, static_cast<int>(units_of_window(*run.conv)) - index * kMaxUnits);
        const int lines = units * (kUnitSteps * kVectorBytes / kLineBytes);
        for (int line = lines * part / parts; line < lines * (part + 1) / parts; ++line) {
            for (int s = 0; s < count; ++s) {
                __builtin_prefetch(chunk(index) + s * strip_bytes + line * kLineBytes);
            }
        }
    }
};

// Computes the results of a pixel from sums, for the filters in even or odd bytes of a strip.
template <bool kWide, bool kAdds>
class Results {
  public:
    Results(const Block& block, int odd_in_window)
        : block_(block),
          shift_(block.affine.scale),
          of_pixel_(kWide ? set32(odd_in_window * block.affine.scale) : set16(odd_in_window * block.affine.scale)) {}

    void store_to(float* output, const float* addend, const Sum<kWide>& sum, int strip, int odd) const {
        Vector both[2];
        if constexpr (kWide) {
            both[0] = total(sum.parts[0], strip, odd, 0);
            both[1] = total(sum.parts[1], strip, odd, 1);
        } else {
            const Vector results = words(sum.parts[0], strip, odd);
            both[0] = widen_signed<0>(results);
            both[1] = widen_signed<1>(results);
        }
        for (int half = 0; half < 2; ++half) {
            store_floats<kAdds>(output + half * 8, kAdds ? addend + half * 8 : nullptr, both[half]);
        }
    }
    void store_to(int16_t* output, const int16_t* addend, const Sum<kWide>& sum, int strip, int odd) const {
        const Vector result = words(sum.parts[0], strip, odd);
        store(output, kAdds ? add16(result, load(addend)) : result);
    }

  private:
    // 16 results in 16 bits, which must hold them.
    Vector words(Vector sum, int strip, int odd) const {
        const Vector constant = load(block_.constants[strip] + odd * kLanes);
        return subtract16(add16(shift_.of16(sum), constant), of_pixel_);
    }
    // 8 of them in 32 bits.
    Vector total(Vector sum, int strip, int odd, int half) const {
        const Vector constant = load(block_.strip(strip).constants + odd * kLanes + half * 8);
        return subtract32(add32(shift_.of32(sum), constant), of_pixel_);
    }

    const Block& block_;
    const Shift shift_;
    const Vector of_pixel_;
};

// Groups of kPairs pairs of pixels, which are computed at the same time.
template <int kStrips, int kPairs, bool kWide>
struct Tile {
    static constexpr int kMax = kPairs == kMaxPairs ? kMaxGroups : 1;
    int count;
    bool first;  // of the block: its weights may not be in a cache
    Pair pairs[kMax][kPairs];
    PairSums<kWide> sums[kMax][kPairs][kStrips];

    Tile(PairRows& rows, int count) : count(count), first(rows.at_begin()) {
        for (int i = 0; i < count; ++i) {
            for (Pair& pair : pairs[i]) {
                pair = rows.next();
            }
        }
    }
};

// Adds a chunk of the windows of kPairs pairs of pixels to `sums`, or, if it is the first one, sets them.
template <int kStrips, int kPairs, bool kWide>
[[gnu::noinline]] void add_chunk(const Piece* piece, const Pair (&pairs)[kPairs], const uint8_t* weights,
                                 size_t strip_bytes, bool first, PairSums<kWide> (&sums)[kPairs][kStrips]) {
    ByteSums chunk[kPairs][kStrips];
    add_pieces(piece, pairs[0].offsets, pairs[kPairs - 1].offsets - pairs[0].offsets, weights, strip_bytes, chunk);
    unrolled<kPairs>([&](auto p) {
        unrolled<kStrips>([&](auto s) { first ? sums[p][s].set(chunk[p][s]) : sums[p][s].add(chunk[p][s]); });
    });
}

// Stores the results of kPairs pairs of pixels for all filters of kStrips complete strips: calls
// place(pair, second) for the place of the first of them.
template <bool kAdds, int kStrips, int kPairs, bool kWide, typename T, typename Place>
[[gnu::always_inline]] inline void store_strips(const Block& block, const Pair (&pairs)[kPairs],
                                                const PairSums<kWide> (&sums)[kPairs][kStrips], T* output,
                                                const T* addend, const Place& place) {
    unrolled<kPairs>([&](auto p) {
        const Results<kWide, kAdds> results[] = {{block, pairs[p].odd[0]}, {block, pairs[p].odd[1]}};
        unrolled<kStrips>([&](auto s) {
            unrolled<4>([&](auto part) {
                const ptrdiff_t at = place(p, part / 2) + s * kStripFilters + part % 2 * kLanes;
                results[part / 2].store_to(output + at, kAdds ? addend + at : nullptr, sums[p][s].of[part], s,
                                           part % 2);
            });
        });
    });
}

// Stores a result of complete strips for the filters of the block.
template <int kStrips, typename T>
void store_some(const Block& block, const T* results, T* output, const T* addend) {
    for (int s = 0; s < kStrips; ++s, results += kStripFilters) {
        const Strip& strip = block.strips[s];
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const T result = results[filter - strip.begin];
            output[filter] = static_cast<T>(addend ? result + addend[filter] : result);
        }
    }
}

template <int kStrips, int kPairs, bool kWide, typename T>
[[gnu::noinline]] void store_results(const Block& block, const Pair (&pairs)[kPairs],
                                     const PairSums<kWide> (&sums)[kPairs][kStrips], T* outputs) {
    const ptrdiff_t to_second = block.rows.distance() * block.run.output_pixel;
    const auto place = [&](int pair, int second) { return pairs[pair].output + second * to_second; };
    const T* const addends = static_cast<const T*>(block.run.addend);
    bool complete = block.complete();
    for (const Pair& pair : pairs) {
        complete = complete && pair.has_second;
    }
    if (complete) {
        const int first = block.strips[0].begin;
        addends ? store_strips<true>(block, pairs, sums, outputs + first, addends + first, place)
                : store_strips<false>(block, pairs, sums, outputs + first, addends, place);
        return;
    }
    constexpr int kFilters = kStrips * kStripFilters;
    T results[kPairs][2][kFilters];
    store_strips<false>(block, pairs, sums, results[0][0], addends,
                        [](int pair, int second) { return (2 * pair + second) * kFilters; });
    for (int p = 0; p < kPairs; ++p) {
        for (int second = 0; second < (pairs[p].has_second ? 2 : 1); ++second) {
            const ptrdiff_t at = place(p, second);
            store_some<kStrips>(block, results[p][second], outputs + at, addends ? addends + at : nullptr);
        }
    }
}

// Loads the cache lines of the results, usually also of the addends, while sums are computed: these lines are far
// apart, and in large maps outside the second-level cache.
template <int kStrips, int kPairs, typename T>
[[gnu::always_inline]] inline void prefetch_results(const Block& block, const Pair (&pairs)[kPairs], const T* outputs) {
    const ptrdiff_t to_second = block.rows.distance() * block.run.output_pixel;
    for (const Pair& pair : pairs) {
        for (int s = 0; s < kStrips; ++s) {
            const T* const results = outputs + pair.output + block.strips[s].begin;
            __builtin_prefetch(results, 1);
            __builtin_prefetch(results + to_second, 1);
        }
    }
}

template <int kStrips, int kPairs, bool kWide, typename T>
void convolve_tile(const Block& block, Tile<kStrips, kPairs, kWide>& tile, T* outputs) {
    const Piece* piece = block.rows.pieces();
    for (int chunk = 0; piece != block.rows.pieces_end(); ++chunk) {
        const Piece* const next = end_of_sum(piece);
        const bool last = next == block.rows.pieces_end();
        for (int i = 0; i < tile.count; ++i) {
            if (last) {
                prefetch_results<kStrips>(block, tile.pairs[i], outputs);
            } else if (tile.first) {
                block.prefetch(chunk + 1, i, tile.count);
            }
            add_chunk(piece, tile.pairs[i], block.chunk(chunk), block.strip_bytes, chunk == 0, tile.sums[i]);
            if (last) {
                store_results(block, tile.pairs[i], tile.sums[i], outputs);
            }
        }
        piece = next;
    }
}

// Computes all pixels of a block.
template <int kStrips, bool kWide, typename T>
void convolve_block(Block& block, T* outputs) {
    block.prefetch(0, 0, 1);
    const ptrdiff_t pairs = ptrdiff_t(block.run.rows) * block.rows.in_row();
    ptrdiff_t groups = pairs / kMaxPairs;
    for (ptrdiff_t tiles = ceil_div(groups, kMaxGroups); tiles > 0; --tiles) {  // of about equal sizes
        const int count = static_cast<int>(ceil_div(groups, tiles));
        Tile<kStrips, kMaxPairs, kWide> tile(block.rows, count);
        convolve_tile(block, tile, outputs);
        groups -= count;
    }
    if (pairs % kMaxPairs) {
        Tile<kStrips, 1, kWide> tile(block.rows, 1);
        convolve_tile(block, tile, outputs);
    }
}

template <int kStrips>
void convolve_strips(Block& block) {
    if (block.run.conv->weights_per_output() > kWideWeights) {  // only float32 can hold such results
        convolve_block<kStrips, true>(block, static_cast<float*>(block.run.output));
    } else {
        visit_typed(block.run.type, block.run.output,
                    [&](auto* outputs) { convolve_block<kStrips, false>(block, outputs); });
    }
}

void convolve(const BinaryConvRun& run) {
    for_each_strip_block<kMaxStrips, kStripFilters>(run, [&](const Strip* strips, int count) {
        Block block(run, strips, count);
        count == 1 ? convolve_strips<1>(block) : convolve_strips<kMaxStrips>(block);
    });
}

}  // namespace
}  // namespace bmx
