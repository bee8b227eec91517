// The first pass of planning: which operations a step carries out together.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "plan/views.h"

namespace bmx {

enum class StepKind {
    input,
    input_pack,  // an input of which nothing but packed bits is needed
    stem,        // conv [affine] [relu], again and again, [max_pool]: on an input
    conv,        // [affine, max_pool, relu] [shuffle] conv [affine] [relu]
    pool,        // affine, max_pool, relu: one to all of them
    mean,        // [affine, relu] global_avg_pool
    average_pool,
    shuffle,
    flatten,
    add,
    threshold,
    expand,
    copy,         // a view to a map
    binary_conv,  // [threshold] binary_conv [add]
    pack,         // what other steps have made
    output,
};

// What a step reads: a value, and where its channels come from.
struct Reading {
    int value;
    Parts parts;
};

struct Group {
    StepKind kind;
    std::vector<int> operations;  // in the order of the computation
    std::vector<Reading> reads;   // maps; of a binary convolution: what is packed for it, and what it adds
    int result = -1;              // the value whose map it makes
    Number number = Number::f32;  // of that map
};

struct Fusion {
    std::vector<Group> groups;  // in the order in which they run: each after those that make what it reads
    std::vector<int> maker;     // of each value: the group that makes its map, or -1
    std::vector<int> packer;    // of each value: the group that packs its map, or -1
};

Fusion fuse(const Program& program, const Facts& facts, const Views& views);

}  // namespace bmx
