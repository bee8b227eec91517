// The MXNet operator `bmx_melius_batch_norm`: batch normalization of maps (N, C, ...) in training, and its gradients.
//
// Inputs and states are those of MXNet's BatchNorm: x, gamma, beta, and the moving mean and variance, which are
// updated. The outputs are the result and, for the gradients, the mean and the variance. oneDNN's normalization of maps
// in the layout NCHW reads them from memory for each pass. nn/fusion.py puts this operator in its place, in graphs that
// are executed in training. As with the other operators, a gradient is always written.
#include <string>

#include "api/mxnet_training_operators.h"
#include "kernels/common/normalization.h"

namespace {

constexpr char kName[] = "bmx_melius_batch_norm";
constexpr int kInputs = 5, kOutputs = 3;

const bmx::NormalizationKernels* kernels_of(const Attributes& attributes) {
    return bmx::find_normalization(attributes.at("kernels"));
}

float epsilon_of(const Attributes& attributes) { return number_of(attributes, "eps"); }

bmx::Normalization layer_of(const MXTensor& x) {
    bmx::Normalization layer = {int(x.shape[0]), int(x.shape[1]), 1};
    for (size_t axis = 2; axis < x.shape.size(); axis++) {
        layer.plane *= x.shape[axis];
    }
    return layer;
}

MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource&) {
    const bmx::NormalizationKernels* kernels = kernels_of(attributes);
    if (!kernels) {
        return fail(kName, "no kernels for the instruction set");
    }
    MXTensor &x = (*inputs)[0], &moving_mean = (*inputs)[3], &moving_variance = (*inputs)[4];
    const bmx::Normalization layer = layer_of(x);
    const bmx::ChannelStatistics statistics = {(*outputs)[1].data<float>(), (*outputs)[2].data<float>()};
    kernels->forward(layer, epsilon_of(attributes), x.data<float>(), (*inputs)[1].data<float>(),
                     (*inputs)[2].data<float>(), (*outputs)[0].data<float>(), statistics);
    const float momentum = number_of(attributes, "momentum");
    for (int channel = 0; channel < layer.channels; channel++) {
        float &mean = moving_mean.data<float>()[channel], &variance = moving_variance.data<float>()[channel];
        mean = mean * momentum + statistics.mean[channel] * (1 - momentum);
        variance = variance * momentum + statistics.variance[channel] * (1 - momentum);
    }
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const mxnet::ext::OpResource&) {
    const bmx::NormalizationKernels* kernels = kernels_of(attributes);
    if (!kernels) {
        return fail(kName, "no kernels for the instruction set");
    }
    MXTensor* const of_results = inputs->data();  // gradients of the outputs, inputs, outputs
    MXTensor *const of_inputs = of_results + kOutputs, *const results = of_inputs + kInputs;
    kernels->backward(layer_of(of_inputs[0]), epsilon_of(attributes), of_results[0].data<float>(),
                      of_inputs[0].data<float>(), of_inputs[1].data<float>(),
                      {results[1].data<float>(), results[2].data<float>()}, (*outputs)[0].data<float>(),
                      (*outputs)[1].data<float>(), (*outputs)[2].data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes&, int* inputs, int* outputs) {
    *inputs = kInputs;
    *outputs = kOutputs;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes&, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    const Shape& x = (*inputs)[0];
    if (x.size() >= 2 && known(x)) {
        const Shape of_channels = {x[1]};
        std::fill(inputs->begin() + 1, inputs->end(), of_channels);
        *outputs = {x, of_channels, of_channels};
    }
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue mutate_inputs(const Attributes&, std::vector<int>* indices) {
    *indices = {3, 4};
    return mxnet::ext::MX_SUCCESS;
}

REGISTER_OP(bmx_melius_batch_norm)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_float32<kName>)
    .setInferShape(infer_shape)
    .setMutateInputs(mutate_inputs);

}  // namespace
