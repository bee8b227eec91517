// Binary layers with AMX. Activations are bytes 0 or 1, weights are bytes 0 or 4 (or 2, if the result is the number of
// agreeing elements), and a tile instruction multiplies 64 elements of 16 pixels with 64 elements of 16 filters.
//
// With bits u of the activations and b of the weights, h = sum((2u - 1)(2b - 1)) = 4 sum(ub) - 2 sum(u) - 2 sum(b) + n.
// Tiles compute the first term. The second one, the set bits of a window, is summed from the counts of its pixels, and
// the others are a constant of the filter. Weights of +-2 would need no counts, but products of 0 and 4 take up to a
// fifth less time, because the processor's clock depends on its power.
//
// The map is stored as planes of 64 channels, so that the 16 rows of a tile are a contiguous, aligned kilobyte: other
// tiles take twice the time to load. If the number of units is odd, the last plane pairs rows of the map, and with it
// two rows of taps are one step. All rows of the map are treated as one line of pixels where that takes fewer tiles,
// for example if the stride is 1, so that tiles are full even for small maps; windows across the end of a row are
// computed, too, and their results are not kept.
//
// Weights are stored as bits and expanded, as many as fit in the second-level cache beside the map, and for the
// following runs if these are all.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/binary_store_avx512.h"
#include "kernels/x86/binary_tiles_amx.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kPlaneUnits = kChunk / kUnitBytes;

// --- packing: planes are expanded by `expand` of binary_tiles_amx.h

void count(const uint32_t* words, ptrdiff_t stride, int pixels, int units, int32_t* counts) {
    int pixel = 0;
    if (units == kPlaneUnits && stride == kPlaneUnits) {
        for (; pixel + 8 <= pixels; pixel += 8) {
            const __m512i of_pixels = _mm512_popcnt_epi64(_mm512_loadu_si512(words + pixel * stride));
            __m256i* const to = reinterpret_cast<__m256i*>(counts + pixel);
            _mm256_storeu_si256(to, _mm256_add_epi32(_mm256_loadu_si256(to), _mm512_cvtepi64_epi32(of_pixels)));
        }
    }
    for (; pixel < pixels; ++pixel) {
        const uint32_t* const from = words + pixel * stride;
        if (units == kPlaneUnits) {
            uint64_t bits;
            std::memcpy(&bits, from, sizeof(bits));
            counts[pixel] += __builtin_popcountll(bits);
        } else {
            counts[pixel] += __builtin_popcount(*from);
        }
    }
}

// --- steps

// The products of a window with a strip of filters: in each plane, one for each tap, or for each pair of taps in a
// plane of pairs.
struct Steps {
    int planes;  // of a group
    int whole;   // planes without pairs of rows
    int kernel_h, kernel_w;

    explicit Steps(const BinaryConv& conv)
        : planes(ceil_div(conv.group_units(), kPlaneUnits)),
          whole(conv.group_units() / kPlaneUnits),
          kernel_h(conv.kernel_h),
          kernel_w(conv.kernel_w) {}

    int in_plane(int plane) const { return (plane < whole ? kernel_h : ceil_div(kernel_h, 2)) * kernel_w; }
    int count() const { return whole * in_plane(0) + (planes > whole ? in_plane(whole) : 0); }

    // The step and the element in it of an element of a window.
    struct Place {
        int step, element;
    };
    Place place(int y, int x, int channel) const {
        const int plane = channel / kChunk, first = plane * kernel_h * kernel_w;
        if (plane < whole) {
            return {first + y * kernel_w + x, channel % kChunk};
        }
        return {first + y / 2 * kernel_w + x, y % 2 * kUnitBytes + channel % kChunk};
    }

