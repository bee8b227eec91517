// Interface of the kernels for layers of 8-bit integers: a table of functions that every instruction set implements.
//
// Maps between such layers are NHWC, with unsigned bytes as elements. A pixel is padded to words of four channels. Sums
// are exact in 32 bits, and so is their rescaling, or in 64 bits where 32 do not suffice: all tables give the same
// numbers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/common/data_type.h"
#include "kernels/common/level_codes.h"

namespace bmx {

constexpr int kInt8Lanes = 16;   // outputs of a block
constexpr int kInt8Blocks = 5;   // largest number of blocks that are computed together
constexpr int kCodedBlocks = 4;  // number of them where weights are codes
constexpr int kInt8Period = 8;   // largest number of words that a block reads at once

// n -> min(max((n * multiplier + offset 2^(shift - kOffsetShift) + 2^(shift - 1)) >> shift, min), max), with one
// multiplier and offset for each channel or filter.
struct Rescaling {
    const int32_t* multiplier;
    const int32_t* offset;
    int shift, min, max;
    // What gives the same numbers with 32 bits, or nullptr: (min(max(n, low), high) * factor + summand) >> shift, where
    // product and sum are computed modulo 2^32 and the result of the addition fits.
    const int32_t *low, *high, *factor, *summand;

    Rescaling from(int channel) const {
        Rescaling r = *this;
        r.multiplier += channel;
        r.offset += channel;
        if (low) {
            r.low += channel;
            r.high += channel;
            r.factor += channel;
            r.summand += channel;
        }
        return r;
    }
};

// A rescaling to 16-bit integers.
struct ShortRescaling {
    Rescaling exact;
    // If that does not have it, what gives the same numbers with 32 bits, or nullptr: n >= high ? above : n <= low ?
    // below : (n * factor + summand) >> shift, where product and sum are computed modulo 2^32 and the result of the
    // addition fits.
    const int32_t *low, *high, *below, *above, *factor, *summand;

