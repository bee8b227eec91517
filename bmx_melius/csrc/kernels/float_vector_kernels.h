// Float kernels for vectors of any width. The file of an instruction set defines `Lanes` in an anonymous namespace and
// then includes this file, so that each instruction set is compiled separately. The members of Lanes are documented in
// float_avx512.cc.
#include <type_traits>
#include <utility>

#include "kernels/arithmetic.h"
#include "kernels/elementwise_loops.h"
#include "kernels/float_kernels.h"

namespace bmx {
namespace {

using Real = Lanes::Real;
constexpr int kWidth = Lanes::width;

// Calls body(0), ... body(count - 1) with constants, so that arrays indexed only by these are kept in registers.
template <class Body, int... i>
[[gnu::always_inline]] inline void unrolled(const Body& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>()), ...);
}
template <int count, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
    unrolled(body, std::make_integer_sequence<int, count>());
}

// Loads and stores of the first `count` elements, or of kWidth if count is larger.
Real load(const float* x, int count) { return count >= kWidth ? Lanes::load(x) : Lanes::load_first(x, count); }

void store(float* x, Real value, int count) {
    count >= kWidth ? Lanes::store(x, value) : Lanes::store_first(x, value, count);
}

// Loads every stride-th element from x on. Up to 2 kWidth elements beyond the last one of `count` are read.
Real load_strided(const float* x, int stride, int count) {
    if (stride == 1) {
        return Lanes::load(x);
    }
    if (stride == 2) {
        return Lanes::even(Lanes::load(x), Lanes::load(x + kWidth));
    }
    float elements[kWidth] = {};
    for (int i = 0; i < least(count, kWidth); ++i) {
        elements[i] = x[ptrdiff_t(i) * stride];
    }
    return Lanes::load(elements);
}

// Returns max(x, 0), or NaN for NaN.
Real rectified(Real x) { return Lanes::max(Lanes::zero(), x); }

// Scale and shift of kWidth channels, starting at channel c.
struct Normalization {
    bool present;
    Real scale, shift;

    Normalization(const Epilogue& epilogue, int c, int count) : present(epilogue.scale), scale(), shift() {
        if (!present) {
            return;
        }
        scale = load(epilogue.scale + c, count);
        shift = load(epilogue.shift + c, count);
    }
    Real operator()(Real x) const { return present ? Lanes::multiply_add(x, scale, shift) : x; }
};

// --- planar convolution: lanes are columns ---------------------------------------------------------------------------

constexpr int kTileOutputs = Lanes::planar_outputs, kTileVectors = Lanes::planar_vectors;
constexpr int kMostTaps =
    256;  // taps summed in one pass, at least a kernel row; between passes the output holds the sums
constexpr int kScratch = kMostTaps * kTileVectors * kWidth;  // floats, for strided inputs copied to contiguous memory

// A tap is a pair of an input of a group and a weight. Taps are ordered by tap row, input, tap column, so that tap rows
// outside the map are at the beginning and the end of the taps of an output row.
struct Pass {
    int strips;  // number of strips: taps whose inputs are contiguous, as many as planar_tile's parameter
    const float* input[kMostTaps];  // inputs of the first tap of each strip, at output column 0, in group 0
    bool first, last;
};

