// Kernels of 8-bit layers with AVX2.
#include "kernels/common/int8_loops.h"

namespace bmx {
namespace {

void convolve(const Int8Row& row) {
    for (int number = 0; number < row.block_count; ++number) {
        const Int8Block& block = row.blocks[number];
        for (int i = 0; i < row.pixels; ++i) {
            int32_t sums[kInt8Lanes] = {};
            const int8_t* weights = block.weights;
            for (int tap = 0; tap < row.tap_count; ++tap) {
                const uint8_t* x = row.x + i * row.step + row.taps[tap] + 4 * block.first_word;
                for (int word = 0; word < block.words; ++word, x += 4, weights += 4 * kInt8Lanes) {
                    for (int lane = 0; lane < kInt8Lanes; ++lane) {
                        for (int byte = 0; byte < 4; ++byte) {
                            sums[lane] += x[byte] * weights[4 * lane + byte];
                        }
                    }
                }
            }
            store_block(row, block, number * kInt8Lanes, i, sums);
        }
    }
}

}  // namespace

const Int8Kernels& int8_kernels_avx2() {
    static const Int8Kernels kernels = {rescale_row, convolve};
    return kernels;
}

}  // namespace bmx
