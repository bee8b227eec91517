// Bits: comparison with thresholds, binary convolutions. The channels of a pixel are 32 to a word, the first in the
// lowest bit; bits beyond the last channel are 0.
#include "types.c"

// Compares channels with thresholds; they become channels of `bits` from `first` on, which has `words` words a pixel.
// Channels must be added in ascending order: their words are begun with 0.
// code: 190 bytes
static void bmx_threshold_value(const bmx_span* span, const value_t* x, const value_t* threshold, uint32_t* bits,
                                int32_t words, int32_t first) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, bits += words) {
        uint32_t* to = bits + first / 32;
        int32_t shift = first % 32;
        uint32_t word = shift ? *to : 0;
        for (int32_t c = 0; c < span->channels; ++c) {
            word |= (uint32_t)(x[c] >= threshold[c]) << shift;
            if (++shift == 32) {
                *to++ = word;
                word = 0;
                shift = 0;
            }
        }
        if (shift) {
            *to = word;
        }
    }
}

// Inverts channels.
// code: 50 bytes
static void bmx_flip(int32_t pixels, int32_t words, const uint32_t* flip, uint32_t* bits) {
    for (int32_t pixel = 0; pixel < pixels; ++pixel) {
        for (int32_t i = 0; i < words; ++i) {
            *bits++ ^= flip[i];
        }
    }
}

