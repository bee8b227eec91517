// Layers of 8-bit integers. A map of bytes is multiplied by weights of 8 bits, sums have 32 bits.
#include "types.c"

// Return x rounded to the nearest integer, ties to even. Floats are limited to the magnitude 2^23, beyond which no
// integer is used.
// code: 92 bytes
static int32_t bmx_integer_f32(float x) {
    const float limit = 8388608.0f;  // floats from here on are integers
    if (!(x < limit)) {
        return 8388608;
    }
    if (x < -limit) {
        return -8388608;
    }
    return (int32_t)(x < 0 ? x - limit + limit : x + limit - limit);
}

// code: 2 bytes
static inline int32_t bmx_integer_i32(int32_t x) { return x; }

// code: 2 bytes
static inline int32_t bmx_integer_i16(int16_t x) { return x; }

// code: 2 bytes
static inline int32_t bmx_integer_u8(uint8_t x) { return x; }

// Return an integer, rescaled and limited. The first constant of the channel is the multiplier. The second one, the
// summand, and the products with the lower bits of the multiplier are divided by 2^split.
// code: 52 bytes
static inline int32_t bmx_rescaled_split(const bmx_rescaling* rescaling, const int32_t* constants, int32_t n) {
    const int32_t high = constants[0] >> rescaling->split;
    const int32_t low = constants[0] & (int32_t)(((uint32_t)1 << rescaling->split) - 1);
    const uint32_t below = (uint32_t)(n * low >> rescaling->split);
    const uint32_t sum = (uint32_t)n * (uint32_t)high + (uint32_t)constants[1] + below;  // the product may wrap around
    const int32_t y = (int32_t)sum >> rescaling->shift;
    return y < rescaling->min ? rescaling->min : y > rescaling->max ? rescaling->max : y;
}

// The sum has 64 bits. The second constant is the summand without the rounding, divided by 2^split, and `shift` is 8.
// code: 98 bytes
static inline int32_t bmx_rescaled_wide(const bmx_rescaling* rescaling, const int32_t* constants, int32_t n) {
    const int64_t product = (int64_t)n * constants[0] >> rescaling->split;
    const int64_t y = (product + constants[1] + 128) >> 8;
    return y < rescaling->min ? rescaling->min : y > rescaling->max ? rescaling->max : (int32_t)y;
}

// Rescales channels, whose constants are from `constants` on: numbers, limited to `low` to `high`, beyond which all
// have the same results. The result may be the input if it is of the same type.
// code: 120 bytes
static void bmx_rescale_value_result_form(const bmx_span* span, const value_t* x, int32_t low, int32_t high,
                                          const bmx_rescaling* rescaling, const int32_t* constants, result_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        const int32_t* of_channel = constants;
        for (int32_t c = 0; c < span->channels; ++c, of_channel += rescaling->step) {
            int32_t n = bmx_integer_value(x[c]);
            n = n < low ? low : n > high ? high : n;
            y[c] = (result_t)bmx_rescaled_form(rescaling, of_channel, n);
        }
    }
}

// Rounds and limits channels to bytes.
// code: 80 bytes
static void bmx_bytes_value(const bmx_span* span, const value_t* x, uint8_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            const int32_t n = bmx_integer_value(x[c]);
            y[c] = (uint8_t)(n < 0 ? 0 : n > 255 ? 255 : n);
        }
    }
}

// Counts thresholds, `count` of each channel one after the other: those that a number reaches, or, where it flips, the
// other ones.
// code: 136 bytes
static void bmx_multi_threshold_value(const bmx_span* span, const value_t* x, const value_t* thresholds,
                                      const uint8_t* flips, int32_t count, uint8_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        const value_t* of_channel = thresholds;
        for (int32_t c = 0; c < span->channels; ++c, of_channel += count) {
            int32_t reached = 0;
            for (int32_t i = 0; i < count; ++i) {
                reached += x[c] >= of_channel[i];
            }
            y[c] = (uint8_t)(flips[c] ? count - reached : reached);
        }
    }
}

#if defined(__GNUC__) && defined(__ARM_FEATURE_SIMD32) && defined(__ARM_FEATURE_UNALIGNED)
// Adds the products of four bytes and four weights: of the bytes 0 and 2, and of the bytes 1 and 3, which are pairs of
// numbers of 16 bits.
// code: 20 bytes
static inline int32_t bmx_add_four_products(int32_t sum, uint32_t even, uint32_t odd, const int8_t* filter) {
    uint32_t weights, pair;
    __builtin_memcpy(&weights, filter, 4);
    __asm__("sxtb16 %0, %1" : "=r"(pair) : "r"(weights));
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(even), "r"(pair));
    __asm__("sxtb16 %0, %1, ror #8" : "=r"(pair) : "r"(weights));
    __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(odd), "r"(pair));
    return sum;
}
#endif

