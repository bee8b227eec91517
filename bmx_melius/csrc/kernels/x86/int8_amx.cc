// Convolutions of 8-bit layers with AMX: 16 pixels by 16 lanes by 64 bytes an instruction, unsigned by signed bytes,
// added to 32 bits exactly.
//
// A chunk of 16 words of the weights of a block is a tile as it is stored. Windows of at least 16 words a tap are read
// from the map directly, the chunks of others are put together in a buffer. Windows of less than two chunks, what fills
// less than half of the tiles, alternating groups and single pixels have the kernels of AVX-512; so do rescaling and
// pooling.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/int8_kernels.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kWordBytes = 4, kChunk = kTileRows;  // words of a tile instruction
constexpr int kMaxChunks = 16;                     // in the buffer
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
           steps >= kMinSteps && 2 * steps >= chunks * kChunk && (chunks <= kMaxChunks || reads_map(row, blocks));
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

    template <int tile>
    void load(int chunk) const {
        if (!reads_map_) {
            load_tile<4 + tile>(buffer_[chunk][tile][0]);
            return;
        }
        const int chunks_of_tap = ceil_div(words_, kChunk), in_tap = chunk % chunks_of_tap;
        const int word = min(in_tap * kChunk, words_ - kChunk);  // the last words of a window may be read again
        load_tile<4 + tile>(x_ + pixels_.first[tile] * row_.step + row_.taps[chunk / chunks_of_tap] + kWordBytes * word,
                            row_.step);
    }

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
                std::memcpy(last_[block][begin + step], tile(chunks_ - 1, block) + step * row_bytes_, kTileRowBytes);
            }
        }
    }

    int chunks() const { return chunks_; }

    template <int strip>
    void load(int chunk, int block) const {
        if (in_last_ < kChunk && chunk == chunks_ - 1) {
            load_tile<kFirstLaneTile + strip>(last_[block + strip][0]);
        } else {
            load_tile<kFirstLaneTile + strip>(tile(chunk, block + strip), row_bytes_);
        }
    }

  private:
    const int8_t* tile(int chunk, int block) const {
        return blocks_.weights + chunk * kChunk * row_bytes_ + block * kTileRowBytes;
    }

    alignas(64) uint8_t last_[kInt8Blocks][kTileRows][kTileRowBytes];
    const Int8Blocks& blocks_;
    const ptrdiff_t row_bytes_;   // of a word of all blocks
    const int chunks_, in_last_;  // words of the last chunk
};

// --- results

// Buffer for the sums of up to two blocks and two tiles of pixels, between the tiles and the result.
class Results {
  public:
    Results(const Int8Row& row, const Int8Blocks& blocks, int rows) : row_(row), blocks_(blocks), rows_(rows) {}

    uint8_t* sums(int tile, int strip) { return sums_[tile][strip][0]; }
    int left() const { return count_ - next_; }

    void begin(const Pixels& pixels, int block, int strips) {
        pixels_ = pixels;
        block_ = block;
        strips_ = strips;
        count_ = pixels.tiles * rows_;
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
        const __m512i shift = _mm512_set1_epi32(blocks_.rescaling.shift);
        for (int strip = 0; strip < strips_; ++strip) {
            const int first = (block_ + strip) * kInt8Lanes, left = blocks_.outputs - first;
            const __mmask16 lanes = left >= kInt8Lanes ? 0xffff : __mmask16((1u << left) - 1);
            const Rescaling r = blocks_.rescaling.from(first);
            const __m512i low = _mm512_loadu_si512(r.low), high = _mm512_loadu_si512(r.high);
            const __m512i factor = _mm512_loadu_si512(r.factor), summand = _mm512_loadu_si512(r.summand);
            for (int i = next_; i < end; ++i) {
                const int tile = i / rows_, row = i % rows_;
                const __m512i sum = _mm512_load_si512(sums_[tile][strip][row]);
                const __m512i n = _mm512_min_epi32(_mm512_max_epi32(sum, low), high);
                const __m512i scaled = _mm512_add_epi32(_mm512_mullo_epi32(n, factor), summand);
                store(y + (pixels_.first[tile] + row) * row_.y_pixel + blocks_.first_output + first, lanes,
                      _mm512_srav_epi32(scaled, shift));
            }
        }
    }
    static void store(uint8_t* y, __mmask16 lanes, __m512i results) {
        _mm512_mask_cvtepi32_storeu_epi8(y, lanes, results);
    }
    static void store(int16_t* y, __mmask16 lanes, __m512i results) {
        _mm512_mask_cvtepi32_storeu_epi16(y, lanes, results);
    }
    static void store(float* y, __mmask16 lanes, __m512i results) {
        _mm512_mask_storeu_ps(y, lanes, _mm512_cvtepi32_ps(results));
    }

    alignas(64) uint8_t sums_[kRowTiles][kStrips][kTileRows][kTileRowBytes];
    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const int rows_;
    Pixels pixels_ = {};
    int block_ = 0, strips_ = 0, count_ = 0, next_ = 0;
};

// --- the product

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
        results_.store_pixels(results_.left());
    }

  private:
    // Computes sums. Meanwhile the results before are stored.
    template <int tiles, int strips>
    void compute(const Pixels& pixels, int block) {
        clear_sums();
        const int pixels_a_chunk = results_.left() / weights_.chunks() + 1;
        for (int chunk = 0; chunk < weights_.chunks(); ++chunk) {
            weights_.load<0>(chunk, block);
            windows_.load<0>(chunk);
            _tile_dpbusd(0, 4, 6);
            if constexpr (tiles > 1) {
                windows_.load<1>(chunk);
                _tile_dpbusd(1, 5, 6);
            }
            if constexpr (strips > 1) {
                weights_.load<1>(chunk, block);
                _tile_dpbusd(2, 4, 7);
            }
            if constexpr (tiles > 1 && strips > 1) {
                _tile_dpbusd(3, 5, 7);
            }
            results_.store_pixels(pixels_a_chunk);
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
        results_.begin(pixels, block, strips);
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const int tiles_, rows_;  // tiles of pixels, and pixels of a tile
    Windows windows_;
    const Weights weights_;
    Results results_;
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
