// Normalization, max pooling and ReLU of one row of a map.
#pragma once
#include "steps/step.h"

namespace bmx {

struct PoolWindow {
    int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_top = 0, pad_left = 0;
    bool pools = false;  // whether the operation is a max pooling, with any kernel

    size_t offsets_bytes() const { return round_up(sizeof(ptrdiff_t) * kernel_h * kernel_w, 64); }
};

// The part of a map under a window of average pooling, and the number of positions that count: padding, too,
// if the operation says so, but only within the padded map.
struct AverageWindow {
    int64_t top, left, bottom, right, count;
};

AverageWindow average_window(const Attributes& attributes, const Value& map, int64_t y, int64_t x);

// Scale and shift of each channel, optionally followed by max(., 0).
struct Normalization {
    Constants<float> scale, shift;  // empty if there are none
    bool relu = false;

    Epilogue from(int channel) const {
        if (!scale.size()) {
            return {nullptr, nullptr, relu};
        }
        return {scale.data() + channel, shift.data() + channel, relu};
    }
};

// Computes columns `begin` to `end` - 1 of row y of the pooled map for all channels of a value. Output pixels are
// `stride` elements apart. `offsets` is working memory of offsets_bytes().
void pool_pixels(const FloatKernels& kernels, const Memory& memory, const Source& source, const PoolWindow& window,
                 const Normalization& normalization, int y, int begin, int end, float* output, ptrdiff_t stride,
                 ptrdiff_t* offsets);

}  // namespace bmx
