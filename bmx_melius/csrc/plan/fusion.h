// First pass of planning: grouping of the operations that a step computes together.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "plan/views.h"

namespace bmx {

enum class StepKind {
    input,
    input_pack,   // an input of which only packed bits are needed
    stem,         // (conv [affine] [relu])+ [max_pool] on a program input
    conv,         // [affine, max_pool, relu] [shuffle] conv [affine] [relu], elementwise operations
    pool,         // one or more of affine, max_pool, relu
    mean,         // [affine, relu] global_avg_pool
    single,       // one operation that no other kind computes
    copy,         // copies a view to a map
    elementwise,  // one or more elementwise operations, [channel_mean]
    binary_conv,  // [threshold] binary_conv ([add] or elementwise operations)
    // [affine] [rescale] [max_pool] [shuffle] convolution+ [max_pool], elementwise operations; multi_threshold in place
    // of the first two
    int8,
    pack,  // packs the result of a step that cannot pack it
    output,
};

// Operand of a step: a value and the parts that hold its channels.
struct Operand {
    int value;
    Parts parts;
};

struct Group {
    StepKind kind;
    std::vector<int> operations;  // in order of computation
    // Maps: the first operand (for a binary convolution packed, then its addend); then the other operands of the
    // elementwise operations, in the order of these.
    std::vector<Operand> reads;
    int result = -1;                // the value whose map it computes
    DataType type = DataType::f32;  // type of that map
    // Number of elementwise operations, at the end or before the mean of the channels. If one of them rescales another
    // value than the result of the one before, it rescales the operand of the next addition.
    size_t elementwise = 0;
    DataType sums = DataType::f32;  // type of the sums of a convolution before the elementwise operations
};

struct Fusion {
    std::vector<Group> groups;  // in topological order, which is the order of execution
    std::vector<int> producer;  // by value: the group that computes its map, or -1
    std::vector<int> packer;    // by value: the group that packs its map, or -1
};

Fusion fuse(const Program& program, const Facts& facts, const Views& views);

}  // namespace bmx
