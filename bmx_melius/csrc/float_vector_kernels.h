// The float kernels for vectors of any width: an instruction set's file defines `Lanes` in an anonymous namespace and
// then includes this one, so that each gets code of its own. What Lanes offers is best seen in float_avx512.cc.
#include "float_kernels.h"

namespace bmx {
namespace {

using Real = Lanes::Real;
constexpr int kWidth = Lanes::width;

int smaller(int a, int b) { return a < b ? a : b; }
int divided_up(int a, int b) { return (a + b - 1) / b; }

// Loads and stores of the first `count` elements, if there are not kWidth of them.
Real load(const float* x, int count) { return count >= kWidth ? Lanes::load(x) : Lanes::load_first(x, count); }

void store(float* x, Real value, int count) {
    count >= kWidth ? Lanes::store(x, value) : Lanes::store_first(x, value, count);
}

// max(x, 0), and NaN stays NaN.
Real rectified(Real x) { return Lanes::max(Lanes::zero(), x); }

// Scale and shift of kWidth channels, beginning with channel c.
struct Normalization {
    bool present;
    Real scale, shift;

    Normalization(const Epilogue& epilogue, int c, int count) : present(epilogue.scale), scale(), shift() {
        if (!present) return;
        scale = load(epilogue.scale + c, count);
        shift = load(epilogue.shift + c, count);
    }
    Real operator()(Real x) const { return present ? Lanes::multiply_add(x, scale, shift) : x; }
};

// --- planar convolution: lanes are columns ---------------------------------------------------------------------------

constexpr int kMostTaps = 160;  // summed in one pass, in between the sums are in the output row
constexpr int kScratch = 7168;  // floats, for rows whose stride has been taken out
constexpr int kTileOutputs = Lanes::planar_outputs, kTileVectors = Lanes::planar_vectors;

// A tap is an input of a group under a weight; taps are ordered by tap row, input, tap column, because the tap rows
// outside of the map are then left out of a row's taps at their beginning and end.
struct Pass {
    int taps;
    const float* input[kMostTaps];  // of each tap, at output column 0, in group 0
    bool first, last;
};

// A tile of a pass: `outputs` outputs of one group, from `output` on, and `vectors` vectors of columns from `column`
// on. The inputs are `shift` elements after those in the pass.
template <int outputs, int vectors>
void planar_tile(const PlanarRow& row, const Pass& pass, const float* weights, int output, ptrdiff_t shift, int column,
                 int end) {
    Real sum[outputs][vectors];
    float* result = row.output + output * row.output_channel + column;
    for (int o = 0; o < outputs; ++o) {
        for (int v = 0; v < vectors; ++v) {
            sum[o][v] = pass.first ? Lanes::zero()
                                   : load(result + o * row.output_channel + v * kWidth, end - column - v * kWidth);
        }
    }
    for (int t = 0; t < pass.taps; ++t, weights += outputs) {
        const float* input = pass.input[t] + shift;
        Real x[vectors];
        for (int v = 0; v < vectors; ++v) x[v] = Lanes::load(input + v * kWidth);
        for (int o = 0; o < outputs; ++o) {
            const Real weight = Lanes::broadcast(weights[o]);
            for (int v = 0; v < vectors; ++v) sum[o][v] = Lanes::multiply_add(x[v], weight, sum[o][v]);
        }
    }
    const Epilogue& epilogue = row.epilogue;
    for (int o = 0; o < outputs; ++o) {
        for (int v = 0; v < vectors; ++v) {
            Real y = sum[o][v];
            if (pass.last && epilogue.scale) {
                y = Lanes::multiply_add(y, Lanes::broadcast(epilogue.scale[output + o]),
                                        Lanes::broadcast(epilogue.shift[output + o]));
            }
            if (pass.last && epilogue.relu) y = rectified(y);
            store(result + o * row.output_channel + v * kWidth, y, end - column - v * kWidth);
        }
    }
}

using PlanarTile = decltype(&planar_tile<1, 1>);

template <int outputs, int vectors>
PlanarTile planar_tile_of(int wanted_outputs, int wanted_vectors) {
    if constexpr (outputs > 1) {
        if (wanted_outputs < outputs) return planar_tile_of<outputs - 1, vectors>(wanted_outputs, wanted_vectors);
    }
    if constexpr (vectors > 1) {
        if (wanted_vectors < vectors) return planar_tile_of<outputs, vectors - 1>(wanted_outputs, wanted_vectors);
    }
    return planar_tile<outputs, vectors>;
}

int taps_of_group(const PlanarConv& conv) { return conv.in_channels / conv.groups * conv.kernel_h * conv.kernel_w; }

size_t planar_weights_bytes(const PlanarConv& conv) { return sizeof(float) * conv.out_channels * taps_of_group(conv); }

// Prepared: [group][tile of outputs][tap][output].
void planar_prepare(const PlanarConv& conv, const float* weights, void* prepared) {
    const int group_inputs = conv.in_channels / conv.groups, group_outputs = conv.out_channels / conv.groups;
    const ptrdiff_t taps = taps_of_group(conv), area = conv.kernel_h * conv.kernel_w;
    float* result = static_cast<float*>(prepared);
    for (int group = 0; group < conv.groups; ++group) {
        for (int tile = 0; tile < group_outputs; tile += kTileOutputs) {
            const int outputs = smaller(kTileOutputs, group_outputs - tile);
            const float* from = weights + (ptrdiff_t(group) * group_outputs + tile) * taps;
            for (int y = 0; y < conv.kernel_h; ++y) {
                for (int c = 0; c < group_inputs; ++c) {
                    for (int x = 0; x < conv.kernel_w; ++x) {
                        for (int o = 0; o < outputs; ++o) *result++ = from[o * taps + c * area + y * conv.kernel_w + x];
                    }
                }
            }
        }
    }
}

// A row being convolved; `scratch` holds the inputs of a pass without gaps where the stride leaves some.
struct PlanarWork {
    const PlanarRow& row;
    const PlanarConv& conv;
    int group_inputs, group_outputs, taps;
    bool strided;
    alignas(64) float scratch[kScratch + 3 * kWidth];

