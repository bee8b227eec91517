// Matrix products of float32 with AMX, whose tiles multiply bfloat16, the upper halves of float32.
//
// A float32 is split into a sum of three bfloat16 (bfloat16_parts.h). Of the nine products of the parts of two numbers
// the six largest are added in float32. The others are at most 1.2e-7 of the product, with either sign. The error of
// sums of several hundred products was at most 9e-8 of the sum of magnitudes for normally distributed numbers, and 1e-6
// for positive or widely scaled numbers: on average half of the error of float32 vector code. Results below 2^-126 are
// 0.
//
// B is split once, A in each call. The vector unit does this, and the epilogue, concurrently with the tile unit: its
// instructions are interleaved with the tile instructions. The products of an element are added in the order of k,
// independently of its neighbours.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/common/arithmetic.h"
#include "kernels/common/float_kernels.h"
#include "kernels/x86/bfloat16_parts.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kLanes = 16, kChunk = 32;    // a row of a tile: 16 float32 or 32 bfloat16
constexpr int kRowTiles = 2, kStrips = 2;  // tiles of A and of B multiplied at a time
constexpr int kMaxTiles = 64;              // tiles of A at a time, for each of the three parts
constexpr int kMinN = 64, kMinK = 32;      // below these, splitting A takes longer than tiles save
constexpr int kMaxK = kMaxTiles * kChunk;

bool suits_tiles(int n, int k) { return n >= kMinN && k >= kMinK && k <= kMaxK; }

// --- B: tiles [pair of strips][chunk of kChunk k][part][strip]; a strip is kLanes n, and a row of a tile has a pair of
// k for each n

int chunks_of(int k) { return ceil_div(k, kChunk); }

size_t gemm_weights_bytes(int n, int k) {
    if (!suits_tiles(n, k)) {
        return float_kernels_avx512().gemm_weights_bytes(n, k);
    }
    return size_t(ceil_div(n, kLanes)) * chunks_of(k) * kParts * kTileBytes;
}

// tile: the tile of part 0; the tiles of the other parts follow `step` bytes apart.
void prepare_tile(int n, int k, const float* weights, ptrdiff_t ldw, uint8_t* tile, ptrdiff_t step) {
    for (int pair = 0; pair < kChunk / 2; ++pair, tile += kTileRowBytes) {
        alignas(64) float even[kLanes] = {}, odd[kLanes] = {};
        for (int lane = 0; lane < min(kLanes, n); ++lane) {
            if (pair < k) {
                even[lane] = weights[lane * ldw + pair];
            }
            if (pair + kLanes < k) {
                odd[lane] = weights[lane * ldw + pair + kLanes];
            }
        }
        store_pairs(Split(_mm512_load_ps(even)), Split(_mm512_load_ps(odd)), tile, step);
    }
}

void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    if (!suits_tiles(n, k)) {
        return float_kernels_avx512().gemm_prepare(n, k, weights, ldw, prepared);
    }
    uint8_t* tile = static_cast<uint8_t*>(prepared);
    for (int pair = 0; pair < n; pair += kStrips * kLanes) {
        const int strips = min(ceil_div(n - pair, kLanes), kStrips);
        for (int chunk = 0; chunk < k; chunk += kChunk, tile += kParts * strips * kTileBytes) {
            for (int s = 0; s < strips; ++s) {
                const int strip = pair + s * kLanes;
                prepare_tile(n - strip, k - chunk, weights + strip * ldw + chunk, ldw, tile + s * kTileBytes,
                             strips * kTileBytes);
            }
        }
    }
}

// --- A: tiles [chunk][row tile][part] of a range of rows

__mmask16 first(int count) { return count >= kLanes ? 0xffff : __mmask16((1u << (count > 0 ? count : 0)) - 1); }

struct Rows {
    int begin, count;
    int tiles, tile_rows;  // 1 or 2 tiles and their rows; the second tile may have fewer

    // The tile of a row, and its offset there.
    int tile(int row) const { return row >= tile_rows; }
    ptrdiff_t offset(int row) const { return (row - tile(row) * tile_rows) * kTileRowBytes; }
};

Rows rows_of(int begin, int end) {
    const int count = end - begin, tiles = ceil_div(count, kTileRows);
    return {begin, count, tiles, ceil_div(count, tiles)};
}

class SplitRows {
  public:
    explicit SplitRows(const Gemm& gemm) : gemm_(gemm) {}

