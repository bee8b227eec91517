// Training of binary convolutions with AVX-512: see kernels/common/binary_training.h.
//
// Gradients are sums of numbers that are selected by bits: s = 2 b - 1, so
//
//     gradient of u = sum(outer s) = 2 sum(outer where b) - sum(outer)         gradient of s = sum(outer where u)
//
// A number is broadcast and added to 16 channels under a mask, which is their bits. A half of these additions is
// written as a product with one: Zen 4 has separate units for additions and for products, and executes both at a time.
#include <immintrin.h>
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/common/binary_training.h"

namespace bmx {
namespace {

constexpr int kLanes = 16;
constexpr int kTile = 14;        // pixels of the gradient of x that are computed at a time
constexpr int kTileRows = 7;     // of them in one call of `add_selected`, with up to 4 vectors of channels
constexpr int kFilterRows = 4;   // filters of the gradient of the weight in one call, with up to 6 vectors of channels
constexpr int kChunk = 768;      // pixels of the gradient of the weight that are summed at a time: short sums are exact
                                 // to more bits than long ones, and the operands stay in the second-level cache

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// Divides working memory.
class Memory {
  public:
    explicit Memory(void* begin = nullptr) : begin_(static_cast<char*>(begin)) {}

    template <class T>
    T* take(size_t count) {
        T* result = reinterpret_cast<T*>(begin_ + size_);
        size_ += (count * sizeof(T) + 63) / 64 * 64;
        return result;
    }
    size_t size() const { return size_; }

  private:
    char* begin_;
    size_t size_ = 0;
};

// --- maps ------------------------------------------------------------------------------------------------------------

// Up to 16 elements of a map whose addresses are known as offsets: as few loads or stores as there are contiguous runs.
class Elements {
  public:
    // Appends an element. There are at most 16.
    void add(int offset) {
        if (count_ == 0 || offset != offsets_[count_ - 1] + 1) {
            starts_[runs_] = offset - count_;
            masks_[runs_++] = 0;
        }
        offsets_[count_] = offset;
        masks_[runs_ - 1] |= __mmask16(1u << count_++);
    }

    // The elements, and 0 in the other lanes.
    __m512 load(const float* base) const {
        if (runs_ > 6) {
            const __m512i offsets = _mm512_loadu_si512(offsets_);
            return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), all(), offsets, base, 4);
        }
        __m512 result = _mm512_maskz_loadu_ps(masks_[0], base + starts_[0]);
        for (int i = 1; i < runs_; i++) {
            result = _mm512_mask_loadu_ps(result, masks_[i], base + starts_[i]);
        }
        return result;
    }

    void store(float* base, __m512 values) const {
        for (int i = 0; i < runs_; i++) {
            _mm512_mask_storeu_ps(base + starts_[i], masks_[i], values);
        }
    }

  private:
    __mmask16 all() const { return __mmask16((1u << count_) - 1); }

    int count_ = 0, runs_ = 0;
    int starts_[kLanes];  // minus the lane of the first element
    __mmask16 masks_[kLanes];
    int offsets_[kLanes] = {};
};

// Positions of pixels, counted through the images, rows and columns of a map, in a map of other size.
class Positions {
  public:
    // Steps in elements from one image, row and column to the next one.
    Positions(int rows, int columns, int image, int row, int column)
        : rows_(rows), columns_(columns), image_(image), row_(row), column_(column) {}

    Elements from(int begin, int end) const {
        Elements result;
        int column = begin % columns_, row = begin / columns_ % rows_, image = begin / columns_ / rows_;
        for (int i = begin; i < end; i++) {
            result.add(image * image_ + row * row_ + column * column_);
            if (++column == columns_) {
                column = 0;
                if (++row == rows_) {
                    row = 0;
                    image++;
                }
            }
        }
        return result;
    }

  private:
    int rows_, columns_, image_, row_, column_;
};

