// Training of binary convolutions with AVX2: see kernels/common/binary_training.h.
//
// Gradients are sums of numbers times bits: the gradient of u is the sum of outer s, and the gradient of s the sum of
// outer u. Four numbers have 16 such sums. A table holds these of several lanes, which the same four bits concern: an
// addition of a vector in the first-level cache replaces 32 products and additions.
//
// For the gradient of u the lanes are eight strips of rows of the images, and four bits those of four filters. For the
// gradient of s they are eight filters, and four bits those of four strips, at the same place: the window moves all
// strips alike, so that neither tables nor bits depend on the tap.
#include <utility>

#include "kernels/common/binary_training_parts.h"

namespace bmx {
namespace {

constexpr int kGroup = 4;                  // numbers of a table
constexpr int kEntries = 1 << kGroup;      // sums in a table
constexpr int kTable = kEntries * kLanes;  // elements of a table of one vector
constexpr int kRows = 2, kColumns = 7;     // most pixels of a block whose gradients are summed in registers
constexpr int kSegment = 28;               // most columns whose gradients are stored at a time
constexpr int kChannelBlock = 128;         // most channels for which tables are made once
constexpr int kChannels = 4;               // channels whose gradients of the weight are summed at a time
constexpr int kFilters = 2 * kLanes;       // and filters
constexpr int kPositions = 16;             // pixels of each strip for which this is done at a time

// The rows of all images, divided into strips of equal height. Few images are divided into several strips each.
class Strips {
  public:
    Strips(int images, int rows, int lanes) : lanes_(lanes), per_image_(1) {
        const auto cost = [&](int parts) { return ceil_div(images * parts, lanes) * ceil_div(rows, parts); };
        for (int parts = 2; parts <= std::min(lanes, rows); parts++) {
            per_image_ = cost(parts) < cost(per_image_) ? parts : per_image_;
        }
        height_ = ceil_div(rows, per_image_);
        count_ = images * per_image_;
    }

    int height() const { return height_; }
    int blocks() const { return ceil_div(count_, lanes_); }
    // The image of a strip, or -1 if there is no such strip.
    int image(int block, int lane) const {
        const int strip = block * lanes_ + lane;
        return strip < count_ ? strip / per_image_ : -1;
    }
    int first_row(int block, int lane) const { return (block * lanes_ + lane) % per_image_ * height_; }

  private:
    int lanes_, per_image_, height_, count_;
};

// --- the gradient of x -----------------------------------------------------------------------------------------------

// Pixels of x that the same taps reach: those of one remainder of the stride, down and across.
struct PixelClass {
    int row, column;    // the first pixel
    int rows, columns;  // pixels, in steps of the stride
    int taps, begin;    // number of taps, and the index of the first one among those of all classes
};

// How the gradient of x is computed. Rows and columns are those of the classes.
struct PixelPlan {
    explicit PixelPlan(const BinaryTraining& layer)
        : strips(layer.images, ceil_div(layer.height, layer.stride_h), kLanes),
          width(ceil_div(layer.width, layer.stride_w)),
          groups(ceil_div(layer.filters, kGroup)) {
        const auto down = remainders(layer.height, layer.kernel_h, layer.stride_h, layer.pad_h, layer.dilation_h);
        const auto across = remainders(layer.width, layer.kernel_w, layer.stride_w, layer.pad_w, layer.dilation_w);
        int bottom, right;
        range_of(down, &top, &bottom);
        range_of(across, &left, &right);
        reach_down = bottom - top;
        reach_across = right - left;
        for (const Remainder& rows : down) {
            for (const Remainder& columns : across) {
                const int begin = int(taps.size());
                for (size_t i = 0; i < rows.taps.size(); i++) {
                    for (size_t j = 0; j < columns.taps.size(); j++) {
                        taps.push_back(rows.taps[i] * layer.kernel_w + columns.taps[j]);
                        offsets.push_back(((rows.at[i] - top) * pitch() + columns.at[j] - left) * kTable);
                    }
                }
                classes.push_back(
                    {rows.first, columns.first, rows.count, columns.count, int(taps.size()) - begin, begin});
            }
        }
        const int columns = std::min(width, kSegment);
        channels = std::min(layer.channels, std::max(kChannelBlock / int(classes.size()), 32));
        channels = ceil_div(layer.channels, ceil_div(layer.channels, channels));
        sums = classes.size() * channels * kRows * columns * kLanes;
        pixels = size_t(kRows) * layer.stride_h * columns * layer.stride_w + kLanes;
    }

