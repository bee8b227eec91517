// Depthwise convolution: lanes are channels.
#pragma once
#include "kernels/common/float_vectors.h"

namespace bmx {
namespace {

constexpr int kMaxDepthwisePixels = 8;  // outputs computed at a time

// Windows with 3 adjacent columns, `stride` pixels apart, share the inputs that they overlap on in registers; 0:
// others.
template <int stride, bool whole, int pixels, class T>
void depthwise_tile(const DepthwiseRow& row, const T* x, int c, float* output) {
    constexpr int taps = 3;
    const int channels = whole ? kWidth : row.channels - c;
    const float* weights = row.weights + c;
    x += c;
    Real sum[pixels];
    unrolled<pixels>([&](auto p) { sum[p] = Lanes::zero(); });
    for (int y = 0; y < row.rows; ++y, x += row.row, weights += row.weight_row) {
        if constexpr (stride > 0) {
            Real weight[taps];
            unrolled<taps>([&](auto t) { weight[t] = load(weights + t * row.weight_column, channels); });
            unrolled<(pixels - 1) * stride + taps>([&](auto column) {
                const Real value = load_number(x + column * row.column, channels);
                unrolled<taps>([&](auto t) {
                    constexpr int p = (column - t) / stride;
                    if constexpr (column >= t && (column - t) % stride == 0 && p < pixels) {
                        sum[p] = Lanes::multiply_add(value, weight[t], sum[p]);
                    }
                });
            });
        } else {
            for (int t = 0; t < row.columns; ++t) {
                const Real weight = load(weights + t * row.weight_column, channels);
                const T* input = x + t * row.column;
                unrolled<pixels>([&](auto p) {
                    sum[p] = Lanes::multiply_add(load_number(input + p * row.step, channels), weight, sum[p]);
                });
            }
        }
    }
    const Normalization normalized(row.epilogue, c, channels);
    unrolled<pixels>([&](auto p) {
        const Real y = normalized(sum[p]);
        store(output + p * row.output_pixel + c, row.epilogue.relu ? relu(y) : y, channels);
    });
}

// Computes tiles of `pixels` outputs as long as these are left, and then smaller tiles.
template <int stride, int pixels, class T>
void depthwise_tiles(const DepthwiseRow& row, const T* x, int begin) {
    for (; begin + pixels <= row.pixels; begin += pixels) {
        const T* input = x + begin * row.step;
        float* output = row.output + begin * row.output_pixel;
        int c = 0;
        for (; c + kWidth <= row.channels; c += kWidth) {
            depthwise_tile<stride, true, pixels>(row, input, c, output);
        }
        if (c < row.channels) {
            depthwise_tile<stride, false, pixels>(row, input, c, output);
        }
    }
    if constexpr (pixels > 1) {
        depthwise_tiles<stride, pixels / 2>(row, x, begin);
    }
}

void depthwise_row(const DepthwiseRow& row) {
    if (row.type == DataType::i16) {
        return depthwise_tiles<0, kMaxDepthwisePixels>(row, static_cast<const int16_t*>(row.x), 0);
    }
    const float* x = static_cast<const float*>(row.x);
    if (row.columns == 3 && row.step == row.column) {
        depthwise_tiles<1, kMaxDepthwisePixels>(row, x, 0);
    } else if (row.columns == 3 && row.step == 2 * row.column) {
        depthwise_tiles<2, kMaxDepthwisePixels>(row, x, 0);
    } else {
        depthwise_tiles<0, kMaxDepthwisePixels>(row, x, 0);
    }
}

}  // namespace
}  // namespace bmx
