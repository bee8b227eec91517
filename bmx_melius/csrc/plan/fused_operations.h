// Operations that a step computes together with its main one: their constants, from the arrays of the program.
#pragma once
#include <cstdint>
#include <vector>

#include "plan/arrays.h"
#include "plan/fusion.h"
#include "steps/elementwise.h"
#include "steps/pooling.h"

namespace bmx {

// Normalization, pooling and ReLU before a convolution or a mean, or without either.
struct Prologue {
    Normalization normalization;
    PoolWindow window;
    size_t count = 0;  // number of the group's operations consumed
};

// Bias, affine and ReLU after a convolution.
struct PostOps {
    std::vector<float> scale, shift;
    bool relu = false;
};

// Thresholds with which channels are compared.
struct Thresholds {
    std::vector<float> values;
    std::vector<uint32_t> flips;
};

// Both arguments must outlive it. i is the number of an operation.
class FusedOperations {
  public:
    FusedOperations(const Program& program, const Arrays& arrays) : program_(program), arrays_(arrays) {}

    Prologue prologue_of(const Group& group) const;

    // Returns the scale and the bias of a convolution.
    PostOps scale_and_bias_of(int conv) const;

    bool is_post_op(int i) const { return is_epilogue(operation(i).op); }

    // Adds operation `i`, for which `is_post_op` is true, to `post_ops`.
    void append(int i, PostOps& post_ops) const;

    // Returns what follows a convolution, from operation `next` of its group up to the elementwise operations.
    Normalization normalization_after(const Group& group, size_t next) const;

    // Returns the position of the first elementwise operation in a group.
    size_t first_elementwise(const Group& group) const;

    // Returns a stage without its operand, if that is a value.
    ElementwiseStage stage_of(int i) const;

    // Returns the thresholds of operation `i`, which compares or reads bits as the integers 0 and 1.
    Thresholds thresholds_of(int i) const;

  private:
    const Operation& operation(int i) const { return program_.operations()[i]; }
    int channels_into(int i) const { return static_cast<int>(program_.values()[operation(i).inputs[0]].channels); }

    const Program& program_;
    const Arrays& arrays_;
};

}  // namespace bmx
