#include "plan/arrays.h"

#include <cmath>
#include <cstring>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

float float_of_half(uint32_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude;
    if (exponent == 31) {
        magnitude = mantissa ? NAN : INFINITY;
    } else if (exponent == 0) {
        magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    } else {
        magnitude = std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
    }
    return half >> 15 ? -magnitude : magnitude;
}

}  // namespace

std::vector<float> Arrays::vector(size_t position, int64_t count) const {
    std::vector<float> numbers(count);
    std::memcpy(numbers.data(), words_ + position, sizeof(float) * count);
    return numbers;
}

std::vector<float> Arrays::halves(size_t position, int64_t count) const {
    std::vector<float> numbers(count);
    for (int64_t j = 0; j < count; j++) {
        numbers[j] = float_of_half(bits(position)[j / 2] >> j % 2 * 16 & 0xffff);
    }
    return numbers;
}

std::vector<int32_t> Arrays::integers(size_t position, int64_t count) const {
    return {words_ + position, words_ + position + count};
}

int64_t Arrays::weights_of(int i) const {
    const Attributes& a = operation(i).attributes;
    return int64_t(a.out_channels) * (channels_into(i) / a.groups) * a.taps();
}

// Returns the weights that are stored as numbers of levels.
template <class Number>
std::vector<Number> Arrays::expanded(int i, const Number* levels) const {
    const Attributes& a = operation(i).attributes;
    const int64_t count = weights_of(i), words = ceil_div(count, 32);
    const int positions = a.by_position ? a.taps() : 1;
    std::vector<Number> weights(count);
    int position = 0;
    for (int64_t j = 0; j < count; j++) {
        int number = 0;
        for (int plane = 0; plane < a.bits; plane++) {
            number |= (bits(operation(i).arrays[0])[plane * words + j / 32] >> j % 32 & 1) << plane;
        }
        weights[j] = levels[(position << a.bits) + number];
        position = position + 1 == positions ? 0 : position + 1;
    }
    return weights;
}

std::vector<float> Arrays::conv_weights(int i) const {
    const Attributes& a = operation(i).attributes;
    const size_t* arrays = operation(i).arrays;
    if (row_of(operation(i).op).weight_levels) {
        return expanded(i, vector(arrays[1], int64_t(a.by_position ? a.taps() : 1) << a.bits).data());
    }
    const int64_t count = weights_of(i);
    return a.half ? halves(arrays[0], count) : vector(arrays[0], count);
}

std::vector<float> Arrays::table(int i) const {
    const Attributes& a = operation(i).attributes;
    const int64_t count = int64_t(a.rows) * a.features;
    return a.half ? halves(operation(i).arrays[0], count) : vector(operation(i).arrays[0], count);
}

std::vector<int8_t> Arrays::int8_weights(int i) const {
    const size_t* arrays = operation(i).arrays;
    const bool levels = row_of(operation(i).op).weight_levels;
    const int8_t* stored = reinterpret_cast<const int8_t*>(words_ + arrays[levels ? 1 : 0]);
    return levels ? expanded(i, stored) : std::vector<int8_t>(stored, stored + weights_of(i));
}

std::vector<uint32_t> Arrays::repeated_weights(int i) const {
    const Attributes& a = operation(i).attributes;
    if (a.planes == 1) {
        return {};
    }
    const int plane = channels_into(i) / a.groups / a.planes, plane_words = ceil_div(plane, 32);
    const int words = ceil_div(plane * a.planes, 32);
    std::vector<uint32_t> weights(size_t(a.out_channels) * a.taps() * words);
    const uint32_t* from = bits(operation(i).arrays[0]);
    for (uint32_t* row = weights.data(); row != weights.data() + weights.size(); row += words) {
        for (int bit = 0; bit < plane * a.planes; bit++) {
            const int in_plane = bit % plane;
            row[bit / 32] |= (from[in_plane / 32] >> in_plane % 32 & 1) << bit % 32;
        }
        from += plane_words;
    }
    return weights;
}

Constants<float> Arrays::channel_numbers(int i, size_t position) const {
    return Constants<float>(vector(position, channels_into(i)));
}

MapConstants Arrays::map_constants(int i) const {
    const Attributes& a = operation(i).attributes;
    const int channels = a.by_channel ? channels_into(i) : 1;
    const int64_t pixels = int64_t(a.height) * a.width;
    const std::vector<float> planes = vector(operation(i).arrays[0], channels * pixels);
    MapConstants constants = {a.height, a.width, channels, Constants<float>(planes.size())};
    for (int64_t c = 0; c < channels; c++) {
        for (int64_t pixel = 0; pixel < pixels; pixel++) {
            constants.numbers[pixel * channels + c] = planes[c * pixels + pixel];
        }
    }
    return constants;
}

}  // namespace bmx
