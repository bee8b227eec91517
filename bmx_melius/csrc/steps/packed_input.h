// The packed input of a binary convolution (see kernels/common/binary_kernels.h): the rows that a band of the output
// reads, with their padding, expanded from maps of bits to memory of a thread.
#pragma once
#include <vector>

#include "steps/packer.h"

namespace bmx {

class PackedInput {
  public:
    // A range of units of a pixel.
    struct Segment {
        Bits bits;
        int unit;  // the first unit in the pixel
    };

    // The rows of a thread, and where they are in its memory.
    struct Rows {
        int height, width;  // of the map
        int right;          // pixels of right padding not shared with the next row
        int pitch;          // pixels from row to row
        ptrdiff_t row_bytes, plane_bytes;
        ptrdiff_t group_counts;  // numbers from one group to the next one
        size_t counts;           // offset of the counts
        size_t bytes;
    };

    // `kernels` must live as long as this object. Padding has clear bits unless `attributes.pad_value` is 1.
    PackedInput(const BinaryKernels& kernels, const BinaryConv& conv, const Attributes& attributes,
                std::vector<Segment> segments);

    // Returns the weights for the order of the units in packed pixels, which differs from the order in the file; empty
    // if it does not.
    std::vector<uint32_t> reordered(const uint32_t* weights) const;

    // `kept`: number of rows of the padded map that are in memory at a time.
    Rows rows(const Value& map, int kept) const;

    // Expands rows `begin` to `end` - 1 of the padded map. `to` begins with row `first`.
    void expand(const Memory& memory, const Rows& rows, uint8_t* to, int first, int begin, int end) const;

    // Moves the rows from `from` to `end` - 1, counted from the first one in memory, to its beginning.
    void move(const Rows& rows, uint8_t* memory, int from, int end) const;

    // Sets the input of a run whose first output has its window at row 0 of the memory.
    void set_input(const Rows& rows, const uint8_t* memory, BinaryConvRun& run) const;

  private:
    // Where a unit is in packed pixels.
    struct Place {
        int group, plane;
        int byte;     // in the pixel of the plane
        int units;    // from it to the end of the pixel
        bool paired;  // it is also stored in the upper half of the row `dilation_h` above
    };
    // Units of a segment that are contiguous in a plane.
    struct Piece {
        Bits bits;
        int word, units;  // in the words of a pixel
        Place place;      // of the first one
    };

    void order_units(std::vector<Segment>& segments);
    Place place_of(int unit) const;
    void divide(const Segment& segment);
    void make_padding(bool set);
    uint8_t* pixels(const Rows& rows, uint8_t* memory, int plane, int row) const;
    int32_t* counts(const Rows& rows, uint8_t* memory, int group, int row) const;
    void fill(const Rows& rows, uint8_t* to, int row, int column, int count) const;
    void fill_upper_halves(const Rows& rows, uint8_t* to, int row) const;
    void expand_words(const Memory& memory, const Rows& rows, uint8_t* to, int row, int y) const;

    const BinaryKernels& kernels_;
    const BinaryConv conv_;
    const Attributes attributes_;
    int planes_, pixel_bytes_;  // of a pixel in a plane
    bool pairs_;                // the last plane of a group has pairs of rows
    std::vector<int> units_;    // by unit of a packed pixel: unit in the file; empty if all are the same
    std::vector<Piece> pieces_;
    std::vector<uint8_t> padding_;  // a packed pixel of padding, plane by plane
    int padding_count_;             // its set bits in a group
};

}  // namespace bmx
