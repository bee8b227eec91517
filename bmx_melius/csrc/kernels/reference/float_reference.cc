// Reference float kernels, as plain loops: the definition of the others, to the last bit, and the fallback. The
// innermost loops run over contiguous memory, so that a compiler can vectorize them for its target.
#include <cstring>

#include "kernels/common/elementwise_loops.h"
#include "kernels/common/float_kernels.h"
#include "kernels/common/multiply_add.h"

namespace bmx {
namespace {

// Returns the epilogue of channel `c` applied to a number.
float finished(const Epilogue& epilogue, int c, float x) {
    if (epilogue.scale) {
        x = multiply_add(x, epilogue.scale[c], epilogue.shift[c]);
    }
    return epilogue.relu ? relu_of(x) : x;
}

float larger(float a, float b) { return a < b ? b : a; }

float without_negative_zero(float x) { return x + 0.0f; }

size_t planar_weights_bytes(const PlanarConv& conv) {
    return sizeof(float) * conv.out_channels * (conv.in_channels / conv.groups) * conv.kernel_h * conv.kernel_w;
}

void planar_prepare(const PlanarConv& conv, const float* weights, void* prepared) {
    std::memcpy(prepared, weights, planar_weights_bytes(conv));
}

// Adds the taps of a kernel row to an output row, inputs in the outer loop.
void add_tap_row(const PlanarRow& row, int y, int first_input, int group_inputs, const float* weights, float* output) {
    const PlanarConv& conv = *row.conv;
    for (int c = 0; c < group_inputs; ++c) {
        for (int tap = 0; tap < conv.kernel_w; ++tap) {
            const float weight = weights[(c * conv.kernel_h + y) * conv.kernel_w + tap];
            const float* input = row.input[y] + (first_input + c) * row.input_channel + tap * conv.dilation_w;
            for (int x = 0; x < row.columns; ++x) {
                output[x] = multiply_add(weight, input[ptrdiff_t(x) * conv.stride_w], output[x]);
            }
        }
    }
}

void planar_row(const PlanarRow& row) {
    const PlanarConv& conv = *row.conv;
    const int group_inputs = conv.in_channels / conv.groups, group_outputs = conv.out_channels / conv.groups;
    const ptrdiff_t taps = ptrdiff_t(group_inputs) * conv.kernel_h * conv.kernel_w;
    for (int o = 0; o < conv.out_channels; ++o) {
        const float* weights = static_cast<const float*>(row.weights) + o * taps;
        float* output = row.output + o * row.output_channel;
        for (int x = 0; x < row.columns; ++x) {
            output[x] = 0;
        }
        for (int y = 0; y < conv.kernel_h; ++y) {
            if (!row.input_is_zero[y]) {
                add_tap_row(row, y, o / group_outputs * group_inputs, group_inputs, weights, output);
            }
        }
        for (int x = 0; x < row.columns; ++x) {
            output[x] = finished(row.epilogue, o, output[x]);
        }
    }
}

size_t gemm_weights_bytes(int n, int k) { return sizeof(float) * n * k; }

// Layout of the prepared weights: [k][n].
void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    float* b = static_cast<float*>(prepared);
    for (int i = 0; i < k; ++i) {
        for (int j = 0; j < n; ++j) {
            *b++ = weights[j * ldw + i];
        }
    }
}

void gemm(const Gemm& gemm) {
    for (int m = 0; m < gemm.m; ++m) {
        const float* a = gemm.a + m * gemm.lda;
        const float* b = static_cast<const float*>(gemm.b);
        float* c = gemm.c + m * gemm.ldc;
        for (int j = 0; j < gemm.n; ++j) {
            c[j] = 0;
        }
        for (int i = 0; i < gemm.k; ++i, b += gemm.n) {
            const float factor = a[gemm.column ? gemm.column[i] : i];
            for (int j = 0; j < gemm.n; ++j) {
                c[j] = multiply_add(factor, b[j], c[j]);
            }
        }
        for (int j = 0; j < gemm.n; ++j) {
            c[j] = finished(gemm.epilogue, j, c[j]);
        }
    }
}

template <class T>
void depthwise_row_of(const DepthwiseRow& row, const T* x) {
    for (int i = 0; i < row.pixels; ++i, x += row.step) {
        float* output = row.output + i * row.output_pixel;
        for (int c = 0; c < row.channels; ++c) {
            output[c] = 0;
        }
        for (int tap_row = 0; tap_row < row.rows; ++tap_row) {
            for (int tap_column = 0; tap_column < row.columns; ++tap_column) {
                const T* input = x + tap_row * row.row + tap_column * row.column;
                const float* weights = row.weights + tap_row * row.weight_row + tap_column * row.weight_column;
                for (int c = 0; c < row.channels; ++c) {
                    output[c] = multiply_add(input[c], weights[c], output[c]);
                }
            }
        }
        for (int c = 0; c < row.channels; ++c) {
            output[c] = finished(row.epilogue, c, output[c]);
        }
    }
}

void depthwise_row(const DepthwiseRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) { depthwise_row_of(row, x); });
}

