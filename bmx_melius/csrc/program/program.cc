#include "program/program.h"

#include <cmath>
#include <cstring>
#include <tuple>

#include "program/error.h"

namespace bmx {
namespace {

constexpr int32_t kMagic = 0x50584d42;  // 'BMXP'
constexpr int32_t kVersion = 1;
constexpr size_t kHeaderWords = 8, kInputWords = 4, kRecordWords = 3;
constexpr int64_t kMaxChannels = 1 << 20;
constexpr int64_t kMaxSize = 1 << 16;               // height or width
constexpr int64_t kMaxElements = int64_t(1) << 31;  // of one image's map or of a window of all channels, exclusive
constexpr int32_t kMaxOperations = 1 << 16;
constexpr int64_t kMaxWeights = 1 << 23;  // per output of a binary convolution, exclusive

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
    std::vector<AttributeRule> attributes;
};

using A = Attributes;

std::vector<AttributeRule> join(std::vector<AttributeRule> first, const std::vector<AttributeRule>& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

// The row of each code, the first one of code 1.
const std::vector<Rule>& rules() {
    static const std::vector<AttributeRule> window = {
        {"kernel_h", &A::kernel_h, 1, 255}, {"kernel_w", &A::kernel_w, 1, 255}, {"stride_h", &A::stride_h, 1, 255},
        {"stride_w", &A::stride_w, 1, 255}, {"pad_h", &A::pad_h, 0, 255},       {"pad_w", &A::pad_w, 0, 255}};
    static const std::vector<AttributeRule> convolution = join(
        join({{"out_channels", &A::out_channels, 1, kMaxChannels}}, window), {{"dilation_h", &A::dilation_h, 1, 255},
                                                                              {"dilation_w", &A::dilation_w, 1, 255},
                                                                              {"groups", &A::groups, 1, kMaxChannels}});
    static const std::vector<Rule> table = {
        {"conv", 1, 1, true, false, Rule::real,
         join(convolution, {{"has_bias", &A::has_bias, 0, 1}, {"half", &A::half, 0, 1}})},
        {"binary_conv", 1, 1, false, true, Rule::real,
         join(convolution, {{"pad_value", &A::pad_value, -1, 1}, {"offset", &A::offset, 0, 1}})},
        {"threshold", 1, 1, true, false, Rule::bits, {}},
        {"affine", 1, 1, true, false, Rule::real, {}},
        {"relu", 1, 1, true, false, Rule::real, {}},
        {"max_pool", 1, 1, true, false, Rule::real, join(window, {{"ceil", &A::ceil, 0, 1}})},
        {"avg_pool", 1, 1, true, false, Rule::real,
         join(window, {{"ceil", &A::ceil, 0, 1}, {"count_pad", &A::count_pad, 0, 1}})},
        {"global_avg_pool", 1, 1, true, false, Rule::real, {}},
        {"add", 2, 2, true, false, Rule::real, {}},
        {"concat", 1, 1 << 16, true, true, Rule::same, {}},
        {"slice",
         1,
         1,
         true,
         true,
         Rule::same,
         {{"begin", &A::begin, 0, kMaxChannels}, {"end", &A::end, 1, kMaxChannels}}},
        {"shuffle", 1, 1, true, true, Rule::same, {{"groups", &A::groups, 1, kMaxChannels}}},
        {"flatten", 1, 1, true, true, Rule::same, {}},
        {"expand", 1, 1, false, true, Rule::real, {{"low", &A::low, -1, 0}}},
    };
    return table;
}

const Rule& rule_of(Op op) { return rules()[static_cast<size_t>(op) - 1]; }

std::string str(int64_t number) { return std::to_string(number); }

// --- shapes --------------------------------------------------------------------------------------

int64_t windows(const char* name, bool flat, int64_t size, int kernel, int dilation, int stride, int pad, bool ceil) {
    int64_t extent = int64_t(dilation) * (kernel - 1) + 1;
    if (flat && !(extent == 1 && stride == 1 && pad == 0)) {
        throw Error(std::string(name) + " of a flat value must have kernel 1");
    }
    int64_t room = size + 2 * pad - extent;
    if (room < 0) {
        throw Error(std::string(name) + " has a window of " + str(extent) + " on a padded map of " +
                    str(size + 2 * pad));
    }
    return (ceil ? room + stride - 1 : room) / stride + 1;
}

void slide(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const char* name = name_of(operation.op);
    value.height = windows(name, value.flat, value.height, a.kernel_h, a.dilation_h, a.stride_h, a.pad_h, a.ceil);
    value.width = windows(name, value.flat, value.width, a.kernel_w, a.dilation_w, a.stride_w, a.pad_w, a.ceil);
}

using Inputs = std::vector<const Value*>;

void check_kinds(const Rule& rule, const Inputs& inputs) {
    const Value& x = *inputs[0];
    for (const Value* input : inputs) {
        if (!(input->kind == Kind::real ? rule.takes_real : rule.takes_bits)) {
            throw Error(std::string(rule.name) + " does not take " + to_string(*input));
        }
        if (input->kind != x.kind || input->flat != x.flat) {
            throw Error(std::string(rule.name) + " mixes " + to_string(x) + " with " + to_string(*input));
        }
    }
}

void convolve(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const std::string name = name_of(operation.op);
    if (value.channels % a.groups || a.out_channels % a.groups) {
        throw Error(name + " cannot split " + str(value.channels) + " into " + str(a.out_channels) + " channels in " +
                    str(a.groups) + " groups");
    }
    const int64_t window = a.taps() * value.channels;
    if (operation.op == Op::binary_conv && window / a.groups >= kMaxWeights) {
        throw Error(name + " has too many weights per output; fewer than " + str(kMaxWeights) + " are exact");
    }
    if (operation.op == Op::conv && window >= kMaxElements) {
        throw Error(name + " has " + str(kMaxElements) + " or more elements in a window");
    }
    value.channels = a.out_channels;
    slide(operation, value);
}

void pool(const Operation& operation, Value& value) {
    const Attributes& a = operation.attributes;
    const std::string name = name_of(operation.op);
    const int64_t height = value.height, width = value.width;
    if (a.pad_h >= a.kernel_h || a.pad_w >= a.kernel_w) {
        throw Error(name + " with a pad as large as its kernel has windows without an element");
    }
    slide(operation, value);
    if ((value.height - 1) * a.stride_h - a.pad_h >= height || (value.width - 1) * a.stride_w - a.pad_w >= width) {
        throw Error(name + " has a last window without an element of the map");
    }
}

void concatenate(const Inputs& inputs, Value& value) {
    value.channels = 0;
    for (const Value* input : inputs) {
        if (input->height != value.height || input->width != value.width) {
            throw Error("concat of " + to_string(*inputs[0]) + " and " + to_string(*input));
        }
        value.channels += input->channels;
    }
}

void cut(const Attributes& a, Value& value) {
    if (!(a.begin < a.end && a.end <= value.channels)) {
        throw Error("slice of channels " + str(a.begin) + " to " + str(a.end) + " of " + str(value.channels));
    }
    value.channels = a.end - a.begin;
}

void check_size(const std::string& name, const Value& value) {
    if (value.channels > kMaxChannels) {
        throw Error(name + " makes " + str(value.channels) + " channels; at most " + str(kMaxChannels) +
                    " are possible");
    }
    if (value.height > kMaxSize || value.width > kMaxSize) {
        throw Error(name + " makes a map of " + str(value.height) + " x " + str(value.width) + "; at most " +
                    str(kMaxSize) + " a side");
    }
    if (value.elements() >= kMaxElements) {
        throw Error(name + " makes a map of " + str(kMaxElements) + " or more elements");
    }
}

// The value that an operation makes of earlier ones.
Value result_of(const Operation& operation, const std::vector<Value>& values) {
    const Rule& rule = rule_of(operation.op);
    const Attributes& a = operation.attributes;
    Inputs inputs;
    for (int input : operation.inputs) {
        inputs.push_back(&values[input]);
    }
    check_kinds(rule, inputs);
    const Value& x = *inputs[0];
    Value result = x;
    switch (operation.op) {
        case Op::conv:
        case Op::binary_conv:
            convolve(operation, result);
            break;
        case Op::max_pool:
        case Op::avg_pool:
            pool(operation, result);
            break;
        case Op::global_avg_pool:
            result.height = result.width = 1;
            break;
        case Op::add:
            if (!(x == *inputs[1])) {
                throw Error("add of " + to_string(x) + " and " + to_string(*inputs[1]));
            }
            break;
        case Op::concat:
            concatenate(inputs, result);
            break;
        case Op::slice:
            cut(a, result);
            break;
        case Op::shuffle:
            if (x.channels % a.groups) {
                throw Error("shuffle of " + str(x.channels) + " channels in " + str(a.groups) + " groups");
            }
            break;
        case Op::flatten:
            result = {x.kind, x.elements(), 1, 1, true};
            break;
        case Op::threshold:
        case Op::affine:
        case Op::relu:
        case Op::expand:
            break;
    }
    if (rule.result != Rule::same) {
        result.kind = rule.result == Rule::real ? Kind::real : Kind::bits;
    }
    check_size(rule.name, result);
    return result;
}

Value named_result_of(size_t number, const Operation& operation, const std::vector<Value>& values) {
    try {
        return result_of(operation, values);
    } catch (const Error& error) {
        throw Error("operation " + std::to_string(number) + ": " + error.what());
    }
}

void check_input(size_t number, const Value& value) {
    bool possible = 1 <= value.channels && value.channels <= kMaxChannels && 1 <= value.height &&
                    value.height <= kMaxSize && 1 <= value.width && value.width <= kMaxSize;
    if (!possible || value.elements() >= kMaxElements) {
        throw Error("input " + std::to_string(number) + ": size " + to_string(value) + " is not possible");
    }
}

// --- words ---------------------------------------------------------------------------------------

uint32_t checksum(const int32_t* words, size_t count) {
    static const std::vector<uint32_t> table = [] {
        std::vector<uint32_t> entries(256);
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t entry = i;
            for (int bit = 0; bit < 8; bit++) {
                entry = entry >> 1 ^ (entry & 1 ? 0xedb88320u : 0);
            }
            entries[i] = entry;
        }
        return entries;
    }();
    uint32_t crc = ~0u;
    for (size_t i = 0; i < count; i++) {
        crc ^= static_cast<uint32_t>(words[i]);
        for (int octet = 0; octet < 4; octet++) {
            crc = crc >> 8 ^ table[crc & 255];
        }
    }
    return ~crc;
}

// Takes words one after the other, and never one that is not there.
class Reader {
  public:
    Reader(const int32_t* words, size_t count) : words_(words), count_(count) {}