    ShortRescaling from(int channel) const {
        ShortRescaling r = *this;
        r.exact = exact.from(channel);
        if (low) {
            r.low += channel;
            r.high += channel;
            r.below += channel;
            r.above += channel;
            r.factor += channel;
            r.summand += channel;
        }
        return r;
    }
};

// 16-bit integers from the numbers of pixels:
//   y[c] = rescaled(round(x[c])), or without a rescaling round(x[c]), limited to 2^23 in magnitude; added to y[c] if
//   `adds`
struct ShortsRow {
    DataType type;      // type of x
    const void* x;      // may be y
    ptrdiff_t x_pixel;  // elements between neighbouring pixels
    int pixels, channels;
    const ShortRescaling* rescaling;  // or nullptr
    bool adds;
    int16_t* y;
    ptrdiff_t y_pixel;
};

// Rescaling of pixels to bytes, of each of which the largest number of a window counts:
//   y[c] = max over the window of rescaled(round(x[c] * scale[c] + shift[c])); without scale of x[c], limited to 2^23
// in magnitude
struct RescaleRow {
    DataType type;  // type of x
    const void* x;
    ptrdiff_t step;           // elements between the windows of neighbouring outputs
    const ptrdiff_t* window;  // offsets of its pixels, in elements
    int window_size;
    int pixels, channels;
    const float* scale;  // or nullptr
    const float* shift;
    Rescaling rescaling;
    uint8_t* y;
    ptrdiff_t y_pixel;  // in elements
};

// Numbers of thresholds of pixels, of each of which the largest one of a window counts:
//   y[c] = max over the window of the number of i for which (x[c] >= thresholds[i * stride + c]) != flips[c]
struct ThresholdsRow {
    DataType type;  // type of x
    const void* x;
    ptrdiff_t step;           // elements between the windows of neighbouring outputs
    const ptrdiff_t* window;  // offsets of its pixels, in elements
    int window_size;
    int pixels, channels;
    const float* thresholds;
    ptrdiff_t stride;
    int count;             // of thresholds, at most kMaxThresholds
    const uint8_t* flips;  // 0 or 1
    bool to_bytes;         // the type of y: uint8_t, otherwise int16_t
    void* y;
    ptrdiff_t y_pixel;  // in elements
};

// Rescaling as in RescaleRow for pixels of the user's map, without windows. Words of y are written as a
// whole.
struct RescalePlanes {
    const float* x;
    ptrdiff_t plane;  // elements between the channels of a pixel
    int pixels, channels;
    const float* scale;  // or nullptr
    const float* shift;
    Rescaling rescaling;
    uint8_t* y;
    ptrdiff_t y_pixel;
};

// Maxima of windows, as in RescaleRow.
struct MaxRow {
    const int16_t* x;
    ptrdiff_t step;
    const ptrdiff_t* window;
    int window_size;
    int pixels, channels;
    int16_t* y;
    ptrdiff_t y_pixel;
};

// The mean of the pixels of a window, rounded and limited to kMaxInt16 in magnitude, which 16-bit integers must not
// exceed, in multiples of 2^-fraction_bits:
//   y[c] = floor((2 sum 2^fraction_bits + count) / (2 count)), where sum is that of x[c]
struct MeanWindow {
    DataType type;  // type of x
    const void* x;
    int rows, columns;         // of the pixels that are added
    ptrdiff_t x_row, x_pixel;  // elements between neighbouring ones
    int channels;
    int64_t count;
    int fraction_bits;
    float* y;
};

// Blocks of filters that read the same words of a pixel: lane l of a block reads the words first_word + i * period +
// l % period, where i = 0 to words - 1.
struct Int8Blocks {
    const int8_t* weights;  // [tap][i][block][lane][byte]; 0 for missing filters and channels
    int count;              // of blocks, 1 to kInt8Blocks
    int first_word, words, period;
    int first_output, outputs;  // channels that are written
    const uint8_t* lanes;       // the lane of each of them, 16 lanes a block, or nullptr if they are in order
    Rescaling rescaling;        // by lane
    Codes<int8_t> codes = {};   // of the weights, if these are nullptr: only for tables that have `reads_codes`,
                               // kCodedBlocks blocks of period 1, and an even number of words, which are all of a pixel
};

// Types of results: uint8_t, int16_t, float.
enum class Int8Result { bytes, shorts, floats };

// Some outputs of a row.
struct Int8Row {
    const uint8_t* x;  // the pixel under the first tap of the first output
    ptrdiff_t step;    // bytes between the windows of neighbouring outputs
    const ptrdiff_t* taps;
    int tap_count;  // taps: the offset of each, in bytes
    int pixels;
    const Int8Blocks* blocks;
    int blocks_count;
    Int8Result result;  // the type of y
    void* y;            // channel 0 of the first output
    ptrdiff_t y_pixel;  // in elements
};

struct Int8Kernels {
    void (*shorts)(const ShortsRow& row);
    void (*rescale)(const RescaleRow& row);
    void (*rescale_planes)(const RescalePlanes& row);
    void (*max_row)(const MaxRow& row);
    void (*convolve)(const Int8Row& row);
    void (*mean)(const MeanWindow& window);
    void (*count_thresholds)(const ThresholdsRow& row);
    int alternating_blocks;  // largest number of blocks whose lanes belong to alternating groups
    bool reads_codes = false;
};

const Int8Kernels& int8_kernels_reference();
const Int8Kernels& int8_kernels_avx2();
const Int8Kernels& int8_kernels_avxvnni();
const Int8Kernels& int8_kernels_avx512();
const Int8Kernels& int8_kernels_amx();
const Int8Kernels& int8_kernels_neon();
const Int8Kernels& int8_kernels_dotprod();
const Int8Kernels& int8_kernels_i8mm();
const Int8Kernels& int8_kernels_wasm();

}  // namespace bmx
