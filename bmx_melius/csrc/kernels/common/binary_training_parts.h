// What the kernels for the training of binary convolutions have in common: bits of maps and weights, the result, and
// what gradients share. See binary_training.h.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_training.h"

#if defined(__AVX512F__)
#include "kernels/x86/training_vectors_avx512.h"
#else
#include "kernels/x86/training_vectors_avx2.h"
#endif

namespace bmx {
namespace {

// Divides working memory.
class Memory {
  public:
    explicit Memory(void* begin = nullptr) : begin_(static_cast<char*>(begin)) {}

    template <class T>
    T* take(size_t count) {
        T* result = reinterpret_cast<T*>(begin_ + size_);
        size_ += round_up(count * sizeof(T), 64);
        return result;
    }
    size_t size() const { return size_; }

  private:
    char* begin_;
    size_t size_ = 0;
};

// --- maps ------------------------------------------------------------------------------------------------------------

// Up to kLanes elements of a map whose addresses are known as offsets: as few loads or stores as there are contiguous
// runs.
class Elements {
  public:
    // Appends an element. There are at most kLanes.
    void add(int offset) {
        if (runs_ == 0 || offset != next_) {
            starts_[runs_] = offset - count_;
            masks_[runs_++] = 0;
        }
        next_ = offset + 1;
        offsets_[count_] = offset;
        masks_[runs_ - 1] |= Mask(1u << count_++);
    }

    // Appends a lane without an element.
    void skip() {
        next_ = -1;
        offsets_[count_++] = 0;
    }

    // The offset of the first element, if it has the first lane.
    int first() const { return starts_[0]; }

    // The elements, and 0 in the lanes after them. Lanes between them have any number.
    Floats load(const float* base) const {
        if (runs_ > kMostRuns) {
            return gather_lanes(first_lanes(count_), base, offsets_);
        }
        Floats result = broadcast(0);
        for (int i = 0; i < runs_; i++) {
            result = load_lanes(masks_[i], base + starts_[i], result);
        }
        return result;
    }

    void store(float* base, Floats values) const {
        for (int i = 0; i < runs_; i++) {
            store_lanes(masks_[i], base + starts_[i], values);
        }
    }

  private:
    static constexpr int kMostRuns = 6;  // that are loaded faster than single elements

