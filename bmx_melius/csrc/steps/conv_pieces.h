// The weights of a float convolution, divided into pieces of outputs, and products with them.
//
// The inputs of an output are numbered tap by tap: row of taps, column of taps, channel. Sums are in this order. Many
// weights of few levels are kept as codes.
#pragma once
#include "steps/level_codes.h"
#include "steps/pooling.h"

namespace bmx {

// A range of pieces.
struct PieceRange {
    size_t begin, end;
};

// Rows of inputs to multiply, one for each of `pixels` output pixels, and where the results go.
struct ConvRows {
    const float* inputs;     // of the first pixel
    ptrdiff_t input_pixel;   // elements between the inputs of neighbouring pixels
    const int32_t* columns;  // positions of the inputs of the first group; nullptr: for rows filled tap by tap
    int pixels;
    float* outputs;  // all outputs of the first pixel
    ptrdiff_t output_pixel;
};

class ConvPieces {
  public:
    // weights: in the layout of the file. shuffle_groups: groups of the channel shuffle before a 1x1 convolution.
    ConvPieces(const FloatKernels* kernels, const Attributes& attributes, int channels, int shuffle_groups,
               const std::vector<float>& weights, Normalization after);

    PieceRange all() const { return {0, pieces_.size()}; }
    int first_output(const PieceRange& range) const { return pieces_[range.begin].begin; }
    int end_output(const PieceRange& range) const {
        return pieces_[range.end - 1].begin + pieces_[range.end - 1].outputs;
    }
    size_t weights_bytes() const { return coded_.empty() ? weights_.size() : coded_.bytes(); }
    int inputs() const { return group_inputs_ * taps_; }  // of an output

    // Fills the positions of the inputs of the first group in a map with `pixel` elements between the positions of
    // neighbouring tap columns, and `row` between neighbouring tap rows.
    void fill_columns(ptrdiff_t pixel, ptrdiff_t row, int32_t* columns) const;

    void multiply(const ConvRows& rows, const PieceRange& range) const;

  private:
    // A range of outputs of one group.
    struct Piece {
        int begin, outputs, group;
        size_t weights;  // offset in bytes, or number of the first block of codes
    };

    void fill_shuffled_columns(int channels, int shuffle_groups);
    void prepare(const std::vector<float>& weights);

    const FloatKernels* kernels_;
    int taps_, kernel_w_, group_inputs_;
    std::vector<Piece> pieces_;
    // Positions of the inputs of each group in rows filled tap by tap; empty if a group's inputs are consecutive.
    std::vector<int32_t> columns_;
    Constants<uint8_t> weights_;
    CodedWeights<float> coded_;  // of the blocks of all pieces, instead
    Normalization after_;
};

}  // namespace bmx
