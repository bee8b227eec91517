#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kChains = 16;  // independent sums, to hide the latency

}  // namespace

double peak_binary_avx512(double seconds) {
    volatile int seed = 0x01234567;
    volatile int sink = 0;
    return fastest_rate(seconds, kChains * 512., [&](long iterations) {
        __m512i sums[kChains], a = _mm512_set1_epi32(seed), b = _mm512_set1_epi32(~seed);
        for (auto& sum : sums) {
            sum = _mm512_setzero_si512();
        }
        for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < kChains; ++c) {
                asm("" : "+v"(a));  // prevents hoisting the exclusive or out of the loop
                sums[c] = _mm512_add_epi32(sums[c], _mm512_popcnt_epi32(_mm512_xor_si512(a, b)));
            }
        }
        for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_epi32(sums[0], sums[c]);
        sink = _mm512_reduce_add_epi32(sums[0]);
    });
}

double peak_float_avx512(double seconds) {
    volatile float seed = 1e-3f;
    volatile float sink = 0;
    return fastest_rate(seconds, kChains * 16., [&](long iterations) {
        __m512 sums[kChains];
        const __m512 x = _mm512_set1_ps(seed);
        for (auto& sum : sums) {
            sum = x;
        }
        for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < kChains; ++c) sums[c] = _mm512_fmadd_ps(sums[c], x, x);
        }
        for (int c = 1; c < kChains; ++c) sums[0] = _mm512_add_ps(sums[0], sums[c]);
        sink = _mm512_reduce_add_ps(sums[0]);
    });
}

}  // namespace bmx
