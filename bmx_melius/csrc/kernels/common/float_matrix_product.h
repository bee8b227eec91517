// Matrix product: lanes are n.
#pragma once
#include "kernels/common/float_vectors.h"

namespace bmx {
namespace {

constexpr int kTileRows = Lanes::gemm_rows, kTileBlocks = Lanes::gemm_vectors;
constexpr int kPointerRows = 3;  // rows per pointer: addressing modes allow pointer + 0, 1 or 2 strides

size_t gemm_weights_bytes(int n, int k) { return sizeof(float) * ceil_div(n, kWidth) * kWidth * k; }

// Layout of the prepared weights: [block of kWidth n][k][kWidth], 0 beyond n.
void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    float* result = static_cast<float*>(prepared);
    for (int block = 0; block < n; block += kWidth) {
        for (int i = 0; i < k; ++i) {
            for (int j = block; j < block + kWidth; ++j) {
                *result++ = j < n ? weights[j * ldw + i] : 0;
            }
        }
    }
}

// Weights as gemm_prepare stores them. gemm_tile takes any class with such a function `visit`.
class PreparedWeights {
  public:
    explicit PreparedWeights(const Gemm& gemm)
        : prepared_(static_cast<const float*>(gemm.b)), block_size_(ptrdiff_t(gemm.k) * kWidth) {}

    // Calls visit(i, weights) for inputs 0 to k - 1, with the weights of `blocks` blocks from column n on.
    template <int blocks, class Visit>
    [[gnu::always_inline]] void visit(int n, int k, const Visit& visit) const {
        const float* b = prepared_ + n / kWidth * block_size_;
        for (int i = 0; i < k; ++i, b += kWidth) {
            Real weight[blocks];
            unrolled<blocks>([&](auto j) BMX_INLINED { weight[j] = Lanes::load(b + j * block_size_); });
            visit(i, weight);
        }
    }

  private:
    const float* prepared_;
    ptrdiff_t block_size_;
};

// Computes `rows` rows of C, starting at m, and `blocks` blocks of kWidth columns, starting at n.
template <bool indexed, int rows, int blocks, class Weights>
void gemm_tile(const Gemm& gemm, const Weights& weights, int m, int n) {
    constexpr int pointers = ceil_div(rows, kPointerRows);
    const ptrdiff_t lda = gemm.lda;
    const float* a[pointers];
    for (int p = 0; p < pointers; ++p) {
        a[p] = gemm.a + (m + p * kPointerRows) * lda;
    }
    Real sum[rows][blocks];
    unrolled<rows>([&](auto r)
                       BMX_INLINED { unrolled<blocks>([&](auto j) BMX_INLINED { sum[r][j] = Lanes::zero(); }); });
    weights.template visit<blocks>(n, gemm.k, [&](int i, const Real(&weight)[blocks]) BMX_INLINED {
        const ptrdiff_t column = indexed ? gemm.column[i] : i;
        unrolled<rows>([&](auto r) BMX_INLINED {
            const Real x = Lanes::broadcast(a[r / kPointerRows][column + r % kPointerRows * lda]);
            unrolled<blocks>([&](auto j) BMX_INLINED { sum[r][j] = Lanes::multiply_add(x, weight[j], sum[r][j]); });
        });
    });
    unrolled<blocks>([&](auto j) BMX_INLINED {
        const int first = n + j * kWidth, count = gemm.n - first;
        const Normalization normalized(gemm.epilogue, first, count);
        float* c = gemm.c + m * gemm.ldc + first;
        unrolled<rows>([&](auto r) BMX_INLINED {
            const Real y = normalized(sum[r][j]);
            store(c + r * gemm.ldc, gemm.epilogue.relu ? relu(y) : y, count);
        });
    });
}

// Returns the largest number of blocks of a tile of `rows` rows: tiles of few rows have more blocks, so that the
// latency of their sums does not matter.
constexpr int max_blocks(int rows) {
    constexpr int limit = 4, sums = kTileRows * kTileBlocks;
    return sums / rows < limit ? sums / rows : limit;
}

template <bool indexed, int rows, int blocks, class Weights>
void gemm_tile_of(const Gemm& gemm, const Weights& weights, int m, int n, int wanted_blocks) {
    if constexpr (blocks > 1) {
        if (wanted_blocks < blocks) {
            return gemm_tile_of<indexed, rows, blocks - 1>(gemm, weights, m, n, wanted_blocks);
        }
    }
    gemm_tile<indexed, rows, blocks>(gemm, weights, m, n);
}

// Computes all columns of `wanted_rows` rows of C, starting at m.
template <bool indexed, int rows, class Weights>
void gemm_rows(const Gemm& gemm, const Weights& weights, int m, int wanted_rows) {
    if constexpr (rows > 1) {
        if (wanted_rows < rows) {
            return gemm_rows<indexed, rows - 1>(gemm, weights, m, wanted_rows);
        }
    }
    constexpr int tile_blocks = max_blocks(rows);
    const int blocks = ceil_div(gemm.n, kWidth), tiles = ceil_div(blocks, tile_blocks);
    for (int i = 0, block = 0; i < tiles; ++i) {
        const int next = int(int64_t(blocks) * (i + 1) / tiles);
        gemm_tile_of<indexed, rows, tile_blocks>(gemm, weights, m, block * kWidth, next - block);
        block = next;
    }
}

template <class Weights>
void gemm_with(const Gemm& gemm, const Weights& weights) {
    const int tiles = ceil_div(gemm.m, kTileRows);
    for (int i = 0, m = 0; i < tiles; ++i) {
        const int next = int(int64_t(gemm.m) * (i + 1) / tiles);
        gemm.column ? gemm_rows<true, kTileRows>(gemm, weights, m, next - m)
                    : gemm_rows<false, kTileRows>(gemm, weights, m, next - m);
        m = next;
    }
}

void gemm(const Gemm& gemm) { gemm_with(gemm, PreparedWeights(gemm)); }

}  // namespace
}  // namespace bmx
