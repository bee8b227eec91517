// Float convolutions and dense layers as matrix products, with the operations before the 1x1 convolution of a
// transition fused: normalization, max pooling, ReLU, channel shuffle.
//
// A panel is a matrix with a row for each of some output pixels, which holds the inputs under all taps of its window.
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
    bool has_pooling = false;  // only before a 1x1 convolution without padding
    PoolWindow window;
    Normalization before;
    int shuffle_groups = 1;           // after the pooling
    std::vector<float> weights;       // in the layout of the file, as float32
    std::vector<float> scale, shift;  // after the convolution; empty if there are none
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
    // A range of outputs of one group.
    struct Piece {
        int begin, outputs;
        int first_input;    // first column of the panel if the columns are consecutive
        size_t weights;     // offset in bytes
        ptrdiff_t columns;  // index in columns_; -1: consecutive columns
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
    int channels_, inputs_;  // inputs_: number of inputs of an output pixel, under all taps
    int panel_pixels_;
    std::vector<Piece> pieces_;
    std::vector<int32_t> columns_;
    Constants<uint8_t> weights_;
    Normalization after_;
};

}  // namespace bmx