    static void range_of(const std::vector<Remainder>& remainders, int* first, int* last) {
        *first = std::numeric_limits<int>::max();
        *last = std::numeric_limits<int>::min();
        for (const Remainder& remainder : remainders) {
            for (int at : remainder.at) {
                *first = std::min(*first, at);
                *last = std::max(*last, at);
            }
        }
        if (*first > *last) {  // no tap reaches a pixel
            *first = *last = 0;
        }
    }
    int pitch() const { return kColumns + reach_across; }  // tables from row to row
    size_t tables() const { return size_t(kRows + reach_down) * pitch() * kTable; }
    int rows() const { return strips.height() + reach_down; }
    int columns() const { return width + reach_across; }
    // Elements of a group of filters: [rows][columns][kGroup][kLanes].
    ptrdiff_t group_size() const { return ptrdiff_t(rows()) * columns() * kGroup * kLanes; }

    Strips strips;
    int width, groups, top, left, reach_down, reach_across;
    std::vector<PixelClass> classes;
    std::vector<int> taps, offsets;  // of all classes; the offset of a tap's tables, in elements
    int channels;                    // for which tables are made once
    size_t sums, pixels;             // elements: of the sums of these channels, of the pixels of one in a strip
};

// The positions of a gradient of the weight: see `gradient_of_weight`.
struct WeightBlocks {
    explicit WeightBlocks(const BinaryTraining& layer)
        : strips(layer.images, layer.out_height, kGroup),
          rows((strips.height() - 1) * layer.stride_h + (layer.kernel_h - 1) * layer.dilation_h + 1),
          channels(layer.words() * 32),
          width(ceil_div(layer.out_width, ceil_div(layer.out_width, kPositions))),
          height(std::max(1, kPositions / width)) {}

    Strips strips;
    int rows;           // of a strip of x
    int channels;       // bytes of a pixel
    int width, height;  // of positions whose tables are made at a time
};

struct BackwardMemory {
    BackwardMemory(const BinaryTraining& layer, int threads, void* begin) : map(layer), plan(layer), blocks(layer) {
        Memory memory(begin);
        const size_t weights = size_t(layer.channels) * layer.taps();
        bits = memory.take<uint32_t>(size_t(layer.words()) * map.plane);
        planes = memory.take<uint32_t>(size_t(layer.plane()) * threads);
        nibbles = memory.take<uint8_t>(plan.groups * weights);
        indices = memory.take<uint16_t>(plan.groups * weights);
        outer = memory.take<float>(size_t(plan.groups) * plan.group_size());
        row_size = round_up(plan.columns(), kLanes) * kLanes;
        rows = memory.take<float>(row_size * threads);
        table_size = std::max(plan.tables(), size_t(kPositions) * 2 * kTable);
        tables = memory.take<float>(table_size * threads);
        sums = memory.take<float>(plan.sums * threads);
        pixels = memory.take<float>(plan.pixels * kLanes * threads);
        selections = memory.take<uint8_t>(size_t(blocks.strips.blocks()) * blocks.rows * map.columns * blocks.channels);
        number_size = size_t(kPositions) * kGroup * kFilters;
        numbers = memory.take<float>(number_size * threads);
        padded_channels = int(round_up(layer.channels, kChannels));
        weight_sums =
            memory.take<float>(size_t(ceil_div(layer.filters, kFilters)) * padded_channels * layer.taps() * kFilters);
        filter_sums = memory.take<float>(layer.filters);
        size = memory.size();
    }

