// Loops of 8-bit layers without vectors of their own, which a compiler vectorizes for its target.
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/int8_kernels.h"
#include "kernels/common/multiply_add.h"
#include "program/operation_table.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kLoopChannels = 64;  // whose numbers are kept between two loops

// Calls visit(first, count) for parts of a range. Compilers vectorize loops over local arrays better than those over
// memory of the caller, where every byte could be an operand.
template <class Visit>
void visit_parts(int size, const Visit& visit) {
    for (int first = 0; first < size; first += kLoopChannels) {
        visit(first, size - first < kLoopChannels ? size - first : kLoopChannels);
    }
}

// Rescaling with 64 bits.
struct WideRescaling {
    Rescaling r;

    int32_t slope(int c) const { return r.multiplier[c]; }

    int operator()(int32_t n, int c) const {
        const int64_t exact = int64_t(n) * r.multiplier[c] + r.offset[c] * (int64_t(1) << (r.shift - kOffsetShift)) +
                              (int64_t(1) << (r.shift - 1));
        const int64_t y = exact >> r.shift, limited = y > r.min ? y : r.min;
        return static_cast<int>(limited < r.max ? limited : r.max);
    }
};

struct NarrowRescaling {
    Rescaling r;

    int32_t slope(int c) const { return r.factor[c]; }

    int operator()(int32_t n, int c) const {
        const int32_t upper = n > r.low[c] ? n : r.low[c], limited = upper < r.high[c] ? upper : r.high[c];
        const uint32_t exact = uint32_t(limited) * uint32_t(r.factor[c]) + uint32_t(r.summand[c]);  // modulo 2^32
        return static_cast<int32_t>(exact) >> r.shift;
    }
};

// To 16-bit integers.
struct NarrowShortRescaling {
    ShortRescaling r;

    int operator()(int32_t n, int c) const {
        const uint32_t exact = uint32_t(n) * uint32_t(r.factor[c]) + uint32_t(r.summand[c]);  // modulo 2^32
        const int32_t y = n > r.low[c] ? static_cast<int32_t>(exact) >> r.exact.shift : r.below[c];
        return n < r.high[c] ? y : r.above[c];
    }
};

template <class Visit>
void visit_rescaling(const Rescaling& rescaling, const Visit& visit) {
    rescaling.low ? visit(NarrowRescaling{rescaling})
                  : visit(WideRescaling{rescaling});  // copies, which stay in registers
}

template <class Visit>
void visit_result(bool to_bytes, void* y, const Visit& visit) {
    to_bytes ? visit(static_cast<uint8_t*>(y)) : visit(static_cast<int16_t*>(y));
}

// What is left of a row from a channel or pixel on.
[[maybe_unused]] RescaleRow rest_of(RescaleRow row, int channel) {
    visit_typed(row.type, row.x, [&](const auto* x) { row.x = x + channel; });
    row.y += channel;
    row.channels -= channel;
    row.scale = row.scale ? row.scale + channel : nullptr;
    row.shift = row.shift ? row.shift + channel : nullptr;
    row.rescaling = row.rescaling.from(channel);
    return row;
}

[[maybe_unused]] RescalePlanes rest_of(RescalePlanes row, int pixel) {
    row.x += pixel;
    row.y += pixel * row.y_pixel;
    row.pixels -= pixel;
    return row;
}

[[maybe_unused]] MaxRow rest_of(MaxRow row, int channel) {
    row.x += channel;
    row.y += channel;
    row.channels -= channel;
    return row;
}

// Rounds to the nearest integer, ties to even. Magnitudes beyond 2^23, and NaN, become the limit.
inline int nearest(float x) {
    constexpr float kLimit = 8388608.0f;  // 2^23: adding it to a smaller magnitude of the same sign rounds to integers
    const float upper = x < kLimit ? x : kLimit, limited = upper > -kLimit ? upper : -kLimit;
    const float rounding = limited < 0 ? -kLimit : kLimit;
    return static_cast<int>((limited + rounding) - rounding);
}
inline int nearest(int16_t x) { return x; }