    size_t position() const { return position_; }
    size_t left() const { return count_ - position_; }

    size_t take(int64_t count, const std::string& what) {
        if (count < 0 || count > static_cast<int64_t>(left())) {
            throw Error("word " + std::to_string(position_) + ": " + what + " needs " + str(count) + " words, " +
                        std::to_string(left()) + " are left");
        }
        position_ += static_cast<size_t>(count);
        return position_ - static_cast<size_t>(count);
    }

    int32_t word(const std::string& what) { return words_[take(1, what)]; }

    // `number` itself, if that many things of at least `least_words` words can follow and there is at least one.
    int32_t count(int32_t number, size_t least_words, const char* what) const {
        if (number < 1 || static_cast<size_t>(number) > left() / least_words) {
            throw Error("the header says " + str(number) + " " + what + "; " + std::to_string(left()) +
                        " words are left");
        }
        return number;
    }

    int source(size_t existing, const std::string& what) {
        int32_t number = word(what);
        if (number < 0 || static_cast<size_t>(number) >= existing) {
            throw Error("word " + std::to_string(position_ - 1) + ": " + what + " is value " + str(number) + ", of " +
                        std::to_string(existing) + " so far");
        }
        return number;
    }

    Value input() {
        size_t start = take(kInputWords, "an input");
        const int32_t* words = words_ + start;
        if (words[0] != 2 && words[0] != 4) {
            throw Error("word " + std::to_string(start) + ": an input of rank " + str(words[0]) + "; 2 and 4 exist");
        }
        if (words[0] == 2 && !(words[2] == 1 && words[3] == 1)) {
            throw Error("word " + std::to_string(start) + ": an input of rank 2 has height and width 1");
        }
        return {Kind::real, words[1], words[2], words[3], words[0] == 2};
    }

