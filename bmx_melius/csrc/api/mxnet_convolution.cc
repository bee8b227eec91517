// The MXNet operator `bmx_melius_convolution`: the sign of an activation, encoded as bits, and the binary convolution
// that reads it, with their gradients.
//
// Inputs: the activation (N, C, H, W), the weights (filters, C, kernel) with the values -scale and +scale, and, unless
// `no_bias` is set, a bias. With `counts` the weights are latent, of any values, there is no bias, and the result is
// the number of elements that agree with the signs of the weights, (h + n) / 2. nn/fusion.py puts it in the place of
// `bmx_melius_sign` and MXNet's Convolution, in graphs that are executed, on processors that have kernels for it. As
// there, it keeps nothing but its inputs, and a gradient is always written, never added.
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>

#include "api/mxnet_training_operators.h"
#include "kernels/common/binary_training.h"

namespace {

constexpr char kName[] = "bmx_melius_convolution";
constexpr char kTooLarge[] = "the map is too large; set BMX_MELIUS_FUSION=0, or fewer threads, OMP_NUM_THREADS";

bool has_bias(const Attributes& attributes) { return attributes.at("no_bias") == "0"; }

int out_size(int size, int kernel, int stride, int pad, int dilation) {
    return (size + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

// The layer for an activation and weights of these shapes.
template <class Sizes>
bmx::BinaryTraining layer_of(const Attributes& attributes, const Sizes& x, const Sizes& weight) {
    const Pair stride = pair_of(attributes, "stride"), pad = pair_of(attributes, "pad");
    const Pair dilation = pair_of(attributes, "dilate");
    bmx::BinaryTraining layer;
    layer.images = int(x[0]);
    layer.channels = int(x[1]);
    layer.height = int(x[2]);
    layer.width = int(x[3]);
    layer.filters = int(weight[0]);
    layer.kernel_h = int(weight[2]);
    layer.kernel_w = int(weight[3]);
    layer.stride_h = stride.h;
    layer.stride_w = stride.w;
    layer.pad_h = pad.h;
    layer.pad_w = pad.w;
    layer.dilation_h = dilation.h;
    layer.dilation_w = dilation.w;
    layer.out_height = out_size(layer.height, layer.kernel_h, stride.h, pad.h, dilation.h);
    layer.out_width = out_size(layer.width, layer.kernel_w, stride.w, pad.w, dilation.w);
    layer.threshold = number_of(attributes, "threshold");
    layer.scale = number_of(attributes, "scale");
    layer.counts = attributes.at("counts") == "1";
    layer.triangular = attributes.at("method") == "approx_sign";
    return layer;
}

// The kernels that an attribute names, or nullptr. nn/fusion.py names only what the processor supports.
const bmx::BinaryTrainingKernels* kernels_of(const Attributes& attributes) {
    return bmx::find_binary_training(attributes.at("kernels"));
}

void* aligned(void* memory) { return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(memory) + 63) / 64 * 64); }

// Returns working memory of MXNet, or nullptr.
void* working_memory(const mxnet::ext::OpResource& resource, size_t size) {
    size += 64;
    return size > size_t(std::numeric_limits<int>::max()) ? nullptr : aligned(resource.alloc_cpu(int(size)));
}

MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource& resource) {
    MXTensor &x = (*inputs)[0], &weight = (*inputs)[1];
    const bmx::BinaryTraining layer = layer_of(attributes, x.shape, weight.shape);
    const int threads = omp_get_max_threads();
    const bmx::BinaryTrainingKernels* kernels = kernels_of(attributes);
    if (!kernels) {
        return fail(kName, "no kernels for the instruction set");
    }
    void* memory = working_memory(resource, kernels->forward_bytes(layer, threads));
    if (!memory) {
        return fail(kName, kTooLarge);
    }
    const float* bias = has_bias(attributes) ? (*inputs)[2].data<float>() : nullptr;
    kernels->forward(layer, threads, memory, x.data<float>(), weight.data<float>(), bias, (*outputs)[0].data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const mxnet::ext::OpResource& resource) {
    MXTensor &outer = (*inputs)[0], &x = (*inputs)[1], &weight = (*inputs)[2];
    const bmx::BinaryTraining layer = layer_of(attributes, x.shape, weight.shape);
    const int threads = omp_get_max_threads();
    const bmx::BinaryTrainingKernels* kernels = kernels_of(attributes);
    if (!kernels) {
        return fail(kName, "no kernels for the instruction set");
    }
    void* memory = working_memory(resource, kernels->backward_bytes(layer, threads));
    if (!memory) {
        return fail(kName, kTooLarge);
    }
    kernels->backward(layer, threads, memory, outer.data<float>(), x.data<float>(), weight.data<float>(),
                      (*outputs)[0].data<float>(), (*outputs)[1].data<float>(),
                      has_bias(attributes) ? (*outputs)[2].data<float>() : nullptr);
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes& attributes, int* inputs, int* outputs) {
    *inputs = has_bias(attributes) ? 3 : 2;
    *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    const Shape &x = (*inputs)[0], &weight = (*inputs)[1];
    if (x.size() == 4 && weight.size() == 4 && known(x) && known(weight)) {
        const bmx::BinaryTraining layer = layer_of(attributes, x, weight);
        if (layer.out_height < 1 || layer.out_width < 1) {
            return fail(kName, "the window is larger than the padded map");
        }
        constexpr int64_t most = std::numeric_limits<int>::max();  // positions are int
        if (std::max<int64_t>(layer.channels, layer.filters) * layer.images *
                (layer.plane() + int64_t(layer.out_plane())) >
            most) {
            return fail(kName, kTooLarge);
        }
        outputs->front() = {x[0], weight[0], unsigned(layer.out_height), unsigned(layer.out_width)};
        if (has_bias(attributes)) {
            (*inputs)[2] = {weight[0]};
        }
    }
    return mxnet::ext::MX_SUCCESS;
}

REGISTER_OP(bmx_melius_convolution)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_float32<kName>)
    .setInferShape(infer_shape);

}  // namespace
