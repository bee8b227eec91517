// Binary layers of aarch64 processors with the dot product instructions of ARMv8.2: differing elements are counted by
// table lookup, for two pixels at once, as with AVX2 (see binary_lookup.h and binary_tiles.h). A lookup and an addition
// take the place of exclusive or, count and addition. Processors with slower lookups use binary_neon.cc
// (kernels/dispatch.cc).
#include <arm_neon.h>

#include "kernels/arm/binary_pack_neon.h"
#include "kernels/arm/lookup_blocks_dotprod.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_lookup.h"
#include "kernels/common/binary_pairs.h"
#include "kernels/common/binary_tiles.h"

namespace bmx {
namespace {

// A unit holds the nibbles of a word, each in a byte.
void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel, packed += packed_stride, words += stride) {
        for (int unit = 0; unit < units; ++unit) {
            const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(words[unit]));
            const uint8x8_t low = vand_u8(bytes, vdup_n_u8(15)), high = vshr_n_u8(bytes, 4);
            vst1_u8(packed + unit * kUnitBytes, vzip1_u8(low, high));
        }
    }
}

}  // namespace

const BinaryKernels& binary_kernels_dotprod() {
    static const BinaryKernels kernels = {"dotprod",
                                          kUnitBytes,
                                          kStripFilters,
                                          kBandPixels,
                                          pack_words<Comparison, float>,
                                          pack_words<Comparison, int16_t>,
                                          pack_planes,
                                          expand,
                                          weights_bytes,
                                          prepare_weights,
                                          PairRows::scratch_bytes,
                                          convolve};
    return kernels;
}

}  // namespace bmx
