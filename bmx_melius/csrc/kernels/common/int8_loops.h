// Loops of 8-bit layers without vectors of their own, which a compiler vectorizes for its target.
#pragma once
#include "kernels/common/int8_kernels.h"
#include "kernels/common/multiply_add.h"
#include "program/operation_table.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int rescaled(int64_t n, int64_t multiplier, int64_t offset, const Rescaling& r) {
    const int64_t exact =
        n * multiplier + offset * (int64_t(1) << (r.shift - kOffsetShift)) + (int64_t(1) << (r.shift - 1));
    const int64_t y = exact >> r.shift, limited = y > r.min ? y : r.min;
    return static_cast<int>(limited < r.max ? limited : r.max);
}

// Rounds to the nearest integer, ties to even. Magnitudes beyond 2^23, and NaN, become the limit.
inline int nearest(float x) {
    constexpr float kLimit = 8388608.0f;  // 2^23: adding it to a smaller magnitude of the same sign rounds to integers
    const float upper = x < kLimit ? x : kLimit, limited = upper > -kLimit ? upper : -kLimit;
    const float rounding = limited < 0 ? -kLimit : kLimit;
    return static_cast<int>((limited + rounding) - rounding);
}

template <class T>
void rescale_pixels(const RescaleRow& row, const T* x) {
    const Rescaling& r = row.rescaling;
    for (int i = 0; i < row.pixels; ++i, x += row.x_pixel) {
        uint8_t* __restrict y = row.y + i * row.y_pixel;
        for (int c = 0; c < row.channels; ++c) {
            const float number = static_cast<float>(x[c]);
            const int n = nearest(row.scale ? multiply_add(number, row.scale[c], row.shift[c]) : number);
            y[c] = static_cast<uint8_t>(rescaled(n, r.multiplier[c], r.offset[c], r));
        }
    }
}

void rescale_row(const RescaleRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) { rescale_pixels(row, x); });
}

// Stores the rescaled sums of a block, whose constants begin at `lane`.
void store_block(const Int8Row& row, const Int8Block& block, int lane, int pixel, const int32_t* sums) {
    const Rescaling r = row.rescaling.from(lane);
    for (int f = 0; f < block.filters; ++f) {
        const int y = rescaled(sums[f], r.multiplier[f], r.offset[f], r);
        const ptrdiff_t at = pixel * row.y_pixel + block.first_filter + f;
        if (row.to_bytes) {
            static_cast<uint8_t*>(row.y)[at] = static_cast<uint8_t>(y);
        } else {
            static_cast<int16_t*>(row.y)[at] = static_cast<int16_t>(y);
        }
    }
}

}  // namespace
}  // namespace bmx
