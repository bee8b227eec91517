// The first layers of a network: a chain of planar convolutions on the user's image, optionally followed by max
// pooling.
//
// They are evaluated depth-first: each layer keeps only the rows that the window of the next layer covers, in a ring
// buffer that stays in the cache, and computes rows on demand. Each thread computes a range of rows of the result and
// all rows on which these depend.
#pragma once
#include "steps/packer.h"

namespace bmx {

struct StemLayer {
    Attributes attributes;
    int in_channels;
    std::vector<float> weights;
    std::vector<float> scale, shift;  // empty if there are none
    bool relu = false;
    int value;  // number of its result
};

struct StemSpec {
    const FloatKernels* kernels;
    const BinaryKernels* packing;
    int input;  // number of the program input
    std::vector<StemLayer> layers;
    bool has_pool = false;
    Attributes pool;
    int result;   // number of the value
    Slab output;  // a whole buffer of float32
};

class StemStep : public Step {
  public:
    explicit StemStep(const StemSpec& spec);

    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    struct Layer {
        PlanarConv conv;
        Constants<uint8_t> weights;
        Constants<float> scale, shift;
        Epilogue epilogue;
    };
    // The vertical window of the next layer or the pooling over the rows of a ring.
    struct Window {
        int extent, stride, pad;
    };
    // Ring buffer of rows of a map, each with all channels.
    struct Ring {
        int height, width, channels, depth;
        int left;           // elements before column 0; the last elements are padding
        ptrdiff_t channel;  // elements between channels
        float padding;
        size_t bytes() const { return sizeof(float) * channel * channels * depth; }
    };
    struct Work;

    Window rows_under(size_t ring) const;
    Ring ring(const std::vector<Value>& values, size_t number) const;
    size_t thread_bytes(const std::vector<Value>& values) const;
    void make_rows(Work& work, size_t ring, int first, int last) const;
    void make_row(Work& work, size_t ring, int row) const;
    void finish_row(Work& work, int row, float* output, ptrdiff_t output_pixel) const;

    StemSpec spec_;
    std::vector<Layer> layers_;
    Packer packer_;
};

}  // namespace bmx