    BitMap map;
    PixelPlan plan;
    WeightBlocks blocks;
    int padded_channels;
    size_t row_size, table_size, number_size;
    uint32_t* bits;       // of x
    uint32_t* planes;     // of each thread, for `pack`
    uint8_t* nibbles;     // bits of the weights of four filters: [filters / kGroup][channel][tap]
    uint16_t* indices;    // half the offsets of their sums in the tables: [filters / kGroup][channel][tap of the plan]
    float* outer;         // gradient of the result: [filters / kGroup][rows][columns][kGroup][kLanes]
    float* rows;          // of each thread: a row of each strip
    float* tables;        // of each thread
    float* sums;          // of each thread, for each class and block of columns: [channel][row][column][kLanes]
    float* pixels;        // of each thread: [kLanes][row][column] pixels of a channel
    uint8_t* selections;  // bits of x of four strips, times 8: [block][row][column][channel]
    float* numbers;       // of each thread: [position][kGroup][kFilters]
    float* weight_sums;   // [filters / kFilters][channel][tap][kFilters]
    float* filter_sums;
    size_t size;
};

// The sums of four vectors, each times -1 or 1: sum i is that of the bits of i.
[[gnu::always_inline]] inline void make_signed_table(const float* numbers, float* table) {
    const Floats a = load(numbers), b = load(numbers + kLanes);
    const Floats c = load(numbers + 2 * kLanes), d = load(numbers + 3 * kLanes);
    const Floats first[4] = {-(a + b), a - b, b - a, a + b}, second[2] = {c - d, c + d};
    for (int high = 0; high < 2; high++) {
        for (int low = 0; low < 4; low++) {
            const int i = (2 * high + 1) * 4 + low;
            const Floats sum = first[low] + second[high];
            store(table + i * kLanes, sum);
            store(table + (kEntries - 1 - i) * kLanes, -sum);
        }
    }
}

// Copies a row of the gradient of the result to `outer`, of all strips of a block. `padded` is working memory.
void place_row(const BinaryTraining& layer, const PixelPlan& plan, int block, int filter, int row, const float* outer,
               float* padded, float* to) {
    const int columns = plan.columns(), pitch = int(round_up(columns, kLanes));
    const int begin = std::max(0, -plan.left), end = std::min(columns, layer.out_width - plan.left);
    for (int lane = 0; lane < kLanes; lane++) {
        const int image = plan.strips.image(block, lane);
        const int y = plan.strips.first_row(block, lane) + plan.top + row;
        float* at = padded + lane * pitch;
        std::memset(at, 0, pitch * sizeof(float));
        if (image >= 0 && filter < layer.filters && y >= 0 && y < layer.out_height && begin < end) {
            const ptrdiff_t from = (ptrdiff_t(image) * layer.filters + filter) * layer.out_plane();
            std::memcpy(at + begin, outer + from + y * layer.out_width + plan.left + begin,
                        (end - begin) * sizeof(float));
        }
    }
    for (int column = 0; column < columns; column += kLanes) {
        Floats values[kLanes];
        for (int lane = 0; lane < kLanes; lane++) {
            values[lane] = load(padded + lane * pitch + column);
        }
        transpose(values);
        for (int i = 0; i < std::min(kLanes, columns - column); i++) {
            store(to + ptrdiff_t(column + i) * kGroup * kLanes, values[i]);
        }
    }
}

// Adds the looked up sums of a group of filters: to sums[channel][row][column], for each channel and tap at
// indices[channel][tap], `index_step` elements from channel to channel.
template <int kHeight, int kWidth>
void add_looked_up(const float* tables, ptrdiff_t row_step, const uint16_t* indices, int index_step, int taps,
                   int channels, float* sums) {
    for (int channel = 0; channel < channels; channel++) {
        Floats sum[kHeight][kWidth];
#pragma GCC unroll 2
        for (int i = 0; i < kHeight; i++) {
#pragma GCC unroll 7
            for (int j = 0; j < kWidth; j++) {
                sum[i][j] = load(sums + (i * kWidth + j) * kLanes);
            }
        }
#pragma GCC unroll 3
        for (int tap = 0; tap < taps; tap++) {
            const float* at = tables + size_t(indices[tap]) * 2;
#pragma GCC unroll 2
            for (int i = 0; i < kHeight; i++) {
#pragma GCC unroll 7
                for (int j = 0; j < kWidth; j++) {
                    sum[i][j] = sum[i][j] + load(at + i * row_step + j * kTable);
                }
            }
        }
#pragma GCC unroll 2
        for (int i = 0; i < kHeight; i++) {
#pragma GCC unroll 7
            for (int j = 0; j < kWidth; j++) {
                store(sums + (i * kWidth + j) * kLanes, sum[i][j]);
            }
        }
        indices += index_step;
        sums += kHeight * kWidth * kLanes;
    }
}

using AddLookedUp = void (*)(const float*, ptrdiff_t, const uint16_t*, int, int, int, float*);
constexpr AddLookedUp kAddLookedUp[kRows][kColumns] = {
    {add_looked_up<1, 1>, add_looked_up<1, 2>, add_looked_up<1, 3>, add_looked_up<1, 4>, add_looked_up<1, 5>,
     add_looked_up<1, 6>, add_looked_up<1, 7>},
    {add_looked_up<2, 1>, add_looked_up<2, 2>, add_looked_up<2, 3>, add_looked_up<2, 4>, add_looked_up<2, 5>,
     add_looked_up<2, 6>, add_looked_up<2, 7>}};

// A rectangle of pixels of all classes in a block of strips.
struct Segment {
    int block, top, left, height, width;
};

// Sums of pixels of one class: [channel][row][column][kLanes].
struct ClassSums {
    const PixelClass* pixels;
    int left, columns;
    float* sums;
};

// Moves the gradients of u of a channel to [lane][row][column] pixels of x. `sums` are in the order of these.
void place_pixels(const BinaryTraining& layer, const PixelPlan& plan, const Segment& at,
                  const std::vector<ClassSums>& sums, int channel, float* pixels) {
    const int pitch = std::min(at.width * layer.stride_w, layer.width - at.left * layer.stride_w);
    for (int row = 0; row < at.height; row++) {
        for (const ClassSums& from : sums) {
            const float* numbers = from.sums + ptrdiff_t(channel * at.height + row) * from.columns * kLanes;
            float* to = pixels + (from.pixels->row + row * layer.stride_h) * pitch + from.pixels->column +
                        (from.left - at.left) * layer.stride_w;
            if (layer.stride_w == 1) {
                Floats values[kLanes];
                for (int i = 0; i < kLanes; i++) {
                    values[i] = i < from.columns ? load(numbers + i * kLanes) : broadcast(0);
                }
                transpose(values);
                for (int lane = 0; lane < kLanes; lane++) {
                    store(to + lane * plan.pixels, values[lane]);  // what follows is stored later
                }
                continue;
            }
            for (int i = 0; i < from.columns; i++) {
                for (int lane = 0; lane < kLanes; lane++) {
                    to[lane * plan.pixels + i * layer.stride_w] = numbers[i * kLanes + lane];
                }
            }
        }
    }
}

// Multiplies gradients of u by the slope of the surrogate and stores them.
void store_pixels(const BinaryTraining& layer, const float* pixels, int count, const float* x, float* gradient) {
    int i = 0;
    for (; i + kLanes <= count; i += kLanes) {
        store(gradient + i, load(pixels + i) * slope_of(layer, load(x + i)));
    }
    if (i < count) {
        const Mask lanes = first_lanes(count - i);
        store_lanes(lanes, gradient + i, load(pixels + i) * slope_of(layer, load_lanes(lanes, x + i, broadcast(0))));
    }
}

// Stores the gradients of x of a segment and of channels from `first` on.
void store_segment(const BinaryTraining& layer, const PixelPlan& plan, const Segment& at,
                   const std::vector<ClassSums>& sums, int first, int channels, float* pixels, const float* x,
                   float* gradient) {
    constexpr int kAhead = 2;  // channels whose pixels are fetched before they are needed
    const int width = std::min(at.width * layer.stride_w, layer.width - at.left * layer.stride_w);
    const bool whole = width == layer.width;
    ptrdiff_t start[kLanes];
    int rows[kLanes];
    for (int lane = 0; lane < kLanes; lane++) {
        const int image = plan.strips.image(at.block, lane);
        const int end =
            std::min(layer.height, (plan.strips.first_row(at.block, lane) + plan.strips.height()) * layer.stride_h);
        const int y = (plan.strips.first_row(at.block, lane) + at.top) * layer.stride_h;
        rows[lane] = image < 0 ? 0 : std::max(0, std::min(at.height * layer.stride_h, end - y));
        start[lane] =
            (ptrdiff_t(image) * layer.channels + first) * layer.plane() + y * layer.width + at.left * layer.stride_w;
    }
    for (int channel = 0; channel < channels; channel++) {
        place_pixels(layer, plan, at, sums, channel, pixels);
        for (int lane = 0; lane < kLanes; lane++) {
            const ptrdiff_t from = start[lane] + ptrdiff_t(channel) * layer.plane();
            if (channel + kAhead < channels) {
                for (int row = 0; row < rows[lane]; row++) {
                    for (int i = 0; i < width; i += 64 / int(sizeof(float))) {
                        const ptrdiff_t ahead = from + kAhead * ptrdiff_t(layer.plane()) + row * layer.width + i;
                        __builtin_prefetch(x + ahead);
                        __builtin_prefetch(gradient + ahead, 1);
                    }
                }
            }
            const float* values = pixels + lane * plan.pixels;
            if (whole) {
                store_pixels(layer, values, rows[lane] * width, x + from, gradient + from);
                continue;
            }
            for (int row = 0; row < rows[lane]; row++) {
                store_pixels(layer, values + row * width, width, x + from + row * layer.width,
                             gradient + from + row * layer.width);
            }
        }
    }
}

// Called by all threads, for a block of strips.
void gradient_of_block(const BinaryTraining& layer, const BackwardMemory& memory, int thread, int block,
                       const float* outer, const float* x, float* gradient) {
    const PixelPlan& plan = memory.plan;
#pragma omp for schedule(static)
    for (int filter = 0; filter < plan.groups * kGroup; filter++) {
        float* to = memory.outer + filter / kGroup * plan.group_size() + filter % kGroup * kLanes;
        for (int row = 0; row < plan.rows(); row++) {
            place_row(layer, plan, block, filter, row, outer, memory.rows + memory.row_size * thread,
                      to + ptrdiff_t(row) * plan.columns() * kGroup * kLanes);
        }
    }
    const int bands = ceil_div(plan.strips.height(), kRows), segments = ceil_div(plan.width, kSegment);
    const int segment = ceil_div(plan.width, segments), parts = ceil_div(segment, kColumns);
    const int width = ceil_div(segment, parts), channel_parts = ceil_div(layer.channels, plan.channels);
    const int all_taps = int(plan.taps.size());
    float* tables = memory.tables + memory.table_size * thread;
    std::vector<ClassSums> sums;
#pragma omp for schedule(dynamic)
    for (int item = 0; item < bands * segments * channel_parts; item++) {
        const int first = item % channel_parts * plan.channels;
        const int left = item / channel_parts % segments * segment, top = item / channel_parts / segments * kRows;
        const int channels = std::min(plan.channels, layer.channels - first);
        const Segment at = {block, top, left, std::min(kRows, plan.strips.height() - top),
                            std::min(segment, plan.width - left)};
        sums.clear();
        float* to = memory.sums + plan.sums * thread;
        for (int column = left; column < left + at.width; column += width) {
            const int columns = std::min(width, left + at.width - column);
            const size_t begin = sums.size();
            for (const PixelClass& pixels : plan.classes) {
                const int count = std::min(columns, pixels.columns - column);
                if (count > 0) {
                    sums.push_back({&pixels, column, count, to});
                    std::memset(to, 0, sizeof(float) * channels * at.height * count * kLanes);
                    to += ptrdiff_t(channels) * at.height * count * kLanes;
                }
            }
            for (int group = 0; group < plan.groups; group++) {
                for (int row = 0; row < at.height + plan.reach_down; row++) {
                    const float* from = memory.outer + group * plan.group_size() +
                                        (ptrdiff_t(top + row) * plan.columns() + column) * kGroup * kLanes;
                    for (int i = 0; i < columns + plan.reach_across; i++) {
                        make_signed_table(from + i * kGroup * kLanes, tables + (row * plan.pitch() + i) * kTable);
                    }
                }
                const uint16_t* indices = memory.indices + (ptrdiff_t(group) * layer.channels + first) * all_taps;
                for (size_t i = begin; i < sums.size(); i++) {
                    kAddLookedUp[at.height - 1][sums[i].columns - 1](tables, plan.pitch() * kTable,
                                                                     indices + sums[i].pixels->begin, all_taps,
                                                                     sums[i].pixels->taps, channels, sums[i].sums);
                }
            }
        }
        std::sort(sums.begin(), sums.end(), [](const ClassSums& a, const ClassSums& b) {
            return std::make_pair(a.pixels->row, a.left) < std::make_pair(b.pixels->row, b.left);
        });
        store_segment(layer, plan, at, sums, first, channels, memory.pixels + plan.pixels * kLanes * thread, x,
                      gradient);
    }
}

// Called by all threads.
void gradient_of_x(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const float* outer,
                   const float* x, const float* weight, float* gradient) {
    const PixelPlan& plan = memory.plan;
    const int size = layer.channels * layer.taps(), taps = int(plan.taps.size());
#pragma omp for schedule(static)
    for (int group = 0; group < plan.groups; group++) {
        uint8_t* nibbles = memory.nibbles + ptrdiff_t(group) * size;
        std::memset(nibbles, 0, size);
        for (int i = 0; i < std::min(kGroup, layer.filters - group * kGroup); i++) {
            const float* from = weight + ptrdiff_t(group * kGroup + i) * size;
            for (int k = 0; k < size; k++) {
                nibbles[k] = uint8_t(nibbles[k] | (from[k] >= 0 ? 1 << i : 0));
            }
        }
        uint16_t* to = memory.indices + ptrdiff_t(group) * layer.channels * taps;
        for (int channel = 0; channel < layer.channels; channel++, nibbles += layer.taps(), to += taps) {
            for (int i = 0; i < taps; i++) {
                to[i] = uint16_t((plan.offsets[i] + nibbles[plan.taps[i]] * kLanes) / 2);
            }
        }
    }
    for (int block = 0; block < plan.strips.blocks(); block++) {
        gradient_of_block(layer, memory, thread, block, outer, x, gradient);
    }
}

// --- the gradient of the weight --------------------------------------------------------------------------------------

// The sums of four vectors, each times 0 or 1: sum i is that of the bits of i. All are NaN where a number is not finite
// and its bit 0, as products with 0 are.
[[gnu::always_inline]] inline void make_table(const float* numbers, float* table) {
    const Floats zero = broadcast(0);
    Floats x[kGroup];
    for (int i = 0; i < kGroup; i++) {
        x[i] = load(numbers + i * kFilters);
    }
    const Floats first[4] = {x[0] * zero + x[1] * zero, x[0] + x[1] * zero, x[0] * zero + x[1], x[0] + x[1]};
    const Floats second[4] = {x[2] * zero + x[3] * zero, x[2] + x[3] * zero, x[2] * zero + x[3], x[2] + x[3]};
    for (int i = 0; i < kEntries; i++) {
        store(table + i * kFilters, first[i % 4] + second[i / 4]);
    }
}

// Places the bits of 32 channels of four strips, each in a byte: times 8, so that it is a half of the offset of a sum.
void place_bits(const uint32_t (&words)[kGroup], uint8_t* to) {
    const Words bytes = _mm256_setr_epi8(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3, 3,
                                         3, 3, 3, 3, 3, 3);
    const Words bits = _mm256_set1_epi64x(int64_t(0x8040201008040201));
    Words result = _mm256_setzero_si256();
    for (int i = 0; i < kGroup; i++) {
        const Words spread = _mm256_shuffle_epi8(_mm256_set1_epi32(int(words[i])), bytes);
        const Words set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, bits), bits);
        result = _mm256_or_si256(result, _mm256_and_si256(set, _mm256_set1_epi8(char(8 << i))));
    }
    _mm256_storeu_si256(reinterpret_cast<Words*>(to), result);
}

