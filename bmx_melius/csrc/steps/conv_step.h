// Float convolutions and dense layers as matrix products, with what comes before a transition's 1x1 convolution:
// normalization, max pooling, rectification, channel shuffle.
//
// A panel is a matrix of a few output pixels, each with the inputs under all taps of its window, side by side.
#pragma once
#include "steps/packer.h"
#include "steps/pooling.h"

namespace bmx {

struct ConvSpec {
    const FloatKernels* kernels;
    const BinaryKernels* packing;
    Attributes attributes;
    Source source;
    bool source_is_plain;      // one slab of float32
    bool has_pooling = false;  // before a 1x1 convolution without padding
    PoolWindow window;
    Normalization before;
    int shuffle_groups = 1;           // after the pooling
    std::vector<float> weights;       // as in the file, in float32
    std::vector<float> scale, shift;  // after the convolution; empty: none
    bool relu = false;
    int result;   // number of the value
    Slab output;  // a whole buffer of float32
};

class ConvStep : public Step {
  public:
    explicit ConvStep(ConvSpec spec);

    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // Some outputs of one group.
    struct Piece {
        int begin, outputs;
        int first_input;    // column of the panel, where the columns are in order
        size_t weights;     // bytes
        ptrdiff_t columns;  // in columns_; -1: in order
    };

    void prepare_pieces();
    void fill_panel(const Memory& memory, int64_t begin, int64_t end, float* panel, ptrdiff_t* offsets) const;
    void fill_window(const Memory& memory, int y, int x, float* to) const;
    void multiply(const Memory& memory, const float* a, ptrdiff_t lda, int64_t pixel, int pixels, size_t piece_begin,
                  size_t piece_end) const;
    bool reads_in_place() const;
    size_t panel_bytes() const;

    ConvSpec spec_;
    Packer packer_;
    int channels_, inputs_;  // inputs: of an output pixel, under all taps
    int panel_pixels_;
    std::vector<Piece> pieces_;
    std::vector<int32_t> columns_;
    Constants<uint8_t> weights_;
    Normalization after_;
};

}  // namespace bmx
