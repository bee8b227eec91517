// Convolutions and matrix products in bfloat16, the upper half of float32, with sums in float32 (AVX512_BF16), for
// Precision::bf16.
//
// In a matrix product, a lane is an output; an instruction multiplies two inputs with two weights and adds both
// products. Weights are rounded to bfloat16 when a program is loaded, inputs in each call, a few rows at a time: to 8
// bits of precision, a relative error of at most 2^-8 each. Numbers below 2^-126 are treated as 0.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/common/arithmetic.h"
#include "kernels/common/float_kernels.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/float_bf16_planar.h"
#include "kernels/x86/float_bf16_vectors.h"

namespace bmx {
namespace {

constexpr int kTileRows = 12, kTileBlocks = 2;  // 24 sums in 32 registers
constexpr int kPointerRows = 3;                 // rows per pointer: addressing modes allow pointer + 0, 1 or 2 strides
constexpr int kMaxK = 4608;                     // of inputs of a tile, which are on the stack
constexpr int kMinN = 64, kMinK = 32;           // below these, rounding the inputs takes longer than the products save

bool is_suitable(int n, int k) { return n >= kMinN && k >= kMinK && k <= kMaxK; }

// --- weights: [block of kLanes n][pair of k][kLanes][2], 0 beyond n and k

int pairs_of(int k) { return ceil_div(k, 2); }

size_t gemm_weights_bytes(int n, int k) {
    return is_suitable(n, k) ? sizeof(uint32_t) * ceil_div(n, kLanes) * kLanes * pairs_of(k)
                             : float_kernels_avx512().gemm_weights_bytes(n, k);
}

void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    if (!is_suitable(n, k)) {
        return float_kernels_avx512().gemm_prepare(n, k, weights, ldw, prepared);
    }
    uint32_t* to = static_cast<uint32_t*>(prepared);
    for (int block = 0; block < n; block += kLanes) {
        for (int i = 0; i < k; i += 2, to += kLanes) {
            alignas(64) float low[kLanes] = {}, high[kLanes] = {};
            for (int j = 0; j < kLanes && block + j < n; ++j) {
                low[j] = weights[(block + j) * ldw + i];
                high[j] = i + 1 < k ? weights[(block + j) * ldw + i + 1] : 0;
            }
            _mm512_storeu_si512(to, rounded_pairs(_mm512_load_ps(low), _mm512_load_ps(high)));
        }
    }
}

// --- inputs

// Loads `count` numbers of a row, at most kLanes, from column i on.
__m512 load_inputs(const Gemm& gemm, const float* row, int i, int count) {
    const __mmask16 some = first_lanes(count);
    if (!gemm.column) {
        return _mm512_maskz_loadu_ps(some, row + i);
    }
    const int first = gemm.column[i];
    if (count >= kLanes && gemm.column[i + kLanes - 1] == first + kLanes - 1 && gemm.column[i + 1] == first + 1) {
        const __m512i columns = _mm512_loadu_si512(gemm.column + i);
        const __m512i consecutive = _mm512_add_epi32(
            _mm512_set1_epi32(first), _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
        if (_mm512_cmpeq_epi32_mask(columns, consecutive) == __mmask16(-1)) {
            return _mm512_loadu_ps(row + first);
        }
    }
    const __m512i columns = _mm512_maskz_loadu_epi32(some, gemm.column + i);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), some, columns, row, sizeof(float));
}

// Rounds rows m to m + rows - 1 of A to `to`, `pairs` pairs for each row.
void round_rows(const Gemm& gemm, int m, int rows, uint32_t* to, int pairs) {
    for (int r = 0; r < rows; ++r, to += pairs) {
        const float* const row = gemm.a + (m + r) * gemm.lda;
        for (int i = 0; i < gemm.k; i += 2 * kLanes) {
            const int left = gemm.k - i;
            const __m512 low = load_inputs(gemm, row, i, left);
            const __m512 high = left > kLanes ? load_inputs(gemm, row, i + kLanes, left - kLanes) : _mm512_setzero_ps();
            _mm512_mask_storeu_epi32(to + i / 2, first_lanes(pairs - i / 2), rounded(low, high));
        }
    }
}

// --- products

