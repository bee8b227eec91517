// Tests of an instruction set's kernels for the training of binary convolutions: comparison with plain loops on random
// layers.
//
//     training_kernels_test INSTRUCTION_SET LAYERS
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include "float_checks.h"
#include "kernel_tables.h"
#include "kernels/common/binary_training.h"

namespace {

using namespace bmx;

constexpr double kGradientTolerance = 6e-7;  // relative to the sum of magnitudes

int out_size(int size, int kernel, int stride, int pad, int dilation) {
    return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

// `large`: of more pixels than the kernels compute at a time.
BinaryTraining random_layer(bool large) {
    BinaryTraining layer;
    do {
        layer.images = pick(1, 3);
        layer.channels = pick({1, 16, 32, 33, 64, pick(1, 70), pick(1, 200)});
        layer.filters = pick({1, 16, 32, 33, 64, pick(1, 70), pick(1, 100)});
        layer.height = pick({1, 4, 7, pick(1, 20)});
        layer.width = pick({1, 4, 7, 14, 28, pick(1, 40)});
        if (large) {
            const bool wide = toss();
            layer.images = wide ? 1 : 3;
            layer.channels = pick(1, 8);
            layer.filters = wide ? pick(100, 140) : pick(1, 8);
            layer.height = wide ? 3 : pick(28, 34);
            layer.width = wide ? pick(300, 700) : pick(28, 44);
        }
        layer.kernel_h = pick({1, 3, 3, pick(1, 5)});
        layer.kernel_w = pick({1, 3, 3, pick(1, 5)});
        layer.stride_h = pick({1, 1, 2, 3});
        layer.stride_w = pick({1, 1, 2, 3});
        layer.pad_h = pick(0, 3);
        layer.pad_w = pick(0, 3);
        layer.dilation_h = pick({1, 1, 2});
        layer.dilation_w = pick({1, 1, 2});
        layer.out_height = out_size(layer.height, layer.kernel_h, layer.stride_h, layer.pad_h, layer.dilation_h);
        layer.out_width = out_size(layer.width, layer.kernel_w, layer.stride_w, layer.pad_w, layer.dilation_w);
    } while (layer.height + 2 * layer.pad_h <= layer.dilation_h * (layer.kernel_h - 1) ||
             layer.width + 2 * layer.pad_w <= layer.dilation_w * (layer.kernel_w - 1));
    layer.threshold = toss() ? 1.0f : 1.3f;
    layer.counts = toss();
    layer.scale = layer.counts || toss() ? 1.0f : 2.0f;
    layer.triangular = toss();
    return layer;
}

// Calls use(pixel of the result, filter, channel, tap, pixel of x or -1 outside of the map) for all products.
template <class Use>
void products(const BinaryTraining& layer, const Use& use) {
    for (int image = 0; image < layer.images; image++) {
        for (int place = 0; place < layer.out_plane(); place++) {
            for (int tap = 0; tap < layer.taps(); tap++) {
                const int row =
                    place / layer.out_width * layer.stride_h - layer.pad_h + tap / layer.kernel_w * layer.dilation_h;
                const int column =
                    place % layer.out_width * layer.stride_w - layer.pad_w + tap % layer.kernel_w * layer.dilation_w;
                const bool inside = row >= 0 && column >= 0 && row < layer.height && column < layer.width;
                for (int filter = 0; filter < layer.filters; filter++) {
                    for (int channel = 0; channel < layer.channels; channel++) {
                        const int x = (image * layer.channels + channel) * layer.plane() + row * layer.width + column;
                        use((image * layer.filters + filter) * layer.out_plane() + place, filter,
                            (filter * layer.channels + channel) * layer.taps() + tap, inside ? x : -1);
                    }
                }
            }
        }
    }
}

struct Working {  // memory of exactly this size
    explicit Working(size_t bytes) {
        if (posix_memalign(&data, 64, bytes)) {
            std::abort();
        }
        std::memset(data, 0xff, bytes);  // NaN
    }
    ~Working() { std::free(data); }
    Working(const Working&) = delete;
    void* data;
};

void check_layer(const BinaryTrainingKernels& kernels, const char* name, bool large) {
    const BinaryTraining layer = random_layer(large);
    const Reals x = random_reals(size_t(layer.images) * layer.channels * layer.plane());
    const Reals weight = random_reals(size_t(layer.filters) * layer.channels * layer.taps());
    const Reals outer = random_reals(size_t(layer.filters) * layer.out_pixels());
    const Reals bias = random_reals(layer.filters);
    const bool has_bias = !layer.counts && toss();

    Reals results[2], x_gradients[2], weight_gradients[2], bias_gradients[2];
    for (int i = 0; i < 2; i++) {
        const int threads = i == 0 ? 1 : 3;
        results[i].resize(outer.size());
        x_gradients[i].resize(x.size());
        weight_gradients[i].resize(weight.size());
        bias_gradients[i].resize(bias.size());
        const Working forward(kernels.forward_bytes(layer, threads)), backward(kernels.backward_bytes(layer, threads));
        kernels.forward(layer, threads, forward.data, x.data(), weight.data(), has_bias ? bias.data() : nullptr,
                        results[i].data());
        kernels.backward(layer, threads, backward.data, outer.data(), x.data(), weight.data(), x_gradients[i].data(),
                         weight_gradients[i].data(), has_bias ? bias_gradients[i].data() : nullptr);
    }
    expect_equal(name, "the result depends on the number of threads", results[1], results[0]);
    expect_equal(name, "the gradient of x depends on the number of threads", x_gradients[1], x_gradients[0]);
    expect_equal(name, "the gradient of the weight depends on the number of threads", weight_gradients[1],
                 weight_gradients[0]);
    expect_equal(name, "the gradient of the bias depends on the number of threads", bias_gradients[1],
                 bias_gradients[0]);

    std::vector<int> sums(outer.size());
    std::vector<double> of_x(x.size()), of_weight(weight.size()), of_bias(bias.size());
    std::vector<double> x_magnitudes(x.size()), weight_magnitudes(weight.size()), bias_magnitudes(bias.size());
    products(layer, [&](int result, int, int w, int in_x) {
        const int sign = weight[w] >= 0 ? 1 : -1, bit = in_x >= 0 && x[in_x] >= 0;
        sums[result] += layer.counts ? bit == (sign > 0) : bit * sign;
        of_weight[w] += outer[result] * (bit - (layer.counts ? 0.5 : 0));
        weight_magnitudes[w] += std::fabs(outer[result]);
        if (in_x >= 0) {
            of_x[in_x] += outer[result] * sign;
            x_magnitudes[in_x] += std::fabs(outer[result]);
        }
    });
    for (size_t i = 0; i < sums.size(); i++) {
        const int filter = int(i) / layer.out_plane() % layer.filters;
        const float wanted = float(double(layer.scale) * sums[i] + (has_bias ? bias[filter] : 0));
        expect_close(name, "result", results[0][i], wanted, 0);
        of_bias[filter] += outer[i];
        bias_magnitudes[filter] += std::fabs(outer[i]);
    }
    for (size_t i = 0; i < x.size(); i++) {
        const double magnitude = std::fabs(x[i]);
        const double slope = magnitude > layer.threshold ? 0 : layer.scale * (layer.triangular ? 1 - magnitude : 0.5);
        expect_close(name, "gradient of x", x_gradients[0][i], slope * of_x[i], x_magnitudes[i], kGradientTolerance);
    }
    for (size_t i = 0; i < weight.size(); i++) {
        expect_close(name, "gradient of the weight", weight_gradients[0][i], of_weight[i], weight_magnitudes[i],
                     kGradientTolerance);
    }
    for (size_t i = 0; has_bias && i < bias.size(); i++) {
        expect_close(name, "gradient of the bias", bias_gradients[0][i], of_bias[i], bias_magnitudes[i],
                     kGradientTolerance);
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 3) {
        std::printf("usage: %s INSTRUCTION_SET LAYERS\n", argv[0]);
        return 2;
    }
    const std::string name = require_instruction_set(argv[1]).name;
    const BinaryTrainingKernels* kernels = find_binary_training(name);
    if (!kernels) {
        std::printf("%s: no kernels for training\n", name.c_str());
        return kNotAvailable;
    }
    for (int i = 0; i < std::atoi(argv[2]); i++) {
        check_layer(*kernels, name.c_str(), i % 12 == 11);
    }
    return 0;
}