    // Writes the offsets of the first group's steps in the map.
    void find_offsets(const BinaryConvRun& run, ptrdiff_t* offsets) const {
        for (int plane = 0; plane < planes; ++plane) {
            const int rows = plane < whole ? 1 : 2;  // of taps in a step
            for (int y = 0; y < kernel_h; y += rows) {
                for (int x = 0; x < kernel_w; ++x) {
                    *offsets++ = plane * run.plane_bytes + y * run.conv->dilation_h * run.row_bytes +
                                 x * run.conv->dilation_w * run.pixel_bytes;
                }
            }
        }
    }
};

// --- weights: for each strip the bits of its steps, then for each strip the constants added to the sums

constexpr int kTileBits = kTileBytes / 8;  // bytes of a tile of bits

size_t tiles_bytes(const BinaryConv& conv) { return size_t(count_strips(conv)) * Steps(conv).count() * kTileBits; }

size_t weights_bytes(const BinaryConv& conv) {
    return tiles_bytes(conv) + count_strips(conv) * kLanes * sizeof(int32_t);
}

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const Steps steps(conv);
    const int units = conv.group_units(), group_channels = conv.in_channels / conv.groups;
    uint8_t* tiles = static_cast<uint8_t*>(prepared);
    int32_t* constants = reinterpret_cast<int32_t*>(tiles + tiles_bytes(conv));
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const uint32_t* word = words + int64_t(filter) * conv.kernel_h * conv.kernel_w * units;
            int set = 0;
            for (int tap = 0; tap < conv.kernel_h * conv.kernel_w; ++tap, word += units) {
                for (int channel = 0; channel < group_channels; ++channel) {
                    if (word[channel / 32] >> channel % 32 & 1) {
                        const Steps::Place place = steps.place(tap / conv.kernel_w, tap % conv.kernel_w, channel);
                        const int at =
                            place.element / 4 * kTileRowBytes + (filter - strip.begin) * 4 + place.element % 4;
                        tiles[place.step * kTileBits + at / 8] |= 1 << at % 8;
                        ++set;
                    }
                }
            }
            *constants++ = static_cast<int>(conv.weights_per_output()) - (conv.offset ? 1 : 2) * set;
        }
        constants += kLanes - (strip.end - strip.begin);
        tiles += steps.count() * kTileBits;
    });
}

// --- scratch memory

constexpr int kLargeBandPixels = 1800;  // 2 to 3 % less time on 56 x 56 than with kBandPixels

constexpr size_t kExpandedBytes = 512 << 10;  // of weights

int strips_at_once(const BinaryConv& conv) {
    const size_t strips = kExpandedBytes / (size_t(Steps(conv).count()) * kTileBytes) / 2 * 2;
    return strips < 2 ? 2 : static_cast<int>(strips < 1024 ? strips : 1024);
}

// The parts of the scratch memory. Windows are numbered line by line.
struct Scratch {
    size_t sums_of_taps, set_bits, outputs, words, stored, offsets, bytes;  // the weights are at 0
    size_t windows;                                                         // at most

    Scratch(const BinaryConv& conv, int rows, int columns) {
        const int strips = min(strips_at_once(conv) + 1, count_strips(conv)), steps = Steps(conv).count();
        const int span = (conv.kernel_w - 1) * conv.dilation_w;
        windows = size_t(rows) * round_up(columns, kTileRows);
        sums_of_taps = size_t(strips) * steps * kTileBytes;
        set_bits = sums_of_taps + round_up((windows * conv.stride_w + span) * sizeof(int32_t), 64);
        outputs = set_bits + round_up(conv.groups * windows * sizeof(int32_t), 64);
        words = outputs + round_up(windows * sizeof(ptrdiff_t), 64);
        stored = words + round_up(windows * sizeof(int32_t), 64);
        offsets = stored + round_up(windows * sizeof(__mmask32), 64);
        bytes = offsets + steps * sizeof(ptrdiff_t);
    }
};

size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) { return Scratch(conv, rows, columns).bytes; }

// --- convolution

// What the results of windows depend on, by the number of the window.
struct Windows {
    int32_t* set_bits;   // for each group: their number, twice if the result is h
    ptrdiff_t* outputs;  // index of filter 0 of the pixel; for a window across the end of a row, of the next pixel
    int32_t* words;      // index of that pixel's first word of bits
    __mmask32* stored;   // all bits, or none for a window across the end of a row
    ptrdiff_t count;
};

