// Reference kernels for binary layers, as plain loops. The other instruction sets must give bitwise equal results.
#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"

namespace bmx {
namespace {

constexpr int kWordBits = 32;

template <typename T>
void pack(const T* x, ptrdiff_t stride, int pixels, int channels, const T* threshold, const uint32_t* flip,
          uint32_t* words) {
    for (int pixel = 0; pixel < pixels; ++pixel) {
        for (int begin = 0; begin < channels; begin += kWordBits) {
            const int unit = begin / kWordBits;
            uint32_t word = 0;
            for (int c = begin; c < channels && c < begin + kWordBits; ++c) {
                word |= uint32_t(x[pixel * stride + c] >= threshold[c]) << (c - begin);
            }
            word ^= flip[unit];
            *words++ = word;
        }
    }
}

void pack_planes(const float* x, ptrdiff_t stride, int pixels, int channels, const float* threshold,
                 const uint32_t* flip, uint32_t* words) {
    const int units = ceil_div(channels, kWordBits);
    for (int pixel = 0; pixel < pixels; ++pixel, words += units) {
        std::memcpy(words, flip, units * sizeof(uint32_t));
        for (int c = 0; c < channels; ++c) {
            words[c / kWordBits] ^= uint32_t(x[c * stride + pixel] >= threshold[c]) << c % kWordBits;
        }
    }
}

void expand(const uint32_t* words, ptrdiff_t stride, int pixels, int units, uint8_t* packed, ptrdiff_t packed_stride) {
    for (int pixel = 0; pixel < pixels; ++pixel) {
        std::memcpy(packed + pixel * packed_stride, words + pixel * stride, sizeof(uint32_t) * units);
    }
}

size_t weights_bytes(const BinaryConv& conv) {
    return sizeof(uint32_t) * conv.out_channels * conv.kernel_h * conv.kernel_w * conv.group_units();
}

void prepare_weights(const BinaryConv& conv, const uint32_t* words, void* prepared) {
    std::memcpy(prepared, words, weights_bytes(conv));
}

// Returns the number of elements in which the window of an output pixel and the weights of a filter differ.
int differing(const BinaryConvRun& run, const uint8_t* window, int filter) {
    const BinaryConv& conv = *run.conv;
    const int units = conv.group_units();
    const int group = filter / (conv.out_channels / conv.groups);
    const uint32_t* weights =
        static_cast<const uint32_t*>(run.weights) + int64_t(filter) * conv.kernel_h * conv.kernel_w * units;
    int sum = 0;
    for (int y = 0; y < conv.kernel_h; ++y) {
        for (int x = 0; x < conv.kernel_w; ++x) {
            const uint8_t* pixel = window + y * conv.dilation_h * run.row_bytes + x * conv.dilation_w * run.pixel_bytes;
            for (int u = 0; u < units; ++u) {
                uint32_t word;
                std::memcpy(&word, pixel + (group * units + u) * sizeof(word), sizeof(word));
                sum += __builtin_popcount(word ^ *weights++);
            }
        }
    }
    return sum;
}

template <typename T>
void convolve_to(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const int n = static_cast<int>(conv.weights_per_output());
    T* output = static_cast<T*>(run.output);
    const T* addend = static_cast<const T*>(run.addend);
    for (int row = 0; row < run.rows; ++row) {
        for (int column = 0; column < run.columns; ++column) {
            const uint8_t* window =
                run.input + row * conv.stride_h * run.row_bytes + column * conv.stride_w * run.pixel_bytes;
            for (int filter = run.filter_begin; filter < run.filter_end; ++filter) {
                const int agreeing = n - differing(run, window, filter);
                const T result = static_cast<T>(conv.offset ? agreeing : 2 * agreeing - n);
                const ptrdiff_t at = row * run.output_row + column * run.output_pixel + filter;
                output[at] = addend ? static_cast<T>(result + addend[at]) : result;
            }
        }
    }
}

void convolve(const BinaryConvRun& run) {
    run.type == DataType::f32 ? convolve_to<float>(run) : convolve_to<int16_t>(run);
}

}  // namespace

const BinaryKernels& binary_kernels_reference() {
    static const BinaryKernels kernels = {"reference",      4,           1,      kBandPixels,   pack<float>,
                                          pack<int16_t>,    pack_planes, expand, weights_bytes, prepare_weights,
                                          no_scratch_bytes, convolve};
    return kernels;
}

}  // namespace bmx