// Called by all threads.
void place_all_bits(const BinaryTraining& layer, const BackwardMemory& memory) {
    const WeightBlocks& blocks = memory.blocks;
    const BitMap& map = memory.map;
#pragma omp for schedule(static)
    for (int part = 0; part < blocks.strips.blocks() * blocks.rows; part++) {
        const int block = part / blocks.rows, row = part % blocks.rows;
        ptrdiff_t from[kGroup];
        for (int lane = 0; lane < kGroup; lane++) {
            const int image = blocks.strips.image(block, lane);
            const int y = blocks.strips.first_row(block, lane) * layer.stride_h + row;
            from[lane] = image >= 0 && y < map.rows ? (ptrdiff_t(image) * map.rows + y) * map.columns : -1;
        }
        uint8_t* to = memory.selections + ptrdiff_t(part) * map.columns * blocks.channels;
        for (int column = 0; column < map.columns; column++) {
            for (int word = 0; word < layer.words(); word++, to += 32) {
                uint32_t words[kGroup];
                for (int lane = 0; lane < kGroup; lane++) {
                    words[lane] = from[lane] < 0 ? 0 : memory.bits[ptrdiff_t(word) * map.plane + from[lane] + column];
                }
                place_bits(words, to);
            }
        }
    }
}

// A rectangle of positions in a block of strips.
struct Rectangle {
    int block, top, left, height, width;
};

