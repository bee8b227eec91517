// The packed program: reads and validates its words, exactly as deployment/program/program.py does, where the format is
// described.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/operations.h"

namespace bmx {

class Program {
  public:
    // Throws Error, saying at which word and why it is no valid program. Keeps nothing of the words.
    Program(const int32_t* words, size_t count);

    const std::vector<Value>& inputs() const { return inputs_; }  // height and width are those at conversion
    const std::vector<Operation>& operations() const { return operations_; }
    const std::vector<int>& outputs() const { return outputs_; }
    const std::vector<Value>& values() const { return values_; }  // those at conversion
    int value_of(int operation) const { return static_cast<int>(inputs_.size()) + operation; }

    // Every value for inputs of the given heights and widths. Throws Error where an operation does not fit.
    std::vector<Value> infer(const std::vector<std::pair<int64_t, int64_t>>& sizes) const;

  private:
    std::vector<Value> inputs_, values_;
    std::vector<Operation> operations_;
    std::vector<int> outputs_;
};

}  // namespace bmx
