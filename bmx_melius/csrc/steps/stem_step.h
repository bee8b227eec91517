// The first layers of a network: a chain of planar convolutions on the user's image, at its end perhaps a max pooling.
//
// They run depth-first: each layer keeps only the few rows the next one looks at, in a ring that stays in the cache,
// and makes a row when it is asked for. Each thread makes a range of the last layer's rows and all they depend on.
#pragma once
#include "steps/packer.h"

namespace bmx {

struct StemLayer {
    Attributes attributes;
    int in_channels;
    std::vector<float> weights;
    std::vector<float> scale, shift;  // empty: none
    bool relu = false;
    int value;  // its result
};

struct StemSpec {
    const FloatKernels* kernels;
    const BinaryKernels* packing;
    int input;  // of the program
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
    // The window that looks at a ring's rows: of the next layer or the pooling.
    struct Window {
        int extent, stride, pad;
    };
    // Rows of one map, each of all channels.
    struct Ring {
        int height, width, channels, depth;
        int left;           // elements before column 0, with padding at their end
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
