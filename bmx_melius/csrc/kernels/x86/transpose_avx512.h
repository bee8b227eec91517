// Transposition of 16 x 16 numbers in registers.
#pragma once
#include <immintrin.h>

namespace bmx {
namespace {

inline void transpose(__m512 (&x)[16]) {
    __m512 y[16];
    for (int i = 0; i < 16; i += 4) {  // one column of four rows in each quarter
        const __m512 a = _mm512_unpacklo_ps(x[i], x[i + 1]), b = _mm512_unpackhi_ps(x[i], x[i + 1]);
        const __m512 c = _mm512_unpacklo_ps(x[i + 2], x[i + 3]), d = _mm512_unpackhi_ps(x[i + 2], x[i + 3]);
        y[i] = _mm512_shuffle_ps(a, c, 0x44);
        y[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        y[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        y[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; ++i) {  // transpose the 4 x 4 quarters of column 4 j + i
        const __m512 a = _mm512_shuffle_f32x4(y[i], y[i + 4], 0x88), b = _mm512_shuffle_f32x4(y[i], y[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(y[i + 8], y[i + 12], 0xdd);
        x[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        x[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        x[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        x[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

}  // namespace
}  // namespace bmx