    int count_ = 0, runs_ = 0;
    int next_ = -1;            // the offset that continues the last run
    int starts_[kLanes] = {};  // minus the lane of the first element
    Mask masks_[kLanes];
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

// --- bits ------------------------------------------------------------------------------------------------------------

// The bits x >= 0 of a map, padded with 0: [words][images][rows][columns] words of 32 channels.
struct BitMap {
    explicit BitMap(const BinaryTraining& layer)
        : rows(layer.height + 2 * layer.pad_h),
          columns(layer.width + 2 * layer.pad_w),
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
bool pack(const BinaryTraining& layer, const BitMap& map, const float* x, int channels, uint32_t* row,
          uint32_t* packed) {
    const int size = layer.plane();
    NotFinite wrong;
    std::memset(row, 0, size * sizeof(uint32_t));
    for (int channel = 0; channel < channels; channel++) {
        const float* plane = x + ptrdiff_t(channel) * size;
        for (int i = 0; i < size; i += kLanes) {
            const Mask valid = first_lanes(size - i);
            const Floats value = load_lanes(valid, plane + i, broadcast(0));
            wrong.see(value);
            store_lanes(valid, row + i, set_bit(load_lanes(valid, row + i), value, channel));
        }
    }
    std::memset(packed, 0, size_t(map.rows) * map.columns * sizeof(uint32_t));
    for (int y = 0; y < layer.height; y++) {
        std::memcpy(packed + (y + layer.pad_h) * map.columns + layer.pad_w, row + y * layer.width,
                    layer.width * sizeof(uint32_t));
    }
    return !wrong.any();
}

// Packs all images. Returns whether all values are finite. Called by all threads.
void pack_all(const BinaryTraining& layer, const BitMap& map, const float* x, uint32_t* row, uint32_t* bits,
              bool* finite) {
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

bool all_finite(const float* numbers, int count) {
    NotFinite wrong;
    for (int i = 0; i < count; i += kLanes) {
        wrong.see(load_lanes(first_lanes(count - i), numbers + i, broadcast(0)));
    }
    return !wrong.any();
}

// Calls `use(word, tap, bits)` with the words of 32 channels of the weights of a filter.
template <class Use>
void weight_words(const BinaryTraining& layer, const float* weight, const Use& use) {
    const int taps = layer.taps();
    for (int word = 0; word < layer.words(); word++) {
        const int channels = std::min(32, layer.channels - word * 32);
        for (int tap = 0; tap < taps; tap += kLanes) {
            const int count = std::min(kLanes, taps - tap);
            Words words = {};
            for (int channel = 0; channel < channels; channel++) {
                const float* from = weight + (word * 32 + channel) * taps + tap;
                words = set_bit(words, load_lanes(first_lanes(count), from, broadcast(0)), channel);
            }
            uint32_t result[kLanes];
            store(result, words);
            for (int i = 0; i < count; i++) {
                use(word, tap + i, result[i]);
            }
        }
    }
}

// Packs the weights: bits[tap][word][filter], 0 for filters from layer.filters to `padded`. Called by all threads.
inline void pack_filters(const BinaryTraining& layer, int padded, const float* weight, uint32_t* bits) {
#pragma omp for schedule(static)
    for (int filter = 0; filter < padded; filter++) {
        if (filter < layer.filters) {
            weight_words(layer, weight + ptrdiff_t(filter) * layer.channels * layer.taps(),
                         [&](int word, int tap, uint32_t of_filter) {
                             bits[(ptrdiff_t(tap) * layer.words() + word) * padded + filter] = of_filter;
                         });
        } else {
            for (int part = 0; part < layer.taps() * layer.words(); part++) {
                bits[ptrdiff_t(part) * padded + filter] = 0;
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
        constant = memory.take<float>(blocks * kLanes);
        panel = size_t(products) * kLanes;
        panels = memory.take<float>(panel * threads);
        rows = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        size = memory.size();
    }

    BitMap map;
    uint32_t* bits;     // of x
    uint32_t* weights;  // [filters / kLanes][tap][word][kLanes filters]
    int32_t* base;      // of each filter: n minus the number of weights -1, or n
    float* constant;    // of each filter: its bias, or 0; NaN if a latent weight is not finite
    size_t panel;       // elements of a panel: [tap][word][kLanes pixels]
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
                sum +=
                    0 * x[((ptrdiff_t(image) * layer.channels + channel) * layer.height + row) * layer.width + column];
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
                   const Positions& outputs, int begin, float* panel, float* result) {
    const int products = layer.taps() * layer.words(), end = std::min(begin + kLanes, layer.out_pixels());
    const Elements window = windows.from(begin, end), output = outputs.from(begin, end);
    for (int tap = 0; tap < layer.taps(); tap++) {
        for (int word = 0; word < layer.words(); word++) {
            const uint32_t* from = memory.bits + word * ptrdiff_t(memory.map.plane) + memory.map.tap(layer, tap);
            store(panel + (tap * layer.words() + word) * kLanes, window.load(reinterpret_cast<const float*>(from)));
        }
    }
    const uint32_t* pixels = reinterpret_cast<const uint32_t*>(panel);
    for (int first = 0; first < layer.filters; first += kLanes) {
        Words sums[kLanes];
        count_differing(memory.weights + ptrdiff_t(first) * products, pixels, products, sums);
        const int count = std::min(kLanes, layer.filters - first);
        const Words base = load(memory.base + first);
        const Floats constant = load(memory.constant + first), scale = broadcast(layer.scale);
        Floats values[kLanes];
        for (int i = 0; i < kLanes; i++) {
            values[i] = difference(base, sums[i]) * scale + constant;
        }
        transpose(values);
        for (int i = 0; i < count; i++) {
            output.store(result + ptrdiff_t(first + i) * layer.out_plane(), values[i]);
        }
    }
}

// --- gradients -------------------------------------------------------------------------------------------------------

// The slope of the surrogate of the sign times the scale of the weights.
Floats slope_of(const BinaryTraining& layer, Floats x) {
    const Floats magnitude = magnitude_of(x);
    const Floats scale = where_at_most(magnitude, broadcast(layer.threshold), broadcast(layer.scale));
    return scale * (layer.triangular ? broadcast(1) - magnitude : broadcast(0.5f));
}

// Rows of x that leave the same remainder of the stride, or columns: the same taps reach them.
struct Remainder {
    int first, count;           // pixels first, first + stride, ...
    std::vector<int> taps, at;  // taps that reach them, and the result that the first pixel meets there
};

std::vector<Remainder> remainders(int size, int kernel, int stride, int pad, int dilation) {
    std::vector<Remainder> result;
    for (int first = 0; first < std::min(stride, size); first++) {
        result.push_back({first, ceil_div(size - first, stride), {}, {}});
        for (int tap = 0; tap < kernel; tap++) {
            const int place = first + pad - tap * dilation;
            if (place % stride == 0) {
                result.back().taps.push_back(tap);
                result.back().at.push_back(place / stride);
            }
        }
    }
    return result;
}

// The sum of the gradients of a filter's results.
float sum_of_filter(const BinaryTraining& layer, const float* outer, int filter) {
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
    return float(sum);
}

// Stores the gradients of the weight, from the sums of products sum_of(filter, channel, tap) of the gradient of the
// result with bits, and of the bias, if there is one. Called by all threads.
template <class SumOf>
void store_gradients_of_filters(const BinaryTraining& layer, const float* outer, const SumOf& sum_of,
                                float* weight_gradient, float* bias_gradient) {
    const int taps = layer.taps();
#pragma omp for schedule(static)
    for (int filter = 0; filter < layer.filters; filter++) {
        const float sum = sum_of_filter(layer, outer, filter);
        if (bias_gradient) {
            bias_gradient[filter] = sum;
        }
        const float of_count = layer.counts ? 0.5f * sum : 0;  // the count is (h + n) / 2 with h = 2 sum(u s) - sum(s)
        for (int channel = 0; channel < layer.channels; channel++) {
            for (int tap = 0; tap < taps; tap++) {
                weight_gradient[(ptrdiff_t(filter) * layer.channels + channel) * taps + tap] =
                    sum_of(filter, channel, tap) - of_count;
            }
        }
    }
}

size_t forward_bytes(const BinaryTraining& layer, int threads) { return ForwardMemory(layer, threads, nullptr).size; }

void forward(const BinaryTraining& layer, int threads, void* working, const float* x, const float* weight,
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
            memory.base[filter] = layer.counts ? size : 0;
            memory.constant[filter] = 0;
            if (filter >= layer.filters) {
                for (int k = 0; k < products; k++) {
                    to[k * kLanes] = 0;
                }
                continue;
            }
            const float* weights = weight + ptrdiff_t(filter) * size;
            memory.constant[filter] = bias ? bias[filter] : 0;
            if (layer.counts) {
                memory.constant[filter] = all_finite(weights, size) ? 0 : std::numeric_limits<float>::quiet_NaN();
            }
            weight_words(layer, weights, [&](int word, int tap, uint32_t bits) {
                to[(tap * layer.words() + word) * kLanes] = bits;
                memory.base[filter] += layer.counts ? 0 : __builtin_popcount(bits);
            });
        }
#pragma omp for schedule(static)
        for (int tile = 0; tile < ceil_div(layer.out_pixels(), kLanes); tile++) {
            convolve_tile(layer, memory, windows, outputs, tile * kLanes, memory.panels + memory.panel * thread,
                          result);
        }
    }
    if (!finite) {
        spread_wrong(layer, x, result);
    }
}

}  // namespace
}  // namespace bmx