// Computes a tile of a pass: `outputs` outputs of one group, starting at `output`, and `vectors` vectors of columns,
// starting at `column`. The inputs are `shift` elements after those in the pass.
template <int strip, bool first, int outputs, int vectors>
void planar_tile(const PlanarRow& row, const Pass& pass, const float* weights, int output, ptrdiff_t shift, int column,
                 int end) {
    Real sum[outputs][vectors];
    const ptrdiff_t channel = row.output_channel;
    float* result = row.output + output * channel + column;
    const int rest = end - column - (vectors - 1) * kWidth;  // columns of the last vector
    const auto each = [&](const auto& body) {
        unrolled<outputs>([&](auto o) { unrolled<vectors>([&](auto v) { body(o, v); }); });
    };
    each([&](auto o, auto v) {
        sum[o][v] = first ? Lanes::zero() : load(result + o * channel + v * kWidth, v == vectors - 1 ? rest : kWidth);
    });
    for (int t = 0; t < pass.strips; ++t, weights += strip * outputs) {
        const float* input = pass.input[t] + shift;
        unrolled<strip>([&](auto tap) {
            Real x[vectors];
            unrolled<vectors>([&](auto v) { x[v] = Lanes::load(input + tap + v * kWidth); });
            unrolled<outputs>([&](auto o) {
                const Real weight = Lanes::broadcast(weights[tap * outputs + o]);
                unrolled<vectors>([&](auto v) { sum[o][v] = Lanes::multiply_add(x[v], weight, sum[o][v]); });
            });
        });
    }
    const Epilogue& epilogue = row.epilogue;
    if (pass.last && epilogue.scale) {
        unrolled<outputs>([&](auto o) {
            const Real scale = Lanes::broadcast(epilogue.scale[output + o]);
            const Real offset = Lanes::broadcast(epilogue.shift[output + o]);
            unrolled<vectors>([&](auto v) { sum[o][v] = Lanes::multiply_add(sum[o][v], scale, offset); });
        });
    }
    if (pass.last && epilogue.relu) {
        each([&](auto o, auto v) { sum[o][v] = rectified(sum[o][v]); });
    }
    each(
        [&](auto o, auto v) { store(result + o * channel + v * kWidth, sum[o][v], v == vectors - 1 ? rest : kWidth); });
}

using PlanarTile = decltype(&planar_tile<1, true, 1, 1>);

// Returns the tile function with exactly `wanted_vectors` vectors and at most `wanted_outputs` outputs, a size obtained
// by halving.
template <int strip, bool first, int outputs, int vectors>
PlanarTile planar_tile_of(int wanted_outputs, int wanted_vectors) {
    if constexpr (outputs > 1) {
        if (wanted_outputs < outputs) {
            return planar_tile_of<strip, first, outputs / 2, vectors>(wanted_outputs, wanted_vectors);
        }
    }
    if constexpr (vectors > 1) {
        if (wanted_vectors < vectors) {
            return planar_tile_of<strip, first, outputs, vectors - 1>(wanted_outputs, wanted_vectors);
        }
    }
    return planar_tile<strip, first, outputs, vectors>;
}

template <int strip>
PlanarTile planar_tile_of(bool first, int outputs, int vectors) {
    return first ? planar_tile_of<strip, true, kTileOutputs, kTileVectors>(outputs, vectors)
                 : planar_tile_of<strip, false, kTileOutputs, kTileVectors>(outputs, vectors);
}

// Returns the number of outputs of the next tile if `left` are left.
int tile_outputs(int left) {
    int outputs = kTileOutputs;
    while (outputs > left) {
        outputs /= 2;
    }
    return outputs;
}

int taps_of_group(const PlanarConv& conv) { return conv.in_channels / conv.groups * conv.kernel_h * conv.kernel_w; }

size_t planar_weights_bytes(const PlanarConv& conv) { return sizeof(float) * conv.out_channels * taps_of_group(conv); }

// Layout of the prepared weights: [group][tile of outputs][tap][output].
void planar_prepare(const PlanarConv& conv, const float* weights, void* prepared) {
    const int group_inputs = conv.in_channels / conv.groups, group_outputs = conv.out_channels / conv.groups;
    const ptrdiff_t taps = taps_of_group(conv), area = conv.kernel_h * conv.kernel_w;
    float* result = static_cast<float*>(prepared);
    for (int group = 0; group < conv.groups; ++group) {
        for (int tile = 0, outputs; tile < group_outputs; tile += outputs) {
            outputs = tile_outputs(group_outputs - tile);
            const float* from = weights + (ptrdiff_t(group) * group_outputs + tile) * taps;
            for (int y = 0; y < conv.kernel_h; ++y) {
                for (int c = 0; c < group_inputs; ++c) {
                    for (int x = 0; x < conv.kernel_w; ++x) {
                        for (int o = 0; o < outputs; ++o) {
                            *result++ = from[o * taps + c * area + y * conv.kernel_w + x];
                        }
                    }
                }
            }
        }
    }
}