    void begin(const Rows& rows) {
        rows_ = rows;
        chunk_ = row_ = 0;
    }

    const uint8_t* tiles(int chunk) const { return data_ + tiles_at(chunk, 0); }

    // Splits up to `count` of the remaining rows of the current chunk. Does nothing after the last chunk.
    void split(int count) {
        const int k = chunk_ * kChunk, end = min(row_ + count, rows_.count);
        if (k >= gemm_.k) {
            return;
        }
        for (; row_ < end; ++row_) {
            const float* from = gemm_.a + (rows_.begin + row_) * gemm_.lda;
            store_pairs(Split(load(from, k)), Split(load(from, k + kLanes)),
                        data_ + tiles_at(chunk_, rows_.tile(row_)) + rows_.offset(row_), kTileBytes);
        }
    }
    void next_chunk() {
        ++chunk_;
        row_ = 0;
    }

  private:
    ptrdiff_t tiles_at(int chunk, int tile) const {
        return ptrdiff_t(chunk * rows_.tiles + tile) * kParts * kTileBytes;
    }

    // Loads 16 elements of a row, 0 beyond the last one.
    __m512 load(const float* row, int k) const {
        const __mmask16 lanes = first(gemm_.k - k);
        if (!gemm_.column) {
            return _mm512_maskz_loadu_ps(lanes, row + k);
        }
        const __m512i columns = _mm512_maskz_loadu_epi32(lanes, gemm_.column + k);
        return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), lanes, columns, row, sizeof(float));
    }

    alignas(64) uint8_t data_[kMaxTiles * kParts * kTileBytes];
    const Gemm& gemm_;
    Rows rows_;
    int chunk_, row_;  // the next chunk and row to split
};

// --- C

// Buffer for the sums of up to two strips and two row tiles, between the tiles and the result.
class Results {
  public:
    explicit Results(const Gemm& gemm) : gemm_(gemm) {}

    uint8_t* sums(int tile, int strip) { return sums_ + (tile * kStrips + strip) * kTileBytes; }
    int left() const { return rows_.count - next_; }

    void begin(const Rows& rows, int n) {
        rows_ = rows;
        next_ = 0;
        for (int s = 0; s < kStrips; ++s) {
            lanes_[s] = first(gemm_.n - n - s * kLanes);
            if (gemm_.epilogue.scale) {
                scale_[s] = _mm512_maskz_loadu_ps(lanes_[s], gemm_.epilogue.scale + n + s * kLanes);
                shift_[s] = _mm512_maskz_loadu_ps(lanes_[s], gemm_.epilogue.shift + n + s * kLanes);
            }
        }
        c_ = gemm_.c + rows.begin * gemm_.ldc + n;
    }

    void store_rows(int count) {
        for (const int end = min(next_ + count, rows_.count); next_ < end; ++next_) {
            const uint8_t* from = sums(rows_.tile(next_), 0) + rows_.offset(next_);
            float* to = c_ + next_ * gemm_.ldc;
            for (int s = 0; s < kStrips; ++s) {
                __m512 y = _mm512_load_ps(from + s * kTileBytes);
                if (gemm_.epilogue.scale) {
                    y = _mm512_fmadd_ps(y, scale_[s], shift_[s]);
                }
                if (gemm_.epilogue.relu) {
                    y = _mm512_max_ps(_mm512_setzero_ps(), y);
                }
                _mm512_mask_storeu_ps(to + s * kLanes, lanes_[s], y);
            }
        }
    }

  private:
    alignas(64) uint8_t sums_[kRowTiles * kStrips * kTileBytes];
    const Gemm& gemm_;
    Rows rows_ = {0, 0, 1, 1};
    int next_ = 0;
    float* c_ = nullptr;
    __mmask16 lanes_[kStrips] = {};
    __m512 scale_[kStrips], shift_[kStrips];
};

// --- the product

class Product {
    static constexpr int kSteps = 6;  // products of parts per chunk
    // A tile store more than about 2000 cycles after the previous one takes 1000 additional cycles (measured on a
    // 4th-generation Xeon). So a tile is stored at least every kStoreEvery chunks, of 400 cycles each.
    static constexpr int kStoreEvery = 2;
    static constexpr int kAhead =
        8192;  // bytes by which B is prefetched, because it is often only in the last-level cache

  public:
    explicit Product(const Gemm& gemm) : gemm_(gemm), chunks_(chunks_of(gemm.k)), a_(gemm), results_(gemm) {}

