// Binary layers with AMX for maps of few pixels. Activations are bytes 0 or 1, weights are bytes +-1 (or +-2 if the
// result is h), and a tile instruction multiplies 64 elements of 16 pixels with 64 elements of 16 filters.
//
// With u the bits of the activations, the number of agreeing elements is sum(u w) + (number of weights that are -1),
// and h is twice that minus n. The terms that do not depend on u are added at the end.
//
// The rows of a tile are neighbouring pixels. If the stride is 1, all rows of the map are treated as one line of
// pixels, so that tiles are full even for small maps; windows across the end of a row are computed but not stored.
//
// Weights are stored as bits, and converted to bytes just before their use for up to four tiles of pixels at once:
// loading bytes would dominate if few pixels share them.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/x86/binary_store_avx512.h"
#include "kernels/x86/binary_tiles_amx.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

// --- weights: for each strip the tiles of bits in the order of use, then for each strip the constants added to the
// sums

constexpr int kTileBits = kTileBytes / 8;  // bytes of a tile of bits

int bytes_of(const Pieces& pieces) { return pieces.units * kUnitBytes; }
int chunks_of(const Pieces& pieces) { return ceil_div(bytes_of(pieces), kChunk); }
int tiles_of(const Pieces& pieces) { return pieces.rows * pieces.columns * chunks_of(pieces); }  // tiles of a strip

size_t strip_bytes(const BinaryConv& conv) { return size_t(tiles_of(pieces_of(conv))) * kTileBits; }
size_t tiles_bytes(const BinaryConv& conv) { return (count_strips(conv) * strip_bytes(conv) + 63) / 64 * 64; }

size_t weights_bytes(const BinaryConv& conv) {
    return tiles_bytes(conv) + count_strips(conv) * kLanes * sizeof(int32_t);
}

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const Pieces pieces = pieces_of(conv);
    const int units = conv.group_units();
    const int group_channels = conv.in_channels / conv.groups;
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * units;
    uint8_t* tiles = static_cast<uint8_t*>(prepared);
    int32_t* constants = reinterpret_cast<int32_t*>(tiles + tiles_bytes(conv));
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const int lane = filter - strip.begin;
            int negative = 0;
            for (size_t i = 0; i < filter_words; ++i) {
                const uint32_t word = words[filter * filter_words + i];
                const size_t piece = i / pieces.units, first = i % pieces.units * 32;
                const int elements = min(32, group_channels - static_cast<int>(i % units) * 32);
                for (int e = 0; e < elements; ++e) {
                    const size_t k = first + e, chunk = piece * chunks_of(pieces) + k / kChunk;
                    const bool positive = word >> e & 1;
                    const int at = static_cast<int>(k % kChunk / 4 * kChunk + lane * 4 + k % 4);
                    tiles[chunk * kTileBits + at / 8] |= positive << at % 8;
                    negative += !positive;
                }
            }
            *constants++ = conv.offset ? negative : 2 * negative - static_cast<int>(conv.weights_per_output());
        }
        constants += kLanes - (strip.end - strip.begin);
        tiles += strip_bytes(conv);
    });
}

// --- convolution

// Tiles of pixels that are computed together.
struct Group {
    static constexpr int kMaxTiles = 4;
    int tiles = 0;
    const uint8_t* windows[kMaxTiles];  // windows of the first rows
    int pixels = 0;                     // pixels to store, without rows that cross the end of a map row or are repeated
    int source[kMaxTiles * kTileRows];  // index of the sums of a pixel
    ptrdiff_t output[kMaxTiles * kTileRows];
};

class Groups {
  public:
    explicit Groups(const BinaryConvRun& run) : run_(run), lines_(lines_of(run)) {}

