// The MXNet operator `bmx_melius_binarize`: bits of an activation, and the gradient of its straight-through estimator.
//
// nn/fusion.py puts it in the place of the operators of MXNet that nn/quantizers.py uses, in graphs that are executed.
// It computes the same numbers in one pass over the map, forward and backward, and keeps nothing but its input.
// MXNet's extension operators do not learn whether a gradient is to be written or added: nn/fusion.py sees to it that
// this one's is always written.
#include <mxnet/lib_api.h>

#include <algorithm>
#include <cmath>
#include <string>

namespace {

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using Attributes = std::unordered_map<std::string, std::string>;

MXReturnValue fail(const char* text) {
    MX_ERROR_MSG << "bmx_melius_binarize: " << text;
    return mxnet::ext::MX_FAIL;
}

// The factor of x in the surrogate of the sign, which is also its gradient; the product of both conditions and numbers
// is that of MXNet's operators, so that the result is the same for every number.
struct Clipped {
    static float slope(float, bool inside) { return inside ? 0.5f : 0.0f; }
};

struct Triangular {
    static float slope(float magnitude, bool inside) { return (1.0f - magnitude) * (inside ? 1.0f : 0.0f); }
};

template <class Surrogate>
void bits(const float* x, int64_t size, float threshold, float* result) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < size; i++) {
        const float magnitude = std::fabs(x[i]);
        const float surrogate = x[i] * Surrogate::slope(magnitude, magnitude <= threshold);
        result[i] = surrogate + ((x[i] >= 0 ? 1.0f : 0.0f) - surrogate);
    }
}

template <class Surrogate>
void gradient(const float* outer, const float* x, int64_t size, float threshold, float* result) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < size; i++) {
        const float magnitude = std::fabs(x[i]);
        result[i] = outer[i] * Surrogate::slope(magnitude, magnitude <= threshold);
    }
}

bool triangular(const Attributes& attributes) { return attributes.at("method") == "approx_sign"; }

float threshold_of(const Attributes& attributes) { return float(std::stod(attributes.at("threshold"))); }

MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource&) {
    MXTensor &x = (*inputs)[0], &result = (*outputs)[0];
    (triangular(attributes) ? bits<Triangular> : bits<Clipped>)(x.data<float>(), x.size(), threshold_of(attributes),
                                                                result.data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const mxnet::ext::OpResource&) {
    MXTensor &outer = (*inputs)[0], &x = (*inputs)[1], &result = (*outputs)[0];
    (triangular(attributes) ? gradient<Triangular> : gradient<Clipped>)(outer.data<float>(), x.data<float>(), x.size(),
                                                                        threshold_of(attributes), result.data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes&, int* inputs, int* outputs) {
    *inputs = *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes&, std::vector<std::vector<unsigned int>>* inputs,
                          std::vector<std::vector<unsigned int>>* outputs) {
    const auto& shape = inputs->front();
    if (std::none_of(shape.begin(), shape.end(), [](unsigned size) { return size == 0 || size == ~0u; })) {
        outputs->front() = shape;
    }  // else a size is unknown: MXNet calls again when more are known
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_type(const Attributes&, std::vector<int>* inputs, std::vector<int>* outputs) {
    const int type = inputs->front();
    if (type >= 0 && type != mxnet::ext::kFloat32) {
        return fail("the input must be float32");
    }
    outputs->front() = inputs->front() = mxnet::ext::kFloat32;
    return mxnet::ext::MX_SUCCESS;
}

REGISTER_OP(bmx_melius_binarize)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_type)
    .setInferShape(infer_shape);

}  // namespace