// State of the convolution of a row.
struct PlanarWork {
    const PlanarRow& row;
    const PlanarConv& conv;
    const int group_inputs, group_outputs, taps;
    const bool strided;
    const int strip;  // taps per strip
    Pass pass;
    const float* source[kMostTaps];       // inputs of the pass, if they are strided
    alignas(64) float scratch[kScratch];  // contiguous copies of these inputs

    explicit PlanarWork(const PlanarRow& row)
        : row(row),
          conv(*row.conv),
          group_inputs(conv.in_channels / conv.groups),
          group_outputs(conv.out_channels / conv.groups),
          taps(taps_of_group(conv)),
          strided(conv.stride_w > 1),
          strip(!strided && conv.dilation_w == 1 && conv.kernel_w == 3 ? 3 : 1) {}

    // Returns the number of blocks of columns into which the row is divided, so that the inputs of many taps fit into
    // scratch.
    int blocks() const {
        const int vectors = ceil_div(row.columns, kWidth);
        const int fitting = kScratch / kWidth / least(taps, kMostTaps) / kTileVectors * kTileVectors;
        return strided ? ceil_div(vectors, fitting) : 1;
    }

    // Copies every stride_w-th element of the inputs to scratch.
    void take_stride_out(ptrdiff_t shift, int columns) {
        float* to = scratch;
        for (int t = 0; t < pass.strips; ++t) {
            const float* from = source[t] + shift;
            for (int x = 0; x < columns; x += kWidth, to += kWidth, from += kWidth * conv.stride_w) {
                Lanes::store(to, load_strided(from, conv.stride_w, columns - x));
            }
        }
    }

    // Adds the taps of the pass to columns begin to end - 1 of all outputs. first_tap: index of its first tap in the
    // weights.
    void add(int first_tap, int begin, int end) {
        const int vectors = ceil_div(end - begin, kWidth), tiles = ceil_div(vectors, kTileVectors);
        for (int group = 0; group < conv.groups; ++group) {
            const ptrdiff_t shift = group * group_inputs * row.input_channel + ptrdiff_t(begin) * conv.stride_w;
            if (strided) {
                take_stride_out(shift, end - begin);
            }
            for (int tile = 0, outputs; tile < group_outputs; tile += outputs) {
                outputs = tile_outputs(group_outputs - tile);
                const int output = group * group_outputs + tile;
                const float* weights =
                    static_cast<const float*>(row.weights) + ptrdiff_t(output) * taps + ptrdiff_t(first_tap) * outputs;
                for (int i = 0, vector = 0; i < tiles; ++i) {
                    const int next = vectors * (i + 1) / tiles, column = vector * kWidth;
                    const PlanarTile run = strip == 3 ? planar_tile_of<3>(pass.first, outputs, next - vector)
                                                      : planar_tile_of<1>(pass.first, outputs, next - vector);
                    run(row, pass, weights, output, strided ? column : shift + column, begin + column, end);
                    vector = next;
                }
            }
        }
    }

    void convolve(int begin, int end) {
        const int vectors = ceil_div(end - begin, kWidth);
        const int most = strided ? least(kMostTaps, kScratch / (vectors * kWidth)) : kMostTaps;
        const float** inputs = strided ? source : pass.input;
        if (strided) {
            for (int t = 0; t < most; ++t) {
                pass.input[t] = scratch + t * vectors * kWidth;
            }
        }
        pass.first = true;
        pass.last = false;
        int first_tap = 0, number = 0, strips = 0;
        const auto finish = [&] {
            pass.strips = strips;
            add(first_tap, begin, end);
            pass.first = false;
        };
        for (int y = 0; y < conv.kernel_h; ++y) {
            if (row.input_is_zero[y]) {
                number += group_inputs * conv.kernel_w;
                continue;
            }
            const float* input = row.input[y];
            for (int c = 0; c < group_inputs; ++c, input += row.input_channel, number += conv.kernel_w) {
                if (strips * strip + conv.kernel_w > most || first_tap + strips * strip != number) {
                    if (strips) {
                        finish();
                    }
                    strips = 0;
                    first_tap = number;
                }
                for (int x = 0; x < conv.kernel_w; x += strip) {
                    inputs[strips++] = input + x * conv.dilation_w;
                }
            }
        }
        pass.last = true;
        finish();
    }
};

