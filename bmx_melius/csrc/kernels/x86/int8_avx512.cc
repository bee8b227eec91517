// Kernels of 8-bit layers with AVX-512 VNNI, whose dot product of four bytes is exact: it adds four products of an
// unsigned and a signed byte to 32 bits.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"  // false positives in the intrinsics of GCC 12
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "kernels/common/arithmetic.h"
#include "kernels/common/int8_loops.h"
#include "kernels/common/short_vectors.h"
#include "kernels/common/unrolled.h"

namespace bmx {
namespace {

__mmask16 first(int count) { return count >= kInt8Lanes ? 0xffff : __mmask16((1u << count) - 1); }
__mmask32 first_32(int count) { return count >= 32 ? ~0u : (1u << count) - 1; }
__mmask64 first_64(int count) { return count >= 64 ? ~0ull : (1ull << count) - 1; }

// --- rescaling -----------------------------------------------------------------------------------

// Of 16 numbers, with 32 bits.
struct NarrowLanes {
    __m512i low, high, factor, summand, shift;

    NarrowLanes() = default;
    explicit NarrowLanes(const Rescaling& r)
        : low(_mm512_loadu_si512(r.low)),
          high(_mm512_loadu_si512(r.high)),
          factor(_mm512_loadu_si512(r.factor)),
          summand(_mm512_loadu_si512(r.summand)),
          shift(_mm512_set1_epi32(r.shift)) {}

    __m512i slope() const { return factor; }
    __m512i operator()(__m512i n) const {
        const __m512i limited = _mm512_min_epi32(_mm512_max_epi32(n, low), high);
        return _mm512_srav_epi32(_mm512_add_epi32(_mm512_mullo_epi32(limited, factor), summand), shift);
    }
};

// With 64 bits: products of even and of odd lanes are computed one after the other.
struct WideLanes {
    __m512i even, odd, even_offset, odd_offset, min, max;
    __m128i shift;

    WideLanes() = default;
    explicit WideLanes(const Rescaling& r) {
        const __m512i multiplier = _mm512_loadu_si512(r.multiplier), offset = _mm512_loadu_si512(r.offset);
        const __m512i half = _mm512_set1_epi64(int64_t(1) << (r.shift - 1));
        const __m128i scale = _mm_cvtsi32_si128(r.shift - kOffsetShift);
        even = multiplier;
        odd = _mm512_srli_epi64(multiplier, 32);
        const __m512i low = _mm512_srai_epi64(_mm512_slli_epi64(offset, 32), 32), high = _mm512_srai_epi64(offset, 32);
        even_offset = _mm512_add_epi64(_mm512_sll_epi64(low, scale), half);
        odd_offset = _mm512_add_epi64(_mm512_sll_epi64(high, scale), half);
        min = _mm512_set1_epi64(r.min);
        max = _mm512_set1_epi64(r.max);
        shift = _mm_cvtsi32_si128(r.shift);
    }

    __m512i slope() const { return even; }
    __m512i limited(__m512i product, __m512i offset) const {
        const __m512i y = _mm512_sra_epi64(_mm512_add_epi64(product, offset), shift);
        return _mm512_min_epi64(_mm512_max_epi64(y, min), max);
    }

    __m512i operator()(__m512i n) const {
        const __m512i low = limited(_mm512_mul_epi32(n, even), even_offset);
        const __m512i high = limited(_mm512_mul_epi32(_mm512_srli_epi64(n, 32), odd), odd_offset);
        return _mm512_mask_mov_epi32(low, 0xaaaa, _mm512_slli_epi64(high, 32));
    }
};

// Magnitudes beyond 2^23 become the limit, and so does NaN.
__m512i nearest_integers(__m512 x) {
    const __m512 limit = _mm512_set1_ps(8388608.0f);
    return _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(x, limit), _mm512_set1_ps(-8388608.0f)));
}

// Numbers of 16 channels, with scale and shift if there are any, rounded.
struct Integers {
    bool scales;
    __m512 scale, shift;

    __m512i operator()(const float* x, __mmask16 mask) const { return rounded(_mm512_maskz_loadu_ps(mask, x)); }
    __m512i operator()(const int16_t* x, __mmask16 mask) const {
        const __m512i n = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, x));
        return scales ? rounded(_mm512_cvtepi32_ps(n)) : n;
    }
    __m512i rounded(__m512 x) const { return nearest_integers(scales ? _mm512_fmadd_ps(x, scale, shift) : x); }
};

template <class Lanes, class T>
void rescale_lanes(const RescaleRow& row, const T* x) {
    for (int c = 0; c < row.channels; c += kInt8Lanes) {
        const __mmask16 mask = first(row.channels - c);
        const Lanes rescaled(row.rescaling.from(c));
        Integers integers = {row.scale != nullptr, _mm512_setzero_ps(), _mm512_setzero_ps()};
        if (row.scale) {
            integers.scale = _mm512_maskz_loadu_ps(mask, row.scale + c);
            integers.shift = _mm512_maskz_loadu_ps(mask, row.shift + c);
        }
        for (int i = 0; i < row.pixels; ++i) {
            const T* from = x + i * row.step + c;
            __m512i y = rescaled(integers(from + row.window[0], mask));
            for (int tap = 1; tap < row.window_size; ++tap) {
                y = _mm512_max_epi32(y, rescaled(integers(from + row.window[tap], mask)));
            }
            _mm512_mask_cvtepi32_storeu_epi8(row.y + i * row.y_pixel + c, mask, y);
        }
    }
}

