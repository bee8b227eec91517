// Shapes of the arrays of inputs and outputs: (batch, channels) for flat values, (batch, channels, height, width) for
// others.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "program/program.h"

namespace bmx {

using Shape = std::vector<int64_t>;

std::string to_string(const Shape& shape);

// Input shapes that fit a program.
struct InputSizes {
    int64_t batch;
    std::vector<std::pair<int64_t, int64_t>> maps;  // height and width of each input
};

// Throws Error unless arrays of these shapes, one for each input, fit the inputs of the program. Does not check whether
// the windows fit the maps, which Program::infer does.
InputSizes check_shapes(const Program& program, const std::vector<Shape>& shapes);

inline Shape shape_of(const Value& value, int64_t batch) {
    return value.flat ? Shape{batch, value.channels} : Shape{batch, value.channels, value.height, value.width};
}

}  // namespace bmx
