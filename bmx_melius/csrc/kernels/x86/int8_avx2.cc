// Kernels of 8-bit layers with AVX2. Its products of bytes saturate at 16 bits, so bytes are widened first.
#include "kernels/x86/int8_vectors_avx2.h"

namespace bmx {
namespace {

// Products of the even and of the odd bytes of words.
struct WidenedProducts {
    static constexpr int kPixels = 4;

    struct Weights {
        static constexpr int kBytes = 32;

        __m256i even, odd;
        explicit Weights(const uint8_t* from) {
            const __m256i bytes = _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
            even = _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
            odd = _mm256_srai_epi16(bytes, 8);
        }
    };
    struct PreparedWeights {
        static constexpr int kBytes = 64;

        __m256i even, odd;
        explicit PreparedWeights(const uint8_t* from)
            : even(_mm256_load_si256(reinterpret_cast<const __m256i*>(from))),
              odd(_mm256_load_si256(reinterpret_cast<const __m256i*>(from) + 1)) {}
        static void store(const Weights& weights, uint8_t* to) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(to), weights.even);
            _mm256_store_si256(reinterpret_cast<__m256i*>(to) + 1, weights.odd);
        }
    };
    struct Activations {
        __m256i even, odd;
        explicit Activations(__m256i bytes)
            : even(_mm256_and_si256(bytes, _mm256_set1_epi16(255))), odd(_mm256_srli_epi16(bytes, 8)) {}
    };
    template <class AnyWeights>
    static void add(__m256i& sum, const Activations& x, const AnyWeights& weights) {
        const __m256i products =
            _mm256_add_epi32(_mm256_madd_epi16(x.even, weights.even), _mm256_madd_epi16(x.odd, weights.odd));
        sum = _mm256_add_epi32(sum, products);
    }
};

}  // namespace

const Int8Kernels& int8_kernels_avx2() {
    static const Int8Kernels kernels = {shorts_at_once,
                                        rescale_at_once,
                                        rescale_planes_at_once,
                                        max_at_once,
                                        convolve_with<WidenedProducts>,
                                        mean_at_once,
                                        count_thresholds,
                                        1};
    return kernels;
}

}  // namespace bmx
