// Tests of the float kernels of an instruction set: comparison with double-precision loops on random shapes.
//
//     float_kernels_test INSTRUCTION_SET SHAPES
//
// To add a case: a function `check_KERNEL(const FloatKernels&)` that makes one random call, and a line in `main`.
// Every buffer has exactly the size that the kernels' contract requires, so that AddressSanitizer detects access
// outside; gaps between rows hold a number that must not change. Prints a digest of all results, which must be the same
// for all instruction sets.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernel_tables.h"
#include "kernels/multiply_add.h"

namespace {

using namespace bmx;

constexpr float kGap = 12345.5f;
constexpr double kTolerance = 1e-5;        // relative to the sum of magnitudes
constexpr double kGemmTolerance = 4e-7;    // likewise
constexpr double kBf16Tolerance = 0x1p-7;  // of products of two factors that are rounded to 8 bits

std::mt19937 generator(1);

// The distributions of <random> give other numbers in each standard library, and digests are compared between machines.
int pick(int least, int most) { return least + static_cast<int>(generator() % (most - least + 1u)); }
int pick(std::initializer_list<int> choices) { return choices.begin()[pick(0, int(choices.size()) - 1)]; }
bool toss() { return pick(0, 1); }

using Reals = std::vector<float>;

Reals random_reals(size_t count) {
    Reals result(count);
    for (float& x : result) {
        int64_t sum = 0;  // of 4 numbers of 31 bits, which is nearly normally distributed
        for (int i = 0; i < 4; i++) {
            sum += static_cast<int64_t>(generator() >> 1) - (1 << 30);
        }
        x = static_cast<float>(sum) / (1 << 30);
    }
    return result;
}

std::vector<int16_t> random_integers(size_t count) {
    const int range = pick({3, 300, 32767});
    std::vector<int16_t> result(count);
    for (int16_t& x : result) {
        x = int16_t(pick(-range - (range == 32767), range));
    }
    return result;
}

// Random numbers, followed by NaN where planar kernels may read.
Reals planar_reals(size_t count) {
    Reals result = random_reals(count);
    result.insert(result.end(), kFloatReadAhead / sizeof(float), std::numeric_limits<float>::quiet_NaN());
    return result;
}

uint64_t digest = 14695981039346656037u;  // FNV-1a

void add_to_digest(const Reals& results) {
    for (const float x : results) {
        uint32_t bits;
        std::memcpy(&bits, &x, sizeof bits);
        digest = (digest ^ bits) * 1099511628211u;
    }
}

[[noreturn]] void fail(const char* table, const char* what) {
    std::printf("%s: %s\n", table, what);
    std::exit(1);
}

struct Prepared {  // a buffer aligned to 64 bytes that ends at the end of its allocation
    explicit Prepared(size_t bytes) {
        if (posix_memalign(&data, 64, bytes)) {
            std::abort();
        }
    }
    ~Prepared() { std::free(data); }
    Prepared(const Prepared&) = delete;
    void* data;
};

struct RandomEpilogue {
    explicit RandomEpilogue(int channels) : scale(random_reals(channels)), shift(random_reals(channels)) {
        if (toss()) {
            scale[pick(0, channels - 1)] = 0;
        }
        const bool normalize = toss();
        epilogue = {normalize ? scale.data() : nullptr, normalize ? shift.data() : nullptr, toss()};
    }
    double normalized(int c, double x) const { return epilogue.scale ? x * scale[c] + shift[c] : x; }
    double finished(int c, double x) const {
        const double y = normalized(c, x);
        return epilogue.relu && y < 0 ? 0 : y;
    }
    double magnitude(int c, double sum) const {
        return epilogue.scale ? sum * std::fabs(scale[c]) + std::fabs(shift[c]) : sum;
    }
    Reals scale, shift;
    Epilogue epilogue;
};

void expect_close(const char* table, const char* what, float got, double wanted, double magnitude,
                  double tolerance = kTolerance) {
    if (!(std::fabs(got - wanted) <= tolerance * magnitude + 1e-30)) {
        std::printf("%s: %s: %.9g instead of %.9g\n", table, what, got, wanted);
        std::exit(1);
    }
}

// Returns the tolerance for sums of products.
double tolerance_of(const FloatKernels& kernels, double of_float32) {
    return kernels.name == std::string("bf16") ? kBf16Tolerance : of_float32;
}

void expect_equal(const char* table, const char* what, const Reals& got, const Reals& wanted) {
    if (got.size() != wanted.size() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float))) {
        fail(table, what);
    }
}

