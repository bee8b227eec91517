// Constants of the rescaling of integers, as kernels read them (kernels/common/int8_kernels.h).
#pragma once
#include <vector>

#include "kernels/common/int8_kernels.h"
#include "steps/step.h"

namespace bmx {

// Bounds of the numbers that are rescaled.
struct IntegerRange {
    int64_t low, high;
};

constexpr IntegerRange kRoundedFloats = {-(1 << 23), 1 << 23};

// Constants of a rescaling, with what vectors read beyond the last channel.
struct RescalingConstants {
    Constants<int32_t> multiplier, offset;
    int shift = 0, min = 0, max = 0;
    Constants<int32_t> low, high, factor, summand;  // empty if 32 bits do not suffice

    Rescaling from(int channel) const;
};

// `numbers` has the bounds for each channel, or one for all of them.
RescalingConstants rescaling_constants(const std::vector<int32_t>& multiplier, const std::vector<int32_t>& offset,
                                       const Attributes& attributes, const std::vector<IntegerRange>& numbers);

// The same of a rescaling to 16-bit integers.
struct ShortRescalingConstants {
    RescalingConstants exact;
    Constants<int32_t> low, high, below, above, factor, summand;  // empty if that needs none, or 32 bits do not suffice

    bool empty() const { return !exact.multiplier.size(); }
    ShortRescaling from(int channel) const;
};

ShortRescalingConstants short_rescaling_constants(const std::vector<int32_t>& multiplier,
                                                  const std::vector<int32_t>& offset, const Attributes& attributes,
                                                  IntegerRange numbers);

}  // namespace bmx
