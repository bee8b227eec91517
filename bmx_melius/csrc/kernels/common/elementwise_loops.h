// Elementwise kernels as plain loops over contiguous memory, which a compiler vectorizes for its target. Every table of
// float kernels includes its own copy. Built with -ffp-contract=off, so that only the multiply-adds written here are
// fused.
#pragma once
#include <cstring>

#include "kernels/common/float_kernels.h"
#include "kernels/common/multiply_add.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Returns exp(-|x|), for |x| > 87 exp(-87). It is 2^n exp(r) with |r| <= ln(2) / 2 and the polynomial of Cephes for
// exp(r).
inline float decay_of(float x) {
    constexpr float kRounding = 12582912.0f;  // 1.5 * 2^23: adding it rounds to integers
    const float magnitude = x < 0 ? x : -x;
    const float y = magnitude > -87.0f ? magnitude : -87.0f;
    const float n = multiply_add(y, 1.44269504f, kRounding) - kRounding;
    const float r = multiply_add(n, 2.12194440e-4f, multiply_add(n, -0.693359375f, y));
    float p = 1.9875691500e-4f;
    p = multiply_add(p, r, 1.3981999507e-3f);
    p = multiply_add(p, r, 8.3334519073e-3f);
    p = multiply_add(p, r, 4.1665795894e-2f);
    p = multiply_add(p, r, 1.6666665459e-1f);
    p = multiply_add(p, r, 5.0000001201e-1f);
    p = multiply_add(p * r, r, r) + 1.0f;
    const int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, sizeof power);
    return p * power;
}

// Returns 1 / (1 + exp(-x)) with a relative error below 3e-7; below x = -87, where the result is less than 2e-38, an
// absolute one.
inline float sigmoid_of(float x) {
    const float decay = decay_of(x), share = 1.0f / (1.0f + decay);
    return x < 0 ? decay * share : share;
}

// Returns log(1 + exp(x)) with a relative error below 4e-7. It is max(x, 0) + log(1 + d) with d = exp(-|x|), and the
// logarithm is 2 artanh(z) with z = d / (2 + d) <= 1 / 3, the series of which ends at z^15.
inline float softplus_of(float x) {
    const float decay = decay_of(x), z = decay / (2.0f + decay), square = z * z;
    float p = 1.0f / 15;
    p = multiply_add(p, square, 1.0f / 13);
    p = multiply_add(p, square, 1.0f / 11);
    p = multiply_add(p, square, 1.0f / 9);
    p = multiply_add(p, square, 1.0f / 7);
    p = multiply_add(p, square, 1.0f / 5);
    p = multiply_add(p, square, 1.0f / 3);
    const float logarithm = 2.0f * multiply_add(p * square, z, z);
    return x > 0 ? x + logarithm : logarithm;
}

// Returns x times the distribution function of the normal distribution, 1 - erfc(x / sqrt(2)) / 2, whose absolute error
// is below 2e-7 (Abramowitz and Stegun, 7.1.26).
inline float gelu_of(float x) {
    const float z = __builtin_fabsf(x) * 0.707106781f, t = 1.0f / multiply_add(0.3275911f, z, 1.0f);
    float p = 1.061405429f;
    p = multiply_add(p, t, -1.453152027f);
    p = multiply_add(p, t, 1.421413741f);
    p = multiply_add(p, t, -0.284496736f);
    p = multiply_add(p, t, 0.254829592f);
    const float tail = 0.5f * p * t * decay_of(z * z);
    return x < 0 ? x * tail : multiply_add(-x, tail, x);
}

// Returns x, and +0 for negative numbers. Clang compiles the second choice as the maximum of 0 and x, which is +0 for
// -0 on ARM and in WebAssembly.
inline float relu_of(float x) { return x == 0 ? x : 0 > x ? 0 : x; }

// x[c] = change(x[c]) for all elements.
template <class Change>
void change_each(const Transform& t, const Change& change) {
    const bool contiguous = t.x_pixel == t.channels;
    const int64_t rows = contiguous ? 1 : t.pixels, length = contiguous ? int64_t(t.pixels) * t.channels : t.channels;
    for (int64_t i = 0; i < rows; ++i) {
        float* __restrict x = t.x + i * t.x_pixel;
        for (int64_t c = 0; c < length; ++c) {
            x[c] = change(x[c]);
        }
    }
}

// x[c] = change(x[c], a[c], b[c]).
template <class Change>
void change_channels(const Transform& t, const float* second, const Change& change) {
    const float* __restrict a = t.a;
    const float* __restrict b = second;
    for (int64_t i = 0; i < t.pixels; ++i) {
        float* __restrict x = t.x + i * t.x_pixel;
        for (int c = 0; c < t.channels; ++c) {
            x[c] = change(x[c], a[c], b[c]);
        }
    }
}

