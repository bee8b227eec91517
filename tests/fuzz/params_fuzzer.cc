// Fuzzer of parameter files, which bmx_program_load_memory and bmx_program_load must read alike. A program in a file is
// mutated as a program, too.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/program_mutator.h"
#include "fuzz/program_runs.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr uint8_t kMagic[] = {'B', 'M', 'X', 'P'};
constexpr size_t kBetween = 3 * sizeof(int32_t);  // device, its number and the type lie between shape and elements

// Destroys a program, or returns why there is none, without the name of the file.
std::string refusal(bmx_program* program, const std::string& file) {
    if (program) {
        bmx_program_destroy(program);
        return "";
    }
    const std::string reason = bmx_last_error();
    if (reason.compare(0, file.size() + 2, file + ": ") || reason.find('\n') != std::string::npos) {
        fuzzing::fail("a message without the file, or of several lines");
    }
    return reason.substr(file.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static const int file = memfd_create("params", 0);
    static const std::string path = "/proc/self/fd/" + std::to_string(file);
    if (ftruncate(file, 0) || pwrite(file, data, size, 0) != static_cast<ssize_t>(size)) {
        fuzzing::fail("the file cannot be written");
    }
    const std::string in_memory = refusal(bmx_program_load_memory(data, size, BMX_EXACT), "content");
    if (refusal(bmx_program_load(path.c_str(), BMX_EXACT), path) != in_memory) {
        fuzzing::fail("a file is read differently than its content");
    }
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
