// Planar convolution: lanes are columns.
#pragma once
#include <cmath>

#include "kernels/common/float_vectors.h"

namespace bmx {
namespace {

constexpr int kTileOutputs = Lanes::planar_outputs, kTileVectors = Lanes::planar_vectors;
constexpr int kStripTaps = Lanes::planar_taps;
// Taps summed in one pass, at least a kernel row. Between passes the output holds the sums.
constexpr int kMaxTaps = 256;
constexpr int kScratch = kMaxTaps * kTileVectors * kWidth;  // floats, for strided inputs copied to contiguous memory

// A tap is a pair of an input of a group and a weight. Taps are ordered by tap row, input, tap column, so that tap rows
// outside the map are at the beginning and the end of the taps of an output row.
struct Pass {
    int strips;  // number of strips: taps whose inputs are contiguous, as many as planar_tile's parameter
    const float* input[kMaxTaps];  // inputs of the first tap of each strip, at output column 0, in group 0
    bool first, last;
    bool scaled;  // whether a scale is not 1; otherwise shifts are added, which Zen 4 does beside products
};

// x + -0 is x.
constexpr float kNoShift[] = {-0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f, -0.0f};
static_assert(kTileOutputs <= sizeof(kNoShift) / sizeof(float), "");

// Computes a tile of a pass: `outputs` outputs of one group, starting at `output`, and `vectors` vectors of columns,
// starting at `column`. The inputs are `shift` elements after the inputs of the pass.
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
    // One output after the other, so that results are stored while the last products of the next are computed.
    const auto finish = [&](const auto& normalized) {
        const Real lowest = Lanes::broadcast(pass.last && row.epilogue.relu ? 0 : -INFINITY);
        unrolled<outputs>([&](auto o) {
            unrolled<vectors>([&](auto v) {
                store(result + o * channel + v * kWidth, Lanes::max(lowest, normalized(o, sum[o][v])),
                      v == vectors - 1 ? rest : kWidth);
            });
        });
    };
    const float* shift_of = pass.last && row.epilogue.scale ? row.epilogue.shift + output : kNoShift;
    if (pass.last && pass.scaled) {
        const float* scale_of = row.epilogue.scale + output;
        finish([&](auto o, Real x) {
            return Lanes::multiply_add(x, Lanes::broadcast(scale_of[o]), Lanes::broadcast(shift_of[o]));
        });
    } else {
        finish([&](auto o, Real x) { return Lanes::add(x, Lanes::broadcast(shift_of[o])); });
    }
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
    // Strided inputs are copied to contiguous memory. Tap column x is read from copy x % phases of its row and input,
    // shift * (x / phases) elements after its beginning.
    const int shift, phases;
    Pass pass;
    int copies;                                    // of the pass
    const float* source[kMaxTaps];                 // their inputs
    alignas(64) float scratch[kScratch + kWidth];  // the last vector of a tile may extend beyond the last copy

    explicit PlanarWork(const PlanarRow& row)
        : row(row),
          conv(*row.conv),
          group_inputs(conv.in_channels / conv.groups),
          group_outputs(conv.out_channels / conv.groups),
          taps(taps_of_group(conv)),
          strided(conv.stride_w > 1),
          strip(!strided && conv.dilation_w == 1 && conv.kernel_w == kStripTaps ? kStripTaps : 1),
          shift(conv.dilation_w),
          phases(is_shared(conv) ? min(conv.stride_w, conv.kernel_w) : conv.kernel_w) {
        pass.scaled = false;
        for (int i = 0; row.epilogue.scale && i < conv.out_channels; ++i) {
            pass.scaled |= row.epilogue.scale[i] != 1;
        }
    }

    // Returns whether tap columns read the same copies, which then are longer by at most a vector.
    static bool is_shared(const PlanarConv& conv) {
        return conv.stride_w <= kWidth && int64_t(conv.dilation_w) * ((conv.kernel_w - 1) / conv.stride_w) <= kWidth;
    }

    // Returns the number of elements of copy `phase` in addition to the columns.
    int additional(int phase) const { return shift * ((conv.kernel_w - 1 - phase) / phases); }

    // Returns the number of vectors of each copy of `columns` columns.
    int copy_vectors(int columns) const { return ceil_div(columns + additional(0), kWidth); }

    // Returns the number of blocks of columns into which the row is divided, so that the inputs of many taps fit into
    // scratch.
    int blocks() const {
        const int vectors = ceil_div(row.columns, kWidth), all = group_inputs * conv.kernel_h * phases;
        const int fitting = (kScratch / kWidth / min(all, kMaxTaps) - ceil_div(additional(0), kWidth)) / kTileVectors;
        return strided ? ceil_div(vectors, (fitting > 0 ? fitting : 1) * kTileVectors) : 1;
    }

    // Copies every stride_w-th element of the inputs to scratch.
    void take_stride_out(ptrdiff_t group_shift, int columns) {
        const ptrdiff_t length = copy_vectors(columns) * kWidth;
        if (conv.stride_w == 2 && phases == 2 && conv.dilation_w == 1) {  // two copies share their loads
            for (int i = 0; i < copies; i += phases) {
                const float* from = source[i] + group_shift;
                for (int x = 0; x < length; x += kWidth, from += 2 * kWidth) {
                    const Real a = Lanes::load(from), b = Lanes::load(from + kWidth);
                    Lanes::store(scratch + i * length + x, Lanes::even(a, b));
                    Lanes::store(scratch + (i + 1) * length + x, Lanes::odd(a, b));
                }
            }
            return;
        }
        for (int i = 0; i < copies; ++i) {
            const float* from = source[i] + group_shift;
            const int elements = columns + additional(i % phases);
            for (int x = 0; x < elements; x += kWidth, from += kWidth * conv.stride_w) {
                Lanes::store(scratch + i * length + x, load_strided(from, conv.stride_w, elements - x));
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
                    const PlanarTile run = strip == kStripTaps
                                               ? planar_tile_of<kStripTaps>(pass.first, outputs, next - vector)
                                               : planar_tile_of<1>(pass.first, outputs, next - vector);
                    run(row, pass, weights, output, strided ? column : shift + column, begin + column, end);
                    vector = next;
                }
            }
        }
    }

    void convolve(int begin, int end) {
        const int length = copy_vectors(end - begin) * kWidth;
        const int max_copies = strided ? min(kMaxTaps, kScratch / length) : 0;
        pass.first = true;
        pass.last = false;
        int first_tap = 0, number = 0, strips = 0;
        copies = 0;
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
                const bool fits =
                    strips * strip + conv.kernel_w <= kMaxTaps && (!strided || copies + phases <= max_copies);
                if (!fits || first_tap + strips * strip != number) {
                    if (strips) {
                        finish();
                    }
                    strips = copies = 0;
                    first_tap = number;
                }
                for (int x = 0; x < conv.kernel_w; x += strip) {
                    pass.input[strips++] = strided ? scratch + (copies + x % phases) * length + x / phases * shift
                                                   : input + x * conv.dilation_w;
                }
                for (int phase = 0; strided && phase < phases; ++phase) {
                    source[copies++] = input + phase * conv.dilation_w;
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
        const int end = min(int64_t(vectors) * (i + 1) / blocks * kWidth, row.columns);
        work.convolve(begin, end);
        begin = end;
    }
}

}  // namespace
}  // namespace bmx
