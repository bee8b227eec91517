// Interface of the kernels for float layers: a table of functions that every instruction set implements.
//
// There are two layouts: *planar*, with the pixels of a row of one channel contiguous (the user's NCHW; lanes are
// pixels), and *pixels*, with the channels of one pixel contiguous (NHWC; lanes are channels).
//
// Each table computes bitwise the same result for an element however a map is split into rows, columns, channels or
// calls, because the order of summation does not depend on the neighbours of an element (only on n and k of a matrix
// product). Prepared weights are aligned to 64 bytes. Other arrays need not be, but planar convolutions are about 10 %
// faster if column 0 of every row, after its padding, is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/binary_kernels.h"
#include "kernels/common/level_codes.h"
#include "program/operation_table.h"

namespace bmx {

// y = x * scale + shift for each channel unless scale is nullptr, then max(y, 0) if relu.
struct Epilogue {
    const float* scale;
    const float* shift;
    bool relu;
};

struct PlanarConv {  // parameters fixed when a program is loaded
    int in_channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, groups;
};

// One output row of a planar convolution.
struct PlanarRow {
    const PlanarConv* conv;
    const void* weights;  // result of planar_prepare
    // kernel_h pointers to the rows of channel 0 under the taps, at the element under tap column 0 of output column 0.
    // The rows include left and right padding.
    const float* const* input;
    ptrdiff_t input_channel;    // elements between neighbouring channels of a row
    const bool* input_is_zero;  // kernel_h flags: the row is outside the map and skipped, its pointer unused
    int columns;                // number of output columns
    float* output;              // channel 0, column 0
    ptrdiff_t output_channel;   // elements between neighbouring channels of the output row
    Epilogue epilogue;          // indexed by output channel
};

// C[m][n] = sum over k of A[m][column[k]] B[k][n]: a 1x1 convolution in the pixels layout, or a dense layer.
struct Gemm {
    int m, n, k;
    const float* a;
    ptrdiff_t lda;
    const int32_t* column;  // k columns of A; nullptr means 0, 1, 2, ...
    const void* b;          // result of gemm_prepare
    float* c;
    ptrdiff_t ldc;
    Epilogue epilogue;  // indexed by n
};

// A convolution with one input and one output for each channel, in the pixels layout:
//   out[i][c] = sum over tap rows, then tap columns, of x[c] under the tap times its weight for c
// The window of output i starts i * step elements after x.
struct DepthwiseRow {
    DataType type;  // type of x
    const void* x;
    ptrdiff_t step;
    int rows, columns;        // of the taps within the map
    ptrdiff_t row, column;    // elements of x between neighbouring tap rows and tap columns
    const float* weights;     // of the first tap
    ptrdiff_t weight_row;     // elements between the weights of neighbouring tap rows; tap columns: weight_column
    ptrdiff_t weight_column;  //
    int pixels, channels;
    Epilogue epilogue;  // indexed by channel
    float* output;
    ptrdiff_t output_pixel;  // elements between neighbouring output pixels
};

// Normalization, max pooling and ReLU of pixels, for the input of a transition:
//   out[i][c] = act(max over the pixels of the window of (x[c] * scale[c] + shift[c])), act = max(., 0) if relu
// A maximum of zeros is +0, whatever their signs. The window of output i starts i * step elements after x and has at
// least one pixel. `window` holds the offsets of its pixels in elements.
struct PoolRow {
    DataType type;  // type of x
    const void* x;
    ptrdiff_t step;
    const ptrdiff_t* window;
    int window_size;
    bool pools;  // otherwise the window is one pixel, whose zeros keep their signs
    int pixels, channels;
    Epilogue epilogue;  // indexed by channel
    float* output;
    ptrdiff_t output_pixel;  // elements between neighbouring output pixels
};

// An operation on every element x[c] of pixels, in place, with constants a[c] and b[c], the arrays of the operation.
struct Transform {
    Elementwise kind;
    float* x;
    ptrdiff_t x_pixel;  // elements between neighbouring pixels
    int pixels, channels;
    const float* a;
    const float* b;
};

// An operation on every element and one of y, in place.
struct Combine {
    Combination kind;
    float* x;
    ptrdiff_t x_pixel;
    int pixels, channels;
    DataType type;  // type of y
    const void* y;
    ptrdiff_t y_pixel;  // 0 if all pixels have the same y
    bool shared;        // all channels of a pixel have the same y
};

// The rows that planar_row and planar_max_pool read must be followed by at least this many bytes that may be read;
// their values do not matter. Kernels access no other memory outside their operands.
constexpr size_t kFloatReadAhead = 256;

struct FloatKernels {
    const char* name;

    size_t (*planar_weights_bytes)(const PlanarConv& conv);
    void (*planar_prepare)(const PlanarConv& conv, const float* weights,
                           void* prepared);  // weights (out, in / groups, kernel_h, kernel_w)
    void (*planar_row)(const PlanarRow& row);

    size_t (*gemm_weights_bytes)(int n, int k);
    void (*gemm_prepare)(int n, int k, const float* weights, ptrdiff_t ldw,
                         void* prepared);  // weights[n][k], rows ldw apart
    void (*gemm)(const Gemm& gemm);

    void (*depthwise_row)(const DepthwiseRow& row);

    void (*pool_row)(const PoolRow& row);

    // Converts a row of `columns` pixels with `channels` channels from planar (channels `channel_stride` apart) to
    // pixels
    // (`pixel_stride` apart).
    void (*planar_to_pixels)(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                             ptrdiff_t pixel_stride);
    // The inverse, from either element type.
    void (*pixels_to_planar)(DataType type, const void* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                             ptrdiff_t channel_stride);

    // Max pooling of planar rows to the pixels layout, at the end of the stem. rows: window_h pointers to rows of
    // channel 0, at the element under window column 0 of output column 0. The rows include padding, which is -inf. Rows
    // outside the map are omitted. A maximum of zeros is +0.
    void (*planar_max_pool)(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                            int columns, int channels, float* y, ptrdiff_t pixel_stride);

    // sums[c] += act(x[c] * scale[c] + shift[c]) for each pixel in order, for global average pooling.
    void (*sum_pixels)(DataType type, const void* x, ptrdiff_t stride, int pixels, int channels,
                       const Epilogue& epilogue, float* sums);

    void (*transform)(const Transform& transform);
    void (*combine)(const Combine& combine);

    // Computes the mean of the channels of each of the contiguous pixels of x.
    void (*mean_channels)(const float* x, int pixels, int channels, float* means);

    // Replaces numbers by their exponentials, divided by the sum of these.
    void (*softmax)(float* x, int channels);

    // The same as gemm with codes of the prepared weights, which are blocks of gemm_block columns, [k][column]: each
    // block begins with a group, codes.groups groups after the one before. nullptr where there is no such kernel.
    void (*gemm_of_codes)(const Gemm& gemm, const Codes<float>& codes) = nullptr;
    int gemm_block = 0;
};

const FloatKernels& float_kernels_reference();
const FloatKernels& float_kernels_avx2();
const FloatKernels& float_kernels_avx512();
const FloatKernels& float_kernels_amx();
const FloatKernels& float_kernels_bf16();
const FloatKernels& float_kernels_neon();
const FloatKernels& float_kernels_wasm();

}  // namespace bmx
