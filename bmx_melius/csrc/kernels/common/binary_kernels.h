// Interface of the kernels for binary layers: a table of functions that every instruction set implements, for packing
// activations and convolving them.
//
// Activations are compared with thresholds and stored as words of 32 bits, where bit i is element i. Before a
// convolution they are expanded to a packed map, whose format depends on the kernel.
//
// A packed map is padded and stored row by row, pixel by pixel. A pixel consists of `units` units of 32 elements. A
// unit takes `unit_bytes` bytes, each with 32 / unit_bytes elements in its lowest bits: 4 bytes for bits (bit i =
// element i), 8 for nibbles, 32 for one byte (0 or 1) per element. With groups, each group starts at a new unit.
// Elements beyond the last channel of a group are 0.
//
// If `plane_units` is 2, the map is divided into planes of two units of a pixel, stored one after the other in the same
// way, and each group starts with a new plane. The second half of a pixel in the last plane of a group with an odd
// number of units is the first half of the pixel `dilation_h` rows below, if a window has several rows; it is arbitrary
// where no window has both, and in windows of one row.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/data_type.h"

namespace bmx {

struct BinaryConv {  // parameters fixed when a program is loaded
    int in_channels, out_channels, kernel_h, kernel_w, stride_h, stride_w, dilation_h, dilation_w, groups;
    bool offset;  // the result is (h + n) / 2, the number of agreeing elements, instead of h
    int group_units() const { return (in_channels / groups + 31) / 32; }
    int units() const { return groups * group_units(); }
    int64_t weights_per_output() const { return int64_t(kernel_h) * kernel_w * (in_channels / groups); }
};

// Comparison of the results of all filters with thresholds, to words of bits as by BinaryKernels::pack_i16.
struct BinaryPacking {
    const int16_t* thresholds;
    const uint32_t* flips;
    uint32_t* words;  // of the first pixel of the output
};

struct BinaryConvRun {
    const BinaryConv* conv;
    const void* weights;   // result of prepare_weights
    const uint8_t* input;  // the element under tap (0, 0) of the first output; the map includes the padding, clear
                           // bits for -1 and set bits for +1
    ptrdiff_t row_bytes, pixel_bytes;  // strides of the packed map, or of a plane; pixel_bytes is the size of a
                                       // pixel, row_bytes a multiple of it, less than the windows of a row need if
                                       // the next row goes on
    ptrdiff_t plane_bytes;             // from one plane to the next one
    const int32_t* counts;   // of set bits in pixels, with as many for a row as it has pixels; if the kernels count
    ptrdiff_t group_counts;  // counts from one group to the next one
    int rows, columns;       // size of the output, at least 1
    int filter_begin, filter_end;        // the outputs to compute; multiples of filter_step, or the number of filters
    DataType type;                       // type of the output; i16 only if every result and sum fits
    void* output;                        // address of the first pixel and filter 0; filters are contiguous
    ptrdiff_t output_row, output_pixel;  // strides in elements
    const void* addend;                  // added to the result; has the type and strides of the output, which it may
                                         // be; or nullptr
    void* scratch;                       // scratch_bytes of working memory, aligned to 64 bytes
    const BinaryPacking* packings = nullptr;  // of the output, if it has type i16 and the run computes all filters; at
    int packing_count = 0;                    // most as many as the kernel can
    bool continues = false;  // whether a run of the same layer and filters has left the working memory as it is
};

// A kernel may read up to this many bytes beyond the end of a packed map, whose values do not matter, but never before
// its start.
constexpr size_t kReadAhead = 4096;

constexpr int kBandPixels = 900;  // of most kernels: their rows and results stay in the second-level cache

struct BinaryKernels {
    const char* name;
    int unit_bytes;
    int filter_step;  // filters are computed in blocks of this size
    int band_pixels;  // of the output, that are best convolved at a time

    // Packs `pixels` pixels of `channels` channels, `stride` elements apart, to bits (x >= threshold) != flip. Writes
    // ceil(channels / 32) contiguous words per pixel. Bits of `flip` and of the words beyond `channels` are 0.
    void (*pack_f32)(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                     const uint32_t* flip, uint32_t* words);
    void (*pack_i16)(const int16_t* x, ptrdiff_t stride, int pixels, int channels, const int16_t* threshold,
                     const uint32_t* flip, uint32_t* words);

    // The same for planes of channels, `stride` elements apart, with contiguous pixels.
    void (*pack_planes)(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                        const uint32_t* flip, uint32_t* words);

    // Expands `units` words of each of `pixels` pixels, `stride` words apart, to units of packed pixels,
    // `packed_stride` bytes apart.
    void (*expand)(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed,
                   ptrdiff_t packed_stride);

    // `words`: weights in the layout of the file, (out_channels, kernel_h, kernel_w, group_units) words of bits.
    size_t (*weights_bytes)(const BinaryConv& conv);  // size of the prepared weights, which are aligned to 64 bytes
    void (*prepare_weights)(const BinaryConv& conv, const uint32_t* words, void* prepared);

    size_t (*scratch_bytes)(const BinaryConv& conv, int rows, int columns);  // for runs of at most this size
    void (*convolve)(const BinaryConvRun& run);

    int plane_units = 0;  // 2, or 0: the map has no planes

    // Adds the numbers of set bits in the words that `expand` reads to `counts`; nullptr if `convolve` needs no counts.
    void (*count)(const uint32_t* words, ptrdiff_t stride, int pixels, int units, int32_t* counts) = nullptr;

    // Returns how often `convolve` can pack the results of a layer; nullptr if it cannot.
    int (*max_packings)(const BinaryConv& conv) = nullptr;
};

namespace {  // each instruction set compiles its own copy with its own flags

inline size_t no_scratch_bytes(const BinaryConv&, int, int) { return 0; }

}  // namespace

const BinaryKernels& binary_kernels_reference();
const BinaryKernels& binary_kernels_avx2();
const BinaryKernels& binary_kernels_avx512();
const BinaryKernels& binary_kernels_avx512_planes();  // for maps of many pixels
const BinaryKernels& binary_kernels_amx();
const BinaryKernels& binary_kernels_amx_small();  // for maps of few pixels
const BinaryKernels& binary_kernels_neon();
const BinaryKernels& binary_kernels_dotprod();
const BinaryKernels& binary_kernels_wasm();

}  // namespace bmx
