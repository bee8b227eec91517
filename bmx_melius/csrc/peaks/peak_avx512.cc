#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kSeed = 0x01234567;

// Parities of all words so far, and the number of set bits among the carries.
struct Parities {
    __m512i parity, ones;
};

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+v"(x)); };

}  // namespace

double popcount_avx512(Operands operands, double seconds) {
    const __m512i word = _mm512_set1_epi32(~kSeed);
    return rate_of_chains<16, 4, 1>(operands, seconds, 512, _mm512_setzero_si512(), _mm512_set1_epi32(kSeed), kHide,
                                    [&](__m512i& sum, const __m512i(&x)[1]) BMX_INLINED {
                                        sum = _mm512_add_epi32(sum, _mm512_popcnt_epi32(_mm512_xor_si512(x[0], word)));
                                    });
}

// See the beginning of binary_avx512.cc.
double carry_save_avx512(Operands operands, double seconds) {
    const __m512i a = _mm512_set1_epi32(~kSeed), b = _mm512_set1_epi32(3 * kSeed);
    const __m512i zero = _mm512_setzero_si512();
    return rate_of_chains<8, 2, 2>(operands, seconds, 2 * 512, Parities{zero, zero}, a, kHide,
                                   [&](Parities& sum, const __m512i(&x)[2]) BMX_INLINED {
                                       const __m512i odd = _mm512_xor_si512(x[0], a), next = _mm512_xor_si512(x[1], b);
                                       const __m512i carry = _mm512_ternarylogic_epi32(odd, next, sum.parity, 0x3a);
                                       sum.ones = _mm512_add_epi32(sum.ones, _mm512_popcnt_epi32(carry));
                                       sum.parity = next;
                                   });
}

double float_avx512(Operands operands, double seconds) {
    const __m512 factor = _mm512_set1_ps(1e-3f);
    return rate_of_chains<16, 4, 1>(operands, seconds, 16, factor, factor, kHide,
                                    [&](__m512& sum, const __m512(&x)[1])
                                        BMX_INLINED { sum = _mm512_fmadd_ps(x[0], factor, sum); });
}

double int8_avx512(Operands operands, double seconds) {
    const __m512i weights = _mm512_set1_epi8(3);
    return rate_of_chains<16, 4, 1>(operands, seconds, 64, _mm512_setzero_si512(), weights, kHide,
                                    [&](__m512i& sum, const __m512i(&x)[1])
                                        BMX_INLINED { sum = _mm512_dpbusd_epi32(sum, x[0], weights); });
}

}  // namespace bmx
