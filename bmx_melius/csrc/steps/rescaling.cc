#include "steps/rescaling.h"

#include <algorithm>

#include "program/operation_table.h"

namespace bmx {
namespace {

// Constants of one channel. They exist only if `exact`.
struct Narrow {
    bool exact;
    int64_t low, high, factor, summand;

    // Whether results lie within 32 bits.
    bool fits() const {
        const int64_t a = low * factor + summand, b = high * factor + summand;
        return std::max(a, b) <= INT32_MAX && std::min(a, b) >= INT32_MIN;
    }
};

// Numbers whose results would exceed the limits are limited themselves.
Narrow narrow(int64_t multiplier, int64_t offset, const Attributes& a, IntegerRange numbers) {
    const int64_t one = int64_t(1) << a.shift, summand = offset * (one >> kOffsetShift) + one / 2;
    const int64_t below_max = a.result_max * one - summand, above_min = (a.result_min + 1) * one - summand;
    int64_t first_min, last_min;  // numbers from the one on and up to the other have the result min, and so on
    int64_t low = numbers.low, high = numbers.high;
    bool limits;  // whether a number has a limit as result
    const auto constant = [&](int y) { return Narrow{true, 0, 0, 0, y * one}; };
    if (multiplier == 0) {
        const int64_t y = summand >> a.shift;
        return constant(static_cast<int>(std::min<int64_t>(std::max<int64_t>(y, a.result_min), a.result_max)));
    }
    const int64_t magnitude = std::abs(multiplier);
    if (multiplier > 0) {
        last_min = floor_div(above_min - 1, magnitude);
        const int64_t first_max = -floor_div(-below_max, magnitude);
        if (last_min > high || first_max < low) {
            return constant(last_min > high ? a.result_min : a.result_max);
        }
        limits = low <= last_min || high >= first_max;
        low = std::max(low, last_min);
        high = std::min(high, first_max);
    } else {
        first_min = floor_div(-above_min, magnitude) + 1;
        const int64_t last_max = floor_div(-below_max, magnitude);
        if (first_min < low || last_max > high) {
            return constant(first_min < low ? a.result_min : a.result_max);
        }
        limits = low <= last_max || high >= first_min;
        low = std::max(low, last_max);
        high = std::min(high, first_min);
    }
    // Limited numbers have a limit as result, unless results skip numbers, or there is only one.
    const bool skips = magnitude > one || a.result_min == a.result_max;
    return {!(limits && skips), low, high, multiplier, summand};
}

// Constants of one channel whose results are 16-bit integers: numbers up to `low` have the result `below`, numbers from
// `high` on the result `above`.
struct NarrowShort {
    int64_t low, high, below, above, factor, summand;