// Rescales 32 kVectors channels of integers to bytes. Rescaling keeps the order of numbers, or reverses it where the
// slope is negative: the largest result comes from the largest or, where ~n replaces n, from the smallest number of a
// window.
template <int kVectors, class Lanes>
void rescale_integers(const RescaleRow& row, const int16_t* x, int channel) {
    Lanes rescaled[2 * kVectors];
    __m512i flips[kVectors];
    for (int v = 0; v < kVectors; ++v) {
        const Rescaling r = row.rescaling.from(channel + 32 * v);
        rescaled[2 * v] = Lanes(r);
        rescaled[2 * v + 1] = Lanes(r.from(kInt8Lanes));
        const __m256i low = _mm512_cvtsepi32_epi16(rescaled[2 * v].slope());
        const __m256i high = _mm512_cvtsepi32_epi16(rescaled[2 * v + 1].slope());
        flips[v] = _mm512_srai_epi16(_mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1), 15);
    }
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    for (int i = 0; i < row.pixels; ++i) {
        const int16_t* from = x + i * row.step + channel;
        uint8_t* to = static_cast<uint8_t*>(row.y) + i * row.y_pixel + channel;
        const auto flipped = [&](int tap, int v) BMX_INLINED {
            return _mm512_xor_si512(_mm512_loadu_si512(from + row.window[tap] + 32 * v), flips[v]);
        };
        __m512i best[kVectors], y[2 * kVectors];
        unrolled<kVectors>([&](auto v) BMX_INLINED { best[v] = flipped(0, v); });
        for (int tap = 1; tap < row.window_size; ++tap) {
            unrolled<kVectors>([&](auto v) BMX_INLINED { best[v] = _mm512_max_epi16(best[v], flipped(tap, v)); });
        }
        unrolled<kVectors>([&](auto v) BMX_INLINED {
            const __m512i n = _mm512_xor_si512(best[v], flips[v]);
            y[2 * v] = rescaled[2 * v](_mm512_cvtepi16_epi32(_mm512_castsi512_si256(n)));
            y[2 * v + 1] = rescaled[2 * v + 1](_mm512_cvtepi16_epi32(_mm512_extracti64x4_epi64(n, 1)));
        });
        const __m512i low = _mm512_packs_epi32(y[0], y[1]);
        const __m512i high = _mm512_packs_epi32(y[2 * kVectors - 2], y[2 * kVectors - 1]);
        const __m512i bytes = _mm512_permutexvar_epi32(order, _mm512_packus_epi16(low, high));
        if constexpr (kVectors == 1) {
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(bytes));
        } else {
            _mm512_storeu_si512(to, bytes);
        }
    }
}

template <class Lanes>
void rescale_integers(const RescaleRow& row, const int16_t* x) {
    constexpr int kVectors = std::is_same<Lanes, NarrowLanes>::value ? 2 : 1;  // whose constants fit in registers
    int c = 0;
    for (; c + 32 * kVectors <= row.channels; c += 32 * kVectors) {
        rescale_integers<kVectors, Lanes>(row, x, c);
    }
    for (; c + 32 <= row.channels; c += 32) {
        rescale_integers<1, Lanes>(row, x, c);
    }
    if (c < row.channels) {
        rescale_lanes<Lanes>(rest_of(row, c), x + c);
    }
}

void rescale(const RescaleRow& row) {
    if (row.type == DataType::i16 && !row.scale) {
        const int16_t* x = static_cast<const int16_t*>(row.x);
        row.rescaling.low ? rescale_integers<NarrowLanes>(row, x) : rescale_integers<WideLanes>(row, x);
        return;
    }
    visit_typed(row.type, row.x, [&](const auto* x) {
        row.rescaling.low ? rescale_lanes<NarrowLanes>(row, x) : rescale_lanes<WideLanes>(row, x);
    });
}

// A channel of the user's map. Limiting before rounding gives the same integers; NaN becomes the largest. Integers that
// are results already are left as they are.
struct Plane {
    const float* x;
    __m512 scale, shift, low, high;
    __m512i factor, summand;

    Plane() = default;
    Plane(const RescalePlanes& row, int c)
        : x(row.x + c * row.plane),
          scale(_mm512_set1_ps(row.scale ? row.scale[c] : 1)),
          shift(_mm512_set1_ps(row.scale ? row.shift[c] : 0)),
          low(_mm512_set1_ps(static_cast<float>(row.rescaling.low[c]))),
          high(_mm512_set1_ps(static_cast<float>(row.rescaling.high[c]))),
          factor(_mm512_set1_epi32(row.rescaling.factor[c])),
          summand(_mm512_set1_epi32(row.rescaling.summand[c])) {}
    template <bool kWhole>
    __m512i bytes(int i, __mmask16 mask, __m128i bits) const {
        const __m512 number = _mm512_fmadd_ps(_mm512_maskz_loadu_ps(mask, x + i), scale, shift);
        const __m512i n = _mm512_cvtps_epi32(_mm512_max_ps(_mm512_min_ps(number, high), low));
        return kWhole ? n : _mm512_sra_epi32(_mm512_add_epi32(_mm512_mullo_epi32(n, factor), summand), bits);
    }
};

