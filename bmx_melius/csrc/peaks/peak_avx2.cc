#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

// Independent sums, to hide the latency: 12 sums and the operands fill the 16 registers.
constexpr int kChains = 12;

}  // namespace

// AVX2 has no population count. The scalar instruction counts 64 bits per cycle; two byte shuffles look up the counts
// of 64 half bytes.
double peak_binary_avx2(double seconds) {
    volatile int seed = 0x01234567;
    volatile int sink = 0;
    return fastest_rate(seconds, kChains * 256. / 2, [&](long iterations) {
        __m256i sums[kChains], a = _mm256_set1_epi32(seed), b = _mm256_set1_epi32(~seed);
        const __m256i low = _mm256_set1_epi8(15);
        const __m256i counts =
            _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
        for (auto& sum : sums) {
            sum = _mm256_setzero_si256();
        }
        for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
            for (int c = 0; c < kChains; c += 2) {
                asm("" : "+x"(a));  // prevents hoisting the exclusive or out of the loop
                const __m256i x = _mm256_xor_si256(a, b);
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
                sums[c] = _mm256_add_epi8(sums[c], _mm256_shuffle_epi8(counts, _mm256_and_si256(x, low)));
                sums[c + 1] = _mm256_add_epi8(sums[c + 1], _mm256_shuffle_epi8(counts, high));
            }
        }
        for (int c = 1; c < kChains; ++c) sums[0] = _mm256_add_epi32(sums[0], sums[c]);
        sink = _mm256_extract_epi32(sums[0], 0);
    });
}

double peak_float_avx2(double seconds) {
    volatile float seed = 1e-3f;
    const __m256 x = _mm256_set1_ps(seed);
    return fastest_rate_of_chains<kChains>(seconds, 8, x, [&](__m256& sum) { sum = _mm256_fmadd_ps(sum, x, x); });
}

}  // namespace bmx