// Up to two tiles of pixels and up to two neighbouring strips of a group of filters.
struct Block {
    int tiles = 0;
    const uint8_t* windows[2];  // of the first rows
    int skipped[2] = {};        // first rows that repeat rows of the previous tile
    ptrdiff_t first = 0;        // window of the first row that is not skipped
    int strip_count = 0;
    Strip strips[2];

    int rows_to_store(int rows) const {
        int count = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            count += rows - skipped[tile];
        }
        return count;
    }
};

constexpr int kMaxPackings = 8;  // that the results of a layer are packed for while they are in registers

// The sums of a block, and where its results are stored. `Rows` and `PairRows` store them a few rows at a time while
// the next block is computed.
template <typename T>
struct Results {
    static constexpr int kStripSums = 2 * kTileRows * kLanes;

    Results(const BinaryConvRun& run, int rows, const int32_t* constants, const Windows& windows)
        : rows(rows),
          constants(constants),
          windows(windows),
          output(static_cast<T*>(run.output)),
          addend(static_cast<const T*>(run.addend)),
          packings(run.packings),
          packing_count(run.packing_count) {}

    // Where the sums of a tile are stored: those of a second tile follow those of the first one, and replace its last
    // rows where it repeats them.
    int32_t* sums_of(int tile, int strip) { return sums[strip] + (tile ? rows - block.skipped[1] : 0) * kLanes; }
    const int32_t* set_bits() const { return windows.set_bits + block.strips[0].group * windows.count + block.first; }
    const int32_t* constants_of(int strip) const { return constants + block.strips[strip].index * kLanes; }
    // Whether the strips are two complete ones.
    bool whole_pair() const {
        return block.strip_count == 2 && block.strips[1].end - block.strips[0].begin == 2 * kLanes;
    }

    alignas(64) int32_t sums[2][kStripSums];  // by strip
    const int rows;                           // of a tile
    const int32_t* const constants;
    const Windows windows;
    T* const output;
    const T* const addend;
    const BinaryPacking* const packings;
    const int packing_count;
    Block block;
};

template <typename T>
class Rows {
  public:
    explicit Rows(const Results<T>& results)
        : results_(results),
          left_(results.block.rows_to_store(results.rows)),
          row_(results.block.skipped[0]),
          set_bits_(left_ ? results.set_bits() : nullptr),
          outputs_(results.windows.outputs + results.block.first),
          stored_(results.windows.stored + results.block.first) {}

    int left() const { return left_; }

    void store(int count) {
        count = min(count, left_);
        left_ -= count;
        for (; count > 0; --count, ++row_, ++set_bits_, ++outputs_, ++stored_) {
            for (int strip = 0; strip < results_.block.strip_count && *stored_; ++strip) {
                store_strip(results_.block.strips[strip], results_.constants_of(strip), results_.sums[strip]);
            }
        }
    }

  private:
    void store_strip(const Strip& strip, const int32_t* constants, const int32_t* sums) const {
        const ptrdiff_t at = *outputs_ + strip.begin;
        const __m512i constant = _mm512_sub_epi32(_mm512_load_si512(constants), _mm512_set1_epi32(*set_bits_));
        bmx::store(_mm512_add_epi32(constant, _mm512_load_si512(sums + row_ * kLanes)), results_.output + at,
                   results_.addend ? results_.addend + at : nullptr, lanes_of(strip));
    }

    const Results<T>& results_;
    int left_, row_;  // rows to store, and the first of them in the sums
    const int32_t* set_bits_;
    const ptrdiff_t* outputs_;
    const __mmask32* stored_;
};

