// Training of binary convolutions with AVX-512: see kernels/common/binary_training.h.
//
// Gradients are sums of numbers times bits: the gradient of u is the sum of outer s, and the gradient of s the sum of
// outer u. Four numbers have 16 such sums, a table that fills a vector. It is computed once, and four bits of each of
// 16 channels select one of its elements: a permutation and an addition replace 64 products and additions.
#include "kernels/common/binary_training_parts.h"

namespace bmx {
namespace {

constexpr int kGroup = 4;             // numbers of a table
constexpr int kRows = 8;              // most tables of one call of `add_looked_up`
constexpr int kVectors = 2;           // most vectors of channels of one call
constexpr int kChunk = 128;           // most pixels of the gradient of the weight that are summed at a time
constexpr size_t kCache = 400 << 10;  // bytes that stay in the second-level cache

// The sums of four numbers, each times the factor of its bit: element i is that of the bits of i.
template <bool kSigns>  // factors -1 and 1 instead of 0 and 1
__m512 table_of(const float* numbers, ptrdiff_t step) {
    constexpr float o = kSigns ? -1 : 0;
    const __m512 first = _mm512_setr_ps(o, 1, o, 1, o, 1, o, 1, o, 1, o, 1, o, 1, o, 1);
    const __m512 second = _mm512_setr_ps(o, o, 1, 1, o, o, 1, 1, o, o, 1, 1, o, o, 1, 1);
    const __m512 third = _mm512_setr_ps(o, o, o, o, 1, 1, 1, 1, o, o, o, o, 1, 1, 1, 1);
    const __m512 fourth = _mm512_setr_ps(o, o, o, o, o, o, o, o, 1, 1, 1, 1, 1, 1, 1, 1);
    __m512 result = _mm512_mul_ps(first, _mm512_set1_ps(numbers[0]));
    result = _mm512_fmadd_ps(second, _mm512_set1_ps(numbers[step]), result);
    result = _mm512_fmadd_ps(third, _mm512_set1_ps(numbers[2 * step]), result);
    return _mm512_fmadd_ps(fourth, _mm512_set1_ps(numbers[3 * step]), result);
}

// The selection of 16 channels from tables: bit i of a lane is the bit of the channel in words[i].
__m512i selection_of(const uint32_t (&words)[kGroup], int half) {
    __m512i result = _mm512_setzero_si512();
    for (int i = 0; i < kGroup; i++) {
        result = _mm512_mask_or_epi32(result, __mmask16(words[i] >> 16 * half), result, _mm512_set1_epi32(1 << i));
    }
    return result;
}

// Runs of tables and selections whose looked up numbers are added.
struct Lookups {
    const float* const* tables;         // of each run: [count][rows] tables of 16 numbers
    const uint32_t* const* selections;  // of each run: [count][vectors] selections of 16 channels
    int runs, count;
    ptrdiff_t table_step, selection_step;  // elements from one of `count` to the next one
};

// Adds to sums[row][vector], `row_step` elements from row to row.
template <int kTables, int kSelections>
void add_looked_up(const Lookups& lookups, float* sums, ptrdiff_t row_step) {
    __m512 sum[kTables][kSelections];
#pragma GCC unroll 8
    for (int i = 0; i < kTables; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < kSelections; j++) {
            sum[i][j] = _mm512_loadu_ps(sums + i * row_step + j * kLanes);
        }
    }
    for (int run = 0; run < lookups.runs; run++) {
        const float* tables = lookups.tables[run];
        const uint32_t* selections = lookups.selections[run];
        for (int k = 0; k < lookups.count; k++) {
            __m512i selection[kSelections];
#pragma GCC unroll 2
            for (int j = 0; j < kSelections; j++) {
                selection[j] = _mm512_loadu_si512(selections + j * kLanes);
            }
#pragma GCC unroll 8
            for (int i = 0; i < kTables; i++) {
                const __m512 table = _mm512_loadu_ps(tables + i * kLanes);
#pragma GCC unroll 2
                for (int j = 0; j < kSelections; j++) {
                    sum[i][j] = _mm512_add_ps(sum[i][j], _mm512_permutexvar_ps(selection[j], table));
                }
            }
            tables += lookups.table_step;
            selections += lookups.selection_step;
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < kTables; i++) {
#pragma GCC unroll 2
        for (int j = 0; j < kSelections; j++) {
            _mm512_storeu_ps(sums + i * row_step + j * kLanes, sum[i][j]);
        }
    }
}

using AddLookedUp = void (*)(const Lookups&, float*, ptrdiff_t);
constexpr AddLookedUp kAddLookedUp[kRows][kVectors] = {
    {add_looked_up<1, 1>, add_looked_up<1, 2>}, {add_looked_up<2, 1>, add_looked_up<2, 2>},
    {add_looked_up<3, 1>, add_looked_up<3, 2>}, {add_looked_up<4, 1>, add_looked_up<4, 2>},
    {add_looked_up<5, 1>, add_looked_up<5, 2>}, {add_looked_up<6, 1>, add_looked_up<6, 2>},
    {add_looked_up<7, 1>, add_looked_up<7, 2>}, {add_looked_up<8, 1>, add_looked_up<8, 2>}};

// The gradient of the result, padded with 0 as far as the windows of x reach: [images][filters][rows][columns], where
// the filters are padded to a multiple of kGroup.
struct OuterMap {
    explicit OuterMap(const BinaryTraining& layer)
        : top(before(layer.kernel_h, layer.dilation_h, layer.pad_h)),
          left(before(layer.kernel_w, layer.dilation_w, layer.pad_w)),
          rows(top + layer.out_height + after(layer.height, layer.pad_h, layer.stride_h, layer.out_height)),
          columns(left + layer.out_width + after(layer.width, layer.pad_w, layer.stride_w, layer.out_width)),
          groups(ceil_div(layer.filters, kGroup)) {}

