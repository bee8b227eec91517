// How much of the machine's multiply-add rate the float kernels reach, on the shapes of MeliusNet22, ResNet18 and
// MobileNet 1.0 at 224 x 224.
//
// One thread; each number is the best of several runs. Built and run by `python benchmarks/float_kernels.py`.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "../tests/csrc/kernel_tables.h"
#include "peaks/peak.h"

namespace {

using namespace bmx;

double peak;  // multiply-adds a second

// Seconds of a call: the fastest of several batches of calls, because other load only ever slows them.
double seconds(const std::function<void()>& call) {
    using Clock = std::chrono::steady_clock;
    const auto time = [&](int calls) {
        const auto start = Clock::now();
        for (int i = 0; i < calls; ++i) {
            call();
        }
        return std::chrono::duration<double>(Clock::now() - start).count();
    };
    int calls = 1;
    while (time(calls) < 2e-3) {
        calls *= 2;
    }
    std::vector<double> times(15);
    for (double& t : times) {
        t = time(calls) / calls;
    }
    return *std::min_element(times.begin(), times.end());
}

void report(const char* name, double macs, double bytes, double time) {
    std::printf("%-40s %9.2f us", name, time * 1e6);
    if (macs) {
        std::printf("  %6.1f e9 MAC/s  %5.1f %% of the peak", macs / time * 1e-9, 100 * macs / time / peak);
    }
    if (bytes) {
        std::printf("  %6.1f e9 bytes/s", bytes / time * 1e-9);
    }
    std::printf("\n");
}

struct Free {
    void operator()(void* data) const { std::free(data); }
};
template <class T>
using Buffer = std::unique_ptr<T[], Free>;  // aligned to 64 bytes, with what kernels may read after its end

template <class T = float>
Buffer<T> buffer(size_t count) {
    const size_t bytes = (count * sizeof(T) + kFloatReadAhead + 63) / 64 * 64;
    Buffer<T> result(static_cast<T*>(std::aligned_alloc(64, bytes)));
    std::memset(result.get(), 0, bytes);
    return result;
}

Buffer<float> numbers(size_t count) {
    Buffer<float> result = buffer(count);
    for (size_t i = 0; i < count; ++i) {
        result[i] = float(int(i * 7 % 31) - 15) / 16;
    }
    return result;
}

// A whole map, row by row; columns begin at multiples of 64 bytes.
void planar(const FloatKernels& kernels, const char* name, PlanarConv conv, int size) {
    const int columns = size / conv.stride_w, pad = conv.kernel_h / 2;
    const ptrdiff_t width = size + 32, input_channel = width * conv.kernel_h, output_channel = columns + 32;
    const auto input = numbers(input_channel * conv.in_channels), scale = numbers(conv.out_channels);
    const int taps = conv.in_channels / conv.groups * conv.kernel_h * conv.kernel_w;
    const auto weights = numbers(size_t(conv.out_channels) * taps);
    const auto prepared = buffer<char>(kernels.planar_weights_bytes(conv));
    kernels.planar_prepare(conv, weights.get(), prepared.get());
    std::vector<const float*> rows;
    for (int y = 0; y < conv.kernel_h; ++y) {
        rows.push_back(input.get() + y * width + 16 - pad);
    }
    const bool zero[16] = {};
    const auto output = buffer(output_channel * conv.out_channels);
    const PlanarRow row = {&conv,         prepared.get(), rows.data(),
                           input_channel, zero,           columns,
                           output.get(),  output_channel, {scale.get(), scale.get(), true}};
    const double time = seconds([&] { kernels.planar_row(row); }) * columns;
    report(name, double(columns) * columns * conv.out_channels * taps, 0, time);
}

void gemm(const FloatKernels& kernels, const char* name, int m, int n, int k, bool indexed) {
    const auto a = numbers(size_t(m) * k), weights = numbers(size_t(n) * k), scale = numbers(n);
    const auto prepared = buffer<char>(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.get(), k, prepared.get());
    const auto c = buffer(size_t(m) * n);
    std::vector<int32_t> column(k);
    for (int i = 0; i < k; ++i) {
        column[i] = i * 16 % k + i * 16 / k;
    }
    const Gemm gemm = {m,
                       n,
                       k,
                       a.get(),
                       k,
                       indexed ? column.data() : nullptr,
                       prepared.get(),
                       c.get(),
                       n,
                       {scale.get(), scale.get(), false}};
    report(name, double(m) * n * k, m < 9 ? 4.0 * n * k : 0, seconds([&] { kernels.gemm(gemm); }));
}

// A convolution of a padded map: products of rows of output pixels, whose inputs lie under the taps.
void windows(const FloatKernels& kernels, const char* name, int size, int kernel, int stride, int n, int channels) {
    const int width = (size - 1) * stride + kernel, k = kernel * kernel * channels;
    const auto map = numbers(size_t(width) * width * channels), weights = numbers(size_t(n) * k), scale = numbers(n);
    const auto prepared = buffer<char>(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.get(), k, prepared.get());
    const auto c = buffer(size_t(size) * size * n);
    std::vector<int32_t> column;
    for (int tap = 0; tap < kernel * kernel; ++tap) {
        for (int i = 0; i < channels; ++i) {
            column.push_back((tap / kernel * width + tap % kernel) * channels + i);
        }
    }
    const double time = seconds([&] {
        for (int y = 0; y < size; ++y) {
            kernels.gemm({size,
                          n,
                          k,
                          map.get() + ptrdiff_t(y) * stride * width * channels,
                          ptrdiff_t(stride) * channels,
                          column.data(),
                          prepared.get(),
                          c.get() + ptrdiff_t(y) * size * n,
                          n,
                          {scale.get(), scale.get(), true}});
        }
    });
    report(name, double(size) * size * n * k, 0, time);
}

// A whole map with its padding.
void depthwise(const FloatKernels& kernels, const char* name, int size, int kernel, int stride, int channels) {
    const int width = (size - 1) * stride + kernel;
    const ptrdiff_t line = ptrdiff_t(width) * channels;
    const auto x = numbers(line * width), weights = numbers(size_t(kernel) * kernel * channels),
               scale = numbers(channels);
    const auto output = buffer(size_t(size) * size * channels);
    const double time = seconds([&] {
        for (int y = 0; y < size; ++y) {
            kernels.depthwise_row({DataType::f32,
                                   x.get() + y * stride * line,
                                   ptrdiff_t(stride) * channels,
                                   kernel,
                                   kernel,
                                   line,
                                   channels,
                                   weights.get(),
                                   ptrdiff_t(kernel) * channels,
                                   channels,
                                   size,
                                   channels,
                                   {scale.get(), scale.get(), true},
                                   output.get() + ptrdiff_t(y) * size * channels,
                                   channels});
        }
    });
    report(name, double(size) * size * channels * kernel * kernel, 4.0 * line * width, time);
}

void pool(const FloatKernels& kernels, const char* name, DataType type, int size, int channels) {
    const int half = size / 2;
    const ptrdiff_t pixel = channels, line = pixel * size;
    const size_t bytes = type == DataType::f32 ? 4 : 2;
    const auto x = buffer<char>(bytes * line * size);
    const auto scale = numbers(channels), output = buffer(size_t(half) * channels);
    const ptrdiff_t window[] = {0, pixel, line, line + pixel};
    const double time = seconds([&] {
        for (int y = 0; y < half; ++y) {
            kernels.pool_row({type,
                              x.get() + bytes * 2 * y * line,
                              2 * pixel,
                              window,
                              4,
                              half,
                              channels,
                              {scale.get(), scale.get(), true},
                              output.get(),
                              channels});
        }
    });
    report(name, 0, double(bytes * line * size), time);
}

void max_pool(const FloatKernels& kernels, const char* name, int size, int channels) {
    const ptrdiff_t width = size + 32;
    const auto x = numbers(width * channels * 3), output = buffer(size_t(size) / 2 * channels);
    const float* rows[] = {x.get() + 15, x.get() + width * channels + 15, x.get() + 2 * width * channels + 15};
    const double time =
        seconds([&] { kernels.planar_max_pool(rows, 3, width, 3, 2, size / 2, channels, output.get(), channels); });
    report(name, 0, 0, time * size / 2);
}

void sum(const FloatKernels& kernels, const char* name, int pixels, int channels) {
    const auto scale = numbers(channels), sums = buffer(channels);
    const auto x = buffer<int16_t>(size_t(pixels) * channels);
    const double time = seconds([&] {
        kernels.sum_pixels(DataType::i16, x.get(), channels, pixels, channels, {scale.get(), scale.get(), true},
                           sums.get());
    });
    report(name, 0, 2.0 * pixels * channels, time);
}

}  // namespace

