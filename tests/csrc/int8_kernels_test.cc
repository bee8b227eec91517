// Tests of the kernels of 8-bit layers of an instruction set: equality with plain loops on random shapes, and gaps that
// stay as they are.
//
//     int8_kernels_test INSTRUCTION_SET SHAPES
//
// To add a case: a function `check_KERNEL(const Int8Kernels&)` that makes one random call, and a line in `main`.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "float_checks.h"
#include "kernel_tables.h"
#include "program/operation_table.h"
#include "steps/level_codes.h"

namespace {

using namespace bmx;

const char* name;  // of the table

// Memory that begins at a multiple of 64 bytes, as the weights of a step do.
template <class T>
struct Aligned {
    explicit Aligned(size_t size) : memory(size * sizeof(T) + 128) {
        data = reinterpret_cast<T*>((reinterpret_cast<size_t>(memory.data()) + 63) / 64 * 64);
    }
    std::vector<uint8_t> memory;
    T* data;
};

// Constants of a rescaling, with 32 bits or without. What a kernel uses of them, it must not mix up: they do
// not give the same numbers here.
struct RandomRescaling {
    RandomRescaling(int channels, bool to_bytes, int largest)
        : numbers(6, std::vector<int32_t>(channels + kInt8Lanes)), rescaling() {
        const bool narrow = pick(0, 3) > 0;
        const int top = to_bytes ? kMaxByte : kMaxInt16, bottom = to_bytes ? 0 : -kMaxInt16;
        rescaling.min = pick({bottom, 0, pick(bottom, top)});
        rescaling.max = pick({top, top, pick(rescaling.min, top)});
        rescaling.shift = narrow ? pick(16, to_bytes ? 22 : 16) : pick(8, 38);
        for (int c = 0; c < channels; ++c) {
            if (narrow) {
                const int64_t one = int64_t(1) << rescaling.shift;
                const int low = pick(-largest, largest), high = pick(low, largest);
                // Factor and summand so that the numbers low to high become bottom to top.
                int64_t factor = high > low ? (top - bottom) * one / (int64_t(high) - low) : 0;
                factor = std::min<int64_t>(factor, INT32_MAX) * pick({1, 1, -1});
                const int64_t least = std::min(low * factor, high * factor);
                numbers[0][c] = low;
                numbers[1][c] = high;
                numbers[2][c] = static_cast<int32_t>(factor);
                const int64_t summand = bottom * one + pick(0, static_cast<int>(one) - 1) - least;
                numbers[3][c] = static_cast<int32_t>(summand);  // modulo 2^32, as products are
                if (std::max(low * factor, high * factor) + summand >= (top + 1) * one) {
                    numbers[0][c] = numbers[1][c] = numbers[2][c] = 0;
                    numbers[3][c] = static_cast<int32_t>(pick(bottom, top) * one);
                }
            }
            const int bits = pick(1, 31);
            numbers[4][c] = static_cast<int32_t>(generator()) >> (32 - bits);
            numbers[5][c] = static_cast<int32_t>(generator()) >> pick(0, 16);
        }
        rescaling.multiplier = numbers[4].data();
        rescaling.offset = numbers[5].data();
        if (narrow) {
            rescaling.low = numbers[0].data();
            rescaling.high = numbers[1].data();
            rescaling.factor = numbers[2].data();
            rescaling.summand = numbers[3].data();
        }
    }
    int operator()(int64_t n, int c) const {
        const Rescaling& r = rescaling;
        if (r.low) {
            n = std::min<int64_t>(std::max<int64_t>(n, r.low[c]), r.high[c]);
            const int64_t exact = n * r.factor[c] + r.summand[c];
            return static_cast<int32_t>(static_cast<uint32_t>(exact)) >> r.shift;
        }
        const __int128 one = static_cast<__int128>(1) << r.shift;
        const __int128 exact =
            static_cast<__int128>(n) * r.multiplier[c] + r.offset[c] * (one >> kOffsetShift) + one / 2;
        const __int128 y = exact >> r.shift;
        return static_cast<int>(y < r.min ? r.min : y > r.max ? r.max : static_cast<int>(y));
    }
    std::vector<std::vector<int32_t>> numbers;
    Rescaling rescaling;
};

// Elements of one of the types, all of them with a number that tests recognize.
struct Output {
    Output(Int8Result type, size_t size) : type(type), bytes(size, 77), integers(size, 7777), floats(size, 7777) {}
    Output(bool to_bytes, size_t size) : Output(to_bytes ? Int8Result::bytes : Int8Result::shorts, size) {}
    void* data() {
        return type == Int8Result::bytes    ? static_cast<void*>(bytes.data())
               : type == Int8Result::shorts ? static_cast<void*>(integers.data())
                                            : floats.data();
    }
    void set(size_t i, int y) {
        bytes[i] = static_cast<uint8_t>(y);
        integers[i] = static_cast<int16_t>(y);
        floats[i] = static_cast<float>(y);
    }
    void expect_same(const Output& expected, const char* what) const {
        if (type == Int8Result::bytes    ? bytes != expected.bytes
            : type == Int8Result::shorts ? integers != expected.integers
                                         : floats != expected.floats) {
            fail(name, what);
        }
    }
    Int8Result type;
    std::vector<uint8_t> bytes;
    std::vector<int16_t> integers;
    std::vector<float> floats;
};

// Floats, some of them far beyond the numbers of bytes or none.
Reals reals_of(size_t size) {
    Reals x = random_reals(size);
    for (float& number : x) {
        number *= std::ldexp(1.0f, pick({0, 8, 8, 8, 16, 40}));
        number = pick(0, 50) ? number : pick(0, 2) ? std::round(number) + 0.5f : NAN;
    }
    return x;
}

int64_t rounded(float x, double limit) {
    return std::isnan(x) ? static_cast<int64_t>(limit)
                         : static_cast<int64_t>(std::nearbyint(std::fmin(std::fmax(double(x), -limit), limit)));
}

constexpr double kLargest = 8388608;

void check_rescale(const Int8Kernels& kernels) {
    const DataType type = toss() ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 16, 32, 64, 96, pick(1, 150)}), pixels = pick(1, 20);
    const int window_size = pick({1, 1, 4, 9}), stride = pick(1, 3);
    const ptrdiff_t pixel = channels + pick(0, 4);
    std::vector<ptrdiff_t> window(window_size);
    for (ptrdiff_t& offset : window) {
        offset = pick(0, 20) * pixel;
    }
    const size_t size = (pixels * stride + 21) * pixel;
    const Reals reals = reals_of(type == DataType::f32 ? size : 0);
    const std::vector<int16_t> integers = random_integers(type == DataType::i16 ? size : 0);
    const Reals scale = random_reals(channels), shift = random_reals(channels);
    const bool scales = pick(0, 2) == 0;
    const RandomRescaling random(channels, true, type == DataType::i16 ? 32768 : 1 << 23);
    const ptrdiff_t y_pixel = channels + pick(0, 4);
    Output y(Int8Result::bytes, pixels * y_pixel), expected = y;
    const void* x = type == DataType::f32 ? static_cast<const void*>(reals.data()) : integers.data();
    kernels.rescale({type, x, stride * pixel, window.data(), window_size, pixels, channels,
                     scales ? scale.data() : nullptr, scales ? shift.data() : nullptr, random.rescaling, y.bytes.data(),
                     y_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            int best = -40000;
            for (const ptrdiff_t offset : window) {
                const ptrdiff_t at = i * stride * pixel + offset + c;
                float number = type == DataType::f32 ? reals[at] : integers[at];
                number = scales ? std::fma(number, scale[c], shift[c]) : number;
                best = std::max(best, random(rounded(number, kLargest), c));
            }
            expected.set(i * y_pixel + c, best);
        }
    }
    y.expect_same(expected, "rescale");
}

