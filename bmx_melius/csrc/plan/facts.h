// What is known of the values of a program before anything is planned.
#pragma once
#include <vector>

#include "kernels/numbers.h"
#include "program/program.h"

namespace bmx {

// What is known of the elements of a value.
struct Range {
    bool integers = false;
    double low = 0, high = 0;

    Number number() const;  // a type that holds them
};

// Everything is indexed by value.
struct Facts {
    std::vector<Range> ranges;
    std::vector<std::vector<int>> consumers;  // the operations that read it, once for each operand
    std::vector<int> outputs;                 // how many outputs of the program it is
    std::vector<int>
        packed_by;  // of bits that nothing but binary convolutions read: their threshold operation; else -1
    std::vector<std::vector<int>> binary_readers;  // the binary convolutions whose bits it is, or is compared to

    std::vector<bool> only_compared;  // whether nothing but packed bits of it is needed

    int only_consumer(int value) const;  // the operation that is the only one to look at it, or -1
};

Facts find_facts(const Program& program);

// Whether an operation is a flatten that moves nothing.
bool is_renaming(const Program& program, int operation);

}  // namespace bmx