template <class T>
void pool_row_of(const PoolRow& row, const T* x) {
    const Epilogue normalization = {row.epilogue.scale, row.epilogue.shift, false};
    for (int i = 0; i < row.pixels; ++i, x += row.step) {
        float* output = row.output + i * row.output_pixel;
        for (int c = 0; c < row.channels; ++c) {
            float best = finished(normalization, c, x[row.window[0] + c]);
            for (int w = 1; w < row.window_size; ++w) {
                best = larger(best, finished(normalization, c, x[row.window[w] + c]));
            }
            best = row.pools ? without_negative_zero(best) : best;
            output[c] = row.epilogue.relu ? relu_of(best) : best;
        }
    }
}

void pool_row(const PoolRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) { pool_row_of(row, x); });
}

void planar_to_pixels(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                      ptrdiff_t pixel_stride) {
    for (int i = 0; i < columns; ++i) {
        for (int c = 0; c < channels; ++c) {
            y[i * pixel_stride + c] = x[c * channel_stride + i];
        }
    }
}

template <class T>
void pixels_to_planar_of(const T* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                         ptrdiff_t channel_stride) {
    for (int c = 0; c < channels; ++c) {
        for (int i = 0; i < pixels; ++i) {
            y[c * channel_stride + i] = x[i * pixel_stride + c];
        }
    }
}

void pixels_to_planar(DataType type, const void* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                      ptrdiff_t channel_stride) {
    visit_typed(type, x, [=](const auto* numbers) {
        pixels_to_planar_of(numbers, pixel_stride, pixels, channels, y, channel_stride);
    });
}

void planar_max_pool(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                     int columns, int channels, float* y, ptrdiff_t pixel_stride) {
    for (int i = 0; i < columns; ++i) {
        for (int c = 0; c < channels; ++c) {
            const ptrdiff_t corner = c * input_channel + ptrdiff_t(i) * stride_w;
            float best = rows[0][corner];
            for (int h = 0; h < window_h; ++h) {
                for (int w = 0; w < window_w; ++w) {
                    best = larger(best, rows[h][corner + w]);
                }
            }
            y[i * pixel_stride + c] = without_negative_zero(best);
        }
    }
}

template <class T>
void sum_pixels_of(const T* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue, float* sums) {
    for (int i = 0; i < pixels; ++i, x += stride) {
        for (int c = 0; c < channels; ++c) {
            sums[c] += finished(epilogue, c, x[c]);
        }
    }
}

void sum_pixels(DataType type, const void* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue,
                float* sums) {
    visit_typed(type, x,
                [&](const auto* numbers) { sum_pixels_of(numbers, stride, pixels, channels, epilogue, sums); });
}

}  // namespace

const FloatKernels& float_kernels_reference() {
    static const FloatKernels kernels = {
        "reference",
        planar_weights_bytes,
        planar_prepare,
        planar_row,
        gemm_weights_bytes,
        gemm_prepare,
        gemm,
        depthwise_row,
        pool_row,
        planar_to_pixels,
        pixels_to_planar,
        planar_max_pool,
        sum_pixels,
        transform,
        combine,
        mean_channels,
        softmax,
    };
    return kernels;
}

}  // namespace bmx