    // Reads an operation and adds the value that it makes to `values`.
    Operation operation(size_t number, std::vector<Value>& values) {
        size_t start = take(kRecordWords, "operation " + std::to_string(number));
        int32_t code = words_[start], length = words_[start + 1], inputs = words_[start + 2];
        if (code < 1 || static_cast<size_t>(code) > rules().size()) {
            throw Error("word " + std::to_string(start) + ": operation " + std::to_string(number) +
                        " has the unknown code " + str(code));
        }
        Operation operation;
        operation.op = static_cast<Op>(code);
        const Rule& rule = rule_of(operation.op);
        const std::string place = "operation " + std::to_string(number) + " (" + rule.name + ")";
        if (inputs < rule.least_inputs || inputs > rule.most_inputs) {
            throw Error("word " + std::to_string(start) + ": " + place + " has " + str(inputs) + " inputs");
        }
        for (int32_t i = 0; i < inputs; i++) {
            operation.inputs.push_back(source(values.size(), "an input of " + place));
        }
        for (const AttributeRule& attribute : rule.attributes) {
            int32_t value = word(place);
            if (value < attribute.least || value > attribute.most) {
                throw Error("word " + std::to_string(position_ - 1) + ": " + place + " has " + attribute.name + " " +
                            str(value) + "; " + str(attribute.least) + " to " + str(attribute.most) + " exist");
            }
            operation.attributes.*attribute.member = value;
        }
        Value result = named_result_of(number, operation, values);  // before sizes are computed from it
        arrays(operation, values[operation.inputs[0]].channels, place);
        if (position_ - start != static_cast<size_t>(static_cast<int64_t>(length))) {
            throw Error("word " + std::to_string(start) + ": " + place + " takes " + std::to_string(position_ - start) +
                        " words, its record says " + str(length));
        }
        values.push_back(result);
        return operation;
    }