// Requires that the gaps between rows of `count` elements, `stride` apart, still hold kGap.
void expect_gaps(const char* table, const char* what, const Reals& buffer, ptrdiff_t stride, int count) {
    for (size_t i = 0; i < buffer.size(); ++i) {
        if (ptrdiff_t(i) % stride >= count && buffer[i] != kGap) {
            fail(table, what);
        }
    }
}

// Returns the number of elements of `rows` rows, without a gap after the last one.
size_t extent(int rows, ptrdiff_t stride, int count) { return (rows - 1) * stride + count; }

void check_planar_row(const FloatKernels& kernels) {
    PlanarConv conv;
    conv.groups = pick({1, 1, 2, 4, 8});
    const int group_inputs = pick({1, 2, 3, 4, 5, 8, 30}), group_outputs = pick({1, 2, 3, 4, 5, 7, 8, 9, 16, 19});
    conv.in_channels = conv.groups * group_inputs;
    conv.out_channels = conv.groups * group_outputs;
    conv.kernel_h = pick({1, 2, 3, 3, 5, 7});
    conv.kernel_w = pick({1, 2, 3, 3, 5, 7});
    conv.stride_h = pick({1, 2, 3});
    conv.stride_w = pick({1, 1, 2, 2, 3, 5});
    conv.dilation_h = pick({1, 1, 2});
    conv.dilation_w = pick({1, 1, 1, 2, 4});
    const int columns = pick({pick(1, 9), pick(1, 70), 112, pick(100, 260)});
    const int width = (columns - 1) * conv.stride_w + (conv.kernel_w - 1) * conv.dilation_w + 1;

    // One buffer for each tap row, with channels `input_channel` apart.
    const ptrdiff_t input_channel = width + pick(0, 5);
    std::vector<Reals> buffers;
    std::vector<const float*> rows;
    std::unique_ptr<bool[]> zero(new bool[conv.kernel_h]);
    const int left_out = toss() ? pick(0, conv.kernel_h) : 0;  // at the beginning, at the end, or anywhere
    const int where = pick(0, 2);
    for (int y = 0; y < conv.kernel_h; ++y) {
        zero[y] = where == 0 ? y < left_out : where == 1 ? y >= conv.kernel_h - left_out : pick(0, 3) < left_out;
        buffers.push_back(planar_reals(extent(conv.in_channels, input_channel, width)));
        rows.push_back(zero[y] ? nullptr : buffers[y].data());
    }
    const int taps = group_inputs * conv.kernel_h * conv.kernel_w;
    const Reals weights = random_reals(size_t(conv.out_channels) * taps);
    Prepared prepared(kernels.planar_weights_bytes(conv));
    kernels.planar_prepare(conv, weights.data(), prepared.data);

    const RandomEpilogue random(conv.out_channels);
    const ptrdiff_t output_channel = columns + pick(0, 5);
    Reals output(extent(conv.out_channels, output_channel, columns), kGap);
    PlanarRow row = {&conv,   prepared.data, rows.data(),    input_channel,  zero.get(),
                     columns, output.data(), output_channel, random.epilogue};
    kernels.planar_row(row);
    add_to_digest(output);
    expect_gaps(kernels.name, "planar_row wrote between rows", output, output_channel, columns);

    for (int o = 0; o < conv.out_channels; ++o) {
        for (int x = 0; x < columns; ++x) {
            double sum = 0, magnitude = 0;
            for (int c = 0; c < group_inputs; ++c) {
                for (int y = 0; y < conv.kernel_h; ++y) {
                    if (zero[y]) {
                        continue;
                    }
                    const float* input = rows[y] + (o / group_outputs * group_inputs + c) * input_channel;
                    for (int t = 0; t < conv.kernel_w; ++t) {
                        const double weight = weights[((o * group_inputs + c) * conv.kernel_h + y) * conv.kernel_w + t];
                        const double term = weight * input[x * conv.stride_w + t * conv.dilation_w];
                        sum += term;
                        magnitude += std::fabs(term);
                    }
                }
            }
            expect_close(kernels.name, "planar_row", output[o * output_channel + x], random.finished(o, sum),
                         random.magnitude(o, magnitude), tolerance_of(kernels, kTolerance));
        }
    }

    // A part of the columns gives bitwise equal results.
    const int begin = pick(0, columns - 1), part = pick(1, columns - begin);
    Reals again(extent(conv.out_channels, output_channel, columns), kGap);
    for (const float*& pointer : rows) {
        if (pointer) {
            pointer += begin * conv.stride_w;
        }
    }
    row.columns = part;
    row.output = again.data() + begin;
    kernels.planar_row(row);
    Reals expected(again.size(), kGap);
    for (int o = 0; o < conv.out_channels; ++o) {
        for (int x = begin; x < begin + part; ++x) {
            expected[o * output_channel + x] = output[o * output_channel + x];
        }
    }
    expect_equal(kernels.name, "planar_row gives other bits for a part of a row", again, expected);
}