// The condition is repeated because each block between empty lines is copied into a network on its own.
#if defined(__GNUC__) && defined(__ARM_FEATURE_SIMD32) && defined(__ARM_FEATURE_UNALIGNED)
// Adds the products of as many bytes as are a multiple of four. Returns their number.
// code: 56 bytes
static inline int32_t bmx_add_products(const uint8_t* x, const int8_t* filter, const int8_t* next, int32_t length,
                                       int32_t* first, int32_t* second) {
    int32_t i = 0;
    for (; i <= length - 4; i += 4) {
        uint32_t bytes, even, odd;
        __builtin_memcpy(&bytes, x + i, 4);
        __asm__("uxtb16 %0, %1" : "=r"(even) : "r"(bytes));
        __asm__("uxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(bytes));
        *first = bmx_add_four_products(*first, even, odd, filter + i);
        *second = bmx_add_four_products(*second, even, odd, next + i);
    }
    return i;
}
#else
#define bmx_add_products(x, filter, next, length, first, second) 0
#endif

// Computes the sums of the products of bytes and the weights of two filters, or of one twice if it is the only one
// left. Returns the filter after them. It is a function of its own, so that the loop has all registers of a Cortex-M0.
// code: 44 bytes
BMX_OPAQUE static const int8_t* bmx_products_i8(const bmx_int8_conv* layer, const uint8_t* x, const int8_t* filter,
                                                int32_t length, int32_t left, int32_t* sums) {
    const int8_t* next = left > 1 ? filter + length : filter;
    int32_t first = 0, second = 0;
    const int32_t added = bmx_add_products(x, filter, next, length, &first, &second);
    (void)layer;
    for (int32_t i = length; --i >= added;) {
        const int32_t byte = x[i];
        first += byte * filter[i];
        second += byte * next[i];
    }
    sums[0] = first;
    sums[1] = second;
    return next + length;
}

// The weights of a pair of filters are a code: the number of the first one's level, and below it the second one's. The
// codes of a word begin in its highest bits.
// code: 98 bytes
BMX_OPAQUE static const uint32_t* bmx_products_codes(const bmx_int8_conv* layer, const uint8_t* x,
                                                     const uint32_t* codes, int32_t length, int32_t left,
                                                     int32_t* sums) {
    const int8_t* levels = layer->levels;
    const int32_t bits = layer->level_bits, down = 32 - bits;
    int32_t first = 0, second = 0;
    (void)left;
    for (; length > 0; length -= layer->codes) {
        const uint8_t* end = x + (length < layer->codes ? length : layer->codes);
        uint32_t word = *codes++;
        do {
            const int32_t byte = *x++;
            first += byte * levels[word >> down];
            word <<= bits;
            second += byte * levels[word >> down];
            word <<= bits;
        } while (x != end);
    }
    sums[0] = first;
    sums[1] = second;
    return codes;
}

// The same, where the products of the codes of a word have sums of 16 bits. The levels of both weights of a code are in
// one number, first + 2^16 second, so that one product has both. `bits`, of a code, is a constant wherever this is
// called: a Cortex-M0 has no register left for it.
BMX_INLINE static const uint32_t* bmx_products_of(const bmx_int8_conv* layer, const uint8_t* x, const uint32_t* codes,
                                                  int32_t length, int32_t* sums, int32_t bits) {
    const uint32_t* levels = layer->levels;
    int32_t first = 0, second = 0;
    for (; length > 0; length -= 32 / bits) {
        const uint8_t* end = x + (length < 32 / bits ? length : 32 / bits);
        uint32_t word = *codes++, sum = 0;
        do {
            uint32_t level = levels[word >> (32 - bits)];
            word <<= bits;
            level *= *x++;
            sum += level;
        } while (x != end);
        const int32_t low = (int16_t)sum;
        first += low;
        second += (int32_t)(sum - (uint32_t)low) >> 16;
    }
    sums[0] = first;
    sums[1] = second;
    return codes;
}

// code: 82 bytes
BMX_OPAQUE static const uint32_t* bmx_products_pairs1(const bmx_int8_conv* layer, const uint8_t* x,
                                                      const uint32_t* codes, int32_t length, int32_t left,
                                                      int32_t* sums) {
    (void)left;
    return bmx_products_of(layer, x, codes, length, sums, 2);
}

// code: 82 bytes
BMX_OPAQUE static const uint32_t* bmx_products_pairs2(const bmx_int8_conv* layer, const uint8_t* x,
                                                      const uint32_t* codes, int32_t length, int32_t left,
                                                      int32_t* sums) {
    (void)left;
    return bmx_products_of(layer, x, codes, length, sums, 4);
}

// code: 82 bytes
BMX_OPAQUE static const uint32_t* bmx_products_pairs3(const bmx_int8_conv* layer, const uint8_t* x,
                                                      const uint32_t* codes, int32_t length, int32_t left,
                                                      int32_t* sums) {
    (void)left;
    return bmx_products_of(layer, x, codes, length, sums, 6);
}

// code: 82 bytes
BMX_OPAQUE static const uint32_t* bmx_products_pairs4(const bmx_int8_conv* layer, const uint8_t* x,
                                                      const uint32_t* codes, int32_t length, int32_t left,
                                                      int32_t* sums) {
    (void)left;
    return bmx_products_of(layer, x, codes, length, sums, 8);
}

// Copies the bytes of a group under the taps of a window: [kernel_h][kernel_w][inputs]. Outside the map are those of
// `pad`. The taps are passed by pointers: compilers for RISC-V would copy them by calls of memcpy.
// code: 190 bytes
BMX_OPAQUE static void bmx_gather_bytes(const bmx_int8_conv* layer, const uint8_t* x, int32_t x_stride,
                                        const uint8_t* pad, const bmx_taps* rows, const bmx_taps* columns,
                                        uint8_t* taps) {
    const bmx_window* window = &layer->window;
    const int32_t step = window->dilation_w * x_stride;
    for (int32_t row = 0; row < window->kernel_h; ++row) {
        int32_t offset = ((rows->first + row * window->dilation_h) * window->width + columns->first) * x_stride;
        for (int32_t column = 0; column < window->kernel_w; ++column, offset += step) {
            const int inside =
                row >= rows->begin && row < rows->end && column >= columns->begin && column < columns->end;
            const uint8_t* from = inside ? x + offset : pad;
            int32_t left = layer->inputs;
#if defined(__GNUC__) && defined(__ARM_FEATURE_UNALIGNED)
            for (; left >= 4; left -= 4, taps += 4, from += 4) {
                __builtin_memcpy(taps, from, 4);
            }
#endif
            for (; left > 0; --left) {
                *taps++ = *from++;
            }
        }
    }
}

// Computes a convolution of the map of bytes `x`. `taps` has room for the bytes of a window of a group; it is NULL if
// the window is a pixel of the map.
// code: 350 bytes
static void bmx_int8_conv_result_form_filter(const bmx_int8_conv* layer, const uint8_t* x, int32_t x_stride,
                                             uint8_t* taps, result_t* y, int32_t y_stride) {
    const bmx_window* window = &layer->window;
    const int32_t length = window->kernel_h * window->kernel_w * layer->inputs;
    for (int32_t row = 0; row < window->rows; ++row) {
        const bmx_taps rows = bmx_tap_rows(window, row);
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps columns = bmx_tap_columns(window, column);
            const filter_t* filter = layer->weights;
            const int32_t* constants = layer->constants;
            result_t* to = y;
            for (int32_t group = 0, first = 0; group < layer->groups; ++group, first += layer->inputs) {
                const uint8_t* from = taps;
                if (taps) {
                    bmx_gather_bytes(layer, x + first, x_stride, layer->pad + first, &rows, &columns, taps);
                } else {
                    from = x + (rows.first * window->width + columns.first) * x_stride + first;
                }
                for (int32_t left = layer->outputs; left > 0; left -= 2) {
                    int32_t sums[2];
                    filter = bmx_products_filter(layer, from, filter, length, left, sums);
                    for (int32_t i = 0; i < 2 && i < left; ++i, constants += layer->rescaling.step) {
                        *to++ = (result_t)bmx_rescaled_form(&layer->rescaling, constants, sums[i]);
                    }
                }
            }
        }
    }
}

