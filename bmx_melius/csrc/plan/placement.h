// The second pass of planning: how long values live, and the buffers and slabs in which they lie.
#pragma once
#include <vector>

#include "plan/fusion.h"
#include "steps/packer.h"

namespace bmx {

// The first and the last group that needs a buffer; none where first > last.
struct Life {
    int first, last;
};

// A range of channels that a group packs for a binary convolution.
struct PackedSlab {
    int packer;   // the group
    Slab slab;    // of the buffer that it makes
    int channel;  // of the convolution's input: the first one
    int unit;     // of its packed pixel: the first one
    Bits bits;
};

struct Placement {
    std::vector<Buffer> buffers;
    std::vector<Life> lives;                      // of each buffer
    std::vector<int> buffer_of;                   // of each value that has a map, or -1
    std::vector<std::vector<PackedSlab>> packed;  // of each group: what is packed for it

    Source source(const Reading& reading) const;
};

// A binary convolution adds to a map that is not read later in place: their sum lies in the buffer of that map.
Placement place(const Program& program, const Fusion& fusion);

}  // namespace bmx