void check_gemm(const FloatKernels& kernels) {
    const int m = pick({1, 1, 2, 7, 12, 13, 25, pick(1, 60)});
    const int n = pick({1, 8, 16, 17, 31, 32, 40, 48, pick(1, 130), pick(64, 130)});
    const int k = pick({1, 2, 3, 16, 80, pick(1, 200), pick(64, 600)}), width = k + pick(0, 9);
    const ptrdiff_t lda = width + pick(0, 3), ldw = k + pick(0, 3), ldc = n + pick(0, 3);
    const bool indexed = toss();
    std::vector<int32_t> column(k);
    for (int i = 0; i < k; ++i) {
        column[i] = indexed ? pick(0, width - 1) : i;
    }
    const Reals a = random_reals(extent(m, lda, indexed ? width : k)), weights = random_reals(extent(n, ldw, k));
    Prepared prepared(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.data(), ldw, prepared.data);
    const RandomEpilogue random(n);
    Reals c(extent(m, ldc, n), kGap);
    Gemm gemm = {
        m, n, k, a.data(), lda, indexed ? column.data() : nullptr, prepared.data, c.data(), ldc, random.epilogue};
    kernels.gemm(gemm);
    add_to_digest(c);
    expect_gaps(kernels.name, "gemm wrote between rows", c, ldc, n);
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            double sum = 0, magnitude = 0;
            for (int l = 0; l < k; ++l) {
                const double term = double(a[i * lda + column[l]]) * weights[j * ldw + l];
                sum += term;
                magnitude += std::fabs(term);
            }
            expect_close(kernels.name, "gemm", c[i * ldc + j], random.finished(j, sum), random.magnitude(j, magnitude),
                         tolerance_of(kernels, kGemmTolerance));
        }
    }

    const int begin = pick(0, m - 1);
    gemm.m = pick(1, m - begin);
    gemm.a += begin * lda;
    Reals again(c.size(), kGap), expected = again;
    gemm.c = again.data() + begin * ldc;
    kernels.gemm(gemm);
    for (int i = begin; i < begin + gemm.m; ++i) {
        for (int j = 0; j < n; ++j) {
            expected[i * ldc + j] = c[i * ldc + j];
        }
    }
    expect_equal(kernels.name, "gemm gives other bits for a part of the rows", again, expected);
}

struct PixelInput {  // pixels of either element type
    PixelInput(size_t count, Number number)
        : number(number),
          reals(number == Number::f32 ? random_reals(count) : Reals()),
          integers(number == Number::i16 ? random_integers(count) : std::vector<int16_t>()) {}
    const void* at(ptrdiff_t i) const {
        return number == Number::f32 ? static_cast<const void*>(reals.data() + i) : integers.data() + i;
    }
    double operator[](ptrdiff_t i) const { return number == Number::f32 ? double(reals[i]) : integers[i]; }
    Number number;
    Reals reals;
    std::vector<int16_t> integers;
};

