// Operations of NEON and `udot` on the vectors of binary_lookup.h, of 32 bytes: two registers.
#pragma once
#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

namespace bmx {
namespace {

constexpr int kUnitBytes = 8;  // of the packed map: a nibble in each

struct Vector {
    uint8x16_t halves[2];
};
using Table = uint8x16_t;

// Applies a function to both halves.
template <typename Function, typename... Vectors>
[[gnu::always_inline]] inline Vector of_halves(const Function& function, const Vectors&... x) {
    return {{function(x.halves[0]...), function(x.halves[1]...)}};
}

inline Vector zeros() { return {{vdupq_n_u8(0), vdupq_n_u8(0)}}; }
inline Vector load(const void* from) {
    const uint8_t* const bytes = static_cast<const uint8_t*>(from);
    return {{vld1q_u8(bytes), vld1q_u8(bytes + 16)}};
}
inline void store(void* to, const Vector& x) {
    vst1q_u8(static_cast<uint8_t*>(to), x.halves[0]);
    vst1q_u8(static_cast<uint8_t*>(to) + 16, x.halves[1]);
}
inline Table load_table(const uint8_t* from) { return vld1q_u8(from); }
inline Vector look_up(Table table, const Vector& indices) {
    return of_halves([&](uint8x16_t x) { return vqtbl1q_u8(table, x); }, indices);
}

inline uint16x8_t as_u16(uint8x16_t x) { return vreinterpretq_u16_u8(x); }
inline uint32x4_t as_u32(uint8x16_t x) { return vreinterpretq_u32_u8(x); }
inline uint8x16_t as_u8(uint16x8_t x) { return vreinterpretq_u8_u16(x); }
inline uint8x16_t as_u8(uint32x4_t x) { return vreinterpretq_u8_u32(x); }
inline uint8x16_t as_u8(int32x4_t x) { return vreinterpretq_u8_s32(x); }

inline Vector add8(const Vector& a, const Vector& b) {
    return of_halves([](uint8x16_t x, uint8x16_t y) { return vaddq_u8(x, y); }, a, b);
}
inline Vector add16(const Vector& a, const Vector& b) {
    return of_halves([](uint8x16_t x, uint8x16_t y) { return as_u8(vaddq_u16(as_u16(x), as_u16(y))); }, a, b);
}
inline Vector add32(const Vector& a, const Vector& b) {
    return of_halves([](uint8x16_t x, uint8x16_t y) { return as_u8(vaddq_u32(as_u32(x), as_u32(y))); }, a, b);
}
inline Vector subtract16(const Vector& a, const Vector& b) {
    return of_halves([](uint8x16_t x, uint8x16_t y) { return as_u8(vsubq_u16(as_u16(x), as_u16(y))); }, a, b);
}
inline Vector subtract32(const Vector& a, const Vector& b) {
    return of_halves([](uint8x16_t x, uint8x16_t y) { return as_u8(vsubq_u32(as_u32(x), as_u32(y))); }, a, b);
}
inline Vector set16(int x) {
    const uint8x16_t half = as_u8(vdupq_n_u16(static_cast<uint16_t>(x)));
    return {{half, half}};
}
inline Vector set32(int x) {
    const uint8x16_t half = as_u8(vdupq_n_s32(x));
    return {{half, half}};
}

struct Shift {
    int count;
    explicit Shift(int count) : count(count) {}
    Vector of16(const Vector& x) const {
        const int16x8_t counts = vdupq_n_s16(static_cast<int16_t>(count));
        return of_halves([&](uint8x16_t half) { return as_u8(vshlq_u16(as_u16(half), counts)); }, x);
    }
    Vector of32(const Vector& x) const {
        const int32x4_t counts = vdupq_n_s32(count);
        return of_halves([&](uint8x16_t half) { return as_u8(vshlq_u32(as_u32(half), counts)); }, x);
    }
};

// Widens the first (half = 0) or the last 8 numbers of 16 bits.
template <int half>
inline Vector widen_unsigned(const Vector& words) {
    const uint16x8_t x = as_u16(words.halves[half]);
    return {{as_u8(vmovl_u16(vget_low_u16(x))), as_u8(vmovl_high_u16(x))}};
}
template <int half>
inline Vector widen_signed(const Vector& words) {
    const int16x8_t x = vreinterpretq_s16_u8(words.halves[half]);
    return {{as_u8(vmovl_s16(vget_low_s16(x))), as_u8(vmovl_high_s16(x))}};
}

// Stores 8 integers of 32 bits as floats; with an addend, its sums with them.
template <bool kAdds>
inline void store_floats(float* to, const float* addend, const Vector& x) {
    for (int half = 0; half < 2; ++half) {
        const float32x4_t floats = vcvtq_f32_s32(vreinterpretq_s32_u8(x.halves[half]));
        vst1q_f32(to + 4 * half, kAdds ? vaddq_f32(floats, vld1q_f32(addend + 4 * half)) : floats);
    }
}

// Sums of bytes a + 16 b for the filters of a strip: `bytes` is their sum, where a + 16 b wraps around, `shifted` that
// of b.
struct ByteSums {
    Vector bytes = zeros(), shifted = zeros();

    [[gnu::always_inline]] void add(const Vector& sum) {
        bytes = add8(bytes, sum);
        shifted = of_halves([](uint8x16_t x, uint8x16_t y) { return vsraq_n_u8(x, y, 4); }, shifted, sum);
    }

    // Computes the sums of the even and odd bytes of the first pixel, then of the second one, in 16 bits.
    [[gnu::always_inline]] void separate(Vector (&words)[4]) const {
        const auto even = [](uint8x16_t x) { return as_u8(vandq_u16(as_u16(x), vdupq_n_u16(255))); };
        const auto odd = [](uint8x16_t x) { return as_u8(vshrq_n_u16(as_u16(x), 8)); };
        const Vector first =
            of_halves([](uint8x16_t x, uint8x16_t b) { return vsubq_u8(x, vshlq_n_u8(b, 4)); }, bytes, shifted);
        words[0] = of_halves(even, first);
        words[1] = of_halves(odd, first);
        words[2] = of_halves(even, shifted);
        words[3] = of_halves(odd, shifted);
    }
};

// Computes 16 numbers of 16 bits, 16 a + 256 b, from 16 bytes a and b.
inline Vector offsets_of(const uint8_t* first, const uint8_t* second) {
    const uint8x16_t a = vshlq_n_u8(vld1q_u8(first), 4), b = vld1q_u8(second);
    return {{vzip1q_u8(a, b), vzip2q_u8(a, b)}};
}

// Returns the number of nibbles, of `units` units of the map, with an odd number of set bits.
inline int count_odd(const uint8_t* from, ptrdiff_t units) {
    static const uint8_t kIsOdd[16] = {0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 1, 0, 1, 1, 0};
    const uint8x16_t is_odd = vld1q_u8(kIsOdd);
    uint32x4_t count = vdupq_n_u32(0);
    ptrdiff_t unit = 0;
    for (; unit + 1 < units; unit += 2) {
        count = vdotq_u32(count, vqtbl1q_u8(is_odd, vld1q_u8(from + unit * kUnitBytes)), vdupq_n_u8(1));
    }
    if (unit < units) {
        const uint8x8_t one = vqtbl1_u8(is_odd, vld1_u8(from + unit * kUnitBytes));
        count = vdotq_u32(count, vcombine_u8(one, vdup_n_u8(0)), vdupq_n_u8(1));
    }
    return static_cast<int>(vaddvq_u32(count));
}

}  // namespace
}  // namespace bmx
