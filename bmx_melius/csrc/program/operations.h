// The operations of a program: what they take and what they make, as deployment/program/operations.py says, where their
// meaning is.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
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

// --- the table of operations ---------------------------------------------------------------------

struct AttributeRule {
    const char* name;
    int Attributes::* member;
    int least, most;
};

struct Rule {
    const char* name;
    int least_inputs, most_inputs;
    bool takes_real, takes_bits;
    enum { real, bits, same } result;
    std::vector<AttributeRule> attributes;  // in the order of the file
};

// The row of each code, the first one of code 1.
const std::vector<Rule>& rules();

inline const Rule& rule_of(Op op) { return rules()[static_cast<size_t>(op) - 1]; }
inline const char* name_of(Op op) { return rule_of(op).name; }

// The value that operation `number` makes of earlier ones. Throws Error, naming it, where it does not accept them.
Value result_of(size_t number, const Operation& operation, const std::vector<Value>& values);

}  // namespace bmx
