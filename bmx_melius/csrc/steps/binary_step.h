// Binary convolution: maps of bits are expanded side by side, these are convolved, and an addition is part of it.
//
// A thread expands a band of rows and convolves it while it is in the cache, and packs the result for the convolutions
// after it. It expands the rows at the border of its part once more than need be, instead of waiting for the others.
#pragma once
#include "steps/packer.h"

namespace bmx {

struct BinaryStepSpec {
    const BinaryKernels* kernels;
    Attributes attributes;
    int input;                // the value of bits, of which only the size is looked at
    int channels;             // of it
    const uint32_t* weights;  // as in the file
    int result;               // number of the value
    Slab output;              // a whole buffer
    int addend = -1;          // a buffer like the output's that is added to the result; may be the same one
};

class BinaryStep : public Step {
  public:
    // Some units of a pixel.
    struct Segment {
        Bits bits;
        int unit;  // their place in the pixel
    };

    BinaryStep(const BinaryStepSpec& spec, std::vector<Segment> segments);

    int phases(const std::vector<Value>& values, int threads) const override;
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    // The expanded map with its padding.
    struct Map {
        int height, width;
        int rows, right;  // rows in all, and pixels of padding at the right that are a row's own
        int band;         // rows of the output made at a time
        ptrdiff_t row;
        size_t kept;   // bytes of what is there at a time
        size_t bytes;  // and of the kernel's working memory behind it
    };
    // A part of the output.
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
    void correct_zero_padding(const Memory& memory, const Part& part) const;

    BinaryStepSpec spec_;
    BinaryConv conv_;
    std::vector<Segment> segments_;
    Packer packer_;
    std::vector<uint8_t> padding_;  // a packed pixel of padding
    Constants<uint8_t> weights_;
    std::vector<float> tap_sums_;  // [tap][filter]: what padding with 0 adds to padding with -1
};

}  // namespace bmx
