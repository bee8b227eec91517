// Tests of the float kernels of an instruction set that pool, arrange and transform maps: comparison with
// double-precision loops on random shapes.
//
//     float_map_kernels_test INSTRUCTION_SET SHAPES
//
// To add a case: a function `check_KERNEL(const FloatKernels&)` that makes one random call, and a line in `main`.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "float_checks.h"
#include "kernel_tables.h"

namespace {

using namespace bmx;

void check_pool_row(const FloatKernels& kernels) {
    const DataType type = toss() ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 16, 32, 64, pick(1, 100)}), pixels = pick(1, 20);
    const int window_h = pick(1, 3), window_w = pick(1, 3), stride = pick(1, 3);
    const ptrdiff_t pixel = channels + pick(0, 4), line = pixel * ((pixels - 1) * stride + window_w) + pick(0, 4);
    std::vector<ptrdiff_t> window;
    for (int y = 0; y < window_h; ++y) {
        for (int x = 0; x < window_w; ++x) {
            window.push_back(y * line + x * pixel);
        }
    }
    const PixelInput x((pixels - 1) * stride * pixel + window.back() + channels, type);
    const RandomEpilogue random(channels);
    const ptrdiff_t output_pixel = channels + pick(0, 4);
    Reals output(extent(pixels, output_pixel, channels), kGap);
    const bool pools = window.size() > 1 || toss();
    kernels.pool_row({type, x.at(0), stride * pixel, window.data(), int(window.size()), pools, pixels, channels,
                      random.epilogue, output.data(), output_pixel});
    digest.add(output);
    expect_gaps(kernels.name, "pool_row wrote between pixels", output, output_pixel, channels);
    for (int i = 0; i < pixels; ++i) {
        for (int c = 0; c < channels; ++c) {
            double best = -INFINITY, magnitude = 0;
            for (ptrdiff_t offset : window) {
                const double value = x[i * stride * pixel + offset + c];
                best = std::fmax(best, random.finished(c, value));
                magnitude = std::fmax(magnitude, random.magnitude(c, std::fabs(value)));
            }
            const float found = output[i * output_pixel + c];
            expect_close(kernels.name, "pool_row", found, best, magnitude);
            if (pools && found == 0 && std::signbit(found)) {
                fail(kernels.name, "pool_row: a maximum is -0");
            }
        }
    }
}

void check_sum_pixels(const FloatKernels& kernels) {
    const DataType type = toss() ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 16, 64, pick(1, 150)}), pixels = pick(1, 60);
    const ptrdiff_t stride = channels + pick(0, 4);
    const PixelInput x(extent(pixels, stride, channels), type);
    const RandomEpilogue random(channels);
    const Reals start = random_reals(channels);
    Reals sums = start;
    kernels.sum_pixels(type, x.at(0), stride, pixels, channels, random.epilogue, sums.data());
    digest.add(sums);
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
    kernels.sum_pixels(type, x.at(0), stride, part, channels, random.epilogue, again.data());
    if (part < pixels) {
        kernels.sum_pixels(type, x.at(part * stride), stride, pixels - part, channels, random.epilogue, again.data());
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
void check_pixels_to_planar(const FloatKernels& kernels, DataType type) {
    const int channels = pick({1, 3, 16, 32, pick(1, 70)}), pixels = pick(1, 70);
    const ptrdiff_t pixel_stride = channels + pick(0, 4), channel_stride = pixels + pick(0, 4);
    std::vector<T> x(extent(pixels, pixel_stride, channels));
    for (T& number_of_x : x) {
        number_of_x = static_cast<T>(pick(-32768, 32767));
    }
    Reals y(extent(channels, channel_stride, pixels), kGap), expected = y;
    kernels.pixels_to_planar(type, x.data(), pixel_stride, pixels, channels, y.data(), channel_stride);
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
            expected[i * pixel_stride + c] = best + 0.0f;  // -0 becomes +0
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
        case Elementwise::softplus:
            return std::fmax(x, 0) + std::log1p(std::exp(-std::fabs(x)));
        case Elementwise::round:
            return std::nearbyint(x);
        case Elementwise::divide:
            return x / a;
    }
    std::abort();
}