void transpose(__m512 (&v)[kLanes]) {
    __m512 t[kLanes];
    for (int i = 0; i < kLanes; i += 4) {
        const __m512 a = _mm512_unpacklo_ps(v[i], v[i + 1]), b = _mm512_unpackhi_ps(v[i], v[i + 1]);
        const __m512 c = _mm512_unpacklo_ps(v[i + 2], v[i + 3]), d = _mm512_unpackhi_ps(v[i + 2], v[i + 3]);
        t[i] = _mm512_shuffle_ps(a, c, 0x44);
        t[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
        t[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
        t[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
    }
    for (int i = 0; i < 4; i++) {
        const __m512 a = _mm512_shuffle_f32x4(t[i], t[i + 4], 0x88), b = _mm512_shuffle_f32x4(t[i], t[i + 4], 0xdd);
        const __m512 c = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0x88);
        const __m512 d = _mm512_shuffle_f32x4(t[i + 8], t[i + 12], 0xdd);
        v[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        v[i + 4] = _mm512_shuffle_f32x4(b, d, 0x88);
        v[i + 8] = _mm512_shuffle_f32x4(a, c, 0xdd);
        v[i + 12] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
}

// --- bits ------------------------------------------------------------------------------------------------------------

// The bits x >= 0 of a map, padded with 0: [words][images][rows][columns] words of 32 channels.
struct BitMap {
    explicit BitMap(const BinaryTraining& layer)
        : rows(layer.height + 2 * layer.pad_h), columns(layer.width + 2 * layer.pad_w),
          plane(layer.images * rows * columns) {}

    int tap(const BinaryTraining& layer, int tap) const {
        return tap / layer.kernel_w * layer.dilation_h * columns + tap % layer.kernel_w * layer.dilation_w;
    }
    // Positions of the first element of the window of each pixel of the result.
    Positions windows(const BinaryTraining& layer) const {
        return {layer.out_height, layer.out_width, rows * columns, layer.stride_h * columns, layer.stride_w};
    }

    int rows, columns, plane;
};

// Packs 32 channels, or fewer, of an image; `row` is working memory for a plane. Returns whether all are finite.
bool pack(const BinaryTraining& layer, const BitMap& map, const float* x, int channels, uint32_t* row, uint32_t* packed) {
    const int size = layer.plane();
    __mmask16 wrong = 0;
    for (int i = 0; i < size; i += kLanes) {
        const __mmask16 valid = size - i < kLanes ? __mmask16((1u << (size - i)) - 1) : __mmask16(0xffff);
        __m512i words = _mm512_setzero_si512();
        for (int channel = 0; channel < channels; channel++) {
            const __m512 value = _mm512_maskz_loadu_ps(valid, x + ptrdiff_t(channel) * size + i);
            wrong |= _mm512_fpclass_ps_mask(value, 0x99);  // NaN and infinity
            words = _mm512_mask_or_epi32(words, _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GE_OQ), words,
                                         _mm512_set1_epi32(int(1u << channel)));
        }
        _mm512_mask_storeu_epi32(row + i, valid, words);
    }
    std::memset(packed, 0, size_t(map.rows) * map.columns * sizeof(uint32_t));
    for (int y = 0; y < layer.height; y++) {
        std::memcpy(packed + (y + layer.pad_h) * map.columns + layer.pad_w, row + y * layer.width,
                    layer.width * sizeof(uint32_t));
    }
    return !wrong;
}

// Packs all images. Returns whether all values are finite. Called by all threads.
void pack_all(const BinaryTraining& layer, const BitMap& map, const float* x, uint32_t* row, uint32_t* bits, bool* finite) {
    const int words = layer.words();
#pragma omp for schedule(static)
    for (int part = 0; part < layer.images * words; part++) {
        const int image = part / words, word = part % words;
        const float* begin = x + (ptrdiff_t(image) * layer.channels + word * 32) * layer.plane();
        if (!pack(layer, map, begin, std::min(32, layer.channels - word * 32), row,
                  bits + word * ptrdiff_t(map.plane) + image * map.rows * map.columns)) {
#pragma omp atomic write
            *finite = false;
        }
    }
}

// Calls `use(word, tap, bits)` with the words of 32 channels of the weights of a filter.
template <class Use>
void weight_words(const BinaryTraining& layer, const float* weight, const Use& use) {
    const int taps = layer.taps();
    for (int word = 0; word < layer.words(); word++) {
        const int channels = std::min(32, layer.channels - word * 32);
        for (int tap = 0; tap < taps; tap += kLanes) {
            const int count = std::min(kLanes, taps - tap);
            const __mmask16 valid = __mmask16((1u << count) - 1);
            __m512i words = _mm512_setzero_si512();
            for (int channel = 0; channel < channels; channel++) {
                const __m512 value = _mm512_maskz_loadu_ps(valid, weight + (word * 32 + channel) * taps + tap);
                words = _mm512_mask_or_epi32(words, _mm512_cmp_ps_mask(value, _mm512_setzero_ps(), _CMP_GE_OQ), words,
                                             _mm512_set1_epi32(int(1u << channel)));
            }
            alignas(64) uint32_t result[kLanes];
            _mm512_store_si512(result, words);
            for (int i = 0; i < count; i++) {
                use(word, tap + i, result[i]);
            }
        }
    }
}

// --- the result ------------------------------------------------------------------------------------------------------

struct ForwardMemory {
    ForwardMemory(const BinaryTraining& layer, int threads, void* begin) : map(layer) {
        Memory memory(begin);
        const int products = layer.taps() * layer.words(), blocks = ceil_div(layer.filters, kLanes);
        bits = memory.take<uint32_t>(size_t(layer.words()) * map.plane);
        weights = memory.take<uint32_t>(size_t(blocks) * products * kLanes);
        base = memory.take<int32_t>(blocks * kLanes);
        panel = size_t(products) * kLanes;
        panels = memory.take<float>(panel * threads);
        rows = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        size = memory.size();
    }

    BitMap map;
    uint32_t* bits;     // of x
    uint32_t* weights;  // [filters / 16][tap][word][16 filters]
    int32_t* base;      // of each filter: n minus the number of weights -1
    size_t panel;       // elements of a panel: [tap][word][16 pixels]
    float* panels;      // of each thread
    uint32_t* rows;     // of each thread, for `pack`
    size_t size;
};

// Sets the results to NaN whose windows have values that are not finite.
void spread_wrong(const BinaryTraining& layer, const float* x, float* result) {
    for (int pixel = 0; pixel < layer.out_pixels(); pixel++) {
        const int image = pixel / layer.out_plane(), place = pixel % layer.out_plane();
        const int top = place / layer.out_width * layer.stride_h - layer.pad_h;
        const int left = place % layer.out_width * layer.stride_w - layer.pad_w;
        float sum = 0;  // of products with 0: 0 or NaN
        for (int tap = 0; tap < layer.taps(); tap++) {
            const int row = top + tap / layer.kernel_w * layer.dilation_h;
            const int column = left + tap % layer.kernel_w * layer.dilation_w;
            if (row < 0 || column < 0 || row >= layer.height || column >= layer.width) {
                continue;
            }
            for (int channel = 0; channel < layer.channels; channel++) {
                sum += 0 * x[((ptrdiff_t(image) * layer.channels + channel) * layer.height + row) * layer.width + column];
            }
        }
        if (sum != 0) {
            for (int filter = 0; filter < layer.filters; filter++) {
                result[(ptrdiff_t(image) * layer.filters + filter) * layer.out_plane() + place] =
                    std::numeric_limits<float>::quiet_NaN();
            }
        }
    }
}

void convolve_tile(const BinaryTraining& layer, const ForwardMemory& memory, const Positions& windows,
                   const Positions& outputs, int begin, const float* bias, float* panel, float* result) {
    const int products = layer.taps() * layer.words(), end = std::min(begin + kLanes, layer.out_pixels());
    const Elements window = windows.from(begin, end), output = outputs.from(begin, end);
    for (int tap = 0; tap < layer.taps(); tap++) {
        for (int word = 0; word < layer.words(); word++) {
            const uint32_t* from = memory.bits + word * ptrdiff_t(memory.map.plane) + memory.map.tap(layer, tap);
            _mm512_storeu_ps(panel + (tap * layer.words() + word) * kLanes,
                             window.load(reinterpret_cast<const float*>(from)));
        }
    }
    const int32_t* pixels = reinterpret_cast<const int32_t*>(panel);
    for (int first = 0; first < layer.filters; first += kLanes) {
        const uint32_t* weights = memory.weights + ptrdiff_t(first) * products;
        __m512i sums[kLanes];
#pragma GCC unroll 16
        for (int i = 0; i < kLanes; i++) {
            sums[i] = _mm512_setzero_si512();
        }
        for (int k = 0; k < products; k++) {
            const __m512i weight = _mm512_loadu_si512(weights + k * kLanes);
#pragma GCC unroll 16
            for (int i = 0; i < kLanes; i++) {
                const __m512i different = _mm512_xor_si512(weight, _mm512_set1_epi32(pixels[k * kLanes + i]));
                sums[i] = _mm512_add_epi32(sums[i], _mm512_popcnt_epi32(different));
            }
        }
        const int count = std::min(kLanes, layer.filters - first);
        const __m512i base = _mm512_loadu_si512(memory.base + first);
        const __m512 constant =
            bias ? _mm512_maskz_loadu_ps(__mmask16((1u << count) - 1), bias + first) : _mm512_setzero_ps();
        __m512 values[kLanes];
        for (int i = 0; i < kLanes; i++) {
            values[i] = _mm512_add_ps(_mm512_cvtepi32_ps(_mm512_sub_epi32(base, sums[i])), constant);
        }
        transpose(values);
        for (int i = 0; i < count; i++) {
            output.store(result + ptrdiff_t(first + i) * layer.out_plane(), values[i]);
        }
    }
}

// --- gradients -------------------------------------------------------------------------------------------------------

// Adds to sums[row][vector of 16 channels], `sums_row` elements from row to row, for k = 0 ... count - 1, numbers[row]
// where the bits of masks[vector] are set; numbers and masks of the next k are some elements and bytes further.
template <int kRows, int kVectors>
void add_selected(const float* numbers, int numbers_step, const char* const* masks, int masks_step, int count, float* sums,
                  int sums_row) {
    const __m512 one = _mm512_set1_ps(1);
    const char* mask[kVectors];
    __m512 sum[kRows][kVectors];
    for (int j = 0; j < kVectors; j++) {
        mask[j] = masks[j];
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; j++) {
            sum[i][j] = _mm512_loadu_ps(sums + i * sums_row + j * kLanes);
        }
    }
    for (ptrdiff_t k = 0, place = 0; k < count; k++, place += masks_step, numbers += numbers_step) {
        __mmask16 bits[kVectors];
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; j++) {
            bits[j] = *reinterpret_cast<const uint16_t*>(mask[j] + place);
        }
#pragma GCC unroll 8
        for (int i = 0; i < kRows; i++) {
            const __m512 number = _mm512_set1_ps(numbers[i]);
#pragma GCC unroll 8
            for (int j = 0; j < kVectors; j++) {
                sum[i][j] = (i * kVectors + j) % 2 ? _mm512_mask_add_ps(sum[i][j], bits[j], sum[i][j], number)
                                                   : _mm512_mask3_fmadd_ps(number, one, sum[i][j], bits[j]);
            }
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kRows; i++) {
#pragma GCC unroll 8
        for (int j = 0; j < kVectors; j++) {
            _mm512_storeu_ps(sums + i * sums_row + j * kLanes, sum[i][j]);
        }
    }
}

using AddSelected = decltype(&add_selected<1, 1>);
constexpr AddSelected kAddToTile[] = {add_selected<kTileRows, 1>, add_selected<kTileRows, 2>, add_selected<kTileRows, 3>,
                                      add_selected<kTileRows, 4>};
constexpr AddSelected kAddToFilters[] = {add_selected<kFilterRows, 1>, add_selected<kFilterRows, 2>,
                                         add_selected<kFilterRows, 3>, add_selected<kFilterRows, 4>,
                                         add_selected<kFilterRows, 5>, add_selected<kFilterRows, 6>};

// The gradient of the result, padded with 0 as far as the windows of x reach: [filters][images][rows][columns].
struct OuterMap {
    explicit OuterMap(const BinaryTraining& layer)
        : top(before(layer.kernel_h, layer.dilation_h, layer.pad_h)),
          left(before(layer.kernel_w, layer.dilation_w, layer.pad_w)),
          rows(top + layer.out_height + after(layer.height, layer.pad_h, layer.stride_h, layer.out_height)),
          columns(left + layer.out_width + after(layer.width, layer.pad_w, layer.stride_w, layer.out_width)),
          plane(layer.images * rows * columns) {}

    static int before(int kernel, int dilation, int pad) { return std::max(0, (kernel - 1) * dilation - pad); }
    static int after(int size, int pad, int stride, int out) { return std::max(0, (size - 1 + pad) / stride - (out - 1)); }

    int top, left, rows, columns, plane;
};

struct BackwardMemory {
    BackwardMemory(const BinaryTraining& layer, int threads, void* begin) : map(layer), outer_map(layer) {
        Memory memory(begin);
        const int taps = layer.taps();
        vectors = 2 * layer.words();
        padded_filters = ceil_div(layer.filters, kFilterRows) * kFilterRows;
        bits = memory.take<uint32_t>(size_t(layer.words()) * map.plane);
        outer = memory.take<float>(size_t(layer.filters) * outer_map.plane);
        weights = memory.take<uint16_t>(size_t(taps) * layer.filters * vectors);
        sums = memory.take<float>(size_t(padded_filters) * taps * vectors * kLanes);
        filter_panel = memory.take<float>(size_t(padded_filters) * kChunk);
        bit_panel = memory.take<uint32_t>(size_t(taps) * layer.words() * kChunk);
        panel = size_t(taps) * layer.filters * kLanes;
        panels = memory.take<float>(panel * threads);
        tile = size_t(kTile) * vectors * kLanes;
        tiles = memory.take<float>(tile * threads);
        rows = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        size = memory.size();
    }

    BitMap map;
    OuterMap outer_map;
    int vectors;         // of 16 channels
    int padded_filters;  // a multiple of kFilterRows
    uint32_t* bits;      // of x
    float* outer;
    uint16_t* weights;  // [tap][filter][16 channels]
    float* sums;        // gradient of the weight: [filter][tap][channel]
    float* filter_panel;  // a chunk of `outer`: [filters / kFilterRows][pixels][kFilterRows]
    uint32_t* bit_panel;  // bits of the windows of a chunk: [tap][word][pixels]
    size_t panel, tile;   // elements
    float* panels;        // of each thread: [tap][filter][16 pixels]
    float* tiles;         // of each thread: [kTile pixels][channels]
    uint32_t* rows;       // of each thread, for `pack`
    size_t size;
};

void pad_outer(const BinaryTraining& layer, const BackwardMemory& memory, const float* outer) {
    const OuterMap& map = memory.outer_map;
#pragma omp for schedule(static)
    for (int part = 0; part < layer.images * layer.filters; part++) {
        const int image = part / layer.filters, filter = part % layer.filters, size = map.rows * map.columns;
        float* to = memory.outer + filter * ptrdiff_t(map.plane) + image * size;
        std::memset(to, 0, size * sizeof(float));
        for (int y = 0; y < layer.out_height; y++) {
            std::memcpy(to + (y + map.top) * map.columns + map.left,
                        outer + part * ptrdiff_t(layer.out_plane()) + y * layer.out_width, layer.out_width * sizeof(float));
        }
    }
}

void gradient_of_tile(const BinaryTraining& layer, const BackwardMemory& memory, const int* taps, const int* offsets,
                      int tap_count, const Elements& results, const Elements& pixels, const float* x, float* panel,
                      float* tile, float* gradient) {
    const int channels = memory.vectors * kLanes, filters = layer.filters;
    __m512 all = _mm512_setzero_ps();
    for (int i = 0; i < tap_count; i++) {
        for (int filter = 0; filter < filters; filter++) {
            const __m512 numbers =
                results.load(memory.outer + filter * ptrdiff_t(memory.outer_map.plane) + offsets[i]);
            _mm512_storeu_ps(panel + (i * filters + filter) * kLanes, numbers);
            all = _mm512_add_ps(all, numbers);
        }
    }
    std::memset(tile, 0, memory.tile * sizeof(float));
    for (int first = 0; first < memory.vectors; first += 4) {
        const int count = std::min(4, memory.vectors - first);
        for (int row = 0; row < kTile; row += kTileRows) {
            for (int i = 0, next; i < tap_count; i = next) {  // taps in a row, which are contiguous
                for (next = i + 1; next < tap_count && taps[next] == taps[next - 1] + 1; next++) {
                }
                const char* masks[4];
                for (int j = 0; j < count; j++) {
                    masks[j] = reinterpret_cast<const char*>(
                        memory.weights + ptrdiff_t(taps[i]) * filters * memory.vectors + first + j);
                }
                kAddToTile[count - 1](panel + i * filters * kLanes + row, kLanes, masks, memory.vectors * 2,
                                      (next - i) * filters, tile + row * channels + first * kLanes, channels);
            }
        }
    }
    alignas(64) float half[kLanes];
    _mm512_store_ps(half, _mm512_mul_ps(all, _mm512_set1_ps(0.5f)));
    const __m512 threshold = _mm512_set1_ps(layer.threshold), one = _mm512_set1_ps(1);
    for (int first = 0; first < layer.channels; first += kLanes) {
        __m512 values[kLanes];
        for (int i = 0; i < kTile; i++) {
            values[i] = _mm512_sub_ps(_mm512_loadu_ps(tile + i * channels + first), _mm512_set1_ps(half[i]));
        }
        for (int i = kTile; i < kLanes; i++) {
            values[i] = _mm512_setzero_ps();
        }
        transpose(values);
        for (int i = 0; i < std::min(kLanes, layer.channels - first); i++) {
            const ptrdiff_t plane = ptrdiff_t(first + i) * layer.plane();
            const __m512 magnitude = _mm512_abs_ps(pixels.load(x + plane));
            const __m512 inside =
                _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(magnitude, threshold, _CMP_LE_OQ), one);
            // values are halves of the gradient of u
            const __m512 slope =
                layer.triangular
                    ? _mm512_mul_ps(_mm512_sub_ps(_mm512_set1_ps(2), _mm512_add_ps(magnitude, magnitude)), inside)
                    : inside;
            pixels.store(gradient + plane, _mm512_mul_ps(values[i], slope));
        }
    }
}

void gradient_of_x(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const float* x, float* gradient) {
    const OuterMap& map = memory.outer_map;
    std::vector<int> taps(layer.taps()), offsets(layer.taps());
    // Pixels whose rows and columns leave the same remainder of the stride are reached by the same taps.
    for (int row = 0; row < std::min(layer.stride_h, layer.height); row++) {
        for (int column = 0; column < std::min(layer.stride_w, layer.width); column++) {
            int count = 0;
            for (int tap = 0; tap < layer.taps(); tap++) {
                const int y = row + layer.pad_h - tap / layer.kernel_w * layer.dilation_h;
                const int z = column + layer.pad_w - tap % layer.kernel_w * layer.dilation_w;
                if (y % layer.stride_h == 0 && z % layer.stride_w == 0) {
                    taps[count] = tap;
                    offsets[count++] = (y / layer.stride_h + map.top) * map.columns + z / layer.stride_w + map.left;
                }
            }
            const int rows = ceil_div(layer.height - row, layer.stride_h);
            const int columns = ceil_div(layer.width - column, layer.stride_w), size = layer.images * rows * columns;
            const Positions results(rows, columns, map.rows * map.columns, map.columns, 1);
            const Positions pixels(rows, columns, layer.channels * layer.plane(), layer.stride_h * layer.width,
                                   layer.stride_w);
            const ptrdiff_t start = row * layer.width + column;
#pragma omp for schedule(static) nowait
            for (int tile = 0; tile < ceil_div(size, kTile); tile++) {
                const int begin = tile * kTile, end = std::min(begin + kTile, size);
                gradient_of_tile(layer, memory, taps.data(), offsets.data(), count, results.from(begin, end), pixels.from(begin, end),
                                 x + start, memory.panels + memory.panel * thread, memory.tiles + memory.tile * thread,
                                 gradient + start);
            }
        }
    }
}

// Adds the products of a chunk of pixels to the gradient of the weight. Called by all threads.
void add_chunk(const BinaryTraining& layer, const BackwardMemory& memory, const Positions& windows,
               const Positions& outputs, int begin, const float* outer) {
    const int pixels = std::min(kChunk, layer.out_pixels() - begin), taps = layer.taps(), words = layer.words();
    const int filters = layer.filters, columns = taps * memory.vectors;
#pragma omp for schedule(static)
    for (int tile = 0; tile < ceil_div(pixels, kLanes); tile++) {
        const int first = tile * kLanes, end = std::min(first + kLanes, pixels);
        const Elements window = windows.from(begin + first, begin + end), output = outputs.from(begin + first, begin + end);
        for (int tap = 0; tap < taps; tap++) {
            for (int word = 0; word < words; word++) {
                const uint32_t* from = memory.bits + word * ptrdiff_t(memory.map.plane) + memory.map.tap(layer, tap);
                _mm512_storeu_ps(reinterpret_cast<float*>(memory.bit_panel + (tap * words + word) * kChunk + first),
                                 window.load(reinterpret_cast<const float*>(from)));
            }
        }
        for (int filter = 0; filter < memory.padded_filters; filter += kFilterRows) {
            __m512 values[kLanes];
            for (int i = 0; i < kLanes; i++) {
                values[i] = i < kFilterRows && filter + i < filters
                                ? output.load(outer + ptrdiff_t(filter + i) * layer.out_plane())
                                : _mm512_setzero_ps();
            }
            transpose(values);
            float* to = memory.filter_panel + filter * kChunk + first * kFilterRows;
            for (int i = 0; i < kLanes; i++) {
                _mm_storeu_ps(to + i * kFilterRows, _mm512_castps512_ps128(values[i]));
            }
        }
    }
    constexpr int kMost = sizeof kAddToFilters / sizeof *kAddToFilters;
    const int groups = ceil_div(columns, kMost), blocks = memory.padded_filters / kFilterRows;
#pragma omp for schedule(static)
    for (int part = 0; part < blocks * groups; part++) {
        const int block = part / groups, first = part % groups * kMost, count = std::min(kMost, columns - first);
        const char* masks[kMost];
        for (int j = 0; j < count; j++) {
            const int tap = (first + j) / memory.vectors, vector = (first + j) % memory.vectors;
            masks[j] = reinterpret_cast<const char*>(memory.bit_panel + (tap * words + vector / 2) * kChunk) + vector % 2 * 2;
        }
        const int row = columns * kLanes;
        kAddToFilters[count - 1](memory.filter_panel + block * kFilterRows * kChunk, kFilterRows, masks, 4, pixels,
                                 memory.sums + ptrdiff_t(block) * kFilterRows * row + first * kLanes, row);
    }
}

}  // namespace

