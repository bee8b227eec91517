// The inner loop of the lookups (binary_lookup.h) in assembly language, for AVX2.
#pragma once
#include "kernels/common/binary_lookup.h"

namespace bmx {
namespace {

// add_blocks for 2 pairs and 2 strips, in assembly language, because compilers do not keep the 8 sums, 4 sums of a few
// steps and 4 temporaries in the 16 registers.
#define BMX_TABLE(step, pair)       \
    "movzwl 2*(" #step ")(%[" #pair \
    "]), %k[offset]\n"              \
    "vbroadcasti128 (%[tables],%[offset]), %%ymm14\n"
#define BMX_WEIGHTS(step)      \
    "vmovdqu 32*(" #step       \
    ")(%[weights]), %%ymm12\n" \
    "vmovdqu 32*(" #step ")(%[weights],%[strip]), %%ymm13\n"
#define BMX_FIRST(step, pair, sum, other_sum) \
    BMX_TABLE(step, pair)                     \
    "vpshufb %%ymm12, %%ymm14, %%" #sum       \
    "\n"                                      \
    "vpshufb %%ymm13, %%ymm14, %%" #other_sum "\n"
#define BMX_NEXT(step, pair, sum, other_sum) \
    BMX_TABLE(step, pair)                    \
    "vpshufb %%ymm12, %%ymm14, %%ymm15\n"    \
    "vpaddb %%ymm15, %%" #sum ", %%" #sum    \
    "\n"                                     \
    "vpshufb %%ymm13, %%ymm14, %%ymm14\n"    \
    "vpaddb %%ymm14, %%" #other_sum ", %%" #other_sum "\n"
#define BMX_STEP(kind, step) \
    BMX_WEIGHTS(step) BMX_##kind(step, first, ymm8, ymm9) BMX_##kind(step, second, ymm10, ymm11)
#define BMX_ADD(sum, bytes, shifted)              \
    "vpaddb %%" #sum ", %[" #bytes "], %[" #bytes \
    "]\n"                                         \
    "vpsrlw $4, %%" #sum ", %%" #sum              \
    "\n"                                          \
    "vpaddb %%" #sum ", %[" #shifted "], %[" #shifted "]\n"
#define BMX_ADD_ALL BMX_ADD(ymm8, b0, s0) BMX_ADD(ymm9, b1, s1) BMX_ADD(ymm10, b2, s2) BMX_ADD(ymm11, b3, s3)
#define BMX_SUM_OF_4(from) \
    BMX_STEP(FIRST, from)  \
    BMX_STEP(NEXT, from + 1) BMX_STEP(NEXT, from + 2) BMX_STEP(NEXT, from + 3)
#define BMX_BLOCKS(steps, ...)                                                                                    \
    asm("1:\n" __VA_ARGS__ "add $2*" #steps                                                                       \
        ", %[first]\n"                                                                                            \
        "add $2*" #steps                                                                                          \
        ", %[second]\n"                                                                                           \
        "add $32*" #steps                                                                                         \
        ", %[weights]\n"                                                                                          \
        "dec %[blocks]\n"                                                                                         \
        "jne 1b\n"                                                                                                \
        : [b0] "+x"(sums[0][0].bytes), [s0] "+x"(sums[0][0].shifted), [b1] "+x"(sums[0][1].bytes),                \
          [s1] "+x"(sums[0][1].shifted), [b2] "+x"(sums[1][0].bytes), [s2] "+x"(sums[1][0].shifted),              \
          [b3] "+x"(sums[1][1].bytes), [s3] "+x"(sums[1][1].shifted), [first] "+r"(first), [second] "+r"(second), \
          [weights] "+r"(weights), [blocks] "+r"(blocks), [offset] "=&r"(offset)                                  \
        : [strip] "r"(strip_bytes), [tables] "r"(kTables.bytes)                                                   \
        : "memory", "cc", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15")
template <int kSteps, int kSum>
[[gnu::always_inline]] inline void add_blocks(const uint16_t*& first, const uint16_t*& second, int blocks,
                                              const uint8_t*& weights, size_t strip_bytes, ByteSums (&sums)[2][2]) {
    uintptr_t offset;
    if constexpr (kSum == kSumSteps) {
        BMX_BLOCKS(24,
                   BMX_SUM_OF_4(0) BMX_STEP(NEXT, 4) BMX_STEP(NEXT, 5) BMX_ADD_ALL BMX_SUM_OF_4(6) BMX_STEP(NEXT, 10)
                       BMX_STEP(NEXT, 11) BMX_ADD_ALL BMX_SUM_OF_4(12) BMX_STEP(NEXT, 16) BMX_STEP(NEXT, 17)
                           BMX_ADD_ALL BMX_SUM_OF_4(18) BMX_STEP(NEXT, 22) BMX_STEP(NEXT, 23) BMX_ADD_ALL);
    } else {
        BMX_BLOCKS(8, BMX_SUM_OF_4(0) BMX_ADD_ALL BMX_SUM_OF_4(4) BMX_ADD_ALL);
    }
}
#undef BMX_TABLE
#undef BMX_WEIGHTS
#undef BMX_FIRST
#undef BMX_NEXT
#undef BMX_STEP
#undef BMX_ADD
#undef BMX_ADD_ALL
#undef BMX_SUM_OF_4
#undef BMX_BLOCKS

}  // namespace
}  // namespace bmx