    explicit PlanarWork(const PlanarRow& row)
        : row(row),
          conv(*row.conv),
          group_inputs(conv.in_channels / conv.groups),
          group_outputs(conv.out_channels / conv.groups),
          taps(taps_of_group(conv)),
          strided(conv.stride_w > 1) {}

    // The widest block of columns, in vectors, whose inputs fit into the scratch.
    int block_vectors() const {
        const int vectors = divided_up(row.columns, kWidth);
        if (!strided) return vectors;
        const int fitting = kScratch / kWidth / smaller(taps, kMostTaps);
        return smaller(vectors, fitting > kTileVectors ? fitting / kTileVectors * kTileVectors : kTileVectors);
    }

    // Copies every stride_w-th element of the taps' inputs.
    void take_stride_out(const Pass& pass, ptrdiff_t shift, int columns) {
        const int width = divided_up(columns, kWidth) * kWidth;
        for (int t = 0; t < pass.taps; ++t) {
            const float* from = pass.input[t] + shift;
            float* to = scratch + t * width;
            if (conv.stride_w == 2) {
                for (int x = 0; x < columns; x += kWidth) Lanes::store(to + x, Lanes::load_even(from + 2 * x));
            } else {
                for (int x = 0; x < columns; ++x) to[x] = from[ptrdiff_t(x) * conv.stride_w];
            }
        }
    }

    // Adds the taps of a pass to columns begin to end - 1 of all outputs. first_tap: its number among the weights.
    void add(const Pass& pass, int first_tap, int begin, int end) {
        Pass local = pass;
        const int width = divided_up(end - begin, kWidth) * kWidth;
        if (strided) {
            for (int t = 0; t < pass.taps; ++t) local.input[t] = scratch + t * width;
        }
        const int vectors = divided_up(end - begin, kWidth), tiles = divided_up(vectors, kTileVectors);
        for (int group = 0; group < conv.groups; ++group) {
            const ptrdiff_t shift = group * group_inputs * row.input_channel;
            if (strided) take_stride_out(pass, shift + ptrdiff_t(begin) * conv.stride_w, end - begin);
            for (int tile = 0; tile < group_outputs; tile += kTileOutputs) {
                const int outputs = smaller(kTileOutputs, group_outputs - tile), output = group * group_outputs + tile;
                const float* weights =
                    static_cast<const float*>(row.weights) + ptrdiff_t(output) * taps + ptrdiff_t(first_tap) * outputs;
                for (int i = 0, vector = 0; i < tiles; ++i) {
                    const int next = vectors * (i + 1) / tiles, column = begin + vector * kWidth;
                    planar_tile_of<kTileOutputs, kTileVectors>(outputs, next - vector)(
                        row, local, weights, output, strided ? vector * kWidth : shift + column, column, end);
                    vector = next;
                }
            }
        }
    }

