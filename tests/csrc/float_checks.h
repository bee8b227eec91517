// Random operands of float kernels, what is expected of their results, and a digest of these.
//
// Every buffer has exactly the size that the kernels' contract requires, so that AddressSanitizer detects access
// outside; gaps between rows hold a number that must not change.
#pragma once
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <random>
#include <vector>

#include "kernels/common/float_kernels.h"

using Reals = std::vector<float>;

constexpr float kGap = 12345.5f;
constexpr double kTolerance = 1e-5;  // relative to the sum of magnitudes

inline std::mt19937 generator(1);

// The distributions of <random> give other numbers in each standard library, and digests are compared between machines.
inline int pick(int low, int high) { return low + static_cast<int>(generator() % (high - low + 1u)); }
inline int pick(std::initializer_list<int> choices) { return choices.begin()[pick(0, int(choices.size()) - 1)]; }
inline bool toss() { return pick(0, 1); }

// Some of them are zeros of both signs.
inline Reals random_reals(size_t count) {
    Reals result(count);
    for (float& x : result) {
        if (pick(0, 15) == 0) {
            x = toss() ? 0.0f : -0.0f;
            continue;
        }
        int64_t sum = 0;  // of 4 numbers of 31 bits, which is nearly normally distributed
        for (int i = 0; i < 4; i++) {
            sum += static_cast<int64_t>(generator() >> 1) - (1 << 30);
        }
        x = static_cast<float>(sum) / (1 << 30);
    }
    return result;
}

inline std::vector<int16_t> random_integers(size_t count) {
    const int range = pick({3, 300, 32767});
    std::vector<int16_t> result(count);
    for (int16_t& x : result) {
        x = int16_t(pick(-range - (range == 32767), range));
    }
    return result;
}

// Random numbers, followed by NaN where planar kernels may read.
inline Reals planar_reals(size_t count) {
    Reals result = random_reals(count);
    result.insert(result.end(), bmx::kFloatReadAhead / sizeof(float), NAN);
    return result;
}

struct PixelInput {  // pixels of either element type
    PixelInput(size_t count, bmx::DataType type)
        : type(type),
          reals(type == bmx::DataType::f32 ? random_reals(count) : Reals()),
          integers(type == bmx::DataType::i16 ? random_integers(count) : std::vector<int16_t>()) {}
    const void* at(ptrdiff_t i) const {
        return type == bmx::DataType::f32 ? static_cast<const void*>(reals.data() + i) : integers.data() + i;
    }
    double operator[](ptrdiff_t i) const { return type == bmx::DataType::f32 ? double(reals[i]) : integers[i]; }
    bmx::DataType type;
    Reals reals;
    std::vector<int16_t> integers;
};

struct RandomEpilogue {
    explicit RandomEpilogue(int channels) : scale(random_reals(channels)), shift(random_reals(channels)) {
        if (toss()) {
            scale[pick(0, channels - 1)] = 0;
        }
        const bool normalize = toss();
        epilogue = {normalize ? scale.data() : nullptr, normalize ? shift.data() : nullptr, toss()};
    }
    double normalized(int c, double x) const { return epilogue.scale ? x * scale[c] + shift[c] : x; }
    double finished(int c, double x) const {
        const double y = normalized(c, x);
        return epilogue.relu && y < 0 ? 0 : y;
    }
    double magnitude(int c, double sum) const {
        return epilogue.scale ? sum * std::fabs(scale[c]) + std::fabs(shift[c]) : sum;
    }
    Reals scale, shift;
    bmx::Epilogue epilogue;
};

// Returns the number of elements of `rows` rows, without a gap after the last one.
inline size_t extent(int rows, ptrdiff_t stride, int count) { return (rows - 1) * stride + count; }

[[noreturn]] inline void fail(const char* table, const char* what) {
    std::printf("%s: %s\n", table, what);
    std::exit(1);
}

inline void expect_close(const char* table, const char* what, float got, double wanted, double magnitude,
                         double tolerance = kTolerance) {
    if (!(std::fabs(got - wanted) <= tolerance * magnitude + 1e-30)) {
        std::printf("%s: %s: %.9g instead of %.9g\n", table, what, got, wanted);
        std::exit(1);
    }
}

inline void expect_equal(const char* table, const char* what, const Reals& got, const Reals& wanted) {
    if (got.size() != wanted.size() || std::memcmp(got.data(), wanted.data(), got.size() * sizeof(float))) {
        fail(table, what);
    }
}

// Requires that the gaps between rows of `count` elements, `stride` apart, still hold kGap.
inline void expect_gaps(const char* table, const char* what, const Reals& buffer, ptrdiff_t stride, int count) {
    for (size_t i = 0; i < buffer.size(); ++i) {
        if (ptrdiff_t(i) % stride >= count && buffer[i] != kGap) {
            fail(table, what);
        }
    }
}

// FNV-1a of all results so far, which must be the same for all instruction sets.
class Digest {
  public:
    void add(const Reals& results) {
        for (const float x : results) {
            uint32_t bits;
            std::memcpy(&bits, &x, sizeof bits);
            digest_ = (digest_ ^ bits) * 1099511628211u;
        }
    }
    void print(const char* table) const {
        std::printf("%s: digest %016llx\n", table, static_cast<unsigned long long>(digest_));
    }

  private:
    uint64_t digest_ = 14695981039346656037u;
};

inline Digest digest;
