// Loops of 8-bit layers without vectors of their own, which a compiler vectorizes for its target.
#pragma once
#include <cstring>
#include <type_traits>

#include "kernels/common/int8_kernels.h"
#include "kernels/common/multiply_add.h"
#include "program/operation_table.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

constexpr int kLoopChannels = 64;  // whose numbers are kept between two loops

// Rescaling with 64 bits.
struct WideRescaling {
    const Rescaling& r;

    int operator()(int32_t n, int c) const {
        const int64_t exact = int64_t(n) * r.multiplier[c] + r.offset[c] * (int64_t(1) << (r.shift - kOffsetShift)) +
                              (int64_t(1) << (r.shift - 1));
        const int64_t y = exact >> r.shift, limited = y > r.min ? y : r.min;
        return static_cast<int>(limited < r.max ? limited : r.max);
    }
};

struct NarrowRescaling {
    const Rescaling& r;

    int operator()(int32_t n, int c) const {
        const int32_t upper = n > r.low[c] ? n : r.low[c], limited = upper < r.high[c] ? upper : r.high[c];
        return (limited * r.factor[c] + r.summand[c]) >> r.shift;
    }
};

template <class Visit>
void visit_rescaling(const Rescaling& rescaling, const Visit& visit) {
    rescaling.low ? visit(NarrowRescaling{rescaling}) : visit(WideRescaling{rescaling});
}

template <class Visit>
void visit_result(bool to_bytes, void* y, const Visit& visit) {
    to_bytes ? visit(static_cast<uint8_t*>(y)) : visit(static_cast<int16_t*>(y));
}

// Rounds to the nearest integer, ties to even. Magnitudes beyond 2^23, and NaN, become the limit.
inline int nearest(float x) {
    constexpr float kLimit = 8388608.0f;  // 2^23: adding it to a smaller magnitude of the same sign rounds to integers
    const float upper = x < kLimit ? x : kLimit, limited = upper > -kLimit ? upper : -kLimit;
    const float rounding = limited < 0 ? -kLimit : kLimit;
    return static_cast<int>((limited + rounding) - rounding);
}
inline int nearest(int16_t x) { return x; }

template <class T, class Y, class Rescale>
void rescale_pixels(const RescaleRow& row, const T* x, Y* y, const Rescale& rescaled) {
    for (int i = 0; i < row.pixels; ++i) {
        Y* __restrict to = y + i * row.y_pixel;
        for (int tap = 0; tap < row.window_size; ++tap) {
            const T* __restrict from = x + i * row.step + row.window[tap];
            const auto take = [&](auto&& number) {
                for (int c = 0; c < row.channels; ++c) {
                    const Y found = static_cast<Y>(rescaled(number(c), c));
                    to[c] = tap && to[c] > found ? to[c] : found;
                }
            };
            if (row.scale) {
                take([&](int c) {
                    return nearest(multiply_add(static_cast<float>(from[c]), row.scale[c], row.shift[c]));
                });
            } else {
                take([&](int c) { return nearest(from[c]); });
            }
        }
    }
}

[[maybe_unused]] void rescale_row(const RescaleRow& row) {
    visit_typed(row.type, row.x, [&](const auto* x) {
        visit_result(row.to_bytes, row.y, [&](auto* y) {
            visit_rescaling(row.rescaling, [&](const auto& rescaled) { rescale_pixels(row, x, y, rescaled); });
        });
    });
}

[[maybe_unused]] void rescale_planes(const RescalePlanes& row) {
    visit_rescaling(row.rescaling, [&](const auto& rescaled) {
        for (int c = 0; c < (row.channels + 3) / 4 * 4; ++c) {
            const float* __restrict x = row.x + c * row.plane;
            uint8_t* __restrict y = row.y + c;
            const auto take = [&](auto&& number) {
                for (int i = 0; i < row.pixels; ++i) {
                    y[i * row.y_pixel] = static_cast<uint8_t>(number(i));
                }
            };
            if (c >= row.channels) {
                take([&](int) { return 0; });
            } else if (row.scale) {
                const float scale = row.scale[c], shift = row.shift[c];
                take([&](int i) { return rescaled(nearest(multiply_add(x[i], scale, shift)), c); });
            } else {
                take([&](int i) { return rescaled(nearest(x[i]), c); });
            }
        }
    });
}

[[maybe_unused]] void max_row(const MaxRow& row) {
    for (int i = 0; i < row.pixels; ++i) {
        const int16_t* from = row.x + i * row.step;
        int16_t* __restrict to = row.y + i * row.y_pixel;
        for (int first = 0; first < row.channels; first += kLoopChannels) {
            const int count = row.channels - first < kLoopChannels ? row.channels - first : kLoopChannels;
            for (int c = first; c < first + count; ++c) {
                to[c] = from[row.window[0] + c];
            }
            for (int tap = 1; tap < row.window_size; ++tap) {
                const int16_t* __restrict pixel = from + row.window[tap];
                for (int c = first; c < first + count; ++c) {
                    to[c] = to[c] > pixel[c] ? to[c] : pixel[c];
                }
            }
        }
    }
}

[[maybe_unused]] void sum_pixels(DataType type, const void* numbers, ptrdiff_t x_pixel, int pixels, int channels,
                                 int64_t* sums) {
    constexpr int kPixels = 1 << 15;  // of a sum of 32 bits
    visit_typed(type, numbers, [&](const auto* x) {
        for (int first = 0; first < channels; first += kLoopChannels) {
            const int count = channels - first < kLoopChannels ? channels - first : kLoopChannels;
            for (int begin = 0; begin < pixels; begin += kPixels) {
                const int end = pixels - begin < kPixels ? pixels : begin + kPixels;
                int32_t part[kLoopChannels] = {};
                for (int i = begin; i < end; ++i) {
                    const auto* __restrict from = x + i * x_pixel + first;
                    for (int c = 0; c < count; ++c) {
                        const int n = nearest(from[c]), upper = n < kMaxInt16 ? n : kMaxInt16;
                        part[c] += upper > -kMaxInt16 ? upper : -kMaxInt16;
                    }
                }
                for (int c = 0; c < count; ++c) {
                    sums[first + c] += part[c];
                }
            }
        }
    });
}

// Stores the rescaled sums of one pixel.
[[maybe_unused]] void store_sums(const Int8Row& row, const Int8Blocks& blocks, int pixel, const int32_t* sums) {
    visit_result(row.to_bytes, row.y, [&](auto* y) {
        auto* to = y + pixel * row.y_pixel + blocks.first_output;
        visit_rescaling(blocks.rescaling, [&](const auto& rescaled) {
            for (int output = 0; output < blocks.outputs; ++output) {
                const int lane = blocks.lanes ? blocks.lanes[output] : output;
                to[output] = static_cast<std::remove_reference_t<decltype(*to)>>(rescaled(sums[lane], lane));
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
