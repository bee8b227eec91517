// Operations of a program: inputs, attributes and results, as in deployment/program/operations.py, which documents
// their semantics.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

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

enum class Op {  // values are the opcodes of the format
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
    prelu,
    clip,
    sigmoid,
    abs,
    multiply,
    channel_mean,
    scale_map,
    shift_map,
    unflatten,
    elu,
    gelu,
    upsample,
    global_max_pool,
    normalize,
    maximum,
};

// Attributes of an operation. Those that it does not have are neutral.
struct Attributes {
    int out_channels = 0;
    int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
    int pad_top = 0, pad_left = 0, pad_bottom = 0, pad_right = 0;
    int groups = 1;
    int has_bias = 0, half = 0;
    int pad_value = 0, offset = 0, planes = 1;
    int ceil = 0, count_pad = 0;
    int begin = 0, end = 0;
    int low = 0;
    int by_channel = 0, height = 1, width = 1;
    int scale_h = 1, scale_w = 1, repeat = 0;
    int by_position = 0;

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

// Rules by opcode, starting with opcode 1.
const std::vector<Rule>& rules();

inline const Rule& rule_of(Op op) { return rules()[static_cast<size_t>(op) - 1]; }
inline const char* name_of(Op op) { return rule_of(op).name; }

// Returns the value that operation `number` computes from earlier ones. Throws Error with its name if it does not
// accept them.
Value result_of(size_t number, const Operation& operation, const std::vector<Value>& values);

}  // namespace bmx