// Gathers the gradients of the results of kFilters filters: [position][kGroup][kFilters].
void gather_numbers(const BinaryTraining& layer, const Strips& strips, const Rectangle& at, int first_filter,
                    const float* outer, float* numbers) {
    const ptrdiff_t size = ptrdiff_t(layer.images) * layer.filters * layer.out_plane();
    for (int row = 0; row < at.height; row++) {
        for (int lane = 0; lane < kGroup; lane++) {
            const int image = strips.image(at.block, lane), y = strips.first_row(at.block, lane) + at.top + row;
            const bool inside = image >= 0 && y < layer.out_height;
            for (int half = 0; half < kFilters; half += kLanes) {
                for (int column = 0; column < at.width; column += kLanes) {
                    const int count = std::min(kLanes, at.width - column);
                    Floats values[kLanes];
                    for (int i = 0; i < kLanes; i++) {
                        const int filter = first_filter + half + i;
                        values[i] = broadcast(0);
                        if (inside && filter < layer.filters) {
                            const ptrdiff_t from = (ptrdiff_t(image) * layer.filters + filter) * layer.out_plane() +
                                                   y * layer.out_width + at.left + column;
                            // lanes beyond `count` are not used
                            values[i] = from + kLanes <= size
                                            ? load(outer + from)
                                            : load_lanes(first_lanes(count), outer + from, broadcast(0));
                        }
                    }
                    transpose(values);
                    for (int i = 0; i < count; i++) {
                        store(numbers + ((row * at.width + column + i) * kGroup + lane) * kFilters + half, values[i]);
                    }
                }
            }
        }
    }
}

