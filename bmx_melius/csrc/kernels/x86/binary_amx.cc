// Binary layers with AMX. Activations are bytes 0 or 1, weights are bytes +-1 (or +-2 if the result is h), and a tile
// instruction multiplies 64 elements of 16 pixels with 64 elements of 16 filters.
//
// With u the bits of the activations, the number of agreeing elements is sum(u w) + (number of weights that are -1),
// and h is twice that minus n. The terms that do not depend on u are added at the end.
//
// The rows of a tile are neighbouring pixels. If the stride is 1, all rows of the map are treated as one line of
// pixels, so that tiles are full even for small maps; windows across the end of a row are computed but not stored.
//
// There are two tables, which store the weights as bytes or, for maps of few pixels, as bits.
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/x86/binary_store_avx512.h"
#include "kernels/x86/binary_tiles_amx.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

// --- packing

// Expands two units (or the last one) at a time for all pixels.
void expand(const uint32_t* words, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    const __m512i ones = _mm512_set1_epi8(1);
    int unit = 0;
    for (; unit + 2 <= units; unit += 2) {
        const uint32_t* from = words + unit;
        uint8_t* to = packed + unit * kUnitBytes;
        for (int pixel = 0; pixel < pixels; ++pixel, from += units, to += packed_stride) {
            uint64_t bits;
            std::memcpy(&bits, from, sizeof(bits));
            _mm512_storeu_si512(to, _mm512_maskz_mov_epi8(bits, ones));
        }
    }
    if (unit == units) {
        return;
    }
    const uint32_t* from = words + unit;
    uint8_t* to = packed + unit * kUnitBytes;
    for (int pixel = 0; pixel < pixels; ++pixel, from += units, to += packed_stride) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_mov_epi8(*from, _mm512_castsi512_si256(ones)));
    }
}

// --- convolution

// Neighbouring strips of one group of filters, and the pixels for which they are computed.
struct Block {
    const Group* group;
    int strip_count;
    Strip strips[2];
};
constexpr Group kNoGroup = {};
constexpr Block kNothing = {&kNoGroup, 1, {}};

// Buffer for the sums of a block, stored to the output a few pixels at a time while the next block is computed.
template <typename Form, typename T>
class Results {
  public:
    explicit Results(const BinaryConvRun& run, const int32_t* constants)
        : output_(static_cast<T*>(run.output)), addend_(static_cast<const T*>(run.addend)), constants_(constants) {}

    // The sums of tile register `number`.
    int32_t* sums(int number) { return sums_ + Groups<Form>::sums_at(number % Form::kTiles, number / Form::kTiles); }
    int left() const { return block_.group->pixels - next_; }

    void begin(const Block& block) {
        block_ = block;
        next_ = 0;
    }

    void store_pixels(int count) {
        const int begin = next_;
        next_ = min(next_ + count, block_.group->pixels);
        if (block_.strip_count == 2 && side_by_side(block_.strips[0], block_.strips[1])) {
            addend_ ? store_pairs<true>(begin, next_) : store_pairs<false>(begin, next_);
        } else {
            for (int s = 0; s < block_.strip_count; ++s) {
                store_strip(s, begin, next_);
            }
        }
    }

  private:
    __m512i constant(int strip) const { return _mm512_load_si512(constants_ + block_.strips[strip].index * kLanes); }

    template <bool kAddend>
    void store_pairs(int begin, int end) const {
        const __m512i constant_0 = constant(0), constant_1 = constant(1);
        const __mmask32 lanes = lanes_of(block_.strips[0], block_.strips[1]);
        for (int i = begin; i < end; ++i) {
            const int32_t* sums = sums_ + block_.group->source[i];
            const ptrdiff_t at = block_.group->output[i] + block_.strips[0].begin;
            store_pair(_mm512_add_epi32(constant_0, _mm512_load_si512(sums)),
                       _mm512_add_epi32(constant_1, _mm512_load_si512(sums + Groups<Form>::sums_at(0, 1))),
                       output_ + at, kAddend ? addend_ + at : nullptr, lanes);
        }
    }

    void store_strip(int strip, int begin, int end) const {
        const __mmask16 lanes = lanes_of(block_.strips[strip]);
        for (int i = begin; i < end; ++i) {
            const int32_t* sums = sums_ + block_.group->source[i] + Groups<Form>::sums_at(0, strip);
            const ptrdiff_t at = block_.group->output[i] + block_.strips[strip].begin;
            store(_mm512_add_epi32(constant(strip), _mm512_load_si512(sums)), output_ + at,
                  addend_ ? addend_ + at : nullptr, lanes);
        }
    }

    alignas(64) int32_t sums_[Form::kTiles * Form::kStrips * kTileRows * kLanes];
    T* const output_;
    const T* const addend_;
    const int32_t* const constants_;
    Block block_ = kNothing;
    int next_ = 0;
};