    // Returns the next group; it has no tiles after the last one.
    void next(Group& group) {
        group.tiles = group.pixels = 0;
        const int left = (lines_.count - line_) * lines_.tiles - tile_, groups = ceil_div(left, Group::kMaxTiles);
        const int tiles = groups ? ceil_div(left, groups) : 0;  // of about equal sizes
        for (; group.tiles < tiles; ++group.tiles) {
            const int first = min(tile_ * lines_.rows, lines_.length - lines_.rows);
            group.windows[group.tiles] = run_.input + line_ * lines_.line_step + first * lines_.pixel_step;
            for (int row = tile_ * lines_.rows - first; row < lines_.rows; ++row) {
                if (column_ < run_.columns) {
                    group.source[group.pixels] = sums_at(group.tiles) + row * kLanes;
                    group.output[group.pixels++] = output_;
                }
                output_ += run_.output_pixel;
                if (++column_ == lines_.pitch) {
                    column_ = 0;
                    output_ += run_.output_row - lines_.pitch * run_.output_pixel;
                }
            }
            if (++tile_ == lines_.tiles) {
                tile_ = 0;
                ++line_;
            }
        }
    }

    static int sums_at(int tile) { return tile * kTileRows * kLanes; }

  private:
    const BinaryConvRun& run_;
    const Lines lines_;
    int line_ = 0, tile_ = 0, column_ = 0;  // where the next group begins
    ptrdiff_t output_ = 0;
};

// A strip of filters, and the pixels for which it is computed.
struct Block {
    const Group* group;
    Strip strip;
};
constexpr Group kNoGroup = {};
constexpr Block kNothing = {&kNoGroup, {}};

// Buffer for the sums of a block, stored to the output a few pixels at a time while the next block is computed.
template <typename T>
class Results {
  public:
    explicit Results(const BinaryConvRun& run, const int32_t* constants)
        : output_(static_cast<T*>(run.output)), addend_(static_cast<const T*>(run.addend)), constants_(constants) {}

    // The sums of a tile register.
    int32_t* sums(int tile) { return sums_ + Groups::sums_at(tile); }
    int left() const { return block_.group->pixels - next_; }

    void begin(const Block& block) {
        block_ = block;
        next_ = 0;
    }

    void store_pixels(int count) {
        const int begin = next_;
        next_ = min(next_ + count, block_.group->pixels);
        const __m512i constant = _mm512_load_si512(constants_ + block_.strip.index * kLanes);
        const __mmask16 lanes = lanes_of(block_.strip);
        for (int i = begin; i < next_; ++i) {
            const ptrdiff_t at = block_.group->output[i] + block_.strip.begin;
            store(_mm512_add_epi32(constant, _mm512_load_si512(sums_ + block_.group->source[i])), output_ + at,
                  addend_ ? addend_ + at : nullptr, lanes);
        }
    }

  private:
    alignas(64) int32_t sums_[Group::kMaxTiles * kTileRows * kLanes];
    T* const output_;
    const T* const addend_;
    const int32_t* const constants_;
    Block block_ = kNothing;
    int next_ = 0;
};

// Software-pipelined convolution: the sums of a block are stored from the tiles after the next block has loaded its
// first tiles, and its results are written during the steps of the next block. This saves up to 10 % of the time with
// few channels or small maps.
template <typename T>
class Convolution {
    // A tile store more than about 2000 cycles after the previous one takes 1000 additional cycles (measured on a
    // 4th-generation Xeon). So a tile is stored at least every kStoreEvery steps, of at least 64 cycles each.
    static constexpr int kStoreEvery = 8;
    // Results are stored in bunches, because stores between tile loads delay these.
    static constexpr int kBunch = 4;
    // Weights are converted this many steps ahead, because loading a tile waits for recent stores to its memory: 87
    // instead of 58 microseconds for 512 filters on 7 x 7.
    static constexpr int kAhead = 3, kBytesTiles = 4;

  public:
    explicit Convolution(const BinaryConvRun& run)
        : run_(run),
          pixel_step_(run.conv->stride_w * run.pixel_bytes),
          pieces_(pieces_in_map(run)),
          strip_bytes_(strip_bytes(*run.conv)),
          weights_(static_cast<const uint8_t*>(run.weights)),
          results_(run, reinterpret_cast<const int32_t*>(weights_ + tiles_bytes(*run.conv))) {
        configure_tiles(lines_of(run).rows);
    }
    ~Convolution() { _tile_release(); }
    Convolution(const Convolution&) = delete;
    Convolution& operator=(const Convolution&) = delete;

