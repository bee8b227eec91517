// Second pass of planning: the lifetimes of values, and the buffers and slabs that hold them.
#pragma once
#include <vector>

#include "plan/fusion.h"
#include "steps/packer.h"

namespace bmx {

// The first and the last group that uses a buffer; empty if first > last.
struct LiveRange {
    int first, last;
};

// A range of channels that a group packs for a binary convolution.
struct PackedSlab {
    int packer;   // number of the group
    Slab slab;    // within the buffer that it computes
    int channel;  // first channel in the input of the convolution
    int unit;     // first unit in its packed pixel
    Bits bits;
};

struct Placement {
    std::vector<Buffer> buffers;
    std::vector<LiveRange> live_ranges;           // by buffer
    std::vector<int> buffer_of;                   // by value: the buffer of its map, or -1
    std::vector<std::vector<PackedSlab>> packed;  // by group: its packed operands

    Source source(const Operand& operand) const;
};

// A binary convolution adds in place to a map that is not read later: the sum is written to the buffer of that map.
Placement place(const Program& program, const Fusion& fusion);

}  // namespace bmx
