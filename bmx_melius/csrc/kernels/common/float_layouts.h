// From planes to pixels and back: blocks of kWidth channels and columns are transposed in registers.
#pragma once
#include "kernels/common/float_pooling.h"

namespace bmx {
namespace {

// column(c, i, count) returns the vector of channel c and `count` columns, starting at i. in_registers: it is unrolled
// for complete blocks of channels, which otherwise go through an array in memory.
template <bool in_registers, class Column>
void to_pixels(int columns, int channels, float* y, ptrdiff_t pixel_stride, const Column& column) {
    for (int i = 0; i < columns; i += kWidth) {
        const int width = min(kWidth, columns - i);
        for (int c = 0; c < channels; c += kWidth) {
            const int height = min(kWidth, channels - c);
            float* to = y + i * pixel_stride + c;
            Real square[kWidth];
            if (in_registers && height == kWidth) {
                unrolled<kWidth>([&](auto j) { square[j] = column(c + j, i, width); });
                Lanes::transpose(square);
                unrolled<kWidth>([&](auto j) {
                    if (j < width) {
                        Lanes::store(to + j * pixel_stride, square[j]);
                    }
                });
                continue;
            }
            for (int j = 0; j < kWidth; ++j) {
                square[j] = j < height ? column(c + j, i, width) : Lanes::zero();
            }
            Lanes::transpose(square);
            for (int j = 0; j < width; ++j) {
                store(to + j * pixel_stride, square[j], height);
            }
        }
    }
}

void planar_to_pixels(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                      ptrdiff_t pixel_stride) {
    to_pixels<true>(columns, channels, y, pixel_stride,
                    [=](int c, int i, int count) { return load(x + c * channel_stride + i, count); });
}

constexpr int kWrittenAhead = 64;  // elements of a plane prefetched before they are written

template <class T>
void pixels_to_planar_of(const T* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                         ptrdiff_t channel_stride) {
    // Stores are aligned from the second one on, for all channels if the planes are whole vectors.
    const int first = kWidth - static_cast<int>(reinterpret_cast<uintptr_t>(y) / sizeof(float) % kWidth);
    for (int c = 0; c < channels; c += kWidth) {
        const int height = min(kWidth, channels - c);
        for (int i = 0, width; i < pixels; i += width) {
            width = min(i == 0 ? first : kWidth, pixels - i);
            Real square[kWidth];
            for (int j = 0; j < kWidth; ++j) {
                square[j] = j < width ? load_number(x + (i + j) * pixel_stride + c, height) : Lanes::zero();
            }
            Lanes::transpose(square);
            for (int j = 0; j < height; ++j) {
                store(y + (c + j) * channel_stride + i, square[j], width);
                __builtin_prefetch(y + (c + j) * channel_stride + i + kWrittenAhead, 1);
            }
        }
    }
}

void pixels_to_planar(DataType type, const void* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                      ptrdiff_t channel_stride) {
    visit_typed(type, x, [=](const auto* numbers) {
        pixels_to_planar_of(numbers, pixel_stride, pixels, channels, y, channel_stride);
    });
}

// Returns kWidth columns of the maximum over windows of width 3 with stride 2. Vectors are loaded from the center of
// the first window on, which is aligned if a map is padded by one element. constant_h: window_h if known at compile
// time, otherwise 0.
template <int constant_h>
Real pooled_by_two(const float* const* rows, int window_h, ptrdiff_t corner) {
    Real before = Lanes::broadcast(rows[0][corner]);
    Real first = Lanes::load(rows[0] + corner + 1), second = Lanes::load(rows[0] + corner + 1 + kWidth);
    for (int h = 1; h < (constant_h ? constant_h : window_h); ++h) {
        const float* row = rows[h] + corner;
        before = Lanes::max(before, Lanes::broadcast(row[0]));
        first = Lanes::max(first, Lanes::load(row + 1));
        second = Lanes::max(second, Lanes::load(row + 1 + kWidth));
    }
    const Real right = Lanes::odd(first, second);
    const Real best = Lanes::max(Lanes::max(Lanes::shifted(before, right), Lanes::even(first, second)), right);
    return without_negative_zero(best);
}

template <int constant_h>
void planar_max_pool_by_two(const float* const* rows, int window_h, ptrdiff_t input_channel, int columns, int channels,
                            float* y, ptrdiff_t pixel_stride) {
    to_pixels<true>(columns, channels, y, pixel_stride, [=](int c, int i, int) {
        return pooled_by_two<constant_h>(rows, window_h, c * input_channel + 2 * ptrdiff_t(i));
    });
}

void planar_max_pool(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                     int columns, int channels, float* y, ptrdiff_t pixel_stride) {
    if (window_w == 3 && stride_w == 2) {
        (window_h == 3 ? planar_max_pool_by_two<3> : planar_max_pool_by_two<0>)(rows, window_h, input_channel, columns,
                                                                                channels, y, pixel_stride);
        return;
    }
    to_pixels<false>(columns, channels, y, pixel_stride, [=](int c, int i, int count) {
        const ptrdiff_t corner = c * input_channel + ptrdiff_t(i) * stride_w;
        Real best = load_strided(rows[0] + corner, stride_w, count);
        for (int h = 0; h < window_h; ++h) {
            for (int w = 0; w < window_w; ++w) {
                best = Lanes::max(best, load_strided(rows[h] + corner + w, stride_w, count));
            }
        }
        return without_negative_zero(best);
    });
}

}  // namespace
}  // namespace bmx