    static int before(int kernel, int dilation, int pad) { return std::max(0, (kernel - 1) * dilation - pad); }
    static int after(int size, int pad, int stride, int out) {
        return std::max(0, (size - 1 + pad) / stride - (out - 1));
    }
    // Elements of the tables of a row: [groups][columns][16].
    ptrdiff_t table_row() const { return ptrdiff_t(groups) * columns * kLanes; }
    // Rows of x, those of one remainder of the stride, whose gradients are computed at a time.
    int band(const BinaryTraining& layer) const {
        const int reach = (layer.kernel_h - 1) * layer.dilation_h / layer.stride_h + 1;
        return std::max(1, int(kCache / (table_row() * sizeof(float))) - reach);
    }

    int top, left, rows, columns, groups;
};

struct BackwardMemory {
    BackwardMemory(const BinaryTraining& layer, int threads, void* begin) : map(layer), outer_map(layer) {
        Memory memory(begin);
        const int taps = layer.taps();
        vectors = 2 * layer.words();
        columns = taps * vectors * kLanes;
        band = outer_map.band(layer);
        for (chunk = kChunk;
             chunk > kLanes && chunk / kGroup * (columns + layer.filters * kLanes) * sizeof(float) > 2 * kCache;) {
            chunk /= 2;
        }
        bits = memory.take<uint32_t>(size_t(layer.words()) * map.plane);
        words = memory.take<uint32_t>(size_t(taps) * layer.words() * outer_map.groups * kGroup);
        weights = memory.take<uint32_t>(size_t(outer_map.groups) * columns);
        sums = memory.take<float>(size_t(layer.filters) * columns);
        selections = memory.take<uint32_t>(size_t(chunk / kGroup) * columns);
        filter_tables = memory.take<float>(size_t(ceil_div(layer.filters, kRows) * kRows) * (chunk / kGroup) * kLanes);
        table_rows = std::min(outer_map.rows, band + (layer.kernel_h - 1) * layer.dilation_h / layer.stride_h + 1);
        tables_size = size_t(outer_map.table_row()) * table_rows;
        tables = memory.take<float>(tables_size * threads);
        row_size = size_t(std::max(layer.width, kLanes)) * vectors * kLanes;
        rows = memory.take<float>(row_size * threads);
        outer_size = size_t(kGroup) * std::max(outer_map.columns, kChunk);
        outer = memory.take<float>(outer_size * threads);
        planes = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        size = memory.size();
    }

