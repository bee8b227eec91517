#include "program/operations.h"

#include <algorithm>

#include "program/error.h"
#include "program/limits.h"

namespace bmx {
namespace {

using A = Attributes;

std::vector<AttributeRule> join(std::vector<AttributeRule> first, const std::vector<AttributeRule>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

std::string str(int64_t number) { return std::to_string(number); }

// --- shapes --------------------------------------------------------------------------------------

int64_t windows(const char* name, bool flat, int64_t size, int kernel, int dilation, int stride, int pad, bool ceil) {
    int64_t extent = int64_t(dilation) * (kernel - 1) + 1;
    if (flat && !(extent == 1 && stride == 1 && pad == 0)) {
        throw Error(std::string(name) + " of a flat value must have kernel 1");
    }
    int64_t room = size + pad - extent;
    if (room < 0) {
        throw Error(std::string(name) + " has a window of " + str(extent) + " on a padded map of " + str(size + pad));
    }
    return (ceil ? room + stride - 1 : room) / stride + 1;
}

void slide(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const char* name = name_of(operation.op);
    value.height =
        windows(name, value.flat, value.height, a.kernel_h, a.dilation_h, a.stride_h, a.pad_top + a.pad_bottom, a.ceil);
    value.width =
        windows(name, value.flat, value.width, a.kernel_w, a.dilation_w, a.stride_w, a.pad_left + a.pad_right, a.ceil);
}

using Inputs = std::vector<const Value*>;

void check_kinds(const Rule& rule, const Inputs& inputs) {
    const Value& x = *inputs[0];
    for (const Value* input : inputs) {
        if (!(input->kind == Kind::real ? rule.takes_real : rule.takes_bits)) {
            throw Error(std::string(rule.name) + " does not take " + to_string(*input));
        }
        if (input->kind != x.kind || input->flat != x.flat) {
            throw Error(std::string(rule.name) + " mixes " + to_string(x) + " with " + to_string(*input));
        }
    }
}

void convolve(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const char* name = name_of(operation.op);
    if (value.channels % a.groups || a.out_channels % a.groups) {
        throw Error(std::string(name) + " cannot split " + str(value.channels) + " into " + str(a.out_channels) +
                    " channels in " + str(a.groups) + " groups");
    }
    const int64_t window = a.taps() * value.channels;
    if (operation.op == Op::binary_conv && window / a.groups >= kMaxWeights) {
        throw Error(std::string(name) + " with " + str(window / a.groups) + " weights per output; fewer than " +
                    str(kMaxWeights) + " are exact");
    }
    if (operation.op == Op::binary_conv && value.channels / a.groups % a.planes) {
        throw Error(std::string(name) + " cannot split the " + str(value.channels / a.groups) +
                    " channels of a group into " + str(a.planes) + " planes");
    }
    if (operation.op == Op::conv && window >= kMaxElements) {
        throw Error(std::string(name) + " has " + str(kMaxElements) + " or more elements in a window");
    }
    value.channels = a.out_channels;
    slide(operation, value);
}

void pool(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const char* name = name_of(operation.op);
    const int64_t height = value.height, width = value.width;
    if (std::max(a.pad_top, a.pad_bottom) >= a.kernel_h || std::max(a.pad_left, a.pad_right) >= a.kernel_w) {
        throw Error(std::string(name) + " with a pad as large as its kernel has windows without an element");
    }
    slide(operation, value);
    if ((value.height - 1) * a.stride_h - a.pad_top >= height || (value.width - 1) * a.stride_w - a.pad_left >= width) {
        throw Error(std::string(name) + " has a last window without an element of the map");
    }
}

void concatenate(const Inputs& inputs, Value& value) {
    value.channels = 0;
    for (const Value* input : inputs) {
        if (input->height != value.height || input->width != value.width) {
            throw Error("concat of " + to_string(*inputs[0]) + " and " + to_string(*input));
        }
        value.channels += input->channels;
    }
}

void cut(const Attributes& a, Value& value) {
    if (!(a.begin < a.end && a.end <= value.channels)) {
        throw Error("slice of channels " + str(a.begin) + " to " + str(a.end) + " of " + str(value.channels));
    }
    value.channels = a.end - a.begin;
}

void check_factor(const Inputs& inputs) {
    const Value &x = *inputs[0], &y = *inputs[1];
    const auto fits = [](int64_t size, int64_t of_x) { return size == 1 || size == of_x; };
    if (!fits(y.channels, x.channels) || !fits(y.height, x.height) || !fits(y.width, x.width)) {
        throw Error("multiply of " + to_string(x) + " and " + to_string(y));
    }
}

void check_positions(const Operation& operation, const Value& x) {
    const Attributes& a = operation.attributes;
    if ((a.height != 1 && a.height != x.height) || (a.width != 1 && a.width != x.width)) {
        throw Error(std::string(name_of(operation.op)) + " has constants for a map of " + str(a.height) + " x " +
                    str(a.width) + ", not of " + str(x.height) + " x " + str(x.width) +
                    ": give inputs of the size at conversion");
    }
}

void check_size(const char* name, const Value& value) {
    if (value.channels > kMaxChannels) {
        throw Error(std::string(name) + " makes " + str(value.channels) + " channels; at most " + str(kMaxChannels) +
                    " are possible");
    }
    if (value.height > kMaxSize || value.width > kMaxSize) {
        throw Error(std::string(name) + " makes a map of " + str(value.height) + " x " + str(value.width) +
                    "; at most " + str(kMaxSize) + " a side");
    }
    if (value.elements() >= kMaxElements) {
        throw Error(std::string(name) + " makes a map of " + str(kMaxElements) + " or more elements");
    }
}

// Returns the value that an operation computes from earlier ones.
Value result_of(const Operation& operation, const std::vector<Value>& values) {
    const Rule& rule = rule_of(operation.op);
    const Attributes& a = operation.attributes;
    Inputs inputs;
    for (int input : operation.inputs) {
        inputs.push_back(&values[input]);
    }
    check_kinds(rule, inputs);
    const Value& x = *inputs[0];
    Value result = x;
    switch (operation.op) {
        case Op::conv:
        case Op::binary_conv:
            convolve(operation, result);
            break;
        case Op::max_pool:
        case Op::avg_pool:
            pool(operation, result);
            break;
        case Op::global_avg_pool:
        case Op::global_max_pool:
            result.height = result.width = 1;
            break;
        case Op::add:
        case Op::maximum:
            if (!(x == *inputs[1])) {
                throw Error(std::string(rule.name) + " of " + to_string(x) + " and " + to_string(*inputs[1]));
            }
            break;
        case Op::concat:
            concatenate(inputs, result);
            break;
        case Op::slice:
            cut(a, result);
            break;
        case Op::shuffle:
        case Op::normalize:
            if (x.channels % a.groups) {
                throw Error(std::string(rule.name) + " of " + str(x.channels) + " channels in " + str(a.groups) +
                            " groups");
            }
            break;
        case Op::flatten:
            result = {x.kind, x.elements(), 1, 1, true};
            break;
        case Op::upsample:
            if (x.flat) {
                throw Error("upsample of " + to_string(x));
            }
            result.height = a.repeat ? x.height * a.scale_h : (x.height - 1) * a.scale_h + 1;
            result.width = a.repeat ? x.width * a.scale_w : (x.width - 1) * a.scale_w + 1;
            break;
        case Op::multiply:
            check_factor(inputs);
            break;
        case Op::channel_mean:
            result.channels = 1;
            break;
        case Op::scale_map:
        case Op::shift_map:
            check_positions(operation, x);
            break;
        case Op::unflatten:
            if (!x.flat) {
                throw Error("unflatten of " + to_string(x));
            }
            result.flat = false;
            break;
        case Op::threshold:
        case Op::affine:
        case Op::relu:
        case Op::expand:
        case Op::prelu:
        case Op::clip:
        case Op::sigmoid:
        case Op::abs:
        case Op::elu:
        case Op::gelu:
            break;
    }
    if (rule.result != Rule::same) {
        result.kind = rule.result == Rule::real ? Kind::real : Kind::bits;
    }
    check_size(rule.name, result);
    return result;
}

}  // namespace

std::string to_string(const Value& value) {
    std::string shape = str(value.channels);
    if (!value.flat) {
        shape += ", " + str(value.height) + ", " + str(value.width);
    }
    return std::string(value.kind == Kind::real ? "real" : "bits") + " (" + shape + ")";
}

const std::vector<Rule>& rules() {
    static const std::vector<AttributeRule> window = {
        {"kernel_h", &A::kernel_h, 1, 255},     {"kernel_w", &A::kernel_w, 1, 255},  {"stride_h", &A::stride_h, 1, 255},
        {"stride_w", &A::stride_w, 1, 255},     {"pad_top", &A::pad_top, 0, 255},    {"pad_left", &A::pad_left, 0, 255},
        {"pad_bottom", &A::pad_bottom, 0, 255}, {"pad_right", &A::pad_right, 0, 255}};
    static const std::vector<AttributeRule> convolution = join(
        join({{"out_channels", &A::out_channels, 1, kMaxChannels}}, window), {{"dilation_h", &A::dilation_h, 1, 255},
                                                                              {"dilation_w", &A::dilation_w, 1, 255},
                                                                              {"groups", &A::groups, 1, kMaxChannels}});
    static const std::vector<AttributeRule> positions = {
        {"by_channel", &A::by_channel, 0, 1}, {"height", &A::height, 1, kMaxSize}, {"width", &A::width, 1, kMaxSize}};
    static const std::vector<Rule> table = {
        {"conv", 1, 1, true, false, Rule::real,
         join(convolution, {{"has_bias", &A::has_bias, 0, 1}, {"half", &A::half, 0, 1}})},
        {"binary_conv", 1, 1, false, true, Rule::real,
         join(convolution,
              {{"pad_value", &A::pad_value, -1, 1}, {"offset", &A::offset, 0, 1}, {"planes", &A::planes, 1, 255}})},
        {"threshold", 1, 1, true, false, Rule::bits, {}},
        {"affine", 1, 1, true, false, Rule::real, {}},
        {"relu", 1, 1, true, false, Rule::real, {}},
        {"max_pool", 1, 1, true, false, Rule::real, join(window, {{"ceil", &A::ceil, 0, 1}})},
        {"avg_pool", 1, 1, true, false, Rule::real,
         join(window, {{"ceil", &A::ceil, 0, 1}, {"count_pad", &A::count_pad, 0, 1}})},
        {"global_avg_pool", 1, 1, true, false, Rule::real, {}},
        {"add", 2, 2, true, false, Rule::real, {}},
        {"concat", 1, kMaxOperands, true, true, Rule::same, {}},
        {"slice",
         1,
         1,
         true,
         true,
         Rule::same,
         {{"begin", &A::begin, 0, kMaxChannels}, {"end", &A::end, 1, kMaxChannels}}},
        {"shuffle", 1, 1, true, true, Rule::same, {{"groups", &A::groups, 1, kMaxChannels}}},
        {"flatten", 1, 1, true, true, Rule::same, {}},
        {"expand", 1, 1, false, true, Rule::real, {{"low", &A::low, -1, 0}}},
        {"prelu", 1, 1, true, false, Rule::real, {}},
        {"clip", 1, 1, true, false, Rule::real, {}},
        {"sigmoid", 1, 1, true, false, Rule::real, {}},
        {"abs", 1, 1, true, false, Rule::real, {}},
        {"multiply", 2, 2, true, false, Rule::real, {}},
        {"channel_mean", 1, 1, true, false, Rule::real, {}},
        {"scale_map", 1, 1, true, false, Rule::real, positions},
        {"shift_map", 1, 1, true, false, Rule::real, positions},
        {"unflatten", 1, 1, true, true, Rule::same, {}},
        {"elu", 1, 1, true, false, Rule::real, {}},
        {"gelu", 1, 1, true, false, Rule::real, {}},
        {"upsample",
         1,
         1,
         true,
         false,
         Rule::real,
         {{"scale_h", &A::scale_h, 1, 255}, {"scale_w", &A::scale_w, 1, 255}, {"repeat", &A::repeat, 0, 1}}},
        {"global_max_pool", 1, 1, true, false, Rule::real, {}},
        {"normalize",
         1,
         1,
         true,
         false,
         Rule::real,
         {{"groups", &A::groups, 1, kMaxChannels}, {"by_position", &A::by_position, 0, 1}}},
        {"maximum", 2, 2, true, false, Rule::real, {}},
    };
    return table;
}

Value result_of(size_t number, const Operation& operation, const std::vector<Value>& values) {
    try {
        return result_of(operation, values);
    } catch (const Error& error) {
        throw Error("operation " + std::to_string(number) + ": " + error.what());
    }
}

}  // namespace bmx
