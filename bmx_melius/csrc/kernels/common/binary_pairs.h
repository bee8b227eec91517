// Pairs of pixels of a packed map, for the lookups of the binary convolution: offsets of their tables, and
// numbers of nibbles with an odd number of set bits (see binary_lookup.h).
//
// A pair is a pixel of the left half of a row of the output and the pixel half a row to the right of it. Their windows
// consist of pairs of pixels of the map with the same distance, half as many as pixels; of neighbouring pixels there
// would be as many pairs as pixels. Each row of the map is prepared once for a block of filters, when the first window
// needs it.
#pragma once
#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_lookup.h"

namespace bmx {
namespace {

struct Pair {
    const uint16_t* offsets;  // of the tables of its window
    ptrdiff_t output;         // place of the results of its first pixel, in elements
    bool has_second;          // the last pair of a row has no second pixel if the number of columns is odd
    int odd[2];               // numbers of nibbles under the windows with an odd number of set bits
};

class PairRows {
  public:
    static size_t scratch_bytes(const BinaryConv& conv, int rows, int columns) {
        const Shape shape(conv, rows, columns);
        return sizeof(int) * (shape.row_windows + shape.rows * shape.row_odd) +
               sizeof(uint16_t) * shape.rows * shape.row_offsets + sizeof(Piece) * shape.max_pieces;
    }

    // Pairs of a group of channels.
    PairRows(const BinaryConvRun& run, int group)
        : run_(run),
          shape_(*run.conv, run.rows, run.columns),
          input_(run.input + group * run.conv->group_units() * kUnitBytes),
          odd_in_window_(static_cast<int*>(run.scratch)),
          odd_(odd_in_window_ + shape_.row_windows),
          offsets_(reinterpret_cast<uint16_t*>(odd_ + shape_.rows * shape_.row_odd)),
          pieces_(reinterpret_cast<Piece*>(offsets_ + shape_.rows * shape_.row_offsets)) {
        find_pieces();
    }

    // The number of pairs of a row of the output.
    int in_row() const { return shape_.pairs; }
    // The columns from the first to the second pixel of a pair.
    int distance() const { return shape_.pairs; }

    bool at_begin() const { return row_ == 0 && column_ == 0; }
    // Returns the next pair, row by row; prepares the windows of a row before its first pair.
    Pair next() {
        if (column_ == 0) {
            prepare_windows();
        }
        const int second = column_ + distance();
        const Pair pair = {offsets_ + row_ * run_.conv->stride_h * shape_.row_offsets +
                               column_ * run_.conv->stride_w * shape_.pixel_offsets,
                           row_ * run_.output_row + column_ * run_.output_pixel,
                           second < run_.columns,
                           {odd_in_window_[column_], odd_in_window_[second]}};
        if (++column_ == in_row()) {
            column_ = 0;
            ++row_;
        }
        return pair;
    }

    // The pieces of a window, in order.
    const Piece* pieces() const { return pieces_; }
    const Piece* pieces_end() const { return pieces_end_; }

  private:
    struct Shape {
        int pairs;                             // in a row of the output
        ptrdiff_t rows, columns;               // of the map
        ptrdiff_t row_pairs;                   // of the map
        ptrdiff_t pixel_offsets, row_offsets;  // a unit beyond the end of a row is written
        ptrdiff_t row_odd, row_windows;        // 8 numbers are added at a time
        ptrdiff_t max_pieces;

