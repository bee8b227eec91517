// Fuzzer of the attribute `structure`, the text from which MXNet's operator infers shapes.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

#include "fuzz/program_mutator.h"
#include "program/error.h"
#include "program/shapes.h"
#include "program/structure.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    try {
        const bmx::Program program = bmx::read_structure(std::string(data, data + size));
        std::vector<bmx::Shape> shapes;
        for (const bmx::Value& input : program.inputs()) {
            shapes.push_back(bmx::shape_of(input, 2));
            if (!input.flat) {
                shapes.back()[2] += 1 + size % 3;
            }
        }
        program.infer(bmx::check_shapes(program, shapes).maps);
    } catch (const bmx::Error&) {
    }
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    std::istringstream numbers(std::string(data, data + size));
    fuzzing::Words words;
    for (int32_t number; numbers >> number;) {
        words.push_back(number);
    }
    if (words.size() < 8 || seed % 8 == 0) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    std::string text;
    for (int32_t word : fuzzing::ProgramMutator(seed, false).mutate(words)) {
        text += (text.empty() ? "" : " ") + std::to_string(word);
    }
    if (text.size() > max_size) {
        return size;
    }
    std::copy(text.begin(), text.end(), data);
    return text.size();
}
