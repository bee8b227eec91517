// Interface of the kernels for layers of 8-bit integers: a table of functions that every instruction set implements.
//
// Maps are NHWC, with unsigned bytes as elements. A pixel is padded to words of four channels. Sums are exact in 32
// bits, and their rescaling in 64 bits, so that all tables give the same numbers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/data_type.h"

namespace bmx {

constexpr int kInt8Lanes = 16;  // filters of a block

// n -> min(max((n * multiplier + offset 2^(shift - kOffsetShift) + 2^(shift - 1)) >> shift, min), max), with one
// multiplier and offset for each channel or filter.
struct Rescaling {
    const int32_t* multiplier;
    const int32_t* offset;
    int shift, min, max;

    Rescaling from(int channel) const { return {multiplier + channel, offset + channel, shift, min, max}; }
};

// Rescaling of pixels to bytes:
//   y[c] = rescaled(round(x[c] * scale[c] + shift[c])); without scale of x[c], limited to 2^23 in magnitude
struct RescaleRow {
    DataType type;  // type of x
    const void* x;
    ptrdiff_t x_pixel;  // elements between neighbouring pixels
    int pixels, channels;
    const float* scale;  // or nullptr
    const float* shift;
    Rescaling rescaling;  // to 0 to 255
    uint8_t* y;
    ptrdiff_t y_pixel;
};

// Up to kInt8Lanes filters that read the same words of a pixel.
struct Int8Block {
    const int8_t* weights;  // [tap][word][filter][byte]; those of missing filters and of other groups are 0
    int first_word, words;  // of a pixel
    int first_filter, filters;
};

// Some outputs of a row.
struct Int8Row {
    const uint8_t* x;  // the pixel under the first tap of the first output
    ptrdiff_t step;    // bytes between the windows of neighbouring outputs
    const ptrdiff_t* taps;
    int tap_count;  // taps: the offset of each, in bytes
    int pixels;
    const Int8Block* blocks;
    int block_count;
    Rescaling rescaling;  // with kInt8Lanes numbers for each block, from the first of `blocks` on
    bool to_bytes;        // the type of y: uint8_t, otherwise int16_t
    void* y;              // filter 0 of the first output
    ptrdiff_t y_pixel;    // in elements
};

struct Int8Kernels {
    void (*rescale)(const RescaleRow& row);
    void (*convolve)(const Int8Row& row);
};

const Int8Kernels& int8_kernels_reference();
const Int8Kernels& int8_kernels_avx2();
const Int8Kernels& int8_kernels_avx512();

}  // namespace bmx
