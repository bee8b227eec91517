// Pooling and sums of pixels: lanes are channels.
#pragma once
#include "kernels/common/float_vectors.h"

namespace bmx {
namespace {

// Returns the maximum of a window after normalization, for kWidth channels or the first `count` of them.
Real pooled(const float* x, const ptrdiff_t* window, int window_size, int count, const Normalization& normalized) {
    Real best = normalized(load(x + window[0], count));
    for (int w = 1; w < window_size; ++w) {
        best = Lanes::max(best, normalized(load(x + window[w], count)));
    }
    return best;
}

// Normalization is monotone, so the maximum comes from the largest or, for a negative scale, from the smallest integer.
Real pooled(const int16_t* x, const ptrdiff_t* window, int window_size, int count, const Normalization& normalized) {
    using Integers = Lanes::Integers;
    Integers high = Lanes::load_integers(x + window[0], count), low = high;
    for (int w = 1; w < window_size; ++w) {
        const Integers next = Lanes::load_integers(x + window[w], count);
        high = Lanes::max(high, next);
        low = Lanes::min(low, next);
    }
    if (!normalized.present) {
        return Lanes::to_real(high);
    }
    return normalized(Lanes::to_real(Lanes::negative(normalized.scale, low, high)));
}

// constant_size: size of the window if known at compile time, otherwise 0.
template <int constant_size, class T>
void pool_pixels(const PoolRow& row, const T* x) {
    const int size = constant_size ? constant_size : row.window_size;
    float* output = row.output;
    for (int i = 0; i < row.pixels; ++i, x += row.step, output += row.output_pixel) {
        for (int c = 0; c < row.channels; c += kWidth) {
            const int count = row.channels - c;
            const Normalization normalized(row.epilogue, c, count);
            Real best = pooled(x + c, row.window, size, count, normalized);
            best = row.pools ? without_negative_zero(best) : best;
            store(output + c, row.epilogue.relu ? relu(best) : best, count);
        }
    }
}

template <class T>
void pool_row_of(const PoolRow& row, const T* x) {
    constexpr int common = 4;
    row.window_size == common ? pool_pixels<common>(row, x) : pool_pixels<0>(row, x);
}

void pool_row(const PoolRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) { pool_row_of(row, x); });
}

template <class T>
void sum_pixels_of(const T* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue, float* sums) {
    for (int c = 0; c < channels; c += kWidth) {
        const int count = channels - c;
        const Normalization normalized(epilogue, c, count);
        Real sum = load(sums + c, count);
        for (int i = 0; i < pixels; ++i) {
            const Real y = normalized(load_number(x + i * stride + c, count));
            sum = Lanes::add(sum, epilogue.relu ? relu(y) : y);
        }
        store(sums + c, sum, count);
    }
}

void sum_pixels(DataType type, const void* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue,
                float* sums) {
    visit_typed(type, x,
                [&](const auto* numbers) { sum_pixels_of(numbers, stride, pixels, channels, epilogue, sums); });
}

}  // namespace
}  // namespace bmx
