// Concatenation, slicing and a flatten that moves nothing take no step and no memory: their results are views, ranges
// of channels of maps that steps make.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "program/program.h"

namespace bmx {

// A range of channels of a value that a step makes.
struct Part {
    int value;
    int begin, channels;
};
using Parts = std::vector<Part>;

struct Views {
    std::vector<Parts> parts;  // of each value, in the order of its channels; none of bits that are only packed
    std::vector<bool> copied;  // by operation: views that a step copies to a map after all
};

// Views of too many parts are copied, and so are views that a binary convolution could not read word by word. A step
// takes time and memory for each part that it reads: all views together have few of them, however often they are read.
Views find_views(const Program& program, const Facts& facts);

bool is_view(const Program& program, int operation);

// The parts of a view's operands that it consists of, adjacent ones joined.
Parts viewed_parts(const Program& program, const Views& views, int operation);

// Some whole words of the packed pixels of a binary convolution.
struct PackedPart {
    Part part;
    int channel, unit;  // of the pixel: the first channel and the first word
};

// Cuts parts at the borders of groups; nothing where a part would begin or end within a word.
std::vector<PackedPart> cut_at_words(const Parts& parts, int channels, int groups);

}  // namespace bmx
