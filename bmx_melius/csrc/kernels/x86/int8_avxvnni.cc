// Kernels of 8-bit layers with AVX-VNNI, whose dot product of four bytes is exact.
#include "kernels/x86/int8_vectors_avx2.h"

namespace bmx {
namespace {

struct DotProducts {
    static constexpr int kPixels = 6;

    struct Weights {
        static constexpr int kBytes = 32;

        __m256i bytes;
        explicit Weights(const uint8_t* from) : bytes(_mm256_load_si256(reinterpret_cast<const __m256i*>(from))) {}
    };
    using PreparedWeights = Weights;
    using Activations = __m256i;
    static void add(__m256i& sum, __m256i x, const Weights& weights) {
        sum = _mm256_dpbusd_avx_epi32(sum, x, weights.bytes);
    }
};

}  // namespace

const Int8Kernels& int8_kernels_avxvnni() {
    static const Int8Kernels kernels = {shorts_at_once,
                                        rescale_at_once,
                                        rescale_planes_at_once,
                                        max_at_once,
                                        convolve_with<DotProducts>,
                                        mean_at_once,
                                        count_thresholds,
                                        1};
    return kernels;
}

}  // namespace bmx
