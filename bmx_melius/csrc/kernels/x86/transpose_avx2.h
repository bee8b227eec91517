// Transposition of 8 x 8 numbers in registers.
#pragma once
#include <immintrin.h>

namespace bmx {
namespace {

inline void transpose(__m256 (&x)[8]) {
    __m256 y[8];
    for (int i = 0; i < 8; i += 2) {  // pairs of columns within the halves of rows
        y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
        y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
    }
    for (int i = 0; i < 8; i += 4) {  // one column of four rows in each half
        x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
        x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
        x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
        x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
        y[i] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x20);
        y[i + 4] = _mm256_permute2f128_ps(x[i], x[i + 4], 0x31);
    }
    for (int i = 0; i < 8; ++i) {
        x[i] = y[i];
    }
}

}  // namespace
}  // namespace bmx
