// Float convolutions and dense layers. Each sum begins with 0, or with that of the channels before, and adds one
// product after the other, rounded once each, in the order of the weights: the results have the bits of the engine's.
#include "types.c"

#define bmx_at_weight bmx_at_f32

// Returns a b + c, rounded once.
#if defined(__GNUC__) && \
    (defined(__FMA__) || defined(__ARM_FEATURE_FMA) || (defined(__riscv_flen) && __riscv_flen >= 32))
// code: 756 bytes
static inline float bmx_multiply_add(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
#else
typedef union {
    float number;
    uint32_t bits;
} bmx_float;
// Returns the significand of a number other than 0, its first bit in the highest one, and changes its exponent
// accordingly.
static inline uint32_t bmx_significand_of(bmx_float x, int32_t* exponent) {
    uint32_t significand = x.bits << 8;
    if (*exponent) {
        return significand | 0x80000000u;
    }
    for (*exponent = 1; !(significand >> 31); --*exponent) {  // a denormal number
        significand <<= 1;
    }
    return significand;
}
// Shifts a significand right; the lowest bit is set if set bits were lost (sticky bit).
static uint64_t bmx_shifted(uint64_t significand, int32_t shift) {
    for (; shift > 0 && significand > 1; --shift) {
        significand = significand >> 1 | (significand & 1);
    }
    return significand;
}
// Returns a number with this significand, whose first bit is the highest one, rounded to the nearest, ties to even.
// `sign` is the sign bit; the exponent may be outside the range of float.
static inline float bmx_rounded(uint32_t sign, int32_t exponent, uint64_t significand) {
    const uint32_t high = (uint32_t)(significand >> 32) | ((uint32_t)significand != 0), kept = high >> 8;
    const uint32_t rounds = ((high & 0xff) + (kept & 1) + 0x7f) >> 8;
    // The first bit of the significand adds 1 to the exponent, and so may rounding.
    const bmx_float result = {.bits = sign | (((uint32_t)(exponent - 1) << 23) + kept + rounds)};
    return result.number;
}
// Returns a b + c for all numbers.
static float bmx_multiply_add_any(float a, float b, float c) {
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
    uint64_t sum =
        (uint64_t)bmx_significand_of(x, &exponent) * bmx_significand_of(y, &y_exponent) >> 1;  // at most 48 bits
    uint64_t other = (uint64_t)bmx_significand_of(z, &z_exponent) << 31;
    exponent += y_exponent - 126;  // of bit 62
    if (exponent >= z_exponent) {
        other = bmx_shifted(other, exponent - z_exponent);
    } else {
        sum = bmx_shifted(sum, z_exponent - exponent);
        exponent = z_exponent;
    }
    uint32_t sign = (x.bits ^ y.bits) & 0x80000000u;
    sum = (z.bits ^ sign) >> 31 ? sum - other : sum + other;
    if (!sum) {
        return 0;
    }
    if ((z.bits ^ sign) >> 31 && sum >> 63) {
        sum = 0 - sum;
        sign ^= 0x80000000u;
    }
    for (++exponent; !(sum >> 63); --exponent) {
        sum <<= 1;
    }
    if (exponent < 1) {  // a denormal number
        return bmx_rounded(sign, 1, bmx_shifted(sum, 1 - exponent));
    }
    const bmx_float infinity = {.bits = sign | 0x7f800000u};
    return exponent > 254 ? infinity.number : bmx_rounded(sign, exponent, sum);
}
// Returns a b + c in integers. Most numbers take few instructions.
static float bmx_multiply_add(float a, float b, float c) {
    const bmx_float x = {a}, y = {b}, z = {c};
    const uint32_t x_exponent = x.bits >> 23 & 255, y_exponent = y.bits >> 23 & 255, z_exponent = z.bits >> 23 & 255;
    if (x_exponent - 1 > 253 || y_exponent - 1 > 253 || z_exponent - 1 > 253) {  // zero, denormal or not finite
        const int is_zero = !(x.bits << 1) && y_exponent != 255 && z.bits != 0x80000000u;
        return is_zero ? c : bmx_multiply_add_any(a, b, c);
    }
    const uint64_t product = (uint64_t)(x.bits << 8 | 0x80000000u) * ((y.bits << 8 | 0x80000000u) >> 1);
    uint32_t high = (uint32_t)(product >> 32), low = (uint32_t)product;
    uint32_t other = (z.bits << 8 | 0x80000000u) >> 1, other_low = 0;
    // Bit 30 of the high words has the exponent. The smaller number is shifted; bits that are lost set the lowest one.
    int32_t exponent = (int32_t)(x_exponent + y_exponent) - 126;
    int32_t shift = exponent - (int32_t)z_exponent;
    if (shift < 0) {
        shift = -shift;
        exponent = (int32_t)z_exponent;
        if (shift < 32) {
            const uint32_t lost = low << (32 - shift);
            low = low >> shift | high << (32 - shift) | (lost != 0);
            high >>= shift;
        } else {
            low = 1;
            high = 0;
        }
    } else if (shift > 31) {
        return bmx_multiply_add_any(a, b, c);
    } else if (shift) {
        other_low = other << (32 - shift);
        other >>= shift;
    }
    uint64_t sum = (uint64_t)high << 32 | low;
    const uint64_t summand = (uint64_t)other << 32 | other_low;
    uint32_t sign = (x.bits ^ y.bits) & 0x80000000u;
    if ((z.bits ^ sign) >> 31) {
        sum -= summand;
        if (sum >> 63) {
            sum = 0 - sum;
            sign ^= 0x80000000u;
        }
        if (!(sum >> 32)) {
            return bmx_multiply_add_any(a, b, c);
        }
    } else {
        sum += summand;
    }
    for (++exponent; !(sum >> 63); --exponent) {
        sum <<= 1;
    }
    return exponent - 1 > 252 || exponent < 1 ? bmx_multiply_add_any(a, b, c) : bmx_rounded(sign, exponent, sum);
}
#endif

// Returns weight `index`, which belongs to a position of the kernel.
static inline float bmx_at_f32(const void* weights, int32_t index, int32_t position) {
    (void)position;
    return ((const float*)weights)[index];
}

// code: 60 bytes
static float bmx_at_f16(const void* weights, int32_t index, int32_t position) {
    (void)position;
    const uint32_t x = ((const uint16_t*)weights)[index];
    union {
        uint32_t bits;
        float number;
    } result;
    const uint32_t exponent = x >> 10 & 31, significand = x & 1023;
    if (exponent) {
        result.bits = (exponent == 31 ? 255 : exponent + 112) << 23 | significand << 13;
    } else {
        result.number = (float)significand * 0x1p-24f;  // a denormal number
    }
    result.bits |= (x & 0x8000) << 16;
    return result.number;
}

// code: 60 bytes
static float bmx_at_levels(const void* weights, int32_t index, int32_t position) {
    const bmx_levels* stored = weights;
    const uint32_t* codes = stored->codes + (index >> 5);
    uint32_t number = 0;
    for (int32_t bit = 0; bit < stored->bits; ++bit, codes += stored->words) {
        number |= (*codes >> (index & 31) & 1) << bit;
    }
    return stored->levels[position * stored->step + (int32_t)number];
}

// Computes a convolution, for each window in the order: tap row, tap column, input. If `continues`, adds to `y`.
// code: 334 bytes
static void bmx_conv_value_weight(const bmx_conv* layer, const value_t* x, int32_t x_stride, float* y, int32_t y_stride,
                                  int continues) {
    const bmx_window* window = &layer->window;
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            for (int32_t o = 0; o < layer->groups * layer->outputs; ++o) {
                float sum = continues ? y[o] : 0;
                for (int32_t r = rows.begin; r < rows.end; ++r) {
                    for (int32_t c = columns.begin; c < columns.end; ++c) {
                        const int32_t position = r * window->kernel_w + c;
                        const int32_t first = (o * window->kernel_h * window->kernel_w + position) * layer->inputs;
                        const int32_t pixel = (rows.first + r * window->dilation_h) * window->width + columns.first +
                                              c * window->dilation_w;
                        const value_t* from = x + pixel * x_stride + o / layer->outputs * layer->inputs;
                        for (int32_t i = 0; i < layer->inputs; ++i) {
                            const float weight = bmx_at_weight(layer->weights, first + i, position);
                            sum = bmx_multiply_add((float)from[i], weight, sum);
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
// code: 306 bytes
static void bmx_conv_planar_weight(const bmx_conv* layer, const float* x, int32_t x_stride, int32_t x_channel, float* y,
                                   int32_t y_stride) {
    const bmx_window* window = &layer->window;
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            for (int32_t o = 0; o < layer->groups * layer->outputs; ++o) {
                float sum = 0;
                for (int32_t r = rows.begin; r < rows.end; ++r) {
                    const int32_t pixel = (rows.first + r * window->dilation_h) * window->width + columns.first;
                    for (int32_t i = 0; i < layer->inputs; ++i) {
                        const int32_t first = ((o * window->kernel_h + r) * layer->inputs + i) * window->kernel_w;
                        const float* from = x + (o / layer->outputs * layer->inputs + i) * x_channel;
                        for (int32_t c = columns.begin; c < columns.end; ++c) {
                            const float weight = bmx_at_weight(layer->weights, first + c, r * window->kernel_w + c);
                            sum = bmx_multiply_add(weight, from[(pixel + c * window->dilation_w) * x_stride], sum);
                        }
                    }
                }
                y[o] = layer->bias ? sum + layer->bias[o] : sum;
            }
        }
    }
}
