// Robustness test: loads the parameter files named on standard input, one per line, and runs the small valid programs
// among them. Prints for each 1 if it was accepted, otherwise 0. Built with sanitizers, it finds invalid memory access
// and undefined behaviour that damaged files cause in the engine.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "api/bmx_melius.h"

namespace {

constexpr int64_t kMaxMemory = 16 << 20;
constexpr int64_t kMaxElements = 1 << 20;
constexpr int kThreads = 2;

// Shapes, an array of 4 numbers for each input or output.
using Shapes = std::vector<int64_t>;

std::vector<std::vector<float>> arrays_of(const Shapes& shapes) {
    std::vector<std::vector<float>> arrays;
    for (size_t i = 0; i < shapes.size(); i += 4) {
        int64_t elements = shapes[i] * shapes[i + 1];
        if (shapes[i + 2]) {
            elements *= shapes[i + 2] * shapes[i + 3];
        }
        if (elements > kMaxElements) {
            return {};
        }
        arrays.emplace_back(elements, 0.5f);
    }
    return arrays;
}

template <class Pointer>
std::vector<Pointer> pointers_to(std::vector<std::vector<float>>& arrays) {
    std::vector<Pointer> pointers;
    for (auto& array : arrays) {
        pointers.push_back(array.data());
    }
    return pointers;
}

bool run(const bmx_program* program) {
    Shapes inputs(4 * bmx_program_inputs(program)), outputs(4 * bmx_program_outputs(program));
    for (size_t i = 0; i < inputs.size(); i += 4) {
        bmx_program_input_shape(program, i / 4, &inputs[i]);
    }
    std::vector<int> ranks(outputs.size() / 4);
    if (bmx_program_infer(program, inputs.data(), outputs.data(), ranks.data())) {
        return false;
    }
    if (bmx_program_working_memory(program, inputs.data(), kThreads) > kMaxMemory) {
        return true;
    }
    auto x = arrays_of(inputs), y = arrays_of(outputs);
    if (x.empty() || y.empty()) {
        return true;
    }
    const auto from = pointers_to<const float*>(x);
    const auto to = pointers_to<float*>(y);
    return bmx_program_run(program, inputs.data(), from.data(), to.data(), kThreads) == 0;
}

}  // namespace

int main() {
    for (std::string path; std::getline(std::cin, path);) {
        bmx_program* program = bmx_program_load(path.c_str(), BMX_EXACT);
        if (program && !run(program)) {
            std::printf("%s: %s\n", path.c_str(), bmx_last_error());
            return 1;
        }
        std::putchar(program ? '1' : '0');
        bmx_program_destroy(program);
    }
}
