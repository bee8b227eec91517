#include "steps/pooling.h"

#include <algorithm>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

struct Range {
    int begin, end;
};

Range clipped(int begin, int length, int64_t size) {
    return {std::max(begin, 0), static_cast<int>(std::min<int64_t>(begin + length, size))};
}

void pool_slab(const FloatKernels& kernels, const View& view, const Value& map, const PoolWindow& window,
               const Epilogue& epilogue, int y, Range columns, float* output, ptrdiff_t stride, ptrdiff_t* offsets) {
    const Range rows = clipped(y * window.stride_h - window.pad_top, window.kernel_h, map.height);
    // Pixels in the middle have complete windows and are computed by one call.
    const int whole_begin = ceil_div(window.pad_left, window.stride_w);
    const int64_t room = map.width + window.pad_left - window.kernel_w;
    const int whole_end = room < 0 ? 0 : static_cast<int>(room / window.stride_w) + 1;
    for (int x = columns.begin; x < columns.end;) {
        const int pixels = x >= whole_begin && x < whole_end ? std::min(whole_end, columns.end) - x : 1;
        const Range under = clipped(x * window.stride_w - window.pad_left, window.kernel_w, map.width);
        int taps = 0;
        for (int row = rows.begin; row < rows.end; row++) {
            for (int column = under.begin; column < under.end; column++) {
                offsets[taps++] = (row - rows.begin) * view.row + (column - under.begin) * view.pixel;
            }
        }
        PoolRow row;
        row.type = view.type;
        row.x = view.at(rows.begin * view.row + under.begin * view.pixel);
        row.step = window.stride_w * view.pixel;
        row.window = offsets;
        row.window_size = taps;
        row.pools = window.pools;
        row.pixels = pixels;
        row.channels = view.channels;
        row.epilogue = epilogue;
        row.output = output;
        row.output_pixel = stride;
        kernels.pool_row(row);
        x += pixels;
        output += pixels * stride;
    }
}

}  // namespace

AverageWindow average_window(const Attributes& a, const Value& map, int64_t y, int64_t x) {
    const int64_t top = y * a.stride_h - a.pad_top, left = x * a.stride_w - a.pad_left;
    AverageWindow window;
    window.top = std::max<int64_t>(top, 0);
    window.left = std::max<int64_t>(left, 0);
    window.bottom = std::min(top + a.kernel_h, map.height);
    window.right = std::min(left + a.kernel_w, map.width);
    const int64_t rows =
        a.count_pad ? std::min(top + a.kernel_h, map.height + a.pad_bottom) - top : window.bottom - window.top;
    const int64_t columns =
        a.count_pad ? std::min(left + a.kernel_w, map.width + a.pad_right) - left : window.right - window.left;
    window.count = rows * columns;
    return window;
}

void pool_pixels(const FloatKernels& kernels, const Memory& memory, const Source& source, const PoolWindow& window,
                 const Normalization& normalization, int y, int begin, int end, float* output, ptrdiff_t stride,
                 ptrdiff_t* offsets) {
    int channel = 0;
    for (const Slab& slab : source.slabs) {
        pool_slab(kernels, memory.view(slab), memory.value(source.value), window, normalization.from(channel), y,
                  {begin, end}, output + channel, stride, offsets);
        channel += slab.channels;
    }
}

}  // namespace bmx
