// The table every instruction set fills for the float layers around the binary ones.
//
// Two layouts: *planar*, a row of pixels of one channel contiguous (the user's NCHW; lanes are pixels), and *pixels*,
// the channels of one pixel contiguous (NHWC; lanes are channels).
//
// The same table gives the same bits for an element, however a map is split into rows, columns, channels or calls: each
// is summed in one order, whatever lies around it. (The order may depend on a product's n and k.) Prepared weights are
// aligned to 64 bytes; nothing else need be, but planar convolutions are about a tenth faster where column 0 of every
// row, without its padding, is.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/binary_kernels.h"

namespace bmx {

// y = x * scale + shift for each channel, then max(y, 0). scale == nullptr: no scale and shift.
struct Epilogue {
    const float* scale;
    const float* shift;
    bool relu;
};

struct PlanarConv {  // what is fixed when a program is loaded
    int in_channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, groups;
};

// One output row of a planar convolution.
struct PlanarRow {
    const PlanarConv* conv;
    const void* weights;  // made by planar_prepare
    // kernel_h pointers: the rows under the taps, of channel 0, at the element under tap column 0 of output column 0.
    // Left and right padding are in the row.
    const float* const* input;
    ptrdiff_t input_channel;    // elements between the same rows of neighbouring channels
    const bool* input_is_zero;  // kernel_h flags: that tap row lies outside the map and is skipped, its pointer unused
    int columns;                // of the output row
    float* output;              // of channel 0, column 0
    ptrdiff_t output_channel;   // elements between neighbouring channels of the output row
    Epilogue epilogue;          // indexed by output channel
};

// C[m][n] = sum over k of A[m][column[k]] B[k][n]: a 1x1 convolution in the pixels layout, or a dense layer.
struct Gemm {
    int m, n, k;
    const float* a;
    ptrdiff_t lda;
    const int32_t* column;  // k columns of A; nullptr: 0, 1, 2, ...
    const void* b;          // made by gemm_prepare
    float* c;
    ptrdiff_t ldc;
    Epilogue epilogue;  // indexed by n
};

// The input side of a transition: pixels of `channels` channels, normalized, pooled and rectified.
//   out[i][c] = act(max over the window's pixels of (x[c] * scale[c] + shift[c])), act = max(., 0) if relu
// The window of output i starts i * step elements after x; its pixels are at the given offsets (in elements), at least
// one.
struct PoolRow {
    Number number;  // of x
    const void* x;
    ptrdiff_t step;
    const ptrdiff_t* window;
    int window_size;
    int pixels, channels;
    Epilogue epilogue;  // indexed by channel
    float* output;
    ptrdiff_t output_pixel;  // elements between neighbouring output pixels
};

// The rows that planar_row and planar_max_pool read are followed by at least this many bytes that may be read (and are
// not used). Nothing else is read, and nothing at all is written, outside of what is described.
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

    void (*pool_row)(const PoolRow& row);

    // rows of `columns` pixels of `channels` channels: planar (channels `channel_stride` apart) to pixels
    // (`pixel_stride` apart)
    void (*planar_to_pixels)(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                             ptrdiff_t pixel_stride);
    // and back, from numbers of either type
    void (*pixels_to_planar)(Number number, const void* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                             ptrdiff_t channel_stride);

    // the last step of the stem: max pooling of planar rows into the pixels layout. rows: window_h pointers to rows of
    // channel 0 at the element under window column 0 of output column 0, padding (never the maximum: -inf) in the row;
    // rows outside the map are left out.
    void (*planar_max_pool)(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                            int columns, int channels, float* y, ptrdiff_t pixel_stride);

    // sums[c] += act(x[c] * scale[c] + shift[c]), one pixel after the other: global average pooling
    void (*sum_pixels)(Number number, const void* x, ptrdiff_t stride, int pixels, int channels,
                       const Epilogue& epilogue, float* sums);
};

const FloatKernels& float_kernels_reference();
const FloatKernels& float_kernels_avx2();
const FloatKernels& float_kernels_avx512();
const FloatKernels& float_kernels_amx();

}  // namespace bmx
