// Computes rows of outputs of an 8-bit layer, so that arm_instructions.py can count the instructions of a row:
//
//     arm_int8_layer INSTRUCTION_SET WORDS BLOCKS PERIOD TAPS PIXELS RUNS
//
// A row has PIXELS pixels, TAPS windows of WORDS words for each of PERIOD groups, and BLOCKS blocks of filters. With
// WORDS 0 it is rescaled instead: the largest numbers of TAPS pixels of 16 BLOCKS channels become bytes.
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "../tests/csrc/kernel_tables.h"

int main(int argc, char** argv) {
    using namespace bmx;
    if (argc != 8) {
        return 1;
    }
    const Int8Kernels& kernels = *require_instruction_set(argv[1]).int8;
    const int words = std::atoi(argv[2]), blocks = std::atoi(argv[3]), period = std::atoi(argv[4]);
    const int taps = std::atoi(argv[5]), pixels = std::atoi(argv[6]), runs = std::atoi(argv[7]);
    const int lanes = 16 * blocks;
    const std::vector<int32_t> zeros(lanes), ones(lanes, 1), largest(lanes, 1 << 20);
    const Rescaling rescaling = {ones.data(),  zeros.data(),   16,          0,           255,
                                 zeros.data(), largest.data(), ones.data(), zeros.data()};
    const ptrdiff_t pixel = words ? 4 * words * period : lanes;
    std::vector<ptrdiff_t> offsets(taps);
    for (int tap = 0; tap < taps; ++tap) {
        offsets[tap] = tap * pixel;
    }
    std::vector<uint8_t> y(size_t(pixels) * lanes);
    const std::vector<int16_t> integers((pixels + taps) * pixel);
    const std::vector<uint8_t> bytes((pixels + taps) * pixel);
    const std::vector<int8_t> weights(size_t(taps) * words * 4 * lanes + 64);
    const Int8Blocks made = {weights.data(), blocks, 0, words, period, 0, lanes, nullptr, rescaling};
    for (int i = 0; i < runs; ++i) {
        if (words) {
            kernels.convolve({bytes.data(), pixel, offsets.data(), taps, pixels, &made, 1, true, y.data(), lanes});
        } else {
            kernels.rescale({DataType::i16, integers.data(), pixel, offsets.data(), taps, pixels, lanes, nullptr,
                             nullptr, rescaling, true, y.data(), lanes});
        }
    }
    return 0;
}
