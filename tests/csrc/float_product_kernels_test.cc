// Tests of the float kernels of an instruction set that sum products: comparison with double-precision loops on random
// shapes.
//
//     float_product_kernels_test INSTRUCTION_SET SHAPES
//
// To add a case: a function `check_KERNEL(const FloatKernels&)` that makes one random call, and a line in `main`.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "float_checks.h"
#include "kernel_tables.h"
#include "kernels/common/multiply_add.h"
#include "steps/level_codes.h"

namespace {

using namespace bmx;

constexpr double kGemmTolerance = 4e-7;    // relative to the sum of magnitudes
constexpr double kBf16Tolerance = 0x1p-7;  // of products of two factors that are rounded to 8 bits

// Returns the tolerance for sums of products.
double tolerance_of(const FloatKernels& kernels, double of_float32) {
    return kernels.name == std::string("bf16") ? kBf16Tolerance : of_float32;
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
    digest.add(output);
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
    digest.add(c);
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

// Weights that are looked up by codes give the bits of the same weights.
void check_gemm_of_codes(const FloatKernels& kernels) {
    const int m = pick({1, 2, 13, pick(1, 30)}), n = pick({1, 16, 17, 64, pick(1, 130)});
    const int k = pick({1, 3, 512, pick(1, 700)});
    const Reals levels = random_reals(pick({1, 2, 3, 4, 5, 16}));
    Reals weights(size_t(n) * k);
    for (float& weight : weights) {
        weight = levels[pick(0, int(levels.size()) - 1)];
    }
    const bool indexed = toss();
    std::vector<int32_t> column(k);
    for (int i = 0; i < k; ++i) {
        column[i] = indexed ? k - 1 - i : i;
    }
    const Reals a = random_reals(size_t(m) * k);
    const RandomEpilogue random(n);
    if (!kernels.gemm_of_codes) {  // after all random numbers, which are the same for all tables
        return;
    }
    Prepared prepared(kernels.gemm_weights_bytes(n, k));
    kernels.gemm_prepare(n, k, weights.data(), k, prepared.data);
    const size_t block_weights = size_t(kernels.gemm_block) * k;
    const int blocks = ceil_div(n, kernels.gemm_block);
    CodedWeights<float> coded(Levels<float>(weights), blocks, block_weights);
    for (int i = 0; i < blocks; ++i) {
        coded.store(i, static_cast<const float*>(prepared.data) + i * block_weights);
    }
    Reals expected(size_t(m) * n), c(expected.size());
    const int32_t* columns = indexed ? column.data() : nullptr;
    kernels.gemm({m, n, k, a.data(), k, columns, prepared.data, expected.data(), n, random.epilogue});
    kernels.gemm_of_codes({m, n, k, a.data(), k, columns, nullptr, c.data(), n, random.epilogue}, coded.of(0));
    expect_equal(kernels.name, "gemm_of_codes gives other bits than gemm", c, expected);
}

// Every table gives the bits of fused multiply-adds in the order of tap rows, then tap columns.
void check_depthwise_row(const FloatKernels& kernels) {
    const DataType type = pick(0, 3) ? DataType::f32 : DataType::i16;
    const int channels = pick({1, 3, 8, 16, 32, 64, pick(1, 100)}), pixels = pick(1, 20);
    const int rows = pick({0, 1, 2, 3, 3, 5}), columns = pick({1, 2, 3, 3, 3, 5}), stride = pick({1, 1, 2, 2, 3});
    const int dilation = pick({1, 1, 1, 2});
    const ptrdiff_t pixel = channels + pick(0, 4);
    const ptrdiff_t line = pixel * ((pixels - 1) * stride + (columns - 1) * dilation + 1) + pick(0, 4);
    const PixelInput x(rows ? rows * line : channels, type);
    const ptrdiff_t weight_column = channels + pick(0, 4), weight_row = columns * weight_column + pick(0, 4);
    const Reals weights = random_reals(rows * weight_row + 1);
    const RandomEpilogue random(channels);
    const ptrdiff_t output_pixel = channels + pick(0, 4);
    Reals output(extent(pixels, output_pixel, channels), kGap), expected = output;
    kernels.depthwise_row({type, x.at(0), stride * pixel, rows, columns, line, dilation * pixel, weights.data(),
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

// The emulation on processors without the operation, on which the reference kernels are compiled, against the C
// library.
void check_multiply_add() {
    const auto number = [](int range) {
        const int exponent = pick(-range, range);
        return std::ldexp(float(pick(-(1 << 24), 1 << 24)), exponent - 24);
    };
    const auto rough = [] {  // products and sums with ties
        const int exponent = pick(-12, 12);
        return std::ldexp(float(pick(-15, 15)), exponent);
    };
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

// NaN must propagate through weights of 0 and through ReLU.
void check_gemm_of_nan(const FloatKernels& kernels) {
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
        check_gemm_of_nan(kernels);
        for (int i = 0; i < 20; ++i) {
            check_gemm_of_any_size(kernels);
        }
        for (int i = std::atoi(arguments[2]); i-- > 0;) {
            check_planar_row(kernels);
            check_gemm(kernels);
            check_gemm_of_codes(kernels);
            check_depthwise_row(kernels);
        }
        digest.print(kernels.name);
    }
}
