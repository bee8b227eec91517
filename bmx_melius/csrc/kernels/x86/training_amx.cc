// Training of binary convolutions with AMX: see kernels/common/binary_training.h.
//
// Both gradients are products of matrices: one factor has the gradient of the result, the other one signs or bits.
// Tiles multiply bfloat16, in which signs and bits are exact, and a number is the sum of three bfloat16
// (bfloat16_parts.h). So the products are exact, and sums are rounded to float32 as elsewhere.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include "kernels/common/binary_training_parts.h"
#include "kernels/x86/bfloat16_parts.h"
#include "kernels/x86/tiles_amx.h"

namespace bmx {
namespace {

constexpr int kDepth = 32;    // numbers that a row of a tile multiplies
constexpr int kRowTiles = 2;  // tiles of numbers multiplied at a time, with two of signs
constexpr int kBlock = kRowTiles * kTileRows;
constexpr int kSumTiles = 4;  // see tiles_amx.h
constexpr int kSumElements = kSumTiles * kTileBytes / sizeof(float);
constexpr int kNumberBytes = kRowTiles * kParts * kTileBytes;  // of a step of products
constexpr int kSignBytes = 2 * kTileBytes;
constexpr int kStoreEvery = 8;        // products: tiles that are not stored for 2,000 cycles take 1,000 more
constexpr int kChunk = 2048;          // most pixels of the gradient of the weight that are summed at a time
constexpr size_t kCache = 512 << 10;  // bytes that stay in the second-level cache

// Adds the products of two tiles of numbers, each in kParts parts `part_bytes` apart, with two tiles of signs.
[[gnu::always_inline]] inline void add_products(const uint8_t* numbers, ptrdiff_t part_bytes, const uint8_t* signs) {
    load_tile<6>(signs);
    load_tile<7>(signs + kTileBytes);
#pragma GCC unroll 3
    for (int part = kParts - 1; part >= 0; part--) {
        load_tile<4>(numbers + part * part_bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(2, 4, 7);
        load_tile<5>(numbers + part * part_bytes + kTileBytes);
        _tile_dpbf16ps(1, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

inline void store_sums(uint8_t* to) {
    store_tile<0>(to);
    store_tile<1>(to + kTileBytes);
    store_tile<2>(to + 2 * kTileBytes);
    store_tile<3>(to + 3 * kTileBytes);
}

constexpr uint32_t kOne = 0x3f80, kMinusOne = 0xbf80;  // bfloat16

// Makes two tiles, each of 16 pairs of words and 16 channels, of kDepth words of 32 channels: the bfloat16 `zero` for a
// bit that is 0, zero ^ flip for one that is 1.
[[gnu::always_inline]] inline void expand_bits(const uint32_t* words, uint32_t zero, uint32_t flip, uint8_t* to) {
    const __m512i zeros = _mm512_set1_epi32(int(zero << 16 | zero));
    for (int half = 0; half < 2; half++) {
        for (int row = 0; row < kTileRows; row++, to += kTileRowBytes) {
            const __mmask16 low = __mmask16(words[row] >> 16 * half);
            const __mmask16 high = __mmask16(words[row + kTileRows] >> 16 * half);
            const __m512i first = _mm512_mask_xor_epi32(zeros, low, zeros, _mm512_set1_epi32(int(flip)));
            const __m512i both = _mm512_mask_xor_epi32(first, high, first, _mm512_set1_epi32(int(flip << 16)));
            _mm512_store_si512(to, both);
        }
    }
}

// --- working memory --------------------------------------------------------------------------------------------------

// Rows of the gradient of the result, or of some of them, as one line of pixels. Zeros follow each row, as many as
// windows reach beyond it, so that a tap is an offset, and the pixels of a tile can belong to two rows.
struct Line {
    explicit Line(const BinaryTraining& layer) {
        const auto across = remainders(layer.width, layer.kernel_w, layer.stride_w, layer.pad_w, layer.dilation_w);
        const auto down = remainders(layer.height, layer.kernel_h, layer.stride_h, layer.pad_h, layer.dilation_h);
        int after = 0, longest = 0, reach = 0;
        for (const Remainder& columns : across) {
            longest = std::max(longest, columns.count);
            for (int at : columns.at) {
                before = std::max(before, -at);
                after = std::max(after, at + columns.count - layer.out_width);
                most_right = std::max(most_right, at);
            }
        }
        for (const Remainder& rows : down) {
            most_rows = std::max(most_rows, rows.count);
            for (int at : rows.at) {
                reach = std::max(reach, at - *std::min_element(rows.at.begin(), rows.at.end()));
            }
        }
        pitch = std::max(longest, layer.out_width + std::max(before, after));
        chunks = ceil_div(layer.filters, kDepth);
        const size_t row = size_t(chunks) * kParts * pitch * kTileRowBytes;
        band = std::min(most_rows, std::max(1, int(kCache / row) - reach));
        pixels = before + (band + reach) * pitch + most_right + kBlock;
    }

    int before = 0;      // zeros before the first row
    int most_right = 0;  // pixels to the right that a tap reads
    int most_rows = 0;
    int pitch;   // pixels from row to row
    int chunks;  // of kDepth filters
    int band;    // rows of x, those of one remainder of the stride, whose gradients are computed at a time
    int pixels;

    ptrdiff_t part_bytes() const { return ptrdiff_t(pixels) * kTileRowBytes; }
    size_t size() const { return size_t(chunks) * kParts * size_t(part_bytes()); }
};

struct BackwardMemory {
    BackwardMemory(const BinaryTraining& layer, int threads, void* begin) : map(layer), line(layer) {
        Memory memory(begin);
        tap_words = layer.taps() * layer.words();
        filter_pairs = ceil_div(layer.filters, kBlock);
        steps = ceil_div(std::min(kChunk, layer.out_pixels()), kDepth);
        bits = memory.take<uint32_t>(size_t(layer.words()) * map.plane);
        words = memory.take<uint32_t>(size_t(tap_words) * line.chunks * kDepth);
        signs = memory.take<uint8_t>(size_t(tap_words) * line.chunks * kSignBytes);
        windows = memory.take<uint32_t>(size_t(tap_words) * steps * kDepth);
        numbers = memory.take<uint8_t>(size_t(filter_pairs) * steps * kNumberBytes);
        sums = memory.take<float>(size_t(tap_words) * filter_pairs * kSumElements);
        lines = memory.take<uint8_t>(line.size() * threads);
        planes = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        size = memory.size();
    }

    BitMap map;
    Line line;
    int tap_words;      // pairs of a tap and a word of 32 channels
    int filter_pairs;   // pairs of tiles of filters
    int steps;          // of kDepth pixels, of the gradient of the weight, that are summed at a time
    uint32_t* bits;     // of x
    uint32_t* words;    // bits of the weights: [tap][word][filter]
    uint8_t* signs;     // of the weights: [tap][word][line.chunks] two tiles [16 pairs of filters][16 channels]
    uint32_t* windows;  // bits of x that meet the pixels of a chunk: [tap][word][pixel]
    uint8_t* numbers;   // gradient of the result: [filter_pairs][steps][kParts] two tiles [16 filters][16 pixel pairs]
    float* sums;        // gradient of the weight: [filter_pairs][tap][word] kSumTiles tiles [16 filters][16 channels]
    uint8_t* lines;     // of each thread: [line.chunks][kParts][line.pixels][kDepth filters]
    uint32_t* planes;   // of each thread, for `pack`
    size_t size;
};

// --- the gradient of x -----------------------------------------------------------------------------------------------

// Makes the two tiles of signs of each tap, 32 channels and kDepth filters. Called by all threads.
void make_signs(const BinaryTraining& layer, const BackwardMemory& memory, const float* weight) {
    const int chunks = memory.line.chunks;
    pack_filters(layer, chunks * kDepth, weight, memory.words);
#pragma omp for schedule(static)
    for (int tiles = 0; tiles < memory.tap_words * chunks; tiles++) {
        expand_bits(memory.words + ptrdiff_t(tiles) * kDepth, kMinusOne, kOne ^ kMinusOne,
                    memory.signs + ptrdiff_t(tiles) * kSignBytes);
    }
}

// Makes the line of the rows of an image from `top` to `bottom`, some of which can be outside of it.
void make_line(const BinaryTraining& layer, const Line& line, int image, int top, int bottom, const float* outer,
               uint8_t* to) {
    const ptrdiff_t part_bytes = line.part_bytes();
    std::memset(to, 0, line.size());
    for (int chunk = 0; chunk < line.chunks; chunk++) {
        const int filters = std::min(kDepth, layer.filters - chunk * kDepth);
        const float* planes = outer + (ptrdiff_t(image) * layer.filters + chunk * kDepth) * layer.out_plane();
        for (int row = std::max(top, 0); row < std::min(bottom, layer.out_height); row++) {
            for (int column = 0; column < layer.out_width; column += kLanes) {
                const int count = std::min(kLanes, layer.out_width - column);
                const float* from = planes + ptrdiff_t(row) * layer.out_width + column;
                __m512 values[2][kLanes];
                for (int half = 0; half < 2; half++) {
                    for (int i = 0; i < kLanes; i++) {
                        const int filter = half * kLanes + i;
                        values[half][i] = filter < filters ? _mm512_maskz_loadu_ps(first_lanes(count),
                                                                                   from + filter * layer.out_plane())
                                                           : _mm512_setzero_ps();
                    }
                    transpose(values[half]);
                }
                uint8_t* pixel = to + chunk * kParts * part_bytes +
                                 (line.before + ptrdiff_t(row - top) * line.pitch + column) * kTileRowBytes;
                for (int i = 0; i < count; i++, pixel += kTileRowBytes) {
                    store_pairs(Split(values[0][i]), Split(values[1][i]), pixel, part_bytes);
                }
            }
        }
    }
}

// Sums of kBlock pixels and 32 channels on their way to the gradient of x: the vector unit transposes and stores them
// while tiles compute the next ones.
class Results {
    static constexpr int kAhead = 2 * kBlock;  // elements by which maps are prefetched

  public:
    explicit Results(const BinaryTraining& layer) : layer_(layer) {}

    // Takes the sums from the tiles. `x` and `gradient` are those of the image and the first channel.
    void take(const Elements* pixels, int channels, const float* x, float* gradient) {
        store_sums(sums_);
        pixels_ = pixels;
        channels_ = channels;
        x_ = x;
        gradient_ = gradient;
        next_ = 0;
    }

    // Stores the next tile, if there is one.
    void store_tile_of_sums() {
        if (next_ == kSumTiles) {
            return;
        }
        const int first = next_ / kRowTiles * kLanes;
        const Elements& pixels = pixels_[next_ % kRowTiles];
        __m512 values[kLanes];
        for (int i = 0; i < kLanes; i++) {
            values[i] = _mm512_load_ps(sums_ + next_ * kTileBytes + i * kTileRowBytes);
        }
        transpose(values);
        for (int i = 0; i < std::min(kLanes, channels_ - first); i++) {
            const ptrdiff_t plane = ptrdiff_t(first + i) * layer_.plane();
            pixels.store(gradient_ + plane, _mm512_mul_ps(values[i], slope_of(layer_, pixels.load(x_ + plane))));
            _mm_prefetch(x_ + plane + pixels.first() + kAhead, _MM_HINT_T0);
            _mm_prefetch(gradient_ + plane + pixels.first() + kAhead, _MM_HINT_T0);
        }
        next_++;
    }

    void finish() {
        while (next_ < kSumTiles) {
            store_tile_of_sums();
        }
    }

  private:
    alignas(64) uint8_t sums_[kSumTiles * kTileBytes];
    const BinaryTraining& layer_;
    const Elements* pixels_ = nullptr;  // of two tiles
    int channels_ = 0;
    const float* x_ = nullptr;
    float* gradient_ = nullptr;
    int next_ = kSumTiles;
};

// What a thread needs for the gradient of x.
struct GradientOfX {
    GradientOfX(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const float* outer,
                const float* x, float* gradient)
        : layer(layer),
          memory(memory),
          line(memory.line),
          line_begin(memory.lines + memory.line.size() * thread),
          across(remainders(layer.width, layer.kernel_w, layer.stride_w, layer.pad_w, layer.dilation_w)),
          outer(outer),
          x(x),
          gradient(gradient) {}

    const BinaryTraining& layer;
    const BackwardMemory& memory;
    const Line& line;
    uint8_t* line_begin;  // of the thread
    std::vector<Remainder> across;
    const float *outer, *x;  // the gradient of the result, and the map
    float* gradient;         // of x
};

// Rows of x of an image: those from `begin` to `end` of a remainder of the stride.
struct Band {
    int image, begin, end;
    const Remainder& down;
};

void gradient_of_band(const GradientOfX& of, const Band& band) {
    const BinaryTraining& layer = of.layer;
    const Line& line = of.line;
    const Remainder& down = band.down;
    const ptrdiff_t part_bytes = line.part_bytes();
    const int first_row = down.at.empty() ? 0 : *std::min_element(down.at.begin(), down.at.end());
    if (!down.at.empty()) {
        const int last_row = *std::max_element(down.at.begin(), down.at.end());
        make_line(layer, line, band.image, band.begin + first_row, band.end + last_row, of.outer, of.line_begin);
    }
    Results results(layer);
    alignas(64) uint8_t unused[kTileBytes];
    std::vector<const uint8_t*> numbers, signs;  // of each tap, for the first pixel and channel
    std::vector<Elements> pixels;                // of x, of each tile
    for (const Remainder& columns : of.across) {
        numbers.clear();
        signs.clear();
        for (size_t i = 0; i < down.taps.size(); i++) {
            for (size_t j = 0; j < columns.taps.size(); j++) {
                const int tap = down.taps[i] * layer.kernel_w + columns.taps[j];
                numbers.push_back(of.line_begin +
                                  (line.before + ptrdiff_t(down.at[i] - first_row) * line.pitch + columns.at[j]) *
                                      kTileRowBytes);
                signs.push_back(of.memory.signs + ptrdiff_t(tap) * layer.words() * line.chunks * kSignBytes);
            }
        }
        pixels.assign(ceil_div((band.end - band.begin) * line.pitch, kBlock) * kRowTiles, {});
        for (int i = 0; i < int(pixels.size()) * kTileRows; i++) {
            const int row = i / line.pitch, column = i % line.pitch;
            if (row < band.end - band.begin && column < columns.count) {
                pixels[i / kTileRows].add((down.first + (band.begin + row) * layer.stride_h) * layer.width +
                                          columns.first + column * layer.stride_w);
            } else {
                pixels[i / kTileRows].skip();
            }
        }
        for (int word = 0; word < layer.words(); word++) {
            const int channels = std::min(32, layer.channels - word * 32);
            const ptrdiff_t start = (ptrdiff_t(band.image) * layer.channels + word * 32) * layer.plane();
            for (size_t tile = 0; tile < pixels.size(); tile += kRowTiles) {
                clear_sums();
                int products = 0;
                for (size_t tap = 0; tap < numbers.size(); tap++) {
                    const uint8_t* from = numbers[tap] + ptrdiff_t(tile) * kTileBytes;
                    const uint8_t* of_tap = signs[tap] + ptrdiff_t(word) * line.chunks * kSignBytes;
                    for (int chunk = 0; chunk < line.chunks; chunk++) {
                        add_products(from, part_bytes, of_tap);
                        from += kParts * part_bytes;
                        of_tap += kSignBytes;
                        results.store_tile_of_sums();
                        if (++products % kStoreEvery == 0) {
                            store_tile<6>(unused);
                        }
                    }
                }
                results.finish();
                results.take(&pixels[tile], channels, of.x + start, of.gradient + start);
            }
        }
        results.finish();
    }
}

// Called by all threads.
void gradient_of_x(const GradientOfX& of) {
    const BinaryTraining& layer = of.layer;
    for (const Remainder& down :
         remainders(layer.height, layer.kernel_h, layer.stride_h, layer.pad_h, layer.dilation_h)) {
        const int bands = ceil_div(down.count, of.line.band);
#pragma omp for schedule(static) nowait
        for (int task = 0; task < layer.images * bands; task++) {
            const int begin = task % bands * of.line.band;
            gradient_of_band(of, {task / bands, begin, std::min(begin + of.line.band, down.count), down});
        }
    }
}

// --- the gradient of the weight --------------------------------------------------------------------------------------

// Pixels of the result whose products are added to the gradient of the weight at a time.
struct Chunk {
    Chunk(const BinaryTraining& layer, const BackwardMemory& memory, int begin)
        : begin(begin),
          pixels(std::min(memory.steps * kDepth, layer.out_pixels() - begin)),
          steps(ceil_div(pixels, kDepth)) {}

    int begin, pixels, steps;
};

// Splits the gradient of the result. Called by all threads.
void make_numbers(const BinaryTraining& layer, const BackwardMemory& memory, const Chunk& chunk, const float* outer) {
    const Positions outputs(1, layer.out_plane(), layer.filters * layer.out_plane(), 0, 1);
#pragma omp for schedule(static)
    for (int step = 0; step < chunk.steps; step++) {
        Elements pixels[2];
        for (int half = 0; half < 2; half++) {
            const int first = step * kDepth + half * kLanes;
            if (first < chunk.pixels) {
                pixels[half] = outputs.from(chunk.begin + first, chunk.begin + std::min(first + kLanes, chunk.pixels));
            }
        }
        for (int filter = 0; filter < memory.filter_pairs * kBlock; filter++) {
            uint8_t* to = memory.numbers + (ptrdiff_t(filter / kBlock) * memory.steps + step) * kNumberBytes +
                          filter % kBlock * kTileRowBytes;
            __m512 values[2] = {};
            for (int half = 0; half < 2 && filter < layer.filters; half++) {
                values[half] = pixels[half].load(outer + ptrdiff_t(filter) * layer.out_plane());
            }
            store_pairs(Split(values[0]), Split(values[1]), to, kRowTiles * kTileBytes);
        }
    }
}

// Collects the bits of x that meet pixels of the result. Called by all threads.
void collect_windows(const BinaryTraining& layer, const BackwardMemory& memory, const Chunk& chunk) {
    const Positions windows = memory.map.windows(layer);
#pragma omp for schedule(static)
    for (int tile = 0; tile < chunk.steps * 2; tile++) {
        const int first = tile * kLanes, end = std::min(first + kLanes, chunk.pixels);
        const Elements window = first < end ? windows.from(chunk.begin + first, chunk.begin + end) : Elements();
        for (int tap_word = 0; tap_word < memory.tap_words; tap_word++) {
            const uint32_t* from = memory.bits + tap_word % layer.words() * ptrdiff_t(memory.map.plane) +
                                   memory.map.tap(layer, tap_word / layer.words());
            _mm512_storeu_ps(memory.windows + ptrdiff_t(tap_word) * memory.steps * kDepth + first,
                             window.load(reinterpret_cast<const float*>(from)));
        }
    }
}

// Adds the products of a chunk of pixels. Called by all threads.
void add_chunk(const BinaryTraining& layer, const BackwardMemory& memory, const Chunk& chunk, const float* outer) {
    make_numbers(layer, memory, chunk, outer);
    collect_windows(layer, memory, chunk);
    alignas(64) uint8_t bits[2][kSignBytes];  // of two steps
    alignas(64) float sums[kSumElements];
#pragma omp for schedule(static)
    for (int task = 0; task < memory.filter_pairs * memory.tap_words; task++) {
        const uint8_t* numbers = memory.numbers + ptrdiff_t(task / memory.tap_words) * memory.steps * kNumberBytes;
        const uint32_t* windows = memory.windows + ptrdiff_t(task % memory.tap_words) * memory.steps * kDepth;
        clear_sums();
        expand_bits(windows, 0, kOne, bits[0]);
        for (int step = 0; step < chunk.steps; step++) {
            if (step + 1 < chunk.steps) {
                expand_bits(windows + (step + 1) * kDepth, 0, kOne, bits[(step + 1) % 2]);
            }
            add_products(numbers + ptrdiff_t(step) * kNumberBytes, kRowTiles * kTileBytes, bits[step % 2]);
            if (step % kStoreEvery == kStoreEvery - 1) {
                store_tile<6>(sums);
            }
        }
        store_sums(reinterpret_cast<uint8_t*>(sums));
        float* to = memory.sums + ptrdiff_t(task) * kSumElements;
        for (int i = 0; i < kSumElements; i += kLanes) {
            _mm512_store_ps(to + i, _mm512_add_ps(_mm512_load_ps(to + i), _mm512_load_ps(sums + i)));
        }
    }
}

size_t backward_bytes(const BinaryTraining& layer, int threads) { return BackwardMemory(layer, threads, nullptr).size; }

void backward(const BinaryTraining& layer, int threads, void* working, const float* outer, const float* x,
              const float* weight, float* x_gradient, float* weight_gradient, float* bias_gradient) {
    const BackwardMemory memory(layer, threads, working);
    bool finite = true;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num();
        pack_all(layer, memory.map, x, memory.planes + size_t(layer.plane()) * thread, memory.bits, &finite);
        make_signs(layer, memory, weight);
#pragma omp for schedule(static)
        for (int task = 0; task < memory.tap_words * memory.filter_pairs; task++) {
            std::memset(memory.sums + ptrdiff_t(task) * kSumElements, 0, kSumElements * sizeof(float));
        }
        configure_tiles(kTileRows);
        gradient_of_x(GradientOfX(layer, memory, thread, outer, x, x_gradient));
        for (int begin = 0; begin < layer.out_pixels(); begin += memory.steps * kDepth) {
            add_chunk(layer, memory, Chunk(layer, memory, begin), outer);
        }
        _tile_release();
        const auto sum_of = [&](int filter, int channel, int tap) {
            const ptrdiff_t tap_word = ptrdiff_t(tap) * layer.words() + channel / 32;
            const float* tiles = memory.sums + (filter / kBlock * memory.tap_words + tap_word) * kSumElements;
            const int tile = channel % 32 / kLanes * kRowTiles + filter % kBlock / kTileRows;
            return tiles[(tile * kTileRows + filter % kTileRows) * kLanes + channel % kLanes];
        };
        store_gradients_of_filters(layer, outer, sum_of, weight_gradient, bias_gradient);
    }
}

}  // namespace

const BinaryTrainingKernels& binary_training_amx() {
    static const BinaryTrainingKernels kernels = {forward_bytes, backward_bytes, forward, backward};
    return kernels;
}

}  // namespace bmx
