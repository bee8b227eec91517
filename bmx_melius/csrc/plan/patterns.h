// Patterns of operations that one step can compute.
#pragma once
#include <vector>

#include "plan/facts.h"
#include "plan/views.h"

namespace bmx {

// Arguments must outlive it. `producer` has the group that computes a value, or -1, and may change between calls. i is
// the number of an operation.
class FusionPatterns {
  public:
    FusionPatterns(const Program& program, const Facts& facts, const Views& views, const std::vector<int>& producer)
        : program_(program), facts_(facts), views_(views), producer_(producer) {}

    // Returns whether operation `i` is a convolution of so few channels that planar kernels are faster.
    bool is_for_stem(int i) const;

    // Appends the operations after a convolution, the last one of `operations`, that its epilogue can compute.
    void append_post_ops(std::vector<int>& operations) const;

    struct Prologue {
        std::vector<int> operations;
        bool pools = false;
        int next;  // the operation after them; -1 if there are none or several
    };

    // Returns the longest chain of normalization, pooling and ReLU from operation `i` on that one step can compute.
    Prologue find_prologue(int i) const;

    // Returns whether operation `i` is a 1x1 convolution without padding.
    bool is_pointwise(int i) const;

    // Returns the elementwise operations that follow one another from operation `i` on, which reads value `x`, and
    // whose results are of one type. Before an addition is the rescaling of its other operand, if that is postponed.
    std::vector<int> elementwise_from(int i, int x) const;

    // Returns whether operation `i` rescales an operand of an addition of integers, whose step does that, too.
    bool is_postponed(int i) const;

    // Returns the postponed operation whose result is `value`, or -1.
    int postponed(int value) const {
        return !is_input(value) && is_postponed(value - value_of(0)) ? value - value_of(0) : -1;
    }

    bool is_int8_conv(int i) const { return i >= 0 && row_of(operation(i).op).products == Products::int8; }

    // Returns the operations from `i` on that a step of 8-bit convolutions can compute; none if these do not follow.
    std::vector<int> int8_from(int i) const;

    // Returns whether a chain of elementwise operations has one that only an elementwise step computes, or is not
    // followed by a step that normalizes its input.
    bool is_worth_a_step(const std::vector<int>& chain, bool after_convolution) const;

  private:
    const Operation& operation(int i) const { return program_.operations()[i]; }
    int value_of(int operation) const { return program_.value_of(operation); }
    bool is_input(int value) const { return value < program_.value_of(0); }

    // Returns whether operation `i` changes every element of value `x` separately, and its other operand, if it has
    // one, is already computed, or only its rescaling is postponed.
    bool is_elementwise(int i, int x) const;

    bool is_computed(int value) const;
    DataType type_of(int i) const { return facts_.ranges[value_of(i)].type(); }
    bool is(int i, Op op) const { return i >= 0 && operation(i).op == op; }

    const Program& program_;
    const Facts& facts_;
    const Views& views_;
    const std::vector<int>& producer_;
};

// Returns whether an elementwise operation of a chain, whose result so far is `x`, rescales another value.
bool rescales_operand(const Operation& operation, int x);

// Returns the operand of an elementwise operation that is read in addition to `x`, or -1 if there is none.
int other_operand(const Operation& operation, int x);

}  // namespace bmx
