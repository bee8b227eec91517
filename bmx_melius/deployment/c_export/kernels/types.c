// Parameters of the kernels. `value_t` and `result_t` stand for the types of inputs and results, float or integers: a
// function whose name contains `_value` or `_result` is copied into an exported network once for each type that it
// uses. `signed_t` stands for types of negative numbers, too, `sum_t` for integers of 32 or 64 bits,
// `filter_t` for what weights of 8-bit layers are stored in.
#include <stddef.h>
#include <stdint.h>

#define BMX_OPAQUE         // before functions that are not inlined
#define BMX_INLINE inline  // before functions that are always inlined

typedef float value_t;

typedef float result_t;

typedef float signed_t;

typedef int32_t sum_t;

typedef int8_t filter_t;

// Maps are stored with the channels of a pixel next to one another. A span describes channels of all pixels of two
// maps.
typedef struct {
    int32_t pixels, channels;
    int32_t x_stride, y_stride;  // elements between neighbouring pixels of the input and of the result
} bmx_span;

// A window that slides over a map.
typedef struct {
    int32_t height, width;  // of the input
    int32_t rows, columns;  // of the result
    int32_t kernel_h, kernel_w, stride_h, stride_w, pad_top, pad_left, dilation_h, dilation_w;
} bmx_window;

typedef struct {
    bmx_window window;
    int32_t groups, inputs, outputs;  // inputs and outputs of each group
    const void* weights;              // of each group and output in the order in which they are added; or their levels
    const float* bias;                // NULL without one
} bmx_conv;

// Weights that are levels of a table.
typedef struct {
    const uint32_t* codes;  // bit planes of the numbers of the levels
    const float* levels;
    int32_t bits, words;  // bit planes, and words of each
    int32_t step;         // between the levels of neighbouring positions of the kernel; 0 if all have the same
} bmx_levels;

typedef struct {
    bmx_window window;
    int32_t groups, inputs, outputs;  // inputs and outputs of each group
    int32_t words;                    // of the inputs of a group at one pixel
    int32_t pad_value, offset;
    const uint32_t* weights;  // [groups][outputs][kernel_h][kernel_w][words]
} bmx_binary_conv;

// Rescaling of integers: (n multiplier + summand) >> (split + shift), limited to min to max.
typedef struct {
    int32_t step;  // between the constants of neighbouring channels; 0 if all channels have the same
    int32_t split, shift, min, max;
} bmx_rescaling;

typedef struct {
    bmx_window window;
    int32_t groups, inputs, outputs;  // inputs and outputs of each group
    const void* weights;  // int8_t [groups][outputs][kernel_h][kernel_w][inputs]; or words of codes of pairs of outputs
    const void* levels;   // of codes, otherwise NULL
    int32_t level_bits, codes;  // bits of the number of a level, and codes in a word
    const uint8_t* pad;         // of each channel outside the map; NULL if windows do not extend beyond it
    const int32_t* constants;   // of the rescaling of each output
    bmx_rescaling rescaling;
} bmx_int8_conv;

// Taps of a window within the map along one axis.
typedef struct {
    int32_t first;       // row or column of the map under tap 0, negative in the padding
    int32_t begin, end;  // taps
} bmx_taps;

// code: 60 bytes
static bmx_taps bmx_taps_within(int32_t first, int32_t taps, int32_t dilation, int32_t size) {
    bmx_taps range = {first, 0, 0};
    range.begin = first < 0 ? (dilation - 1 - first) / dilation : 0;
    range.end = first < size ? (size - first + dilation - 1) / dilation : 0;
    range.end = range.end < taps ? range.end : taps;
    range.end = range.end > range.begin ? range.end : range.begin;
    return range;
}

// code: 28 bytes
static bmx_taps bmx_tap_rows(const bmx_window* window, int32_t row) {
    return bmx_taps_within(row * window->stride_h - window->pad_top, window->kernel_h, window->dilation_h,
                           window->height);
}

// code: 28 bytes
static bmx_taps bmx_tap_columns(const bmx_window* window, int32_t column) {
    return bmx_taps_within(column * window->stride_w - window->pad_left, window->kernel_w, window->dilation_w,
                           window->width);
}

// Returns the number of elements of a window; the padding up to `bottom` and `right` beyond the map counts if
// `counts_padding`.
// code: 68 bytes
static int32_t bmx_window_elements(const bmx_window* window, bmx_taps rows, bmx_taps columns, int counts_padding,
                                   int32_t bottom, int32_t right) {
    int32_t height = rows.end - rows.begin, width = columns.end - columns.begin;
    if (counts_padding) {
        const int32_t below = window->height + bottom - rows.first;
        const int32_t beside = window->width + right - columns.first;
        height = below < window->kernel_h ? below : window->kernel_h;
        width = beside < window->kernel_w ? beside : window->kernel_w;
    }
    return height * width;
}
