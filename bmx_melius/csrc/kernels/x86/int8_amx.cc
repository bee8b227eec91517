// Convolutions of 8-bit layers with AMX: 16 pixels by 16 lanes by 64 bytes an instruction, unsigned by signed bytes,
// added to 32 bits exactly.
//
// A chunk of 16 words of the weights of a block is a tile as it is stored. Windows of at least 16 words a tap are read
// from the map directly, the chunks of others are put together in a buffer. Windows of less than two chunks or more
// than kMaxChunks or kMaxMapChunks, what fills less than half of the tiles, alternating groups and single pixels have
// the kernels of AVX-512; so do rescaling and pooling.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/int8_kernels.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kWordBytes = 4, kChunk = kTileRows;  // words of a tile instruction
constexpr int kMaxChunks = 16;                     // in the buffer
constexpr int kMaxMapChunks = 512;                 // read from the map, whose offsets are kept
constexpr int kMinPixels = 4;
constexpr int kMinSteps = 2 * kChunk;      // a stem's first convolution of 9 words takes 2.7 times as long with tiles
constexpr int kRowTiles = 2, kStrips = 2;  // tiles of pixels and blocks that are multiplied at a time

int steps_of(const Int8Row& row, const Int8Blocks& blocks) { return row.tap_count * blocks.words; }

// Whether a tile of pixels is part of the map, except for the last words of a window.
bool reads_map(const Int8Row& row, const Int8Blocks& blocks) {
    return blocks.words >= kChunk && (blocks.words % kChunk == 0 || row.tap_count == 1);
}

bool suits_tiles(const Int8Row& row, const Int8Blocks& blocks) {
    const int steps = steps_of(row, blocks), chunks = ceil_div(steps, kChunk);
    return blocks.period == 1 && !blocks.lanes && blocks.rescaling.low && row.pixels >= kMinPixels &&
           steps >= kMinSteps && 2 * steps >= chunks * kChunk &&
           chunks <= (reads_map(row, blocks) ? kMaxMapChunks : kMaxChunks);
}

// --- pixels: tiles [chunk] of the first factor

// One or two tiles of pixels.
struct Pixels {
    int tiles;
    int first[kRowTiles];  // pixel of each tile
};

class Windows {
  public:
    Windows(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row),
          x_(row.x + kWordBytes * blocks.first_word),
          words_(blocks.words),
          chunks_(ceil_div(steps_of(row, blocks), kChunk)),
          reads_map_(reads_map(row, blocks)) {
        if (!reads_map_) {
            find_runs();
        }
        const int chunks_of_tap = ceil_div(words_, kChunk);
        for (int chunk = 0; chunk < chunks_; ++chunk) {
            // the last words of a window may be read again
            const int word = min(chunk % chunks_of_tap * kChunk, words_ - kChunk);
            offsets_[chunk] = reads_map_ ? row.taps[chunk / chunks_of_tap] + kWordBytes * word
                                         : chunk * ptrdiff_t(sizeof(buffer_[0]));
        }
    }

    // Makes the chunks of pixels, if they are not read from the map.
    void begin(const Pixels& pixels, int rows) {
        pixels_ = pixels;
        for (int tile = 0; tile < pixels.tiles && !reads_map_; ++tile) {
            for (int row = 0; row < rows; ++row) {
                const uint8_t* window = x_ + (pixels.first[tile] + row) * row_.step;
                for (int chunk = 0; chunk < chunks_; ++chunk) {
                    __m512i words = _mm512_setzero_si512();
                    for (int run = first_run_[chunk]; run < first_run_[chunk + 1]; ++run) {
                        words = _mm512_mask_loadu_epi32(words, runs_[run].lanes, window + runs_[run].offset);
                    }
                    _mm512_store_si512(buffer_[chunk][tile][row], words);
                }
            }
        }
    }

    // Where the first rows of the tiles are but for the offset of a chunk, bytes from row to row, and these offsets.
    const uint8_t* first_rows(int tile) const {
        return reads_map_ ? x_ + pixels_.first[tile] * row_.step : buffer_[0][tile][0];
    }
    ptrdiff_t row_step() const { return reads_map_ ? row_.step : kTileRowBytes; }
    const ptrdiff_t* offsets() const { return offsets_; }

  private:
    // Words of a chunk that follow one another in the map.
    struct Run {
        ptrdiff_t offset;  // bytes from the window to what would be the first lane
        __mmask16 lanes;
    };

