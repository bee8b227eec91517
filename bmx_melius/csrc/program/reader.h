// Sequential reader of the words of a program, the only place that knows where each of them is. Nothing is used before
// it has been checked, nor allocated in proportion to a number that has not been.
#pragma once
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "program/error.h"
#include "program/limits.h"
#include "program/operations.h"

namespace bmx {

constexpr size_t kHeaderWords = 8, kInputWords = 4, kRecordWords = 3;

// An operation, for messages.
struct Place {
    size_t number;
    const char* name = nullptr;

    std::string text() const {
        return "operation " + std::to_string(number) + (name ? std::string(" (") + name + ")" : "");
    }
};

// Totals over the operations read so far, with their limits.
class Totals {
  public:
    void add(const Place& place, const Operation& operation, int64_t channels) {
        operands_ += static_cast<int64_t>(operation.inputs.size());
        if (operation.op == Op::conv || operation.op == Op::binary_conv) {
            const Attributes& a = operation.attributes;
            const int64_t blocks = (a.out_channels / a.groups + kFilterBlock - 1) / kFilterBlock;
            groups_ += a.groups;
            weights_ += blocks * kFilterBlock * channels * a.taps();
        }
        check(place, operands_, "inputs of operations", kMaxAllOperands);
        check(place, groups_, "groups of convolutions", kMaxAllGroups);
        check(place, weights_, "weights of convolutions", kMaxAllWeights);
    }

  private:
    static void check(const Place& place, int64_t total, const char* what, int64_t most) {
        if (total > most) {
            throw Error(place.text() + ": " + std::to_string(total) + " " + what + " so far; at most " +
                        std::to_string(most) + " are possible");
        }
    }

    int64_t operands_ = 0, groups_ = 0, weights_ = 0;
};

// Sequential reader of the words of a program or a structure with bounds checks.
class Reader {
  public:
    Reader(const int32_t* words, size_t count, bool has_arrays)
        : words_(words), count_(count), has_arrays_(has_arrays) {}

    // Number of words of the program up to the current position, including those that a structure omits.
    int64_t length() const { return static_cast<int64_t>(position_) + omitted_; }
    size_t left() const { return count_ - position_; }

    // Takes `count` words and returns their position. Messages call them `what`, or `what` of `place`.
    size_t take(int64_t count, const char* what, const Place* place = nullptr) {
        if (count < 0 || count > static_cast<int64_t>(left())) {
            throw Error("word " + std::to_string(position_) + ": " + text(what, place) + " needs " +
                        std::to_string(count) + " words, " + std::to_string(left()) + " are left");
        }
        position_ += static_cast<size_t>(count);
        return position_ - static_cast<size_t>(count);
    }

    // Returns `number`, if it is at least 1 and that many items of at least `least_words` words can follow.
    int32_t count(int32_t number, size_t least_words, const char* what) const {
        if (number < 1 || static_cast<size_t>(number) > left() / least_words) {
            throw Error("the header says " + std::to_string(number) + " " + what + "; " + std::to_string(left()) +
                        " words are left");
        }
        return number;
    }

    // Reads `count` numbers of values, each less than `existing`.
    std::vector<int> sources(int32_t count, size_t existing, const char* list, const char* one,
                             const Place* place = nullptr) {
        const size_t start = take(count, list, place);
        const std::vector<int> numbers(words_ + start, words_ + position_);
        for (size_t i = 0; i < numbers.size(); i++) {
            if (numbers[i] < 0 || static_cast<size_t>(numbers[i]) >= existing) {
                throw Error("word " + std::to_string(start + i) + ": " + text(one, place) + " is value " +
                            std::to_string(numbers[i]) + ", of " + std::to_string(existing) + " so far");
            }
        }
        return numbers;
    }

    Value input() {
        size_t start = take(kInputWords, "an input");
        const int32_t* words = words_ + start;
        if (words[0] != 2 && words[0] != 4) {
            throw Error("word " + std::to_string(start) + ": an input of rank " + std::to_string(words[0]) +
                        "; 2 and 4 exist");
        }
        if (words[0] == 2 && !(words[2] == 1 && words[3] == 1)) {
            throw Error("word " + std::to_string(start) + ": an input of rank 2 has height and width 1");
        }
        return {Kind::real, words[1], words[2], words[3], words[0] == 2};
    }

