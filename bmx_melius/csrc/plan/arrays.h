// The arrays of a program: weights, constants of channels and of positions.
#pragma once
#include <cstdint>
#include <vector>

#include "program/program.h"
#include "steps/elementwise.h"
#include "steps/step.h"

namespace bmx {

// Reads arrays from the words of a program; i is the number of an operation.
class Arrays {
  public:
    Arrays(const Program& program, const int32_t* words) : program_(program), words_(words) {}

    const uint32_t* bits(size_t position) const { return reinterpret_cast<const uint32_t*>(words_ + position); }
    std::vector<float> vector(size_t position, int64_t count) const;

    std::vector<int32_t> integers(size_t position, int64_t count) const;

    // Returns the weights of a float convolution, in the order of the file; expanded if they are stored as numbers of
    // levels.
    std::vector<float> conv_weights(int i) const;

    // Returns the weights of a convolution of 8-bit integers likewise.
    std::vector<int8_t> int8_weights(int i) const;

    // Returns the table of an embedding, row by row.
    std::vector<float> table(int i) const;

    // Returns the weights of a binary convolution with the weights of a plane repeated for all planes, or nothing if
    // there is one plane.
    std::vector<uint32_t> repeated_weights(int i) const;

    // Returns an array with a number for each input channel of the operation.
    Constants<float> channel_numbers(int i, size_t position) const;

    MapConstants map_constants(int i) const;

  private:
    const Operation& operation(int i) const { return program_.operations()[i]; }
    std::vector<float> halves(size_t position, int64_t count) const;
    int64_t weights_of(int i) const;
    template <class Number>
    std::vector<Number> expanded(int i, const Number* levels) const;
    int channels_into(int i) const { return static_cast<int>(program_.values()[operation(i).inputs[0]].channels); }

    const Program& program_;
    const int32_t* words_;
};

}  // namespace bmx