    void find_runs() {
        int runs = 0;
        for (int step = 0; step < chunks_ * kChunk; ++step) {
            const int lane = step % kChunk, tap = step / words_;
            if (lane == 0) {
                first_run_[step / kChunk] = runs;
            }
            if (tap == row_.tap_count) {
                break;
            }
            const ptrdiff_t offset = row_.taps[tap] + kWordBytes * (step % words_ - lane);
            if (lane == 0 || runs_[runs - 1].offset != offset) {
                runs_[runs++] = {offset, 0};
            }
            runs_[runs - 1].lanes = static_cast<__mmask16>(runs_[runs - 1].lanes | 1u << lane);
        }
        first_run_[chunks_] = runs;
    }

    alignas(64) uint8_t buffer_[kMaxChunks][kRowTiles][kTileRows][kTileRowBytes];
    const Int8Row& row_;
    const uint8_t* const x_;
    const int words_, chunks_;
    const bool reads_map_;
    Pixels pixels_ = {};
    Run runs_[kMaxChunks * kChunk];
    int first_run_[kMaxChunks + 1];
    ptrdiff_t offsets_[kMaxMapChunks];
};

// --- weights: tiles of the second factor

class Weights {
  public:
    Weights(const Int8Row& row, const Int8Blocks& blocks)
        : blocks_(blocks),
          row_bytes_(ptrdiff_t(blocks.count) * kTileRowBytes),
          chunks_(ceil_div(steps_of(row, blocks), kChunk)),
          in_last_(steps_of(row, blocks) - (chunks_ - 1) * kChunk) {
        if (in_last_ == kChunk) {
            return;
        }
        // In a window that is read again up to its last word, the words of the chunk before have weights of 0.
        const int begin = reads_map(row, blocks) ? kChunk - in_last_ : 0;
        std::memset(last_, 0, sizeof last_);
        for (int block = 0; block < blocks.count; ++block) {
            for (int step = 0; step < in_last_; ++step) {
                std::memcpy(last_[block][begin + step], stored(chunks_ - 1, block) + step * row_bytes_, kTileRowBytes);
            }
        }
    }

    int chunks() const { return chunks_; }

    // The tile of a block in a chunk, bytes from row to row, and to the tile of the next block.
    const uint8_t* tile(int chunk, int block) const {
        return is_copied(chunk) ? last_[block][0] : stored(chunk, block);
    }
    ptrdiff_t row_bytes(int chunk) const { return is_copied(chunk) ? kTileRowBytes : row_bytes_; }
    ptrdiff_t to_next(int chunk) const { return is_copied(chunk) ? sizeof(last_[0]) : kTileRowBytes; }

  private:
    bool is_copied(int chunk) const { return in_last_ < kChunk && chunk == chunks_ - 1; }
    const uint8_t* stored(int chunk, int block) const {
        return reinterpret_cast<const uint8_t*>(blocks_.weights) + chunk * kChunk * row_bytes_ + block * kTileRowBytes;
    }

    alignas(64) uint8_t last_[kInt8Blocks][kTileRows][kTileRowBytes];
    const Int8Blocks& blocks_;
    const ptrdiff_t row_bytes_;   // of a word of all blocks
    const int chunks_, in_last_;  // words of the last chunk
};

// --- results

// Up to two blocks and up to two tiles of pixels, whose sums are in the tiles.
struct Block {
    Pixels pixels = {};
    int first = 0, strips = 0;  // of the blocks
};

// Buffer for the sums of a block, between the tiles and the result. Pixels follow one another: the sums of a second
// tile replace those of the first one that it repeats.
class Results {
  public:
    Results(const Int8Row& row, const Int8Blocks& blocks, int rows)
        : row_(row), blocks_(blocks), rows_(rows), y_pixel_(row.y_pixel) {}

    uint8_t* sums(const Block& block, int tile, int strip) {
        return sums_[strip][tile ? block.pixels.first[1] - block.pixels.first[0] : 0];
    }
    int left() const { return count_ - next_; }

    void begin(const Block& block) {
        block_ = block;
        const int last = block.pixels.tiles - 1;
        count_ = last < 0 ? 0 : block.pixels.first[last] + rows_ - block.pixels.first[0];
        next_ = 0;
    }

    void store_pixels(int count) {
        const int end = min(next_ + count, count_);
        switch (row_.result) {
            case Int8Result::bytes:
                store(static_cast<uint8_t*>(row_.y), end);
                break;
            case Int8Result::shorts:
                store(static_cast<int16_t*>(row_.y), end);
                break;
            case Int8Result::floats:
                store(static_cast<float*>(row_.y), end);
        }
        next_ = end;
    }

