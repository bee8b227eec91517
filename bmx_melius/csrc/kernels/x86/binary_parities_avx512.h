// Convolution of binary layers by carry-save with AVX-512 and VPOPCNTDQ.
//
// Two words cost five operations instead of the six of an exclusive or, a population count and an addition each. With x
// and y the differing bits of the next two words and s the parities of all bits before, maj(s, x, y) are the carries of
// the sum of the three, which count twice, and s ^ x ^ y are the next parities:
//     bits of all words = 2 * carries + bits of the last parities - bits of the first.
// If weights and activations are stored as the exclusive or of all words before and including them, one exclusive or
// gives s ^ x =: t, another s ^ x ^ y =: next, and the carries are t ? ~next : s, one ternary operation.
//
// So that the first and last parities are counted only once, the words of a window are contiguous: column by column,
// because the windows of a row of pixels share columns. The layout of the prepared weights is
// [strip][column][row][unit][16 lanes].
#pragma once
#include <immintrin.h>

#include <cstring>

#include "kernels/common/arithmetic.h"
#include "kernels/common/binary_kernels.h"
#include "kernels/common/binary_strips.h"
#include "kernels/common/unrolled.h"
#include "kernels/x86/binary_store_avx512.h"

namespace bmx {
namespace {

constexpr int kMinParityUnits = 20;            // of a window; fewer are not worth the copies
constexpr int kMinParityFilters = 64;          // of a group; fewer are not worth the copies and loads of words
constexpr size_t kParityRowsBytes = 16 << 10;  // of the rows copied at a time, so that they stay in the L1 cache

constexpr int kWindowStrips = 4;  // of the filters that are counted at once

inline int window_units(const BinaryConv& conv) { return conv.kernel_h * conv.kernel_w * conv.group_units(); }

// Words of the prepared weights of a strip.
inline size_t strip_words(const BinaryConv& conv) { return size_t(window_units(conv)) * kLanes; }

inline bool uses_parities(const BinaryConv& conv) {
    return window_units(conv) >= kMinParityUnits && conv.out_channels / conv.groups >= kMinParityFilters;
}

// --- the map

// The words under the windows of rows of pixels. A row is a zero followed by the cumulative exclusive ors of its words,
// and by space for what is stored beyond its last word.
class ParityRows {
  public:
    ParityRows(const BinaryConv& conv, int output_columns)
        : conv_(conv),
          shared_(conv.dilation_w == 1 && conv.stride_w < conv.kernel_w),
          columns_(shared_ ? (output_columns - 1) * conv.stride_w + conv.kernel_w : output_columns * conv.kernel_w),
          column_words_(ptrdiff_t(conv.kernel_h) * conv.group_units()) {}

    ptrdiff_t row_words() const { return 1 + columns_ * column_words_ + kLanes; }
    ptrdiff_t pixel_words() const { return (shared_ ? conv_.stride_w : conv_.kernel_w) * column_words_; }
    int rows_at_once(int rows) const {
        const auto fitting = static_cast<int>(kParityRowsBytes / row_bytes());
        return fitting < 1 ? 1 : min(fitting, rows);
    }
    // Bytes for the rows at once of maps of at most this size.
    size_t bytes(int rows) const {
        const size_t all = rows * row_bytes(), most = row_bytes() > kParityRowsBytes ? row_bytes() : kParityRowsBytes;
        return all < most ? all : most;
    }

    // `input`: the first word under the window of the first pixel of the rows.
    void fill(const BinaryConvRun& run, const uint8_t* input, int rows, uint32_t* words) const {
        const int units = conv_.group_units();
        if (units <= 4) {
            fill_rows<__m128i>(run, input, rows, words);
        } else if (units <= 8) {
            fill_rows<__m256i>(run, input, rows, words);
        } else {
            fill_rows<__m512i>(run, input, rows, words);
        }
    }

  private:
    size_t row_bytes() const { return row_words() * sizeof(uint32_t); }

    static void load(const uint8_t* from, __m128i& x) { x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from)); }
    static void load(const uint8_t* from, __m256i& x) {
        x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    }
    static void load(const uint8_t* from, __m512i& x) { x = _mm512_loadu_si512(from); }