    // Reads an operation and appends its result to `values`.
    Operation operation(size_t number, std::vector<Value>& values) {
        Place place = {number};
        const int64_t length_before = length();
        const size_t start = take(kRecordWords, "the head", &place);
        const int32_t code = words_[start], length = words_[start + 1], inputs = words_[start + 2];
        if (code < 1 || static_cast<size_t>(code) > rules().size()) {
            throw Error("word " + std::to_string(start) + ": " + place.text() + " has the unknown code " +
                        std::to_string(code));
        }
        Operation operation;
        operation.op = static_cast<Op>(code);
        const Rule& rule = rule_of(operation.op);
        place.name = rule.name;
        if (inputs < rule.least_inputs || inputs > rule.most_inputs) {
            throw Error("word " + std::to_string(start) + ": " + place.text() + " has " + std::to_string(inputs) +
                        " inputs; " + std::to_string(rule.least_inputs) + " to " + std::to_string(rule.most_inputs) +
                        " are possible");
        }
        operation.inputs = sources(inputs, values.size(), "the list of inputs", "an input", &place);
        attributes(operation, rule, place);
        const Value result = result_of(number, operation, values);  // before sizes are computed from it
        const int64_t channels = values[operation.inputs[0]].channels;
        totals_.add(place, operation, channels);
        arrays(operation, channels, place);
        const int64_t found = this->length() - length_before;
        if (found != length) {
            throw Error("word " + std::to_string(start) + ": " + place.text() + " takes " + std::to_string(found) +
                        " words, its record says " + std::to_string(length));
        }
        values.push_back(result);
        return operation;
    }

  private:
    static std::string text(const char* what, const Place* place) {
        return place ? std::string(what) + " of " + place->text() : what;
    }

    void attributes(Operation& operation, const Rule& rule, const Place& place) {
        size_t position = take(static_cast<int64_t>(rule.attributes.size()), "the list of attributes", &place);
        Attributes& read = operation.attributes;
        for (const AttributeRule& attribute : rule.attributes) {
            const int32_t value = words_[position++];
            if (value < attribute.least || value > attribute.most) {
                throw Error("word " + std::to_string(position - 1) + ": " + place.text() + " has " + attribute.name +
                            " " + std::to_string(value) + "; " + std::to_string(attribute.least) + " to " +
                            std::to_string(attribute.most) + " exist");
            }
            read.*attribute.member = value;
        }
    }

    // Reads the arrays of an operation with the given number of input channels.
    void arrays(Operation& operation, int64_t channels, const Place& place) {
        const Attributes& a = operation.attributes;
        switch (operation.op) {
            case Op::conv: {
                const int64_t elements = int64_t(a.out_channels) * (channels / a.groups) * a.taps();
                operation.first = a.half ? halves(elements, "weight", place) : array(elements, "weight", place);
                if (a.has_bias) {
                    operation.second = array(a.out_channels, "bias", place);
                }
                break;
            }
            case Op::binary_conv: {
                const int64_t rows = int64_t(a.out_channels) * a.taps(), plane = channels / a.groups / a.planes;
                operation.first = bits(rows, plane, "weight", place);
                repeat((a.planes - 1) * rows * ((plane + 31) / 32), "weight", place);
                break;
            }
            case Op::threshold:
                operation.first = array(channels, "threshold", place);
                operation.second = bits(1, channels, "flip", place);
                require_numbers(operation.first, channels, "threshold", place);
                break;
            case Op::affine:
                operation.first = array(channels, "scale", place);
                operation.second = array(channels, "shift", place);
                break;
            case Op::prelu:
            case Op::elu:
                operation.first = array(channels, "slope", place);
                break;
            case Op::clip:
                operation.first = array(channels, "low", place);
                operation.second = array(channels, "high", place);
                require_numbers(operation.first, channels, "low", place);
                require_numbers(operation.second, channels, "high", place);
                break;
            case Op::scale_map:
            case Op::shift_map:
                operation.first = array(int64_t(a.by_channel ? channels : 1) * a.height * a.width,
                                        operation.op == Op::scale_map ? "factor" : "summand", place);
                break;
            case Op::normalize:
                operation.first = array(1, "eps", place);
                break;
            default:
                break;
        }
    }

