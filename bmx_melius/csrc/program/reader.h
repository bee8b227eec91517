// Sequential reader of the words of a program, the only place that knows where each of them is. Nothing is used before
// it has been checked, nor allocated in proportion to a number that has not been. The checks are the same as in
// deployment/program/reader.py, in the same order, so that both refuse a program at the same place.
#pragma once
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "program/error.h"
#include "program/operations.h"

namespace bmx {

// Totals over the operations read so far, with their limits.
class Totals {
  public:
    void add(const FieldPlace& place, const Operation& operation, int64_t channels) {
        operands_ += static_cast<int64_t>(operation.inputs.size());
        if (operation.convolves()) {
            const Attributes& a = operation.attributes;
            const int64_t blocks = (a.out_channels / a.groups + kFilterBlock - 1) / kFilterBlock;
            groups_ += a.groups;
            weights_ += blocks * kFilterBlock * channels * a.taps();
        }
        check(place, operands_, "all inputs", kMaxAllOperands);
        check(place, groups_, "all groups", kMaxAllGroups);
        check(place, weights_, "all weights", kMaxAllWeights);
    }

  private:
    static void check(const FieldPlace& place, int64_t total, const char* what, int64_t limit) {
        if (total > limit) {
            refuse(place, what, total);
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

    // Takes `count` words and returns their position. Messages name the operation and the field.
    size_t take(int64_t count, const char* field, FieldPlace place = {}) {
        if (count < 0 || count > static_cast<int64_t>(left())) {
            place.word = static_cast<int64_t>(position_);
            throw Error(place.text(field) + ": " + std::to_string(count) + " words are needed, " +
                        std::to_string(left()) + " are left");
        }
        position_ += static_cast<size_t>(count);
        return position_ - static_cast<size_t>(count);
    }

    // Returns a number of the header, if it is at least 1 and that many items of at least `min_words` words can
    // follow.
    int32_t count(int word, size_t min_words, const char* field) const {
        const int32_t number = words_[word];
        if (number < 1 || static_cast<size_t>(number) > left() / min_words) {
            refuse({word}, field, number);
        }
        return number;
    }

    // Reads `count` numbers of values, each less than `existing`.
    std::vector<int> sources(int32_t count, size_t existing, const char* field, FieldPlace place = {}) {
        const size_t start = take(count, field, place);
        const std::vector<int> numbers(words_ + start, words_ + position_);
        for (size_t i = 0; i < numbers.size(); i++) {
            if (numbers[i] < 0 || static_cast<size_t>(numbers[i]) >= existing) {
                place.word = static_cast<int64_t>(start + i);
                refuse(place, field, numbers[i]);
            }
        }
        return numbers;
    }

    Value input() {
        const size_t start = take(kInputWords, "inputs");
        const int32_t* words = words_ + start;
        if (words[0] != 2 && words[0] != 4) {
            refuse({static_cast<int64_t>(start)}, "rank", words[0]);
        }
        if (words[0] == 2 && !(words[2] == 1 && words[3] == 1)) {
            refuse({static_cast<int64_t>(start)}, "size", words[2] == 1 ? words[3] : words[2]);
        }
        return {Kind::real, words[1], words[2], words[3], words[0] == 2};
    }

    // Reads an operation and appends its result to `values`.
    Operation operation(size_t number, std::vector<Value>& values) {
        FieldPlace place = {-1, static_cast<int64_t>(number)};
        const int64_t length_before = length();
        const size_t start = take(kRecordWords, "head", place);
        const auto at = [&](size_t offset) {
            return FieldPlace{static_cast<int64_t>(start + offset), place.operation, place.name};
        };
        const int32_t code = words_[start], length = words_[start + 1], inputs = words_[start + 2];
        if (!is_opcode(code)) {
            refuse(at(0), "opcode", code);
        }
        Operation operation;
        operation.op = static_cast<Op>(code);
        const OperationRow& row = row_of(operation.op);
        place.name = row.name;
        if (inputs < row.min_inputs || inputs > row.max_inputs) {
            refuse(at(2), "inputs", inputs);
        }
        operation.inputs = sources(inputs, values.size(), "inputs", place);
        attributes(operation, row, place);
        const Value result = result_of(number, operation, values);  // before sizes are computed from it
        const int64_t channels = values[operation.inputs[0]].channels;
        totals_.add(place, operation, channels);
        arrays(operation, channels, place);
        if (this->length() - length_before != length) {
            refuse(at(1), "length", length);
        }
        values.push_back(result);
        return operation;
    }

  private:
    void attributes(Operation& operation, const OperationRow& row, FieldPlace place) {
        size_t position = take(static_cast<int64_t>(row.attributes.size()), "attributes", place);
        for (const AttributeRow& attribute : row.attributes) {
            const int32_t value = words_[position];
            if (value < attribute.low || value > attribute.high) {
                place.word = static_cast<int64_t>(position);
                refuse(place, attribute.name, value);
            }
            operation.attributes.*attribute.member = value;
            position++;
        }
    }

    // Type and size of an array.
    struct Layout {
        ArrayType type;
        int64_t elements, row;  // row: elements of the last axis of bits, otherwise 0

        int64_t words() const {
            switch (type) {
                case ArrayType::float16:
                    return (elements + 1) / 2;
                case ArrayType::int8:
                    return (elements + 3) / 4;
                case ArrayType::bits:
                    return elements / row * ((row + 31) / 32);
                default:
                    return elements;
            }
        }
        bool operator==(const Layout& other) const {
            return type == other.type && elements == other.elements && row == other.row;
        }
    };

    static Layout layout_of(const ArrayRow& array) {
        int64_t elements = 1;
        for (int axis = 0; axis < array.rank; axis++) {
            elements *= array.sizes[axis];
        }
        return {array.type, elements, array.type == ArrayType::bits ? array.sizes[array.rank - 1] : 0};
    }

    struct Stored {
        Layout layout;
        size_t position;
    };

    // Reads the arrays of an operation with the given number of input channels.
    void arrays(Operation& operation, int64_t channels, const FieldPlace& place) {
        const Attributes& a = operation.attributes;
        size_t number = 0;
        visit_arrays(operation.op, a, channels, [&](const ArrayRow& row) {
            const Layout layout = layout_of(row);
            operation.arrays[number] = array(layout, row.name, place);
            check_padding(operation.arrays[number++], layout, row.name, place);
            repeat((a.planes - 1) * layout.words(), row.name, place);
        });
        number = 0;
        visit_arrays(operation.op, a, channels, [&](const ArrayRow& row) {
            const size_t position = operation.arrays[number++];
            if (row.ordered) {
                require_numbers(position, layout_of(row).elements, row.name, place);
            }
        });
    }

    // Reads the number of an array and, if it is 0, the words of its elements. Returns the position of its elements; 0
    // for a structure, which omits them.
    size_t array(const Layout& layout, const char* name, FieldPlace place) {
        place.word = static_cast<int64_t>(take(1, name, place));
        const int32_t number = words_[place.word];
        if (number) {
            if (number < 0 || static_cast<size_t>(number) > stored_.size() ||
                !(stored_[static_cast<size_t>(number) - 1].layout == layout)) {
                refuse(place, name, number);
            }
            place.word = -1;
            repeat(layout.words(), name, place);
            return stored_[static_cast<size_t>(number) - 1].position;
        }
        size_t position = 0;
        if (has_arrays_) {
            position = take(layout.words(), name, place);
        } else {
            omitted_ += layout.words();
        }
        stored_words_ += layout.words();
        stored_.push_back({layout, position});
        return position;
    }

    // Counts words that are used again.
    void repeat(int64_t words, const char* name, const FieldPlace& place) {
        repeated_words_ += words;
        if (repeated_words_ > kRepeatedWords + kRepeatedPerStored * stored_words_) {
            refuse(place, name, repeated_words_);
        }
    }

    // Checks that what follows the last element in a word is 0: half a word, or bits of each row.
    void check_padding(size_t position, const Layout& layout, const char* name, const FieldPlace& place) const {
        const int64_t row = layout.type == ArrayType::bits ? layout.row : layout.elements;
        const int used = layout.type == ArrayType::bits      ? static_cast<int>(row % 32)
                         : layout.type == ArrayType::float16 ? static_cast<int>(row % 2 * 16)
                         : layout.type == ArrayType::int8    ? static_cast<int>(row % 4 * 8)
                                                             : 0;
        const int64_t rows = layout.elements / row, words = layout.words() / rows;
        for (int64_t i = 1; has_arrays_ && used && i <= rows; i++) {
            const int32_t last = words_[position + i * words - 1];
            if (static_cast<uint32_t>(last) >> used) {
                refuse(place, name, last);
            }
        }
    }

    void require_numbers(size_t position, int64_t count, const char* name, const FieldPlace& place) const {
        for (int64_t i = 0; has_arrays_ && i < count; i++) {
            float number;
            std::memcpy(&number, words_ + position + i, sizeof number);
            if (std::isnan(number)) {
                throw Error(place.text(name) + ": NaN is not possible");
            }
        }
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
