// Reader of packed programs, with the same validation as deployment/program/program.py, which documents the format.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bmx {

enum class Kind { real, bits };

// What is known of a value: its kind and the shape of one image's part. Flat values have height and width 1.
struct Value {
    Kind kind;
    int64_t channels, height, width;
    bool flat;

    bool operator==(const Value& other) const {
        return kind == other.kind && channels == other.channels && height == other.height && width == other.width &&
               flat == other.flat;
    }
    int64_t elements() const { return channels * height * width; }
};

std::string to_string(const Value& value);

enum class Op {  // the codes of the format
    conv = 1,
    binary_conv,
    threshold,
    affine,
    relu,
    max_pool,
    avg_pool,
    global_avg_pool,
    add,
    concat,
    slice,
    shuffle,
    flatten,
    expand,
};

const char* name_of(Op op);

// The attributes of every operation, those that it does not have at the values that mean nothing happens.
struct Attributes {
    int out_channels = 0;
    int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
    int groups = 1;
    int has_bias = 0, half = 0;
    int pad_value = 0, offset = 0;
    int ceil = 0, count_pad = 0;
    int begin = 0, end = 0;
    int low = 0;

    int extent_h() const { return dilation_h * (kernel_h - 1) + 1; }
    int extent_w() const { return dilation_w * (kernel_w - 1) + 1; }
    int taps() const { return kernel_h * kernel_w; }
};

struct Operation {
    Op op;
    std::vector<int> inputs;
    Attributes attributes;
    // Where its arrays begin in the words, 0 where it has none: weight, threshold or scale; bias, flip or shift.
    size_t first = 0, second = 0;
};

class Program {
  public:
    // Throws Error with the position and the reason if the program is invalid. Does not reference `words` afterwards.
    Program(const int32_t* words, size_t count);

    const std::vector<Value>& inputs() const { return inputs_; }  // with height and width at conversion
    const std::vector<Operation>& operations() const { return operations_; }
    const std::vector<int>& outputs() const { return outputs_; }
    const std::vector<Value>& values() const { return values_; }  // for the input sizes at conversion
    int value_of(int operation) const { return static_cast<int>(inputs_.size()) + operation; }

    // Returns all values for inputs of the given heights and widths. Throws Error if an operation does not fit.
    std::vector<Value> infer(const std::vector<std::pair<int64_t, int64_t>>& sizes) const;

  private:
    std::vector<Value> inputs_, values_;
    std::vector<Operation> operations_;
    std::vector<int> outputs_;
};

}  // namespace bmx