    void compute() {
        for (Groups groups(run_); const Group* group = next_group(groups);) {
            for_each_strip_block<1>(run_, [&](const Strip* strip, int) { compute({group, *strip}); });
        }
        store_sums();
        results_.store_pixels(results_.left());
    }

  private:
    const Group* next_group(Groups& groups) {
        Group& group = group_buffers_[next_buffer_];
        groups.next(group);
        if (group.tiles == 0) {
            return nullptr;
        }
        next_buffer_ ^= 1;
        return &group;
    }

    void compute(const Block& block) {
        if (block.group->tiles > 2) {
            block.group->tiles == 4 ? compute<4>(block) : compute<3>(block);
        } else {
            block.group->tiles == 2 ? compute<2>(block) : compute<1>(block);
        }
    }

    template <int kTiles>
    void compute(const Block& block) {
        const ptrdiff_t first_unit = block.strip.group * run_.conv->group_units() * kUnitBytes;
        const uint8_t* weights = weights_ + block.strip.index * strip_bytes_;
        for (int step = 0; step < kAhead && step < tiles_of(pieces_); ++step) {
            make_bytes(weights, step);
        }
        int pixels_a_step = 0, step = 0;
        for (int y = 0; y < pieces_.rows; ++y) {
            for (int x = 0; x < pieces_.columns; ++x) {
                const ptrdiff_t begin = first_unit + y * pieces_.row_step + x * pieces_.step;
                for (ptrdiff_t at = begin; at < begin + bytes_of(pieces_); at += kChunk, ++step) {
                    load<kTiles>(block.group->windows, at, weights, step);
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
                    multiply<kTiles>(block.group->windows, at);
                }
            }
        }
        results_.store_pixels(results_.left());  // the buffer of their group is reused for the next one
        computed_ = block;
    }

    // Loads the weights of a step to tile 6 and activations to tiles 4 and 5.
    template <int kTiles>
    void load(const uint8_t* const* windows, ptrdiff_t at, const uint8_t* weights, int step) {
        if (step + kAhead < tiles_of(pieces_)) {
            make_bytes(weights, step + kAhead);
        }
        load_tile<6>(bytes_[step % kBytesTiles]);
        load_tile<4>(windows[0] + at, pixel_step_);
        if constexpr (kTiles > 1) {
            load_tile<5>(windows[1] + at, pixel_step_);
        }
    }

    template <int kTiles>
    void multiply(const uint8_t* const* windows, ptrdiff_t at) const {
        _tile_dpbusd(0, 4, 6);
        if constexpr (kTiles > 1) {
            _tile_dpbusd(1, 5, 6);
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
        const uint8_t* from = weights + step * kTileBits;
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
    Results<T> results_;
    Group group_buffers_[2];  // the current and the previous group
    int next_buffer_ = 0, steps_ = 0;
    alignas(64) uint8_t unused_[kTileBytes];
    alignas(64) uint8_t bytes_[kBytesTiles][kTileBytes];  // weights of the next steps, converted from bits
};

void convolve(const BinaryConvRun& run) {
    visit_typed(run.type, run.output,
                [&](auto* output) { Convolution<std::decay_t<decltype(*output)>>(run).compute(); });
}

}  // namespace

const BinaryKernels& binary_kernels_amx_small() {
    const BinaryKernels& words = binary_kernels_avx512();
    static const BinaryKernels kernels = {"amx, few pixels", kUnitBytes,        kLanes, kBandPixels,   words.pack_f32,
                                          words.pack_i16,    words.pack_planes, expand, weights_bytes, prepare_weights,
                                          no_scratch_bytes,  convolve};
    return kernels;
}

}  // namespace bmx