    void convolve(int begin, int end) {
        Pass pass;
        pass.taps = 0;
        pass.first = true;
        int first_tap = 0, number = 0;
        const int most =
            strided ? smaller(kMostTaps, kScratch / (divided_up(end - begin, kWidth) * kWidth)) : kMostTaps;
        for (int y = 0; y < conv.kernel_h; ++y) {
            if (row.input_is_zero[y]) {
                number += group_inputs * conv.kernel_w;
                continue;
            }
            for (int c = 0; c < group_inputs; ++c) {
                for (int x = 0; x < conv.kernel_w; ++x, ++number) {
                    if (pass.taps == most || (pass.taps && first_tap + pass.taps != number)) {
                        pass.last = false;
                        add(pass, first_tap, begin, end);
                        pass.first = false;
                        pass.taps = 0;
                    }
                    if (pass.taps == 0) first_tap = number;
                    pass.input[pass.taps++] = row.input[y] + c * row.input_channel + x * conv.dilation_w;
                }
            }
        }
        pass.last = true;
        add(pass, first_tap, begin, end);
    }
};

void planar_row(const PlanarRow& row) {
    PlanarWork work(row);
    const int columns = work.block_vectors() * kWidth;
    for (int begin = 0; begin < row.columns; begin += columns) {
        work.convolve(begin, smaller(begin + columns, row.columns));
    }
}

// --- matrix product: lanes are n -------------------------------------------------------------------------------------

constexpr int kTileRows = Lanes::gemm_rows, kTileBlocks = Lanes::gemm_vectors;
constexpr int kPointerRows = 3;  // reached from one pointer: an address may be pointer + 0, 1 or 2 strides

size_t gemm_weights_bytes(int n, int k) { return sizeof(float) * divided_up(n, kWidth) * kWidth * k; }

// Prepared: [block of kWidth n][k][kWidth], 0 beyond n.
void gemm_prepare(int n, int k, const float* weights, ptrdiff_t ldw, void* prepared) {
    float* result = static_cast<float*>(prepared);
    for (int block = 0; block < n; block += kWidth) {
        for (int i = 0; i < k; ++i) {
            for (int j = block; j < block + kWidth; ++j) *result++ = j < n ? weights[j * ldw + i] : 0;
        }
    }
}

// `rows` rows of C from m on, `blocks` blocks of kWidth columns from n on.
template <bool indexed, int rows, int blocks>
void gemm_tile(const Gemm& gemm, int m, int n) {
    constexpr int pointers = (rows + kPointerRows - 1) / kPointerRows;
    const ptrdiff_t lda = gemm.lda, block_size = ptrdiff_t(gemm.k) * kWidth;
    const float* b = static_cast<const float*>(gemm.b) + n * ptrdiff_t(gemm.k);
    const float* a[pointers];
    for (int p = 0; p < pointers; ++p) a[p] = gemm.a + (m + p * kPointerRows) * lda;
    Real sum[rows][blocks];
    for (int r = 0; r < rows; ++r) {
        for (int j = 0; j < blocks; ++j) sum[r][j] = Lanes::zero();
    }
    for (int i = 0; i < gemm.k; ++i, b += kWidth) {
        const ptrdiff_t column = indexed ? gemm.column[i] : i;
        Real weight[blocks];
        for (int j = 0; j < blocks; ++j) weight[j] = Lanes::load(b + j * block_size);
        for (int r = 0; r < rows; ++r) {
            const Real x = Lanes::broadcast(a[r / kPointerRows][column + r % kPointerRows * lda]);
            for (int j = 0; j < blocks; ++j) sum[r][j] = Lanes::multiply_add(x, weight[j], sum[r][j]);
        }
    }
    for (int j = 0; j < blocks; ++j, n += kWidth) {
        const Normalization normalized(gemm.epilogue, n, gemm.n - n);
        for (int r = 0; r < rows; ++r) {
            Real y = normalized(sum[r][j]);
            if (gemm.epilogue.relu) y = rectified(y);
            store(gemm.c + (m + r) * gemm.ldc + n, y, gemm.n - n);
        }
    }
}

template <bool indexed, int rows, int blocks>
void gemm_tile_of(const Gemm& gemm, int m, int n, int wanted_rows, int wanted_blocks) {
    if constexpr (rows > 1) {
        if (wanted_rows < rows) return gemm_tile_of<indexed, rows - 1, blocks>(gemm, m, n, wanted_rows, wanted_blocks);
    }
    if constexpr (blocks > 1) {
        if (wanted_blocks < blocks)
            return gemm_tile_of<indexed, rows, blocks - 1>(gemm, m, n, wanted_rows, wanted_blocks);
    }
    gemm_tile<indexed, rows, blocks>(gemm, m, n);
}

void gemm(const Gemm& gemm) {
    const int tiles = divided_up(gemm.m, kTileRows), blocks = divided_up(gemm.n, kWidth);
    for (int i = 0, m = 0; i < tiles; ++i) {
        const int rows = int(int64_t(gemm.m) * (i + 1) / tiles) - m;
        for (int block = 0; block < blocks; block += kTileBlocks) {
            const int wanted = smaller(kTileBlocks, blocks - block);
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

// kWidth channels, or the first `count`, of the largest number in a window after normalization.
Real pooled(const float* x, const PoolRow& row, int count, const Normalization& normalized) {
    Real best = normalized(load(x + row.window[0], count));
    for (int w = 1; w < row.window_size; ++w) best = Lanes::max(best, normalized(load(x + row.window[w], count)));
    return best;
}

// As a scale keeps or reverses the order, the largest or the smallest integer gives the largest result.
Real pooled(const int16_t* x, const PoolRow& row, int count, const Normalization& normalized) {
    using Integers = Lanes::Integers;
    Integers high = Lanes::load_integers(x + row.window[0], count), low = high;
    for (int w = 1; w < row.window_size; ++w) {
        const Integers next = Lanes::load_integers(x + row.window[w], count);
        high = Lanes::max(high, next);
        low = Lanes::min(low, next);
    }
    if (!normalized.present) return Lanes::to_real(high);
    return normalized(Lanes::to_real(Lanes::negative(normalized.scale, low, high)));
}

template <class T>
void pool_row_of(const PoolRow& row) {
    for (int c = 0; c < row.channels; c += kWidth) {
        const int count = row.channels - c;
        const Normalization normalized(row.epilogue, c, count);
        const T* x = static_cast<const T*>(row.x) + c;
        float* output = row.output + c;
        for (int i = 0; i < row.pixels; ++i, x += row.step, output += row.output_pixel) {
            const Real best = pooled(x, row, count, normalized);
            store(output, row.epilogue.relu ? rectified(best) : best, count);
        }
    }
}

void pool_row(const PoolRow& row) { row.number == Number::f32 ? pool_row_of<float>(row) : pool_row_of<int16_t>(row); }

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
    if (number == Number::f32) {
        sum_pixels_of(static_cast<const float*>(x), stride, pixels, channels, epilogue, sums);
    } else {
        sum_pixels_of(static_cast<const int16_t*>(x), stride, pixels, channels, epilogue, sums);
    }
}

// --- from planar to pixels: squares of kWidth channels and columns are transposed in registers -----------------------

// column(c, i, count): the vector of channel c and `count` columns from i on.
template <class Column>
void to_pixels(int columns, int channels, float* y, ptrdiff_t pixel_stride, const Column& column) {
    for (int i = 0; i < columns; i += kWidth) {
        const int width = smaller(kWidth, columns - i);
        for (int c = 0; c < channels; c += kWidth) {
            const int height = smaller(kWidth, channels - c);
            Real square[kWidth];
            for (int j = 0; j < kWidth; ++j) square[j] = j < height ? column(c + j, i, width) : Lanes::zero();
            Lanes::transpose(square);
            for (int j = 0; j < width; ++j) store(y + (i + j) * pixel_stride + c, square[j], height);
        }
    }
}

void planar_to_pixels(const float* x, ptrdiff_t channel_stride, int columns, int channels, float* y,
                      ptrdiff_t pixel_stride) {
    to_pixels(columns, channels, y, pixel_stride,
              [=](int c, int i, int count) { return load(x + c * channel_stride + i, count); });
}

// Every stride-th element from x on; up to `count` of them are wanted.
Real load_strided(const float* x, int stride, int count) {
    if (stride == 1) return Lanes::load(x);
    if (stride == 2) return Lanes::load_even(x);
    float elements[kWidth] = {};
    for (int i = 0; i < count; ++i) elements[i] = x[ptrdiff_t(i) * stride];
    return Lanes::load(elements);
}

void planar_max_pool(const float* const* rows, int window_h, ptrdiff_t input_channel, int window_w, int stride_w,
                     int columns, int channels, float* y, ptrdiff_t pixel_stride) {
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
        name,     planar_weights_bytes, planar_prepare,  planar_row, gemm_weights_bytes, gemm_prepare, gemm,
        pool_row, planar_to_pixels,     planar_max_pool, sum_pixels,
    };
}

}  // namespace
}  // namespace bmx