// Stores a vector of sums of outputs n to n + kLanes - 1, as far as they exist.
void store_outputs(const Gemm& gemm, int n, __m512 sum, float* to) {
    const __mmask16 some = first_lanes(gemm.n - n);
    const Epilogue& epilogue = gemm.epilogue;
    if (epilogue.scale) {
        sum = _mm512_fmadd_ps(sum, _mm512_maskz_loadu_ps(some, epilogue.scale + n),
                              _mm512_maskz_loadu_ps(some, epilogue.shift + n));
    }
    _mm512_mask_storeu_ps(to, some, epilogue.relu ? _mm512_max_ps(_mm512_setzero_ps(), sum) : sum);
}

// Computes `rows` rows of C, whose inputs are `a`, and `blocks` blocks of kLanes columns, starting at n.
template <int rows, int blocks>
void multiply_tile(const Gemm& gemm, const uint32_t* a, int m, int n) {
    constexpr int pointers = ceil_div(rows, kPointerRows);
    const ptrdiff_t count = pairs_of(gemm.k), block_size = count * kLanes;
    const uint32_t* b = static_cast<const uint32_t*>(gemm.b) + n * count;
    const uint32_t* from[pointers];
    for (int p = 0; p < pointers; ++p) {
        from[p] = a + p * kPointerRows * count;
    }
    __m512 sum[rows][blocks];
    unrolled<rows>([&](auto r) { unrolled<blocks>([&](auto j) { sum[r][j] = _mm512_setzero_ps(); }); });
    for (ptrdiff_t i = 0; i < count; ++i, b += kLanes) {
        __m512bh weight[blocks];
        unrolled<blocks>([&](auto j) { weight[j] = as_pairs(_mm512_loadu_si512(b + j * block_size)); });
        unrolled<rows>([&](auto r) {
            const uint32_t x = from[r / kPointerRows][i + r % kPointerRows * count];
            const __m512bh inputs = as_pairs(_mm512_set1_epi32(static_cast<int>(x)));
            unrolled<blocks>([&](auto j) { sum[r][j] = _mm512_dpbf16_ps(sum[r][j], inputs, weight[j]); });
        });
    }
    unrolled<rows>([&](auto r) {
        unrolled<blocks>([&](auto j) {
            const int first = n + j * kLanes;
            store_outputs(gemm, first, sum[r][j], gemm.c + (m + r) * gemm.ldc + first);
        });
    });
}

// Computes all columns of `wanted_rows` rows.
template <int rows>
void multiply_rows(const Gemm& gemm, const uint32_t* a, int m, int wanted_rows) {
    if constexpr (rows > 1) {
        if (wanted_rows < rows) {
            return multiply_rows<rows - 1>(gemm, a, m, wanted_rows);
        }
    }
    constexpr int blocks = rows > kTileRows / 2 ? kTileBlocks : 2 * kTileBlocks;
    int n = 0;
    for (; gemm.n - n > (blocks - 1) * kLanes; n += blocks * kLanes) {
        multiply_tile<rows, blocks>(gemm, a, m, n);
    }
    for (; n < gemm.n; n += kLanes) {
        multiply_tile<rows, 1>(gemm, a, m, n);
    }
}

void gemm(const Gemm& gemm) {
    if (!is_suitable(gemm.n, gemm.k)) {
        return float_kernels_avx512().gemm(gemm);
    }
    alignas(64) uint32_t a[kTileRows * (kMaxK / 2)];
    const int tiles = ceil_div(gemm.m, kTileRows);
    for (int i = 0, m = 0; i < tiles; ++i) {
        const int next = int(int64_t(gemm.m) * (i + 1) / tiles);
        round_rows(gemm, m, next - m, a, pairs_of(gemm.k));
        multiply_rows<kTileRows>(gemm, a, m, next - m);
        m = next;
    }
}

}  // namespace

const FloatKernels& float_kernels_bf16() {
    static const FloatKernels kernels = [] {
        FloatKernels result = float_kernels_avx512();
        result.name = "bf16";
        result.planar_weights_bytes = planar_weights_bytes;
        result.planar_prepare = planar_prepare;
        result.planar_row = planar_row;
        result.gemm_weights_bytes = gemm_weights_bytes;
        result.gemm_prepare = gemm_prepare;
        result.gemm = gemm;
        result.gemm_of_codes = nullptr;
        result.gemm_block = 0;
        return result;
    }();
    return kernels;
}

}  // namespace bmx
