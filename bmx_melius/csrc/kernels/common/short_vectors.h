// Kernels for 16-bit integers, and for integers stored as floats, with the vectors of the compiler, as wide as the
// instruction set has them.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "kernels/common/int8_loops.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

#if defined(__AVX512F__)
constexpr int kShortLanes = 16;
#elif defined(__AVX2__)
constexpr int kShortLanes = 8;
#else
constexpr int kShortLanes = 4;
#endif

using LaneIntegers = int32_t __attribute__((vector_size(4 * kShortLanes)));
using LaneWords = uint32_t __attribute__((vector_size(4 * kShortLanes)));
using LaneReals = float __attribute__((vector_size(4 * kShortLanes)));
using LaneShorts = int16_t __attribute__((vector_size(2 * kShortLanes)));
using LaneBytes = uint8_t __attribute__((vector_size(kShortLanes)));
using HalfIntegers = int32_t __attribute__((vector_size(2 * kShortLanes)));
using HalfReals = float __attribute__((vector_size(2 * kShortLanes)));
using HalfDoubles = double __attribute__((vector_size(4 * kShortLanes)));
using LaneHalves = uint16_t __attribute__((vector_size(2 * kShortLanes)));

template <class Lanes, class T>
[[gnu::always_inline]] inline Lanes load_lanes(const T* x) {
    Lanes lanes;
    std::memcpy(&lanes, x, sizeof lanes);
    return lanes;
}

// (GCC 12 converts the halves of vectors one after the other.)
[[gnu::always_inline]] inline LaneIntegers nearest_lanes(const int16_t* x) {
#if defined(__AVX512F__)
    return (LaneIntegers)_mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
#elif defined(__AVX2__)
    return (LaneIntegers)_mm256_cvtepi16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
#else
    return __builtin_convertvector(load_lanes<LaneShorts>(x), LaneIntegers);
#endif
}
// For integers that fit.
[[gnu::always_inline]] inline LaneShorts short_lanes(LaneIntegers x) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i integers = (__m256i)x;
    return (LaneShorts)_mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
#else
    return __builtin_convertvector(x, LaneShorts);
#endif
}
// As `nearest`.
[[gnu::always_inline]] inline LaneIntegers nearest_lanes(const float* x) {
    const LaneReals limit = LaneReals{} + 8388608.0f, number = load_lanes<LaneReals>(x);
    const LaneReals upper = number < limit ? number : limit, limited = upper > -limit ? upper : -limit;
    const LaneReals rounding = limited < 0.0f ? -limit : limit;
    return __builtin_convertvector((limited + rounding) - rounding, LaneIntegers);
}

struct NarrowLimitLanes {
    LaneIntegers low, high;
    LaneWords factor, summand;
    int shift;

    NarrowLimitLanes(const Rescaling& r, int c)
        : low(load_lanes<LaneIntegers>(r.low + c)),
          high(load_lanes<LaneIntegers>(r.high + c)),
          factor(load_lanes<LaneWords>(r.factor + c)),
          summand(load_lanes<LaneWords>(r.summand + c)),
          shift(r.shift) {}
    NarrowLimitLanes(const ShortRescaling& r, int c) : NarrowLimitLanes(r.exact, c) {}
    [[gnu::always_inline]] LaneIntegers operator()(LaneIntegers n) const {
        const LaneIntegers upper = n > low ? n : low, limited = upper < high ? upper : high;
        return (LaneIntegers)((LaneWords)limited * factor + summand) >> shift;
    }
};

struct NarrowShortLanes {
    LaneIntegers low, high, below, above;
    LaneWords factor, summand;
    int shift;

    NarrowShortLanes(const ShortRescaling& r, int c)
        : low(load_lanes<LaneIntegers>(r.low + c)),
          high(load_lanes<LaneIntegers>(r.high + c)),
          below(load_lanes<LaneIntegers>(r.below + c)),
          above(load_lanes<LaneIntegers>(r.above + c)),
          factor(load_lanes<LaneWords>(r.factor + c)),
          summand(load_lanes<LaneWords>(r.summand + c)),
          shift(r.exact.shift) {}
    [[gnu::always_inline]] LaneIntegers operator()(LaneIntegers n) const {
        const LaneIntegers y = (LaneIntegers)((LaneWords)n * factor + summand) >> shift;
        return n < high ? (n > low ? y : below) : above;
    }
};

struct SameShortLanes {
    SameShortLanes(const ShortRescaling&, int) {}
    [[gnu::always_inline]] LaneIntegers operator()(LaneIntegers n) const { return n; }
};

// Computes kVectors vectors of channels of all pixels.
template <class Rescaled, int kVectors, bool kAdds, class T>
void shorts_of_lanes(const ShortsRow& row, const T* x, const Rescaled (&rescaled)[kVectors], int channel) {
    x += channel;
    int16_t* y = row.y + channel;
    for (int i = 0; i < row.pixels; ++i, x += row.x_pixel, y += row.y_pixel) {
        unrolled<kVectors>([&](auto v) BMX_INLINED {
            const LaneIntegers results = rescaled[v](nearest_lanes(x + v * kShortLanes));
            LaneHalves numbers = (LaneHalves)short_lanes(results);
            if (kAdds) {
                numbers += load_lanes<LaneHalves>(y + v * kShortLanes);
            }
            std::memcpy(y + v * kShortLanes, &numbers, sizeof numbers);
        });
    }
}