// Counts the bits in which two arrays of words differ.
#if defined(__GNUC__) && (defined(__POPCNT__) || defined(__riscv_zbb) || defined(__aarch64__))
// code: 276 bytes
static int32_t bmx_differing(const uint32_t* a, const uint32_t* b, int32_t words) {
    int32_t count = 0;
    for (; words >= 3; words -= 3, a += 3, b += 3) {  // windows of 3 x 3 need no other loop
        count += __builtin_popcount(a[0] ^ b[0]) + __builtin_popcount(a[1] ^ b[1]) + __builtin_popcount(a[2] ^ b[2]);
    }
    while (words-- > 0) {
        count += __builtin_popcount(*a++ ^ *b++);
    }
    return count;
}
#else
// Return counts of two, four and eight bits, from those of half as many.
static inline uint32_t bmx_pairs(uint32_t x) { return x - (x >> 1 & 0x55555555u); }
static inline uint32_t bmx_quads(uint32_t x) { return (x & 0x33333333u) + (x >> 2 & 0x33333333u); }
static inline uint32_t bmx_octets(uint32_t x) { return (x & 0x0f0f0f0fu) + (x >> 4 & 0x0f0f0f0fu); }
static int32_t bmx_differing(const uint32_t* a, const uint32_t* b, int32_t words) {
    uint32_t count = 0;
    // Seven bits of each place are added to a number of three digits, of which all places are counted.
    for (; words >= 7; words -= 7, a += 7, b += 7) {
        const uint32_t x0 = a[0] ^ b[0], x1 = a[1] ^ b[1], x2 = a[2] ^ b[2];
        const uint32_t either0 = x0 ^ x1, sum0 = either0 ^ x2, carry0 = (x0 & x1) | (either0 & x2);
        const uint32_t x3 = a[3] ^ b[3], x4 = a[4] ^ b[4];
        const uint32_t either1 = sum0 ^ x3, sum1 = either1 ^ x4, carry1 = (sum0 & x3) | (either1 & x4);
        const uint32_t x5 = a[5] ^ b[5], x6 = a[6] ^ b[6];
        const uint32_t either2 = sum1 ^ x5, ones = either2 ^ x6, carry2 = (sum1 & x5) | (either2 & x6);
        const uint32_t either3 = carry0 ^ carry1, twos = either3 ^ carry2;
        const uint32_t fours = (carry0 & carry1) | (either3 & carry2);
        const uint32_t low = bmx_quads(bmx_pairs(ones)) + 2 * bmx_quads(bmx_pairs(twos));
        const uint32_t octets = bmx_octets(low) + 4 * bmx_octets(bmx_quads(bmx_pairs(fours)));
        count += octets * 0x01010101u >> 24;
    }
    for (; words > 0; --words) {
        const uint32_t quads = bmx_quads(bmx_pairs(*a++ ^ *b++));
        count += ((quads + (quads >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
    }
    return (int32_t)count;
}
#endif

// Copies the words of a group under the taps of a window: [kernel_h][kernel_w][words]. Taps outside the map are -1
// or 1.
// code: 206 bytes
static void bmx_gather_taps(const bmx_binary_conv* layer, const uint32_t* x, bmx_taps rows, bmx_taps columns,
                            uint32_t* taps) {
    const bmx_window* window = &layer->window;
    const int32_t stride = layer->groups * layer->words, rest = layer->inputs % 32;
    for (int32_t row = 0; row < window->kernel_h; ++row) {
        for (int32_t column = 0; column < window->kernel_w; ++column) {
            const int inside = row >= rows.begin && row < rows.end && column >= columns.begin && column < columns.end;
            const uint32_t* from = x;
            if (inside) {
                from += ((rows.first + row * window->dilation_h) * window->width + columns.first +
                         column * window->dilation_w) *
                        stride;
            }
            for (int32_t i = 0; i < layer->words; ++i) {
                const uint32_t ones = i + 1 == layer->words && rest ? ((uint32_t)1 << rest) - 1 : 0xffffffffu;
                *taps++ = inside ? from[i] : layer->pad_value == 1 ? ones : 0;
            }
        }
    }
}

// Computes a binary convolution of the map of bits `x`, or adds it to `y`. `taps` has room for the words of a window.
// code: 446 bytes
static void bmx_binary_conv_result(const bmx_binary_conv* layer, const uint32_t* x, uint32_t* taps, result_t* y,
                                   int32_t y_stride, int adds) {
    const bmx_window* window = &layer->window;
    const int32_t length = window->kernel_h * window->kernel_w * layer->words;
    const int32_t weights = window->kernel_h * window->kernel_w * layer->inputs;
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            const uint32_t* filter = layer->weights;
            // Without a value outside the map only the taps within it are counted: a few words in each of some rows.
            const int32_t inside = (rows.end - rows.begin) * (columns.end - columns.begin) * layer->inputs;
            const int clipped = layer->pad_value == 0 && inside < weights;
            const int32_t counted = clipped ? inside : weights;
            const int32_t first = clipped ? (rows.begin * window->kernel_w + columns.begin) * layer->words : 0;
            const int32_t part = clipped ? (columns.end - columns.begin) * layer->words : length;
            const int32_t parts = clipped ? rows.end - rows.begin : 1;
            for (int32_t group = 0, o = 0; group < layer->groups; ++group) {
                bmx_gather_taps(layer, x + group * layer->words, rows, columns, taps);
                for (int32_t i = 0; i < layer->outputs; ++i, ++o, filter += length) {
                    int32_t differing = 0;
                    for (int32_t p = 0; p < parts; ++p) {
                        const int32_t begin = first + p * window->kernel_w * layer->words;
                        differing += bmx_differing(taps + begin, filter + begin, part);
                    }
                    const int32_t sum = counted - 2 * differing;  // equal bits minus differing bits
                    const int32_t whole = layer->offset ? (sum + weights) / 2 : sum;
                    const result_t half = layer->offset ? (result_t)((sum + weights) % 2) / 2 : 0;
                    y[o] = (result_t)((adds ? y[o] : 0) + (result_t)whole + half);
                }
            }
        }
    }
}

// --- moves of bits

// Copies a bit of pixels: channel `from` of `x` becomes channel `to` of `y`, whose bit must be 0.
// code: 88 bytes
static void bmx_copy_bit(int32_t pixels, const uint32_t* x, int32_t x_words, int32_t from, uint32_t* y, int32_t y_words,
                         int32_t to) {
    for (int32_t pixel = 0; pixel < pixels; ++pixel) {
        y[pixel * y_words + to / 32] |= (x[pixel * x_words + from / 32] >> from % 32 & 1u) << to % 32;
    }
}

// code: 18 bytes
static void bmx_clear_bits(int32_t words, uint32_t* bits) {
    for (int32_t i = 0; i < words; ++i) {
        bits[i] = 0;
    }
}

// Copies channels `from`, from + 1, ... to channels `to`, to + step, ... The strides of the span are words.
// code: 56 bytes
static void bmx_copy_bits(const bmx_span* span, const uint32_t* x, int32_t from, uint32_t* y, int32_t to,
                          int32_t step) {
    for (int32_t c = 0; c < span->channels; ++c) {
        bmx_copy_bit(span->pixels, x, span->x_stride, from + c, y, span->y_stride, to + c * step);
    }
}

// Orders the bits of a map by channel, then by pixel.
// code: 86 bytes
static void bmx_flatten_bits(int32_t pixels, int32_t channels, const uint32_t* x, uint32_t* y) {
    const int32_t words = (channels + 31) / 32;
    for (int32_t pixel = 0; pixel < pixels; ++pixel) {
        for (int32_t c = 0; c < channels; ++c) {
            bmx_copy_bit(1, x + pixel * words, words, c, y, 0, c * pixels + pixel);
        }
    }
}

// Writes 1 where a bit is set, `low` elsewhere.
// code: 84 bytes
static void bmx_expand(const bmx_span* span, const uint32_t* bits, int16_t low, int16_t* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, bits += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[c] = (int16_t)(bits[c / 32] >> c % 32 & 1u ? 1 : low);
        }
    }
}