    // Type and size of an array.
    struct Layout {
        enum { floats, halves, bits } type;
        int64_t elements, row;  // row: elements of the last axis of bits, otherwise 0

        int64_t words() const {
            const int64_t rows = type == bits ? elements / row : 1;
            return type == floats ? elements : type == halves ? (elements + 1) / 2 : rows * ((row + 31) / 32);
        }
        bool operator==(const Layout& other) const {
            return type == other.type && elements == other.elements && row == other.row;
        }
    };

    struct Stored {
        Layout layout;
        size_t position;
    };

    size_t array(int64_t elements, const char* what, const Place& place) {
        return array({Layout::floats, elements, 0}, what, place);
    }

    // Reads the number of an array and, if it is 0, the words of its elements. Returns the position of its elements; 0
    // for a structure, which omits them.
    size_t array(const Layout& layout, const char* what, const Place& place) {
        const std::string name = std::string("the number of ") + what;
        const int32_t number = words_[take(1, name.c_str(), &place)];
        if (number) {
            return repeated(number, layout, what, place);
        }
        size_t position = 0;
        if (has_arrays_) {
            position = take(layout.words(), what, &place);
        } else {
            omitted_ += layout.words();
        }
        stored_words_ += layout.words();
        stored_.push_back({layout, position});
        return position;
    }

    size_t repeated(int32_t number, const Layout& layout, const char* what, const Place& place) {
        const auto is_stored = [&] { return text(what, &place) + " is stored array " + std::to_string(number); };
        if (number < 0 || static_cast<size_t>(number) > stored_.size()) {
            throw Error(is_stored() + ", of " + std::to_string(stored_.size()) + " so far");
        }
        const Stored& found = stored_[static_cast<size_t>(number) - 1];
        if (!(found.layout == layout)) {
            throw Error(is_stored() + ", which has another type or size");
        }
        repeat(layout.words(), what, place);
        return found.position;
    }

    // Counts words that are used again.
    void repeat(int64_t words, const char* what, const Place& place) {
        repeated_words_ += words;
        const int64_t most = kRepeatedWords + kRepeatedPerStored * stored_words_;
        if (repeated_words_ > most) {
            throw Error(text(what, &place) + ": " + std::to_string(repeated_words_) +
                        " words of repeated arrays so far; at most " + std::to_string(most) + " are possible");
        }
    }

    void require_numbers(size_t position, int64_t count, const char* what, const Place& place) const {
        for (int64_t i = 0; has_arrays_ && i < count; i++) {
            float number;
            std::memcpy(&number, words_ + position + i, sizeof number);
            if (std::isnan(number)) {
                throw Error(place.text() + " has a " + what + " that is not a number");
            }
        }
    }

    size_t halves(int64_t elements, const char* what, const Place& place) {
        const Layout layout = {Layout::halves, elements, 0};
        const size_t start = array(layout, what, place);
        if (has_arrays_ && elements % 2 && static_cast<uint32_t>(words_[start + layout.words() - 1]) >> 16) {
            throw Error(text(what, &place) + " is not padded with 0");
        }
        return start;
    }

    size_t bits(int64_t rows, int64_t elements, const char* what, const Place& place) {
        const int64_t words = (elements + 31) / 32;
        const size_t start = array({Layout::bits, rows * elements, elements}, what, place);
        for (int64_t row = 0; has_arrays_ && elements % 32 && row < rows; row++) {
            if (static_cast<uint32_t>(words_[start + (row + 1) * words - 1]) >> elements % 32) {
                throw Error(text(what, &place) + " has bits set beyond its last element");
            }
        }
        return start;
    }

    const int32_t* words_;
    size_t count_;
    bool has_arrays_;
    size_t position_ = kHeaderWords;
    int64_t omitted_ = 0;
    std::vector<Stored> stored_;  // the arrays whose elements are stored, so far
    int64_t stored_words_ = 0, repeated_words_ = 0;
    Totals totals_;
};

}  // namespace bmx
