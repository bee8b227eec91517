// Binary layers on the tile unit of AMX: activations are bytes 0 or 1, weights are bytes +-1 (or +-2 where the result
// is h), and a tile instruction multiplies 16 pixels of 64 elements with 64 elements of 16 filters.
//
// With u the activation's bit, the number of agreeing elements is sum(u w) + (number of weights -1), and h is twice
// that minus n; what does not depend on u is added at the end.
//
// The rows of a tile are neighbouring pixels. Where the stride is 1, all rows of the map are taken as one line of
// pixels: windows that hang over the end of a row are computed and not stored, and small maps still fill tiles.
#include <immintrin.h>

#include <cstring>

#include "arithmetic.h"
#include "binary_kernels.h"
#include "binary_store_avx512.h"
#include "binary_strips.h"
#include "tiles_amx.h"

namespace bmx {
namespace {

constexpr int kUnitBytes = 32;
constexpr int kChunk = kTileRowBytes;  // elements that a tile instruction takes of a window

// --- packing

// Two units, or one, of many pixels at a time.
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
    if (unit == units) return;
    const uint32_t* from = words + unit;
    uint8_t* to = packed + unit * kUnitBytes;
    for (int pixel = 0; pixel < pixels; ++pixel, from += units, to += packed_stride) {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm256_maskz_mov_epi8(*from, _mm512_castsi512_si256(ones)));
    }
}

// --- weights: for each strip the tiles in the order of use, then for each strip what is added to the sums

// The parts of a window that lie in one piece in the map.
struct Pieces {
    int rows, columns;  // down and across the window
    int bytes;          // of one piece
    int chunks() const { return (bytes + kChunk - 1) / kChunk; }
    int tiles() const { return rows * columns * chunks(); }  // of a strip
};

Pieces pieces_of(const BinaryConv& conv) {
    return {conv.kernel_h, taps_touch(conv) ? 1 : conv.kernel_w, piece_units(conv) * kUnitBytes};
}

size_t tiles_bytes(const BinaryConv& conv) { return size_t(count_strips(conv)) * pieces_of(conv).tiles() * kTileBytes; }

size_t weights_bytes(const BinaryConv& conv) {
    return tiles_bytes(conv) + count_strips(conv) * kLanes * sizeof(int32_t);
}

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    const Pieces pieces = pieces_of(conv);
    const int units = conv.group_units();
    const int group_channels = conv.in_channels / conv.groups;
    const size_t filter_words = size_t(conv.kernel_h) * conv.kernel_w * units;
    const int piece_words = pieces.bytes / kUnitBytes;
    const int scale = conv.offset ? 1 : 2;
    int8_t* tiles = static_cast<int8_t*>(prepared);
    int32_t* constants = reinterpret_cast<int32_t*>(tiles + tiles_bytes(conv));
    std::memset(prepared, 0, weights_bytes(conv));
    for_each_strip(conv, [&](const Strip& strip) {
        for (int filter = strip.begin; filter < strip.end; ++filter) {
            const int lane = filter - strip.begin;
            int negative = 0;
            for (size_t i = 0; i < filter_words; ++i) {
                const uint32_t word = words[filter * filter_words + i];
                const size_t piece = i / piece_words, first = i % piece_words * 32;
                const int elements = least(32, group_channels - static_cast<int>(i % units) * 32);
                for (int e = 0; e < elements; ++e) {
                    const size_t k = first + e, chunk = piece * pieces.chunks() + k / kChunk;
                    const bool positive = word >> e & 1;
                    tiles[chunk * kTileBytes + k % kChunk / 4 * kChunk + lane * 4 + k % 4] = positive ? scale : -scale;
                    negative += !positive;
                }
            }
            *constants++ = conv.offset ? negative : 2 * negative - static_cast<int>(conv.weights_per_output());
        }
        constants += kLanes - (strip.end - strip.begin);
        tiles += size_t(pieces.tiles()) * kTileBytes;
    });
}

// --- convolution

// The output as lines of pixels whose windows are equally far apart, cut into tiles of nearly equal numbers of rows.
// The last tile of a line ends with the line and repeats some rows of the one before.
struct Lines {
    int length, count;
    int pitch;        // pixels of an output row within a line: more than columns where windows hang over
    int tiles, rows;  // tiles of a line, rows of a tile
    ptrdiff_t line_step, pixel_step;  // bytes between windows in the map
};

int tiles_of(ptrdiff_t pixels) { return static_cast<int>((pixels + kTileRows - 1) / kTileRows); }