// The same for pairs of complete strips of integers of 16 bits, packed as well.
//
// A window across the end of a row is stored like any other, to the place of the next pixel, whose own result follows:
// a branch would be predicted wrongly at each end of a row, and tiles would wait. What does not change is in an object
// that is local to the loop, because the compiler would load it from memory after each store.
template <bool kAddend, int kPackings>
class PairRows {
  public:
    explicit PairRows(const Results<int16_t>& results)
        : left_(results.block.rows_to_store(results.rows)),
          sums_(results.sums[0] + results.block.skipped[0] * kLanes),
          set_bits_(results.set_bits()),
          outputs_(results.windows.outputs + results.block.first),
          words_(results.windows.words + results.block.first),
          stored_(results.windows.stored + results.block.first),
          output_(results.output + results.block.strips[0].begin),
          addend_(kAddend ? results.addend + results.block.strips[0].begin : nullptr),
          constants_(
              low_halves(_mm512_load_si512(results.constants_of(0)), _mm512_load_si512(results.constants_of(1)))) {
        const int begin = results.block.strips[0].begin;
        for (int i = 0; i < kPackings; ++i) {
            const BinaryPacking& packing = results.packings[i];
            limits_[i] = _mm512_loadu_si512(packing.thresholds + begin);
            flips_[i] = packing.flips[begin / 32];
            bits_[i] = packing.words + begin / 32;
        }
    }

    int left() const { return left_; }

    [[gnu::always_inline]] void store(int count) {
        count = min(count, left_);
        left_ -= count;
        for (int i = 0; i < count; ++i) {
            const ptrdiff_t at = outputs_[i];
            const int32_t* const sums = sums_ + i * kLanes;
            const __m512i set_bits = _mm512_set1_epi16(static_cast<int16_t>(set_bits_[i]));
            const __m512i products =
                low_halves(_mm512_load_si512(sums), _mm512_load_si512(sums + Results<int16_t>::kStripSums));
            __m512i results = _mm512_add_epi16(products, _mm512_sub_epi16(constants_, set_bits));
            if constexpr (kAddend) {
                const __m512i addends = _mm512_loadu_si512(addend_ + at);
                results = _mm512_mask_add_epi16(addends, stored_[i], addends, results);
            }
            _mm512_storeu_si512(output_ + at, results);
            const ptrdiff_t word = words_[i];
#pragma GCC unroll 8
            for (int p = 0; p < kPackings; ++p) {
                bits_[p][word] = _mm512_cmpge_epi16_mask(results, limits_[p]) ^ flips_[p];
            }
        }
        sums_ += count * kLanes;
        set_bits_ += count;
        outputs_ += count;
        words_ += count;
        stored_ += count;
    }

  private:
    int left_;
    const int32_t *sums_, *set_bits_;
    const ptrdiff_t* outputs_;
    const int32_t* words_;
    const __mmask32* stored_;
    int16_t* const output_;
    const int16_t* const addend_;
    const __m512i constants_;
    __m512i limits_[kPackings ? kPackings : 1];
    uint32_t flips_[kPackings ? kPackings : 1];
    uint32_t* bits_[kPackings ? kPackings : 1];
};

// Software-pipelined convolution: the sums of a block are stored from the tiles in turn with the first products of the
// next block, and its results are written during the other steps of the next block.
template <typename T>
class Convolution {
    // A tile store more than about 36 steps after the previous one takes 1000 additional cycles (measured on a
    // 4th-generation Xeon).
    static constexpr int kStoreEvery = 16;

