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
// two rows of taps are one step. All rows of the map are treated as one line of pixels if the stride is 1, so that
// tiles are full even for small maps; windows across the end of a row are computed but not stored.
//
// Weights are stored as bits and expanded for a run, as many as fit in the second-level cache beside the map.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
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
        for (int unit = 0; unit < units; ++unit) {
            counts[pixel] += __builtin_popcount(words[pixel * stride + unit]);
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

// The parts of the scratch memory.
struct Scratch {
    size_t sums_of_taps, set_bits, offsets, bytes;  // the weights are at 0

    Scratch(const BinaryConv& conv, int rows, int columns) {
        const int strips = min(strips_at_once(conv) + 1, count_strips(conv)), steps = Steps(conv).count();
        const int width = (columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        sums_of_taps = size_t(strips) * steps * kTileBytes;
        set_bits = sums_of_taps + round_up(width * sizeof(int32_t), 64);
        offsets = set_bits + round_up(size_t(conv.groups) * rows * columns * sizeof(int32_t), 64);
        bytes = offsets + steps * sizeof(ptrdiff_t);
    }
};

size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) { return Scratch(conv, rows, columns).bytes; }

// --- convolution

// The order of the rows of tiles: pixels of the output, and windows across the ends of its rows.
struct Order {
    int columns, pitch;             // pixels of a row, and windows from row to row
    ptrdiff_t pixel_step, row_end;  // in the output, in elements: to the next window, and in addition after a row

    Order(const BinaryConvRun& run, const Lines& lines)
        : columns(run.columns),
          pitch(lines.pitch),
          pixel_step(run.output_pixel),
          row_end(run.output_row - lines.pitch * run.output_pixel) {}
};

// A position in that order.
struct Cursor {
    int column = 0;
    ptrdiff_t output = 0;  // index of filter 0 of the pixel
    ptrdiff_t pixel = 0;   // number of the pixel

    bool is_pixel(const Order& order) const { return column < order.columns; }

    void advance(const Order& order) {
        pixel += is_pixel(order);
        output += order.pixel_step;
        if (++column == order.pitch) {
            column = 0;
            output += order.row_end;
        }
    }
};

// Up to two tiles of pixels and up to two neighbouring strips of a group of filters.
struct Block {
    int tiles = 0;
    const uint8_t* windows[2];  // of the first rows
    int skipped[2];             // first rows that repeat rows of the previous tile
    Cursor begin;               // of the first row that is not skipped
    int strip_count;
    Strip strips[2];

    int first_row(int tile) const { return tile < tiles ? skipped[tile] : 0; }

    int rows_to_store(int rows) const {
        int count = 0;
        for (int tile = 0; tile < tiles; ++tile) {
            count += rows - skipped[tile];
        }
        return count;
    }
};

// The sums of a block, stored to the output a few rows at a time while the next block is computed.
template <typename T>
class Results {
  public:
    Results(const BinaryConvRun& run, const Lines& lines, const int32_t* constants, const int32_t* set_bits)
        : run_(run),
          order_(run, lines),
          rows_(lines.rows),
          constants_(constants),
          set_bits_(set_bits),
          doubled_(!run.conv->offset),
          output_(static_cast<T*>(run.output)),
          addend_(static_cast<const T*>(run.addend)) {}

    int32_t* sums(int tile, int strip) { return sums_[strip][tile]; }
    int left() const { return left_; }

    void begin(const Block& block) {
        block_ = block;
        left_ = block.rows_to_store(rows_);
        tile_ = 0;
        row_ = block.first_row(0);
        cursor_ = block.begin;
        if (left_) {
            set_bits_of_group_ = set_bits_ + ptrdiff_t(block.strips[0].group) * run_.rows * run_.columns;
            constants_of_strips_[0] = constants_ + block.strips[0].index * kLanes;
            constants_of_strips_[1] = constants_of_strips_[0] + (block.strip_count - 1) * kLanes;
            whole_pair_ = block.strip_count == 2 && block.strips[1].end - block.strips[0].begin == 2 * kLanes;
        }
    }

    void store_rows(int count) {
        count = min(count, left_);
        left_ -= count;
        if constexpr (sizeof(T) == sizeof(int16_t)) {
            if (whole_pair_) {
                return addend_ ? store_pairs<true>(count) : store_pairs<false>(count);
            }
        }
        for (; count > 0; --count) {
            for (int strip = 0; strip < block_.strip_count && cursor_.is_pixel(order_); ++strip) {
                store_strip(strip);
            }
            cursor_.advance(order_);
            if (++row_ == rows_) {
                row_ = block_.first_row(++tile_);
            }
        }
    }

  private:
    // The same for pairs of complete strips. What changes and what it depends on is in local variables, because the
    // compiler would load it from memory after each store.
    template <bool kAddend>
    void store_pairs(int count) {
        const __m512i constants =
            low_halves(_mm512_load_si512(constants_of_strips_[0]), _mm512_load_si512(constants_of_strips_[1]));
        int16_t* const output = static_cast<int16_t*>(run_.output) + block_.strips[0].begin;
        const int16_t* const addend = static_cast<const int16_t*>(run_.addend) + block_.strips[0].begin;
        const int32_t* const set_bits = set_bits_of_group_;
        const Order order = order_;
        const int doubled = doubled_, rows = rows_;
        const ptrdiff_t ahead = kPrefetched * order.pixel_step;
        Cursor cursor = cursor_;
        int tile = tile_, row = row_;
        for (; count > 0; --count) {
            if (cursor.is_pixel(order)) {
                _mm_prefetch(output + cursor.output + ahead, _MM_HINT_T1);
                const int32_t* sums = sums_[0][tile] + row * kLanes;
                const __m512i bits = _mm512_set1_epi16(static_cast<int16_t>(set_bits[cursor.pixel] << doubled));
                const __m512i products = low_halves(_mm512_load_si512(sums), _mm512_load_si512(sums + kStripSums));
                store_words<true>(_mm512_add_epi16(products, _mm512_sub_epi16(constants, bits)), output + cursor.output,
                                  kAddend ? addend + cursor.output : nullptr);
            }
            cursor.advance(order);
            if (++row == rows) {
                row = block_.first_row(++tile);
            }
        }
        cursor_ = cursor;
        tile_ = tile;
        row_ = row;
    }

    void store_strip(int strip) const {
        const ptrdiff_t at = cursor_.output + block_.strips[strip].begin;
        const __m512i bits = _mm512_set1_epi32(set_bits_of_group_[cursor_.pixel] << doubled_);
        const __m512i constant = _mm512_sub_epi32(_mm512_load_si512(constants_of_strips_[strip]), bits);
        store(_mm512_add_epi32(constant, _mm512_load_si512(sums_[strip][tile_] + row_ * kLanes)), output_ + at,
              addend_ ? addend_ + at : nullptr, lanes_of(block_.strips[strip]));
    }

    static constexpr int kStripSums = 2 * kTileRows * kLanes;
    // Results that are stored later are fetched so many windows ahead, because the lines of pixels are too far apart
    // for the processor to foresee.
    static constexpr int kPrefetched = 4 * kTileRows;

    alignas(64) int32_t sums_[2][2][kTileRows * kLanes];  // [strip][tile]
    const BinaryConvRun& run_;
    const Order order_;
    const int rows_;  // of a tile
    const int32_t *const constants_, *const set_bits_;
    const int doubled_;
    T* const output_;
    const T* const addend_;
    Block block_;
    int left_ = 0, tile_ = 0, row_ = 0;  // rows to store, and the first of them
    Cursor cursor_;
    const int32_t* set_bits_of_group_ = nullptr;
    const int32_t* constants_of_strips_[2] = {};
    bool whole_pair_ = false;
};

// Software-pipelined convolution: the sums of a block are stored from the tiles in turn with the first products of the
// next block, and its results are written during the other steps of the next block.
template <typename T>
class Convolution {
    // A tile store more than about 36 steps after the previous one takes 1000 additional cycles (measured on a
    // 4th-generation Xeon).
    static constexpr int kStoreEvery = 16;
    // Results are stored in bunches, because stores between tile loads delay these: 1 to 5 % less time than after each
    // step.
    static constexpr int kBunch = 4;

  public:
    explicit Convolution(const BinaryConvRun& run)
        : run_(run),
          lines_(lines_of(run)),
          layer_steps_(*run.conv),
          steps_(layer_steps_.count()),
          scratch_(*run.conv, run.rows, run.columns),
          weights_(static_cast<uint8_t*>(run.scratch)),
          offsets_(reinterpret_cast<ptrdiff_t*>(weights_ + scratch_.offsets)),
          results_(run, lines_, reinterpret_cast<const int32_t*>(prepared() + tiles_bytes(*run.conv)), set_bits()) {
        layer_steps_.find_offsets(run, offsets_);
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
        results_.store_rows(results_.left());
    }

  private:
    const uint8_t* prepared() const { return static_cast<const uint8_t*>(run_.weights); }
    int32_t* set_bits() const { return reinterpret_cast<int32_t*>(weights_ + scratch_.set_bits); }

    // Sums the set bits of the windows of all pixels.
    void sum_set_bits() const {
        const BinaryConv& conv = *run_.conv;
        const ptrdiff_t pitch = run_.row_bytes / run_.pixel_bytes;
        const int width = (run_.columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;
        int32_t* const of_columns = reinterpret_cast<int32_t*>(weights_ + scratch_.sums_of_taps);
        int32_t* to = set_bits();
        for (int group = 0; group < conv.groups; ++group) {
            for (int row = 0; row < run_.rows; ++row, to += run_.columns) {
                const int32_t* const from = run_.counts + group * run_.group_counts + row * conv.stride_h * pitch;
                std::memset(of_columns, 0, width * sizeof(int32_t));
                for (int y = 0; y < conv.kernel_h; ++y) {
                    add(from + y * conv.dilation_h * pitch, 1, width, of_columns);
                }
                std::memset(to, 0, run_.columns * sizeof(int32_t));
                for (int x = 0; x < conv.kernel_w; ++x) {
                    add(of_columns + x * conv.dilation_w, conv.stride_w, run_.columns, to);
                }
            }
        }
    }

    static void add(const int32_t* from, int stride, int count, int32_t* to) {
        if (stride == 1) {
            for (int i = 0; i < count; ++i) {
                to[i] += from[i];
            }
        } else {
            for (int i = 0; i < count; ++i) {
                to[i] += from[ptrdiff_t(i) * stride];
            }
        }
    }

    // Returns the number of the first strip at or after a filter.
    int strip_at_filter(int filter) const {
        int number = 0;
        for_each_strip(*run_.conv, [&](const Strip& strip) { number += strip.begin < filter; });
        return number;
    }

    // Computes all pixels for the blocks that begin with strips `begin` to `end` - 1. The last one may have one more.
    void compute_strips(int begin, int end) {
        expand_weights(begin, min(end + 1, count_strips(*run_.conv)));
        Block block;
        Cursor cursor;
        for (int tile = 0; tile < lines_.count * lines_.tiles; tile += block.tiles) {
            find_tiles(tile, cursor, block);
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
        const size_t rows = size_t(end - begin) * steps_ * kTileRows;
        for (size_t row = 0; row < rows; ++row) {
            uint64_t bits;
            std::memcpy(&bits, from + row * sizeof(bits), sizeof(bits));
            _mm512_store_si512(weights_ + row * kTileRowBytes, _mm512_maskz_mov_epi8(bits, set));
        }
    }

    // Finds up to two tiles, and moves `cursor` from their first row to the next tile.
    void find_tiles(int tile, Cursor& cursor, Block& block) const {
        const Order order(run_, lines_);
        block.begin = cursor;
        block.tiles = min(2, lines_.count * lines_.tiles - tile);
        for (int i = 0; i < block.tiles; ++i) {
            const int line = (tile + i) / lines_.tiles, in_line = (tile + i) % lines_.tiles;
            const int first = min(in_line * lines_.rows, lines_.length - lines_.rows);
            block.windows[i] = run_.input + line * lines_.line_step + first * lines_.pixel_step;
            block.skipped[i] = in_line * lines_.rows - first;
            for (int row = block.skipped[i]; row < lines_.rows; ++row) {
                cursor.advance(order);
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
        const uint8_t* const windows[2] = {block.windows[0] + group, block.windows[kTiles - 1] + group};
        const ptrdiff_t to_second = ptrdiff_t(steps_) * kTileBytes;
        multiply<kTiles, kStrips, true>(windows, offsets_[0], weights, to_second);
        results_.begin(computed_);
        const int rows_a_step = results_.left() / steps_ + 1;
        for (int step = 1; step < steps_; ++step) {
            weights += kTileBytes;
            multiply<kTiles, kStrips, false>(windows, offsets_[step], weights, to_second);
            if (++steps_without_store_ == kStoreEvery) {
                store_tile<4>(unused_);
                steps_without_store_ = 0;
            }
            if (step % kBunch == 0) {
                results_.store_rows(kBunch * rows_a_step);
            }
        }
        results_.store_rows(results_.left());
        computed_ = block;
    }

    // Adds the products of a step to the sums. In the first step of a block, each tile of sums is stored and cleared
    // before its first product.
    template <int kTiles, int kStrips, bool kFirst>
    void multiply(const uint8_t* const* windows, ptrdiff_t offset, const uint8_t* weights, ptrdiff_t to_second) {
        const ptrdiff_t pixel_step = lines_.pixel_step;
        load_tile_once<6>(weights);
        load_tile<4>(windows[0] + offset, pixel_step);
        begin_sums<0, kFirst>();
        _tile_dpbusd(0, 4, 6);
        begin_sums<1, kFirst>();
        if constexpr (kTiles > 1) {
            load_tile<5>(windows[1] + offset, pixel_step);
            _tile_dpbusd(1, 5, 6);
        }
        begin_sums<2, kFirst>();
        if constexpr (kStrips > 1) {
            load_tile_once<7>(weights + to_second);
            _tile_dpbusd(2, 4, 7);
        }
        begin_sums<3, kFirst>();
        if constexpr (kTiles > 1 && kStrips > 1) {
            _tile_dpbusd(3, 5, 7);
        }
    }

    template <int tile, bool kFirst>
    void begin_sums() {
        if constexpr (kFirst) {
            store_tile<tile>(results_.sums(tile % 2, tile / 2));
            clear_tile<tile>();
        }
    }

    // Stores the sums of the last block from the tiles.
    void store_sums() {
        begin_sums<0, true>();
        begin_sums<1, true>();
        begin_sums<2, true>();
        begin_sums<3, true>();
        results_.begin(computed_);
    }

    const BinaryConvRun& run_;
    const Lines lines_;
    const Steps layer_steps_;
    const int steps_;  // their number
    const Scratch scratch_;
    uint8_t* const weights_;  // expanded
    ptrdiff_t* const offsets_;
    Block computed_;  // the block whose sums are in the tiles
    Results<T> results_;
    int steps_without_store_ = 0;
    alignas(64) uint8_t unused_[kTileBytes];
};

void convolve(const BinaryConvRun& run) {
    visit_typed(run.type, run.output,
                [&](auto* output) { Convolution<std::decay_t<decltype(*output)>>(run).compute(); });
}

}  // namespace

const BinaryKernels& binary_kernels_amx() {
    const BinaryKernels& words = binary_kernels_avx512();
    static const BinaryKernels kernels = {
        "amx",  kUnitBytes,    kLanes,          kLargeBandPixels, words.pack_f32, words.pack_i16, words.pack_planes,
        expand, weights_bytes, prepare_weights, scratch_bytes,    convolve,       kPlaneUnits,    count};
    return kernels;
}

}  // namespace bmx
