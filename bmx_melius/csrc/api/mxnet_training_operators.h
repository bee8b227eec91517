// What the MXNet operators that nn/fusion.py puts into executed graphs share.
#pragma once
#include <mxnet/lib_api.h>

#include <algorithm>
#include <cstdio>
#include <locale>
#include <sstream>
#include <string>

namespace {  // each operator has its own copy

using mxnet::ext::MXReturnValue;
using mxnet::ext::MXTensor;
using Attributes = std::unordered_map<std::string, std::string>;
using Shape = std::vector<unsigned int>;

// Reports an error of the operator `name`.
inline MXReturnValue fail(const char* name, const char* text) {
    MX_ERROR_MSG << name << ": " << text;
    return mxnet::ext::MX_FAIL;
}

struct Pair {
    int h, w;
};

inline Pair pair_of(const Attributes& attributes, const char* name) {
    Pair result = {0, 0};
    std::sscanf(attributes.at(name).c_str(), "%d,%d", &result.h, &result.w);
    return result;
}

inline float number_of(const Attributes& attributes, const char* name) {
    std::istringstream text(attributes.at(name));
    text.imbue(std::locale::classic());  // std::stof would expect the decimal point of the program's locale
    double result = 0;
    text >> result;
    return float(result);
}

// Whether MXNet knows all sizes. If it does not, it infers shapes again when it knows more.
inline bool known(const Shape& shape) {
    return std::none_of(shape.begin(), shape.end(), [](unsigned size) { return size == 0 || size == ~0u; });
}

// The types of an operator whose inputs and outputs are float32.
template <const char* name>
MXReturnValue infer_float32(const Attributes&, std::vector<int>* inputs, std::vector<int>* outputs) {
    for (int& type : *inputs) {
        if (type >= 0 && type != mxnet::ext::kFloat32) {
            return fail(name, inputs->size() == 1 ? "the input must be float32" : "the inputs must be float32");
        }
        type = mxnet::ext::kFloat32;
    }
    std::fill(outputs->begin(), outputs->end(), int(mxnet::ext::kFloat32));
    return mxnet::ext::MX_SUCCESS;
}

}  // namespace
