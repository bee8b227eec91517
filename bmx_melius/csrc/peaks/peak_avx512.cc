#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kSeed = 0x01234567;

constexpr auto kHide = [](auto& x) BMX_INLINED { asm("" : "+v"(x)); };

using Loop = void (*)(const uint8_t* memory, long left);

// A chain performs `macs` multiply-accumulates.
double rate_of_loop(double seconds, double macs, Loop loop) {
    alignas(64) static const uint8_t memory[kCacheBytes + 64] = {};
    return fastest_rate(seconds, 8 * macs, [&](long iterations) { loop(memory, iterations); });
}

}  // namespace

double popcount_avx512(Operands operands, double seconds) {
    const __m512i word = _mm512_set1_epi32(~kSeed);
    return rate_of_chains<16, 4, 1>(operands, seconds, 512, _mm512_setzero_si512(), _mm512_set1_epi32(kSeed), kHide,
                                    [&](__m512i& sum, const __m512i(&x)[1]) BMX_INLINED {
                                        sum = _mm512_add_epi32(sum, _mm512_popcnt_epi32(_mm512_xor_si512(x[0], word)));
                                    });
}

// Loops in assembly language, for the reason given in the kernels, of 8 chains with the sums zmm0 and 8, 1 and 9, and
// so on. From the cache, vectors are loaded for each two chains.
// clang-format off: one instruction a line
#define BMX_NO_LOAD(at)
#define BMX_LOOP(Chain, Load)                                                                                    \
    [](const uint8_t* memory, long left) {                                                                       \
        const uint8_t* vectors = memory;                                                                         \
        ptrdiff_t offset = 0;                                                                                    \
        asm volatile(                                                                                            \
            "1:\n"                                                                                               \
            Load(0) Chain(0, 8) Chain(1, 9) Load(256) Chain(2, 10) Chain(3, 11)                                  \
            Load(512) Chain(4, 12) Chain(5, 13) Load(768) Chain(6, 14) Chain(7, 15)                              \
            "add $1024, %[offset]\n"                                                                             \
            "and %[mask], %[offset]\n"                                                                           \
            "lea (%[first],%[offset]), %[vectors]\n"                                                             \
            "dec %[left]\n"                                                                                      \
            "jne 1b\n"                                                                                           \
            : [vectors] "+&r"(vectors), [offset] "+&r"(offset), [left] "+&r"(left)                               \
            : [first] "r"(memory), [mask] "r"(ptrdiff_t(kCacheBytes - 1))                                        \
            : "memory", "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9",    \
              "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", \
              "xmm21", "xmm22", "xmm23", "xmm24", "xmm25");                                                      \
    }
// clang-format on

// The instructions of binary_parities_avx512.h, for four words: zmm0 to 7 are numbers of carries; 8 to 15 parities; 16
// to 19 words; 20 and 21 words they are compared with; 22 and 23 temporaries.
// clang-format off: one instruction a line
#define BMX_TWO_WORDS(x, y, before, after, ones)                      \
    "vpxord %%zmm20, %%zmm" #x ", %%zmm22\n"                          \
    "vpxord %%zmm21, %%zmm" #y ", %%zmm" #after "\n"                  \
    "vpternlogd $0x3a, %%zmm" #before ", %%zmm" #after ", %%zmm22\n"  \
    "vpopcntd %%zmm22, %%zmm22\n"                                     \
    "vpaddd %%zmm22, %%zmm" #ones ", %%zmm" #ones "\n"
#define BMX_CHAIN(ones, parity) BMX_TWO_WORDS(16, 17, parity, 23, ones) BMX_TWO_WORDS(18, 19, 23, parity, ones)
#define BMX_LOAD(at)                               \
    "vmovdqa64 " #at "(%[vectors]), %%zmm16\n"     \
    "vmovdqa64 64+" #at "(%[vectors]), %%zmm17\n"  \
    "vmovdqa64 128+" #at "(%[vectors]), %%zmm18\n" \
    "vmovdqa64 192+" #at "(%[vectors]), %%zmm19\n"
// clang-format on
double carry_save_avx512(Operands operands, double seconds) {
    const Loop in_registers = BMX_LOOP(BMX_CHAIN, BMX_NO_LOAD), in_cache = BMX_LOOP(BMX_CHAIN, BMX_LOAD);
    return rate_of_loop(seconds, 4 * 512, operands == Operands::cache ? in_cache : in_registers);
}
#undef BMX_TWO_WORDS
#undef BMX_CHAIN
#undef BMX_LOAD

// The instructions of binary_planes_avx512.cc, for five sextets; a shuffle counts six elements of 64 pixels and two
// filters: zmm0 to 7 are sums of bytes; 8 to 15 sums of upper halves; 16 to 20 pixels; 21 a table; 22 the matrix; 23 to
// 25 temporaries.
// clang-format off: one instruction a line
#define BMX_LOOK_UP(pixels, numbers) "vpermb %%zmm21, %%zmm" #pixels ", %%zmm" #numbers "\n"
#define BMX_SUM(numbers) "vpaddb %%zmm" #numbers ", %%zmm23, %%zmm23\n"
#define BMX_CHAIN(bytes, upper)                                 \
    BMX_LOOK_UP(16, 23) BMX_LOOK_UP(17, 24) BMX_LOOK_UP(18, 25) \
    BMX_SUM(24) BMX_LOOK_UP(19, 24)                             \
    BMX_SUM(25) BMX_LOOK_UP(20, 25)                             \
    BMX_SUM(24) BMX_SUM(25)                                     \
    "vpaddb %%zmm23, %%zmm" #bytes ", %%zmm" #bytes "\n"        \
    "vgf2p8affineqb $0, %%zmm22, %%zmm23, %%zmm23\n"            \
    "vpaddb %%zmm23, %%zmm" #upper ", %%zmm" #upper "\n"
#define BMX_LOAD(at)                               \
    "vmovdqa64 " #at "(%[vectors]), %%zmm16\n"     \
    "vmovdqa64 64+" #at "(%[vectors]), %%zmm17\n"  \
    "vmovdqa64 128+" #at "(%[vectors]), %%zmm18\n" \
    "vmovdqa64 192+" #at "(%[vectors]), %%zmm19\n" \
    "vmovdqa64 256+" #at "(%[vectors]), %%zmm20\n"
// clang-format on
double lookup_avx512(Operands operands, double seconds) {
    const Loop in_registers = BMX_LOOP(BMX_CHAIN, BMX_NO_LOAD), in_cache = BMX_LOOP(BMX_CHAIN, BMX_LOAD);
    return rate_of_loop(seconds, 5 * 64 * 6 * 2, operands == Operands::cache ? in_cache : in_registers);
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