// Every table gives the bits of fused multiply-adds in the order of tap rows, then tap columns.
void check_depthwise_row(const FloatKernels& kernels) {
    const Number number = pick(0, 3) ? Number::f32 : Number::i16;
    const int channels = pick({1, 3, 8, 16, 32, 64, pick(1, 100)}), pixels = pick(1, 20);
    const int rows = pick({0, 1, 2, 3, 3, 5}), columns = pick({1, 2, 3, 3, 3, 5}), stride = pick({1, 1, 2, 2, 3});
    const int dilation = pick({1, 1, 1, 2});
    const ptrdiff_t pixel = channels + pick(0, 4);
    const ptrdiff_t line = pixel * ((pixels - 1) * stride + (columns - 1) * dilation + 1) + pick(0, 4);
    const PixelInput x(rows ? rows * line : channels, number);
    const ptrdiff_t weight_column = channels + pick(0, 4), weight_row = columns * weight_column + pick(0, 4);
    const Reals weights = random_reals(rows * weight_row + 1);
    const RandomEpilogue random(channels);
    const ptrdiff_t output_pixel = channels + pick(0, 4);
    Reals output(extent(pixels, output_pixel, channels), kGap), expected = output;
    kernels.depthwise_row({number, x.at(0), stride * pixel, rows, columns, line, dilation * pixel, weights.data(),
                           weight_row, weight_column, pixels, channels, random.epilogue, output.data(), output_pixel});
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            float sum = 0;
            for (int row = 0; row < rows; ++row) {
                for (int column = 0; column < columns; ++column) {
                    const float input = float(x[row * line + (i * stride + column * dilation) * pixel + c]);
                    sum = std::fma(input, weights[row * weight_row + column * weight_column + c], sum);
                }
            }
            const Epilogue& epilogue = random.epilogue;
            const float y = epilogue.scale ? std::fma(sum, epilogue.scale[c], epilogue.shift[c]) : sum;
            expected[i * output_pixel + c] = epilogue.relu && y < 0 ? 0 : y;
        }
    }
    expect_equal(kernels.name, "depthwise_row", output, expected);
}

void check_pool_row(const FloatKernels& kernels) {
    const Number number = toss() ? Number::f32 : Number::i16;
    const int channels = pick({1, 16, 32, 64, pick(1, 100)}), pixels = pick(1, 20);
    const int window_h = pick(1, 3), window_w = pick(1, 3), stride = pick(1, 3);
    const ptrdiff_t pixel = channels + pick(0, 4), line = pixel * ((pixels - 1) * stride + window_w) + pick(0, 4);
    std::vector<ptrdiff_t> window;
    for (int y = 0; y < window_h; ++y) {
        for (int x = 0; x < window_w; ++x) {
            window.push_back(y * line + x * pixel);
        }
    }
    const PixelInput x((pixels - 1) * stride * pixel + window.back() + channels, number);
    const RandomEpilogue random(channels);
    const ptrdiff_t output_pixel = channels + pick(0, 4);
    Reals output(extent(pixels, output_pixel, channels), kGap);
    kernels.pool_row({number, x.at(0), stride * pixel, window.data(), int(window.size()), pixels, channels,
                      random.epilogue, output.data(), output_pixel});
    add_to_digest(output);
    expect_gaps(kernels.name, "pool_row wrote between pixels", output, output_pixel, channels);
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            double best = -INFINITY, magnitude = 0;
            for (ptrdiff_t offset : window) {
                const double value = x[i * stride * pixel + offset + c];
                best = std::fmax(best, random.finished(c, value));
                magnitude = std::fmax(magnitude, random.magnitude(c, std::fabs(value)));
            }
            expect_close(kernels.name, "pool_row", output[i * output_pixel + c], best, magnitude);
        }
    }
}

void check_sum_pixels(const FloatKernels& kernels) {
    const Number number = toss() ? Number::f32 : Number::i16;
    const int channels = pick({1, 16, 64, pick(1, 150)}), pixels = pick(1, 60);
    const ptrdiff_t stride = channels + pick(0, 4);
    const PixelInput x(extent(pixels, stride, channels), number);
    const RandomEpilogue random(channels);
    const Reals start = random_reals(channels);
    Reals sums = start;
    kernels.sum_pixels(number, x.at(0), stride, pixels, channels, random.epilogue, sums.data());
    add_to_digest(sums);
    for (int c = 0; c < channels; ++c) {
        double sum = start[c], magnitude = std::fabs(start[c]);
        for (int i = 0; i < pixels; ++i) {
            sum += random.finished(c, x[i * stride + c]);
            magnitude += random.magnitude(c, std::fabs(x[i * stride + c]));
        }
        expect_close(kernels.name, "sum_pixels", sums[c], sum, magnitude);
    }

    const int part = pick(0, pixels);
    Reals again = start;
    kernels.sum_pixels(number, x.at(0), stride, part, channels, random.epilogue, again.data());
    if (part < pixels) {
        kernels.sum_pixels(number, x.at(part * stride), stride, pixels - part, channels, random.epilogue, again.data());
    }
    expect_equal(kernels.name, "sum_pixels gives other bits in two parts", again, sums);
}

