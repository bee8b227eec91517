// Pooling, and moves of elements within and between maps.
#include "types.c"

// Computes the maximum of each window, of channels whose bit is set in `falling` the minimum. `falling` may be NULL. Of
// zeros the maximum is +0, whatever their signs.
// code: 294 bytes
static void bmx_max_pool_value(const bmx_window* window, const bmx_span* span, const value_t* x,
                               const uint32_t* falling, value_t* y) {
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += span->y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            for (int32_t c = 0; c < span->channels; ++c) {
                const int falls = falling && (falling[c / 32] >> c % 32 & 1u);
                const value_t* corner =
                    x + ((rows.first + rows.begin) * window->width + columns.first + columns.begin) * span->x_stride +
                    c;
                value_t best = *corner;
                for (int32_t r = rows.begin; r < rows.end; ++r, corner += window->width * span->x_stride) {
                    for (int32_t i = 0; i < columns.end - columns.begin; ++i) {
                        const value_t other = corner[i * span->x_stride];
                        best = (falls ? other < best : other > best) ? other : best;
                    }
                }
                y[c] = best == 0 ? 0 : best;
            }
        }
    }
}

// Computes the mean of each window; the padding up to `bottom` and `right` beyond the map counts if `counts_padding`.
// code: 276 bytes
static void bmx_avg_pool_value(const bmx_window* window, const bmx_span* span, const value_t* x, int counts_padding,
                               int32_t bottom, int32_t right, float* y) {
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += span->y_stride) {
            const bmx_taps rows = bmx_tap_rows(window, row);
            const bmx_taps columns = bmx_tap_columns(window, column);
            const int32_t counted = bmx_window_elements(window, rows, columns, counts_padding, bottom, right);
            for (int32_t c = 0; c < span->channels; ++c) {
                float sum = 0;
                for (int32_t r = rows.begin; r < rows.end; ++r) {
                    for (int32_t i = columns.begin; i < columns.end; ++i) {
                        sum += (float)x[((rows.first + r) * window->width + columns.first + i) * span->x_stride + c];
                    }
                }
                y[c] = sum / (float)counted;
            }
        }
    }
}

// Computes the mean of all pixels of each channel, of at most 64 pixels.
// code: 98 bytes
static void bmx_mean_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t c = 0; c < span->channels; ++c) {
        float sum = 0;
        for (int32_t pixel = 0; pixel < span->pixels; ++pixel) {
            sum += (float)x[pixel * span->x_stride + c];
        }
        y[c] = sum / (float)span->pixels;
    }
}

// Computes the mean of all pixels of each channel: as in the engine, sums of 64 pixels are added in double precision.
// code: 172 bytes
static void bmx_long_mean_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t c = 0; c < span->channels; ++c) {
        double total = 0;
        for (int32_t begin = 0; begin < span->pixels; begin += 64) {
            float sum = 0;
            for (int32_t pixel = begin; pixel < span->pixels && pixel < begin + 64; ++pixel) {
                sum += (float)x[pixel * span->x_stride + c];
            }
            total += (double)sum;
        }
        y[c] = (float)(total / span->pixels);
    }
}

// Computes the mean of the channels of each pixel: as in the engine, 16 sums of 64 channels, their sum, and the sum of
// these in double precision.
// code: 262 bytes
static void bmx_channel_mean_value(const bmx_span* span, const value_t* x, float* y) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        double total = 0;
        for (int32_t begin = 0; begin < span->channels; begin += 1024) {
            const int32_t end = span->channels - begin < 1024 ? span->channels : begin + 1024;
            float sums[16];
            for (int32_t i = 0; i < 16; ++i) {
                sums[i] = 0;
            }
            for (int32_t c = begin; c < end; ++c) {
                sums[c % 16] += (float)x[c];
            }
            for (int32_t width = 8; width > 0; width /= 2) {
                for (int32_t i = 0; i < width; ++i) {
                    sums[i] += sums[i + width];
                }
            }
            total += (double)sums[0];
        }
        *y = (float)(total / span->channels);
    }
}

// Moves channel `first` + c of `channels` in `groups` groups to channel j groups + i, where it is the j-th of group i.
// code: 106 bytes
static void bmx_shuffle_value_result(const bmx_span* span, int32_t channels, int32_t groups, int32_t first,
                                     const value_t* x, result_t* y) {
    const int32_t length = channels / groups;
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel, x += span->x_stride, y += span->y_stride) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[(first + c) % length * groups + (first + c) / length] = (result_t)x[c];
        }
    }
}

// Changes between maps with the channels of a pixel next to one another and those with the pixels of a channel next to
// one another: elements of pixels are `x_stride` and `y_stride` apart, those of channels `x_channel` and `y_channel`.
// code: 108 bytes
static void bmx_transpose_value_result(const bmx_span* span, const value_t* x, int32_t x_channel, result_t* y,
                                       int32_t y_channel) {
    for (int32_t pixel = 0; pixel < span->pixels; ++pixel) {
        for (int32_t c = 0; c < span->channels; ++c) {
            y[pixel * span->y_stride + c * y_channel] = (result_t)x[pixel * span->x_stride + c * x_channel];
        }
    }
}

// Repeats or spreads elements: those of `x` are `stride_h` rows and `stride_w` columns of `y` apart; if `repeat`, each
// fills the place up to the next one, otherwise zeros do.
// code: 162 bytes
static void bmx_upsample_value(const bmx_window* window, const bmx_span* span, const value_t* x, int repeat,
                               value_t* y) {
    for (int32_t row = 0; row < window->rows; ++row) {
        for (int32_t column = 0; column < window->columns; ++column, y += span->y_stride) {
            const int copies = repeat || (row % window->stride_h == 0 && column % window->stride_w == 0);
            const value_t* from =
                x + (row / window->stride_h * window->width + column / window->stride_w) * span->x_stride;
            for (int32_t c = 0; c < span->channels; ++c) {
                y[c] = copies ? from[c] : 0;
            }
        }
    }
}
