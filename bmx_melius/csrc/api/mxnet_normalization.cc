// The MXNet operator `bmx_melius_batch_norm`: batch normalization of maps (N, C, ...) in training, and its gradients.
//
// Inputs and states are those of MXNet's BatchNorm: x, gamma, beta, and the moving mean and variance, which are
// updated. Another map may be the first or the last input, as `addend` says, and is added to the result: MXNet keeps
// the outputs of an extension operator, and so the sum in place of a result that nothing else reads. The outputs are
// the result and, for the gradients, the mean and the variance. oneDNN's normalization of maps in the layout NCHW reads
// them from memory for each pass. nn/fusion.py puts this operator in its place, in graphs that are executed in
// training. As with the other operators, a gradient is always written.
#include <string>

#include "api/mxnet_training_operators.h"
#include "kernels/common/normalization.h"

namespace {

constexpr char kName[] = "bmx_melius_batch_norm";
constexpr int kInputs = 5, kOutputs = 3;

// Where inputs are: x, after which the others follow, and the addend, or -1 if there is none.
struct Places {
    int x, addend;
};

Places places_of(const Attributes& attributes) {
    const std::string& addend = attributes.at("addend");
    return addend == "first" ? Places{1, 0} : addend == "last" ? Places{0, kInputs} : Places{0, -1};
}

int count_inputs(const Attributes& attributes) { return kInputs + (places_of(attributes).addend >= 0); }

float* data_of(MXTensor* tensors, int place) { return place < 0 ? nullptr : tensors[place].data<float>(); }

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
    const Places places = places_of(attributes);
    MXTensor* const from_x = inputs->data() + places.x;
    MXTensor &moving_mean = from_x[3], &moving_variance = from_x[4];
    const bmx::Normalization layer = layer_of(*from_x);
    const bmx::ChannelStatistics statistics = {(*outputs)[1].data<float>(), (*outputs)[2].data<float>()};
    kernels->forward(layer, epsilon_of(attributes), from_x[0].data<float>(), from_x[1].data<float>(),
                     from_x[2].data<float>(), data_of(inputs->data(), places.addend), (*outputs)[0].data<float>(),
                     statistics);
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
    const Places places = places_of(attributes);
    MXTensor *const from_x = of_results + kOutputs + places.x, *const gradients = outputs->data() + places.x;
    MXTensor* const results = of_results + kOutputs + count_inputs(attributes);
    kernels->backward(layer_of(from_x[0]), epsilon_of(attributes), of_results[0].data<float>(), from_x[0].data<float>(),
                      from_x[1].data<float>(), {results[1].data<float>(), results[2].data<float>()},
                      gradients[0].data<float>(), gradients[1].data<float>(), gradients[2].data<float>(),
                      data_of(outputs->data(), places.addend));
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes& attributes, int* inputs, int* outputs) {
    *inputs = count_inputs(attributes);
    *outputs = kOutputs;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    const Places places = places_of(attributes);
    const Shape x = (*inputs)[places.x];
    if (x.size() >= 2 && known(x)) {
        const Shape of_channels = {x[1]};
        std::fill(inputs->begin(), inputs->end(), of_channels);
        (*inputs)[places.x] = x;
        if (places.addend >= 0) {
            (*inputs)[places.addend] = x;
        }
        *outputs = {x, of_channels, of_channels};
    }
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue mutate_inputs(const Attributes& attributes, std::vector<int>* indices) {
    const int x = places_of(attributes).x;
    *indices = {x + 3, x + 4};
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
