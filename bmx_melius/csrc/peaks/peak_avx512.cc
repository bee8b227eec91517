#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kSeed = 0x01234567;

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+v"(x)); };

}  // namespace

double popcount_avx512(Operands operands, double seconds) {
    const __m512i word = _mm512_set1_epi32(~kSeed);
    return rate_of_chains<16, 4, 1>(operands, seconds, 512, _mm512_setzero_si512(), _mm512_set1_epi32(kSeed), kHide,
                                    [&](__m512i& sum, const __m512i(&x)[1]) BMX_INLINED {
                                        sum = _mm512_add_epi32(sum, _mm512_popcnt_epi32(_mm512_xor_si512(x[0], word)));
                                    });
}

// Carry-save in 8 chains, four words of each at a time, with the instructions of binary_parities_avx512.h, in assembly
// language for the reason given there. zmm0 to 7: numbers of carries; 8 to 15: parities; 16 to 19: words; 20 and 21:
// words they are compared with; 22 and 23: temporaries.
// clang-format off: one instruction a line
#define BMX_TWO_WORDS(x, y, before, after, ones)                      \
    "vpxord %%zmm20, %%zmm" #x ", %%zmm22\n"                          \
    "vpxord %%zmm21, %%zmm" #y ", %%zmm" #after "\n"                  \
    "vpternlogd $0x3a, %%zmm" #before ", %%zmm" #after ", %%zmm22\n"  \
    "vpopcntd %%zmm22, %%zmm22\n"                                     \
    "vpaddd %%zmm22, %%zmm" #ones ", %%zmm" #ones "\n"
#define BMX_CHAIN(parity, ones) BMX_TWO_WORDS(16, 17, parity, 23, ones) BMX_TWO_WORDS(18, 19, 23, parity, ones)
#define BMX_LOAD(at)                             \
    "vmovdqa64 " #at "(%[words]), %%zmm16\n"     \
    "vmovdqa64 64+" #at "(%[words]), %%zmm17\n"  \
    "vmovdqa64 128+" #at "(%[words]), %%zmm18\n" \
    "vmovdqa64 192+" #at "(%[words]), %%zmm19\n"
#define BMX_NO_LOAD(at)
#define BMX_LOOP(Load)                                                                                       \
    asm volatile(                                                                                            \
        "1:\n"                                                                                               \
        Load(0) BMX_CHAIN(8, 0) BMX_CHAIN(9, 1) Load(256) BMX_CHAIN(10, 2) BMX_CHAIN(11, 3)                  \
        Load(512) BMX_CHAIN(12, 4) BMX_CHAIN(13, 5) Load(768) BMX_CHAIN(14, 6) BMX_CHAIN(15, 7)              \
        "add $1024, %[offset]\n"                                                                             \
        "and %[mask], %[offset]\n"                                                                           \
        "lea (%[first],%[offset]), %[words]\n"                                                               \
        "dec %[left]\n"                                                                                      \
        "jne 1b\n"                                                                                           \
        : [words] "+&r"(words), [offset] "+&r"(offset), [left] "+&r"(iterations)                             \
        : [first] "r"(memory), [mask] "r"(mask)                                                              \
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
          "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
          "xmm21", "xmm22", "xmm23")
// clang-format on
double carry_save_avx512(Operands operands, double seconds) {
    alignas(64) static const uint8_t memory[kCacheBytes] = {};
    constexpr ptrdiff_t mask = kCacheBytes - 1;
    return fastest_rate(seconds, 8 * 4 * 512, [&](long iterations) {
        const uint8_t* words = memory;
        ptrdiff_t offset = 0;
        if (operands == Operands::cache) {
            BMX_LOOP(BMX_LOAD);
        } else {
            BMX_LOOP(BMX_NO_LOAD);
        }
    });
}
#undef BMX_TWO_WORDS
#undef BMX_CHAIN
#undef BMX_LOAD
#undef BMX_LOOP

