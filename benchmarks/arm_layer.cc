// Runs a binary layer a number of times, so that arm_instructions.py can count the instructions of a run:
//
//     arm_layer INSTRUCTION_SET CHANNELS FILTERS SIZE KERNEL RUNS
//
// The layer has a map of SIZE x SIZE outputs. A run expands the words of the map, convolves it and stores 16-bit
// results.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "../tests/csrc/kernel_tables.h"

namespace {

using namespace bmx;

constexpr size_t kAlignment = 64;

struct Free {
    void operator()(uint8_t* memory) const { std::free(memory); }
};

std::unique_ptr<uint8_t, Free> allocate(size_t bytes) {
    return std::unique_ptr<uint8_t, Free>(
        static_cast<uint8_t*>(std::aligned_alloc(kAlignment, (bytes / kAlignment + 1) * kAlignment)));
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 7) {
        return 1;
    }
    const BinaryKernels& kernels = *require_instruction_set(argv[1]).binary;
    const int channels = std::atoi(argv[2]), filters = std::atoi(argv[3]), size = std::atoi(argv[4]);
    const int kernel = std::atoi(argv[5]), runs = std::atoi(argv[6]);
    const BinaryConv conv = {channels, filters, kernel, kernel, 1, 1, 1, 1, 1, false};
    const int columns = size + kernel - 1, units = conv.units();
    const std::vector<uint32_t> words(size_t(filters) * kernel * kernel * units, 0x12345678);
    const std::vector<uint32_t> inputs(size_t(columns) * units, 0x9abcdef0);
    const ptrdiff_t pixel_bytes = ptrdiff_t(units) * kernels.unit_bytes, row_bytes = columns * pixel_bytes;

    const auto weights = allocate(kernels.weights_bytes(conv)), map = allocate(columns * row_bytes + kReadAhead);
    const auto scratch = allocate(kernels.scratch_bytes(conv, size, size));
    std::vector<int16_t> results(size_t(size) * size * filters);
    kernels.prepare_weights(conv, words.data(), weights.get());
    for (int i = 0; i < runs; ++i) {
        for (int row = 0; row < columns; ++row) {
            kernels.expand(inputs.data(), columns, units, map.get() + row * row_bytes, pixel_bytes);
        }
        kernels.convolve({&conv, weights.get(), map.get(), row_bytes, pixel_bytes, size, size, 0, filters,
                          DataType::i16, results.data(), ptrdiff_t(size) * filters, filters, nullptr, scratch.get()});
    }
    return 0;
}
