// Float kernels with 256-bit vectors.
#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/x86/transpose_avx2.h"

namespace bmx {
namespace {

struct Lanes {  // documented in float_avx512.cc
    using Real = __m256;
    static constexpr int width = 8;

    // Size of the tiles: 12 sums in 16 registers. With several taps at a time, compilers store sums in memory.
    static constexpr int planar_outputs = 4, planar_vectors = 3, planar_taps = 1;
    static constexpr int gemm_rows = 6, gemm_vectors = 2;

    static __m256i first(int count) {
        return _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0));
    }

    static Real zero() { return _mm256_setzero_ps(); }
    static Real broadcast(float x) { return _mm256_set1_ps(x); }
    static Real load(const float* x) { return _mm256_loadu_ps(x); }
    static void store(float* x, Real value) { _mm256_storeu_ps(x, value); }
    static Real load_first(const float* x, int count) { return _mm256_maskload_ps(x, first(count)); }
    static void store_first(float* x, Real value, int count) { _mm256_maskstore_ps(x, first(count), value); }

    static Real add(Real a, Real b) { return _mm256_add_ps(a, b); }
    static Real multiply_add(Real a, Real b, Real c) { return _mm256_fmadd_ps(a, b, c); }
    static Real max(Real a, Real b) { return _mm256_max_ps(a, b); }

    // Shuffles work within 128-bit halves: quarters of a and b alternate and are reordered at the end.
    static Real quarters_in_order(Real x) { return _mm256_castpd_ps(_mm256_permute4x64_pd(_mm256_castps_pd(x), 0xd8)); }
    static Real even(Real a, Real b) { return quarters_in_order(_mm256_shuffle_ps(a, b, 0x88)); }
    static Real odd(Real a, Real b) { return quarters_in_order(_mm256_shuffle_ps(a, b, 0xdd)); }
    static Real shifted(Real a, Real b) {
        return _mm256_permutevar8x32_ps(_mm256_blend_ps(b, a, 0x80), _mm256_set_epi32(6, 5, 4, 3, 2, 1, 0, 7));
    }

    static void transpose(Real (&x)[width]) { bmx::transpose(x); }

    using Integers = __m128i;

    static Integers load_integers(const int16_t* x, int count) {
        if (count >= width) {
            return _mm_loadu_si128(reinterpret_cast<const __m128i*>(x));
        }
        int16_t elements[width] = {};
        std::memcpy(elements, x, count * sizeof(int16_t));
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(elements));
    }
    static Integers max(Integers a, Integers b) { return _mm_max_epi16(a, b); }
    static Integers min(Integers a, Integers b) { return _mm_min_epi16(a, b); }
    static Real to_real(Integers x) { return _mm256_cvtepi32_ps(_mm256_cvtepi16_epi32(x)); }
    static Integers negative(Real sign, Integers a, Integers b) {
        const __m256i bits = _mm256_castps_si256(sign);
        const __m128i signs = _mm_packs_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
        return _mm_blendv_epi8(b, a, _mm_srai_epi16(signs, 15));
    }
};

}  // namespace
}  // namespace bmx

#include "kernels/common/float_vector_kernels.h"

namespace bmx {

const FloatKernels& float_kernels_avx2() {
    static const FloatKernels kernels = table("avx2");
    return kernels;
}

}  // namespace bmx