// Rescales kChannels channels of 16 pixels at once.
template <int kChannels, bool kWhole>
void rescale_word(const RescalePlanes& row, int c) {
    Plane planes[kChannels];
    unrolled<kChannels>([&](auto k) BMX_INLINED { planes[k] = Plane(row, c + k); });
    const __m128i bits = _mm_cvtsi32_si128(row.rescaling.shift);
    const __m512i at = _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                                          _mm512_set1_epi32(static_cast<int>(row.y_pixel)));
    for (int i = 0; i < row.pixels; i += kInt8Lanes) {
        const __mmask16 mask = first(row.pixels - i);
        __m512i words = _mm512_setzero_si512();
        unrolled<kChannels>([&](auto k) BMX_INLINED {
            words = _mm512_or_si512(words, _mm512_slli_epi32(planes[k].template bytes<kWhole>(i, mask, bits), 8 * k));
        });
        uint8_t* y = row.y + i * row.y_pixel + c;
        if (row.y_pixel == 4) {
            _mm512_mask_storeu_epi32(y, mask, words);
        } else {
            _mm512_mask_i32scatter_epi32(y, mask, at, words, 1);
        }
    }
}

void rescale_planes_of(const RescalePlanes& row) {
    const Rescaling& r = row.rescaling;
    bool whole = true;
    for (int c = 0; c < row.channels; ++c) {
        whole = whole && r.factor[c] == 1 << r.shift && r.summand[c] == 1 << (r.shift - 1);
    }
    for (int c = 0; c < row.channels; c += 4) {
        switch (row.channels - c) {
            case 1:
                whole ? rescale_word<1, true>(row, c) : rescale_word<1, false>(row, c);
                break;
            case 2:
                whole ? rescale_word<2, true>(row, c) : rescale_word<2, false>(row, c);
                break;
            case 3:
                whole ? rescale_word<3, true>(row, c) : rescale_word<3, false>(row, c);
                break;
            default:
                whole ? rescale_word<4, true>(row, c) : rescale_word<4, false>(row, c);
        }
    }
}

void rescale_user_planes(const RescalePlanes& row) { row.rescaling.low ? rescale_planes_of(row) : rescale_planes(row); }

// --- pooling -------------------------------------------------------------------------------------

template <int kVectors>
void max_of(const MaxRow& row, int channel) {
    for (int i = 0; i < row.pixels; ++i) {
        const int16_t* from = row.x + i * row.step + channel;
        __m512i best[kVectors];
        unrolled<kVectors>([&](auto v) BMX_INLINED { best[v] = _mm512_loadu_si512(from + row.window[0] + 32 * v); });
        for (int tap = 1; tap < row.window_size; ++tap) {
            unrolled<kVectors>([&](auto v) BMX_INLINED {
                best[v] = _mm512_max_epi16(best[v], _mm512_loadu_si512(from + row.window[tap] + 32 * v));
            });
        }
        unrolled<kVectors>(
            [&](auto v) BMX_INLINED { _mm512_storeu_si512(row.y + i * row.y_pixel + channel + 32 * v, best[v]); });
    }
}

void max_of_windows(const MaxRow& row) {
    int c = 0;
    for (; c + 64 <= row.channels; c += 64) {
        max_of<2>(row, c);
    }
    for (; c + 32 <= row.channels; c += 32) {
        max_of<1>(row, c);
    }
    if (c < row.channels) {
        max_row(rest_of(row, c));
    }
}

// --- convolution ---------------------------------------------------------------------------------

// Words of a pixel, repeated in all lanes.
template <int kPeriod>
[[gnu::always_inline]] inline __m512i repeated(const uint8_t* x) {
    if constexpr (kPeriod == 1) {
        int32_t word;
        std::memcpy(&word, x, sizeof word);
        return _mm512_set1_epi32(word);
    } else if constexpr (kPeriod == 2) {
        int64_t words;
        std::memcpy(&words, x, sizeof words);
        return _mm512_set1_epi64(words);
    } else if constexpr (kPeriod == 4) {
        return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x)));
    } else {
        return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x)));
    }
}

// In assembly language, because GCC copies sums that it keeps in registers across loops.
[[gnu::always_inline]] inline void add_products(__m512i& sum, __m512i activations, __m512i weights) {
    asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(activations), "v"(weights));
}

__m512i numbers_0_to_63() {
    return _mm512_set_epi8(63, 62, 61, 60, 59, 58, 57, 56, 55, 54, 53, 52, 51, 50, 49, 48, 47, 46, 45, 44, 43, 42, 41,
                           40, 39, 38, 37, 36, 35, 34, 33, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18,
                           17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
}

// Returns the lane of each of up to 64 outputs, as bytes.
__m512i lanes_of(const Int8Blocks& blocks) {
    const __m512i in_order = numbers_0_to_63();
    return blocks.lanes ? _mm512_mask_loadu_epi8(in_order, first_64(blocks.outputs), blocks.lanes) : in_order;
}

// Stores 64 bytes as 16-bit integers.
void store_widened(uint16_t* to, __m512i bytes) {
    _mm512_store_si512(to, _mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)));
    _mm512_store_si512(to + 32, _mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1)));
}