// Constants of a rescaling to 16-bit integers, with 32 bits or without, which do not give the same numbers.
struct RandomShortRescaling {
    explicit RandomShortRescaling(int channels) : exact(channels, false, 32768), numbers(6), rescaling() {
        for (std::vector<int32_t>& each : numbers) {
            each.resize(channels + kInt8Lanes);
        }
        rescaling.exact = exact.rescaling;
        if (toss()) {
            return;
        }
        rescaling.exact.low = nullptr;
        rescaling.exact.shift = pick(8, 31);
        const int64_t most = std::min<int64_t>(int64_t(kMaxInt16) << rescaling.exact.shift, INT32_MAX);
        for (int c = 0; c < channels; ++c) {
            int low = pick(-(1 << pick(0, 24)), 1 << pick(0, 24)), high = pick(low, low + (1 << pick(0, 16)));
            int64_t factor = pick(-1000, 1000), summand = pick(0, static_cast<int>(most) - 1) - factor * low;
            const int64_t last = high * factor + summand;
            if (std::abs(last) > most) {  // no number lies between the limits
                high = low + pick(0, 1);
            }
            const int32_t all[] = {low,
                                   high,
                                   pick(-kMaxInt16, kMaxInt16),
                                   pick(-kMaxInt16, kMaxInt16),
                                   static_cast<int32_t>(factor),
                                   static_cast<int32_t>(summand)};  // modulo 2^32
            for (size_t i = 0; i < numbers.size(); ++i) {
                numbers[i][c] = all[i];
            }
        }
        rescaling.low = numbers[0].data();
        rescaling.high = numbers[1].data();
        rescaling.below = numbers[2].data();
        rescaling.above = numbers[3].data();
        rescaling.factor = numbers[4].data();
        rescaling.summand = numbers[5].data();
    }
    int operator()(int64_t n, int c) const {
        const ShortRescaling& r = rescaling;
        if (!r.low) {
            return exact(n, c);
        }
        const int64_t exact = n * r.factor[c] + r.summand[c];
        return n >= r.high[c]  ? r.above[c]
               : n <= r.low[c] ? r.below[c]
                               : static_cast<int32_t>(static_cast<uint32_t>(exact)) >> r.exact.shift;
    }
    RandomRescaling exact;
    std::vector<std::vector<int32_t>> numbers;
    ShortRescaling rescaling;
};

