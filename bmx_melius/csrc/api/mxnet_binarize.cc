// The MXNet operator `bmx_melius_sign`: bits or signs of an activation, and the gradient of its straight-through
// estimator.
//
// nn/fusion.py puts it in the place of the operators of MXNet that nn/quantizers.py uses, in graphs that are executed.
// It computes the same numbers in one pass over the map, forward and backward, and keeps nothing but its input.
// MXNet's extension operators do not learn whether a gradient is to be written or added: nn/fusion.py sees to it that
// this one's is always written.

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "api/mxnet_training_operators.h"

namespace {

constexpr char kName[] = "bmx_melius_sign";

constexpr float kFinite = 6e4f;  // FINITE of nn/quantizers.py: inputs are clipped there where the output is signs

// Slopes of the surrogates of nn/quantizers.py, halved where the output is bits {0, 1} instead of signs {-1, +1}. They
// are computed by the same operations as there, so that products have the same bits.
struct Clipped {
    static float slope(float, bool inside, float scale) { return inside ? scale : 0.0f; }
};

struct Triangular {
    static float slope(float magnitude, bool inside, float scale) {
        return (2 * scale - magnitude * (2 * scale)) * (inside ? 1.0f : 0.0f);
    }
};

// As with MXNet's operators, NaN gives NaN, and infinities give signs, but bits that are NaN.
template <class Surrogate>
void binarize(const float* x, int64_t size, float threshold, bool signs, float* result) {
    if (signs) {
#pragma omp parallel for simd schedule(static)
        for (int64_t i = 0; i < size; i++) {
            result[i] = x[i] >= 0 ? 1.0f : x[i] < 0 ? -1.0f : x[i];
        }
        return;
    }
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < size; i++) {
        const float magnitude = std::fabs(x[i]);
        const float surrogate = x[i] * Surrogate::slope(magnitude, magnitude <= threshold, 0.5f);
        result[i] = surrogate + ((x[i] >= 0 ? 1.0f : 0.0f) - surrogate);
    }
}

template <class Surrogate>
void gradient(const float* outer, const float* x, int64_t size, float threshold, bool signs, float* result) {
    const float scale = signs ? 1.0f : 0.5f, largest = signs ? kFinite : std::numeric_limits<float>::infinity();
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < size; i++) {
        const float magnitude = std::fabs(x[i]), clipped = magnitude > largest ? largest : magnitude;
        result[i] = outer[i] * Surrogate::slope(clipped, clipped <= threshold, scale);
    }
}

bool triangular(const Attributes& attributes) { return attributes.at("method") == "approx_sign"; }

bool signs(const Attributes& attributes) { return attributes.at("encoding") == "sign"; }

float threshold_of(const Attributes& attributes) { return number_of(attributes, "threshold"); }

MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource&) {
    MXTensor &x = (*inputs)[0], &result = (*outputs)[0];
    (triangular(attributes) ? binarize<Triangular> : binarize<Clipped>)(x.data<float>(), x.size(),
                                                                        threshold_of(attributes), signs(attributes),
                                                                        result.data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const mxnet::ext::OpResource&) {
    MXTensor &outer = (*inputs)[0], &x = (*inputs)[1], &result = (*outputs)[0];
    (triangular(attributes) ? gradient<Triangular> : gradient<Clipped>)(outer.data<float>(), x.data<float>(), x.size(),
                                                                        threshold_of(attributes), signs(attributes),
                                                                        result.data<float>());
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes&, int* inputs, int* outputs) {
    *inputs = *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes&, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    if (known(inputs->front())) {
        outputs->front() = inputs->front();
    }
    return mxnet::ext::MX_SUCCESS;
}

REGISTER_OP(bmx_melius_sign)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_float32<kName>)
    .setInferShape(infer_shape);

}  // namespace