  private:
    // The arrays of an operation on so many channels.
    void arrays(Operation& operation, int64_t channels, const std::string& place) {
        const Attributes& a = operation.attributes;
        switch (operation.op) {
            case Op::conv: {
                int64_t elements = int64_t(a.out_channels) * (channels / a.groups) * a.taps();
                operation.first =
                    a.half ? halves(elements, "weight of " + place) : take(elements, "weight of " + place);
                if (a.has_bias) {
                    operation.second = take(a.out_channels, "bias of " + place);
                }
                break;
            }
            case Op::binary_conv:
                operation.first = bits(int64_t(a.out_channels) * a.taps(), channels / a.groups, "weight of " + place);
                break;
            case Op::threshold:
                operation.first = take(channels, "threshold of " + place);
                operation.second = bits(1, channels, "flip of " + place);
                for (int64_t i = 0; i < channels; i++) {
                    float threshold;
                    std::memcpy(&threshold, words_ + operation.first + i, sizeof threshold);
                    if (std::isnan(threshold)) {
                        throw Error(place + " has a threshold that is not a number");
                    }
                }
                break;
            case Op::affine:
                operation.first = take(channels, "scale of " + place);
                operation.second = take(channels, "shift of " + place);
                break;
            default:
                break;
        }
    }

    size_t halves(int64_t elements, const std::string& what) {
        size_t start = take((elements + 1) / 2, what);
        if (elements % 2 && static_cast<uint32_t>(words_[position_ - 1]) >> 16) {
            throw Error(what + " is not padded with 0");
        }
        return start;
    }