void check_shorts(const Int8Kernels& kernels) {
    const bool in_place = pick(0, 3) == 0, adds = !in_place && toss(), rescales = pick(0, 3) > 0;
    const DataType type = in_place || toss() ? DataType::i16 : DataType::f32;
    const int channels = pick({1, 8, 16, 32, 64, 80, pick(1, 150)}), pixels = pick(1, 20);
    const ptrdiff_t y_pixel = channels + pick(0, 4), x_pixel = in_place ? y_pixel : channels + pick(0, 4);
    std::vector<int16_t> y = random_integers(pixels * y_pixel);
    const std::vector<int16_t> integers = in_place ? y : random_integers(pixels * x_pixel);
    Reals reals = reals_of(type == DataType::f32 ? pixels * x_pixel : 0);
    if (!rescales || adds) {  // sums that fit
        for (float& number : reals) {
            number = number < 10000 ? std::fmax(number, -10000.0f) : 10000;
        }
    }
    if (adds) {
        for (int16_t& number : y) {
            number = static_cast<int16_t>(number / 4);
        }
    }
    const RandomShortRescaling random(channels);
    std::vector<int16_t> expected = y;
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            const ptrdiff_t from = i * x_pixel + c, to = i * y_pixel + c;
            const int64_t n = type == DataType::f32 ? rounded(reals[from], kLargest) : integers[from];
            const int64_t result = rescales ? random(n, c) : n;
            expected[to] = static_cast<int16_t>(static_cast<uint16_t>(result + (adds ? y[to] : 0)));
        }
    }
    const void* x = in_place                ? y.data()
                    : type == DataType::f32 ? static_cast<const void*>(reals.data())
                                            : integers.data();
    kernels.shorts(
        {type, x, x_pixel, pixels, channels, rescales ? &random.rescaling : nullptr, adds, y.data(), y_pixel});
    if (y != expected) {
        fail(name, "shorts");
    }
}

