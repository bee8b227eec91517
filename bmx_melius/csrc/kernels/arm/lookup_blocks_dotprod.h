// The inner loop of the lookups (binary_lookup.h) for aarch64, in statements of assembly language: gcc 12 otherwise
// stores some of the sums in memory. Volatile statements keep their order.
#pragma once
#include "kernels/common/binary_lookup.h"

namespace bmx {
namespace {

using Memory = const uint8_t (*)[1 << 30];  // declares the memory that a statement reads, of any size

// Operands of a step of 2 pairs and 2 strips. They are loaded as soon as registers are free, and results are used a few
// instructions later, because some processors execute instructions in order.
struct StepOperands {
    const uint16_t* pairs[2];
    const uint8_t* strips[2];
    uintptr_t offsets[2];
    Table tables[2];
    Vector weights[2];

    [[gnu::always_inline]] void next_offset(int pair) {
        asm volatile("ldrh %w0, [%1], #2"
                     : "=r"(offsets[pair]), "+r"(pairs[pair])
                     : "m"(*reinterpret_cast<Memory>(pairs[pair])));
    }
    [[gnu::always_inline]] void next_table(int pair) {
        asm volatile("ldr %q0, [%1, %2]" : "=w"(tables[pair]) : "r"(kTables.bytes), "r"(offsets[pair]), "m"(kTables));
    }
    [[gnu::always_inline]] void next_weights(int strip) {
        uint8x16_t(&halves)[2] = weights[strip].halves;
        asm volatile("ldp %q0, %q1, [%2], #32"
                     : "=w"(halves[0]), "=w"(halves[1]), "+r"(strips[strip])
                     : "m"(*reinterpret_cast<Memory>(strips[strip])));
    }
};

// Looks up the numbers of both pairs for the filters of a strip. The numbers of the second pair take the registers of
// the weights: all 32 would not suffice otherwise.
[[gnu::always_inline]] inline void look_up_numbers(const Table (&tables)[2], Vector& weights, Vector& first) {
    asm volatile(
        "tbl %0.16b, {%4.16b}, %2.16b\n\ttbl %1.16b, {%4.16b}, %3.16b\n\t"
        "tbl %2.16b, {%5.16b}, %2.16b\n\ttbl %3.16b, {%5.16b}, %3.16b"
        : "=&w"(first.halves[0]), "=&w"(first.halves[1]), "+&w"(weights.halves[0]), "+w"(weights.halves[1])
        : "w"(tables[0]), "w"(tables[1]));
}

[[gnu::always_inline]] inline void add_numbers(const Vector& numbers, Vector& sum) {
    asm volatile("add %0.16b, %0.16b, %2.16b\n\tadd %1.16b, %1.16b, %3.16b"
                 : "+&w"(sum.halves[0]), "+w"(sum.halves[1])
                 : "w"(numbers.halves[0]), "w"(numbers.halves[1]));
}

// Adds a sum of a few steps to sums of bytes (ByteSums::add).
[[gnu::always_inline]] inline void add_sum(uint8x16_t sum, uint8x16_t& bytes, uint8x16_t& shifted) {
    asm volatile("add %0.16b, %0.16b, %2.16b\n\tusra %1.16b, %2.16b, #4" : "+&w"(bytes), "+w"(shifted) : "w"(sum));
}

// add_blocks for 2 pairs and 2 strips.
template <int kSteps, int kSum>
[[gnu::always_inline]] inline void add_blocks(const uint16_t*& first, const uint16_t*& second, int blocks,
                                              const uint8_t*& weights, size_t strip_bytes, ByteSums (&sums)[2][2]) {
    StepOperands x;
    x.pairs[0] = first;
    x.pairs[1] = second;
    x.strips[0] = weights;
    x.strips[1] = weights + strip_bytes;
    uint8x16_t bytes[2][2][2], shifted[2][2][2];  // copies, which no statement can read from memory
    const auto each = [](const auto& body) __attribute__((always_inline)) {
        unrolled<2>([&](auto p) __attribute__((always_inline)) {
            unrolled<2>([&](auto s) __attribute__((always_inline)) {
                unrolled<2>([&](auto half) __attribute__((always_inline)) { body(p, s, half); });
            });
        });
    };
    each([&](auto p, auto s, auto half) __attribute__((always_inline)) {
        bytes[p][s][half] = sums[p][s].bytes.halves[half];
        shifted[p][s][half] = sums[p][s].shifted.halves[half];
    });
    for (int left = blocks; left > 0; --left) {
        Vector sum[2][2];
        unrolled<2>([&](auto p) __attribute__((always_inline)) { x.next_offset(p); });
        x.next_weights(0);
        unrolled<2>([&](auto p) __attribute__((always_inline)) {
            x.next_table(p);
            x.next_offset(p);
        });
        unrolled<kSteps>([&](auto step) __attribute__((always_inline)) {
            unrolled<2>([&](auto s) __attribute__((always_inline)) {
                Vector numbers;
                look_up_numbers(x.tables, x.weights[s], numbers);
                if constexpr (s == 1 && step + 1 < kSteps) {
                    unrolled<2>([&](auto p) __attribute__((always_inline)) { x.next_table(p); });
                }
                if constexpr (step % kSum == 0) {
                    sum[0][s] = numbers;
                } else {
                    add_numbers(numbers, sum[0][s]);
                }
                if constexpr (s == 0 || step + 1 < kSteps) {
                    x.next_weights(1 - s);
                }
                if constexpr (step % kSum == 0) {
                    sum[1][s] = x.weights[s];
                } else {
                    add_numbers(x.weights[s], sum[1][s]);
                }
                if constexpr (s == 1 && step + 2 < kSteps) {
                    unrolled<2>([&](auto p) __attribute__((always_inline)) { x.next_offset(p); });
                }
            });
            if constexpr (step % kSum == kSum - 1) {
                each([&](auto p, auto s, auto half) __attribute__((always_inline)) {
                    add_sum(sum[p][s].halves[half], bytes[p][s][half], shifted[p][s][half]);
                });
            }
        });
    }
    each([&](auto p, auto s, auto half) __attribute__((always_inline)) {
        sums[p][s].bytes.halves[half] = bytes[p][s][half];
        sums[p][s].shifted.halves[half] = shifted[p][s][half];
    });
    first = x.pairs[0];
    second = x.pairs[1];
    weights = x.strips[0];
}

}  // namespace
}  // namespace bmx
