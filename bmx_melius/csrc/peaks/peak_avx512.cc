#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kChains = 16;  // independent sums, to hide the latency

}  // namespace

double peak_binary_avx512(double seconds) {
    volatile int seed = 0x01234567;
    __m512i a = _mm512_set1_epi32(seed);
    const __m512i b = _mm512_set1_epi32(~seed);
    return fastest_rate_of_chains<kChains>(seconds, 512, _mm512_setzero_si512(), [&](__m512i& sum) {
        asm("" : "+v"(a));  // prevents hoisting the exclusive or out of the loop
        sum = _mm512_add_epi32(sum, _mm512_popcnt_epi32(_mm512_xor_si512(a, b)));
    });
}

double peak_float_avx512(double seconds) {
    volatile float seed = 1e-3f;
    const __m512 x = _mm512_set1_ps(seed);
    return fastest_rate_of_chains<kChains>(seconds, 16, x, [&](__m512& sum) { sum = _mm512_fmadd_ps(sum, x, x); });
}

}  // namespace bmx