    BitMap map;
    OuterMap outer_map;
    int vectors;  // of 16 channels
    int columns;  // taps times channels
    int band, table_rows, chunk;
    uint32_t* bits;        // of x
    uint32_t* words;       // bits of the weights: [tap][word][filter]
    uint32_t* weights;     // selections: [tap][filters / kGroup][channel]
    float* sums;           // gradient of the weight: [filter][tap][channel]
    uint32_t* selections;  // of the windows of a chunk: [pixels / kGroup][tap][channel]
    float* filter_tables;  // of a chunk: [filters / kRows][pixels / kGroup][kRows][16]
    size_t tables_size, row_size, outer_size;
    float* tables;     // of each thread: [table_rows][filters / kGroup][columns][16]
    float* rows;       // of each thread: sums of a row [column][channel]
    float* outer;      // of each thread: some rows of the gradient of the result
    uint32_t* planes;  // of each thread, for `pack`
    size_t size;
};

// Computes the tables of some rows of the padded gradient of the result.
void make_tables(const BinaryTraining& layer, const BackwardMemory& memory, int image, int begin, int end,
                 const float* outer, float* padded, float* tables) {
    const OuterMap& map = memory.outer_map;
    for (int row = begin; row < end; row++) {
        float* to = tables + (row - begin) * map.table_row();
        const int y = row - map.top;
        if (y < 0 || y >= layer.out_height) {
            std::memset(to, 0, map.table_row() * sizeof(float));
            continue;
        }
        for (int group = 0; group < map.groups; group++, to += map.columns * kLanes) {
            std::memset(padded, 0, sizeof(float) * kGroup * map.columns);
            for (int i = 0; i < std::min(kGroup, layer.filters - group * kGroup); i++) {
                const ptrdiff_t plane = ptrdiff_t(image) * layer.filters + group * kGroup + i;
                std::memcpy(padded + i * map.columns + map.left,
                            outer + (plane * layer.out_height + y) * layer.out_width, sizeof(float) * layer.out_width);
            }
            for (int column = 0; column < map.columns; column++) {
                _mm512_storeu_ps(to + column * kLanes, table_of<true>(padded + column, map.columns));
            }
        }
    }
}

// Multiplies the gradients of u in a row by the slope of the surrogate and stores them.
void store_row(const BinaryTraining& layer, int channels, int columns, const float* row, const float* x,
               float* gradient) {
    for (int begin = 0; begin < columns; begin += kLanes) {
        const int count = std::min(kLanes, columns - begin);
        Elements pixels;
        for (int i = 0; i < count; i++) {
            pixels.add((begin + i) * layer.stride_w);
        }
        for (int first = 0; first < layer.channels; first += kLanes) {
            __m512 values[kLanes];
            for (int i = 0; i < kLanes; i++) {
                values[i] = i < count ? _mm512_loadu_ps(row + (begin + i) * channels + first) : _mm512_setzero_ps();
            }
            transpose(values);
            for (int i = 0; i < std::min(kLanes, layer.channels - first); i++) {
                const ptrdiff_t plane = ptrdiff_t(first + i) * layer.plane();
                const Floats slope = slope_of(layer, pixels.load(x + plane));
                pixels.store(gradient + plane, _mm512_mul_ps(values[i], slope));
            }
        }
    }
}

void gradient_of_band(const BinaryTraining& layer, const BackwardMemory& memory, int thread, int image, int begin,
                      int end, const Remainder& down, const std::vector<Remainder>& across, const float* outer,
                      const float* x, float* gradient) {
    const OuterMap& map = memory.outer_map;
    float* tables = memory.tables + memory.tables_size * thread;
    float* row = memory.rows + memory.row_size * thread;
    const int channels = memory.vectors * kLanes;
    int top = 0;
    if (!down.at.empty()) {
        top = begin + *std::min_element(down.at.begin(), down.at.end()) + map.top;
        const int bottom = end + *std::max_element(down.at.begin(), down.at.end()) + map.top;
        make_tables(layer, memory, image, top, bottom, outer, memory.outer + memory.outer_size * thread, tables);
    }
    std::vector<const float*> starts;
    std::vector<const uint32_t*> weights;
    for (int y = begin; y < end; y++) {
        for (const Remainder& columns : across) {
            std::memset(row, 0, sizeof(float) * columns.count * channels);
            const int parts = ceil_div(columns.count, kRows), width = ceil_div(columns.count, parts);
            for (int left = 0; left < columns.count; left += width) {
                const int count = std::min(width, columns.count - left);
                for (int vector = 0; vector < memory.vectors; vector += kVectors) {
                    starts.clear();
                    weights.clear();
                    for (size_t i = 0; i < down.taps.size(); i++) {
                        for (size_t j = 0; j < columns.taps.size(); j++) {
                            const int tap = down.taps[i] * layer.kernel_w + columns.taps[j];
                            starts.push_back(tables + (y + down.at[i] + map.top - top) * map.table_row() +
                                             (left + columns.at[j] + map.left) * kLanes);
                            weights.push_back(memory.weights + ptrdiff_t(tap) * map.groups * channels +
                                              vector * kLanes);
                        }
                    }
                    const Lookups lookups = {starts.data(), weights.data(),       int(starts.size()),
                                             map.groups,    map.columns * kLanes, channels};
                    kAddLookedUp[count - 1][kVectors - 1](lookups, row + left * channels + vector * kLanes, channels);
                }
            }
            const ptrdiff_t start = ptrdiff_t(image) * layer.channels * layer.plane() +
                                    (down.first + y * layer.stride_h) * layer.width + columns.first;
            store_row(layer, channels, columns.count, row, x + start, gradient + start);
        }
    }
}

// Called by all threads.
void gradient_of_x(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const float* outer,
                   const float* x, float* gradient) {
    const auto across = remainders(layer.width, layer.kernel_w, layer.stride_w, layer.pad_w, layer.dilation_w);
    for (const Remainder& down :
         remainders(layer.height, layer.kernel_h, layer.stride_h, layer.pad_h, layer.dilation_h)) {
        const int bands = ceil_div(down.count, memory.band);
#pragma omp for schedule(static) nowait
        for (int part = 0; part < layer.images * bands; part++) {
            const int begin = part % bands * memory.band, end = std::min(begin + memory.band, down.count);
            gradient_of_band(layer, memory, thread, part / bands, begin, end, down, across, outer, x, gradient);
        }
    }
}

// Packs the weights. Called by all threads.
void pack_weights(const BinaryTraining& layer, const BackwardMemory& memory, const float* weight) {
    const int padded = memory.outer_map.groups * kGroup, parts = layer.taps() * layer.words();
    pack_filters(layer, padded, weight, memory.words);
#pragma omp for schedule(static)
    for (int part = 0; part < parts; part++) {
        const int tap = part / layer.words(), word = part % layer.words();
        for (int group = 0; group < memory.outer_map.groups; group++) {
            uint32_t words[kGroup];
            std::memcpy(words, memory.words + ptrdiff_t(part) * padded + group * kGroup, sizeof words);
            uint32_t* to = memory.weights +
                           ((ptrdiff_t(tap) * memory.outer_map.groups + group) * memory.vectors + word * 2) * kLanes;
            _mm512_storeu_si512(to, selection_of(words, 0));
            _mm512_storeu_si512(to + kLanes, selection_of(words, 1));
        }
    }
}

// Adds the products of a chunk of pixels to the gradient of the weight. Called by all threads.
void add_chunk(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const Positions& windows,
               const Positions& outputs, int begin, const float* outer) {
    const int pixels = std::min(memory.chunk, layer.out_pixels() - begin), groups = ceil_div(pixels, kGroup);
    const int tiles = ceil_div(pixels, kLanes), parts = layer.taps() * layer.words();
#pragma omp for schedule(static) nowait
    for (int tile = 0; tile < tiles; tile++) {
        const int first = tile * kLanes, end = std::min(first + kLanes, pixels);
        const Elements window = windows.from(begin + first, begin + end);
        for (int part = 0; part < parts; part++) {
            const uint32_t* from = memory.bits + part % layer.words() * ptrdiff_t(memory.map.plane) +
                                   memory.map.tap(layer, part / layer.words());
            alignas(64) uint32_t words[kLanes / kGroup][kGroup];
            _mm512_store_ps(words, window.load(reinterpret_cast<const float*>(from)));
            for (int group = 0; group < kLanes / kGroup; group++) {
                uint32_t* to =
                    memory.selections + ptrdiff_t(first / kGroup + group) * memory.columns + part * 2 * kLanes;
                _mm512_storeu_si512(to, selection_of(words[group], 0));
                _mm512_storeu_si512(to + kLanes, selection_of(words[group], 1));
            }
        }
    }
    float* numbers = memory.outer + memory.outer_size * thread;
#pragma omp for schedule(static)
    for (int filter = 0; filter < layer.filters; filter++) {
        for (int tile = 0; tile < tiles; tile++) {
            const int first = tile * kLanes, end = std::min(first + kLanes, pixels);
            const Elements output = outputs.from(begin + first, begin + end);
            _mm512_storeu_ps(numbers + first, output.load(outer + ptrdiff_t(filter) * layer.out_plane()));
        }
        float* to = memory.filter_tables +
                    (ptrdiff_t(filter / kRows) * (memory.chunk / kGroup) * kRows + filter % kRows) * kLanes;
        for (int group = 0; group < groups; group++) {
            _mm512_storeu_ps(to + group * kRows * kLanes, table_of<false>(numbers + group * kGroup, 1));
        }
    }
    const int pairs = ceil_div(memory.columns, kVectors * kLanes), blocks = ceil_div(layer.filters, kRows);
#pragma omp for schedule(static)
    for (int part = 0; part < blocks * pairs; part++) {
        const int block = part / pairs, column = part % pairs * kVectors * kLanes;
        const float* tables = memory.filter_tables + ptrdiff_t(block) * (memory.chunk / kGroup) * kRows * kLanes;
        const uint32_t* selections = memory.selections + column;
        const Lookups lookups = {&tables, &selections, 1, groups, kRows * kLanes, memory.columns};
        kAddLookedUp[std::min(kRows, layer.filters - block * kRows) - 1][kVectors - 1](
            lookups, memory.sums + ptrdiff_t(block) * kRows * memory.columns + column, memory.columns);
    }
}

size_t backward_bytes(const BinaryTraining& layer, int threads) { return BackwardMemory(layer, threads, nullptr).size; }

void backward(const BinaryTraining& layer, int threads, void* working, const float* outer, const float* x,
              const float* weight, float* x_gradient, float* weight_gradient, float* bias_gradient) {
    const BackwardMemory memory(layer, threads, working);
    const int columns = memory.columns;
    const Positions windows = memory.map.windows(layer);
    const Positions outputs(1, layer.out_plane(), layer.filters * layer.out_plane(), 0, 1);
    bool finite = true;
#pragma omp parallel num_threads(threads)
    {
        const int thread = omp_get_thread_num();
        pack_all(layer, memory.map, x, memory.planes + size_t(layer.plane()) * thread, memory.bits, &finite);
        pack_weights(layer, memory, weight);
#pragma omp for schedule(static)
        for (int filter = 0; filter < layer.filters; filter++) {
            std::memset(memory.sums + ptrdiff_t(filter) * columns, 0, columns * sizeof(float));
        }
        gradient_of_x(layer, memory, thread, outer, x, x_gradient);
        for (int begin = 0; begin < layer.out_pixels(); begin += memory.chunk) {
            add_chunk(layer, memory, thread, windows, outputs, begin, outer);
        }
        const auto sum_of = [&](int filter, int channel, int tap) {
            return memory.sums[ptrdiff_t(filter) * columns + tap * memory.vectors * kLanes + channel];
        };
        store_gradients_of_filters(layer, outer, sum_of, weight_gradient, bias_gradient);
    }
}

}  // namespace

const BinaryTrainingKernels& binary_training_avx512() {
    static const BinaryTrainingKernels kernels = {forward_bytes, backward_bytes, forward, backward};
    return kernels;
}

}  // namespace bmx