void check_rescale_planes(const Int8Kernels& kernels) {
    const int channels = pick({1, 3, 4, pick(1, 9)}), pixels = pick({1, 224, pick(1, 70)});
    const ptrdiff_t plane = pixels + pick(0, 4), words = (channels + 3) / 4 * 4, y_pixel = words + pick({0, 0, 4});
    const Reals x = reals_of(channels * plane), scale = random_reals(channels), shift = random_reals(channels);
    const bool scales = toss();
    RandomRescaling random(channels, true, 1 << 23);
    if (pick(0, 2) == 0) {  // integers as they are, or beside a channel that is shifted or scaled
        random.numbers = {std::vector<int32_t>(channels, 3),       std::vector<int32_t>(channels, 250),
                          std::vector<int32_t>(channels, 1 << 16), std::vector<int32_t>(channels, 1 << 15),
                          std::vector<int32_t>(channels),          std::vector<int32_t>(channels)};
        random.rescaling = {random.numbers[4].data(),
                            random.numbers[5].data(),
                            16,
                            3,
                            250,
                            random.numbers[0].data(),
                            random.numbers[1].data(),
                            random.numbers[2].data(),
                            random.numbers[3].data()};
        const int change = pick(0, 2), channel = pick(0, channels - 1);
        if (change == 1) {
            random.numbers[3][channel] += pick({-3, 5}) * (1 << 16);
        } else if (change == 2) {
            random.numbers[2][channel] /= 2;
        }
    }
    Output y(true, pixels * y_pixel), expected = y;
    kernels.rescale_planes({x.data(), plane, pixels, channels, scales ? scale.data() : nullptr,
                            scales ? shift.data() : nullptr, random.rescaling, y.bytes.data(), y_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < words; ++c) {
            int byte = 0;
            if (c < channels) {
                const float number = x[c * plane + i];
                byte = random(rounded(scales ? std::fma(number, scale[c], shift[c]) : number, kLargest), c);
            }
            expected.set(i * y_pixel + c, byte);
        }
    }
    y.expect_same(expected, "rescale_planes");
}

void check_max_row(const Int8Kernels& kernels) {
    const int channels = pick({1, 32, 64, 96, pick(1, 150)}), pixels = pick(1, 20), stride = pick(1, 3);
    const ptrdiff_t pixel = channels + pick(0, 4), y_pixel = channels + pick(0, 4);
    std::vector<ptrdiff_t> window(pick({1, 4, 9}));
    for (ptrdiff_t& offset : window) {
        offset = pick(0, 20) * pixel;
    }
    const std::vector<int16_t> x = random_integers((pixels * stride + 21) * pixel);
    Output y(false, pixels * y_pixel), expected = y;
    kernels.max_row(
        {x.data(), stride * pixel, window.data(), int(window.size()), pixels, channels, y.integers.data(), y_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            int best = -40000;
            for (const ptrdiff_t offset : window) {
                best = std::max<int>(best, x[i * stride * pixel + offset + c]);
            }
            expected.set(i * y_pixel + c, best);
        }
    }
    y.expect_same(expected, "max_row");
}

