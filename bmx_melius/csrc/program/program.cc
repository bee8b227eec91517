#include "program/program.h"

#include <array>
#include <tuple>

#include "program/error.h"
#include "program/reader.h"

namespace bmx {

// The limits of programs (deployment/program/limits.py) bound products that need more than 32 bits. The limits of
// WebAssembly are lower.
#ifndef __wasm32__
static_assert(sizeof(size_t) >= 8, "the engine requires a 64-bit processor; packed networks run on NumPy");
#endif

namespace {

void check_input(size_t number, const Value& value) {
    bool possible = 1 <= value.channels && value.channels <= kMaxChannels && 1 <= value.height &&
                    value.height <= kMaxSize && 1 <= value.width && value.width <= kMaxSize;
    if (!possible || value.elements() >= kMaxElements) {
        throw Error("input " + std::to_string(number) + ", size: " + to_string(value) + " is not possible");
    }
}

uint32_t checksum(const int32_t* words, size_t count) {
    static constexpr std::array<uint32_t, 256> table = [] {
        std::array<uint32_t, 256> entries{};
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

void check_length(const int32_t* words, int64_t length) {
    if (words[2] != length) {
        throw Error("word 2, length: " + std::to_string(words[2]) + " words, there are " + std::to_string(length) +
                    ": the file is damaged");
    }
}

// Checks the header, except for the length of a structure.
void check_header(const int32_t* words, size_t count, bool has_arrays) {
    if (count < kHeaderWords) {
        throw Error("header: " + std::to_string(count) + " words: the file is cut short");
    }
    if (words[0] != kMagic) {
        throw Error("word 0, magic: not a packed program");
    }
    if (words[1] < kFirstVersion || words[1] > kVersion) {
        throw Error("word 1, version: format version " + std::to_string(words[1]) + "; this release reads version " +
                    std::to_string(kVersion) +
                    (words[1] < kFirstVersion ? ": convert the network again" : ": update bmx-melius"));
    }
    if (has_arrays) {
        check_length(words, static_cast<int64_t>(count));
    }
    if (static_cast<uint32_t>(words[3]) != checksum(words + 4, count - 4)) {
        throw Error("word 3, checksum: the file is damaged");
    }
    const auto check_count = [&](int word, const char* field, int32_t limit) {
        if (words[word] > limit) {
            refuse({word}, field, words[word]);
        }
    };
    if (words[7] != 0) {
        refuse({7}, "zero", words[7]);
    }
    check_count(4, "inputs", kMaxInputs);
    check_count(5, "operations", kMaxOperations);
    check_count(6, "outputs", kMaxOutputs);
}

}  // namespace

Program::Program(const int32_t* words, size_t count, bool has_arrays) {
    check_header(words, count, has_arrays);
    Reader reader(words, count, has_arrays);
    for (int32_t i = reader.count(4, kInputWords, "inputs"); i > 0; i--) {
        inputs_.push_back(reader.input());
    }
    for (size_t i = 0; i < inputs_.size(); i++) {
        check_input(i, inputs_[i]);
    }
    values_ = inputs_;
    int32_t operations = reader.count(5, kRecordWords + 1, "operations");
    for (int32_t i = 0; i < operations; i++) {
        operations_.push_back(reader.operation(i, values_));
    }
    outputs_ = reader.sources(reader.count(6, 1, "outputs"), values_.size(), "outputs");
    if (reader.left() != 0) {
        throw Error("word " + std::to_string(count - reader.left()) + ": " + std::to_string(reader.left()) +
                    " words follow the last output");
    }
    length_ = reader.length();
    check_length(words, length_);
    for (int output : outputs_) {
        if (values_[output].kind == Kind::bits) {
            throw Error("output value " + std::to_string(output) + ": it holds bits");
        }
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
        try {
            values.push_back(result_of(i, operations_[i], values));
            // Channels that are others than at conversion are only possible for flatten.
            const int64_t channels = values_[values.size() - 1].channels;
            if (values.back().channels != channels) {
                refuse({-1, static_cast<int64_t>(i), name_of(operations_[i].op)}, "channels", values.back().channels);
            }
        } catch (const Error& error) {
            throw Error(std::string(error.what()) + ": give inputs of the size at conversion");
        }
    }
    return values;
}

}  // namespace bmx