// Constants of the results of up to four blocks: where packing puts each output.
struct Order {
    alignas(64) uint8_t bytes[64];
    alignas(64) uint16_t integers[64];

    Order(const Int8Blocks& blocks, bool to_bytes) {
        const __m512i lanes = lanes_of(blocks);
        const auto bits = [&](int mask) BMX_INLINED { return _mm512_and_si512(lanes, _mm512_set1_epi8(mask)); };
        // Packing 16 lanes of each block takes four of each in turn, to bytes of all blocks, to integers of two.
        const __m512i last = bits(3), quarter = bits(12);
        if (to_bytes) {
            const __m512i block = _mm512_srli_epi16(bits(48), 2);
            _mm512_store_si512(bytes, _mm512_or_si512(_mm512_or_si512(last, block), _mm512_slli_epi16(quarter, 2)));
        } else {
            const __m512i block = _mm512_or_si512(bits(32), _mm512_srli_epi16(bits(16), 2));
            store_widened(integers, _mm512_or_si512(_mm512_or_si512(last, block), _mm512_slli_epi16(quarter, 1)));
        }
    }
};

// Stores `count` elements, fewer than kCount only behind the last filter.
template <int kCount>
[[gnu::always_inline]] inline void store_bytes(uint8_t* y, __m512i bytes, int count) {
    if (count < kCount) {
        _mm512_mask_storeu_epi8(y, first_64(count), bytes);
    } else if constexpr (kCount == 64) {
        _mm512_storeu_si512(y, bytes);
    } else if constexpr (kCount == 16) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y), _mm512_castsi512_si128(bytes));
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(bytes));
        if constexpr (kCount == 48) {
            _mm_storeu_si128(reinterpret_cast<__m128i*>(y + 32), _mm512_extracti32x4_epi32(bytes, 2));
        }
    }
}
template <int kCount>
[[gnu::always_inline]] inline void store_integers(int16_t* y, __m512i integers, int count) {
    if (count < kCount) {
        _mm512_mask_storeu_epi16(y, first_32(count < 0 ? 0 : count), integers);
    } else if constexpr (kCount == 32) {
        _mm512_storeu_si512(y, integers);
    } else {
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), _mm512_castsi512_si256(integers));
    }
}

// Stores the results of one pixel.
template <int kBlocks>
[[gnu::always_inline]] inline void store(uint8_t* to, const Order& order, int outputs, const __m512i* y) {
    constexpr int kFirst = kBlocks < 4 ? kBlocks : 4, kFirstOutputs = kFirst * kInt8Lanes;
    const __m512i low = _mm512_packs_epi32(y[0], y[kBlocks > 1 ? 1 : 0]);
    const __m512i high = kBlocks > 2 ? _mm512_packs_epi32(y[kBlocks > 2 ? 2 : 0], y[kBlocks > 3 ? 3 : 0]) : low;
    const __m512i bytes = _mm512_permutexvar_epi8(_mm512_load_si512(order.bytes), _mm512_packus_epi16(low, high));
    store_bytes<kFirstOutputs>(to, bytes, outputs);
    if constexpr (kBlocks > 4) {
        store_bytes<kInt8Lanes>(to + kFirstOutputs, _mm512_castsi128_si512(_mm512_cvtepi32_epi8(y[kBlocks - 1])),
                                outputs - kFirstOutputs);
    }
}
template <int kBlocks>
[[gnu::always_inline]] inline void store(int16_t* to, const Order& order, int outputs, const __m512i* y) {
    constexpr int kFirst = kBlocks < 4 ? kBlocks : 4, kFirstOutputs = kFirst * kInt8Lanes;
    const __m512i low = _mm512_packs_epi32(y[0], y[kBlocks > 1 ? 1 : 0]);
    const __m512i first_order = _mm512_load_si512(order.integers);
    if constexpr (kBlocks <= 2) {
        store_integers<kFirstOutputs>(to, _mm512_permutexvar_epi16(first_order, low), outputs);
    } else {
        const __m512i high = _mm512_packs_epi32(y[2], y[kBlocks > 3 ? 3 : 2]);
        const __m512i second_order = _mm512_load_si512(order.integers + 32);
        store_integers<32>(to, _mm512_permutex2var_epi16(low, first_order, high), outputs);
        store_integers<kFirstOutputs - 32>(to + 32, _mm512_permutex2var_epi16(low, second_order, high), outputs - 32);
    }
    if constexpr (kBlocks > 4) {
        store_integers<kInt8Lanes>(to + kFirstOutputs, _mm512_castsi256_si512(_mm512_cvtepi32_epi16(y[kBlocks - 1])),
                                   outputs - kFirstOutputs);
    }
}

// Rescales with 64 bits, or to floats.
template <int kBlocks, int kPixels>
[[gnu::always_inline]] inline void store_wide(const Int8Row& row, const Int8Blocks& blocks, int pixel,
                                              const __m512i (&sums)[kPixels][kBlocks]) {
    alignas(64) int32_t lanes[kPixels][kBlocks * kInt8Lanes];
    unrolled<kPixels>([&](auto i) BMX_INLINED {
        unrolled<kBlocks>([&](auto b) BMX_INLINED { _mm512_store_si512(lanes[i] + b * kInt8Lanes, sums[i][b]); });
    });
    for (int i = 0; i < kPixels; ++i) {
        store_sums(row, blocks, pixel + i, lanes[i]);
    }
}