Lines lines_of(const BinaryConvRun& run) {
    const ptrdiff_t row_step = run.conv->stride_h * run.row_bytes, pixel_step = run.conv->stride_w * run.pixel_bytes;
    Lines lines = {run.columns, run.rows, run.columns, 0, 0, row_step, pixel_step};
    if (row_step % pixel_step == 0) {
        const ptrdiff_t pitch = row_step / pixel_step, length = (run.rows - 1) * pitch + run.columns;
        if (tiles_of(length) < ptrdiff_t(run.rows) * tiles_of(run.columns)) {
            lines.length = static_cast<int>(length);
            lines.count = 1;
            lines.pitch = static_cast<int>(pitch);
        }
    }
    lines.tiles = tiles_of(lines.length);
    lines.rows = (lines.length + lines.tiles - 1) / lines.tiles;
    return lines;
}

// A few tiles of pixels that are computed together.
struct Group {
    static constexpr int kMostTiles = 2;
    int tiles = 0;
    const uint8_t* windows[kMostTiles];  // of the first rows
    int pixels = 0;                      // to store: rows that hang over or are repeated are left out
    int source[kMostTiles * kTileRows];  // index of a pixel's sums
    ptrdiff_t output[kMostTiles * kTileRows];
};

class Groups {
  public:
    explicit Groups(const BinaryConvRun& run) : run_(run), lines_(lines_of(run)) {}