  public:
    explicit Convolution(const BinaryConvRun& run)
        : run_(run),
          lines_(lines_of(run)),
          layer_steps_(*run.conv),
          steps_(layer_steps_.count()),
          scratch_(*run.conv, run.rows, run.columns),
          weights_(static_cast<uint8_t*>(run.scratch)),
          offsets_(reinterpret_cast<ptrdiff_t*>(weights_ + scratch_.offsets)),
          windows_{reinterpret_cast<int32_t*>(weights_ + scratch_.set_bits),
                   reinterpret_cast<ptrdiff_t*>(weights_ + scratch_.outputs),
                   reinterpret_cast<int32_t*>(weights_ + scratch_.words),
                   reinterpret_cast<__mmask32*>(weights_ + scratch_.stored), ptrdiff_t(lines_.count) * lines_.length},
          results_(run, lines_.rows, reinterpret_cast<const int32_t*>(prepared() + tiles_bytes(*run.conv)), windows_) {
        layer_steps_.find_offsets(run, offsets_);
        find_outputs();
        sum_set_bits();
        configure_tiles(lines_.rows);
    }
    ~Convolution() { _tile_release(); }
    Convolution(const Convolution&) = delete;
    Convolution& operator=(const Convolution&) = delete;

    void compute() {
        const int at_once = strips_at_once(*run_.conv);
        int begin = strip_at_filter(run_.filter_begin), end = strip_at_filter(run_.filter_end);
        for (; begin < end; begin += at_once) {
            compute_strips(begin, min(begin + at_once, end));
        }
        store_sums();
        with_rows<true>([](auto rows) { rows.store(rows.left()); });
    }

  private:
    const uint8_t* prepared() const { return static_cast<const uint8_t*>(run_.weights); }

    // Finds where the results of the windows go.
    void find_outputs() const {
        const int columns = run_.columns, units = run_.conv->out_channels / 32;
        const int between = lines_.count == 1 ? lines_.pitch - columns : 0;  // windows across the end of a row
        const int32_t words_of_row = columns * units;
        Windows to = windows_;
        for (int row = 0; row < run_.rows; ++row) {
            const int across = row + 1 < run_.rows ? between : 0;
            fill(to.outputs, columns, row * run_.output_row, run_.output_pixel);
            fill(to.outputs + columns, across, (row + 1) * run_.output_row, ptrdiff_t(0));
            fill(to.words, columns, row * words_of_row, units);
            fill(to.words + columns, across, (row + 1) * words_of_row, 0);
            fill(to.stored, columns, ~__mmask32(0), __mmask32(0));
            fill(to.stored + columns, across, __mmask32(0), __mmask32(0));
            to.outputs += columns + across;
            to.words += columns + across;
            to.stored += columns + across;
        }
    }

    template <typename Number>
    static void fill(Number* to, int count, Number first, Number step) {
        for (int i = 0; i < count; ++i) {
            to[i] = first + i * step;
        }
    }