int main(int count, char** arguments) {
    const char* name = count > 1 ? arguments[1] : "reference";
    const InstructionSet& set = require_instruction_set(name);
    const FloatKernels* kernels = set.floats;
    peak = best_rate(measure_peaks(set, 0.2), MacKind::floats);
    std::printf("%s; peak %.1f e9 MAC/s\n", kernels->name, peak * 1e-9);
    planar(*kernels, "stem 3 -> 32, 3x3 / 2, 224", {3, 32, 3, 3, 2, 2, 1, 1, 1}, 224);
    planar(*kernels, "stem 32 -> 32, 3x3, 4 groups, 112", {32, 32, 3, 3, 1, 1, 1, 1, 4}, 112);
    planar(*kernels, "stem 32 -> 64, 3x3, 8 groups, 112", {32, 64, 3, 3, 1, 1, 1, 1, 8}, 112);
    planar(*kernels, "stem 3 -> 64, 7x7 / 2, 224", {3, 64, 7, 7, 2, 2, 1, 1, 1}, 224);
    max_pool(*kernels, "max pool 3x3 / 2 of 64 planes of 112", 112, 64);
    pool(*kernels, "pool 2x2, i16, 320 channels of 56x56", DataType::i16, 56, 320);
    pool(*kernels, "pool 2x2, f32, 320 channels of 56x56", DataType::f32, 56, 320);
    gemm(*kernels, "gemm 784 x 160 x 320", 784, 160, 320, false);
    for (int m : {16, 28, 32, 44, 48, 49, 64}) {
        gemm(*kernels, ("gemm " + std::to_string(m) + " x 160 x 320").c_str(), m, 160, 320, false);
    }
    gemm(*kernels, "gemm 196 x 224 x 480", 196, 224, 480, false);
    gemm(*kernels, "gemm 49 x 256 x 480", 49, 256, 480, false);
    gemm(*kernels, "gemm 784 x 40 x 80, columns", 784, 40, 80, true);
    gemm(*kernels, "gemm 784 x 32 x 64, columns", 784, 32, 64, true);
    for (int m : {1, 2, 4, 8}) {
        gemm(*kernels, "dense m x 1000 x 512", m, 1000, 512, false);
    }
    windows(*kernels, "3x3, 64 -> 64, 56", 56, 3, 1, 64, 64);
    windows(*kernels, "3x3, 128 -> 64, 28", 28, 3, 1, 64, 128);
    windows(*kernels, "3x3, 256 -> 32, 14", 14, 3, 1, 32, 256);
    windows(*kernels, "3x3, 512 -> 32, 7", 7, 3, 1, 32, 512);
    windows(*kernels, "7x7 / 2, 1 -> 64, 112", 112, 7, 2, 64, 1);
    depthwise(*kernels, "depthwise 3x3, 32 channels, 112", 112, 3, 1, 32);
    depthwise(*kernels, "depthwise 3x3 / 2, 64 channels, 56", 56, 3, 2, 64);
    depthwise(*kernels, "depthwise 3x3, 128 channels, 56", 56, 3, 1, 128);
    depthwise(*kernels, "depthwise 3x3, 512 channels, 14", 14, 3, 1, 512);
    depthwise(*kernels, "depthwise 3x3, 1024 channels, 7", 7, 3, 1, 1024);
    depthwise(*kernels, "depthwise 5x5, 256 channels, 14", 14, 5, 1, 256);
    sum(*kernels, "sum of 49 pixels, i16, 512 channels", 49, 512);
}