void check_planar_to_pixels(const FloatKernels& kernels) {
    const int channels = pick({1, 3, 16, 32, pick(1, 70)}), columns = pick(1, 70);
    const ptrdiff_t channel_stride = columns + pick(0, 4), pixel_stride = channels + pick(0, 4);
    const Reals x = random_reals(extent(channels, channel_stride, columns));
    Reals y(extent(columns, pixel_stride, channels), kGap), expected = y;
    kernels.planar_to_pixels(x.data(), channel_stride, columns, channels, y.data(), pixel_stride);
    for (int i = 0; i < columns; ++i) {
        for (int c = 0; c < channels; ++c) {
            expected[i * pixel_stride + c] = x[c * channel_stride + i];
        }
    }
    expect_equal(kernels.name, "planar_to_pixels", y, expected);
}

template <class T>
void check_pixels_to_planar(const FloatKernels& kernels, Number number) {
    const int channels = pick({1, 3, 16, 32, pick(1, 70)}), pixels = pick(1, 70);
    const ptrdiff_t pixel_stride = channels + pick(0, 4), channel_stride = pixels + pick(0, 4);
    std::vector<T> x(extent(pixels, pixel_stride, channels));
    for (T& number_of_x : x) {
        number_of_x = static_cast<T>(pick(-32768, 32767));
    }
    Reals y(extent(channels, channel_stride, pixels), kGap), expected = y;
    kernels.pixels_to_planar(number, x.data(), pixel_stride, pixels, channels, y.data(), channel_stride);
    for (int c = 0; c < channels; ++c) {
        for (int i = 0; i < pixels; ++i) {
            expected[c * channel_stride + i] = x[i * pixel_stride + c];
        }
    }
    expect_equal(kernels.name, "pixels_to_planar", y, expected);
}

void check_planar_max_pool(const FloatKernels& kernels) {
    const int channels = pick({1, 16, 64, pick(1, 70)}), columns = pick({1, 56, pick(1, 70)});
    const int window_h = pick(1, 3), window_w = pick({1, 2, 3, 3, 5}), stride = pick({1, 2, 2, 3});
    const int width = (columns - 1) * stride + window_w;
    const ptrdiff_t input_channel = width + pick(0, 5), pixel_stride = channels + pick(0, 4);
    std::vector<Reals> buffers;
    std::vector<const float*> rows;
    for (int y = 0; y < window_h; ++y) {
        buffers.push_back(planar_reals(extent(channels, input_channel, width)));
        for (int c = 0; c < channels; ++c) {
            if (window_w > 1) {
                buffers[y][c * input_channel] = -INFINITY;  // padding
            }
        }
        rows.push_back(buffers[y].data());
    }
    Reals output(extent(columns, pixel_stride, channels), kGap), expected = output;
    kernels.planar_max_pool(rows.data(), window_h, input_channel, window_w, stride, columns, channels, output.data(),
                            pixel_stride);
    for (int i = 0; i < columns; ++i) {
        for (int c = 0; c < channels; ++c) {
            float best = -INFINITY;
            for (const float* row : rows) {
                for (int w = 0; w < window_w; ++w) {
                    best = std::fmax(best, row[c * input_channel + i * stride + w]);
                }
            }
            expected[i * pixel_stride + c] = best;
        }
    }
    expect_equal(kernels.name, "planar_max_pool", output, expected);
}

// Pixels of floats, with gaps between them unless they are contiguous.
struct Grid {
    int pixels, channels;
    ptrdiff_t pixel;
    Reals numbers;

    Grid(int pixels, int channels)
        : pixels(pixels), channels(channels), pixel(channels + pick({0, 0, 3})), numbers(pixel * pixels, kGap) {
        for (int i = 0; i < pixels; ++i) {
            const Reals reals = random_reals(channels);
            std::copy(reals.begin(), reals.end(), numbers.begin() + i * pixel);
        }
        numbers.resize(pixel * (pixels - 1) + channels);
    }
    float& at(int i, int c) { return numbers[i * pixel + c]; }
};

