#include "program/shapes.h"

#include "program/error.h"

namespace bmx {
namespace {

void check_shape(const Value& input, const std::string& name, const Shape& shape, int64_t batch) {
    if (shape.size() != (input.flat ? 2 : 4) || shape[1] != input.channels) {
        throw Error(name + " must have the shape (batch, " + std::to_string(input.channels) +
                    (input.flat ? ")" : ", height, width)") + ", not " + to_string(shape));
    }
    const std::string has_batch = name + " has the batch " + std::to_string(shape[0]);
    if (shape[0] < 1) {
        throw Error(has_batch + "; it must be 1 or more");
    }
    if (shape[0] > INT32_MAX) {
        throw Error(has_batch + "; at most " + std::to_string(INT32_MAX) + " are possible");
    }
    if (shape[0] != batch) {
        throw Error(has_batch + ", input 0 has " + std::to_string(batch));
    }
}

}  // namespace

std::string to_string(const Shape& shape) {
    std::string text;
    for (int64_t size : shape) {
        text += (text.empty() ? "" : ", ") + std::to_string(size);
    }
    return "(" + text + ")";
}

InputSizes check_shapes(const Program& program, const std::vector<Shape>& shapes) {
    InputSizes sizes = {0, {}};
    for (size_t i = 0; i < shapes.size(); i++) {
        const Value& input = program.inputs()[i];
        check_shape(input, "input " + std::to_string(i), shapes[i], shapes[0][0]);
        sizes.maps.emplace_back(input.flat ? 1 : shapes[i][2], input.flat ? 1 : shapes[i][3]);
    }
    sizes.batch = shapes[0][0];
    return sizes;
}

}  // namespace bmx