    size_t bits(int64_t rows, int64_t elements, const std::string& what) {
        int64_t words = (elements + 31) / 32;
        size_t start = take(rows * words, what);
        if (elements % 32) {
            for (int64_t row = 0; row < rows; row++) {
                if (static_cast<uint32_t>(words_[start + (row + 1) * words - 1]) >> elements % 32) {
                    throw Error(what + " has bits set beyond its last element");
                }
            }
        }
        return start;
    }

    const int32_t* words_;
    size_t count_;
    size_t position_ = kHeaderWords;
};

void check(bool condition, const std::string& message) {
    if (!condition) {
        throw Error(message);
    }
}

}  // namespace

const char* name_of(Op op) { return rule_of(op).name; }

std::string to_string(const Value& value) {
    std::string shape = str(value.channels);
    if (!value.flat) {
        shape += ", " + str(value.height) + ", " + str(value.width);
    }
    return std::string(value.kind == Kind::real ? "real" : "bits") + " (" + shape + ")";
}

Program::Program(const int32_t* words, size_t count) {
    check(count >= kHeaderWords, "a program has at least " + std::to_string(kHeaderWords) + " words, not " +
                                     std::to_string(count) + ": the file is cut short");
    check(words[0] == kMagic, "no packed program: the magic word is missing");
    check(words[1] == kVersion, "format version " + str(words[1]) + "; this release reads version " + str(kVersion) +
                                    ": convert the network again");
    check(words[2] >= 0 && static_cast<size_t>(words[2]) == count,
          "the header says " + str(words[2]) + " words, there are " + std::to_string(count) + ": the file is damaged");
    check(static_cast<uint32_t>(words[3]) == checksum(words + 4, count - 4),
          "the checksum does not match: the file is damaged");
    check(words[7] == 0, "word 7 is not 0");

    Reader reader(words, count);
    for (int32_t i = reader.count(words[4], kInputWords, "inputs"); i > 0; i--) {
        inputs_.push_back(reader.input());
    }
    for (size_t i = 0; i < inputs_.size(); i++) {
        check_input(i, inputs_[i]);
    }
    values_ = inputs_;
    check(words[5] <= kMaxOperations, str(words[5]) + " operations; at most " + str(kMaxOperations) + " are possible");
    int32_t operations = reader.count(words[5], kRecordWords + 1, "operations");
    for (int32_t i = 0; i < operations; i++) {
        operations_.push_back(reader.operation(i, values_));
    }
    for (int32_t i = reader.count(words[6], 1, "outputs"); i > 0; i--) {
        outputs_.push_back(reader.source(values_.size(), "an output"));
    }
    check(reader.left() == 0, std::to_string(reader.left()) + " words follow the last output");
    for (int output : outputs_) {
        check(values_[output].kind == Kind::real, "output value " + str(output) + " holds bits");
    }
}

std::vector<Value> Program::infer(const std::vector<std::pair<int64_t, int64_t>>& sizes) const {
    std::vector<Value> values = inputs_;
    for (size_t i = 0; i < inputs_.size(); i++) {
        if (!inputs_[i].flat) {
            std::tie(values[i].height, values[i].width) = sizes[i];
        }
        check_input(i, values[i]);
    }
    for (size_t i = 0; i < operations_.size(); i++) {
        Value value = named_result_of(i, operations_[i], values);
        int64_t channels = values_[value_of(static_cast<int>(i))].channels;
        if (value.channels != channels) {  // only flatten can do that
            throw Error("operation " + std::to_string(i) + ": flatten makes " + str(value.channels) +
                        " channels of this input; the network was converted with " + str(channels) +
                        ": give inputs of the size at conversion");
        }
        values.push_back(value);
    }
    return values;
}

}  // namespace bmx
