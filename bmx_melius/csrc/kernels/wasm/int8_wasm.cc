// Kernels of 8-bit layers with the 128-bit vectors of WebAssembly: bytes are extended to 16 bits, and
// i32x4.dot_i16x8_s adds two products to 32 bits, exactly. Engines for x86-64 have an instruction for it, pmaddwd,
// where the product of bytes i16x8.extmul takes three.
#include <wasm_simd128.h>

#include "kernels/common/int8_vectors.h"
#include "kernels/wasm/multiply_add_wasm.h"

namespace bmx {
namespace {

struct Lanes {  // documented in int8_lanes_neon.h
    // Vectors of different elements have the same type here.
    template <class Element>
    struct Vector {
        v128_t bits;
        operator v128_t() const { return bits; }
    };
    using Integers = Vector<int32_t>;
    using Shorts = Vector<int16_t>;
    using Bytes = Vector<uint8_t>;
    using Reals = Vector<float>;
    using Shift = uint32_t;

    template <class Element>
    static Vector<Element> load(const Element* x) {
        return {wasm_v128_load(x)};
    }
    template <class Element>
    static void store(Element* y, Vector<Element> x) {
        wasm_v128_store(y, x);
    }
    static void store(uint8_t* y, Integers x) { wasm_v128_store(y, x); }

    static Integers splat(int32_t x) { return {wasm_i32x4_splat(x)}; }
    static Integers min(Integers a, Integers b) { return {wasm_i32x4_min(a, b)}; }
    static Integers max(Integers a, Integers b) { return {wasm_i32x4_max(a, b)}; }
    static Integers add(Integers a, Integers b) { return {wasm_i32x4_add(a, b)}; }
    static Integers multiply(Integers a, Integers b) { return {wasm_i32x4_mul(a, b)}; }
    static Shift right_by(int bits) { return static_cast<Shift>(bits); }
    static Integers shifted(Integers x, Shift shift) { return {wasm_i32x4_shr(x, shift)}; }

    static Shorts max(Shorts a, Shorts b) { return {wasm_i16x8_max(a, b)}; }
    static Shorts min(Shorts a, Shorts b) { return {wasm_i16x8_min(a, b)}; }
    static Shorts exclusive_or(Shorts a, Shorts b) { return {wasm_v128_xor(a, b)}; }
    static Shorts signs(Integers low, Integers high) {
        return {wasm_i16x8_narrow_i32x4(wasm_i32x4_shr(low, 31), wasm_i32x4_shr(high, 31))};
    }
    static Integers low_half(Shorts x) { return {wasm_i32x4_extend_low_i16x8(x)}; }
    static Integers high_half(Shorts x) { return {wasm_i32x4_extend_high_i16x8(x)}; }
    static Shorts saturated(Integers low, Integers high) { return narrow(low, high); }
    static Shorts narrow(Integers low, Integers high) { return {wasm_i16x8_narrow_i32x4(low, high)}; }
    static Bytes narrow(Shorts low, Shorts high) { return {wasm_u8x16_narrow_i16x8(low, high)}; }

    static v128_t looked_up_bits(v128_t x, const uint8_t* indices) {
        return wasm_i8x16_swizzle(x, wasm_v128_load(indices));
    }
    static Bytes looked_up(Bytes x, const uint8_t* indices) { return {looked_up_bits(x, indices)}; }
    static Shorts looked_up(Shorts a, const uint8_t* a_indices, Shorts b, const uint8_t* b_indices) {
        return {wasm_v128_or(looked_up_bits(a, a_indices), looked_up_bits(b, b_indices))};
    }

    static Reals multiply_add(Reals x, float scale, float shift) {
        return {fused_multiply_add(x, wasm_f32x4_splat(scale), wasm_f32x4_splat(shift))};
    }
    static Integers nearest(Reals x, float low, float high) {
        const v128_t upper = wasm_f32x4_pmin(wasm_f32x4_splat(high), x);  // x < high ? x : high
        return {wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(wasm_f32x4_pmax(upper, wasm_f32x4_splat(low))))};
    }
    static Integers before(Integers byte, Integers words) { return {wasm_v128_or(wasm_i32x4_shl(words, 8), byte)}; }
};

// Products of the even and of the odd bytes of words.
class WidenedProducts {
  public:
    static constexpr int kPixels = 2;  // 8 sums in the 16 registers that an engine for x86-64 has

    WidenedProducts(const Int8Row& row, const Int8Blocks& blocks)
        : row_(row), blocks_(blocks), step_bytes_(blocks.count * 64) {}

    template <int kPeriod, int pixels>
    [[gnu::always_inline]] void add(int block, int pixel, Lanes::Integers (&sums)[pixels][kBlockVectors]) const {
        v128_t total[pixels][kBlockVectors];
        unrolled<pixels>([&](auto i) BMX_INLINED {
            unrolled<kBlockVectors>([&](auto v) BMX_INLINED { total[i][v] = wasm_i32x4_splat(0); });
        });
        const ptrdiff_t step = row_.step;
        const uint8_t* const x = row_.x + pixel * step + 4 * blocks_.first_word;
        const int8_t* weights = blocks_.weights + block * 64;
        for (int tap = 0; tap < row_.tap_count; ++tap) {
            const uint8_t* from = x + row_.taps[tap];
            for (int word = 0; word < blocks_.words; ++word, from += 4 * kPeriod, weights += step_bytes_) {
                constexpr int kKinds = kPeriod == 8 ? 2 : 1;  // of words for the vectors of a block
                v128_t even[pixels][kKinds], odd[pixels][kKinds];
                unrolled<pixels>([&](auto i) BMX_INLINED {
                    unrolled<kKinds>([&](auto kind) BMX_INLINED {
                        const v128_t bytes = repeated<kPeriod>(from + i * step + 16 * kind);
                        even[i][kind] = wasm_v128_and(bytes, wasm_i16x8_splat(255));
                        odd[i][kind] = wasm_u16x8_shr(bytes, 8);
                    });
                });
                unrolled<kBlockVectors>([&](auto v) BMX_INLINED {
                    constexpr int kind = v % kKinds;
                    const v128_t w = wasm_v128_load(weights + v * 16);
                    const v128_t even_weights = wasm_i16x8_shr(wasm_i16x8_shl(w, 8), 8);
                    const v128_t odd_weights = wasm_i16x8_shr(w, 8);
                    unrolled<pixels>([&](auto i) BMX_INLINED {
                        const v128_t products = wasm_i32x4_add(wasm_i32x4_dot_i16x8(even[i][kind], even_weights),
                                                               wasm_i32x4_dot_i16x8(odd[i][kind], odd_weights));
                        total[i][v] = wasm_i32x4_add(total[i][v], products);
                    });
                });
            }
        }
        unrolled<pixels>([&](auto i) BMX_INLINED {
            unrolled<kBlockVectors>([&](auto v) BMX_INLINED { sums[i][v] = {total[i][v]}; });
        });
    }

  private:
    template <int kPeriod>
    static v128_t repeated(const uint8_t* x) {
        return kPeriod == 1 ? wasm_v128_load32_splat(x) : kPeriod == 2 ? wasm_v128_load64_splat(x) : wasm_v128_load(x);
    }

    const Int8Row& row_;
    const Int8Blocks& blocks_;
    const ptrdiff_t step_bytes_;  // of the weights of a word
};

}  // namespace

const Int8Kernels& int8_kernels_wasm() { return kernels_with<Lanes, WidenedProducts>(); }

}  // namespace bmx
