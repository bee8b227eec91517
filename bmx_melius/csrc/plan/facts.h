// Analysis of the values of a program, before planning.
#pragma once
#include <vector>

#include "kernels/common/data_type.h"
#include "program/program.h"

namespace bmx {

// Range of the elements of a value.
struct Range {
    bool integers = false;
    double low = 0, high = 0;

    DataType type() const;  // the smallest type that holds them
};

// Facts about each value; all vectors are indexed by value.
struct Facts {
    std::vector<Range> ranges;
    std::vector<std::vector<int>> consumers;  // operations that read it, one entry per operand
    std::vector<int> outputs;                 // number of program outputs that it is
    std::vector<int> packed_by;  // for bits that only binary convolutions read: their threshold operation; else -1
    std::vector<std::vector<int>> binary_readers;  // the binary convolutions that read it as bits or after a comparison

    std::vector<bool> only_compared;  // whether only packed bits of it are needed

    int only_consumer(int value) const;  // the only operation that reads it, or -1
};

Facts find_facts(const Program& program);

// Returns whether an operation changes only the shape of a value: a flatten that moves no data, or its inverse.
bool is_renaming(const Program& program, int operation);

// Returns whether an operation can be part of the step of the convolution before it.
bool is_epilogue(Op op);

// Returns whether an operation is a convolution in which every channel is a group with one filter.
bool is_depthwise(const Program& program, int operation);

}  // namespace bmx