// Rescales and stores the sums of some pixels.
template <int kBlocks, int kPixels>
[[gnu::always_inline]] inline void store_tile(const Int8Row& row, const Int8Blocks& blocks, const Order& order,
                                              int pixel, __m512i (&sums)[kPixels][kBlocks]) {
    if (!blocks.rescaling.low || row.result == Int8Result::floats) {
        store_wide<kBlocks, kPixels>(row, blocks, pixel, sums);
        return;
    }
    unrolled<kBlocks>([&](auto b) BMX_INLINED {
        NarrowLanes rescaled(blocks.rescaling.from(b * kInt8Lanes));
        asm("" : "+v"(rescaled.low), "+v"(rescaled.high), "+v"(rescaled.factor), "+v"(rescaled.summand));
        unrolled<kPixels>([&](auto i) BMX_INLINED { sums[i][b] = rescaled(sums[i][b]); });
    });
    const ptrdiff_t at = pixel * row.y_pixel + blocks.first_output;
    const auto store_pixels = [&](auto* y) BMX_INLINED {
        unrolled<kPixels>(
            [&](auto i) BMX_INLINED { store<kBlocks>(y + at + i * row.y_pixel, order, blocks.outputs, sums[i]); });
    };
    row.result == Int8Result::bytes ? store_pixels(static_cast<uint8_t*>(row.y))
                                    : store_pixels(static_cast<int16_t*>(row.y));
}

// Computes kPixels outputs. Loops are unrolled, otherwise GCC keeps sums in memory.
template <int kBlocks, int kPeriod, int kPixels>
[[gnu::noinline]] void tile(const Int8Row& row, const Int8Blocks& blocks, const Order& order, int pixel) {
    __m512i sums[kPixels][kBlocks];
    const auto each_sum = [&](auto&& visit) BMX_INLINED {
        unrolled<kBlocks>([&](auto b) BMX_INLINED { unrolled<kPixels>([&](auto i) BMX_INLINED { visit(b, i); }); });
    };
    each_sum([&](auto b, auto i) BMX_INLINED { sums[i][b] = _mm512_setzero_si512(); });
    const ptrdiff_t step = row.step;
    const uint8_t* const x = row.x + pixel * step + 4 * blocks.first_word;
    const int8_t* weights = blocks.weights;
    for (int tap = 0; tap < row.tap_count; ++tap) {
        const uint8_t* from = x + row.taps[tap];
        for (int word = 0; word < blocks.words; ++word, from += 4 * kPeriod, weights += 4 * kInt8Lanes * kBlocks) {
            __m512i w[kBlocks];
            unrolled<kBlocks>([&](auto b) BMX_INLINED {
                w[b] = _mm512_load_si512(weights + b * 4 * kInt8Lanes);
                asm("" : "+v"(w[b]));  // otherwise GCC loads it again for each pixel of a few
            });
            unrolled<kPixels>([&](auto i) BMX_INLINED {
                const __m512i activations = repeated<kPeriod>(from + i * step);
                unrolled<kBlocks>([&](auto b) BMX_INLINED { add_products(sums[i][b], activations, w[b]); });
            });
        }
    }
    store_tile<kBlocks, kPixels>(row, blocks, order, pixel, sums);
}

// Results of up to four blocks in the upper bits of their lanes, which are stored without shifting and packing them.
template <int kBlocks, class Y>
struct UpperBits {
    static constexpr bool kBytes = sizeof(Y) == 1;
    static constexpr int kMaxShift = kBytes ? 24 : 16, kOutputs = kBlocks * kInt8Lanes;

    alignas(64) uint8_t bytes[64];  // of the outputs: their numbers among the bytes or the integers of all lanes
    alignas(64) uint16_t integers[64];

    explicit UpperBits(const Int8Blocks& blocks) {
        const __m512i lanes = lanes_of(blocks);
        if constexpr (kBlocks == 2 && kBytes) {
            _mm512_store_si512(bytes, upper_bytes(lanes));
        } else if constexpr (kBlocks == 2) {
            store_widened(integers, upper_integers(lanes));
        } else if constexpr (kBytes) {  // the second register of two begins with number 64
            const __m512i second = _mm512_and_si512(lanes, _mm512_set1_epi8(32));
            _mm512_store_si512(bytes, _mm512_add_epi8(lanes, second));
        } else {
            store_widened(integers, lanes);
        }
    }

    static __m512i upper_bytes(__m512i lanes) {
        const __m512i first = _mm512_slli_epi16(_mm512_and_si512(lanes, _mm512_set1_epi8(31)), 2);
        return _mm512_or_si512(first, _mm512_set1_epi8(3));
    }
    static __m512i upper_integers(__m512i lanes) {
        const __m512i first = _mm512_slli_epi16(_mm512_and_si512(lanes, _mm512_set1_epi8(31)), 1);
        return _mm512_or_si512(first, _mm512_set1_epi8(1));
    }

