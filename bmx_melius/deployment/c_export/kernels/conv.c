// Float convolutions and dense layers. Each sum begins with 0, or with that of the channels before, and adds one
// product after the other, rounded once each, in the order of the weights: the results have the bits of the engine's.
#include "types.c"

#define bmx_from_weight bmx_from_f32

// Returns a b + c, rounded once.
#if defined(__GNUC__) && \
    (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || (defined(__riscv_flen) && __riscv_flen >= 32))
static inline float bmx_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
typedef union {
    float number;
    uint32_t bits;
} bmx_float;
// Returns the digits of a number other than 0, the first in the highest bit, and changes its exponent accordingly.
static inline uint32_t bmx_digits_of(bmx_float x, int32_t* exponent) {
    uint32_t digits = x.bits << 8;
    if (*exponent) {
        return digits | 0x80000000u;
    }
    for (*exponent = 1; !(digits >> 31); --*exponent) {  // a denormal number
        digits <<= 1;
    }
    return digits;
}
// Shifts digits right; the lowest bit says whether others than 0 were lost.
static inline uint64_t bmx_shifted(uint64_t digits, int32_t shift) {
    if (shift > 62) {
        return 1;
    }
    return shift ? digits >> shift | (digits << (64 - shift) != 0) : digits;
}
// Returns a b + c in integers.
static float bmx_multiply_add(float a, float b, float c) {
    const bmx_float x = {a}, y = {b}, z = {c};
    int32_t exponent = x.bits >> 23 & 255, y_exponent = y.bits >> 23 & 255, z_exponent = z.bits >> 23 & 255;
    if (exponent == 255 || y_exponent == 255 || z_exponent == 255) {
        return exponent == 255 || y_exponent == 255 ? a * b + c : c;  // not finite
    }
    if (!(x.bits << 1) || !(y.bits << 1)) {
        return z.bits << 1 ? c : a * b + c;
    }
    if (!(z.bits << 1)) {
        return a * b;
    }
    uint64_t sum = (uint64_t)bmx_digits_of(x, &exponent) * bmx_digits_of(y, &y_exponent);  // at most 48 digits
    uint64_t other = (uint64_t)bmx_digits_of(z, &z_exponent) << 31;
    exponent += y_exponent - 126;
    if (sum >> 63) {
        sum >>= 1;
    } else {
        --exponent;
    }
    // Both have their first digit in bit 62. The smaller one is shifted.
    if (exponent >= z_exponent) {
        const int32_t shift = exponent - z_exponent;
        other = shift < 40 ? other >> shift : bmx_shifted(other, shift);  // 24 digits
    } else {
        const int32_t shift = z_exponent - exponent;
        sum = shift < 15 ? sum >> shift : bmx_shifted(sum, shift);
        exponent = z_exponent;
    }
    bmx_float result = {.bits = (x.bits ^ y.bits) & 0x80000000u};
    if (result.bits == (z.bits & 0x80000000u)) {
        sum += other;
    } else if (sum == other) {
        return 0;
    } else if (sum > other) {
        sum -= other;
    } else {
        sum = other - sum;
        result.bits ^= 0x80000000u;
    }
    for (++exponent; !(sum >> 63); --exponent) {
        sum <<= 1;
    }
    if (exponent < 1) {  // the result is a denormal number
        sum = bmx_shifted(sum >> 1 | (sum & 1), -exponent);
        exponent = 1;
    }
    const uint32_t high = (uint32_t)(sum >> 32), kept = high >> 8;
    const uint32_t rounds = (high & 0x80) && ((high & 0x17f) || (uint32_t)sum);  // to the nearest, ties to even
    const uint32_t magnitude =
        ((uint32_t)(exponent - 1) << 23) + kept + rounds;  // the first digit adds 1 to the exponent
    result.bits |= exponent > 254 || magnitude > 0x7f800000u ? 0x7f800000u : magnitude;
    return result.number;
}
#endif

static inline float bmx_from_f32(float x) { return x; }

// Returns a number stored in half precision.
static float bmx_from_f16(uint16_t x) {
    union {
        uint32_t bits;
        float number;
    } result;
    const uint32_t exponent = x >> 10 & 31, digits = x & 1023;
    if (exponent) {
        result.bits = (exponent == 31 ? 255 : exponent + 112) << 23 | digits << 13;
    } else {
        result.number = (float)digits * 0x1p-24f;  // a denormal number
    }
    result.bits |= (uint32_t)(x & 0x8000) << 16;
    return result.number;
}

// Computes a convolution, for each window in the order: tap row, tap column, input. If `continues`, adds to `y`.
static void bmx_conv_value_weight(const bmx_conv* layer, const value_t* x, int32_t x_stride, float* y, int32_t y_stride,
                                  int continues) {
    const bmx_window* window = &layer->window;
    const weight_t* weights = layer->weights;
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            for (int32_t o = 0; o < layer->groups * layer->outputs; ++o) {
                float sum = continues ? y[o] : 0;
                for (int32_t r = rows.begin; r < rows.end; ++r) {
                    for (int32_t c = columns.begin; c < columns.end; ++c) {
                        const weight_t* weight =
                            weights + ((o * window->kernel_h + r) * window->kernel_w + c) * layer->inputs;
                        const int32_t pixel = (rows.first + r * window->dilation_h) * window->width + columns.first +
                                              c * window->dilation_w;
                        const value_t* from = x + pixel * x_stride + o / layer->outputs * layer->inputs;
                        for (int32_t i = 0; i < layer->inputs; ++i) {
                            sum = bmx_multiply_add(from[i], bmx_from_weight(weight[i]), sum);
                        }
                    }
                }
                y[o] = layer->bias ? sum + layer->bias[o] : sum;
            }
        }
    }
}

// Computes a convolution, for each window in the order: tap row, input, tap column. The elements of `x` are `x_stride`
// apart along a row, and its channels `x_channel`.
static void bmx_conv_planar_weight(const bmx_conv* layer, const float* x, int32_t x_stride, int32_t x_channel, float* y,
                                   int32_t y_stride) {
    const bmx_window* window = &layer->window;
    const weight_t* weights = layer->weights;
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            for (int32_t o = 0; o < layer->groups * layer->outputs; ++o) {
                float sum = 0;
                for (int32_t r = rows.begin; r < rows.end; ++r) {
                    const int32_t pixel = (rows.first + r * window->dilation_h) * window->width + columns.first;
                    for (int32_t i = 0; i < layer->inputs; ++i) {
                        const weight_t* weight =
                            weights + ((o * window->kernel_h + r) * layer->inputs + i) * window->kernel_w;
                        const float* from = x + (o / layer->outputs * layer->inputs + i) * x_channel;
                        for (int32_t c = columns.begin; c < columns.end; ++c) {
                            sum = bmx_multiply_add(bmx_from_weight(weight[c]),
                                                   from[(pixel + c * window->dilation_w) * x_stride], sum);
                        }
                    }
                }
                y[o] = layer->bias ? sum + layer->bias[o] : sum;
            }
        }
    }
}