size_t forward_bytes_avx512(const BinaryTraining& layer, int threads) {
    return ForwardMemory(layer, threads, nullptr).size;
}

size_t backward_bytes_avx512(const BinaryTraining& layer, int threads) {
    return BackwardMemory(layer, threads, nullptr).size;
}

void forward_avx512(const BinaryTraining& layer, int threads, void* working, const float* x, const float* weight,
                    const float* bias, float* result) {
    const ForwardMemory memory(layer, threads, working);
    const int products = layer.taps() * layer.words(), size = layer.channels * layer.taps();
    const Positions windows = memory.map.windows(layer);
    const Positions outputs(1, layer.out_plane(), layer.filters * layer.out_plane(), 0, 1);
    bool finite = true;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num();
        pack_all(layer, memory.map, x, memory.rows + size_t(layer.plane()) * thread, memory.bits, &finite);
#pragma omp for schedule(static)
        for (int filter = 0; filter < ceil_div(layer.filters, kLanes) * kLanes; filter++) {
            uint32_t* to = memory.weights + filter / kLanes * kLanes * ptrdiff_t(products) + filter % kLanes;
            memory.base[filter] = 0;
            if (filter >= layer.filters) {
                for (int k = 0; k < products; k++) {
                    to[k * kLanes] = 0;
                }
                continue;
            }
            weight_words(layer, weight + ptrdiff_t(filter) * size, [&](int word, int tap, uint32_t bits) {
                to[(tap * layer.words() + word) * kLanes] = bits;
                memory.base[filter] += __builtin_popcount(bits);
            });
        }
#pragma omp for schedule(static)
        for (int tile = 0; tile < ceil_div(layer.out_pixels(), kLanes); tile++) {
            convolve_tile(layer, memory, windows, outputs, tile * kLanes, bias, memory.panels + memory.panel * thread,
                          result);
        }
    }
    if (!finite) {
        spread_wrong(layer, x, result);
    }
}

