// Interface of the kernels for batch normalization in training, of maps in the layout NCHW.
//
// y = (x - mean) / sqrt(variance + epsilon) * gamma + beta, where the mean and the variance are those of a channel in
// all images, and, if there is an addend, plus this map.
#pragma once
#include <cstddef>
#include <string>

namespace bmx {

struct Normalization {
    int images, channels;
    ptrdiff_t plane;  // elements of a channel of an image

    double count() const { return double(images) * double(plane); }
};

struct ChannelStatistics {  // of each channel
    float *mean, *variance;
};

// Each channel is the work of one thread, whose second-level cache keeps it from one pass to the next. Results do not
// depend on the number of threads.
struct NormalizationKernels {
    void (*forward)(const Normalization& layer, float epsilon, const float* x, const float* gamma, const float* beta,
                    const float* addend, float* y, const ChannelStatistics& statistics);

    // Computes the gradients from the gradient of y and the statistics of the forward pass. `addend_gradient`, which
    // may be nullptr, becomes a copy of the former.
    void (*backward)(const Normalization& layer, float epsilon, const float* outer, const float* x, const float* gamma,
                     const ChannelStatistics& statistics, float* x_gradient, float* gamma_gradient,
                     float* beta_gradient, float* addend_gradient);
};

// Returns the kernels for an instruction set that the processor supports, or nullptr if there are none.
const NormalizationKernels* find_normalization(const std::string& instruction_set);

const NormalizationKernels& normalization_avx2();
const NormalizationKernels& normalization_avx512();

}  // namespace bmx