        Shape(const BinaryConv& conv, int output_rows, int output_columns)
            : pairs((output_columns + 1) / 2),
              rows(ptrdiff_t(output_rows - 1) * conv.stride_h + (conv.kernel_h - 1) * conv.dilation_h + 1),
              columns(ptrdiff_t(output_columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1),
              row_pairs(ptrdiff_t(pairs - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1),
              pixel_offsets(ptrdiff_t(conv.group_units()) * kUnitSteps),
              row_offsets(round_up(row_pairs * pixel_offsets + kUnitSteps, 32)),
              row_odd(round_up(columns + 8, 16)),
              row_windows(round_up(2 * pairs, 16)),
              max_pieces(ptrdiff_t(conv.kernel_h) * conv.kernel_w + units_of_window(conv) / kMaxUnits + 1) {}
    };

    void prepare_windows() {
        const BinaryConv& conv = *run_.conv;
        const int begin = row_ * conv.stride_h, end = begin + (conv.kernel_h - 1) * conv.dilation_h + 1;
        for (int y = begin > prepared_ ? begin : prepared_; y < end; ++y) {
            prepare(y);
        }
        prepared_ = end;
        add_odd();
    }

    void prepare(int y) {
        const ptrdiff_t distance = ptrdiff_t(shape_.pairs) * run_.conv->stride_w, units = run_.conv->group_units();
        const uint8_t* const from = input_ + y * run_.row_bytes;
        uint16_t* const to = offsets_ + y * shape_.row_offsets;
        // The last pixels have no partner if the last pair of the output has only one pixel.
        const ptrdiff_t pairs = min(shape_.row_pairs, shape_.columns > distance ? shape_.columns - distance : 0);
        if (run_.conv->groups == 1) {
            find_offsets(from, distance * run_.pixel_bytes, pairs * units, to);
            find_offsets(from + pairs * run_.pixel_bytes, 0, (shape_.row_pairs - pairs) * units,
                         to + pairs * shape_.pixel_offsets);
        } else {
            for (ptrdiff_t x = 0; x < shape_.row_pairs; ++x) {
                find_offsets(from + x * run_.pixel_bytes, x < pairs ? distance * run_.pixel_bytes : 0, units,
                             to + x * shape_.pixel_offsets);
            }
        }
        int* const odd = odd_ + y * shape_.row_odd;
        for (ptrdiff_t x = 0; x < shape_.columns; ++x) {
            odd[x] = count_odd(from + x * run_.pixel_bytes, units);
        }
    }

    // Finds the offsets of pairs of pixels that are `distance` bytes apart, two units at a time. The excess of an odd
    // number of units is overwritten later.
    static void find_offsets(const uint8_t* from, ptrdiff_t distance, ptrdiff_t units, uint16_t* to) {
        for (ptrdiff_t unit = 0; unit < units; unit += 2) {
            const uint8_t* const at = from + unit * kUnitBytes;
            store(to + unit * kUnitSteps, offsets_of(at, at + distance));
        }
    }

    // Divides the windows into pieces that are contiguous in the map, at most kMaxUnits until the end of a sum.
    void find_pieces() {
        const BinaryConv& conv = *run_.conv;
        const bool taps_touch = conv.dilation_w == 1;
        const int columns = taps_touch ? 1 : conv.kernel_w;
        const int units = conv.group_units() * (taps_touch ? conv.kernel_w : 1);
        Piece* piece = pieces_;
        int room = kMaxUnits;
        for (int row = 0; row < conv.kernel_h; ++row) {
            for (int column = 0; column < columns; ++column) {
                ptrdiff_t offset =
                    row * conv.dilation_h * shape_.row_offsets + column * conv.dilation_w * shape_.pixel_offsets;
                for (int left = units; left > 0; ++piece) {
                    const int some = min(left, room);
                    left -= some;
                    room -= some;
                    *piece = {offset, some, room == 0};
                    offset += some * kUnitSteps;
                    if (room == 0) {
                        room = kMaxUnits;
                    }
                }
            }
        }
        piece[-1].ends_sum = true;
        pieces_end_ = piece;
    }

    void add_odd() {
        const BinaryConv& conv = *run_.conv;
        int* const to = odd_in_window_;
        const int columns = run_.columns;
        const ptrdiff_t stride = conv.stride_w;
        std::memset(to, 0, columns * sizeof(int));
        for (int row = 0; row < conv.kernel_h; ++row) {
            const int* const odd = odd_ + (row_ * conv.stride_h + row * conv.dilation_h) * shape_.row_odd;
            for (int column = 0; column < conv.kernel_w; ++column) {
                const int* const from = odd + column * conv.dilation_w;
                if (stride == 1) {
                    for (int x = 0; x < columns; x += 8) {
                        store(to + x, add32(load(to + x), load(from + x)));
                    }
                    continue;
                }
                for (int x = 0; x < columns; ++x) {
                    to[x] += from[x * stride];
                }
            }
        }
        // The last pair may have no second pixel; what is computed from its number is not stored.
        std::memset(to + columns, 0, (shape_.row_windows - columns) * sizeof(int));
    }

    const BinaryConvRun& run_;
    const Shape shape_;
    const uint8_t* const input_;
    int *const odd_in_window_, *const odd_;
    uint16_t* const offsets_;
    Piece* const pieces_;
    Piece* pieces_end_ = nullptr;
    int row_ = 0, column_ = 0;  // of the next pair
    int prepared_ = 0;          // the number of rows of the map that have been prepared, or are not needed
};

}  // namespace
}  // namespace bmx
