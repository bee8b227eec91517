// Interface of the kernels for training a binary convolution: its value and its gradients in float32, from maps in the
// layout NCHW.
//
// The value is scale * convolution(u, s) + bias with u = x >= 0 in {0, 1}, padded with 0, and s = weight >= 0 ? 1 : -1.
// Both are compared once and packed, so that a product of 32 channels is one xor and one popcount.
#pragma once
#include <cstddef>
#include <string>

namespace bmx {

struct BinaryTraining {
    int images, channels, height, width;  // of x
    int filters, out_height, out_width;   // of the result
    int kernel_h, kernel_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    float threshold;  // the gradient of x is 0 where its magnitude exceeds this
    float scale;      // 1 or 2, the magnitude of the weights
    bool counts;      // the result is the number of elements that agree, without a bias: the bias of (h + n) / 2
    bool triangular;  // slope of the surrogate of the sign: 1 - |x| instead of 1/2

    int taps() const { return kernel_h * kernel_w; }
    int words() const { return (channels + 31) / 32; }
    int plane() const { return height * width; }
    int out_plane() const { return out_height * out_width; }
    int out_pixels() const { return images * out_plane(); }
};

struct BinaryTrainingKernels {
    // Sizes of working memory, aligned to 64 bytes, for `threads` threads.
    size_t (*forward_bytes)(const BinaryTraining& layer, int threads);
    size_t (*backward_bytes)(const BinaryTraining& layer, int threads);

    // Computes the result. Its sums are integers and exact. A result is NaN if its window contains an x that is not
    // finite.
    void (*forward)(const BinaryTraining& layer, int threads, void* memory, const float* x, const float* weight,
                    const float* bias, float* result);

    // Computes the gradients of x, scale * s and the bias (if there is one) from the gradient of the result. They do
    // not depend on the number of threads.
    void (*backward)(const BinaryTraining& layer, int threads, void* memory, const float* outer, const float* x,
                     const float* weight, float* x_gradient, float* weight_gradient, float* bias_gradient);
};

// Returns the kernels for an instruction set, or nullptr if there are none. The caller must know that the processor
// supports it and, for amx, that the process may use tiles: it is in kernels/dispatch.h's list.
const BinaryTrainingKernels* find_binary_training(const std::string& instruction_set);

const BinaryTrainingKernels& binary_training_avx2();
const BinaryTrainingKernels& binary_training_avx512();
const BinaryTrainingKernels& binary_training_amx();

}  // namespace bmx
