// Values and operations of a program. The rows of operation_table.h say which operations exist.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "program/operation_table.h"

namespace bmx {

enum class Kind { real, bits };

// Kind and shape (for one image) of a value. Flat values have height and width 1.
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

struct Attributes : AttributeValues {
    int extent_h() const { return dilation_h * (kernel_h - 1) + 1; }
    int extent_w() const { return dilation_w * (kernel_w - 1) + 1; }
    int taps() const { return kernel_h * kernel_w; }
    bool padded() const { return pad_top || pad_left || pad_bottom || pad_right; }
};

struct Operation {
    Op op;
    std::vector<int> inputs;
    Attributes attributes;
    // Offsets of the elements of its arrays in the words, in the order of the file; 0 if it has none.
    size_t arrays[kMaxArrays] = {};

    bool convolves() const { return row_of(op).shape == ShapeRule::convolution_shape; }
};

// Where a program is not valid: a word, a part of an operation, or both. Both readers begin their messages with it.
struct FieldPlace {
    int64_t word = -1, operation = -1;
    const char* name = nullptr;  // of the operation

    std::string text(const std::string& field) const;
};

// Throws Error with the place, the field, and the number that is there.
[[noreturn]] void refuse(const FieldPlace& place, const std::string& field, int64_t number);

// Returns the value that operation `number` computes from earlier values. Throws Error with its name if it does not
// accept them.
Value result_of(size_t number, const Operation& operation, const std::vector<Value>& values);

}  // namespace bmx