    [[gnu::always_inline]] void store(uint8_t* to, const __m512i* y) const {
        const __m512i order = _mm512_load_si512(bytes);
        if constexpr (kBlocks == 2) {
            store_bytes<kOutputs>(to, _mm512_permutex2var_epi8(y[0], order, y[1]), kOutputs);
        } else {
            const __m512i upper = upper_bytes(numbers_0_to_63());
            const __m512i low = _mm512_permutex2var_epi8(y[0], upper, y[1]);
            const __m512i high = _mm512_permutex2var_epi8(y[2], upper, y[kBlocks - 1]);
            store_bytes<kOutputs>(to, _mm512_permutex2var_epi8(low, order, high), kOutputs);
        }
    }
    [[gnu::always_inline]] void store(int16_t* to, const __m512i* y) const {
        const __m512i order = _mm512_load_si512(integers);
        if constexpr (kBlocks == 2) {
            store_integers<kOutputs>(to, _mm512_permutex2var_epi16(y[0], order, y[1]), kOutputs);
        } else {
            const __m512i upper = _mm512_cvtepu8_epi16(_mm512_castsi512_si256(upper_integers(numbers_0_to_63())));
            const __m512i low = _mm512_permutex2var_epi16(y[0], upper, y[1]);
            const __m512i high = _mm512_permutex2var_epi16(y[2], upper, y[kBlocks - 1]);
            const __m512i rest = _mm512_permutex2var_epi16(low, _mm512_load_si512(integers + 32), high);
            store_integers<32>(to, _mm512_permutex2var_epi16(low, order, high), 32);
            store_integers<kOutputs - 32>(to + 32, rest, kOutputs - 32);
        }
    }
};

// The same where a sum consists of few products, so that rescaling takes a considerable part of the time: while
// products of some pixels are added, the sums of those before are rescaled. Processors do not overlap them by
// themselves when both are long sequences of instructions. Numbers are multiplied so that the results, which fit, are
// the upper bits of a lane: 2^k (n * factor + summand), modulo 2^32.
//
// Everything is copied into the object, a local variable: stores to y could change what pointers lead to.
template <int kBlocks, int kPeriod, class Y>
class Pipeline {
  public:
    static constexpr int kPixels = 12 / kBlocks;
    static constexpr int kLeastSteps = kBlocks + kPixels, kMostSteps = 48;

    using Store = UpperBits<kBlocks, Y>;
    static bool can_store(const Rescaling& rescaling) { return rescaling.shift <= Store::kMaxShift; }

    [[gnu::always_inline]] Pipeline(const Int8Row& row, const Int8Blocks& blocks)
        : x_(row.x),
          step_(row.step),
          y_(static_cast<Y*>(row.y) + blocks.first_output),
          y_pixel_(row.y_pixel),
          pixels_(row.pixels),
          steps_(row.tap_count * blocks.words),
          weights_(blocks.weights),
          store_(blocks) {
        int step = 0;
        for (int tap = 0; tap < row.tap_count; ++tap) {
            for (int word = 0; word < blocks.words; ++word) {
                offsets_[step++] = row.taps[tap] + 4 * (blocks.first_word + word * kPeriod);
            }
        }
        const Rescaling& r = blocks.rescaling;
        const __m128i k = _mm_cvtsi32_si128(Store::kMaxShift - r.shift);
        for (int lane = 0; lane < kBlocks * kInt8Lanes; lane += kInt8Lanes) {
            const auto copy = [&](Kind kind, __m512i constant)
                                  BMX_INLINED { _mm512_store_si512(constants_[kind] + lane, constant); };
            copy(kLow, _mm512_loadu_si512(r.low + lane));
            copy(kHigh, _mm512_loadu_si512(r.high + lane));
            copy(kFactor, _mm512_sll_epi32(_mm512_loadu_si512(r.factor + lane), k));
            copy(kSummand, _mm512_sll_epi32(_mm512_loadu_si512(r.summand + lane), k));
        }
    }

    [[gnu::always_inline]] void run() const {
        Sums even, odd;
        clear(odd);
        int before = 0;  // its first results are written again
        const int tiles = (pixels_ + kPixels - 1) / kPixels;
        for (int tile = 0; tile < tiles; tile += 2) {
            int pixel = begin_of(tile);
            add_and_finish(even, pixel, odd, before);
            before = pixel;
            if (tile + 1 == tiles) {
                finish(even, before);
                return;
            }
            pixel = begin_of(tile + 1);
            add_and_finish(odd, pixel, even, before);
            before = pixel;
        }
        finish(odd, before);
    }

  private:
    using Sums = __m512i[kPixels][kBlocks];
    enum Kind { kLow, kHigh, kFactor, kSummand, kKinds };

    // Some pixels of the last tile are computed again.
    int begin_of(int tile) const {
        const int begin = tile * kPixels;
        return begin + kPixels > pixels_ ? pixels_ - kPixels : begin;
    }

    [[gnu::always_inline]] static void clear(Sums& sums) {
        unrolled<kPixels>([&](auto i) BMX_INLINED {
            unrolled<kBlocks>([&](auto b) BMX_INLINED { sums[i][b] = _mm512_setzero_si512(); });
        });
    }

