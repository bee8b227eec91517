// Binary convolution: thresholds pack a value's slabs into bits, these are convolved, and an addition is part of it.
#pragma once
#include "step.h"

namespace bmx {

struct BinaryStepSpec {
    const BinaryKernels* kernels;
    Attributes attributes;
    Source source;
    const float* thresholds;  // one a channel of the source
    const uint32_t* flips;    // one bit a channel
    const uint32_t* weights;  // as in the file
    int result;               // number of the value
    Slab output;              // a whole buffer
    Number number;            // of the output
    int addend = -1;          // a buffer like the output's that is added to the result; may be the same one
};

class BinaryStep : public Step {
  public:
    explicit BinaryStep(const BinaryStepSpec& spec);

    int phases() const override { return 2; }  // pack, convolve
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    // A range of channels that is packed at once: of one slab, or of a gathered row where slabs do not fit units.
    struct Segment {
        int slab;
        int begin, channels;  // of the slab, or of the gathered row
        size_t packed;        // bytes after the start of a packed pixel
        size_t thresholds, flips;
    };
    // The packed map with its padding.
    struct Packed {
        int height, width;
        int rows, right;     // rows in all, and pixels of padding at the right that are a row's own
        int kept, band = 0;  // rows kept at a time; rows of the output made from these, where that is not all
        ptrdiff_t row;
        size_t bytes;
    };

    bool cut_slabs_at_units();
    void cut_gathered_row();
    void add_segment(int slab, int begin, int channel, int channels);
    void fill_pixels_of_padding(uint8_t* to, int pixels) const;
    void run_in_bands(const Memory& memory, const Packed& map) const;
    void pack(const Memory& memory, const Team& team, const Packed& map, int first, int begin, int end) const;
    void pack_row(const Memory& memory, int row, uint8_t* to, float* gathered) const;
    void share_convolution(const Memory& memory, const Team& team, const Packed& map) const;
    void convolve(const Memory& memory, const Packed& map, int first, int row_begin, int row_end, int filter_begin,
                  int filter_end) const;
    template <class T>
    void correct_zero_padding(const Memory& memory, int row_begin, int row_end, int filter_begin, int filter_end) const;
    Packed packed_map(const std::vector<Value>& values, int threads) const;
    size_t gathered_bytes(const std::vector<Value>& values) const;

    BinaryStepSpec spec_;
    BinaryConv conv_;
    bool gathers_ = false;
    std::vector<Segment> segments_;
    Constants<float> thresholds_;
    Constants<int16_t> integer_thresholds_;  // side by side with the others
    std::vector<uint32_t> flips_;
    std::vector<uint8_t> padding_;  // a packed pixel of padding
    Constants<uint8_t> weights_;
    std::vector<float> tap_sums_;  // [tap][filter]: what padding with 0 adds to padding with -1
};

}  // namespace bmx
