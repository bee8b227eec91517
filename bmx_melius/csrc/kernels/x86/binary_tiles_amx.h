// How binary layers are divided into tiles for AMX: storage of the weights, and groups of pixels that are computed
// together.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 32;
constexpr int kChunk = kTileRowBytes;  // elements of a window per tile instruction

// --- weights: for each strip the tiles in the order of use, then for each strip the constants added to the sums

// Storage formats of the weights, with the numbers of tiles of pixels and of strips that are computed together (with
// one tile of sums for each pair).
//
// Bytes can be used directly but take eight times the memory of bits, and loading them dominates if few pixels share
// them. Bits are converted to bytes just before their use, for as many pixels as possible at once.
struct Bytes {
    static constexpr int kTiles = 2, kStrips = 2, kTileSize = kTileBytes;
    static void set(uint8_t* tile, int at, bool positive, int scale) { tile[at] = positive ? scale : -scale; }
};
struct Bits {
    static constexpr int kTiles = 4, kStrips = 1, kTileSize = kTileBytes / 8;
    static void set(uint8_t* tile, int at, bool positive, int) { tile[at / 8] |= positive << at % 8; }
};

int bytes_of(const Pieces& pieces) { return pieces.units * kUnitBytes; }
int chunks_of(const Pieces& pieces) { return ceil_div(bytes_of(pieces), kChunk); }
int tiles_of(const Pieces& pieces) { return pieces.rows * pieces.columns * chunks_of(pieces); }  // tiles of a strip

template <typename Form>
size_t strip_bytes(const BinaryConv& conv) {
    return size_t(tiles_of(pieces_of(conv))) * Form::kTileSize;
}

template <typename Form>
size_t tiles_bytes(const BinaryConv& conv) {
    return (count_strips(conv) * strip_bytes<Form>(conv) + 63) / 64 * 64;
}

template <typename Form>
size_t weights_bytes(const BinaryConv& conv) {
    return tiles_bytes<Form>(conv) + count_strips(conv) * kLanes * sizeof(int32_t);
}

template <typename Form>
void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const Pieces pieces = pieces_of(conv);
    const int units = conv.group_units();
    const int group_channels = conv.in_channels / conv.groups;
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * units;
    const int scale = conv.offset ? 1 : 2;
    uint8_t* tiles = static_cast<uint8_t*>(prepared);
    int32_t* constants = reinterpret_cast<int32_t*>(tiles + tiles_bytes<Form>(conv));
    std::memset(prepared, 0, weights_bytes<Form>(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const int lane = filter - strip.begin;
            int negative = 0;
            for (size_t i = 0; i < filter_words; ++i) {
                const uint32_t word = words[filter * filter_words + i];
                const size_t piece = i / pieces.units, first = i % pieces.units * 32;
                const int elements = min(32, group_channels - static_cast<int>(i % units) * 32);
                for (int e = 0; e < elements; ++e) {
                    const size_t k = first + e, chunk = piece * chunks_of(pieces) + k / kChunk;
                    const bool positive = word >> e & 1;
                    const int at = static_cast<int>(k % kChunk / 4 * kChunk + lane * 4 + k % 4);
                    Form::set(tiles + chunk * Form::kTileSize, at, positive, scale);
                    negative += !positive;
                }
            }
            *constants++ = conv.offset ? negative : 2 * negative - static_cast<int>(conv.weights_per_output());
        }
        constants += kLanes - (strip.end - strip.begin);
        tiles += strip_bytes<Form>(conv);
    });
}

// --- pixels

// The output as lines of pixels with equidistant windows, divided into tiles of nearly equal numbers of rows. The last
// tile of a line ends with the line and may repeat rows of the previous one.
struct Lines {
    int length, count;
    int pitch;        // pixels per output row in a line; more than columns if windows cross the ends of rows
    int tiles, rows;  // tiles per line, rows per tile
    ptrdiff_t line_step, pixel_step;  // bytes between windows in the map
};

int tiles_of(ptrdiff_t pixels) { return static_cast<int>(ceil_div(pixels, kTileRows)); }

Lines lines_of(const BinaryConvRun& run) {
    const ptrdiff_t row_step = run.conv->stride_h * run.row_bytes, pixel_step = run.conv->stride_w * run.pixel_bytes;
    Lines lines = {run.columns, run.rows, run.columns, 0, 0, row_step, pixel_step};
    if (row_step % pixel_step == 0) {
        const ptrdiff_t pitch = row_step / pixel_step, length = (run.rows - 1) * pitch + run.columns;
        if (tiles_of(length) < ptrdiff_t(run.rows) * tiles_of(run.columns)) {
            lines.length = static_cast<int>(length);
            lines.count = 1;
            lines.pitch = static_cast<int>(pitch);
        }
    }
    lines.tiles = tiles_of(lines.length);
    lines.rows = ceil_div(lines.length, lines.tiles);
    return lines;
}

// Tiles of pixels that are computed together.
struct Group {
    static constexpr int kMaxTiles = 4;
    int tiles = 0;
    const uint8_t* windows[kMaxTiles];  // windows of the first rows
    int pixels = 0;                     // pixels to store, without rows that cross the end of a map row or are repeated
    int source[kMaxTiles * kTileRows];  // index of the sums of a pixel
    ptrdiff_t output[kMaxTiles * kTileRows];
};

template <typename Form>
class Groups {
  public:
    explicit Groups(const BinaryConvRun& run) : run_(run), lines_(lines_of(run)) {}

    // Returns the next group; it has no tiles after the last one.
    void next(Group& group) {
        group.tiles = group.pixels = 0;
        for (; group.tiles < Form::kTiles && line_ < lines_.count; ++group.tiles) {
            const int first = min(tile_ * lines_.rows, lines_.length - lines_.rows);
            group.windows[group.tiles] = run_.input + line_ * lines_.line_step + first * lines_.pixel_step;
            for (int row = tile_ * lines_.rows - first; row < lines_.rows; ++row) {
                if (column_ < run_.columns) {
                    group.source[group.pixels] = sums_at(group.tiles, 0) + row * kLanes;
                    group.output[group.pixels++] = output_;
                }
                output_ += run_.output_pixel;
                if (++column_ == lines_.pitch) {
                    column_ = 0;
                    output_ += run_.output_row - lines_.pitch * run_.output_pixel;
                }
            }
            if (++tile_ == lines_.tiles) {
                tile_ = 0;
                ++line_;
            }
        }
    }

    static int sums_at(int tile, int strip) { return (Form::kStrips * tile + strip) * kTileRows * kLanes; }

  private:
    const BinaryConvRun& run_;
    const Lines lines_;
    int line_ = 0, tile_ = 0, column_ = 0;  // where the next group begins
    ptrdiff_t output_ = 0;
};

}  // namespace
}  // namespace bmx