    [[gnu::always_inline]] void add(Sums& sums, const uint8_t* x, int step) const {
        const int8_t* weights = weights_ + step * (4 * kInt8Lanes * kBlocks);
        const uint8_t* from = x + offsets_[step];
        __m512i w[kBlocks];
        unrolled<kBlocks>([&](auto b) BMX_INLINED {
            w[b] = _mm512_load_si512(weights + b * 4 * kInt8Lanes);
            asm("" : "+v"(w[b]));
        });
        unrolled<kPixels>([&](auto i) BMX_INLINED {
            const __m512i activations = repeated<kPeriod>(from + i * step_);
            unrolled<kBlocks>([&](auto b) BMX_INLINED { add_products(sums[i][b], activations, w[b]); });
        });
    }

    template <int b>
    [[gnu::always_inline]] void rescale_block(Sums& sums) const {
        const auto each = [&](Kind kind, auto&& change) BMX_INLINED {
            __m512i constant = _mm512_load_si512(constants_[kind] + b * kInt8Lanes);
            asm("" : "+v"(constant));
            unrolled<kPixels>([&](auto i) BMX_INLINED { sums[i][b] = change(sums[i][b], constant); });
        };
        each(kLow, [](__m512i n, __m512i low) BMX_INLINED { return _mm512_max_epi32(n, low); });
        each(kHigh, [](__m512i n, __m512i high) BMX_INLINED { return _mm512_min_epi32(n, high); });
        each(kFactor, [](__m512i n, __m512i factor) BMX_INLINED { return _mm512_mullo_epi32(n, factor); });
        each(kSummand, [](__m512i n, __m512i summand) BMX_INLINED { return _mm512_add_epi32(n, summand); });
    }

    [[gnu::always_inline]] void store_pixel(int pixel, const __m512i* y) const {
        store_.store(y_ + pixel * y_pixel_, y);
    }

    [[gnu::always_inline]] void finish(Sums& sums, int pixel) const {
        unrolled<kBlocks>([&](auto b) BMX_INLINED { rescale_block<b>(sums); });
        unrolled<kPixels>([&](auto i) BMX_INLINED { store_pixel(pixel + i, sums[i]); });
    }

    [[gnu::always_inline]] void add_and_finish(Sums& sums, int pixel, Sums& done, int done_pixel) const {
        const uint8_t* const x = x_ + pixel * step_;
        clear(sums);
        unrolled<kBlocks>([&](auto b) BMX_INLINED {
            add(sums, x, b);
            rescale_block<b>(done);
        });
        unrolled<kPixels>([&](auto i) BMX_INLINED {
            add(sums, x, kBlocks + i);
            store_pixel(done_pixel + i, done[i]);
        });
        for (int step = kLeastSteps; step < steps_; ++step) {
            add(sums, x, step);
        }
    }

    const uint8_t* const x_;
    const ptrdiff_t step_;
    Y* const y_;
    const ptrdiff_t y_pixel_;
    const int pixels_, steps_;
    const int8_t* const weights_;
    const Store store_;
    alignas(64) int32_t constants_[kKinds][kBlocks * kInt8Lanes];
    ptrdiff_t offsets_[kMostSteps];
};

template <int kBlocks, int kPeriod, class Y>
[[gnu::noinline]] void run_pipeline(const Int8Row& row, const Int8Blocks& blocks) {
    const Pipeline<kBlocks, kPeriod, Y> pipeline(row, blocks);
    pipeline.run();
}

// Runs the pipeline if there is one for these blocks.
template <int kBlocks, int kPeriod, class Y>
bool convolve_in_pipeline(const Int8Row& row, const Int8Blocks& blocks) {
    if constexpr (kBlocks >= 2 && kBlocks <= 4) {
        using Pipe = Pipeline<kBlocks, kPeriod, Y>;
        const int steps = row.tap_count * blocks.words;
        if (blocks.rescaling.low && Pipe::can_store(blocks.rescaling) && blocks.outputs == kBlocks * kInt8Lanes &&
            row.pixels >= Pipe::kPixels && steps >= Pipe::kLeastSteps && steps <= Pipe::kMostSteps) {
            run_pipeline<kBlocks, kPeriod, Y>(row, blocks);
            return true;
        }
    }
    return false;
}

// Calls compute(count, pixel) for as many pixels at once as registers hold the sums of kBlocks blocks of, with their
// number as a constant. Where fewer are left, some pixels are computed again.
template <int kBlocks, class Compute>
void visit_tiles(int pixels, const Compute& compute) {
    constexpr int kPixels = 26 / kBlocks > 12 ? 12 : 26 / kBlocks, kHalf = (kPixels + 1) / 2;
    const std::integral_constant<int, kPixels> whole;
    const std::integral_constant<int, kHalf> half;
    int pixel = 0;
    for (; pixel + kPixels <= pixels; pixel += kPixels) {
        compute(whole, pixel);
    }
    if (pixels - pixel > kHalf) {
        if (pixels >= kPixels) {
            compute(whole, pixels - kPixels);
            return;
        }
        compute(half, pixel);
        pixel += kHalf;
    }
    if (pixels - pixel > 1 && pixels >= kHalf) {
        compute(half, pixels - kHalf);
        return;
    }
    for (; pixel < pixels; ++pixel) {
        compute(std::integral_constant<int, 1>(), pixel);
    }
}