// Software-pipelined convolution: the sums of a block are stored from the tiles after the next block has loaded its
// first tiles, and its results are written during the steps of the next block. This saves up to 10 % of the time with
// few channels or small maps.
template <typename Form, typename T>
class Convolution {
    // A tile store more than about 2000 cycles after the previous one takes 1000 additional cycles (measured on a
    // 4th-generation Xeon). So a tile is stored at least every kStoreEvery steps, of at least 64 cycles each.
    static constexpr int kStoreEvery = 8;
    // Results are stored in bunches, because stores between tile loads delay these. Storing every fourth step instead
    // of every step takes 4 to 5 % less time on maps of 14 x 14 and more; storing after each product takes 20 % more.
    static constexpr int kBunch = 4;
    // Weights are converted this many steps ahead, because loading a tile waits for recent stores to its memory: 87
    // instead of 58 microseconds for 512 filters on 7 x 7.
    static constexpr int kAhead = 3, kBytesTiles = Form::kStrips == 1 ? 4 : 1;

  public:
    explicit Convolution(const BinaryConvRun& run)
        : run_(run),
          pixel_step_(run.conv->stride_w * run.pixel_bytes),
          pieces_(pieces_in_map(run)),
          strip_bytes_(strip_bytes<Form>(*run.conv)),
          weights_(static_cast<const uint8_t*>(run.weights)),
          results_(run, reinterpret_cast<const int32_t*>(weights_ + tiles_bytes<Form>(*run.conv))) {
        configure_tiles(lines_of(run).rows);
    }
    ~Convolution() { _tile_release(); }
    Convolution(const Convolution&) = delete;
    Convolution& operator=(const Convolution&) = delete;

    void compute() {
        for (Groups<Form> groups(run_); const Group* group = next_group(groups);) {
            for_each_strip_block<Form::kStrips>(run_,
                                                [&](const Strip* strips, int count) { compute(strips, count, group); });
        }
        store_sums();
        results_.store_pixels(results_.left());
    }

  private:
    const Group* next_group(Groups<Form>& groups) {
        Group& group = group_buffers_[next_buffer_];
        groups.next(group);
        if (group.tiles == 0) {
            return nullptr;
        }
        next_buffer_ ^= 1;
        return &group;
    }

    void compute(const Strip* strips, int count, const Group* group) {
        const Block block = {group, count, {strips[0], strips[count - 1]}};
        if constexpr (Form::kStrips == 2) {
            if (group->tiles == 2) {
                count == 2 ? compute<2, 2>(block) : compute<2, 1>(block);
            } else {
                count == 2 ? compute<1, 2>(block) : compute<1, 1>(block);
            }
        } else if (group->tiles > 2) {
            group->tiles == 4 ? compute<4, 1>(block) : compute<3, 1>(block);
        } else {
            group->tiles == 2 ? compute<2, 1>(block) : compute<1, 1>(block);
        }
    }

    template <int kTiles, int kStrips>
    void compute(const Block& block) {
        const ptrdiff_t first_unit = block.strips[0].group * run_.conv->group_units() * kUnitBytes;
        const uint8_t* weights = weights_ + block.strips[0].index * strip_bytes_;
        int pixels_a_step = 0, step = 0;
        if constexpr (Form::kStrips == 1) {
            for (; step < kAhead && step < tiles_of(pieces_); ++step) {
                make_bytes(weights, step);
            }
            step = 0;
        }
        for (int y = 0; y < pieces_.rows; ++y) {
            for (int x = 0; x < pieces_.columns; ++x) {
                const ptrdiff_t begin = first_unit + y * pieces_.row_step + x * pieces_.step;
                for (ptrdiff_t at = begin; at < begin + bytes_of(pieces_); at += kChunk, ++step) {
                    load<kTiles, kStrips>(block.group->windows, at, weights, step);
                    if (pixels_a_step == 0) {
                        store_sums();
                        clear_sums();
                        pixels_a_step = results_.left() / tiles_of(pieces_) + 1;
                    } else {
                        if (step % kBunch == kBunch - 1) {
                            results_.store_pixels(kBunch * pixels_a_step);
                        }
                        if (++steps_ % kStoreEvery == 0) {
                            store_tile<4>(unused_);
                        }
                    }
                    multiply<kTiles, kStrips>(block.group->windows, at);
                }
            }
        }
        results_.store_pixels(results_.left());  // the buffer of their group is reused for the next one
        computed_ = block;
    }