void planar_row(const PlanarRow& row) {
    PlanarWork work(row);
    const int vectors = ceil_div(row.columns, kWidth), blocks = work.blocks();
    for (int i = 0, begin = 0; i < blocks; ++i) {
        const int end = least(int64_t(vectors) * (i + 1) / blocks * kWidth, row.columns);
        work.convolve(begin, end);
        begin = end;
    }
}

// --- matrix product: lanes are n -------------------------------------------------------------------------------------

constexpr int kTileRows = Lanes::gemm_rows, kTileBlocks = Lanes::gemm_vectors;
constexpr int kPointerRows = 3;  // rows per pointer: addressing modes allow pointer + 0, 1 or 2 strides

size_t gemm_weights_bytes(int n, int k) { return sizeof(float) * ceil_div(n, kWidth) * kWidth * k; }

// Layout of the prepared weights: [block of kWidth n][k][kWidth], 0 beyond n.
void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    float* result = static_cast<float*>(prepared);
    for (int block = 0; block < n; block += kWidth) {
        for (int i = 0; i < k; ++i) {
            for (int j = block; j < block + kWidth; ++j) {
                *result++ = j < n ? weights[j * ldw + i] : 0;
            }
        }
    }
}

// Computes `rows` rows of C, starting at m, and `blocks` blocks of kWidth columns, starting at n.
template <bool indexed, int rows, int blocks>
void gemm_tile(const Gemm& gemm, int m, int n) {
    constexpr int pointers = ceil_div(rows, kPointerRows);
    const ptrdiff_t lda = gemm.lda, block_size = ptrdiff_t(gemm.k) * kWidth;
    const float* b = static_cast<const float*>(gemm.b) + n * ptrdiff_t(gemm.k);
    const float* a[pointers];
    for (int p = 0; p < pointers; ++p) {
        a[p] = gemm.a + (m + p * kPointerRows) * lda;
    }
    Real sum[rows][blocks];
    unrolled<rows>([&](auto r) { unrolled<blocks>([&](auto j) { sum[r][j] = Lanes::zero(); }); });
    for (int i = 0; i < gemm.k; ++i, b += kWidth) {
        const ptrdiff_t column = indexed ? gemm.column[i] : i;
        Real weight[blocks];
        unrolled<blocks>([&](auto j) { weight[j] = Lanes::load(b + j * block_size); });
        unrolled<rows>([&](auto r) {
            const Real x = Lanes::broadcast(a[r / kPointerRows][column + r % kPointerRows * lda]);
            unrolled<blocks>([&](auto j) { sum[r][j] = Lanes::multiply_add(x, weight[j], sum[r][j]); });
        });
    }
    unrolled<blocks>([&](auto j) {
        const int first = n + j * kWidth, count = gemm.n - first;
        const Normalization normalized(gemm.epilogue, first, count);
        float* c = gemm.c + m * gemm.ldc + first;
        unrolled<rows>([&](auto r) {
            const Real y = normalized(sum[r][j]);
            store(c + r * gemm.ldc, gemm.epilogue.relu ? rectified(y) : y, count);
        });
    });
}

template <bool indexed, int rows, int blocks>
void gemm_tile_of(const Gemm& gemm, int m, int n, int wanted_rows, int wanted_blocks) {
    if constexpr (rows > 1) {
        if (wanted_rows < rows) {
            return gemm_tile_of<indexed, rows - 1, blocks>(gemm, m, n, wanted_rows, wanted_blocks);
        }
    }
    if constexpr (blocks > 1) {
        if (wanted_blocks < blocks) {
            return gemm_tile_of<indexed, rows, blocks - 1>(gemm, m, n, wanted_rows, wanted_blocks);
        }
    }
    gemm_tile<indexed, rows, blocks>(gemm, m, n);
}

