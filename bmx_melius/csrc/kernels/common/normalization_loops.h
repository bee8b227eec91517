// Kernels of normalization.h in loops that the compiler makes vectors of. They give the same bits for all instruction
// sets, because the number of partial sums is fixed.
#pragma once
#include <algorithm>
#include <cmath>

#include "kernels/common/normalization.h"

namespace bmx {
namespace {

constexpr int kPartialSums = 16;

struct Sums {
    double first, second;
};

// Returns the sums of two terms of each of `count` elements: terms(i, first, second) adds those of element i.
template <class Terms>
[[gnu::always_inline]] inline Sums sums_of(ptrdiff_t count, const Terms& terms) {
    float first[kPartialSums] = {}, second[kPartialSums] = {};
    ptrdiff_t i = 0;
    for (; i + kPartialSums <= count; i += kPartialSums) {
        for (int lane = 0; lane < kPartialSums; lane++) {
            terms(i + lane, first[lane], second[lane]);
        }
    }
    for (int lane = 0; i < count; i++, lane++) {
        terms(i, first[lane], second[lane]);
    }
    Sums result = {0, 0};
    for (int lane = 0; lane < kPartialSums; lane++) {
        result.first += first[lane];
        result.second += second[lane];
    }
    return result;
}

// Calls use(offset of the plane) for a channel of each image.
template <class Use>
[[gnu::always_inline]] inline void for_planes(const Normalization& layer, int channel, const Use& use) {
    for (int image = 0; image < layer.images; image++) {
        use((ptrdiff_t(image) * layer.channels + channel) * layer.plane);
    }
}

void normalize(const Normalization& layer, float epsilon, const float* x, const float* gamma, const float* beta,
               const float* addend, float* y, const ChannelStatistics& statistics) {
#pragma omp parallel for schedule(static)
    for (int channel = 0; channel < layer.channels; channel++) {
        double sum = 0, squares = 0;
        for_planes(layer, channel, [&](ptrdiff_t begin) {
            const float* from = x + begin;
            sum += sums_of(layer.plane, [=](ptrdiff_t i, float& first, float&) { first += from[i]; }).first;
        });
        const float mean = float(sum / layer.count());
        for_planes(layer, channel, [&](ptrdiff_t begin) {
            const float* from = x + begin;
            squares += sums_of(layer.plane, [=](ptrdiff_t i, float& first, float&) {
                           const float difference = from[i] - mean;
                           first += difference * difference;
                       }).first;
        });
        const float variance = float(squares / layer.count());
        const float scale = gamma[channel] / std::sqrt(variance + epsilon), shift = beta[channel];
        for_planes(layer, channel, [&](ptrdiff_t begin) {
            const float* from = x + begin;
            float* to = y + begin;
            if (addend) {
                const float* added = addend + begin;
                for (ptrdiff_t i = 0; i < layer.plane; i++) {
                    to[i] = (from[i] - mean) * scale + shift + added[i];
                }
            } else {
                for (ptrdiff_t i = 0; i < layer.plane; i++) {
                    to[i] = (from[i] - mean) * scale + shift;
                }
            }
        });
        statistics.mean[channel] = mean;
        statistics.variance[channel] = variance;
    }
}

void gradients_of_normalization(const Normalization& layer, float epsilon, const float* outer, const float* x,
                                const float* gamma, const ChannelStatistics& statistics, float* x_gradient,
                                float* gamma_gradient, float* beta_gradient, float* addend_gradient) {
#pragma omp parallel for schedule(static)
    for (int channel = 0; channel < layer.channels; channel++) {
        const float mean = statistics.mean[channel];
        const double inverse = 1 / std::sqrt(double(statistics.variance[channel]) + epsilon);
        Sums sums = {0, 0};  // of the gradient, and of its products with x - mean
        for_planes(layer, channel, [&](ptrdiff_t begin) {
            const float *numbers = outer + begin, *from = x + begin;
            const Sums of_plane = sums_of(layer.plane, [=](ptrdiff_t i, float& first, float& second) {
                first += numbers[i];
                second += numbers[i] * (from[i] - mean);
            });
            sums.first += of_plane.first;
            sums.second += of_plane.second;
        });
        beta_gradient[channel] = float(sums.first);
        gamma_gradient[channel] = float(sums.second * inverse);
        const float scale = float(gamma[channel] * inverse), of_mean = float(sums.first / layer.count());
        const float of_variance = float(sums.second * inverse * inverse / layer.count());
        for_planes(layer, channel, [&](ptrdiff_t begin) {
            const float *numbers = outer + begin, *from = x + begin;
            float* to = x_gradient + begin;
            for (ptrdiff_t i = 0; i < layer.plane; i++) {
                to[i] = (numbers[i] - of_mean - (from[i] - mean) * of_variance) * scale;
            }
            if (addend_gradient) {
                std::copy_n(numbers, layer.plane, addend_gradient + begin);
            }
        });
    }
}

}  // namespace
}  // namespace bmx