void transform(const Transform& t) {
    switch (t.kind) {
        case Elementwise::affine:
            return change_channels(t, t.b, multiply_add);
        case Elementwise::prelu:
            return change_channels(t, t.a, [](float x, float a, float) { return x > 0 ? x : x * a; });
        case Elementwise::clip:
            return change_channels(t, t.b, [](float x, float a, float b) {
                const float y = x < a ? a : x;
                return y > b ? b : y;
            });
        case Elementwise::relu:
            return change_each(t, relu_of);
        case Elementwise::abs:
            return change_each(t, [](float x) { return __builtin_fabsf(x); });
        case Elementwise::sigmoid:
            return change_each(t, sigmoid_of);
        case Elementwise::elu:
            return change_channels(t, t.a, [](float x, float a, float) { return x > 0 ? x : (decay_of(x) - 1) * a; });
        case Elementwise::gelu:
            return change_each(t, gelu_of);
        case Elementwise::round:
            return change_each(t, [](float x) { return __builtin_rintf(x); });
        case Elementwise::softplus:
            return change_each(t, softplus_of);
        case Elementwise::divide:
            return change_channels(t, t.a, [](float x, float a, float) { return x / a; });
        case Elementwise::none:
            return;
    }
}

template <class T, class Change>
void combine_each(const Combine& k, const T* from, const Change& change) {
    const bool shared = k.shared && k.channels > 1;
    const bool contiguous = !shared && k.x_pixel == k.channels && k.y_pixel == k.channels;
    const int64_t rows = contiguous ? 1 : k.pixels, length = contiguous ? int64_t(k.pixels) * k.channels : k.channels;
    for (int64_t i = 0; i < rows; ++i) {
        float* __restrict x = k.x + i * k.x_pixel;
        const T* __restrict y = from + i * k.y_pixel;
        if (shared) {
            const float number = static_cast<float>(*y);
            for (int64_t c = 0; c < length; ++c) {
                x[c] = change(x[c], number);
            }
        } else {
            for (int64_t c = 0; c < length; ++c) {
                x[c] = change(x[c], static_cast<float>(y[c]));
            }
        }
    }
}

void combine(const Combine& k) {
    visit_typed(k.type, k.y, [&](const auto* y) {
        switch (k.kind) {
            case Combination::copy:
                return combine_each(k, y, [](float, float number) { return number; });
            case Combination::add:
                return combine_each(k, y, [](float x, float number) { return x + number; });
            case Combination::multiply:
                return combine_each(k, y, [](float x, float number) { return x * number; });
            case Combination::maximum:
                return combine_each(k, y, [](float x, float number) { return (number > x ? number : x) + 0.0f; });
        }
    });
}

constexpr int kLanes = 16;  // sums, or maxima, of elements that are so many apart

// Returns the sum of numbers: blocks are summed in float32, and their sums in float64.
inline double sum_of(const float* x, int channels) {
    constexpr int kBlock = 64 * kLanes;
    double sum = 0;
    for (int begin = 0; begin < channels; begin += kBlock) {
        const int end = channels - begin < kBlock ? channels : begin + kBlock;
        float lanes[kLanes] = {};
        int c = begin;
        for (; c + kLanes <= end; c += kLanes) {
            for (int j = 0; j < kLanes; ++j) {
                lanes[j] += x[c + j];
            }
        }
        for (int j = 0; c < end; ++c, ++j) {
            lanes[j] += x[c];
        }
        for (int width = kLanes / 2; width > 0; width /= 2) {
            for (int j = 0; j < width; ++j) {
                lanes[j] += lanes[j + width];
            }
        }
        sum += lanes[0];
    }
    return sum;
}

void mean_channels(const float* x, int pixels, int channels, float* means) {
    for (int i = 0; i < pixels; ++i, x += channels) {
        means[i] = static_cast<float>(sum_of(x, channels) / channels);
    }
}

// Returns the largest of some numbers.
inline float largest_of(const float* x, int channels) {
    float lanes[kLanes];
    for (float& lane : lanes) {
        lane = x[0];
    }
    int c = 0;
    for (; c + kLanes <= channels; c += kLanes) {
        for (int j = 0; j < kLanes; ++j) {
            lanes[j] = x[c + j] > lanes[j] ? x[c + j] : lanes[j];
        }
    }
    for (; c < channels; ++c) {
        lanes[0] = x[c] > lanes[0] ? x[c] : lanes[0];
    }
    for (float lane : lanes) {
        lanes[0] = lane > lanes[0] ? lane : lanes[0];
    }
    return lanes[0];
}

void softmax(float* x, int channels) {
    const float largest = largest_of(x, channels);
    for (int c = 0; c < channels; ++c) {
        x[c] = decay_of(x[c] - largest);
    }
    const float sum = static_cast<float>(sum_of(x, channels));
    for (int c = 0; c < channels; ++c) {
        x[c] /= sum;
    }
}

}  // namespace
}  // namespace bmx