void backward_avx512(const BinaryTraining& layer, int threads, void* working, const float* outer, const float* x,
                     const float* weight, float* x_gradient, float* weight_gradient, float* bias_gradient) {
    const BackwardMemory memory(layer, threads, working);
    const int taps = layer.taps(), size = layer.channels * taps, columns = taps * memory.vectors * kLanes;
    const Positions windows = memory.map.windows(layer);
    const Positions outputs(1, layer.out_plane(), layer.filters * layer.out_plane(), 0, 1);
    bool finite = true;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num();
        pack_all(layer, memory.map, x, memory.rows + size_t(layer.plane()) * thread, memory.bits, &finite);
        pad_outer(layer, memory, outer);
#pragma omp for schedule(static)
        for (int filter = 0; filter < memory.padded_filters; filter++) {
            std::memset(memory.sums + ptrdiff_t(filter) * columns, 0, columns * sizeof(float));
            if (filter < layer.filters) {
                weight_words(layer, weight + ptrdiff_t(filter) * size, [&](int word, int tap, uint32_t bits) {
                    std::memcpy(memory.weights + (ptrdiff_t(tap) * layer.filters + filter) * memory.vectors + 2 * word,
                                &bits, sizeof bits);
                });
            }
        }
        gradient_of_x(layer, memory, thread, x, x_gradient);
        for (int begin = 0; begin < layer.out_pixels(); begin += kChunk) {
            add_chunk(layer, memory, windows, outputs, begin, outer);
        }
#pragma omp for schedule(static)
        for (int filter = 0; filter < layer.filters; filter++) {
            for (int channel = 0; channel < layer.channels; channel++) {
                for (int tap = 0; tap < taps; tap++) {
                    weight_gradient[(ptrdiff_t(filter) * layer.channels + channel) * taps + tap] =
                        memory.sums[ptrdiff_t(filter) * columns + tap * memory.vectors * kLanes + channel];
                }
            }
            if (bias_gradient) {
                double sum = 0;
                for (int image = 0; image < layer.images; image++) {
                    const float* plane = outer + (ptrdiff_t(image) * layer.filters + filter) * layer.out_plane();
                    float lanes[kLanes] = {};  // as many sums, which the compiler can compute together
                    int i = 0;
                    for (; i + kLanes <= layer.out_plane(); i += kLanes) {
                        for (int lane = 0; lane < kLanes; lane++) {
                            lanes[lane] += plane[i + lane];
                        }
                    }
                    for (; i < layer.out_plane(); i++) {
                        lanes[i % kLanes] += plane[i];
                    }
                    for (float lane : lanes) {
                        sum += lane;
                    }
                }
                bias_gradient[filter] = float(sum);
            }
        }
    }
}

}  // namespace bmx
