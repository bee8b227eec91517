// Planar convolution in bfloat16: lanes are columns. The inputs under a row of the output are rounded to planes of
// pairs: an element holds two neighbouring channels of a group at a column.
#pragma once
#include <immintrin.h>

#include "kernels/common/arithmetic.h"
#include "kernels/common/float_kernels.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/float_bf16_vectors.h"

namespace bmx {
namespace {

constexpr int kPlanarOutputs = 8, kPlanarVectors = 3;  // 24 sums in 32 registers
constexpr int kPlaneElements = 16 << 10;               // of all planes of a group

// Returns the number of planes of pairs under a row of the output, for a group.
int planes_of(const PlanarConv& conv) { return conv.kernel_h * (conv.in_channels / conv.groups / 2); }

// Returns the number of columns under a window.
int extent_w(const PlanarConv& conv) { return (conv.kernel_w - 1) * conv.dilation_w + 1; }

// Returns the number of vectors of columns whose planes fit.
int fitting_vectors(const PlanarConv& conv) {
    return (kPlaneElements / planes_of(conv) - round_up(extent_w(conv) - 1, kLanes)) / kLanes;
}

bool is_suitable(const PlanarConv& conv) {
    return conv.stride_w == 1 && conv.in_channels / conv.groups % 2 == 0 &&
           conv.out_channels / conv.groups % kPlanarOutputs == 0 && planes_of(conv) <= kPlaneElements / 64 &&
           extent_w(conv) <= 3 * kLanes;
}

size_t planar_weights_bytes(const PlanarConv& conv) {
    return is_suitable(conv) ? sizeof(uint32_t) * conv.out_channels * planes_of(conv) * conv.kernel_w
                             : float_kernels_avx512().planar_weights_bytes(conv);
}

// Layout of the prepared weights: [tile of outputs][tap row][pair of inputs][tap column][output].
void planar_prepare(const PlanarConv& conv, const float* weights, void* prepared) {
    if (!is_suitable(conv)) {
        return float_kernels_avx512().planar_prepare(conv, weights, prepared);
    }
    const int inputs = conv.in_channels / conv.groups, area = conv.kernel_h * conv.kernel_w;
    uint32_t* to = static_cast<uint32_t*>(prepared);
    for (int output = 0; output < conv.out_channels; output += kPlanarOutputs) {
        for (int y = 0; y < conv.kernel_h; ++y) {
            for (int c = 0; c < inputs; c += 2) {
                for (int x = 0; x < conv.kernel_w; ++x) {
                    for (int o = output; o < output + kPlanarOutputs; ++o) {
                        const float* const weight =
                            weights + (ptrdiff_t(o) * inputs + c) * area + y * conv.kernel_w + x;
                        *to++ = rounded_pair(weight[0], weight[area]);
                    }
                }
            }
        }
    }
}

// Columns of a row of the output and the planes of a group under them.
struct PlanarPart {
    const PlanarRow& row;
    int begin, end;  // columns
    int width;       // elements of a plane
    uint32_t* planes;
};

// Rounds the inputs of a group under a part.
void round_planes(const PlanarPart& part, int group) {
    const PlanarConv& conv = *part.row.conv;
    const int inputs = conv.in_channels / conv.groups;
    const int elements = ceil_div(part.end - part.begin, kLanes) * kLanes + extent_w(conv) - 1;
    uint32_t* to = part.planes;
    for (int y = 0; y < conv.kernel_h; ++y) {
        if (part.row.input_is_zero[y]) {
            to += ptrdiff_t(inputs / 2) * part.width;
            continue;
        }
        const float* low = part.row.input[y] + group * inputs * part.row.input_channel + part.begin;
        for (int c = 0; c < inputs; c += 2, to += part.width, low += 2 * part.row.input_channel) {
            const float* const high = low + part.row.input_channel;
            for (int x = 0; x < elements; x += kLanes) {
                const __mmask16 some = first_lanes(elements - x);
                _mm512_storeu_si512(
                    to + x, rounded_pairs(_mm512_maskz_loadu_ps(some, low + x), _mm512_maskz_loadu_ps(some, high + x)));
            }
        }
    }
}

// Computes a tile: outputs from `output` on, columns from `column` of the part on.
template <int vectors>
void convolve_tile(const PlanarPart& part, int output, int column) {
    const PlanarRow& row = part.row;
    const PlanarConv& conv = *row.conv;
    const int pairs = conv.in_channels / conv.groups / 2;
    const uint32_t* weights =
        static_cast<const uint32_t*>(row.weights) + ptrdiff_t(output) * planes_of(conv) * conv.kernel_w;
    const uint32_t* plane = part.planes + column;
    __m512 sum[kPlanarOutputs][vectors];
    unrolled<kPlanarOutputs>([&](auto o) { unrolled<vectors>([&](auto v) { sum[o][v] = _mm512_setzero_ps(); }); });
    for (int y = 0; y < conv.kernel_h; ++y) {
        if (row.input_is_zero[y]) {
            plane += ptrdiff_t(pairs) * part.width;
            weights += ptrdiff_t(pairs) * conv.kernel_w * kPlanarOutputs;
            continue;
        }
        for (int c = 0; c < pairs; ++c, plane += part.width) {
            for (int tap = 0; tap < conv.kernel_w; ++tap, weights += kPlanarOutputs) {
                const uint32_t* const from = plane + tap * conv.dilation_w;
                __m512bh x[vectors];
                unrolled<vectors>([&](auto v) { x[v] = as_pairs(_mm512_loadu_si512(from + v * kLanes)); });
                unrolled<kPlanarOutputs>([&](auto o) {
                    const __m512bh weight = as_pairs(_mm512_set1_epi32(static_cast<int>(weights[o])));
                    unrolled<vectors>([&](auto v) { sum[o][v] = _mm512_dpbf16_ps(sum[o][v], x[v], weight); });
                });
            }
        }
    }
    const Epilogue& epilogue = row.epilogue;
    float* const to = row.output + output * row.output_channel + part.begin + column;
    const int columns = part.end - part.begin - column;
    unrolled<kPlanarOutputs>([&](auto o) {
        unrolled<vectors>([&](auto v) {
            __m512 y = sum[o][v];
            if (epilogue.scale) {
                y = _mm512_fmadd_ps(y, _mm512_set1_ps(epilogue.scale[output + o]),
                                    _mm512_set1_ps(epilogue.shift[output + o]));
            }
            y = epilogue.relu ? _mm512_max_ps(_mm512_setzero_ps(), y) : y;
            _mm512_mask_storeu_ps(to + o * row.output_channel + v * kLanes, first_lanes(columns - v * kLanes), y);
        });
    });
}

void planar_row(const PlanarRow& row) {
    const PlanarConv& conv = *row.conv;
    if (!is_suitable(conv)) {
        return float_kernels_avx512().planar_row(row);
    }
    alignas(64) uint32_t planes[kPlaneElements + kLanes];
    const int group_outputs = conv.out_channels / conv.groups, step = fitting_vectors(conv) * kLanes;
    for (int begin = 0; begin < row.columns; begin += step) {
        const int end = min(begin + step, row.columns), vectors = ceil_div(end - begin, kLanes);
        const int width = vectors * kLanes + static_cast<int>(round_up(extent_w(conv) - 1, kLanes));
        const PlanarPart part = {row, begin, end, width, planes};
        const int tiles = ceil_div(vectors, kPlanarVectors);
        for (int group = 0; group < conv.groups; ++group) {
            round_planes(part, group);
            for (int output = group * group_outputs; output < (group + 1) * group_outputs; output += kPlanarOutputs) {
                for (int i = 0; i < tiles; ++i) {
                    const int vector = vectors * i / tiles, count = vectors * (i + 1) / tiles - vector;
                    (count == 3   ? convolve_tile<3>
                     : count == 2 ? convolve_tile<2>
                                  : convolve_tile<1>)(part, output, vector * kLanes);
                }
            }
        }
    }
}

}  // namespace
}  // namespace bmx
