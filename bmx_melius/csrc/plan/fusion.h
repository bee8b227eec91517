// First pass of planning: grouping of the operations that a step computes together.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "plan/views.h"

namespace bmx {

enum class StepKind {
    input,
    input_pack,  // an input of which only packed bits are needed
    stem,        // (conv [affine] [relu])+ [max_pool] on a program input
    conv,        // [affine, max_pool, relu] [shuffle] conv [affine] [relu]
    pool,        // one or more of affine, max_pool, relu
    mean,        // [affine, relu] global_avg_pool
    average_pool,
    shuffle,
    flatten,
    add,
    threshold,
    expand,
    copy,         // copies a view to a map
    binary_conv,  // [threshold] binary_conv [add]
    pack,         // packs the result of a step that cannot pack it
    output,
};

// Operand of a step: a value and the parts that hold its channels.
struct Reading {
    int value;
    Parts parts;
};

struct Group {
    StepKind kind;
    std::vector<int> operations;  // in order of computation
    std::vector<Reading> reads;   // maps; for a binary convolution its packed input and its addend
    int result = -1;              // the value whose map it computes
    Number number = Number::f32;  // type of that map
};

struct Fusion {
    std::vector<Group> groups;  // in topological order, which is the order of execution
    std::vector<int> maker;     // by value: the group that computes its map, or -1
    std::vector<int> packer;    // by value: the group that packs its map, or -1
};

Fusion fuse(const Program& program, const Facts& facts, const Views& views);

}  // namespace bmx