double transformed(Elementwise kind, double x, double a, double b) {
    switch (kind) {
        case Elementwise::affine:
            return x * a + b;
        case Elementwise::relu:
            return std::fmax(x, 0);
        case Elementwise::prelu:
            return x > 0 ? x : x * a;
        case Elementwise::clip:
            return std::fmin(std::fmax(x, a), b);
        case Elementwise::abs:
            return std::fabs(x);
        case Elementwise::sigmoid:
            return 1 / (1 + std::exp(-x));
        case Elementwise::elu:
            return x > 0 ? x : std::expm1(x) * a;
        case Elementwise::gelu:
            return x * std::erfc(-x / std::sqrt(2.0)) / 2;
    }
    std::abort();
}

void check_transform(const FloatKernels& kernels) {
    Grid x{pick(1, 9), pick({1, 3, 8, 16, 17, 40, 100})};  // braces: drawn in this order with every compiler
    for (float& number : x.numbers) {
        number = number == kGap ? kGap : number * std::ldexp(1.0f, pick(-3, 7));
    }
    const Reals a = random_reals(x.channels), b = random_reals(x.channels);
    for (const Elementwise kind : {Elementwise::affine, Elementwise::relu, Elementwise::prelu, Elementwise::clip,
                                   Elementwise::abs, Elementwise::sigmoid, Elementwise::elu, Elementwise::gelu}) {
        Grid y = x;
        kernels.transform({kind, y.numbers.data(), y.pixel, y.pixels, y.channels, a.data(), b.data()});
        add_to_digest(y.numbers);
        for (int i = 0; i < x.pixels; ++i) {
            for (int c = 0; c < x.channels; ++c) {
                const double expected = transformed(kind, x.at(i, c), a[c], b[c]);
                const double magnitude = kind == Elementwise::affine ? std::fabs(x.at(i, c) * a[c]) + std::fabs(b[c])
                                         : kind == Elementwise::elu  ? std::fabs(a[c]) + std::fabs(expected)
                                         : kind == Elementwise::gelu ? std::fabs(x.at(i, c))
                                                                     : std::fabs(expected);
                expect_close(kernels.name, "transform", y.at(i, c), expected, magnitude + 1e-30, 4e-7);
                y.at(i, c) = x.at(i, c);
            }
        }
        expect_equal(kernels.name, "transform, gaps", y.numbers, x.numbers);
    }
}

template <class T>
void check_combine(const FloatKernels& kernels, Number number) {
    Grid x{pick(1, 9), pick({1, 3, 16, 17, 40})};
    const bool shared = toss();
    const int width = shared ? 1 : x.channels;
    const ptrdiff_t y_pixel = pick({0, width, width + 2});
    std::vector<T> y(y_pixel * (x.pixels - 1) + width);
    for (T& element : y) {
        element = T(pick(-300, 300));
    }
    for (const Combination kind : {Combination::copy, Combination::add, Combination::multiply}) {
        Grid found = x, expected = x;
        kernels.combine({kind, found.numbers.data(), x.pixel, x.pixels, x.channels, number, y.data(), y_pixel, shared});
        for (int i = 0; i < x.pixels; ++i) {
            for (int c = 0; c < x.channels; ++c) {
                const float operand = float(y[i * y_pixel + (shared ? 0 : c)]);
                float& result = expected.at(i, c);
                result = kind == Combination::copy  ? operand
                         : kind == Combination::add ? result + operand
                                                    : result * operand;
            }
        }
        expect_equal(kernels.name, "combine", found.numbers, expected.numbers);
    }
}

void check_mean_channels(const FloatKernels& kernels) {
    const int pixels = pick(1, 5), channels = pick({1, 3, 16, 17, 64, 1100, 3000});
    const Reals x = random_reals(size_t(pixels) * channels);
    Reals means(pixels);
    kernels.mean_channels(x.data(), pixels, channels, means.data());
    add_to_digest(means);
    for (int i = 0; i < pixels; ++i) {
        double sum = 0, magnitude = 0;
        for (int c = 0; c < channels; ++c) {
            sum += x[size_t(i) * channels + c];
            magnitude += std::fabs(x[size_t(i) * channels + c]);
        }
        expect_close(kernels.name, "mean_channels", means[i], sum / channels, magnitude / channels, 4e-6);
    }
}