void gemm(const Gemm& gemm) {
    const int tiles = ceil_div(gemm.m, kTileRows), blocks = ceil_div(gemm.n, kWidth);
    for (int i = 0, m = 0; i < tiles; ++i) {
        const int rows = int(int64_t(gemm.m) * (i + 1) / tiles) - m;
        for (int block = 0; block < blocks; block += kTileBlocks) {
            const int wanted = least(kTileBlocks, blocks - block);
            if (gemm.column) {
                gemm_tile_of<true, kTileRows, kTileBlocks>(gemm, m, block * kWidth, rows, wanted);
            } else {
                gemm_tile_of<false, kTileRows, kTileBlocks>(gemm, m, block * kWidth, rows, wanted);
            }
        }
        m += rows;
    }
}

// --- pooling and sums: lanes are channels ----------------------------------------------------------------------------

// Returns the maximum of a window after normalization, for kWidth channels or the first `count` of them.
Real pooled(const float* x, const ptrdiff_t* window, int window_size, int count, const Normalization& normalized) {
    Real best = normalized(load(x + window[0], count));
    for (int w = 1; w < window_size; ++w) {
        best = Lanes::max(best, normalized(load(x + window[w], count)));
    }
    return best;
}

// Normalization is monotone, so the maximum is that of the largest or, for a negative scale, of the smallest integer.
Real pooled(const int16_t* x, const ptrdiff_t* window, int window_size, int count, const Normalization& normalized) {
    using Integers = Lanes::Integers;
    Integers high = Lanes::load_integers(x + window[0], count), low = high;
    for (int w = 1; w < window_size; ++w) {
        const Integers next = Lanes::load_integers(x + window[w], count);
        high = Lanes::max(high, next);
        low = Lanes::min(low, next);
    }
    if (!normalized.present) {
        return Lanes::to_real(high);
    }
    return normalized(Lanes::to_real(Lanes::negative(normalized.scale, low, high)));
}

// constant_size: size of the window if known at compile time, otherwise 0.
template <int constant_size, class T>
void pool_pixels(const PoolRow& row, const T* x) {
    const int size = constant_size ? constant_size : row.window_size;
    float* output = row.output;
    for (int i = 0; i < row.pixels; ++i, x += row.step, output += row.output_pixel) {
        for (int c = 0; c < row.channels; c += kWidth) {
            const int count = row.channels - c;
            const Real best = pooled(x + c, row.window, size, count, Normalization(row.epilogue, c, count));
            store(output + c, row.epilogue.relu ? rectified(best) : best, count);
        }
    }
}

template <class T>
void pool_row_of(const PoolRow& row, const T* x) {
    constexpr int common = 4;
    row.window_size == common ? pool_pixels<common>(row, x) : pool_pixels<0>(row, x);
}

void pool_row(const PoolRow& row) {
    visit_numbers(row.number, row.x, [&](const auto* x) { pool_row_of(row, x); });
}

Real load_number(const float* x, int count) { return load(x, count); }
Real load_number(const int16_t* x, int count) { return Lanes::to_real(Lanes::load_integers(x, count)); }

template <class T>
void sum_pixels_of(const T* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue, float* sums) {
    for (int c = 0; c < channels; c += kWidth) {
        const int count = channels - c;
        const Normalization normalized(epilogue, c, count);
        Real sum = load(sums + c, count);
        for (int i = 0; i < pixels; ++i) {
            const Real y = normalized(load_number(x + i * stride + c, count));
            sum = Lanes::add(sum, epilogue.relu ? rectified(y) : y);
        }
        store(sums + c, sum, count);
    }
}

void sum_pixels(Number number, const void* x, ptrdiff_t stride, int pixels, int channels, const Epilogue& epilogue,
                float* sums) {
    visit_numbers(number, x,
                  [&](const auto* numbers) { sum_pixels_of(numbers, stride, pixels, channels, epilogue, sums); });
}

// --- planar to pixels: blocks of kWidth channels and columns are transposed in registers -----------------------------

// column(c, i, count) returns the vector of channel c and `count` columns, starting at i.
template <class Column>
void to_pixels(int columns, int channels, float* y, ptrdiff_t pixel_stride, const Column& column) {
    for (int i = 0; i < columns; i += kWidth) {
        const int width = least(kWidth, columns - i);
        for (int c = 0; c < channels; c += kWidth) {
            const int height = least(kWidth, channels - c);
            Real square[kWidth];
            for (int j = 0; j < kWidth; ++j) {
                square[j] = j < height ? column(c + j, i, width) : Lanes::zero();
            }
            Lanes::transpose(square);
            for (int j = 0; j < width; ++j) {
                store(y + (i + j) * pixel_stride + c, square[j], height);
            }
        }
    }
}

