// The table every instruction set fills for binary layers: packing activations and convolving them.
//
// Activations are compared with thresholds to words of 32 bits, bit i of which is element i: the form in which they
// wait. Before a convolution they are expanded to the form in which its kernel wants them, a packed map.
//
// A packed map is padded and lies in memory pixel by pixel, row by row. A pixel is `units` units of 32 elements; a unit
// takes `unit_bytes` bytes, of which each has so many elements in its lowest bits: 4 where bits are used as they are
// (bit i = element i), 8 where a kernel wants half bytes, 32 where it wants one byte (0 or 1) an element. With groups,
// each group starts at a new unit; elements beyond a group's last channel are 0.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/numbers.h"

namespace bmx {

struct BinaryConv {  // what is fixed when a program is loaded
    int in_channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, groups;
    bool offset;  // the result is (h + n) / 2, the number of agreeing elements, instead of h
    int group_units() const { return (in_channels / groups + 31) / 32; }
    int units() const { return groups * group_units(); }
    int64_t weights_per_output() const { return int64_t(kernel_h) * kernel_w * (in_channels / groups); }
};

struct BinaryConvRun {
    const BinaryConv* conv;
    const void* weights;   // made by prepare_weights
    const uint8_t* input;  // the element under tap (0, 0) of the first output: padding is in the map, clear bits for -1
                           // and set for +1
    ptrdiff_t row_bytes, pixel_bytes;    // between neighbours of the packed map; pixel_bytes is units * unit_bytes
    int rows, columns;                   // of the output, at least 1
    int filter_begin, filter_end;        // the outputs to compute, multiples of filter_step or the last filter
    Number number;                       // of the output; i16 only where every result and sum fits
    void* output;                        // of the first pixel and filter 0; filters lie side by side
    ptrdiff_t output_row, output_pixel;  // between neighbours, in elements
    const void* addend;  // added to the result, of the same number and strides as the output; or nullptr
    void* scratch;       // scratch_bytes of working memory, aligned to 64 bytes
};

// A kernel may read up to this many bytes beyond the end of a packed map (never before its start); the values do not
// matter.
constexpr size_t kReadAhead = 4096;

struct BinaryKernels {
    const char* name;
    int unit_bytes;
    int filter_step;  // filters are computed in blocks of so many

    // `pixels` pixels of `channels` channels, `stride` elements apart, to bits (x >= threshold) != flip. Writes
    // ceil(channels / 32) words a pixel, side by side; bits of `flip` and of the words beyond `channels` are 0.
    void (*pack_f32)(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                     const uint32_t* flip, uint32_t* words);
    void (*pack_i16)(const int16_t* x, ptrdiff_t stride, int pixels, int channels, const int16_t* threshold,
                     const uint32_t* flip, uint32_t* words);

    // The same of planes, `stride` elements from a channel to the next, pixels side by side.
    void (*pack_planes)(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                        const uint32_t* flip, uint32_t* words);

    // `pixels` pixels of `units` words, side by side, to units of packed pixels `packed_stride` bytes apart.
    void (*expand)(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride);

    // Weights as in the file: (out_channels, kernel_h, kernel_w, group_units) words of bits.
    size_t (*weights_bytes)(const BinaryConv& conv);  // of the prepared form, which is aligned to 64 bytes
    void (*prepare_weights)(const BinaryConv& conv, const uint32_t* words, void* prepared);

    size_t (*scratch_bytes)(const BinaryConv& conv, int rows, int columns);  // of a run of so many, or fewer
    void (*convolve)(const BinaryConvRun& run);
};

namespace {  // each instruction set compiles its own copy with its own flags

inline size_t no_scratch_bytes(const BinaryConv&, int, int) { return 0; }

}  // namespace

const BinaryKernels& binary_kernels_reference();
const BinaryKernels& binary_kernels_avx2();
const BinaryKernels& binary_kernels_avx512();
const BinaryKernels& binary_kernels_amx();
const BinaryKernels& binary_kernels_amx_small();  // for maps of few pixels

}  // namespace bmx
