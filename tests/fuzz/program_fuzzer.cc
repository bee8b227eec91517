// Fuzzer of the words of programs, as bmx_program_create gets them: reading, planning, shapes and runs. Its mutations
// keep the header and the records consistent.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fuzz/program_mutator.h"
#include "fuzz/program_runs.h"

namespace {

// Returns the multiply-accumulates of one image at conversion, and of other work that is not proportional to the
// memory.
int64_t work_of(const bmx::Program& program) {
    int64_t work = 0;
    for (size_t i = 0; i < program.operations().size(); i++) {
        const bmx::Operation& operation = program.operations()[i];
        const bmx::Attributes& a = operation.attributes;
        const bmx::Value& source = program.values()[operation.inputs[0]];
        const bmx::Value& result = program.values()[program.value_of(static_cast<int>(i))];
        const int64_t taps = a.taps() * (operation.convolves() ? source.channels / a.groups : 1);
        work = std::min<int64_t>(work + result.elements() * std::min<int64_t>(taps, INT32_MAX), int64_t(1) << 60);
    }
    return work;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const fuzzing::Words words = fuzzing::words_of(data, size);
    constexpr int kPrecisions[] = {BMX_EXACT, BMX_FAST, BMX_BF16};
    bmx_program* program = bmx_program_create(words.data(), words.size(), kPrecisions[size / 4 % 3]);
    if (!program) {
        return 0;
    }
    const int64_t work = work_of(bmx::Program(words.data(), words.size()));
    const uint32_t choice = static_cast<uint32_t>(words[3]);  // the checksum: as good as random
    fuzzing::run(program, 1 + choice % fuzzing::kMaxThreads, 1 + choice / 4 % 4, 0, work);
    fuzzing::run(program, 1 + choice / 16 % fuzzing::kMaxThreads, 1, 1 + choice / 64 % 5, work);
    bmx_program_destroy(program);
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    const std::vector<uint8_t> bytes =
        fuzzing::bytes_of(fuzzing::ProgramMutator(seed, true).mutate(fuzzing::words_of(data, size)));
    if (bytes.size() > max_size) {
        return std::min(size, max_size);
    }
    std::copy(bytes.begin(), bytes.end(), data);
    return bytes.size();
}