template <class Rescaled, bool kAdds, class T>
int shorts_of_channels(const ShortsRow& row, const T* x) {
    const ShortRescaling none = {}, &rescaling = row.rescaling ? *row.rescaling : none;
    int c = 0;
    for (; c + 2 * kShortLanes <= row.channels; c += 2 * kShortLanes) {
        shorts_of_lanes<Rescaled, 2, kAdds>(row, x, {{rescaling, c}, {rescaling, c + kShortLanes}}, c);
    }
    for (; c + kShortLanes <= row.channels; c += kShortLanes) {
        shorts_of_lanes<Rescaled, 1, kAdds>(row, x, {{rescaling, c}}, c);
    }
    return c;
}

// Rescales as many channels as fill vectors of floats to bytes, if there are no windows, no scales and 32 bits suffice.
// Returns their number.
[[maybe_unused]] int rescale_floats(const RescaleRow& row) {
    const Rescaling& r = row.rescaling;
    if (row.type != DataType::f32 || row.scale || row.window_size > 1 || !r.low) {
        return 0;
    }
    int c = 0;
    for (; c + kShortLanes <= row.channels; c += kShortLanes) {
        const NarrowLimitLanes rescaled(r, c);
        const float* x = static_cast<const float*>(row.x) + row.window[0] + c;
        uint8_t* y = row.y + c;
        for (int i = 0; i < row.pixels; ++i, x += row.step, y += row.y_pixel) {
            const LaneBytes bytes = __builtin_convertvector(rescaled(nearest_lanes(x)), LaneBytes);
            std::memcpy(y, &bytes, sizeof bytes);
        }
    }
    return c;
}

// Limited to kMaxInt16 in magnitude, which 16-bit integers of maps do not exceed.
[[gnu::always_inline]] inline LaneIntegers limited_lanes(const int16_t* x) { return nearest_lanes(x); }
[[gnu::always_inline]] inline LaneIntegers limited_lanes(const float* x) {
    const LaneIntegers most = LaneIntegers{} + kMaxInt16, n = nearest_lanes(x), upper = n < most ? n : most;
    return upper > -most ? upper : -most;
}

// Stores the sums of a vector of channels. (Inlined where its result is divided, GCC 12 stores it after each addition.)
template <class T>
[[gnu::noinline]] void sum_lanes(const MeanWindow& window, const T* x, int32_t* stored) {
    LaneIntegers sums = {};
    for (int row = 0; row < window.rows; ++row) {
        const T* from = x + row * window.x_row;
        for (int column = 0; column < window.columns; ++column, from += window.x_pixel) {
            sums += limited_lanes(from);
        }
    }
    std::memcpy(stored, &sums, sizeof sums);
}

// Means of a vector of channels. Sums and quotients are computed with 32 bits and as doubles, which is exact: a
// quotient of integers below 2^53 is rounded to the next larger integer only if it is that.
template <class T>
void mean_of_lanes(const MeanWindow& window, const T* x, int channel) {
    int32_t stored[kShortLanes];
    sum_lanes(window, x + channel, stored);
    const double scale = 2.0 * (1 << window.fraction_bits), count = static_cast<double>(window.count);
    unrolled<2>([&](auto half) BMX_INLINED {
        constexpr int kFirst = decltype(half)::value * (kShortLanes / 2);
        const HalfDoubles sum = __builtin_convertvector(load_lanes<HalfIntegers>(stored + kFirst), HalfDoubles);
        const HalfDoubles quotient = (sum * scale + count) / (2 * count);
        const HalfDoubles whole = __builtin_convertvector(__builtin_convertvector(quotient, HalfIntegers), HalfDoubles);
        const HalfDoubles floor = whole > quotient ? whole - 1.0 : whole;
        const HalfReals result = __builtin_convertvector(floor, HalfReals);
        std::memcpy(window.y + channel + kFirst, &result, sizeof result);
    });
}

[[maybe_unused]] void mean_at_once(const MeanWindow& window) {
    constexpr int64_t kMostPixels = 1 << 15, kMostCount = 1 << 28;
    int whole = 0;
    if (int64_t(window.rows) * window.columns <= kMostPixels && window.count <= kMostCount) {
        visit_typed(window.type, window.x, [&](const auto* x) {
            for (; whole + kShortLanes <= window.channels; whole += kShortLanes) {
                mean_of_lanes(window, x, whole);
            }
        });
    }
    if (whole < window.channels) {
        mean_of_window(rest_of(window, whole));
    }
}

[[maybe_unused]] void shorts_at_once(const ShortsRow& row) {
    int whole = 0;
    visit_typed(row.type, row.x, [&](const auto* x) {
        const auto compute = [&](auto* rescaled) {
            using Rescaled = std::remove_pointer_t<decltype(rescaled)>;
            whole = row.adds ? shorts_of_channels<Rescaled, true>(row, x) : shorts_of_channels<Rescaled, false>(row, x);
        };
        if (!row.rescaling) {
            compute(static_cast<SameShortLanes*>(nullptr));
        } else if (row.rescaling->exact.low) {
            compute(static_cast<NarrowLimitLanes*>(nullptr));
        } else if (row.rescaling->low) {
            compute(static_cast<NarrowShortLanes*>(nullptr));
        }
    });
    if (whole < row.channels) {
        const ShortRescaling rest = row.rescaling ? row.rescaling->from(whole) : ShortRescaling{};
        shorts_row(rest_of(row, rest, whole));
    }
}

}  // namespace
}  // namespace bmx
