// Operations on the elements of maps. The result of those of the same type may be the input.
#include "conv.c"

// code: 68 bytes
static void bmx_copy_value_result(const bmx_span* span, const value_t* x, result_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = (result_t)x[c];
        }
    }
}

// code: 90 bytes
static void bmx_add_value_result(const bmx_span* span, const value_t* x, result_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = (result_t)(y[c] + (result_t)x[c]);
        }
    }
}

// code: 134 bytes
static void bmx_maximum_value_result(const bmx_span* span, const value_t* x, result_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const result_t other = (result_t)x[c];
            const result_t larger = other > y[c] ? other : y[c];
            y[c] = larger == 0 ? 0 : larger;  // +0 for zeros of any signs
        }
    }
}

// code: 88 bytes
static void bmx_affine_value(const bmx_span* span, const value_t* x, const float* scale, const float* shift, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = bmx_multiply_add((float)x[c], scale[c], shift[c]);
        }
    }
}

// Scales the maxima of windows, and the minima of those whose scale is negative; zeros of the result are +0.
// code: 110 bytes
static void bmx_affine_maximum_value(const bmx_span* span, const value_t* x, const float* scale, const float* shift,
                                     float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float best = bmx_multiply_add((float)x[c], scale[c], shift[c]);
            y[c] = best == 0 ? 0 : best;
        }
    }
}

// code: 90 bytes
static void bmx_relu_signed(const bmx_span* span, const signed_t* x, signed_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = x[c] == 0 ? x[c] : 0 > x[c] ? 0 : x[c];  // Clang makes the second choice a maximum: +0 for -0 on ARM
        }
    }
}

// code: 106 bytes
static void bmx_abs_signed(const bmx_span* span, const signed_t* x, signed_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = (signed_t)(0 > x[c] ? -x[c] : x[c] + 0);
        }
    }
}

// code: 102 bytes
static void bmx_prelu_value(const bmx_span* span, const value_t* x, const float* slope, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c];
            y[c] = number > 0 ? number : number * slope[c];
        }
    }
}

// code: 114 bytes
static void bmx_clip_value(const bmx_span* span, const value_t* x, const float* low, const float* high, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c], raised = number < low[c] ? low[c] : number;
            y[c] = raised > high[c] ? high[c] : raised;
        }
    }
}

// Returns exp(-|x|), for |x| > 87 exp(-87), with the operations of the engine
// (csrc/kernels/common/elementwise_loops.h).
// code: 200 bytes
static float bmx_decay(float x) {
    const float magnitude = x < 0 ? x : -x;
    const float exponent = magnitude > -87.0f ? magnitude : -87.0f;
    const float n = bmx_multiply_add(exponent, 1.44269504f, 12582912.0f) - 12582912.0f;
    const float r = bmx_multiply_add(n, 2.12194440e-4f, bmx_multiply_add(n, -0.693359375f, exponent));
    float p = 1.9875691500e-4f;
    p = bmx_multiply_add(p, r, 1.3981999507e-3f);
    p = bmx_multiply_add(p, r, 8.3334519073e-3f);
    p = bmx_multiply_add(p, r, 4.1665795894e-2f);
    p = bmx_multiply_add(p, r, 1.6666665459e-1f);
    p = bmx_multiply_add(p, r, 5.0000001201e-1f);
    p = bmx_multiply_add(p * r, r, r) + 1.0f;
    union {
        int32_t bits;
        float number;
    } power = {(int32_t)((uint32_t)((int32_t)n + 127) << 23)};
    return p * power.number;
}

// code: 128 bytes
static void bmx_sigmoid_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c], decay = bmx_decay(number), share = 1.0f / (1.0f + decay);
            y[c] = number < 0 ? decay * share : share;
        }
    }
}

// Computes log(1 + exp(x)), with the operations of the engine.
// code: 260 bytes
static void bmx_softplus_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c], decay = bmx_decay(number);
            const float z = decay / (2.0f + decay), square = z * z;
            float p = 1.0f / 15;
            p = bmx_multiply_add(p, square, 1.0f / 13);
            p = bmx_multiply_add(p, square, 1.0f / 11);
            p = bmx_multiply_add(p, square, 1.0f / 9);
            p = bmx_multiply_add(p, square, 1.0f / 7);
            p = bmx_multiply_add(p, square, 1.0f / 5);
            p = bmx_multiply_add(p, square, 1.0f / 3);
            const float logarithm = 2.0f * bmx_multiply_add(p * square, z, z);
            y[c] = number > 0 ? number + logarithm : logarithm;
        }
    }
}

// Computes x times the distribution function of the normal distribution, with the operations of the engine.
// code: 276 bytes
static void bmx_gelu_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c], z = (number < 0 ? -number : number) * 0.707106781f;
            const float t = 1.0f / bmx_multiply_add(0.3275911f, z, 1.0f);
            float p = 1.061405429f;
            p = bmx_multiply_add(p, t, -1.453152027f);
            p = bmx_multiply_add(p, t, 1.421413741f);
            p = bmx_multiply_add(p, t, -0.284496736f);
            p = bmx_multiply_add(p, t, 0.254829592f);
            const float tail = 0.5f * p * t * bmx_decay(z * z);
            y[c] = number < 0 ? number * tail : bmx_multiply_add(-number, tail, number);
        }
    }
}

// code: 114 bytes
static void bmx_elu_value(const bmx_span* span, const value_t* x, const float* slope, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c];
            y[c] = number > 0 ? number : (bmx_decay(number) - 1) * slope[c];
        }
    }
}

// Rounds to the nearest integer, ties to even: the sum with 2^23, of the same sign, has no bit for a fraction. Zeros
// have the sign of what they are rounded from.
// code: 162 bytes
static void bmx_round_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const float number = (float)x[c], magnitude = number < 0 ? -number : number;
            const float rounding = number < 0 ? -8388608.0f : 8388608.0f;
            const float rounded = magnitude < 8388608.0f ? (number + rounding) - rounding : number;
            y[c] = magnitude > 0.5f ? rounded : number * 0;
        }
    }
}

// code: 88 bytes
static void bmx_divide_value(const bmx_span* span, const value_t* x, const float* divisor, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = (float)x[c] / divisor[c];
        }
    }
}

// Multiplies `y`, a map of `columns` pixels a row, by `x`. Steps of 0 along an axis repeat `x`.
// code: 116 bytes
static void bmx_multiply_value(const bmx_span* span, int32_t columns, const value_t* x, int32_t x_row, int32_t x_column,
                               int32_t x_channel, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, y += span->y_stride) {
        const value_t* from = x + pixel / columns * x_row + pixel % columns * x_column;
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] *= (float)from[c * x_channel];
        }
    }
}

// Adds `x` to `y`, a map of `columns` pixels a row. Steps of 0 along an axis repeat `x`.
// code: 116 bytes
static void bmx_shift_value(const bmx_span* span, int32_t columns, const value_t* x, int32_t x_row, int32_t x_column,
                            int32_t x_channel, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, y += span->y_stride) {
        const value_t* from = x + pixel / columns * x_row + pixel % columns * x_column;
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] += (float)from[c * x_channel];
        }
    }
}
