// Float convolutions and dense layers as matrix products of rows of inputs, one for each output pixel, and weights:
//
// - The pixels of a 1x1 convolution are such rows.
// - Before the 1x1 convolution of a transition, normalization, max pooling and ReLU fill a panel of some rows.
// - Other convolutions read the inputs under their taps in a copy of a part of the map with its padding.
#pragma once
#include "steps/conv_pieces.h"
#include "steps/elementwise.h"

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
    int shuffle_groups = 1;      // after the pooling
    std::vector<float> weights;  // in the layout of the file, as float32
    Normalization after;
    ElementwiseChain chain;  // after that
    int result;              // number of the value
    Slab output;             // a whole buffer of float32
};

class ConvStep : public Step {
  public:
    explicit ConvStep(ConvSpec spec);

    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // Blocks of rows and columns of the result, and the padded part of the map under a block.
    struct Blocks {
        int rows, columns;     // of a block
        int64_t down, across;  // number of blocks
        int map_rows, map_columns;
        int tap_rows;  // rows of that part between neighbouring tap rows
    };
    struct Block {
        int row_begin, row_end, column_begin, column_end;
    };

    enum class Inputs { in_place, panel, window };

    Inputs inputs() const;
    bool divides_outputs(const std::vector<Value>& values, int threads) const;
    Blocks blocks(const std::vector<Value>& values, int threads) const;
    size_t panel_bytes() const;
    size_t columns_bytes() const;
    size_t thread_bytes(const std::vector<Value>& values, int threads) const;

    void run_pixels(const Memory& memory, int64_t begin, int64_t end, const PieceRange& pieces, uint8_t* scratch) const;
    void fill_panel(const Memory& memory, int64_t begin, int64_t end, float* panel, ptrdiff_t* offsets) const;
    void run_block(const Memory& memory, const Blocks& blocks, const Block& block, const PieceRange& pieces,
                   uint8_t* scratch) const;
    void copy_map(const Memory& memory, const Blocks& blocks, const Block& block, float* to) const;
    void finish(const Memory& memory, int64_t begin, int64_t end, const PieceRange& pieces) const;

    ConvSpec spec_;
    Packer packer_;
    int channels_;
    int panel_pixels_;
    ConvPieces pieces_;
};

}  // namespace bmx