  private:
    template <class Y>
    void store(Y* y, int end) const {
        const int first = block_.first * kInt8Lanes, left = blocks_.outputs - first;
        y += block_.pixels.first[0] * y_pixel_ + blocks_.first_output + first;
        if (block_.strips == 2) {
            left >= 2 * kInt8Lanes ? store_strips<2, true>(y, first, left, end)
                                   : store_strips<2, false>(y, first, left, end);
        } else {
            left >= kInt8Lanes ? store_strips<1, true>(y, first, left, end)
                               : store_strips<1, false>(y, first, left, end);
        }
    }

    // `left`: outputs, fewer than the lanes of the strips unless kAll.
    template <int kStrips, bool kAll, class Y>
    void store_strips(Y* y, int first, int left, int end) const {
        const Rescaling r = blocks_.rescaling.from(first);
        const __m512i shift = _mm512_set1_epi32(r.shift);
        __m512i low[kStrips], high[kStrips], factor[kStrips], summand[kStrips];
        unrolled<kStrips>([&](auto strip) BMX_INLINED {
            low[strip] = _mm512_loadu_si512(r.low + strip * kInt8Lanes);
            high[strip] = _mm512_loadu_si512(r.high + strip * kInt8Lanes);
            factor[strip] = _mm512_loadu_si512(r.factor + strip * kInt8Lanes);
            summand[strip] = _mm512_loadu_si512(r.summand + strip * kInt8Lanes);
        });
        const auto mask = kAll ? ~__mmask32(0) : static_cast<__mmask32>((uint64_t(1) << left) - 1);
        for (int i = next_; i < end; ++i) {
            __m512i results[kStrips];
            unrolled<kStrips>([&](auto strip) BMX_INLINED {
                const __m512i sum = _mm512_load_si512(sums_[strip][i]);
                const __m512i n = _mm512_min_epi32(_mm512_max_epi32(sum, low[strip]), high[strip]);
                const __m512i scaled = _mm512_add_epi32(_mm512_mullo_epi32(n, factor[strip]), summand[strip]);
                results[strip] = _mm512_srav_epi32(scaled, shift);
            });
            store_results<kAll>(y + i * y_pixel_, results, mask);
        }
    }

    template <bool kAll>
    static void store_results(uint8_t* y, const __m512i (&results)[1], __mmask32 mask) {
        const __m128i bytes = _mm512_cvtepi32_epi8(results[0]);
        kAll ? _mm_storeu_si128(reinterpret_cast<__m128i*>(y), bytes)
             : _mm_mask_storeu_epi8(y, static_cast<__mmask16>(mask), bytes);
    }
    template <bool kAll>
    static void store_results(uint8_t* y, const __m512i (&results)[2], __mmask32 mask) {
        const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 4, 8, 12, 1, 5, 9, 13);
        const __m512i shorts = _mm512_packs_epi32(results[0], results[1]);
        const __m256i bytes =
            _mm512_castsi512_si256(_mm512_permutexvar_epi32(order, _mm512_packus_epi16(shorts, shorts)));
        kAll ? _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), bytes) : _mm256_mask_storeu_epi8(y, mask, bytes);
    }
    template <bool kAll>
    static void store_results(int16_t* y, const __m512i (&results)[1], __mmask32 mask) {
        const __m256i shorts = _mm512_cvtepi32_epi16(results[0]);
        kAll ? _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), shorts)
             : _mm256_mask_storeu_epi16(y, static_cast<__mmask16>(mask), shorts);
    }
    template <bool kAll>
    static void store_results(int16_t* y, const __m512i (&results)[2], __mmask32 mask) {
        const __m512i order = _mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7);
        const __m512i shorts = _mm512_permutexvar_epi64(order, _mm512_packs_epi32(results[0], results[1]));
        kAll ? _mm512_storeu_si512(y, shorts) : _mm512_mask_storeu_epi16(y, mask, shorts);
    }
    template <bool kAll, size_t kStrips>
    static void store_results(float* y, const __m512i (&results)[kStrips], __mmask32 mask) {
        for (const __m512i& result : results) {
            _mm512_mask_storeu_ps(y, static_cast<__mmask16>(mask), _mm512_cvtepi32_ps(result));
            y += kInt8Lanes;
            mask >>= kInt8Lanes;
        }
    }

    alignas(64) uint8_t sums_[kStrips][kRowTiles * kTileRows][kTileRowBytes];
    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const int rows_;
    const ptrdiff_t y_pixel_;
    Block block_;
    int count_ = 0, next_ = 0;
};