void planar_to_pixels(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                      ptrdiff_t pixel_stride) {
    to_pixels(columns, channels, y, pixel_stride,
              [=](int c, int i, int count) { return load(x + c * channel_stride + i, count); });
}

constexpr int kWrittenAhead = 64;  // elements of a plane prefetched before they are written

template <class T>
void pixels_to_planar_of(const T* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                         ptrdiff_t channel_stride) {
    // Stores are aligned from the second one on, for all channels if the planes are whole vectors.
    const int first = kWidth - static_cast<int>(reinterpret_cast<uintptr_t>(y) / sizeof(float) % kWidth);
    for (int c = 0; c < channels; c += kWidth) {
        const int height = least(kWidth, channels - c);
        for (int i = 0, width; i < pixels; i += width) {
            width = least(i == 0 ? first : kWidth, pixels - i);
            Real square[kWidth];
            for (int j = 0; j < kWidth; ++j) {
                square[j] = j < width ? load_number(x + (i + j) * pixel_stride + c, height) : Lanes::zero();
            }
            Lanes::transpose(square);
            for (int j = 0; j < height; ++j) {
                store(y + (c + j) * channel_stride + i, square[j], width);
                __builtin_prefetch(y + (c + j) * channel_stride + i + kWrittenAhead, 1);
            }
        }
    }
}

void pixels_to_planar(Number number, const void* x, ptrdiff_t pixel_stride, int pixels, int channels, float* y,
                      ptrdiff_t channel_stride) {
    visit_numbers(number, x, [=](const auto* numbers) {
        pixels_to_planar_of(numbers, pixel_stride, pixels, channels, y, channel_stride);
    });
}

// Returns kWidth columns of the maximum over windows of width 3 with stride 2.
Real pooled_by_two(const float* const* rows, int window_h, ptrdiff_t corner) {
    Real first = Lanes::load(rows[0] + corner), second = Lanes::load(rows[0] + corner + kWidth);
    Real next = Lanes::broadcast(rows[0][corner + 2 * kWidth]);
    for (int h = 1; h < window_h; ++h) {
        const float* row = rows[h] + corner;
        first = Lanes::max(first, Lanes::load(row));
        second = Lanes::max(second, Lanes::load(row + kWidth));
        next = Lanes::max(next, Lanes::broadcast(row[2 * kWidth]));
    }
    const Real even = Lanes::even(first, second);
    return Lanes::max(Lanes::max(even, Lanes::odd(first, second)), Lanes::shifted(even, next));
}

void planar_max_pool(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                     int columns, int channels, float* y, ptrdiff_t pixel_stride) {
    if (window_w == 3 && stride_w == 2) {
        to_pixels(columns, channels, y, pixel_stride, [=](int c, int i, int) {
            return pooled_by_two(rows, window_h, c * input_channel + 2 * ptrdiff_t(i));
        });
        return;
    }
    to_pixels(columns, channels, y, pixel_stride, [=](int c, int i, int count) {
        const ptrdiff_t corner = c * input_channel + ptrdiff_t(i) * stride_w;
        Real best = load_strided(rows[0] + corner, stride_w, count);
        for (int h = 0; h < window_h; ++h) {
            for (int w = 0; w < window_w; ++w) {
                best = Lanes::max(best, load_strided(rows[h] + corner + w, stride_w, count));
            }
        }
        return best;
    });
}

FloatKernels table(const char* name) {
    return {
        name,
        planar_weights_bytes,
        planar_prepare,
        planar_row,
        gemm_weights_bytes,
        gemm_prepare,
        gemm,
        pool_row,
        planar_to_pixels,
        pixels_to_planar,
        planar_max_pool,
        sum_pixels,
        transform,
        combine,
        mean_channels,
    };
}

}  // namespace
}  // namespace bmx
