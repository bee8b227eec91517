// Operations on sequences: softmax, products of matrices, and normalizations.
#include "elementwise.c"
#include "int8.c"

// Returns the sum of floats: as in the engine, 16 sums of 64 numbers, their sum, and the sum of these in double
// precision.
// code: 188 bytes
static double bmx_sum_of(const float* x, int32_t count) {
    double total = 0;
    for (int32_t begin = 0; begin < count; begin += 1024) {
        const int32_t end = count - begin < 1024 ? count : begin + 1024;
        float sums[16];
        for (int32_t i = 0; i < 16; ++i) {
            sums[i] = 0;
        }
        for (int32_t c = begin; c < end; ++c) {
            sums[c % 16] += x[c];
        }
        for (int32_t width = 8; width > 0; width /= 2) {
            for (int32_t i = 0; i < width; ++i) {
                sums[i] += sums[i + width];
            }
        }
        total += (double)sums[0];
    }
    return total;
}

// Computes the softmax of each of `groups` groups of channels.
// code: 236 bytes
static void bmx_softmax_value(const bmx_span* span, int32_t groups, const value_t* x, float* y) {
    const int32_t length = span->channels / groups;
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t first = 0; first < span->channels; first += length) {
            float largest = (float)x[first];
            for (int32_t c = 1; c < length; ++c) {
                const float number = (float)x[first + c];
                largest = number > largest ? number : largest;
            }
            for (int32_t c = 0; c < length; ++c) {
                y[first + c] = bmx_decay((float)x[first + c] - largest);
            }
            const float sum = (float)bmx_sum_of(y + first, length);
            for (int32_t c = 0; c < length; ++c) {
                y[first + c] /= sum;
            }
        }
    }
}

// Computes x times b for each of `heads` matrices, of which rows are pixels. Rows and columns of `b`, which has `count`
// columns, are `row` and `column` elements apart, and its matrices `head`. Each `width` pixels have other matrices,
// `map` elements apart.
// code: 258 bytes
static void bmx_matmul_value(const bmx_span* span, int32_t width, int32_t map, int32_t heads, const value_t* x,
                             const float* b, int32_t head, int32_t row, int32_t column, int32_t count, float* y) {
    const int32_t length = span->channels / heads;
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        b += pixel > 0 && pixel % width == 0 ? map : 0;
        for (int32_t h = 0; h < heads; ++h) {
            for (int32_t i = 0; i < count; ++i) {
                const float* other = b + h * head + i * column;
                float sum = 0;
                for (int32_t k = 0; k < length; ++k, other += row) {
                    sum = bmx_multiply_add((float)x[h * length + k], *other, sum);
                }
                y[h * count + i] = sum;
            }
        }
    }
}

// Copies pixels of a map: to each pixel of y the one with its place, counted from `begin` to before `end`. Other places
// are of other maps.
// code: 100 bytes
static void bmx_gather_value(const bmx_span* span, const int32_t* places, int32_t begin, int32_t end, const value_t* x,
                             float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, y += span->y_stride) {
        if (places[pixel] >= begin && places[pixel] < end) {
            const value_t* from = x + (places[pixel] - begin) * span->x_stride;
            for (int32_t c = 0; c < span->channels; ++c) {
                y[c] = (float)from[c];
            }
        }
    }
}

// Returns the square root of a positive number, rounded to the nearest, ties to even: bit by bit, in integers.
// code: 188 bytes
static double bmx_root(double x) {
    union {
        double number;
        uint64_t bits;
    } value = {x};
    int32_t exponent = (int32_t)(value.bits >> 52);
    uint64_t significand = value.bits & 0xfffffffffffffu, root = 0, rest = 0;
    if (exponent == 0 || exponent == 2047) {  // zero, and what no normalization has: denormal, infinite or not a number
        return x;
    }
    significand |= 1ull << 52;
    exponent -= 1023;
    significand <<= 10 + (exponent & 1);  // the first two bits are the whole part
    for (int32_t bit = 0; bit < 54; ++bit, significand <<= 2) {
        rest = rest << 2 | significand >> 62;
        root <<= 1;
        if (rest > root << 1) {
            rest -= root << 1 | 1;
            root |= 1;
        }
    }
    root = (root >> 1) + (root & 1);  // a root is never halfway between two numbers
    value.bits = ((uint64_t)((exponent >> 1) + 1022) << 52) + root;
    return value.number;
}

// Returns the square of a number: a function that is not inlined, as a compiler may else fuse its product with a sum.
// code: 12 bytes
BMX_OPAQUE static double bmx_square(double x) { return x * x; }

// Subtracts the mean of each of `groups` groups of channels and divides by the root of the variance plus `eps`, over
// all pixels, or at each pixel. All sums are in double precision, in the order of the engine.
// code: 436 bytes
static void bmx_normalize_value(const bmx_span* span, int32_t groups, int by_pixel, double eps, const value_t* x,
                                float* y) {
    const int32_t length = span->channels / groups, pixels = by_pixel ? 1 : span->pixels;
    for (int32_t pixel = 0; pixel < span->pixels; pixel += pixels) {
        for (int32_t first = 0; first < span->channels; first += length) {
            const value_t* from = x + pixel * span->x_stride + first;
            float* to = y + pixel * span->y_stride + first;
            const double count = (double)pixels * length;
            double sum = 0, squares = 0;
            for (int32_t i = 0; i < pixels; ++i) {
                for (int32_t c = 0; c < length; ++c) {
                    sum += (double)from[i * span->x_stride + c];
                }
            }
            const double mean = sum / count;
            for (int32_t i = 0; i < pixels; ++i) {
                for (int32_t c = 0; c < length; ++c) {
                    squares += bmx_square((double)from[i * span->x_stride + c] - mean);
                }
            }
            const double scale = 1 / bmx_root(squares / count + eps);
            for (int32_t i = 0; i < pixels; ++i) {
                for (int32_t c = 0; c < length; ++c) {
                    to[i * span->y_stride + c] = (float)(((double)from[i * span->x_stride + c] - mean) * scale);
                }
            }
        }
    }
}

// Copies row n of `table` to the channels of each pixel, whose number is n, limited to 0 to rows - 1.
// code: 120 bytes
static void bmx_embedding_value_weight(const bmx_span* span, int32_t rows, const value_t* x, const void* table,
                                       float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        int32_t n = bmx_integer_value(*x);
        n = n < 0 ? 0 : n >= rows ? rows - 1 : n;
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = bmx_at_weight(table, n * span->channels + c, 0);
        }
    }
}