// Fetches what the next rectangle below will gather into the cache.
void fetch_numbers(const BinaryTraining& layer, const Strips& strips, const Rectangle& at, int first_filter,
                   const float* outer) {
    for (int lane = 0; lane < kGroup; lane++) {
        const int image = strips.image(at.block, lane);
        const int y = strips.first_row(at.block, lane) + at.top + at.height,
                  end = std::min(y + at.height, layer.out_height);
        for (int filter = first_filter; image >= 0 && filter < std::min(first_filter + kFilters, layer.filters);
             filter++) {
            const float* from = outer + (ptrdiff_t(image) * layer.filters + filter) * layer.out_plane() + at.left;
            for (int row = y; row < end; row++) {
                __builtin_prefetch(from + row * layer.out_width);
                __builtin_prefetch(from + row * layer.out_width + at.width - 1);
            }
        }
    }
}

// Adds the looked up sums of a rectangle to those of kChannels channels, `step` elements apart. `selections` are those
// of the first position, and steps lead to the next column and row.
void add_looked_up(const Rectangle& at, const float* tables, const uint8_t* selections, ptrdiff_t column_step,
                   ptrdiff_t row_step, float* sums, ptrdiff_t step) {
    Floats sum[kChannels][2];
#pragma GCC unroll 4
    for (int i = 0; i < kChannels; i++) {
        sum[i][0] = sum[i][1] = broadcast(0);
    }
    for (int row = 0; row < at.height; row++) {
        const uint8_t* from = selections + row * row_step;
#pragma GCC unroll 2
        for (int column = 0; column < at.width; column++) {
            uint32_t selection;
            std::memcpy(&selection, from, sizeof selection);
#pragma GCC unroll 4
            for (int i = 0; i < kChannels; i++) {
                const float* entry = tables + size_t(selection >> 8 * i & 255) * 2;
                sum[i][0] = sum[i][0] + load(entry);
                sum[i][1] = sum[i][1] + load(entry + kLanes);
            }
            from += column_step;
            tables += 2 * kTable;
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < kChannels; i++) {
        store(sums + i * step, load(sums + i * step) + sum[i][0]);
        store(sums + i * step + kLanes, load(sums + i * step + kLanes) + sum[i][1]);
    }
}

// The gradients of the weights of kFilters filters and some channels: from `channel` to `end`.
void gradient_of_weights(const BinaryTraining& layer, const BackwardMemory& memory, int thread, int filter_block,
                         int channel, int end, const float* outer, float* gradient) {
    const WeightBlocks& blocks = memory.blocks;
    const int taps = layer.taps(), first = filter_block * kFilters;
    float* numbers = memory.numbers + memory.number_size * thread;
    float* tables = memory.tables + memory.table_size * thread;
    float* sums = memory.weight_sums + ptrdiff_t(filter_block) * memory.padded_channels * taps * kFilters;
    const ptrdiff_t column = blocks.channels, row = memory.map.columns * column;
    std::vector<ptrdiff_t> steps;  // from the first tap of a window to the others
    for (int tap = 0; tap < taps; tap++) {
        steps.push_back(tap / layer.kernel_w * layer.dilation_h * row +
                        tap % layer.kernel_w * layer.dilation_w * column);
    }
    std::memset(sums + ptrdiff_t(channel) * taps * kFilters, 0,
                sizeof(float) * round_up(end - channel, kChannels) * taps * kFilters);
    for (int block = 0; block < blocks.strips.blocks(); block++) {
        for (int top = 0; top < blocks.strips.height(); top += blocks.height) {
            for (int left = 0; left < layer.out_width; left += blocks.width) {
                const Rectangle at = {block, top, left, std::min(blocks.height, blocks.strips.height() - top),
                                      std::min(blocks.width, layer.out_width - left)};
                gather_numbers(layer, blocks.strips, at, first, outer, numbers);
                for (int i = 0; i < at.height * at.width; i++) {
                    for (int half = 0; half < kFilters; half += kLanes) {
                        make_table(numbers + i * kGroup * kFilters + half, tables + i * 2 * kTable + half);
                    }
                }
                fetch_numbers(layer, blocks.strips, at, first, outer);
                const uint8_t* window = memory.selections +
                                        (ptrdiff_t(block) * blocks.rows + top * layer.stride_h) * row +
                                        left * layer.stride_w * column;
                for (int c = channel; c < end; c += kChannels) {
                    for (int tap = 0; tap < taps; tap++) {
                        add_looked_up(at, tables, window + steps[tap] + c, layer.stride_w * column,
                                      layer.stride_h * row, sums + (ptrdiff_t(c) * taps + tap) * kFilters,
                                      taps * kFilters);
                    }
                }
            }
        }
    }
    for (int i = channel * taps; i < end * taps; i += kLanes) {
        const int count = std::min(kLanes, end * taps - i);
        for (int half = 0; half < std::min(kFilters, layer.filters - first); half += kLanes) {
            Floats values[kLanes];
            for (int j = 0; j < kLanes; j++) {
                values[j] = j < count ? load(sums + ptrdiff_t(i + j) * kFilters + half) : broadcast(0);
            }
            transpose(values);
            for (int j = 0; j < std::min(kLanes, layer.filters - first - half); j++) {
                const int filter = first + half + j;
                // the count is (h + n) / 2 with h = 2 sum(u s) - sum(s)
                const Floats of_count = broadcast(layer.counts ? 0.5f * memory.filter_sums[filter] : 0);
                store_lanes(first_lanes(count), gradient + ptrdiff_t(filter) * layer.channels * taps + i,
                            values[j] - of_count);
            }
        }
    }
}

// Called by all threads.
void gradient_of_weight(const BinaryTraining& layer, const BackwardMemory& memory, int thread, const float* outer,
                        float* gradient) {
    place_all_bits(layer, memory);
    const int blocks = ceil_div(layer.filters, kFilters), parts = ceil_div(layer.channels, kChannelBlock);
    const int channels = int(round_up(ceil_div(layer.channels, parts), kChannels));
#pragma omp for schedule(dynamic)
    for (int item = 0; item < blocks * parts; item++) {
        const int channel = item / blocks * channels, end = std::min(channel + channels, layer.channels);
        if (channel < end) {
            gradient_of_weights(layer, memory, thread, item % blocks, channel, end, outer, gradient);
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
#pragma omp for schedule(static)
        for (int filter = 0; filter < layer.filters; filter++) {
            memory.filter_sums[filter] = sum_of_filter(layer, outer, filter);
            if (bias_gradient) {
                bias_gradient[filter] = memory.filter_sums[filter];
            }
        }
        gradient_of_x(layer, memory, thread, outer, x, weight, x_gradient);
        gradient_of_weight(layer, memory, thread, outer, weight_gradient);
    }
}

}  // namespace

const BinaryTrainingKernels& binary_training_avx2() {
    static const BinaryTrainingKernels kernels = {forward_bytes, backward_bytes, forward, backward};
    return kernels;
}

}  // namespace bmx
