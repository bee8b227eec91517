// Reader of packed programs: their format is documented in deployment/program/program.py, their validation is the same
// as in reader.py there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "program/operations.h"

namespace bmx {

class Program {
  public:
    // Throws Error with the position and the reason if the program is invalid. Does not reference `words` afterwards.
    Program(const int32_t* words, size_t count) : Program(words, count, true) {}

    // Reads the words of a structure: a program without arrays, which cannot run.
    static Program from_structure(const int32_t* words, size_t count) { return Program(words, count, false); }

    int64_t length() const { return length_; }  // number of words, including those that a structure omits
    const std::vector<Value>& inputs() const { return inputs_; }  // with height and width at conversion
    const std::vector<Operation>& operations() const { return operations_; }
    const std::vector<int>& outputs() const { return outputs_; }
    const std::vector<Value>& values() const { return values_; }  // for the input sizes at conversion
    int value_of(int operation) const { return static_cast<int>(inputs_.size()) + operation; }

    // Returns all values for inputs of the given heights and widths. Throws Error if an operation does not fit.
    std::vector<Value> infer(const std::vector<std::pair<int64_t, int64_t>>& sizes) const;

  private:
    Program(const int32_t* words, size_t count, bool has_arrays);

    int64_t length_;
    std::vector<Value> inputs_, values_;
    std::vector<Operation> operations_;
    std::vector<int> outputs_;
};

}  // namespace bmx