// Computes kPixels outputs with weights from codes. A group has the vectors of weights of all blocks for some words, or
// those of some blocks for a word.
template <int kBits, int kPixels>
[[gnu::noinline]] void tile_of_codes(const Int8Row& row, const Int8Blocks& blocks, const Order& order, int pixel) {
    constexpr int kVectors = group_weights(kBits) / kGroupBytes;
    constexpr int kGroups = ceil_div(kCodedBlocks, kVectors), kWords = ceil_div(kVectors, kCodedBlocks);
    static_assert(kWords <= 2, "the number of words is even");
    __m512i sums[kPixels][kCodedBlocks];
    unrolled<kPixels>([&](auto i) BMX_INLINED {
        unrolled<kCodedBlocks>([&](auto b) BMX_INLINED { sums[i][b] = _mm512_setzero_si512(); });
    });
    const __m512i code = _mm512_set1_epi8(kLevels - 1);
    const __m512i levels =
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks.codes.levels)));
    const ptrdiff_t step = row.step;
    const uint8_t* groups = blocks.codes.words;
    for (int tap = 0; tap < row.tap_count; ++tap) {
        const uint8_t* x = row.x + pixel * step + row.taps[tap];
        for (int word = 0; word < blocks.words; word += kWords, x += 4 * kWords, groups += kGroupBytes * kGroups) {
            __m512i left[kGroups];
            unrolled<kGroups>([&](auto g) BMX_INLINED { left[g] = _mm512_load_si512(groups + kGroupBytes * g); });
            unrolled<kWords>([&](auto next) BMX_INLINED {
                __m512i w[kCodedBlocks];
                unrolled<kCodedBlocks>([&](auto b) BMX_INLINED {
                    __m512i& group = left[b / kVectors];
                    w[b] = _mm512_shuffle_epi8(levels, _mm512_and_si512(group, code));
                    group = _mm512_srli_epi16(group, kBits);  // the bits of a neighbouring byte become upper bits
                    asm("" : "+v"(w[b]));                     // otherwise GCC moves it to where it is used first
                });
                unrolled<kPixels>([&](auto i) BMX_INLINED {
                    const __m512i activations = repeated<1>(x + i * step + 4 * next);
                    unrolled<kCodedBlocks>([&](auto b) BMX_INLINED { add_products(sums[i][b], activations, w[b]); });
                });
            });
        }
    }
    store_tile<kCodedBlocks, kPixels>(row, blocks, order, pixel, sums);
}

void convolve_codes(const Int8Row& row, const Int8Blocks& blocks) {
    const Order order(blocks, row.result == Int8Result::bytes);
    visit_tiles<kCodedBlocks>(row.pixels, [&](auto pixels, int first) {
        blocks.codes.bits == 1   ? tile_of_codes<1, pixels>(row, blocks, order, first)
        : blocks.codes.bits == 2 ? tile_of_codes<2, pixels>(row, blocks, order, first)
                                 : tile_of_codes<kMaxCodeBits, pixels>(row, blocks, order, first);
    });
}

template <int kBlocks, int kPeriod>
void convolve_blocks(const Int8Row& row, const Int8Blocks& blocks) {
    const bool to_bytes = row.result == Int8Result::bytes;
    if (row.result != Int8Result::floats && (to_bytes ? convolve_in_pipeline<kBlocks, kPeriod, uint8_t>(row, blocks)
                                                      : convolve_in_pipeline<kBlocks, kPeriod, int16_t>(row, blocks))) {
        return;
    }
    const Order order(blocks, to_bytes);
    visit_tiles<kBlocks>(row.pixels,
                         [&](auto pixels, int first) { tile<kBlocks, kPeriod, pixels>(row, blocks, order, first); });
}

template <int kBlocks>
void convolve_periods(const Int8Row& row, const Int8Blocks& blocks) {
    if constexpr (kBlocks <= 4) {
        switch (blocks.period) {
            case 2:
                return convolve_blocks<kBlocks, 2>(row, blocks);
            case 4:
                return convolve_blocks<kBlocks, 4>(row, blocks);
            case 8:
                return convolve_blocks<kBlocks, 8>(row, blocks);
        }
    }
    convolve_blocks<kBlocks, 1>(row, blocks);
}

void convolve(const Int8Row& row) {
    for (const Int8Blocks* blocks = row.blocks; blocks < row.blocks + row.blocks_count; ++blocks) {
        if (!blocks->weights) {
            convolve_codes(row, *blocks);
            continue;
        }
        switch (blocks->count) {
            case 1:
                convolve_periods<1>(row, *blocks);
                break;
            case 2:
                convolve_periods<2>(row, *blocks);
                break;
            case 3:
                convolve_periods<3>(row, *blocks);
                break;
            case 4:
                convolve_periods<4>(row, *blocks);
                break;
            default:
                convolve_periods<kInt8Blocks>(row, *blocks);
        }
    }
}

}  // namespace

const Int8Kernels& int8_kernels_avx512() {
    static const Int8Kernels kernels = {shorts_at_once,   rescale,  rescale_user_planes,
                                        max_of_windows,   convolve, mean_at_once,
                                        count_thresholds, 4,        true};
    return kernels;
}

}  // namespace bmx
