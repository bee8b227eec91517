#include "program/operations.h"

#include <algorithm>
#include <optional>

#include "program/error.h"

namespace bmx {
namespace {

using Inputs = std::vector<const Value*>;

// --- shape rules: each sets the shape of `result`, which begins as the first input, or returns false for inputs
// that the operation does not accept. deployment/program/operations.py has the same rules, with reasons.

// Returns the number of positions of a window along an axis, or 0 if the window does not fit.
int64_t windows(bool flat, int64_t size, int extent, int stride, int pad, bool ceil) {
    const int64_t room = size + pad - extent;
    if (room < 0 || (flat && !(extent == 1 && stride == 1 && pad == 0))) {
        return 0;
    }
    return (ceil ? room + stride - 1 : room) / stride + 1;
}

bool slide(const Attributes& a, Value& result) {
    result.height = windows(result.flat, result.height, a.extent_h(), a.stride_h, a.pad_top + a.pad_bottom, a.ceil);
    result.width = windows(result.flat, result.width, a.extent_w(), a.stride_w, a.pad_left + a.pad_right, a.ceil);
    return result.height > 0 && result.width > 0;
}

bool convolve(Products products, const Attributes& a, Value& result) {
    if (result.channels % a.groups || a.out_channels % a.groups || result.channels / a.groups % a.planes) {
        return false;
    }
    const int64_t window = a.taps() * result.channels;
    const int64_t weights = window / a.groups;  // of an output
    if ((products == Products::binary && weights >= kMaxWeights) ||
        (products == Products::int8 && weights >= kMaxInt8Weights)) {
        return false;
    }
    if (products != Products::binary && window >= kMaxElements) {
        return false;
    }
    result.channels = a.out_channels;
    return slide(a, result);
}

bool pool(const Attributes& a, Value& result) {
    const int64_t height = result.height, width = result.width;
    return std::max(a.pad_top, a.pad_bottom) < a.kernel_h && std::max(a.pad_left, a.pad_right) < a.kernel_w &&
           slide(a, result) && (result.height - 1) * a.stride_h - a.pad_top < height &&
           (result.width - 1) * a.stride_w - a.pad_left < width;
}

bool join(const Inputs& inputs, Value& result) {
    result.channels = 0;
    for (const Value* input : inputs) {
        if (input->height != result.height || input->width != result.width) {
            return false;
        }
        result.channels += input->channels;
    }
    return true;
}

bool multiply(const Attributes& a, const Value& x, const Value& y, int64_t positions, Value& result) {
    const int64_t columns = int64_t(a.heads) * a.positions;
    result.channels = a.transposed ? columns : y.channels;
    return !x.flat && x.channels % a.heads == 0 && y.channels % a.heads == 0 && positions == a.positions &&
           x.channels == (a.transposed ? y.channels : columns);
}

bool gather(const Attributes& a, const Inputs& inputs, Value& result) {
    int64_t positions = 0;
    for (const Value* input : inputs) {
        if (input->channels != result.channels) {
            return false;
        }
        positions += input->height * input->width;
    }
    result.height = a.height;
    result.width = a.width;
    return !result.flat && positions == a.positions;
}

bool is_one_or(int64_t size, int64_t other) { return size == 1 || size == other; }

bool infer(const Operation& operation, const Inputs& inputs, Value& result) {
    const Attributes& a = operation.attributes;
    const Value &x = *inputs.front(), &y = *inputs.back();
    switch (row_of(operation.op).shape) {
        case ShapeRule::same_shape:
            return true;
        case ShapeRule::convolution_shape:
            return convolve(row_of(operation.op).products, a, result);
        case ShapeRule::pooling_shape:
            return pool(a, result);
        case ShapeRule::global_shape:
            result.height = result.width = 1;
            return true;
        case ShapeRule::one_channel_shape:
            result.channels = 1;
            return true;
        case ShapeRule::equal_shape:
            return std::all_of(inputs.begin(), inputs.end(), [&](const Value* input) { return *input == x; });
        case ShapeRule::broadcast_shape:
            return is_one_or(y.channels, x.channels) && is_one_or(y.height, x.height) && is_one_or(y.width, x.width);
        case ShapeRule::positions_shape:
            return is_one_or(a.height, x.height) && is_one_or(a.width, x.width);
        case ShapeRule::joined_shape:
            return join(inputs, result);
        case ShapeRule::cut_shape:
            result.channels = a.end - a.begin;
            return a.begin < a.end && a.end <= x.channels;
        case ShapeRule::groups_shape:
            return x.channels % a.groups == 0;
        case ShapeRule::enlarged_shape:
            result.height = a.repeat ? x.height * a.scale_h : (x.height - 1) * a.scale_h + 1;
            result.width = a.repeat ? x.width * a.scale_w : (x.width - 1) * a.scale_w + 1;
            return !x.flat;
        case ShapeRule::flat_shape:
            result = {x.kind, x.elements(), 1, 1, true};
            return true;
        case ShapeRule::map_shape:
            result.flat = false;
            return x.flat;
        case ShapeRule::transposed_shape:
            result = {x.kind, x.height * x.width, 1, x.channels, false};
            return !x.flat && a.height == x.height && a.width == x.width;
        case ShapeRule::arranged_shape:
            result.width = a.row_length ? a.row_length : x.height * x.width;
            result.height = x.height * x.width / result.width;
            return !x.flat && x.height * x.width % result.width == 0;
        case ShapeRule::product_shape:
            return multiply(a, x, y, y.height * y.width, result);
        case ShapeRule::product_of_rows_shape:
            return x.height == y.height && multiply(a, x, y, y.width, result);
        case ShapeRule::gathered_shape:
            return gather(a, inputs, result);
        case ShapeRule::looked_up_shape:
            result.channels = a.features;
            return x.channels == 1;
    }
    return false;
}

// Returns the value that an operation computes, or nothing if it does not accept the inputs.
std::optional<Value> result_of(const Operation& operation, const Inputs& inputs) {
    const OperationRow& row = row_of(operation.op);
    const Value& x = *inputs[0];
    for (const Value* input : inputs) {
        const bool is_taken = input->kind == Kind::real ? row.takes_real : row.takes_bits;
        if (!is_taken || input->kind != x.kind || input->flat != x.flat) {
            return {};
        }
    }
    if (operation.attributes.result_min > operation.attributes.result_max) {
        return {};
    }
    Value result = x;
    if (!infer(operation, inputs, result) || result.channels > kMaxChannels || result.height > kMaxSize ||
        result.width > kMaxSize || result.elements() >= kMaxElements) {
        return {};
    }
    if (row.result != Result::same) {
        result.kind = row.result == Result::real ? Kind::real : Kind::bits;
    }
    return result;
}

}  // namespace

std::string to_string(const Value& value) {
    std::string shape = std::to_string(value.channels);
    if (!value.flat) {
        shape += ", " + std::to_string(value.height) + ", " + std::to_string(value.width);
    }
    return std::string(value.kind == Kind::real ? "real" : "bits") + " (" + shape + ")";
}

std::string FieldPlace::text(const std::string& field) const {
    std::string text = word < 0 ? "" : "word " + std::to_string(word);
    if (operation >= 0) {
        text += (text.empty() ? "" : ", ") + ("operation " + std::to_string(operation));
        text += name ? std::string(" (") + name + ")" : "";
    }
    return field.empty() ? text : text + ", " + field;
}

void refuse(const FieldPlace& place, const std::string& field, int64_t number) {
    throw Error(place.text(field) + ": " + std::to_string(number) + " is not possible");
}

Value result_of(size_t number, const Operation& operation, const std::vector<Value>& values) {
    Inputs inputs;
    for (int input : operation.inputs) {
        inputs.push_back(&values[input]);
    }
    const std::optional<Value> result = result_of(operation, inputs);
    if (!result) {
        std::string text =
            FieldPlace{-1, static_cast<int64_t>(number), name_of(operation.op)}.text("") + ": not possible for ";
        for (size_t i = 0; i < std::min<size_t>(inputs.size(), 2); i++) {
            text += (i ? " and " : "") + to_string(*inputs[i]);
        }
        throw Error(text);
    }
    return *result;
}

}  // namespace bmx