    // The next group; of no tiles when all are done.
    void next(Group& group) {
        group.tiles = group.pixels = 0;
        for (; group.tiles < Group::kMostTiles && line_ < lines_.count; ++group.tiles) {
            const int first = least(tile_ * lines_.rows, lines_.length - lines_.rows);
            group.windows[group.tiles] = run_.input + line_ * lines_.line_step + first * lines_.pixel_step;
            for (int row = tile_ * lines_.rows - first; row < lines_.rows; ++row) {
                if (column_ < run_.columns) {
                    group.source[group.pixels] = sums_at(group.tiles, 0) + row * kLanes;
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

    static int sums_at(int tile, int strip) { return (2 * tile + strip) * kTileRows * kLanes; }

  private:
    const BinaryConvRun& run_;
    const Lines lines_;
    int line_ = 0, tile_ = 0, column_ = 0;  // where the next group begins
    ptrdiff_t output_ = 0;
};

// Neighbouring strips of one group and the pixels they are computed for: two tiles times two strips at most.
struct Block {
    const Group* group;
    int strip_count;
    Strip strips[2];
};
constexpr Group kNoGroup = {};
constexpr Block kNothing = {&kNoGroup, 1, {}};

// The sums of a block on their way to the output, a few pixels at a time while the tile unit works on the next block.
template <typename T>
class Results {
  public:
    explicit Results(const BinaryConvRun& run, const int32_t* constants)
        : output_(static_cast<T*>(run.output)), addend_(static_cast<const T*>(run.addend)), constants_(constants) {}

    int32_t* sums(int tile, int strip) { return sums_ + Groups::sums_at(tile, strip); }
    int left() const { return block_.group->pixels - next_; }

    void begin(const Block& block) {
        block_ = block;
        next_ = 0;
    }

    void store_pixels(int count) {
        const int begin = next_;
        next_ = least(next_ + count, block_.group->pixels);
        if (block_.strip_count == 2 && side_by_side(block_.strips[0], block_.strips[1])) {
            addend_ ? store_pairs<true>(begin, next_) : store_pairs<false>(begin, next_);
        } else {
            for (int s = 0; s < block_.strip_count; ++s) store_strip(s, begin, next_);
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
                       _mm512_add_epi32(constant_1, _mm512_load_si512(sums + Groups::sums_at(0, 1))), output_ + at,
                       kAddend ? addend_ + at : nullptr, lanes);
        }
    }

    void store_strip(int strip, int begin, int end) const {
        const __mmask16 lanes = lanes_of(block_.strips[strip]);
        for (int i = begin; i < end; ++i) {
            const int32_t* sums = sums_ + block_.group->source[i] + Groups::sums_at(0, strip);
            const ptrdiff_t at = block_.group->output[i] + block_.strips[strip].begin;
            store(_mm512_add_epi32(constant(strip), _mm512_load_si512(sums)), output_ + at,
                  addend_ ? addend_ + at : nullptr, lanes);
        }
    }

    alignas(64) int32_t sums_[2 * Group::kMostTiles * kTileRows * kLanes];
    T* const output_;
    const T* const addend_;
    const int32_t* const constants_;
    Block block_ = kNothing;
    int next_ = 0;
};

// A block's sums leave the tiles only after the next block has loaded its first ones, and its results are stored along
// the next block's steps: the tile unit waits less (up to a tenth of the time with few channels or small maps).
template <typename T>
class Convolution {
    // A tile store that comes more than some 2000 cycles after the one before takes 1000 cycles more (measured on a
    // Xeon of the fourth generation). So one is done at least every so many steps, of at least 64 cycles each.
    static constexpr int kStoreEvery = 8;

  public:
    explicit Convolution(const BinaryConvRun& run)
        : run_(run),
          pixel_step_(run.conv->stride_w * run.pixel_bytes),
          pieces_(pieces_of(*run.conv)),
          strip_bytes_(size_t(pieces_.tiles()) * kTileBytes),
          weights_(static_cast<const uint8_t*>(run.weights)),
          results_(run, reinterpret_cast<const int32_t*>(weights_ + tiles_bytes(*run.conv))) {
        configure_tiles(lines_of(run).rows);
    }
    ~Convolution() { _tile_release(); }
    Convolution(const Convolution&) = delete;
    Convolution& operator=(const Convolution&) = delete;

    void compute() {
        for (Groups groups(run_); const Group* group = next_group(groups);) {
            for_each_strip_block<2>(run_, [&](const Strip* strips, int count) { compute(strips, count, group); });
        }
        store_sums();
        results_.store_pixels(results_.left());
    }

  private:
    const Group* next_group(Groups& groups) {
        Group& group = group_buffers_[next_buffer_];
        groups.next(group);
        if (group.tiles == 0) return nullptr;
        next_buffer_ ^= 1;
        return &group;
    }

    void compute(const Strip* strips, int count, const Group* group) {
        const Block block = {group, count, {strips[0], strips[count - 1]}};
        if (group->tiles == 2) {
            count == 2 ? compute<2, 2>(block) : compute<2, 1>(block);
        } else {
            count == 2 ? compute<1, 2>(block) : compute<1, 1>(block);
        }
    }

    template <int kTiles, int kStrips>
    void compute(const Block& block) {
        const BinaryConv& conv = *run_.conv;
        const ptrdiff_t first_unit = block.strips[0].group * conv.group_units() * kUnitBytes;
        const uint8_t* weights = weights_ + block.strips[0].index * strip_bytes_;
        int pixels_a_step = 0;
        for (int y = 0; y < pieces_.rows; ++y) {
            for (int x = 0; x < pieces_.columns; ++x) {
                const ptrdiff_t begin =
                    first_unit + y * conv.dilation_h * run_.row_bytes + x * conv.dilation_w * run_.pixel_bytes;
                for (ptrdiff_t at = begin; at < begin + pieces_.bytes; at += kChunk, weights += kTileBytes) {
                    load<kTiles, kStrips>(block.group->windows, at, weights);
                    if (pixels_a_step == 0) {
                        store_sums();
                        clear_sums();
                        pixels_a_step = results_.left() / pieces_.tiles() + 1;
                    } else {
                        results_.store_pixels(pixels_a_step);
                        if (++steps_ % kStoreEvery == 0) store_tile<4>(unused_);
                    }
                    multiply<kTiles, kStrips>();
                }
            }
        }
        results_.store_pixels(results_.left());  // their group's buffer is needed for the next one
        computed_ = block;
    }

    template <int kTiles, int kStrips>
    void load(const uint8_t* const* windows, ptrdiff_t at, const uint8_t* weights) const {
        load_tile<4>(windows[0] + at, pixel_step_);
        load_tile<6>(weights);
        if constexpr (kTiles > 1) load_tile<5>(windows[1] + at, pixel_step_);
        if constexpr (kStrips > 1) load_tile<7>(weights + strip_bytes_);
    }

    template <int kTiles, int kStrips>
    void multiply() const {
        _tile_dpbusd(0, 4, 6);
        if constexpr (kTiles > 1) _tile_dpbusd(1, 5, 6);
        if constexpr (kStrips > 1) _tile_dpbusd(2, 4, 7);
        if constexpr (kTiles > 1 && kStrips > 1) _tile_dpbusd(3, 5, 7);
    }

    // Takes the last block's sums from the tiles.
    void store_sums() {
        store_tile<0>(results_.sums(0, 0));
        store_tile<1>(results_.sums(1, 0));
        store_tile<2>(results_.sums(0, 1));
        store_tile<3>(results_.sums(1, 1));
        results_.begin(computed_);
    }

    const BinaryConvRun& run_;
    const ptrdiff_t pixel_step_;
    const Pieces pieces_;
    const size_t strip_bytes_;
    const uint8_t* const weights_;
    Block computed_ = kNothing;  // its sums are in the tiles
    Results<T> results_;
    Group group_buffers_[2];  // the one computed and the one before
    int next_buffer_ = 0, steps_ = 0;
    alignas(64) uint8_t unused_[kTileBytes];
};

void convolve(const BinaryConvRun& run) {
    if (run.number == Number::f32) {
        Convolution<float>(run).compute();
    } else {
        Convolution<int16_t>(run).compute();
    }
}

}  // namespace

const BinaryKernels& binary_kernels_amx() {
    const BinaryKernels& words = binary_kernels_avx512();
    static const BinaryKernels kernels = {"amx",           kUnitBytes,        kLanes,  words.pack_f32,
                                          words.pack_i16,  words.pack_planes, expand,  weights_bytes,
                                          prepare_weights, no_scratch_bytes,  convolve};
    return kernels;
}

}  // namespace bmx
