// What the fuzzers of the C interface share: their limits, and what they do with a program that was accepted.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "api/bmx_melius.h"

namespace fuzzing {

constexpr int64_t kMaxWork = 1 << 24;        // multiply-accumulates of a run, so that one takes less than a second
constexpr int64_t kMaxElements = 1 << 18;    // of an input or output
constexpr char kMemoryLimit[] = "16777216";  // bytes of working memory of a run
constexpr int kMaxThreads = 3;

// Shapes: 4 numbers for each input or output.
using Shapes = std::vector<int64_t>;

inline bool arrays_of(const Shapes& shapes, std::vector<std::vector<float>>& arrays) {
    for (size_t i = 0; i < shapes.size(); i += 4) {
        int64_t elements = 1;
        for (int axis = 0; axis < 4 && (axis < 2 || shapes[i + axis]); axis++) {
            elements *= shapes[i + axis];
            if (elements > kMaxElements) {
                return false;
            }
        }
        arrays.emplace_back(elements, 0.5f);
    }
    return true;
}

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "%s: %s\n", what, bmx_last_error());
    std::abort();
}

// Runs a program once with a number of threads, a batch, and inputs that are larger by `more` than at conversion, if it
// accepts these. `work`: estimate of its multiply-accumulates for one image at conversion.
inline void run(const bmx_program* program, int threads, int64_t batch, int64_t more, int64_t work) {
    Shapes inputs(4 * bmx_program_inputs(program)), outputs(4 * bmx_program_outputs(program));
    for (size_t i = 0; i < inputs.size(); i += 4) {
        const int rank = bmx_program_input_shape(program, i / 4, &inputs[i]);
        if (rank != 2 && rank != 4) {
            fail("the shape of an input");
        }
        inputs[i] = batch;
        inputs[i + 2] += rank == 4 ? more : 0;
        inputs[i + 3] += rank == 4 ? more : 0;
    }
    std::vector<int> ranks(outputs.size() / 4);
    if (bmx_program_infer(program, inputs.data(), outputs.data(), ranks.data())) {
        if (!more) {
            fail("inference of the shapes at conversion");
        }
        return;
    }
    const int64_t memory = bmx_program_working_memory(program, inputs.data(), threads);
    std::vector<std::vector<float>> x, y;
    if (!arrays_of(inputs, x) || !arrays_of(outputs, y) || work > kMaxWork / batch / (more + 1) / (more + 1)) {
        return;
    }
    std::vector<const float*> from;
    std::vector<float*> to;
    for (auto& array : x) {
        from.push_back(array.data());
    }
    for (auto& array : y) {
        to.push_back(array.data());
    }
    const bool fits = memory <= std::atoll(kMemoryLimit);
    if (bmx_program_run(program, inputs.data(), from.data(), to.data(), threads) && fits) {
        fail("a run within the limit of memory");
    }
}

}  // namespace fuzzing

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    setenv("BMX_MELIUS_MEMORY_LIMIT", fuzzing::kMemoryLimit, 1);
    return 0;
}
