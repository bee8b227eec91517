// Float convolutions in which every channel is a group with one filter.
#pragma once
#include "steps/elementwise.h"
#include "steps/pooling.h"

namespace bmx {

struct DepthwiseSpec {
    const FloatKernels* kernels;
    const BinaryKernels* packing;
    Attributes attributes;
    Source source;
    std::vector<float> weights;  // in the layout of the file, as float32
    Normalization after;
    ElementwiseChain chain;  // after that
    int result;              // number of the value
    Slab output;             // a whole buffer of float32
};

class DepthwiseStep : public Step {
  public:
    explicit DepthwiseStep(DepthwiseSpec spec);

    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // The taps of a window, along one axis, that lie within the map, and the position of the first one.
    struct Taps {
        int begin, count;
        ptrdiff_t position;
    };

    static Taps taps_inside(int start, int taps, int dilation, int64_t size);
    void compute(const Memory& memory, int y, int begin, int end) const;
    void compute_slab(const View& view, const Slab& slab, int channel, const Taps& rows, const Taps& columns,
                      int pixels, float* output, ptrdiff_t output_pixel) const;

    DepthwiseSpec spec_;
    Packer packer_;
    int channels_;
    Constants<float> weights_;  // [tap][channel]
};

}  // namespace bmx