void check_transform(const FloatKernels& kernels) {
    Grid x{pick(1, 9), pick({1, 3, 8, 16, 17, 40, 100})};  // braces: drawn in this order with every compiler
    for (float& number : x.numbers) {
        number = number == kGap ? kGap : number * std::ldexp(1.0f, pick(-3, 7));
    }
    const Reals factors = random_reals(x.channels), b = random_reals(x.channels);
    Reals divisors = factors;
    std::replace(divisors.begin(), divisors.end(), 0.0f, 1.0f);
    for (const Elementwise kind : {Elementwise::affine, Elementwise::relu, Elementwise::prelu, Elementwise::clip,
                                   Elementwise::abs, Elementwise::sigmoid, Elementwise::elu, Elementwise::gelu,
                                   Elementwise::softplus, Elementwise::round, Elementwise::divide}) {
        Grid y = x;
        const Reals& a = kind == Elementwise::divide ? divisors : factors;
        kernels.transform({kind, y.numbers.data(), y.pixel, y.pixels, y.channels, a.data(), b.data()});
        digest.add(y.numbers);
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
void check_combine(const FloatKernels& kernels, DataType type) {
    Grid x{pick(1, 9), pick({1, 3, 16, 17, 40})};
    const bool shared = toss();
    const int width = shared ? 1 : x.channels;
    const ptrdiff_t y_pixel = pick({0, width, width + 2});
    std::vector<T> y(y_pixel * (x.pixels - 1) + width);
    for (T& element : y) {
        element = T(pick(-300, 300) * pick({0, 1, 1}));  // -0 among floats
    }
    for (const Combination kind : {Combination::copy, Combination::add, Combination::multiply, Combination::maximum}) {
        Grid found = x, expected = x;
        kernels.combine({kind, found.numbers.data(), x.pixel, x.pixels, x.channels, type, y.data(), y_pixel, shared});
        for (int i = 0; i < x.pixels; ++i) {
            for (int c = 0; c < x.channels; ++c) {
                const float operand = float(y[i * y_pixel + (shared ? 0 : c)]);
                float& result = expected.at(i, c);
                result = kind == Combination::copy       ? operand
                         : kind == Combination::add      ? result + operand
                         : kind == Combination::multiply ? result * operand
                                                         : std::fmax(result, operand) + 0.0f;
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
    digest.add(means);
    for (int i = 0; i < pixels; ++i) {
        double sum = 0, magnitude = 0;
        for (int c = 0; c < channels; ++c) {
            sum += x[size_t(i) * channels + c];
            magnitude += std::fabs(x[size_t(i) * channels + c]);
        }
        expect_close(kernels.name, "mean_channels", means[i], sum / channels, magnitude / channels, 4e-6);
    }
}

void check_softmax(const FloatKernels& kernels) {
    const int channels = pick({1, 3, 16, 17, 64, 1100, 3000});
    const Reals x = random_reals(channels);
    Reals found = x;
    kernels.softmax(found.data(), channels);
    digest.add(found);
    double sum = 0;
    for (int c = 0; c < channels; ++c) {
        sum += std::exp(double(x[c]));
    }
    for (int c = 0; c < channels; ++c) {
        const double share = std::exp(double(x[c])) / sum;
        expect_close(kernels.name, "softmax", found[c], share, share, 4e-6);
    }
}

// NaN must propagate through ReLU.
void check_relu_of_nan(const FloatKernels& kernels) {
    const float x[] = {NAN, -1, 1}, scale[] = {1, 1, 1}, shift[] = {0, 0, 0};
    const ptrdiff_t window[] = {0};
    float output[3];
    kernels.pool_row({DataType::f32, x, 3, window, 1, true, 1, 3, {scale, shift, true}, output, 3});
    if (!std::isnan(output[0]) || output[1] != 0 || output[2] != 1) {
        fail(kernels.name, "relu of NaN, -1, 1");
    }
}

}  // namespace

int main(int, char** arguments) {
    for (const FloatKernels* table : float_tables(require_instruction_set(arguments[1]))) {
        const FloatKernels& kernels = *table;
        check_relu_of_nan(kernels);
        for (int i = std::atoi(arguments[2]); i-- > 0;) {
            check_pool_row(kernels);
            check_sum_pixels(kernels);
            check_planar_to_pixels(kernels);
            check_pixels_to_planar<float>(kernels, DataType::f32);
            check_pixels_to_planar<int16_t>(kernels, DataType::i16);
            check_planar_max_pool(kernels);
            check_transform(kernels);
            check_combine<float>(kernels, DataType::f32);
            check_combine<int16_t>(kernels, DataType::i16);
            check_mean_channels(kernels);
            check_softmax(kernels);
        }
        digest.print(kernels.name);
    }
}