// Lookup in 8 chains, five sextets of each at a time, with the instructions of binary_planes_avx512.cc: a shuffle
// counts six elements of 64 pixels and two filters. zmm0 to 7: sums of bytes; 8 to 15: sums of upper halves; 16 to 20:
// pixels; 21: a table; 22: the matrix; 23 to 25: temporaries.
// clang-format off: one instruction a line
#define BMX_LOOK_UP(pixels, numbers) "vpermb %%zmm21, %%zmm" #pixels ", %%zmm" #numbers "\n"
#define BMX_SUM(numbers) "vpaddb %%zmm" #numbers ", %%zmm23, %%zmm23\n"
#define BMX_CHAIN(bytes, upper)                                \
    BMX_LOOK_UP(16, 23) BMX_LOOK_UP(17, 24) BMX_LOOK_UP(18, 25) \
    BMX_SUM(24) BMX_LOOK_UP(19, 24)                             \
    BMX_SUM(25) BMX_LOOK_UP(20, 25)                             \
    BMX_SUM(24) BMX_SUM(25)                                     \
    "vpaddb %%zmm23, %%zmm" #bytes ", %%zmm" #bytes "\n"        \
    "vgf2p8affineqb $0, %%zmm22, %%zmm23, %%zmm23\n"            \
    "vpaddb %%zmm23, %%zmm" #upper ", %%zmm" #upper "\n"
#define BMX_LOAD(at)                             \
    "vmovdqa64 " #at "(%[words]), %%zmm16\n"     \
    "vmovdqa64 64+" #at "(%[words]), %%zmm17\n"  \
    "vmovdqa64 128+" #at "(%[words]), %%zmm18\n" \
    "vmovdqa64 192+" #at "(%[words]), %%zmm19\n" \
    "vmovdqa64 256+" #at "(%[words]), %%zmm20\n"
#define BMX_LOOP(Load)                                                                                       \
    asm volatile(                                                                                            \
        "1:\n"                                                                                               \
        Load(0) BMX_CHAIN(0, 8) BMX_CHAIN(1, 9) Load(256) BMX_CHAIN(2, 10) BMX_CHAIN(3, 11)                  \
        Load(512) BMX_CHAIN(4, 12) BMX_CHAIN(5, 13) Load(768) BMX_CHAIN(6, 14) BMX_CHAIN(7, 15)              \
        "add $1024, %[offset]\n"                                                                             \
        "and %[mask], %[offset]\n"                                                                           \
        "lea (%[first],%[offset]), %[words]\n"                                                               \
        "dec %[left]\n"                                                                                      \
        "jne 1b\n"                                                                                           \
        : [words] "+&r"(words), [offset] "+&r"(offset), [left] "+&r"(iterations)                             \
        : [first] "r"(memory), [mask] "r"(mask)                                                              \
        : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
          "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
          "xmm21", "xmm22", "xmm23", "xmm24", "xmm25")
// clang-format on
double lookup_avx512(Operands operands, double seconds) {
    alignas(64) static const uint8_t memory[kCacheBytes + 64] = {};
    constexpr ptrdiff_t mask = kCacheBytes - 1;
    return fastest_rate(seconds, 8 * 5 * 64 * 6 * 2, [&](long iterations) {
        const uint8_t* words = memory;
        ptrdiff_t offset = 0;
        if (operands == Operands::cache) {
            BMX_LOOP(BMX_LOAD);
        } else {
            BMX_LOOP(BMX_NO_LOAD);
        }
    });
}
#undef BMX_LOOK_UP
#undef BMX_SUM
#undef BMX_CHAIN
#undef BMX_LOAD
#undef BMX_NO_LOAD
#undef BMX_LOOP

double float_avx512(Operands operands, double seconds) {
    const __m512 factor = _mm512_set1_ps(1e-3f);
    return rate_of_chains<16, 4, 1>(operands, seconds, 16, factor, factor, kHide,
                                    [&](__m512& sum, const __m512(&x)[1])
                                        BMX_INLINED { sum = _mm512_fmadd_ps(x[0], factor, sum); });
}

double int8_avx512(Operands operands, double seconds) {
    const __m512i weights = _mm512_set1_epi8(3);
    return rate_of_chains<16, 4, 1>(operands, seconds, 64, _mm512_setzero_si512(), weights, kHide,
                                    [&](__m512i& sum, const __m512i(&x)[1])
                                        BMX_INLINED { sum = _mm512_dpbusd_epi32(sum, x[0], weights); });
}

}  // namespace bmx
