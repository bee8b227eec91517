#include <immintrin.h>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kSeed = 0x01234567;
constexpr int kVectors = 4;  // operands of a step of the lookup and of carry-save

struct ByteSums {
    __m256i bytes, shifted;
};

// Numbers of set bits by weight, and their popcounts in bytes.
struct Carries {
    __m256i ones, twos, counts;
};

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+x"(x)); };

__m256i counts_of_nibbles() {
    return _mm256_broadcastsi128_si256(_mm_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4));
}

// Adds the numbers of set bits of the bytes of x to `counts`.
[[gnu::always_inline]] inline __m256i counted(__m256i counts, __m256i x, __m256i table) {
    const __m256i low = _mm256_set1_epi8(15), high = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
    counts = _mm256_add_epi8(counts, _mm256_shuffle_epi8(table, _mm256_and_si256(x, low)));
    return _mm256_add_epi8(counts, _mm256_shuffle_epi8(table, high));
}

// Returns the sum of three bits in each place, and its carry.
[[gnu::always_inline]] inline __m256i full_adder(__m256i a, __m256i b, __m256i& c) {
    const __m256i u = _mm256_xor_si256(a, b);
    const __m256i carry = _mm256_or_si256(_mm256_and_si256(a, b), _mm256_and_si256(u, c));
    c = _mm256_xor_si256(u, c);
    return carry;
}

}  // namespace

// There is no population count: two byte shuffles look up the counts of 64 nibbles.
double popcount_avx2(Operands operands, double seconds) {
    const __m256i word = _mm256_set1_epi32(~kSeed), table = counts_of_nibbles();
    return rate_of_chains<8, 4, 1>(operands, seconds, 256, _mm256_setzero_si256(), _mm256_set1_epi32(kSeed), kHide,
                                   [&](__m256i& sum, const __m256i(&x)[1])
                                       BMX_INLINED { sum = counted(sum, _mm256_xor_si256(x[0], word), table); });
}

// Full adders reduce four words to one of carries, which is counted (Harley and Seal).
double carry_save_avx2(Operands operands, double seconds) {
    const __m256i word = _mm256_set1_epi32(~kSeed), table = counts_of_nibbles(), zero = _mm256_setzero_si256();
    return rate_of_chains<2, 1, kVectors>(
        operands, seconds, kVectors * 256, Carries{zero, zero, zero}, table, kHide,
        [&](Carries& sum, const __m256i(&x)[kVectors]) BMX_INLINED {
            __m256i y[kVectors];
            for (int i = 0; i < kVectors; ++i) {
                y[i] = _mm256_xor_si256(x[i], word);
            }
            const __m256i first = full_adder(y[0], y[1], sum.ones), second = full_adder(y[2], y[3], sum.ones);
            sum.counts = counted(sum.counts, full_adder(first, second, sum.twos), table);
        });
}

// The steps of binary_lookup.h: a shuffle counts four elements of 32 filters and a pair of pixels, and four of its
// results can be added before a nibble overflows.
double lookup_avx2(Operands operands, double seconds) {
    const __m256i table = counts_of_nibbles(), zero = _mm256_setzero_si256();
    return rate_of_chains<2, 2, kVectors>(operands, seconds, kVectors * 32. * 4 * 2, ByteSums{zero, zero}, table, kHide,
                                          [&](ByteSums& sums, const __m256i(&x)[kVectors]) BMX_INLINED {
                                              __m256i sum = _mm256_shuffle_epi8(table, x[0]);
                                              for (int i = 1; i < kVectors; ++i) {
                                                  sum = _mm256_add_epi8(sum, _mm256_shuffle_epi8(table, x[i]));
                                              }
                                              sums.bytes = _mm256_add_epi8(sums.bytes, sum);
                                              sums.shifted = _mm256_add_epi8(sums.shifted, _mm256_srli_epi16(sum, 4));
                                          });
}

double float_avx2(Operands operands, double seconds) {
    const __m256 factor = _mm256_set1_ps(1e-3f);
    return rate_of_chains<12, 4, 1>(operands, seconds, 8, factor, factor, kHide,
                                    [&](__m256& sum, const __m256(&x)[1])
                                        BMX_INLINED { sum = _mm256_fmadd_ps(x[0], factor, sum); });
}

// Bytes are widened outside of the inner loop here.
double int8_avx2(Operands operands, double seconds) {
    const __m256i weights = _mm256_set1_epi16(3);
    return rate_of_chains<6, 3, 1>(operands, seconds, 16, _mm256_setzero_si256(), weights, kHide,
                                   [&](__m256i& sum, const __m256i(&x)[1])
                                       BMX_INLINED { sum = _mm256_add_epi32(sum, _mm256_madd_epi16(x[0], weights)); });
}

}  // namespace bmx
