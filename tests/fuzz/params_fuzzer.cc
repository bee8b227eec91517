// Fuzzer of parameter files, as bmx_program_load_memory and bmx_program_load read them. A program in a file is mutated
// as a program, too.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "fuzz/program_mutator.h"
#include "fuzz/program_runs.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr uint8_t kMagic[] = {'B', 'M', 'X', 'P'};
constexpr size_t kBetween = 3 * sizeof(int32_t);  // device, its number and the type lie between shape and elements

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
    setenv("BMX_MELIUS_MEMORY_LIMIT", fuzzing::kMemoryLimit, 1);
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    bmx_program* program = bmx_program_load_memory(data, size, BMX_EXACT);
    if (!program) {
        if (std::strchr(bmx_last_error(), '\n')) {
            fuzzing::fail("a message of several lines");
        }
        return 0;
    }
    bmx_program_destroy(program);
    return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    uint8_t* const end = data + size;
    uint8_t* const begin = std::search(data, end, std::begin(kMagic), std::end(kMagic));
    const size_t before = static_cast<size_t>(begin - data), shape = before - kBetween - sizeof(int64_t);
    int64_t words = 0;
    if (begin != end && before >= kBetween + sizeof(int64_t)) {
        std::memcpy(&words, data + shape, sizeof words);
    }
    if (seed % 2 || words < 1 || words > (end - begin) / 4) {
        return LLVMFuzzerMutate(data, size, max_size);
    }
    const fuzzing::Words mutated =
        fuzzing::ProgramMutator(seed, true).mutate(fuzzing::words_of(begin, 4 * static_cast<size_t>(words)));
    const std::vector<uint8_t> bytes = fuzzing::bytes_of(mutated), rest(begin + 4 * words, end);
    if (before + bytes.size() + rest.size() > max_size) {
        return size;
    }
    words = static_cast<int64_t>(mutated.size());
    std::memcpy(data + shape, &words, sizeof words);
    std::copy(rest.begin(), rest.end(), std::copy(bytes.begin(), bytes.end(), begin));
    return before + bytes.size() + rest.size();
}
