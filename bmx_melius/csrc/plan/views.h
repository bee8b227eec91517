// Views: the results of concatenation, slicing and flatten operations that move no data are ranges of channels of maps
// that steps compute. They need neither a step nor memory.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "program/program.h"

namespace bmx {

// A range of channels of a value that a step computes.
struct Part {
    int value;
    int begin, channels;
};
using Parts = std::vector<Part>;

struct Views {
    std::vector<Parts> parts;  // by value, in the order of its channels; empty for bits that are only packed
    std::vector<bool> copied;  // by operation: whether the view is copied to a map by a step
};

// Views of too many parts are copied, and so are views that a binary convolution cannot read word by word. A step needs
// time and memory for each part that it reads, so the total number of parts, counted for each reader, is limited.
Views find_views(const Program& program, const Facts& facts);

bool is_view(const Program& program, int operation);

// Returns the parts of the operands that a view consists of, with adjacent parts merged.
Parts viewed_parts(const Program& program, const Views& views, int operation);

// Whole words of the packed pixels of a binary convolution.
struct PackedPart {
    Part part;
    int channel, unit;  // the first channel and the first word within the pixel
};

// Splits parts at the boundaries of groups. Returns nothing if a part would begin or end within a word.
std::vector<PackedPart> cut_at_words(const Parts& parts, int channels, int groups);

}  // namespace bmx