    // Loads the weights of a step to tile 6 and, with two strips, 7, and activations to tiles 4 and 5.
    template <int kTiles, int kStrips>
    void load(const uint8_t* const* windows, ptrdiff_t at, const uint8_t* weights, int step) {
        if constexpr (Form::kStrips == 1) {
            if (step + kAhead < tiles_of(pieces_)) {
                make_bytes(weights, step + kAhead);
            }
            load_tile<6>(bytes_[step % kBytesTiles]);
        } else {
            load_tile<6>(weights + step * kTileBytes);
            if constexpr (kStrips > 1) {
                load_tile<7>(weights + strip_bytes_ + step * kTileBytes);
            }
        }
        load_tile<4>(windows[0] + at, pixel_step_);
        if constexpr (kTiles > 1) {
            load_tile<5>(windows[1] + at, pixel_step_);
        }
    }

    template <int kTiles, int kStrips>
    void multiply(const uint8_t* const* windows, ptrdiff_t at) const {
        _tile_dpbusd(0, 4, 6);
        if constexpr (kTiles > 1) {
            _tile_dpbusd(1, 5, 6);
        }
        if constexpr (kStrips > 1) {
            _tile_dpbusd(2, 4, 7);
        }
        if constexpr (kTiles > 1 && kStrips > 1) {
            _tile_dpbusd(3, 5, 7);
        }
        if constexpr (kTiles > 2) {
            load_tile<4>(windows[2] + at, pixel_step_);
            _tile_dpbusd(2, 4, 6);
        }
        if constexpr (kTiles > 3) {
            load_tile<5>(windows[3] + at, pixel_step_);
            _tile_dpbusd(3, 5, 6);
        }
    }

    // Converts the weights of a step to bytes. Rows beyond the piece are 0, because the activations there are other
    // elements.
    void make_bytes(const uint8_t* weights, int step) {
        const __m512i positive = _mm512_set1_epi8(run_.conv->offset ? 1 : 2);
        const __m512i negative = _mm512_sub_epi8(_mm512_setzero_si512(), positive);
        const uint8_t* from = weights + step * Form::kTileSize;
        uint8_t* to = bytes_[step % kBytesTiles];
        const int beyond = chunks_of(pieces_) * kChunk - bytes_of(pieces_);  // bytes of the last chunk beyond the piece
        const int rows = beyond && (step + 1) % chunks_of(pieces_) == 0 ? kTileRows - beyond / 4 : kTileRows;
        if (rows == kTileRows) {
#pragma GCC unroll 16
            for (int row = 0; row < kTileRows; ++row) {
                make_row(from, to, row, positive, negative);
            }
        } else {
            for (int row = 0; row < rows; ++row) {
                make_row(from, to, row, positive, negative);
            }
            std::memset(to + rows * kTileRowBytes, 0, (kTileRows - rows) * kTileRowBytes);
        }
    }

    static void make_row(const uint8_t* from, uint8_t* to, int row, __m512i positive, __m512i negative) {
        uint64_t bits;
        std::memcpy(&bits, from + row * sizeof(bits), sizeof(bits));
        _mm512_store_si512(to + row * kTileRowBytes, _mm512_mask_blend_epi8(bits, negative, positive));
    }

    // Stores the sums of the last block from the tiles.
    void store_sums() {
        store_tile<0>(results_.sums(0));
        store_tile<1>(results_.sums(1));
        store_tile<2>(results_.sums(2));
        store_tile<3>(results_.sums(3));
        results_.begin(computed_);
    }

    const BinaryConvRun& run_;
    const ptrdiff_t pixel_step_;
    const PiecesInMap pieces_;
    const size_t strip_bytes_;
    const uint8_t* const weights_;
    Block computed_ = kNothing;  // the block whose sums are in the tiles
    Results<Form, T> results_;
    Group group_buffers_[2];  // the current and the previous group
    int next_buffer_ = 0, steps_ = 0;
    alignas(64) uint8_t unused_[kTileBytes];
    alignas(64) uint8_t bytes_[kBytesTiles][kTileBytes];  // weights of the next steps, converted from bits
};

template <typename Form>
void convolve(const BinaryConvRun& run) {
    if (run.type == DataType::f32) {
        Convolution<Form, float>(run).compute();
    } else {
        Convolution<Form, int16_t>(run).compute();
    }
}

template <typename Form>
BinaryKernels table(const char* name) {
    const BinaryKernels& words = binary_kernels_avx512();
    return {name,
            kUnitBytes,
            kLanes,
            kBandPixels,
            words.pack_f32,
            words.pack_i16,
            words.pack_planes,
            expand,
            weights_bytes<Form>,
            prepare_weights<Form>,
            no_scratch_bytes,
            convolve<Form>};
}

}  // namespace

const BinaryKernels& binary_kernels_amx() {
    static const BinaryKernels kernels = table<Bytes>("amx");
    return kernels;
}

const BinaryKernels& binary_kernels_amx_small() {
    static const BinaryKernels kernels = table<Bits>("amx, weights of bits");
    return kernels;
}

}  // namespace bmx
