// Division of filters into strips by the vector kernels. A strip has up to 16 filters, one per 32-bit lane, or more if
// lanes are narrower. It lies within one group and does not cross a multiple of the maximum size, so that ranges of
// filters between such multiples consist of complete strips.
#pragma once
#include "kernels/common/binary_kernels.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kLanes = 16;

struct Strip {
    int index;  // index among all strips of the convolution
    int group;
    int begin, end;  // range of filters
};

template <int max_size = kLanes>
Strip strip_at(const BinaryConv& conv, int begin, int index) {
    const int group_filters = conv.out_channels / conv.groups;
    const int group = begin / group_filters;
    const int group_end = (group + 1) * group_filters;
    const int lanes_end = (begin / max_size + 1) * max_size;
    return {index, group, begin, group_end < lanes_end ? group_end : lanes_end};
}

// Calls visit(strip) for each strip, in order.
template <int max_size = kLanes, typename Visit>
void for_each_strip(const BinaryConv& conv, const Visit& visit) {
    for (int begin = 0, index = 0; begin < conv.out_channels; ++index) {
        const Strip strip = strip_at<max_size>(conv, begin, index);
        visit(strip);
        begin = strip.end;
    }
}

template <int max_size = kLanes>
int count_strips(const BinaryConv& conv) {
    int count = 0;
    for_each_strip<max_size>(conv, [&](const Strip&) { ++count; });
    return count;
}

// Calls visit(strips, count) for blocks of up to `max_count` neighbouring strips of one group, for the filters of the
// run.
template <int max_count, int max_filters = kLanes, typename Visit>
void for_each_strip_block(const BinaryConvRun& run, const Visit& visit) {
    Strip block[max_count];
    int count = 0;
    for_each_strip<max_filters>(*run.conv, [&](const Strip& strip) {
        if (strip.begin < run.filter_begin || strip.begin >= run.filter_end) {
            return;
        }
        if (count == max_count || (count > 0 && block[0].group != strip.group)) {
            visit(block, count);
            count = 0;
        }
        block[count++] = strip;
    });
    if (count > 0) {
        visit(block, count);
    }
}

// The parts of a window that are contiguous in both the map and the weights: rows of taps if adjacent taps are adjacent
// in memory, otherwise single taps.
struct Pieces {
    int rows, columns;  // pieces down and across the window
    int units;          // units of a piece
};

inline Pieces pieces_of(const BinaryConv& conv) {
    const bool taps_touch = conv.groups == 1 && conv.dilation_w == 1;
    return {conv.kernel_h, taps_touch ? 1 : conv.kernel_w, conv.group_units() * (taps_touch ? conv.kernel_w : 1)};
}

struct PiecesInMap : Pieces {
    ptrdiff_t row_step, step;  // strides in bytes
};

inline PiecesInMap pieces_in_map(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    return {pieces_of(conv), conv.dilation_h * run.row_bytes, conv.dilation_w * run.pixel_bytes};
}

// Coefficients of a result: constant - scale * (number of differing elements).
struct Affine {
    int constant, scale;
};

inline Affine affine_of_differing(const BinaryConv& conv) {
    return {static_cast<int>(conv.weights_per_output()), conv.offset ? 1 : 2};
}

}  // namespace
}  // namespace bmx
