// Vectors of 128 bits for int8_vectors.h.
#pragma once
#include <arm_neon.h>

#include "kernels/common/int8_vectors.h"

namespace bmx {
namespace {

struct Lanes {
    using Integers = int32x4_t;
    using Shorts = int16x8_t;
    using Bytes = uint8x16_t;
    using Reals = float32x4_t;
    using Shift = int32x4_t;

    static Integers load(const int32_t* x) { return vld1q_s32(x); }
    static Shorts load(const int16_t* x) { return vld1q_s16(x); }
    static Reals load(const float* x) { return vld1q_f32(x); }
    static void store(int32_t* y, Integers x) { vst1q_s32(y, x); }
    static void store(int16_t* y, Shorts x) { vst1q_s16(y, x); }
    static void store(uint8_t* y, Bytes x) { vst1q_u8(y, x); }
    static void store(uint8_t* y, Integers x) { vst1q_u8(y, vreinterpretq_u8_s32(x)); }

    static Integers splat(int32_t x) { return vdupq_n_s32(x); }
    static Integers min(Integers a, Integers b) { return vminq_s32(a, b); }
    static Integers max(Integers a, Integers b) { return vmaxq_s32(a, b); }
    static Integers add(Integers a, Integers b) { return vaddq_s32(a, b); }
    static Integers multiply(Integers a, Integers b) { return vmulq_s32(a, b); }
    static Shift right_by(int bits) { return vdupq_n_s32(-bits); }
    static Integers shifted(Integers x, Shift shift) { return vshlq_s32(x, shift); }

    static Shorts max(Shorts a, Shorts b) { return vmaxq_s16(a, b); }
    static Shorts min(Shorts a, Shorts b) { return vminq_s16(a, b); }
    static Shorts exclusive_or(Shorts a, Shorts b) { return veorq_s16(a, b); }
    static Shorts signs(Integers low, Integers high) {  // -1 for negative numbers, otherwise 0
        return vcombine_s16(vmovn_s32(vshrq_n_s32(low, 31)), vmovn_s32(vshrq_n_s32(high, 31)));
    }
    static Integers low_half(Shorts x) { return vmovl_s16(vget_low_s16(x)); }
    static Integers high_half(Shorts x) { return vmovl_high_s16(x); }

    static Shorts saturated(Integers low, Integers high) { return vqmovn_high_s32(vqmovn_s32(low), high); }
    // Numbers that fit.
    static Shorts narrow(Integers low, Integers high) {
        return vuzp1q_s16(vreinterpretq_s16_s32(low), vreinterpretq_s16_s32(high));
    }
    static Bytes narrow(Shorts low, Shorts high) {
        return vuzp1q_u8(vreinterpretq_u8_s16(low), vreinterpretq_u8_s16(high));
    }

    // A byte for each index; 0 for an index beyond the last byte.
    static Bytes looked_up(Bytes x, const uint8_t* indices) { return vqtbl1q_u8(x, vld1q_u8(indices)); }
    static Shorts looked_up(Shorts a, const uint8_t* a_indices, Shorts b, const uint8_t* b_indices) {
        return vreinterpretq_s16_u8(
            vorrq_u8(looked_up(vreinterpretq_u8_s16(a), a_indices), looked_up(vreinterpretq_u8_s16(b), b_indices)));
    }

    static Reals multiply_add(Reals x, float scale, float shift) {
        return vfmaq_f32(vdupq_n_f32(shift), x, vdupq_n_f32(scale));
    }
    // Limits, with NaN as the largest number, and rounds to the nearest integer, ties to even.
    static Integers nearest(Reals x, float low, float high) {
        return vcvtnq_s32_f32(vmaxq_f32(vminnmq_f32(x, vdupq_n_f32(high)), vdupq_n_f32(low)));
    }
    // Words with the first byte of `byte` and the other bytes of `words`.
    static Integers before(Integers byte, Integers words) { return vsliq_n_s32(byte, words, 8); }
};

// Loads of the inner loops. Compilers move loads ahead of the computations before them until sums no longer fit in
// registers (gcc 12); volatile statements keep their order.

using Memory = const uint8_t (*)[1 << 30];  // declares the memory that a statement reads, of any size

// Two of the vectors of weights of a word and block.
template <int pair>
[[gnu::always_inline]] inline void load_weights(const int8_t* from, int8x16_t (&w)[2]) {
    asm volatile("ldp %q0, %q1, [%2, %3]"
                 : "=w"(w[0]), "=w"(w[1])
                 : "r"(from), "i"(pair * 32), "m"(*reinterpret_cast<Memory>(from)));
}

// A word of a pixel, in the first lane.
[[gnu::always_inline]] inline int8x16_t load_word(const uint8_t* from, ptrdiff_t offset) {
    int8x16_t x;
    asm volatile("ldr %s0, [%1, %2]" : "=w"(x) : "r"(from), "r"(offset), "m"(*reinterpret_cast<Memory>(from)));
    return x;
}

// 16 channels of a pixel.
[[gnu::always_inline]] inline int8x16_t load_channels(const uint8_t* from, ptrdiff_t offset) {
    int8x16_t x;
    asm volatile("ldr %q0, [%1, %2]" : "=w"(x) : "r"(from), "r"(offset), "m"(*reinterpret_cast<Memory>(from)));
    return x;
}

// The next words of a pixel, repeated in a vector, of which a period of 8 takes two.
template <int kPeriod>
[[gnu::always_inline]] inline int8x16_t next_words(const uint8_t*& from) {
    int8x16_t x;
    if constexpr (kPeriod == 1) {
        asm volatile("ld1r {%0.4s}, [%1], #4" : "=w"(x), "+r"(from) : "m"(*reinterpret_cast<Memory>(from)));
    } else if constexpr (kPeriod == 2) {
        asm volatile("ld1r {%0.2d}, [%1], #8" : "=w"(x), "+r"(from) : "m"(*reinterpret_cast<Memory>(from)));
    } else {
        asm volatile("ldr %q0, [%1], #16" : "=w"(x), "+r"(from) : "m"(*reinterpret_cast<Memory>(from)));
    }
    return x;
}

// x - 128 as signed bytes, for unsigned bytes x.
[[gnu::always_inline]] inline int8x16_t centred(int8x16_t x) { return veorq_s8(x, vdupq_n_s8(-128)); }

}  // namespace
}  // namespace bmx