// --- the product

// Software-pipelined as in binary_amx.cc.
class Convolution {
    static constexpr int kStoreEvery = 8;  // chunks of at most 64 cycles: see binary_amx.cc

  public:
    Convolution(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row),
          blocks_(blocks),
          tiles_(ceil_div(row.pixels, kTileRows)),
          rows_(ceil_div(row.pixels, tiles_)),
          windows_(row, blocks),
          weights_(row, blocks),
          results_(row, blocks, rows_) {
        configure_tiles(rows_);
    }
    ~Convolution() { _tile_release(); }
    Convolution(const Convolution&) = delete;
    Convolution& operator=(const Convolution&) = delete;

    void compute() {
        for (int tile = 0; tile < tiles_; tile += kRowTiles) {
            Pixels pixels = {min(kRowTiles, tiles_ - tile), {}};
            for (int i = 0; i < pixels.tiles; ++i) {  // the last tile ends with the row and may repeat pixels
                pixels.first[i] = min((tile + i) * rows_, row_.pixels - rows_);
            }
            pixels.first[1] = pixels.tiles > 1 ? pixels.first[1] : pixels.first[0] + rows_;
            windows_.begin(pixels, rows_);
            for (int block = 0; block < blocks_.count; block += kStrips) {
                const bool both = block + 1 < blocks_.count;
                if (pixels.tiles == 2) {
                    both ? compute<2, 2>(pixels, block) : compute<2, 1>(pixels, block);
                } else {
                    both ? compute<1, 2>(pixels, block) : compute<1, 1>(pixels, block);
                }
            }
        }
        begin_sums<0>();
        begin_sums<1>();
        begin_sums<2>();
        begin_sums<3>();
        results_.begin(computed_);
        results_.store_pixels(results_.left());
    }

  private:
    template <int tiles, int strips>
    void compute(const Pixels& pixels, int block) {
        const uint8_t* const rows[] = {windows_.first_rows(0), windows_.first_rows(tiles - 1)};
        const ptrdiff_t row_step = windows_.row_step(), *const offsets = windows_.offsets();
        const int chunks = weights_.chunks();
        const auto multiply = [&](int chunk, const auto& begin) BMX_INLINED {
            const uint8_t* const weights = weights_.tile(chunk, block);
            const ptrdiff_t row_bytes = weights_.row_bytes(chunk), to_second = weights_.to_next(chunk);
            add_byte_products<tiles, strips>(
                [&](auto tile) BMX_INLINED {
                    if constexpr (tile < kFirstLaneTile) {
                        load_tile<tile>(rows[tile - 4] + offsets[chunk], row_step);
                    } else {
                        load_tile<tile>(weights + (tile - kFirstLaneTile) * to_second, row_bytes);
                    }
                },
                begin);
        };
        multiply(0, [&](auto tile) BMX_INLINED { begin_sums<tile>(); });
        results_.begin(computed_);
        const int pixels_a_chunk = results_.left() / chunks + 1;
        for (int chunk = 1; chunk < chunks; ++chunk) {
            multiply(chunk, [](auto) {});
            results_.store_pixels(pixels_a_chunk);
            if (chunk % kStoreEvery == 0) {
                store_tile<4>(unused_);
            }
        }
        results_.store_pixels(results_.left());
        computed_ = {pixels, block, strips};
    }

    // Stores a tile of sums of the last block, and clears it.
    template <int tile>
    void begin_sums() {
        store_tile<tile>(results_.sums(computed_, tile % 2, tile / 2));
        clear_tile<tile>();
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const int tiles_, rows_;  // tiles of pixels, and pixels of a tile
    Windows windows_;
    const Weights weights_;
    Results results_;
    Block computed_;  // the block whose sums are in the tiles
    alignas(64) uint8_t unused_[kTileBytes];
};

void convolve(const Int8Row& row) {
    Int8Row part = row;
    part.blocks_count = 1;
    for (part.blocks = row.blocks; part.blocks < row.blocks + row.blocks_count; ++part.blocks) {
        if (suits_tiles(row, *part.blocks)) {
            Convolution(row, *part.blocks).compute();
        } else {
            int8_kernels_avx512().convolve(part);
        }
    }
}

}  // namespace

const Int8Kernels& int8_kernels_amx() {
    static const Int8Kernels kernels = [] {
        Int8Kernels result = int8_kernels_avx512();
        result.convolve = convolve;
        result.reads_codes = false;
        return result;
    }();
    return kernels;
}

}  // namespace bmx
