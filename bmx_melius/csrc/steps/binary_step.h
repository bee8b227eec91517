// Binary convolution of the concatenation of maps of bits, with a fused addition or a chain of elementwise operations.
//
// A thread expands a band of rows, convolves it while it is in the cache, and packs the result for later convolutions.
// It also expands the rows at the border of its part, which neighbouring threads expand as well, instead of waiting for
// them.
#pragma once
#include "steps/elementwise.h"
#include "steps/packed_input.h"

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
};

class BinaryStep : public Step {
  public:
    // The operations of `chain` are applied to the result; with an addend there are none.
    BinaryStep(const BinaryStepSpec& spec, std::vector<PackedInput::Segment> segments, ElementwiseChain chain);

    int phases(const std::vector<Value>& values, int threads) const override;
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // The memory of a thread.
    struct Map {
        PackedInput::Rows rows;  // kept at a time
        int band;                // rows of the output computed at a time
        size_t work;             // offset of the kernel's working memory
        size_t sums;             // offset of the sums of a band before the elementwise operations
        size_t packings;         // offset of the descriptions of what the kernel packs
        size_t bytes;
    };
    // A part of the output: ranges of rows and filters.
    struct Part {
        int row_begin, row_end, filter_begin, filter_end;
        bool empty() const { return row_begin >= row_end || filter_begin >= filter_end; }
    };

    // Whether sums are computed where the results are.
    bool adds_in_place() const { return chain_.empty() || chain_.type() == spec_.sums; }
    int packed_by_kernel() const;
    bool shares_filters(const std::vector<Value>& values, int threads) const;
    Map map_of(const std::vector<Value>& values, int threads) const;
    void run_in_bands(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part) const;
    void convolve(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part, bool continues) const;
    template <class T>
    void correct_zero_padding(const Memory& memory, const Part& part, const View& sums) const;
    void finish(const Memory& memory, const Part& part, const View& sums) const;

    BinaryStepSpec spec_;
    ElementwiseChain chain_;
    BinaryConv conv_;
    PackedInput input_;
    Packer packer_;
    Constants<uint8_t> weights_;
    std::vector<float> tap_sums_;  // [tap][filter]: correction of padding with -1 to padding with 0
};

}  // namespace bmx