void check_convolve(const Int8Kernels& kernels) {
    const int taps = pick({1, 2, 9, 9, pick(1, 30)}), pixels = pick({1, 2, 7, 28, 56, pick(1, 60)});
    const Int8Result type = static_cast<Int8Result>(pick(0, 2));
    const bool to_bytes = type == Int8Result::bytes,
               extreme = pick(0, 3) == 0;  // sums beyond 16 bits, also of x - 128 instead of x
    const int most = pick({0, 255});
    const int groups = pick(1, 3);
    struct Group {
        Int8Blocks blocks;
        std::vector<uint8_t> lanes;
        Aligned<int8_t> weights;
        RandomRescaling random;
    };
    std::vector<Group> made;
    int outputs = pick(0, 3), words = 0;
    for (int group = 0; group < groups; ++group) {
        Int8Blocks blocks = {};
        blocks.period = pick({1, 1, 2, 4, 8});
        blocks.count = pick(1, blocks.period == 1 ? kInt8Blocks : 4);
        blocks.first_word = pick(0, 3);
        blocks.words = taps > 2 ? pick({1, 1, 2, pick(1, 12)}) : pick({1, 16, 32, pick(1, 90)});
        blocks.first_output = outputs;
        blocks.outputs = pick({16 * blocks.count, 16 * blocks.count, 16 * blocks.count - pick(0, 15)});
        outputs += blocks.outputs + pick({0, 0, 1});
        words = std::max(words, blocks.first_word + blocks.words * blocks.period);
        Group one = {blocks, std::vector<uint8_t>(16 * blocks.count),
                     Aligned<int8_t>(size_t(taps) * blocks.words * blocks.count * 64),
                     RandomRescaling(16 * blocks.count, to_bytes, 1 << pick(8, 22))};
        std::iota(one.lanes.begin(), one.lanes.end(), 0);
        const bool keeps_blocks = toss();
        for (int i = int(one.lanes.size()); i-- > 1;) {
            std::swap(one.lanes[i], one.lanes[pick(keeps_blocks ? i / 16 * 16 : 0, i)]);
        }
        for (int i = 0; i < taps * blocks.words * blocks.count * 64; ++i) {
            one.weights.data[i] = static_cast<int8_t>(extreme ? pick({-128, 127, 127}) : pick(-128, 127));
        }
        made.push_back(std::move(one));
    }
    std::vector<Int8Blocks> blocks;
    for (Group& one : made) {
        one.blocks.weights = one.weights.data;
        one.blocks.lanes = one.blocks.count <= 4 && toss() ? one.lanes.data() : nullptr;
        one.blocks.rescaling = one.random.rescaling;
        blocks.push_back(one.blocks);
    }
    const ptrdiff_t step = 4 * (words + pick(0, 3)), y_pixel = outputs + pick(0, 4);
    std::vector<ptrdiff_t> offsets(taps);
    for (ptrdiff_t& offset : offsets) {
        offset = pick(0, 40) * 4;
    }
    std::vector<uint8_t> x(pixels * step + 160 + 4 * words);
    for (uint8_t& byte : x) {
        byte = static_cast<uint8_t>(extreme ? pick({most, most, 254}) : pick(0, 255));
    }
    Output y(type, pixels * y_pixel), expected = y;
    kernels.convolve({x.data(), step, offsets.data(), taps, pixels, blocks.data(), groups, type, y.data(), y_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (const Group& one : made) {
            const Int8Blocks& b = one.blocks;
            for (int output = 0; output < b.outputs; ++output) {
                const int lane = b.lanes ? b.lanes[output] : output;
                int64_t sum = 0;
                for (int tap = 0; tap < taps; ++tap) {
                    for (int word = 0; word < b.words; ++word) {
                        const uint8_t* bytes =
                            x.data() + i * step + offsets[tap] + 4 * (b.first_word + word * b.period + lane % b.period);
                        const int8_t* weights = b.weights + ((tap * b.words + word) * b.count * 16 + lane) * 4;
                        for (int byte = 0; byte < 4; ++byte) {
                            sum += bytes[byte] * weights[byte];
                        }
                    }
                }
                expected.set(i * y_pixel + b.first_output + output, one.random(sum, lane));
            }
        }
    }
    y.expect_same(expected, "convolve");
}

// Weights that are codes give the sums of the same weights.
void check_codes(const Int8Kernels& kernels) {
    const int taps = pick({1, 1, 9}), words = 2 * pick(1, 40), pixels = pick({1, 2, 4, 7, pick(1, 30)});
    const Int8Result type = static_cast<Int8Result>(pick(0, 2));
    const RandomRescaling random(16 * kCodedBlocks, type == Int8Result::bytes, 1 << pick(8, 22));
    const int outputs = pick({64, 64, pick(1, 64)}), first_output = pick(0, 3);
    const int y_pixel = first_output + outputs + pick(0, 2);
    const ptrdiff_t step = 4 * (words + pick(0, 3));
    std::vector<int8_t> levels(pick({1, 2, 3, 4, 5, 16})), weights(size_t(taps) * words * kCodedBlocks * 64);
    for (int8_t& level : levels) {
        level = static_cast<int8_t>(pick(-128, 127));
    }
    for (int8_t& weight : weights) {
        weight = levels[pick(0, int(levels.size()) - 1)];
    }
    std::vector<ptrdiff_t> offsets(taps);
    for (ptrdiff_t& offset : offsets) {
        offset = pick(0, 40) * 4;
    }
    std::vector<uint8_t> x(pixels * step + 160 + 4 * words);
    for (uint8_t& byte : x) {
        byte = static_cast<uint8_t>(pick(0, 255));
    }
    if (!kernels.reads_codes) {
        return;
    }
    CodedWeights<int8_t> coded(Levels<int8_t>(weights), 1, weights.size());
    coded.store(0, weights.data());
    Aligned<int8_t> aligned(weights.size());
    std::copy(weights.begin(), weights.end(), aligned.data);
    Int8Blocks blocks = {aligned.data, kCodedBlocks, 0, words, 1, first_output, outputs, nullptr, random.rescaling};
    Output y(type, pixels * y_pixel), expected = y;
    Int8Row row = {x.data(), step, offsets.data(), taps, pixels, &blocks, 1, type, expected.data(), y_pixel};
    require_instruction_set("reference").int8->convolve(row);
    blocks.weights = nullptr;
    blocks.codes = coded.of(0);
    row.y = y.data();
    kernels.convolve(row);
    y.expect_same(expected, "convolve with codes");
}

void check_mean(const Int8Kernels& kernels) {
    const DataType type = toss() ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 16, 64, pick(1, 150)});
    const int rows = pick({1, 2, 7, pick(1, 60)}), columns = pick({1, 2, 7, pick(1, 300) ? 5 : 1200});
    const ptrdiff_t pixel = channels + pick(0, 4), row = columns * pixel + pick(0, 4);
    const Reals reals = reals_of(type == DataType::f32 ? rows * row : 0);
    std::vector<int16_t> integers = random_integers(type == DataType::i16 ? rows * row : 0);
    for (int16_t& number : integers) {  // as in maps
        number = std::min<int16_t>(std::max<int16_t>(number, -kMaxInt16), kMaxInt16);
    }
    const int64_t count = toss() ? int64_t(rows) * columns : pick(1, 1 << pick(1, 30));
    const int fraction_bits = pick({0, 8, pick(0, 8)});
    Output y(Int8Result::floats, channels + pick(0, 4)), expected = y;
    const void* x = type == DataType::f32 ? static_cast<const void*>(reals.data()) : integers.data();
    kernels.mean({type, x, rows, columns, row, pixel, channels, count, fraction_bits, y.floats.data()});
    for (int c = 0; c < channels; ++c) {
        int64_t sum = 0;
        for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < columns; ++j) {
                const ptrdiff_t at = i * row + j * pixel + c;
                sum += rounded(type == DataType::f32 ? reals[at] : integers[at], kMaxInt16);
            }
        }
        const __int128 numerator = static_cast<__int128>(sum) * (2 << fraction_bits) + count, divisor = 2 * count;
        expected.floats[c] = static_cast<float>(static_cast<int64_t>(numerator / divisor - (numerator % divisor < 0)));
    }
    y.expect_same(expected, "mean");
}

