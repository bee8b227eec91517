// Builder of programs for tests, with arrays of zeros, each after its number, also 0.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "program/program.h"

class ProgramBuilder {
  public:
    // Values are numbered in the order of the calls. Inputs must come first.
    int input(int channels, int height = 1, int width = 1) {
        append(inputs_, {4, channels, height, width});
        input_count_++;
        channels_.push_back(channels);
        return values_++;
    }

    int conv(int x, int out_channels, int kernel = 1, int groups = 1) {
        return add(bmx::Op::conv, {x}, window(out_channels, kernel, groups, {0, 0}),
                   1 + out_channels * (channels_[x] / groups) * kernel * kernel, out_channels);
    }
    int binary_conv(int x, int out_channels, int kernel = 3, int groups = 1) {
        return add(bmx::Op::binary_conv, {x}, window(out_channels, kernel, groups, {-1, 0, 1}),
                   1 + out_channels * words_of(channels_[x] / groups) * kernel * kernel, out_channels);
    }
    int threshold(int x) {
        return add(bmx::Op::threshold, {x}, {}, 2 + channels_[x] + words_of(channels_[x]), channels_[x]);
    }
    int affine(int x) { return add(bmx::Op::affine, {x}, {}, 2 + 2 * channels_[x], channels_[x]); }
    int relu(int x) { return add(bmx::Op::relu, {x}, {}, 0, channels_[x]); }
    int max_pool(int x) { return add(bmx::Op::max_pool, {x}, {2, 2, 2, 2, 0, 0, 0, 0, 0}, 0, channels_[x]); }
    int global_avg_pool(int x) { return add(bmx::Op::global_avg_pool, {x}, {}, 0, channels_[x]); }
    int add(int x, int y) { return add(bmx::Op::add, {x, y}, {}, 0, channels_[x]); }
    // To integers from -most to most.
    int rescale(int x, int most) {
        version_ = 3;
        return add(bmx::Op::rescale, {x}, {16, -most, most}, 2 + 2 * channels_[x], channels_[x]);
    }
    int prelu(int x) { return add(bmx::Op::prelu, {x}, {}, 1 + channels_[x], channels_[x]); }
    int sigmoid(int x) { return add(bmx::Op::sigmoid, {x}, {}, 0, channels_[x]); }
    int multiply(int x, int y) { return add(bmx::Op::multiply, {x, y}, {}, 0, channels_[x]); }
    int channel_mean(int x) { return add(bmx::Op::channel_mean, {x}, {}, 0, 1); }
    int shuffle(int x, int groups) { return add(bmx::Op::shuffle, {x}, {groups}, 0, channels_[x]); }
    int slice(int x, int begin, int end) { return add(bmx::Op::slice, {x}, {begin, end}, 0, end - begin); }
    int concat(const std::vector<int>& inputs) {
        int channels = 0;
        for (int input : inputs) {
            channels += channels_[input];
        }
        return add(bmx::Op::concat, inputs, {}, 0, channels);
    }

    std::vector<int32_t> words(const std::vector<int>& outputs) const {
        std::vector<int32_t> body = {input_count_, operation_count_, static_cast<int32_t>(outputs.size()), 0};
        append(body, inputs_);
        append(body, operations_);
        append(body, outputs);
        std::vector<int32_t> words(4);
        append(words, body);
        return with_header(words, version_);
    }

    // Returns words with the first four, which depend on the others.
    static std::vector<int32_t> with_header(std::vector<int32_t> words, int version = 2) {
        words[0] = 0x50584d42, words[1] = version;
        words[2] = static_cast<int32_t>(words.size());
        words[3] = checksum(words);
        return words;
    }

    // Returns the checksum of the words after the first four.
    static int32_t checksum(const std::vector<int32_t>& words) {
        uint32_t crc = ~0u;
        for (size_t i = 4; i < words.size(); i++) {
            crc ^= static_cast<uint32_t>(words[i]);
            for (int bit = 0; bit < 32; bit++) {
                crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
            }
        }
        return static_cast<int32_t>(~crc);
    }

  private:
    static void append(std::vector<int32_t>& words, const std::vector<int32_t>& more) {
        words.insert(words.end(), more.begin(), more.end());
    }

    static int words_of(int bits) { return (bits + 31) / 32; }

    // Attributes of a convolution that keeps height and width. `last`: the two attributes after the groups.
    static std::vector<int32_t> window(int out_channels, int kernel, int groups, const std::vector<int32_t>& last) {
        const int pad = kernel / 2;
        std::vector<int32_t> attributes = {out_channels, kernel, kernel, 1, 1, pad, pad, pad, pad, 1, 1, groups};
        append(attributes, last);
        return attributes;
    }

    int add(bmx::Op op, const std::vector<int>& inputs, const std::vector<int32_t>& attributes, int array_words,
            int channels) {
        const size_t length = 3 + inputs.size() + attributes.size() + array_words;
        append(operations_,
               {static_cast<int32_t>(op), static_cast<int32_t>(length), static_cast<int32_t>(inputs.size())});
        append(operations_, inputs);
        append(operations_, attributes);
        operations_.resize(operations_.size() + array_words);
        operation_count_++;
        channels_.push_back(channels);
        return values_++;
    }

    int values_ = 0, input_count_ = 0, operation_count_ = 0, version_ = 2;
    std::vector<int> channels_;  // by value
    std::vector<int32_t> inputs_, operations_;
};