// Rescaling keeps the order of numbers, or reverses it where the slope is negative: the largest result comes from the
// largest or, where ~n replaces n, from the smallest number of a window.
template <class Rescale>
void rescale_largest(const RescaleRow& row, const int16_t* x, uint8_t* y, const Rescale& rescaled, int count) {
    int16_t flips[kLoopChannels], best[kLoopChannels];
    int32_t results[kLoopChannels];
    for (int c = 0; c < count; ++c) {
        flips[c] = rescaled.slope(c) < 0 ? -1 : 0;
    }
    for (int i = 0; i < row.pixels; ++i, x += row.step, y += row.y_pixel) {
        for (int c = 0; c < count; ++c) {
            best[c] = static_cast<int16_t>(x[row.window[0] + c] ^ flips[c]);
        }
        for (int tap = 1; tap < row.window_size; ++tap) {
            const int16_t* __restrict from = x + row.window[tap];
            for (int c = 0; c < count; ++c) {
                const int16_t n = static_cast<int16_t>(from[c] ^ flips[c]), largest = best[c];
                best[c] = largest > n ? largest : n;
            }
        }
        for (int c = 0; c < count; ++c) {
            results[c] = rescaled(best[c] ^ flips[c], c);
        }
        for (int c = 0; c < count; ++c) {
            y[c] = static_cast<uint8_t>(results[c]);
        }
    }
}

template <class T, class Rescale>
void rescale_each(const RescaleRow& row, const T* x, uint8_t* y, const Rescale& rescaled, int channel, int count) {
    const float* const scale = row.scale ? row.scale + channel : nullptr;
    const float* const shift = row.shift ? row.shift + channel : nullptr;
    int32_t best[kLoopChannels], n[kLoopChannels];
    for (int i = 0; i < row.pixels; ++i, x += row.step, y += row.y_pixel) {
        for (int c = 0; c < count; ++c) {
            best[c] = INT16_MIN;
        }
        for (int tap = 0; tap < row.window_size; ++tap) {
            const T* __restrict from = x + row.window[tap];
            for (int c = 0; c < count; ++c) {
                n[c] =
                    scale ? nearest(multiply_add(static_cast<float>(from[c]), scale[c], shift[c])) : nearest(from[c]);
            }
            for (int c = 0; c < count; ++c) {
                const int32_t result = rescaled(n[c], c), largest = best[c];
                best[c] = largest > result ? largest : result;
            }
        }
        for (int c = 0; c < count; ++c) {
            y[c] = static_cast<uint8_t>(best[c]);
        }
    }
}

[[maybe_unused]] void rescale_row(const RescaleRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) {
        visit_parts(row.channels, [&](int channel, int count) {
            visit_rescaling(row.rescaling.from(channel), [&](const auto& rescaled) {
                if constexpr (std::is_same<decltype(x), const int16_t*>::value) {
                    if (!row.scale) {
                        rescale_largest(row, x + channel, row.y + channel, rescaled, count);
                        return;
                    }
                }
                rescale_each(row, x + channel, row.y + channel, rescaled, channel, count);
            });
        });
    });
}

// What is left of a row from a channel on.
[[maybe_unused]] ShortsRow rest_of(ShortsRow row, const ShortRescaling& rescaling, int channel) {
    visit_typed(row.type, row.x, [&](const auto* x) { row.x = x + channel; });
    row.channels -= channel;
    row.rescaling = row.rescaling ? &rescaling : nullptr;
    row.y += channel;
    return row;
}

template <class T, class Rescale>
void shorts_of(const ShortsRow& row, const T* x, const Rescale& rescaled) {
    int16_t* y = row.y;
    for (int i = 0; i < row.pixels; ++i, x += row.x_pixel, y += row.y_pixel) {
        for (int c = 0; c < row.channels; ++c) {
            const int number = rescaled(nearest(x[c]), c);
            y[c] = static_cast<int16_t>(row.adds ? y[c] + number : number);
        }
    }
}