    static void store(uint32_t* to, __m128i x) { _mm_storeu_si128(reinterpret_cast<__m128i*>(to), x); }
    static void store(uint32_t* to, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
    static void store(uint32_t* to, __m512i x) { _mm512_storeu_si512(to, x); }

    // Cumulative exclusive ors of the lanes.
    static __m128i accumulate(__m128i x) {
        x ^= _mm_slli_si128(x, 4);
        return x ^ _mm_slli_si128(x, 8);
    }
    static __m256i accumulate(__m256i x) {
        const __m256i zero = _mm256_setzero_si256();
        x ^= _mm256_alignr_epi32(x, zero, 7);
        x ^= _mm256_alignr_epi32(x, zero, 6);
        return x ^ _mm256_alignr_epi32(x, zero, 4);
    }
    static __m512i accumulate(__m512i x) {
        const __m512i zero = _mm512_setzero_si512();
        x ^= _mm512_alignr_epi32(x, zero, 15);
        x ^= _mm512_alignr_epi32(x, zero, 14);
        x ^= _mm512_alignr_epi32(x, zero, 12);
        return x ^ _mm512_alignr_epi32(x, zero, 8);
    }

    // A lane of a vector, broadcast.
    static __m128i lane(__m128i x, __m512i index) {
        return _mm_castps_si128(_mm_permutevar_ps(_mm_castsi128_ps(x), _mm512_castsi512_si128(index)));
    }
    static __m256i lane(__m256i x, __m512i index) {
        return _mm256_permutevar8x32_epi32(x, _mm512_castsi512_si256(index));
    }
    static __m512i lane(__m512i x, __m512i index) { return _mm512_permutexvar_epi32(index, x); }

    // Offset of a stored column in a row of the map.
    ptrdiff_t offset(const BinaryConvRun& run, int column) const {
        const int pixel = column / conv_.kernel_w, tap = column % conv_.kernel_w;
        return (shared_ ? column : pixel * conv_.stride_w + tap * conv_.dilation_w) * run.pixel_bytes;
    }

    template <class Vector>
    void fill_rows(const BinaryConvRun& run, const uint8_t* input, int rows, uint32_t* words) const {
        const bool fits = conv_.group_units() * sizeof(uint32_t) <= sizeof(Vector);
        const bool in_pairs = fits && conv_.kernel_h == 3 && conv_.stride_h == 1 && conv_.dilation_h == 1;
        for (int row = 0; row < rows;) {
            const uint8_t* from = input + ptrdiff_t(row) * conv_.stride_h * run.row_bytes;
            uint32_t* to = words + row * row_words();
            if (in_pairs && row + 1 < rows) {
                fill_pair<Vector>(run, from, to);
                row += 2;
            } else {
                fill_row<Vector>(run, from, to);
                ++row;
            }
        }
    }

    // Vectors are stored completely: what lies beyond the words of a tap is overwritten by the next one.
    template <class Vector>
    void fill_row(const BinaryConvRun& run, const uint8_t* input, uint32_t* row) const {
        constexpr int kWords = sizeof(Vector) / sizeof(uint32_t);
        const int units = conv_.group_units(), kernel_h = conv_.kernel_h;
        const __m512i end = _mm512_set1_epi32(kWords - 1), last = _mm512_set1_epi32((units - 1) % kWords);
        const ptrdiff_t row_step = conv_.dilation_h * run.row_bytes;
        Vector before = {}, words;
        *row++ = 0;
        for (int column = 0; column < columns_; ++column) {
            const uint8_t* tap = input + offset(run, column);
            for (int y = 0; y < kernel_h; ++y, tap += row_step, row += units) {
                for (int unit = 0; unit < units; unit += kWords) {
                    load(tap + unit * sizeof(uint32_t), words);
                    words = accumulate(words);
                    store(row + unit, words ^ before);
                    before ^= lane(words, units - unit > kWords ? end : last);
                }
            }
        }
    }

    // Two rows of windows of three taps, which share two of four rows of the map; the words of a pixel fit in a vector.
    template <class Vector>
    void fill_pair(const BinaryConvRun& run, const uint8_t* input, uint32_t* row) const {
        const int units = conv_.group_units();
        const __m512i last = _mm512_set1_epi32(units - 1);
        uint32_t* next = row + row_words();
        Vector before_row = {}, before_next = {};
        *row++ = *next++ = 0;
        for (int column = 0; column < columns_; ++column, row += 3 * units, next += 3 * units) {
            const uint8_t* tap = input + offset(run, column);
            Vector words[4], ends[4];
            unrolled<4>([&](auto y) {
                load(tap + y * run.row_bytes, words[y]);
                words[y] = accumulate(words[y]);
                ends[y] = lane(words[y], last);
            });
            unrolled<3>([&](auto y) {
                store(row + y * units, words[y] ^ before_row);
                store(next + y * units, words[y + 1] ^ before_next);
                before_row ^= ends[y];
                before_next ^= ends[y + 1];
            });
        }
    }

    const BinaryConv& conv_;
    const bool shared_;  // between the windows of neighbouring pixels
    const int columns_;  // of taps
    const ptrdiff_t column_words_;
};

// --- windows

// Sets `sums` to the numbers of differing bits under the windows of two pixels, plus the bits of the word before each
// window. `first` is that word of the first pixel, which is `to_second` bytes before the second pixel's.
template <int kStrips>
inline void count_windows(const uint8_t* first, ptrdiff_t to_second, const uint32_t* weights, ptrdiff_t strip_words,
                          __m512i (&sums)[2][kStrips]) {
    const auto word = [&](int pixel, ptrdiff_t index) {
        int result;
        std::memcpy(&result, first + pixel * to_second + index * sizeof(result), sizeof(result));
        return _mm512_set1_epi32(result);
    };
    __m512i twos[2][kStrips], parity[2][kStrips];
    for (int p = 0; p < 2; ++p) {
        for (int s = 0; s < kStrips; ++s) {
            twos[p][s] = _mm512_setzero_si512();
            parity[p][s] = word(p, 0);
        }
    }
    const ptrdiff_t units = strip_words / kLanes;
    for (ptrdiff_t unit = 0; unit + 1 < units; unit += 2) {
        for (int p = 0; p < 2; ++p) {
            const __m512i a = word(p, unit + 1), b = word(p, unit + 2);
            for (int s = 0; s < kStrips; ++s) {
                const uint32_t* w = weights + s * strip_words + unit * kLanes;
                const __m512i odd = _mm512_xor_si512(a, _mm512_load_si512(w));
                const __m512i next = _mm512_xor_si512(b, _mm512_load_si512(w + kLanes));
                const __m512i carry = _mm512_ternarylogic_epi32(odd, next, parity[p][s], 0x3a);
                twos[p][s] = _mm512_add_epi32(twos[p][s], _mm512_popcnt_epi32(carry));
                parity[p][s] = next;
            }
        }
    }
    for (int p = 0; p < 2; ++p) {
        for (int s = 0; s < kStrips; ++s) {
            sums[p][s] = _mm512_add_epi32(_mm512_add_epi32(twos[p][s], twos[p][s]), _mm512_popcnt_epi32(parity[p][s]));
            if (units % 2) {
                const __m512i w = _mm512_load_si512(weights + s * strip_words + (units - 1) * kLanes);
                const __m512i last = _mm512_ternarylogic_epi32(word(p, units), w, parity[p][s], 0x96);
                sums[p][s] = _mm512_add_epi32(sums[p][s], _mm512_popcnt_epi32(last));
            }
        }
    }
}

// clang-format off: one instruction a line
#define BMX_V(n) "%%zmm" #n
#define BMX_WORDS(at, a, b)                                   \
    "vpbroadcastd " #at "(%[first]), " BMX_V(a) "\n"          \
    "vpbroadcastd " #at "(%[first],%[second]), " BMX_V(b) "\n"
#define BMX_WEIGHT(at, address, w) "vmovdqa64 " #at address ", " BMX_V(w) "\n"
#define BMX_COUNT_TWO_WORDS(a, b, before, after, sum)                        \
    "vpxord " BMX_V(a) ", " BMX_V(24) ", " BMX_V(26) "\n"                    \
    "vpxord " BMX_V(b) ", " BMX_V(25) ", " BMX_V(after) "\n"                 \
    "vpternlogd $0x3a, " BMX_V(before) ", " BMX_V(after) ", " BMX_V(26) "\n" \
    "vpopcntd " BMX_V(26) ", " BMX_V(26) "\n"                                \
    "vpaddd " BMX_V(26) ", %[" #sum "], %[" #sum "]\n"
// Four words of a strip. Parities move to zmm27 and 28 and back.
#define BMX_FOUR_WORDS(address, parity0, sum0, parity1, sum1) \
    BMX_WEIGHT(0, address, 24)                                \
    BMX_WEIGHT(64, address, 25)                               \
    BMX_COUNT_TWO_WORDS(16, 17, parity0, 27, sum0)            \
    BMX_COUNT_TWO_WORDS(20, 21, parity1, 28, sum1)            \
    BMX_WEIGHT(128, address, 24)                              \
    BMX_WEIGHT(192, address, 25)                              \
    BMX_COUNT_TWO_WORDS(18, 19, 27, parity0, sum0)            \
    BMX_COUNT_TWO_WORDS(22, 23, 28, parity1, sum1)
#define BMX_TWO_WORDS(address, parity0, sum0, parity1, sum1) \
    BMX_WEIGHT(0, address, 24)                               \
    BMX_WEIGHT(64, address, 25)                              \
    BMX_COUNT_TWO_WORDS(16, 17, parity0, 27, sum0)           \
    BMX_COUNT_TWO_WORDS(20, 21, parity1, 28, sum1)           \
    "vmovdqa64 " BMX_V(27) ", " BMX_V(parity0) "\n"          \
    "vmovdqa64 " BMX_V(28) ", " BMX_V(parity1) "\n"
#define BMX_COUNT_BITS(bits, sum)                \
    "vpopcntd " BMX_V(bits) ", " BMX_V(26) "\n"  \
    "vpaddd " BMX_V(26) ", %[" #sum "], %[" #sum "]\n"
#define BMX_COUNT_PARITIES(address, parity0, sum0, parity1, sum1) \
    "vpaddd %[" #sum0 "], %[" #sum0 "], %[" #sum0 "]\n"           \
    "vpaddd %[" #sum1 "], %[" #sum1 "], %[" #sum1 "]\n"           \
    BMX_COUNT_BITS(parity0, sum0)                                 \
    BMX_COUNT_BITS(parity1, sum1)
#define BMX_ONE_WORD(address, parity0, sum0, parity1, sum1)                     \
    BMX_WEIGHT(0, address, 24)                                                  \
    "vpternlogd $0x96, " BMX_V(16) ", " BMX_V(24) ", " BMX_V(parity0) "\n"      \
    "vpternlogd $0x96, " BMX_V(20) ", " BMX_V(24) ", " BMX_V(parity1) "\n"      \
    BMX_COUNT_BITS(parity0, sum0)                                               \
    BMX_COUNT_BITS(parity1, sum1)
#define BMX_STRIPS(Operation)                       \
    Operation("(%[weights])", 8, a0, 12, b0)        \
    Operation("(%[weights],%[strip])", 9, a1, 13, b1)    \
    Operation("(%[weights],%[strip],2)", 10, a2, 14, b2) \
    Operation("(%[weights],%[three])", 11, a3, 15, b3)
#define BMX_CLEAR(sum) "vpxord %[" #sum "], %[" #sum "], %[" #sum "]\n"
// clang-format on

// In assembly language, because compilers keep some of the 16 sums and parities in memory. zmm8 to 15: parities, of the
// strips of the first pixel and of the second one; 16 to 23: four words of each pixel; 24 and 25: weights; 26 to 28:
// temporaries.
template <>
inline void count_windows(const uint8_t* first, ptrdiff_t to_second, const uint32_t* weights, ptrdiff_t strip_words,
                          __m512i (&sums)[2][4]) {
    const ptrdiff_t strip = strip_words * sizeof(uint32_t), units = strip_words / kLanes;
    ptrdiff_t fours = units / 4;
    // clang-format off
    asm volatile(
        BMX_CLEAR(a0) BMX_CLEAR(a1) BMX_CLEAR(a2) BMX_CLEAR(a3) BMX_CLEAR(b0) BMX_CLEAR(b1) BMX_CLEAR(b2) BMX_CLEAR(b3)
        BMX_WORDS(0, 8, 12)
        "vmovdqa64 %%zmm8, %%zmm9\n" "vmovdqa64 %%zmm8, %%zmm10\n" "vmovdqa64 %%zmm8, %%zmm11\n"
        "vmovdqa64 %%zmm12, %%zmm13\n" "vmovdqa64 %%zmm12, %%zmm14\n" "vmovdqa64 %%zmm12, %%zmm15\n"
        "1:\n"
        BMX_WORDS(4, 16, 20) BMX_WORDS(8, 17, 21) BMX_WORDS(12, 18, 22) BMX_WORDS(16, 19, 23)
        BMX_STRIPS(BMX_FOUR_WORDS)
        "add $16, %[first]\n"
        "add $256, %[weights]\n"
        "dec %[fours]\n"
        "jne 1b\n"
        "test $2, %[units]\n"
        "je 2f\n"
        BMX_WORDS(4, 16, 20) BMX_WORDS(8, 17, 21)
        BMX_STRIPS(BMX_TWO_WORDS)
        "add $8, %[first]\n"
        "add $128, %[weights]\n"
        "2:\n"
        BMX_STRIPS(BMX_COUNT_PARITIES)
        "test $1, %[units]\n"
        "je 3f\n"
        BMX_WORDS(4, 16, 20)
        BMX_STRIPS(BMX_ONE_WORD)
        "3:\n"
        : [a0] "=&v"(sums[0][0]), [a1] "=&v"(sums[0][1]), [a2] "=&v"(sums[0][2]), [a3] "=&v"(sums[0][3]),
          [b0] "=&v"(sums[1][0]), [b1] "=&v"(sums[1][1]), [b2] "=&v"(sums[1][2]), [b3] "=&v"(sums[1][3]),
          [first] "+&r"(first), [weights] "+&r"(weights), [fours] "+&r"(fours)
        : [second] "r"(to_second), [strip] "r"(strip), [three] "r"(3 * strip), [units] "r"(units)
        : "memory", "cc", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17",
          "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", "xmm26", "xmm27", "xmm28");
    // clang-format on
}
#undef BMX_V
#undef BMX_WORDS
#undef BMX_WEIGHT
#undef BMX_COUNT_TWO_WORDS
#undef BMX_FOUR_WORDS
#undef BMX_TWO_WORDS
#undef BMX_COUNT_BITS
#undef BMX_COUNT_PARITIES
#undef BMX_ONE_WORD
#undef BMX_STRIPS
#undef BMX_CLEAR

// --- rows of pixels

// Convolves `rows` rows of the output from `row` on, two pixels at a time, which may be in different rows. `words`: the
// filled rows.
template <int kStrips, typename T>
void convolve_windows(const BinaryConvRun& run, const ParityRows& map, const Strip* strips, const uint32_t* words,
                      int row, int rows) {
    const ptrdiff_t words_of_strip = strip_words(*run.conv);
    const uint32_t* weights = static_cast<const uint32_t*>(run.weights) + strips[0].index * words_of_strip;
    const StripStore<kStrips, T> store(run, strips);
    struct Pixel {
        const uint32_t* window;
        ptrdiff_t output;
    };
    Pixel begin = {words, row * run.output_row}, next = begin;
    int column = 0;
    const auto take = [&] {
        const Pixel pixel = next;
        next.window += map.pixel_words();
        next.output += run.output_pixel;
        if (++column == run.columns) {
            column = 0;
            begin.window += map.row_words();
            begin.output += run.output_row;
            next = begin;
        }
        return pixel;
    };
    for (ptrdiff_t left = ptrdiff_t(rows) * run.columns; left > 0; left -= 2) {
        const Pixel first = take(), second = left > 1 ? take() : first;
        const auto* window = reinterpret_cast<const uint8_t*>(first.window);
        __m512i sums[2][kStrips];
        count_windows(window, reinterpret_cast<const uint8_t*>(second.window) - window, weights, words_of_strip, sums);
        store(sums[0], __builtin_popcount(*first.window), first.output);
        if (left > 1) {
            store(sums[1], __builtin_popcount(*second.window), second.output);
        }
    }
}

template <typename T>
using ConvolveWindows = void (*)(const BinaryConvRun&, const ParityRows&, const Strip*, const uint32_t*, int, int);
template <typename T>
constexpr ConvolveWindows<T> kWindows[kWindowStrips] = {convolve_windows<1, T>, convolve_windows<2, T>,
                                                        convolve_windows<3, T>, convolve_windows<4, T>};

inline void convolve_by_parities(const BinaryConvRun& run) {
    const BinaryConv& conv = *run.conv;
    const ParityRows map(conv, run.columns);
    auto* words = static_cast<uint32_t*>(run.scratch);
    const int step = map.rows_at_once(run.rows);
    for (int row = 0; row < run.rows; row += step) {
        const int rows = min(step, run.rows - row);
        int group = -1;
        for_each_strip_block<kWindowStrips>(run, [&](const Strip* strips, int count) {
            if (strips[0].group != group) {
                group = strips[0].group;
                const uint8_t* input = run.input + group * conv.group_units() * sizeof(uint32_t);
                map.fill(run, input + ptrdiff_t(row) * conv.stride_h * run.row_bytes, rows, words);
            }
            const auto convolve = run.type == DataType::i16 ? kWindows<int16_t>[count - 1] : kWindows<float>[count - 1];
            convolve(run, map, strips, words, row, rows);
        });
    }
}

}  // namespace
}  // namespace bmx