// Lists the taps of a window: of each within the map the offset of its pixel and its number, from the front; of the
// others the number, from the back. Returns the end of the first part.
// code: 160 bytes
static const int32_t* bmx_list_taps(const bmx_window* window, int32_t x_stride, bmx_taps rows, bmx_taps columns,
                                    int32_t* list) {
    int32_t* back = list + 2 * window->kernel_h * window->kernel_w;
    for (int32_t row = 0, tap = 0; row < window->kernel_h; ++row) {
        int32_t offset = ((rows.first + row * window->dilation_h) * window->width + columns.first) * x_stride;
        for (int32_t column = 0; column < window->kernel_w; ++column, ++tap, offset += window->dilation_w * x_stride) {
            if (row >= rows.begin && row < rows.end && column >= columns.begin && column < columns.end) {
                *list++ = offset;
                *list++ = tap;
            } else {
                *--back = tap;
            }
        }
    }
    return list;
}

// Returns the sum of the products of the bytes under listed taps, from `tap` to `end`, and the weights of a filter.
// code: 30 bytes
BMX_OPAQUE static int32_t bmx_listed_products(const uint8_t* x, const int8_t* filter, const int32_t* tap,
                                              const int32_t* end) {
    int32_t sum = 0;
    for (; tap < end; tap += 2) {
        sum += x[tap[0]] * filter[tap[1]];
    }
    return sum;
}

