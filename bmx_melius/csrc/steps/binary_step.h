// Binary convolution of the concatenation of maps of bits, with a fused addition or a chain of elementwise operations.
//
// A thread expands a band of rows, convolves it while it is in the cache, and packs the result for later convolutions.
// It also expands the rows at the border of its part, which neighbouring threads expand as well, instead of waiting for
// them.
#pragma once
#include "steps/elementwise.h"

namespace bmx {

struct BinaryStepSpec {
    const BinaryKernels* kernels;
    Attributes attributes;
    int input;                // the value of bits; only its size is used
    int channels;             // channels of the input
    const uint32_t* weights;  // in the layout of the file
    int result;               // number of the value
    Slab output;              // a whole buffer
    int addend = -1;  // buffer added to the result, with the layout of the output's and possibly the same; -1: none
    DataType sums = DataType::f32;  // type of the sums before a chain of elementwise operations
    const FloatKernels* floats;
};

class BinaryStep : public Step {
  public:
    // A range of units of a pixel.
    struct Segment {
        Bits bits;
        int unit;  // the first unit in the pixel
    };

    // The operations of `chain` are applied to the result; with an addend there are none.
    BinaryStep(const BinaryStepSpec& spec, std::vector<Segment> segments, ElementwiseChain chain);

    int phases(const std::vector<Value>& values, int threads) const override;
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // The expanded map with its padding.
    struct Map {
        int height, width;
        int rows, right;  // number of rows; pixels of right padding not shared with the next row
        int band;         // rows of the output computed at a time
        ptrdiff_t row;
        size_t kept;   // bytes of the rows kept at a time
        size_t work;   // bytes of the kernel's working memory after them
        size_t bytes;  // kept + work + the sums of a band before the elementwise operations
    };
    // A part of the output: ranges of rows and filters.
    struct Part {
        int row_begin, row_end, filter_begin, filter_end;
        bool empty() const { return row_begin >= row_end || filter_begin >= filter_end; }
    };

    bool shares_filters(const std::vector<Value>& values, int threads) const;
    Map map_of(const std::vector<Value>& values, int threads) const;
    void run_in_bands(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part) const;
    void fill_pixels_of_padding(uint8_t* to, int pixels) const;
    void expand(const Memory& memory, const Map& map, uint8_t* scratch, int first, int begin, int end) const;
    void convolve(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part) const;
    template <class T>
    void correct_zero_padding(const Memory& memory, const Part& part, const View& sums) const;
    void finish(const Memory& memory, const Part& part, const View& sums) const;

    BinaryStepSpec spec_;
    ElementwiseChain chain_;
    BinaryConv conv_;
    std::vector<Segment> segments_;
    Packer packer_;
    std::vector<uint8_t> padding_;  // a packed pixel of padding
    Constants<uint8_t> weights_;
    std::vector<float> tap_sums_;  // [tap][filter]: correction of padding with -1 to padding with 0
};

}  // namespace bmx