[[maybe_unused]] void shorts_row(const ShortsRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) {
        if (!row.rescaling) {
            shorts_of(row, x, [](int n, int) { return n; });
        } else if (row.rescaling->low) {
            shorts_of(row, x, NarrowShortRescaling{*row.rescaling});
        } else {
            visit_rescaling(row.rescaling->exact, [&](const auto& rescaled) { shorts_of(row, x, rescaled); });
        }
    });
}

[[maybe_unused]] void rescale_planes(const RescalePlanes& row) {
    constexpr int kWord = 4;
    visit_rescaling(row.rescaling, [&](const auto& rescaled) {
        for (int word = 0; word < row.channels; word += kWord) {
            visit_parts(row.pixels, [&](int first, int count) {
                uint32_t words[kLoopChannels] = {};
                for (int c = word; c < row.channels && c < word + kWord; ++c) {
                    const float* x = row.x + c * row.plane + first;
                    const float scale = row.scale ? row.scale[c] : 1, shift = row.scale ? row.shift[c] : 0;
                    const int bits = 8 * (c - word);
                    for (int i = 0; i < count; ++i) {
                        words[i] |= uint32_t(rescaled(nearest(multiply_add(x[i], scale, shift)), c)) << bits;
                    }
                }
                for (int i = 0; i < count; ++i) {
                    std::memcpy(row.y + (first + i) * row.y_pixel + word, words + i, kWord);
                }
            });
        }
    });
}

[[maybe_unused]] void max_row(const MaxRow& row) {
    for (int i = 0; i < row.pixels; ++i) {
        const int16_t* from = row.x + i * row.step;
        int16_t* __restrict to = row.y + i * row.y_pixel;
        visit_parts(row.channels, [&](int first, int count) {
            for (int c = first; c < first + count; ++c) {
                to[c] = from[row.window[0] + c];
            }
            for (int tap = 1; tap < row.window_size; ++tap) {
                const int16_t* __restrict pixel = from + row.window[tap];
                for (int c = first; c < first + count; ++c) {
                    to[c] = to[c] > pixel[c] ? to[c] : pixel[c];
                }
            }
        });
    }
}

[[maybe_unused]] MeanWindow rest_of(MeanWindow window, int channel) {
    visit_typed(window.type, window.x, [&](const auto* x) { window.x = x + channel; });
    window.channels -= channel;
    window.y += channel;
    return window;
}

template <class T>
int limited_to_short(T x) {
    const int n = nearest(x), upper = n < kMaxInt16 ? n : kMaxInt16;
    return upper > -kMaxInt16 ? upper : -kMaxInt16;
}

[[maybe_unused]] void mean_of_window(const MeanWindow& window) {
    visit_typed(window.type, window.x, [&](const auto* x) {
        visit_parts(window.channels, [&](int first, int count) {
            int64_t sums[kLoopChannels] = {};
            for (int row = 0; row < window.rows; ++row) {
                for (int column = 0; column < window.columns; ++column) {
                    const auto* from = x + row * window.x_row + column * window.x_pixel + first;
                    for (int c = 0; c < count; ++c) {
                        sums[c] += limited_to_short(from[c]);
                    }
                }
            }
            for (int c = 0; c < count; ++c) {
                const int64_t numerator = 2 * sums[c] * (int64_t(1) << window.fraction_bits) + window.count;
                window.y[first + c] = static_cast<float>(floor_div(numerator, 2 * window.count));
            }
        });
    });
}

// Stores the rescaled sums of one pixel.
template <class Y>
void store_sums_as(Y* y, const Int8Blocks& blocks, const int32_t* sums) {
    visit_rescaling(blocks.rescaling, [&](const auto& rescaled) {
        if (!blocks.lanes) {  // a loop that compilers vectorize
            for (int output = 0; output < blocks.outputs; ++output) {
                y[output] = static_cast<Y>(rescaled(sums[output], output));
            }
            return;
        }
        for (int output = 0; output < blocks.outputs; ++output) {
            const int lane = blocks.lanes[output];
            y[output] = static_cast<Y>(rescaled(sums[lane], lane));
        }
    });
}