    // Whether the results of the other numbers are computed within 32 bits.
    bool fits(IntegerRange numbers) const {
        const int64_t first = std::max(low + 1, numbers.low), last = std::min(high - 1, numbers.high);
        const int64_t a = first * factor + summand, b = last * factor + summand;
        return first > last || (std::max(a, b) <= INT32_MAX && std::min(a, b) >= INT32_MIN);
    }
};

NarrowShort narrow_short(int64_t multiplier, int64_t offset, const Attributes& a) {
    const int64_t one = int64_t(1) << a.shift, summand = offset * (one >> kOffsetShift) + one / 2;
    if (multiplier == 0) {
        const int64_t y = std::min<int64_t>(std::max<int64_t>(summand >> a.shift, a.result_min), a.result_max);
        return {INT32_MAX, INT32_MAX, y, y, 0, 0};
    }
    const auto in_32_bits = [](int64_t n) { return std::min<int64_t>(std::max<int64_t>(n, INT32_MIN), INT32_MAX); };
    // Results are at most the smallest one below, and at least the largest one from the other number on.
    const int64_t above_min = (a.result_min + 1) * one - summand, below_max = a.result_max * one - summand;
    if (multiplier > 0) {
        const int64_t last_min = floor_div(above_min - 1, multiplier), first_max = -floor_div(-below_max, multiplier);
        return {in_32_bits(last_min), in_32_bits(first_max), a.result_min, a.result_max, multiplier, summand};
    }
    const int64_t last_max = floor_div(-below_max, -multiplier), first_min = floor_div(-above_min, -multiplier) + 1;
    return {in_32_bits(last_max), in_32_bits(first_min), a.result_max, a.result_min, multiplier, summand};
}

// Returns make(c) for each channel, or none if 32 bits do not suffice for one of them.
template <class Make, class Suffices>
auto narrow_channels(size_t channels, const Attributes& attributes, const Make& make, const Suffices& suffices) {
    std::vector<decltype(make(0))> all;
    for (size_t c = 0; c < channels && attributes.shift < 32; c++) {
        all.push_back(make(c));
        if (!suffices(all.back())) {
            all.clear();
            break;
        }
    }
    return all;
}

// Returns constants as vectors read them, modulo 2^32.
template <class Channel>
Constants<int32_t> gathered(const std::vector<Channel>& channels, int64_t Channel::* member) {
    Constants<int32_t> numbers(channels.size() + kInt8Lanes);
    std::transform(channels.begin(), channels.end(), numbers.data(),
                   [&](const Channel& channel) { return static_cast<int32_t>(channel.*member); });
    return numbers;
}

RescalingConstants wide_constants(const std::vector<int32_t>& multiplier, const std::vector<int32_t>& offset,
                                  const Attributes& attributes) {
    RescalingConstants constants;
    constants.multiplier = Constants<int32_t>(multiplier.size() + kInt8Lanes);
    constants.offset = Constants<int32_t>(offset.size() + kInt8Lanes);
    std::copy(multiplier.begin(), multiplier.end(), constants.multiplier.data());
    std::copy(offset.begin(), offset.end(), constants.offset.data());
    constants.shift = attributes.shift;
    constants.min = attributes.result_min;
    constants.max = attributes.result_max;
    return constants;
}

}  // namespace

Rescaling RescalingConstants::from(int channel) const {
    const bool narrow = low.size();
    const Rescaling first = {multiplier.data(), offset.data(), shift,         min, max, narrow ? low.data() : nullptr,
                             high.data(),       factor.data(), summand.data()};
    return first.from(channel);
}

RescalingConstants rescaling_constants(const std::vector<int32_t>& multiplier, const std::vector<int32_t>& offset,
                                       const Attributes& attributes, const std::vector<IntegerRange>& numbers) {
    RescalingConstants constants = wide_constants(multiplier, offset, attributes);
    const auto make = [&](size_t c) {
        return narrow(multiplier[c], offset[c], attributes, numbers[numbers.size() > 1 ? c : 0]);
    };
    const auto suffices = [](const Narrow& channel) { return channel.exact && channel.fits(); };
    const std::vector<Narrow> all = narrow_channels(multiplier.size(), attributes, make, suffices);
    if (!all.empty()) {
        constants.low = gathered(all, &Narrow::low);
        constants.high = gathered(all, &Narrow::high);
        constants.factor = gathered(all, &Narrow::factor);
        constants.summand = gathered(all, &Narrow::summand);
    }
    return constants;
}

ShortRescaling ShortRescalingConstants::from(int channel) const {
    const bool narrow = low.size();
    const ShortRescaling first = {
        exact.from(0), narrow ? low.data() : nullptr, high.data(), below.data(), above.data(), factor.data(),
        summand.data()};
    return first.from(channel);
}

ShortRescalingConstants short_rescaling_constants(const std::vector<int32_t>& multiplier,
                                                  const std::vector<int32_t>& offset, const Attributes& attributes,
                                                  IntegerRange numbers) {
    ShortRescalingConstants constants;
    constants.exact = rescaling_constants(multiplier, offset, attributes, {numbers});
    if (constants.exact.low.size()) {
        return constants;
    }
    const auto make = [&](size_t c) { return narrow_short(multiplier[c], offset[c], attributes); };
    const auto suffices = [&](const NarrowShort& channel) { return channel.fits(numbers); };
    const std::vector<NarrowShort> all = narrow_channels(multiplier.size(), attributes, make, suffices);
    if (!all.empty()) {
        constants.low = gathered(all, &NarrowShort::low);
        constants.high = gathered(all, &NarrowShort::high);
        constants.below = gathered(all, &NarrowShort::below);
        constants.above = gathered(all, &NarrowShort::above);
        constants.factor = gathered(all, &NarrowShort::factor);
        constants.summand = gathered(all, &NarrowShort::summand);
    }
    return constants;
}

}  // namespace bmx
