// Main program that gives each file named on the command line to a fuzzer, for compilers without libFuzzer: with the
// number of mutations as the first argument, also so many mutations of each file, one made from the other.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed);
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* count, char*** arguments);

namespace {

constexpr size_t kMaxBytes = 1 << 14;

std::mt19937& generator() {
    static std::mt19937 numbers(1);
    return numbers;
}

}  // namespace

// Replaces the mutation of bytes by libFuzzer.
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size) {
    if (!size || generator()() % 8 == 0) {
        const size_t count = std::min<size_t>(max_size - size, 1 + generator()() % 8);
        std::generate_n(data + size, count, [] { return static_cast<uint8_t>(generator()()); });
        return size + count;
    }
    const size_t position = generator()() % size;
    if (generator()() % 4 == 0) {
        std::memmove(data + position, data + position + 1, size - position - 1);
        return size - 1;
    }
    data[position] = static_cast<uint8_t>(generator()() % 2 ? generator()() : 255 * (generator()() % 2));
    return size;
}

int main(int count, char** arguments) {
    if (count < 2) {
        return 2;
    }
    if (LLVMFuzzerInitialize) {
        LLVMFuzzerInitialize(&count, &arguments);
    }
    for (int i = 2; i < count; i++) {
        std::ifstream file(arguments[i], std::ios::binary);
        std::vector<uint8_t> input((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
        const size_t max_size = std::max(kMaxBytes, input.size());
        for (int mutations = std::atoi(arguments[1]);; mutations--) {
            LLVMFuzzerTestOneInput(input.data(), input.size());
            if (mutations <= 0) {
                break;
            }
            size_t size = input.size();
            input.resize(max_size);
            size = LLVMFuzzerCustomMutator(input.data(), size, max_size, generator()());
            input.resize(size);
            input.shrink_to_fit();  // so that a read beyond the end is detected
        }
    }
}