[[maybe_unused]] void store_sums(const Int8Row& row, const Int8Blocks& blocks, int pixel, const int32_t* sums) {
    const ptrdiff_t at = pixel * row.y_pixel + blocks.first_output;
    switch (row.result) {
        case Int8Result::bytes:
            store_sums_as(static_cast<uint8_t*>(row.y) + at, blocks, sums);
            break;
        case Int8Result::shorts:
            store_sums_as(static_cast<int16_t*>(row.y) + at, blocks, sums);
            break;
        case Int8Result::floats:
            store_sums_as(static_cast<float*>(row.y) + at, blocks, sums);
    }
}

// Counts thresholds of up to kCounted channels of each pixel; `all` says whether there are so many.
constexpr int kCounted = 16;

template <bool all, class T, class Y>
void count_channels(const ThresholdsRow& row, const T* x, Y* y, int channel) {
    const int channels = all ? kCounted : row.channels - channel;
    const float* const first = row.thresholds + channel;
    const uint8_t* const flips = row.flips + channel;
    for (int i = 0; i < row.pixels; ++i, x += row.step, y += row.y_pixel) {
        int32_t largest[kCounted] = {};
        for (int tap = 0; tap < row.window_size; ++tap) {
            const T* __restrict from = x + row.window[tap];
            float numbers[kCounted];
            int32_t counts[kCounted] = {};
            for (int c = 0; c < channels; ++c) {
                numbers[c] = static_cast<float>(from[c]);
            }
            for (int t = 0; t < row.count; ++t) {
                const float* __restrict thresholds = first + t * row.stride;
                for (int c = 0; c < channels; ++c) {
                    counts[c] += numbers[c] >= thresholds[c];
                }
            }
            for (int c = 0; c < channels; ++c) {
                const int32_t count = flips[c] ? row.count - counts[c] : counts[c];
                largest[c] = largest[c] > count ? largest[c] : count;
            }
        }
        for (int c = 0; c < channels; ++c) {
            y[c] = static_cast<Y>(largest[c]);
        }
    }
}

[[maybe_unused]] void count_thresholds(const ThresholdsRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) {
        visit_result(row.to_bytes, row.y, [&](auto* y) {
            int channel = 0;
            for (; channel + kCounted <= row.channels; channel += kCounted) {
                count_channels<true>(row, x + channel, y + channel, channel);
            }
            if (channel < row.channels) {
                count_channels<false>(row, x + channel, y + channel, channel);
            }
        });
    });
}

[[maybe_unused]] void convolve_plainly(const Int8Row& row) {
    for (const Int8Blocks* blocks = row.blocks; blocks < row.blocks + row.blocks_count; ++blocks) {
        const int lanes = blocks->count * kInt8Lanes;
        for (int i = 0; i < row.pixels; ++i) {
            int32_t sums[kInt8Blocks * kInt8Lanes] = {};
            const int8_t* weights = blocks->weights;
            for (int tap = 0; tap < row.tap_count; ++tap) {
                const uint8_t* x = row.x + i * row.step + row.taps[tap] + 4 * blocks->first_word;
                for (int word = 0; word < blocks->words; ++word, x += 4 * blocks->period, weights += 4 * lanes) {
                    for (int lane = 0; lane < lanes; ++lane) {
                        const uint8_t* bytes = x + lane % blocks->period * 4;
                        for (int byte = 0; byte < 4; ++byte) {
                            sums[lane] += bytes[byte] * weights[4 * lane + byte];
                        }
                    }
                }
            }
            store_sums(row, *blocks, i, sums);
        }
    }
}

}  // namespace
}  // namespace bmx
