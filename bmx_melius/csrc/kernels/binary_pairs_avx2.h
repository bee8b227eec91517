// Pairs of pixels of a packed map, for the lookups of the binary convolution with AVX2: offsets of their tables, and
// numbers of half bytes with an odd number of set bits (see binary_lookup_avx2.h).
//
// Each row of the map is prepared once for a block of filters. Only the rows under one row of the output are kept, in a
// ring buffer, so that they stay in the first-level cache.
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/arithmetic.h"
#include "kernels/binary_kernels.h"
#include "kernels/binary_lookup_avx2.h"

namespace bmx {
namespace {

class PairRows {
  public:
    static size_t scratch_bytes(const BinaryConv& conv, int columns) {
        const Shape shape(conv, columns);
        return sizeof(int) * shape.output_odd + shape.rows * (sizeof(int) * shape.row_odd + shape.row_bytes()) +
               sizeof(Piece) * shape.most_pieces;
    }

    // Pairs of a group of channels.
    PairRows(const BinaryConvRun& run, int group)
        : run_(run),
          shape_(*run.conv, run.columns),
          input_(run.input + group * shape_.pixel_offsets),
          odd_in_window_(static_cast<int*>(run.scratch)),
          odd_(odd_in_window_ + shape_.output_odd),
          offsets_(reinterpret_cast<uint16_t*>(odd_ + shape_.rows * shape_.row_odd)),
          pieces_(reinterpret_cast<Piece*>(offsets_ + shape_.rows * shape_.row_offsets)) {}

    // Prepares the windows of a row of the output, after those of the rows above it.
    void move_to(int output_row) {
        const int begin = output_row * run_.conv->stride_h, end = begin + shape_.rows;
        for (int y = begin > prepared_ ? begin : prepared_; y < end; ++y) {
            prepare(y);
        }
        prepared_ = end;
        first_ = begin % shape_.rows;
        find_pieces();
        add_odd();
    }

    // The pair of pixels at the left end of the row of the output.
    PairWindow window(int column) const { return {pieces_, pieces_end_, offsets_ + column * pixel_step()}; }
    // The distance between the offsets of neighbouring windows.
    ptrdiff_t pixel_step() const { return run_.conv->stride_w * shape_.pixel_offsets; }
    // The number of half bytes under a window with an odd number of set bits.
    int odd_in_window(int column) const { return odd_in_window_[column]; }

  private:
    struct Shape {
        ptrdiff_t rows, columns;               // of the map under a row of the output
        ptrdiff_t pixel_offsets, row_offsets;  // a unit beyond the end of a row is written
        ptrdiff_t row_odd, output_odd;         // 8 numbers are added at a time
        ptrdiff_t most_pieces;

        Shape(const BinaryConv& conv, int output_columns)
            : rows((conv.kernel_h - 1) * conv.dilation_h + 1),
              columns(ptrdiff_t(output_columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1),
              pixel_offsets(ptrdiff_t(conv.group_units()) * kUnitSteps),
              row_offsets(round_up(columns * pixel_offsets + kUnitSteps, 32)),
              row_odd(round_up(columns + 8, 16)),
              output_odd(round_up(output_columns, 16)),
              most_pieces(ptrdiff_t(conv.kernel_h) * conv.kernel_w + units_of_window(conv) / kMostUnits + 1) {}
        size_t row_bytes() const { return row_offsets * sizeof(uint16_t); }
    };

    ptrdiff_t at(int kernel_row) const {  // in the ring buffer
        const ptrdiff_t row = first_ + kernel_row * run_.conv->dilation_h;
        return row < shape_.rows ? row : row - shape_.rows;
    }

    void prepare(int y) {
        const ptrdiff_t stride = run_.conv->stride_w, units = run_.conv->group_units();
        const uint8_t* from = input_ + y * run_.row_bytes;
        uint16_t* to = offsets_ + y % shape_.rows * shape_.row_offsets;
        int* const odd = odd_ + y % shape_.rows * shape_.row_odd;
        // The last pixels have no partner in the row, and no window needs one.
        const ptrdiff_t pairs = shape_.columns > stride ? shape_.columns - stride : 0;
        if (run_.conv->groups == 1) {
            find_offsets(from, stride * run_.pixel_bytes, pairs * units, to);
            find_offsets(from + pairs * run_.pixel_bytes, 0, (shape_.columns - pairs) * units,
                         to + pairs * shape_.pixel_offsets);
        }
        for (ptrdiff_t x = 0; x < shape_.columns; ++x, from += run_.pixel_bytes, to += shape_.pixel_offsets) {
            if (run_.conv->groups > 1) {
                find_offsets(from, x < pairs ? stride * run_.pixel_bytes : 0, units, to);
            }
            odd[x] = count_odd(from, units);
        }
    }

