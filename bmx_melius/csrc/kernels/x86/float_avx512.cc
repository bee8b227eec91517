// Float kernels with 512-bit vectors.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/common/level_codes.h"
#include "kernels/x86/transpose_avx512.h"

namespace bmx {
namespace {

struct Lanes {
    using Real = __m512;
    static constexpr int width = 16;

    // Size of the tiles: 24 sums in 32 registers. planar_taps: the width of kernels whose rows are one strip.
    static constexpr int planar_outputs = 8, planar_vectors = 3, planar_taps = 3;
    static constexpr int gemm_rows = 12, gemm_vectors = 2;

    static __mmask16 first(int count) { return __mmask16((1u << count) - 1); }

    static Real zero() { return _mm512_setzero_ps(); }
    static Real broadcast(float x) { return _mm512_set1_ps(x); }
    static Real load(const float* x) { return _mm512_loadu_ps(x); }
    static void store(float* x, Real value) { _mm512_storeu_ps(x, value); }
    // The first `count` elements, 1 to width - 1. The others are 0 and their memory is not accessed.
    static Real load_first(const float* x, int count) { return _mm512_maskz_loadu_ps(first(count), x); }
    static void store_first(float* x, Real value, int count) { _mm512_mask_storeu_ps(x, first(count), value); }

    static Real add(Real a, Real b) { return _mm512_add_ps(a, b); }
    static Real multiply_add(Real a, Real b, Real c) { return _mm512_fmadd_ps(a, b, c); }
    static Real max(Real a, Real b) { return _mm512_max_ps(a, b); }  // b if either is NaN

    // Every other element of a followed by b, starting with the first or the second one.
    static Real even(Real a, Real b) {
        const __m512i which = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        return _mm512_permutex2var_ps(a, which, b);
    }
    static Real odd(Real a, Real b) {
        const __m512i which = _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_permutex2var_ps(a, which, b);
    }
    // The last element of a, followed by all elements of b except the last.
    static Real shifted(Real a, Real b) {
        return _mm512_castsi512_ps(_mm512_alignr_epi32(_mm512_castps_si512(b), _mm512_castps_si512(a), 15));
    }

    static void transpose(Real (&x)[width]) { bmx::transpose(x); }

    using Integers = __m256i;  // width integers of 16 bits

    // The first `count` elements, or all if count is larger than width.
    static Integers load_integers(const int16_t* x, int count) {
        if (count >= width) {
            return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
        }
        return _mm256_maskz_loadu_epi16(first(count), x);
    }
    static Integers max(Integers a, Integers b) { return _mm256_max_epi16(a, b); }
    static Integers min(Integers a, Integers b) { return _mm256_min_epi16(a, b); }
    static Real to_real(Integers x) { return _mm512_cvtepi32_ps(_mm512_cvtepi16_epi32(x)); }
    // a where `sign` is negative, b elsewhere.
    static Integers negative(Real sign, Integers a, Integers b) {
        return _mm256_mask_blend_epi16(_mm512_movepi32_mask(_mm512_castps_si512(sign)), b, a);
    }
};

}  // namespace
}  // namespace bmx

#include "kernels/common/float_vector_kernels.h"

namespace bmx {
namespace {

// Weights from codes. The words of a group are those of all columns of a block, for some inputs one after the other.
// Unlike expanding weights before they are multiplied, looking them up takes hardly any time beside the products.
class WeightsOfCodes {
  public:
    explicit WeightsOfCodes(const Codes<float>& codes) : codes_(codes), levels_(_mm512_loadu_ps(codes.levels)) {}

    template <int blocks, class Visit>
    [[gnu::always_inline]] void visit(int n, int k, const Visit& visit) const {
        const __m512 levels = levels_;
        const __m512i bits = _mm512_set1_epi32(codes_.bits);
        const ptrdiff_t block_words = ptrdiff_t(codes_.groups) * kWidth;
        const uint32_t* words = codes_.words + n / kWidth * block_words;
        const int group_inputs = group_weights(codes_.bits) / kWidth;
        for (int first = 0; first < k; first += group_inputs, words += kWidth) {
            __m512i left[blocks];
            unrolled<blocks>([&](auto j) BMX_INLINED { left[j] = _mm512_load_si512(words + j * block_words); });
            for (int i = first; i < min(k, first + group_inputs); ++i) {
                Real weight[blocks];
                unrolled<blocks>([&](auto j) BMX_INLINED {
                    weight[j] = _mm512_permutexvar_ps(left[j], levels);  // by the lowest four bits
                    left[j] = _mm512_srlv_epi32(left[j], bits);
                });
                visit(i, weight);
            }
        }
    }

  private:
    const Codes<float> codes_;
    const __m512 levels_;
};

void gemm_of_codes(const Gemm& gemm, const Codes<float>& codes) { gemm_with(gemm, WeightsOfCodes(codes)); }

}  // namespace

const FloatKernels& float_kernels_avx512() {
    static const FloatKernels kernels = [] {
        FloatKernels result = table("avx512");
        result.gemm_of_codes = gemm_of_codes;
        result.gemm_block = kWidth;
        return result;
    }();
    return kernels;
}

}  // namespace bmx
