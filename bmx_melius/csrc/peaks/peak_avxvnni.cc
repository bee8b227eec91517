#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr auto kHide = [](__m256i& x) BMX_INLINED { asm("" : "+x"(x)); };

}  // namespace

double int8_avxvnni(Operands operands, double seconds) {
    const __m256i weights = _mm256_set1_epi8(3);
    return rate_of_chains<8, 4, 1>(operands, seconds, 32, _mm256_setzero_si256(), weights, kHide,
                                   [&](__m256i& sum, const __m256i(&x)[1])
                                       BMX_INLINED { sum = _mm256_dpbusd_avx_epi32(sum, x[0], weights); });
}

}  // namespace bmx