    // Sums the set bits of the windows.
    void sum_set_bits() const {
        const BinaryConv& conv = *run_.conv;
        const ptrdiff_t pitch = run_.row_bytes / run_.pixel_bytes;
        const int span = (lines_.length - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        int32_t* const of_columns = reinterpret_cast<int32_t*>(weights_ + scratch_.sums_of_taps);
        int32_t* to = windows_.set_bits;
        for (int group = 0; group < conv.groups; ++group) {
            for (int line = 0; line < lines_.count; ++line, to += lines_.length) {
                const int32_t* const from = run_.counts + group * run_.group_counts + line * conv.stride_h * pitch;
                std::memset(of_columns, 0, span * sizeof(int32_t));
                for (int y = 0; y < conv.kernel_h; ++y) {
                    add(from + y * conv.dilation_h * pitch, 1, span, of_columns);
                }
                std::memset(to, 0, lines_.length * sizeof(int32_t));
                for (int x = 0; x < conv.kernel_w; ++x) {
                    add(of_columns + x * conv.dilation_w, conv.stride_w, lines_.length, to);
                }
                if (!conv.offset) {
                    add(to, 1, lines_.length, to);
                }
            }
        }
    }

    // Counts where a map has no pixels are arbitrary, so that sums may overflow.
    static void add(const int32_t* from, int stride, int count, int32_t* to) {
        const auto add_all = [&](ptrdiff_t step) {
            for (int i = 0; i < count; ++i) {
                to[i] = static_cast<int32_t>(static_cast<uint32_t>(to[i]) + static_cast<uint32_t>(from[i * step]));
            }
        };
        stride == 1 ? add_all(1) : add_all(stride);
    }

    // Returns the number of the first strip at or after a filter.
    int strip_at_filter(int filter) const {
        int number = 0;
        for_each_strip(*run_.conv, [&](const Strip& strip) { number += strip.begin < filter; });
        return number;
    }

    // Computes all pixels for the blocks that begin with strips `begin` to `end` - 1. The last one may have one more.
    void compute_strips(int begin, int end) {
        const bool all = end - begin == count_strips(*run_.conv);  // otherwise others have been expanded since
        if (!run_.continues || !all) {
            expand_weights(begin, min(end + 1, count_strips(*run_.conv)));
        }
        Block block;
        for (int tile = 0; tile < lines_.count * lines_.tiles; tile += block.tiles) {
            find_tiles(tile, block);
            for_each_strip_block<2>(run_, [&](const Strip* strips, int count) {
                if (strips[0].index >= begin && strips[0].index < end) {
                    block.strip_count = count;
                    block.strips[0] = strips[0];
                    block.strips[1] = strips[count - 1];
                    compute(block, weights_ + size_t(strips[0].index - begin) * steps_ * kTileBytes);
                }
            });
        }
    }

    void expand_weights(int begin, int end) const {
        const __m512i set = _mm512_set1_epi8(run_.conv->offset ? 2 : 4);
        const uint8_t* from = prepared() + size_t(begin) * steps_ * kTileBits;
        uint8_t* to = weights_;
        const uint8_t* const to_end = to + size_t(end - begin) * steps_ * kTileBytes;
        for (; to != to_end; to += kTileBytes, from += kTileBits) {
#pragma GCC unroll 16
            for (int row = 0; row < kTileRows; ++row) {
                uint64_t bits;
                std::memcpy(&bits, from + row * sizeof(bits), sizeof(bits));
                _mm512_store_si512(to + row * kTileRowBytes, _mm512_maskz_mov_epi8(bits, set));
            }
        }
    }

    void find_tiles(int tile, Block& block) const {
        block.tiles = min(2, lines_.count * lines_.tiles - tile);
        block.skipped[1] = 0;
        for (int i = 0; i < block.tiles; ++i) {
            const int line = (tile + i) / lines_.tiles, in_line = (tile + i) % lines_.tiles;
            const int begin = in_line * lines_.rows, first = min(begin, lines_.length - lines_.rows);
            block.windows[i] = run_.input + line * lines_.line_step + first * lines_.pixel_step;
            block.skipped[i] = begin - first;
            if (i == 0) {
                block.first = ptrdiff_t(line) * lines_.length + begin;
            }
        }
    }

    void compute(const Block& block, const uint8_t* weights) {
        if (block.tiles == 2) {
            block.strip_count == 2 ? compute<2, 2>(block, weights) : compute<2, 1>(block, weights);
        } else {
            block.strip_count == 2 ? compute<1, 2>(block, weights) : compute<1, 1>(block, weights);
        }
    }

    template <int kTiles, int kStrips>
    void compute(const Block& block, const uint8_t* weights) {
        const ptrdiff_t group = block.strips[0].group * ptrdiff_t(layer_steps_.planes) * run_.plane_bytes;
        const Factors factors = {block.windows[0] + group, block.windows[kTiles - 1] + group, lines_.pixel_step,
                                 weights, ptrdiff_t(steps_) * kTileBytes};
        add_byte_products<kTiles, kStrips>([&](auto tile) BMX_INLINED { factors.template load<tile>(offsets_[0]); },
                                           [&](auto tile) BMX_INLINED { begin_sums<tile>(); });
        with_rows<kStrips == 2>([&](auto rows) { add_other_steps<kTiles, kStrips>(factors, rows); });
        results_.block = block;
    }

    // The factors of a step: up to two tiles of pixels and up to two strips.
    struct Factors {
        const uint8_t *first_window, *second_window;
        ptrdiff_t pixel_step;
        const uint8_t* weights;
        ptrdiff_t to_second;  // from the weights of a strip to those of the next one

        template <int tile>
        void load(ptrdiff_t offset) const {
            if constexpr (tile < kFirstLaneTile) {
                load_tile<tile>((tile == 4 ? first_window : second_window) + offset, pixel_step);
            } else {
                load_tile_once<tile>(weights + (tile == 6 ? 0 : to_second));
            }
        }
    };

    // Adds the products of all steps but the first one, and stores rows meanwhile.
    template <int kTiles, int kStrips, typename AnyRows>
    [[gnu::always_inline]] void add_other_steps(Factors factors, AnyRows& rows) {
        const int steps = steps_, rows_a_step = rows.left() / steps + 1;
        const ptrdiff_t* const offsets = offsets_;
        int without_store = steps_without_store_;
        for (int step = 1; step < steps; ++step) {
            factors.weights += kTileBytes;
            add_byte_products<kTiles, kStrips>(
                [&](auto tile) BMX_INLINED { factors.template load<tile>(offsets[step]); }, [](auto) {});
            if (++without_store == kStoreEvery) {
                store_tile<4>(unused_);
                without_store = 0;
            }
            rows.store(rows_a_step);
        }
        rows.store(rows.left());
        steps_without_store_ = without_store;
    }

    // Calls use(rows) with the rows of the last block. kPairs: whether the present one is a pair of strips. A single
    // one after a pair, whose rows are then not packed, is only in layers for which max_packings is 0.
    template <bool kPairs, typename Use>
    void with_rows(const Use& use) {
        if constexpr (kPairs && sizeof(T) == sizeof(int16_t)) {
            if (results_.whole_pair()) {
                return results_.addend ? with_pair_rows<true>(use) : with_pair_rows<false>(use);
            }
        }
        use(Rows<T>(results_));
    }

    template <bool kAddend, int kPackings = kMaxPackings, typename Use>
    void with_pair_rows(const Use& use) {
        if constexpr (kPackings > 0) {
            if (results_.packing_count < kPackings) {
                return with_pair_rows<kAddend, kPackings - 1>(use);
            }
        }
        use(PairRows<kAddend, kPackings>(results_));
    }

    // Stores a tile of sums of the last block, and clears it.
    template <int tile>
    void begin_sums() {
        store_tile<tile>(results_.sums_of(tile % 2, tile / 2));
        clear_tile<tile>();
    }

    // Stores the sums of the last block from the tiles.
    void store_sums() {
        begin_sums<0>();
        begin_sums<1>();
        begin_sums<2>();
        begin_sums<3>();
    }

    const BinaryConvRun& run_;
    const Lines lines_;
    const Steps layer_steps_;
    const int steps_;  // their number
    const Scratch scratch_;
    uint8_t* const weights_;  // expanded
    ptrdiff_t* const offsets_;
    const Windows windows_;
    Results<T> results_;  // of the block whose sums are in the tiles
    int steps_without_store_ = 0;
    alignas(64) uint8_t unused_[kTileBytes];
};

void convolve(const BinaryConvRun& run) {
    visit_typed(run.type, run.output,
                [&](auto* output) { Convolution<std::decay_t<decltype(*output)>>(run).compute(); });
}

int max_packings(const BinaryConv& conv) {
    return conv.out_channels / conv.groups % (2 * kLanes) == 0 ? kMaxPackings : 0;
}

}  // namespace

const BinaryKernels& binary_kernels_amx() {
    const BinaryKernels& words = binary_kernels_avx512();
    static const BinaryKernels kernels = {"amx",
                                          kUnitBytes,
                                          kLanes,
                                          kLargeBandPixels,
                                          words.pack_f32,
                                          words.pack_i16,
                                          words.pack_planes,
                                          expand,
                                          weights_bytes,
                                          prepare_weights,
                                          scratch_bytes,
                                          convolve,
                                          kPlaneUnits,
                                          count,
                                          max_packings};
    return kernels;
}

}  // namespace bmx