// The emulation on processors without the operation, on which the reference kernels are compiled, against the C
// library.
void check_multiply_add() {
    const auto number = [](int range) {
        return std::ldexp(std::uniform_real_distribution<float>(-1, 1)(generator), pick(-range, range));
    };
    const auto rough = [] { return std::ldexp(float(pick(-15, 15)), pick(-12, 12)); };  // products and sums with ties
    for (int i = 0; i < 1000; ++i) {
        const int range = pick({0, 10, 70});
        const bool ties = toss();
        const float a = ties ? rough() : number(range), b = ties ? rough() + std::ldexp(1.0f, -20) : number(range);
        const float c = ties ? rough() : number(2 * range);
        const float found = multiply_add(a, b, c), expected = std::fma(a, b, c);
        if (std::memcmp(&found, &expected, sizeof found)) {
            std::printf("multiply_add(%a, %a, %a) is %a instead of %a\n", a, b, c, found, expected);
            std::exit(1);
        }
    }
}

// NaN must propagate through ReLU and through weights of 0.
void check_nan(const FloatKernels& kernels) {
    const float x[] = {NAN, -1, 1}, scale[] = {1, 1, 1}, shift[] = {0, 0, 0};
    const ptrdiff_t window[] = {0};
    float output[3];
    kernels.pool_row({Number::f32, x, 3, window, 1, 1, 3, {scale, shift, true}, output, 3});
    if (!std::isnan(output[0]) || output[1] != 0 || output[2] != 1) {
        fail(kernels.name, "relu of NaN, -1, 1");
    }

    const int n = 64, k = 64;
    const Reals weights(n * k);
    Prepared prepared(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.data(), k, prepared.data);
    for (const uint32_t bits : {0x7fc00000u, 0x7fffffffu, 0xffffffffu, 0x7f800001u, 0xff800001u}) {
        Reals a(2 * k), c(2 * n, kGap);
        std::memcpy(&a[5], &bits, sizeof(bits));
        kernels.gemm({2, n, k, a.data(), k, nullptr, prepared.data, c.data(), n, {nullptr, nullptr, true}});
        for (int j = 0; j < n; ++j) {
            if (!std::isnan(c[j]) || c[n + j] != 0) {
                fail(kernels.name, "gemm with one NaN");
            }
        }
    }
}

// Large and small numbers, up to the range of the parts into which gemm on tiles splits them.
void check_gemm_of_any_size(const FloatKernels& kernels) {
    const int n = 70, k = 100;
    Reals a = random_reals(k), weights = random_reals(n * k), c(n);
    for (float& x : a) {
        x = std::ldexp(x, pick(-90, 20));
    }
    for (float& x : weights) {
        x = std::ldexp(x, pick(-20, 100));
    }
    Prepared prepared(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.data(), k, prepared.data);
    kernels.gemm({1, n, k, a.data(), k, nullptr, prepared.data, c.data(), n, {nullptr, nullptr, false}});
    for (int j = 0; j < n; ++j) {
        double sum = 0, magnitude = 0;
        for (int l = 0; l < k; ++l) {
            sum += double(a[l]) * weights[j * k + l];
            magnitude += std::fabs(double(a[l]) * weights[j * k + l]);
        }
        expect_close(kernels.name, "gemm of large and small numbers", c[j], sum, magnitude,
                     tolerance_of(kernels, kGemmTolerance));
    }
}

}  // namespace

int main(int, char** arguments) {
    check_multiply_add();
    for (const FloatKernels* table : float_tables(require_instruction_set(arguments[1]))) {
        const FloatKernels& kernels = *table;
        check_nan(kernels);
        for (int i = 0; i < 20; ++i) {
            check_gemm_of_any_size(kernels);
        }
        for (int i = std::atoi(arguments[2]); i-- > 0;) {
            check_planar_row(kernels);
            check_gemm(kernels);
            check_depthwise_row(kernels);
            check_pool_row(kernels);
            check_sum_pixels(kernels);
            check_planar_to_pixels(kernels);
            check_pixels_to_planar<float>(kernels, Number::f32);
            check_pixels_to_planar<int16_t>(kernels, Number::i16);
            check_planar_max_pool(kernels);
            check_transform(kernels);
            check_combine<float>(kernels, Number::f32);
            check_combine<int16_t>(kernels, Number::i16);
            check_mean_channels(kernels);
        }
        std::printf("%s: digest %016llx\n", kernels.name, static_cast<unsigned long long>(digest));
    }
}