void check_count_thresholds(const Int8Kernels& kernels) {
    const DataType type = toss() ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 16, 64, pick(1, 150)}), pixels = pick(1, 20), count = pick({1, 7, 15, 255});
    const int window_size = pick({1, 1, 4, 9}), stride = pick(1, 3);
    const ptrdiff_t pixel = channels + pick(0, 4), y_pixel = channels + pick(0, 4), more = pick(0, 3);
    std::vector<ptrdiff_t> window(window_size);
    for (ptrdiff_t& offset : window) {
        offset = pick(0, 20) * pixel;
    }
    const size_t size = (pixels * stride + 21) * pixel;
    const Reals reals = reals_of(type == DataType::f32 ? size : 0);
    const std::vector<int16_t> integers = random_integers(type == DataType::i16 ? size : 0);
    Reals thresholds = reals_of(count * (channels + more));
    for (float& threshold : thresholds) {  // some of them numbers that occur
        const size_t at = pick(0, static_cast<int>(size) - 1);
        threshold = toss() ? threshold : type == DataType::f32 ? reals[at] : integers[at];
        threshold = std::isnan(threshold) ? -INFINITY : threshold;
    }
    std::vector<uint8_t> flips(channels);
    for (uint8_t& flip : flips) {
        flip = toss();
    }
    const bool to_bytes = toss();
    Output y(to_bytes, pixels * y_pixel), expected = y;
    const void* x = type == DataType::f32 ? static_cast<const void*>(reals.data()) : integers.data();
    kernels.count_thresholds({type, x, stride * pixel, window.data(), window_size, pixels, channels, thresholds.data(),
                              channels + more, count, flips.data(), to_bytes, y.data(), y_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            int best = 0;
            for (const ptrdiff_t offset : window) {
                const ptrdiff_t at = i * stride * pixel + offset + c;
                const float number = type == DataType::f32 ? reals[at] : integers[at];
                int holds = 0;
                for (int t = 0; t < count; ++t) {
                    holds += (number >= thresholds[t * (channels + more) + c]) != (flips[c] == 1);
                }
                best = std::max(best, holds);
            }
            expected.set(i * y_pixel + c, best);
        }
    }
    y.expect_same(expected, "count_thresholds");
}

}  // namespace

int main(int, char** arguments) {
    const InstructionSet& set = require_instruction_set(arguments[1]);
    name = set.name;
    for (int i = std::atoi(arguments[2]); i-- > 0;) {
        check_shorts(*set.int8);
        check_rescale(*set.int8);
        check_rescale_planes(*set.int8);
        check_max_row(*set.int8);
        check_convolve(*set.int8);
        check_codes(*set.int8);
        check_mean(*set.int8);
        check_count_thresholds(*set.int8);
    }
}
