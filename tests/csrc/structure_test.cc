// Reads pairs of lines from standard input: the height and width of every input, and the structure of a program as
// text. Prints for each pair the shapes of the outputs for a batch of 2, or the error. Built with sanitizers, it finds
// invalid memory access and undefined behaviour that damaged structures cause.
#include "program/structure.h"

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "program/error.h"
#include "program/shapes.h"

namespace {

constexpr int64_t kBatch = 2;

std::string output_shapes(const std::string& sizes, const std::string& structure) {
    const bmx::Program program = bmx::read_structure(structure);
    std::istringstream numbers(sizes);
    std::vector<bmx::Shape> shapes;
    for (bmx::Value input : program.inputs()) {
        int64_t height, width;
        if (!(numbers >> height >> width)) {  // the size at conversion
            height = input.height;
            width = input.width;
        }
        if (!input.flat) {
            input.height = height;
            input.width = width;
        }
        shapes.push_back(bmx::shape_of(input, kBatch));
    }
    const std::vector<bmx::Value> values = program.infer(bmx::check_shapes(program, shapes).maps);
    std::string text = std::to_string(program.length());
    for (int output : program.outputs()) {
        text += " " + bmx::to_string(bmx::shape_of(values[output], kBatch));
    }
    return text;
}

}  // namespace

int main() {
    for (std::string sizes, structure; std::getline(std::cin, sizes) && std::getline(std::cin, structure);) {
        try {
            std::cout << output_shapes(sizes, structure) << '\n';
        } catch (const bmx::Error& error) {
            std::cout << error.what() << '\n';
        }
    }
}
