// The order of the outputs of 8-bit layers with vectors of 128 and 256 bits.
#pragma once
#include "kernels/common/int8_loops.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Where the outputs of a block are, in bytes of its lanes; `moves`: not in their order. Otherwise the bytes are only
// set if `always`.
struct OutputOrder {
    bool moves;
    alignas(16) uint8_t bytes[kInt8Lanes];
    alignas(
        16) uint8_t integers[2][2][kInt8Lanes];  // of outputs 0 to 7 and 8 to 15, in lanes 0 to 7 and 8 to 15; or 255

    OutputOrder(const Int8Blocks& blocks, int block, bool always = false) : moves(blocks.lanes != nullptr) {
        for (int i = 0; (moves || always) && i < kInt8Lanes; ++i) {
            const int output = block * kInt8Lanes + i;
            const int lane = moves && output < blocks.outputs ? blocks.lanes[output] % kInt8Lanes : i;
            bytes[i] = static_cast<uint8_t>(lane);
            for (int half = 0; half < 2; ++half) {
                for (int byte = 0; byte < 2; ++byte) {
                    integers[i / 8][half][i % 8 * 2 + byte] =
                        static_cast<uint8_t>(lane / 8 == half ? lane % 8 * 2 + byte : 255);
                }
            }
        }
    }
};

// Whether the outputs of each block are its own lanes.
inline bool keeps_blocks(const Int8Blocks& blocks) {
    for (int output = 0; blocks.lanes && output < blocks.outputs; ++output) {
        if (blocks.lanes[output] / kInt8Lanes != output / kInt8Lanes) {
            return false;
        }
    }
    return true;
}

}  // namespace
}  // namespace bmx