    void compute() {
        const int max_rows = min(kRowTiles, kMaxTiles / chunks_) * kTileRows, parts = ceil_div(gemm_.m, max_rows);
        const int strips = ceil_div(gemm_.n, kLanes);
        for (int part = 0, begin = 0; part < parts; ++part) {
            const int end = int(int64_t(gemm_.m) * (part + 1) / parts);
            begin_rows(rows_of(begin, end));
            for (int strip = 0; strip < strips; strip += kStrips) {
                if (rows_.tiles == 2) {
                    strip + 1 < strips ? compute<2, 2>(strip) : compute<2, 1>(strip);
                } else {
                    strip + 1 < strips ? compute<1, 2>(strip) : compute<1, 1>(strip);
                }
            }
            begin = end;
        }
        results_.store_rows(results_.left());
        _tile_release();
    }

  private:
    void begin_rows(const Rows& rows) {
        rows_ = rows;
        configure_tiles(rows.tile_rows);
        a_.begin(rows);
        a_.split(rows.count);
        a_.next_chunk();
    }

    // Computes the sums of all rows for the strips from `strip` on. Meanwhile the previous results are stored and, with
    // the first strips, A is split one chunk ahead.
    template <int tiles, int strips>
    void compute(int strip) {
        clear_sums();
        const int results_a_step = results_.left() / (chunks_ * kSteps) + 1;
        const int splits_a_step = strip == 0 ? rows_.count / kSteps + 1 : 0;
        const uint8_t* b = static_cast<const uint8_t*>(gemm_.b) + ptrdiff_t(strip) * chunks_ * kParts * kTileBytes;
        const uint8_t* ahead = b + kAhead;
        for (int chunk = 0; chunk < chunks_; ++chunk, b += kParts * strips * kTileBytes) {
            const uint8_t* const a = a_.tiles(chunk);
            const auto load_a = [&](int part) {
                load_tile<4>(a + part * kTileBytes);
                if constexpr (tiles > 1) {
                    load_tile<5>(a + (kParts + part) * kTileBytes);
                }
            };
            const auto load_b = [&](int part) {
                load_tile<6>(b + part * strips * kTileBytes);
                if constexpr (strips > 1) {
                    load_tile<7>(b + (part * strips + 1) * kTileBytes);
                }
            };
            const auto multiply = [&] {
                _tile_dpbf16ps(0, 4, 6);
                if constexpr (tiles > 1) {
                    _tile_dpbf16ps(1, 5, 6);
                }
                if constexpr (strips > 1) {
                    _tile_dpbf16ps(2, 4, 7);
                }
                if constexpr (tiles > 1 && strips > 1) {
                    _tile_dpbf16ps(3, 5, 7);
                }
                for (int i = 0; i < kParts * strips * kTileBytes / kSteps; i += kTileRowBytes, ahead += kTileRowBytes) {
                    _mm_prefetch(ahead, _MM_HINT_T0);
                }
                if (splits_a_step) {
                    a_.split(splits_a_step);
                }
                results_.store_rows(results_a_step);
            };
            load_a(0);
            load_b(2);
            multiply();
            load_b(1);
            multiply();
            load_a(1);
            multiply();
            load_b(0);
            multiply();
            load_a(2);
            multiply();
            load_a(0);
            multiply();
            if (splits_a_step) {
                a_.next_chunk();
            }
            if (chunk % kStoreEvery == kStoreEvery - 1) {
                store_tile<4>(unused_);
            }
        }
        store_tile<0>(results_.sums(0, 0));
        if constexpr (tiles > 1) {
            store_tile<1>(results_.sums(1, 0));
        }
        if constexpr (strips > 1) {
            store_tile<2>(results_.sums(0, 1));
        }
        if constexpr (tiles > 1 && strips > 1) {
            store_tile<3>(results_.sums(1, 1));
        }
        results_.begin(rows_, strip * kLanes);
    }

    const Gemm& gemm_;
    const int chunks_;
    Rows rows_ = {};
    SplitRows a_;
    Results results_;
    alignas(64) uint8_t unused_[kTileBytes];
};

void gemm(const Gemm& gemm) {
    if (!suits_tiles(gemm.n, gemm.k)) {
        return float_kernels_avx512().gemm(gemm);
    }
    Product(gemm).compute();
}

}  // namespace

const FloatKernels& float_kernels_amx() {
    static const FloatKernels kernels = [] {
        FloatKernels result = float_kernels_avx512();
        result.name = "amx";
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