// Computes a convolution with groups of one input. `taps` has room for two numbers of each tap.
// code: 300 bytes
static void bmx_int8_depthwise_result_form(const bmx_int8_conv* layer, const uint8_t* x, int32_t x_stride,
                                           int32_t* taps, result_t* y, int32_t y_stride) {
    const bmx_window* window = &layer->window;
    const int32_t length = window->kernel_h * window->kernel_w;
    for (int32_t row = 0; row < window->rows; ++row) {
        const bmx_taps rows = bmx_tap_rows(window, row);
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps columns = bmx_tap_columns(window, column);
            const int32_t* inside = bmx_list_taps(window, x_stride, rows, columns, taps);
            const int32_t* outside = taps + length + (inside - taps) / 2;
            const int8_t* filter = layer->weights;
            const int32_t* constants = layer->constants;
            result_t* to = y;
            for (int32_t group = 0; group < layer->groups; ++group) {
                for (int32_t i = layer->outputs; i > 0; --i, filter += length, constants += layer->rescaling.step) {
                    int32_t sum = bmx_listed_products(x + group, filter, taps, inside);
                    for (const int32_t* tap = outside; tap < taps + 2 * length; ++tap) {
                        sum += layer->pad[group] * filter[*tap];
                    }
                    *to++ = (result_t)bmx_rescaled_form(&layer->rescaling, constants, sum);
                }
            }
        }
    }
}

// Computes means of integers of each window, in multiples of 2^-fraction_bits and rounded half up; the padding up to
// `bottom` and `right` beyond the map counts if `counts_padding`.
// code: 340 bytes
static void bmx_integer_mean_value_result_sum(const bmx_window* window, const bmx_span* span, const value_t* x,
                                              int counts_padding, int32_t bottom, int32_t right, int32_t fraction_bits,
                                              result_t* y) {
    const int32_t x_row = window->width * span->x_stride;
    for (int32_t row = 0; row < window->rows; ++row) {
        const bmx_taps rows = bmx_tap_rows(window, row);
        for (int32_t column = 0; column < window->columns; ++column, y += span->y_stride) {
            const bmx_taps columns = bmx_tap_columns(window, column);
            const int32_t width = columns.end - columns.begin;
            const int32_t counted = bmx_window_elements(window, rows, columns, counts_padding, bottom, right);
            const value_t* corner =
                x + ((rows.first + rows.begin) * window->width + columns.first + columns.begin) * span->x_stride;
            for (int32_t c = 0; c < span->channels; ++c) {
                const value_t* from = corner + c;
                sum_t sum = 0;
                for (int32_t r = rows.end - rows.begin; r > 0; --r, from += x_row - width * span->x_stride) {
                    for (int32_t i = width; i > 0; --i, from += span->x_stride) {
                        const int32_t n = bmx_integer_value(*from);
                        sum += n < -32766 ? -32766 : n > 32766 ? 32766 : n;
                    }
                }
                const sum_t divisor = 2 * (sum_t)counted, dividend = sum * ((sum_t)2 << fraction_bits) + counted;
                const sum_t quotient = dividend / divisor;
                y[c] = (result_t)(quotient * divisor > dividend ? quotient - 1 : quotient);
            }
        }
    }
}