    // Finds the offsets of pairs of pixels that are `step` bytes apart, two units at a time. The excess of an odd
    // number of units is overwritten later.
    static void find_offsets(const uint8_t* from, ptrdiff_t step, ptrdiff_t units, uint16_t* to) {
        for (ptrdiff_t unit = 0; unit < units; unit += 2) {
            const uint8_t* const at = from + unit * kUnitBytes;
            const __m256i a = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
            const __m256i b = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + step)));
            store(to + unit * kUnitSteps,
                  _mm256_or_si256(_mm256_slli_epi16(a, kTableBits), _mm256_slli_epi16(b, kTableBits + 4)));
        }
    }

    // Returns the number of half bytes of a pixel with an odd number of set bits.
    static int count_odd(const uint8_t* from, ptrdiff_t units) {
        const __m128i is_odd = _mm_setr_epi8(0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0);
        __m128i count = _mm_setzero_si128();
        ptrdiff_t unit = 0;
        for (; unit + 1 < units; unit += 2) {
            const __m128i two = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + unit * kUnitBytes));
            count = _mm_add_epi32(count, _mm_sad_epu8(_mm_shuffle_epi8(is_odd, two), _mm_setzero_si128()));
        }
        if (unit < units) {
            const __m128i one = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(from + unit * kUnitBytes));
            count = _mm_add_epi32(count, _mm_sad_epu8(_mm_shuffle_epi8(is_odd, one), _mm_setzero_si128()));
        }
        return _mm_cvtsi128_si32(_mm_add_epi32(count, _mm_unpackhi_epi64(count, count)));
    }

    // Divides the windows into pieces that are contiguous in the map, at most kMostUnits until the end of a sum.
    void find_pieces() {
        const BinaryConv& conv = *run_.conv;
        const bool taps_touch = conv.dilation_w == 1;
        const int columns = taps_touch ? 1 : conv.kernel_w;
        const int units = conv.group_units() * (taps_touch ? conv.kernel_w : 1);
        Piece* piece = pieces_;
        int room = kMostUnits;
        for (int row = 0; row < conv.kernel_h; ++row) {
            for (int column = 0; column < columns; ++column) {
                ptrdiff_t offset = at(row) * shape_.row_offsets + column * conv.dilation_w * shape_.pixel_offsets;
                for (int left = units; left > 0; ++piece) {
                    const int some = least(left, room);
                    left -= some;
                    room -= some;
                    *piece = {offset, some, room == 0};
                    offset += some * kUnitSteps;
                    if (room == 0) {
                        room = kMostUnits;
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
            for (int column = 0; column < conv.kernel_w; ++column) {
                const int* const from = odd_ + at(row) * shape_.row_odd + column * conv.dilation_w;
                if (stride == 1) {
                    for (int x = 0; x < columns; x += 8) {
                        store(to + x, _mm256_add_epi32(load(to + x), load(from + x)));
                    }
                    continue;
                }
                for (int x = 0; x < columns; ++x) {
                    to[x] += from[x * stride];
                }
            }
        }
        // Blocks also read the numbers of pixels beyond the last column; what they compute from them is not stored.
        std::memset(to + columns, 0, (shape_.output_odd - columns) * sizeof(int));
    }

    const BinaryConvRun& run_;
    const Shape shape_;
    const uint8_t* const input_;
    int *const odd_in_window_, *const odd_;
    uint16_t* const offsets_;
    Piece* const pieces_;
    Piece* pieces_end_ = nullptr;
    ptrdiff_t prepared_ = 0;  // the number of rows of the map that have been prepared, or are not needed
    ptrdiff_t first_ = 0;     // place of the first row under the windows
};

}  // namespace
}  // namespace bmx
