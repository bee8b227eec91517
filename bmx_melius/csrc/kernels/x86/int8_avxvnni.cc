// Kernels of 8-bit layers with AVX-VNNI, whose dot product of four bytes is exact.
#include "kernels/x86/int8_vectors_avx2.h"

namespace bmx {
namespace {

struct DotProducts {
    static constexpr int kPixels = 6;

    using Weights = __m256i;
    using Activations = __m256i;
    static void add(__m256i& sum, __m256i x, __m256i weights) { sum = _mm256_dpbusd_avx_epi32(sum, x, weights); }
};

}  // namespace

const Int8Kernels& int8_kernels_avxvnni() {
    static const Int8Kernels kernels = {
        rescale_at_once, rescale_planes_at_once, max_at_once, convolve_with<DotProducts>, sum_pixels, 1};
    return kernels;
}

}  // namespace bmx
