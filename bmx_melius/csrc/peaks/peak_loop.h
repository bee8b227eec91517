// Measurement of a loop body: the rate of the fastest of many short intervals, because other load can only slow them
// down.
#pragma once
#include <chrono>
#include <cstddef>
#include <type_traits>

#include "kernels/common/unrolled.h"

namespace bmx {

// Where a method takes its operands from.
enum class Operands { registers, cache };

// Returns the multiply-accumulates per second of a method, measured for about `seconds`.
using Rate = double (*)(Operands operands, double seconds);

namespace {  // each instruction set compiles its own copy with its own flags

constexpr size_t kCacheBytes = 16384;  // of operands, half of a first-level cache

// body(iterations) performs `macs` multiply-accumulates per iteration. `iterations`: of one interval, about 20
// microseconds.
template <typename Body>
double fastest_rate(double seconds, double macs, const Body& body, long iterations = 20000) {
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    double best = 0;
    for (auto begin = start; std::chrono::duration<double>(begin - start).count() < seconds;) {
        body(iterations);
        const auto end = Clock::now();
        const double rate = macs * iterations / std::chrono::duration<double>(end - begin).count();
        best = rate > best ? rate : best;
        begin = end;
    }
    return best;
}

// A step on each of `chains` independent sums, which hide its latency: step(sum, operands) performs `macs`
// multiply-accumulates with an array of `count` vectors. From the cache, they are loaded for each `uses` sums.
// hide(vector) makes a vector unknown to the compiler, which would otherwise merge steps. Steps and hide must be
// inlined.
template <int chains, int uses, int count, typename Sum, typename Vector, typename Hide, typename Step>
double rate_of_chains(Operands operands, double seconds, double macs, const Sum& start, const Vector& first,
                      const Hide& hide, const Step& step) {
    constexpr long kLoads = chains / uses * count, kRows = kCacheBytes / sizeof(Vector) / kLoads;
    alignas(64) Vector memory[kRows * kLoads];
    for (Vector& vector : memory) {
        vector = first;
    }
    asm("" : "+m"(memory));  // otherwise the compiler knows what is loaded
    const auto measure = [&](auto from_cache) {
        return fastest_rate(seconds, chains * macs, [&](long iterations) {
            Sum sums[chains];
            Vector vectors[count];
            const auto set = [&](auto c) BMX_INLINED {
                Sum unknown = start;
                asm("" : "+m"(unknown));  // otherwise the compiler merges equal chains
                sums[c] = unknown;
            };
            const auto set_vector = [&](auto v) BMX_INLINED { vectors[v] = first; };
            unrolled<chains>(set);
            unrolled<count>(set_vector);
            const Vector* row = memory;
            for (long i = 0; i < iterations; ++i) {
                const auto next = [&](auto c) BMX_INLINED {
                    const auto take = [&](auto v) BMX_INLINED {
                        if constexpr (from_cache && c % uses == 0) {
                            vectors[v] = row[c / uses * count + v];
                        }
                        hide(vectors[v]);
                    };
                    unrolled<count>(take);
                    step(sums[c], vectors);
                };
                unrolled<chains>(next);
                row = row + kLoads == memory + kRows * kLoads ? memory : row + kLoads;
            }
            const auto use = [&](auto c) BMX_INLINED {
                const Sum used = sums[c];
                asm volatile("" : : "m"(used));  // otherwise the compiler omits chains
            };
            unrolled<chains>(use);
        });
    };
    return operands == Operands::cache ? measure(std::true_type()) : measure(std::false_type());
}

}  // namespace

// Methods of the instruction sets; methods of float and of 8-bit layers have `float` and `int8` in their names.
double popcount_reference(Operands operands, double seconds);
double float_reference(Operands operands, double seconds);
double int8_reference(Operands operands, double seconds);
double popcount_avx2(Operands operands, double seconds);
double lookup_avx2(Operands operands, double seconds);
double carry_save_avx2(Operands operands, double seconds);
double float_avx2(Operands operands, double seconds);
double int8_avx2(Operands operands, double seconds);
double int8_avxvnni(Operands operands, double seconds);
double popcount_avx512(Operands operands, double seconds);
double carry_save_avx512(Operands operands, double seconds);
double lookup_avx512(Operands operands, double seconds);
double float_avx512(Operands operands, double seconds);
double int8_avx512(Operands operands, double seconds);
double binary_tiles_amx(Operands operands, double seconds);
double byte_tiles_amx(Operands operands, double seconds);
double zero_tiles_amx(Operands operands, double seconds);
double popcount_neon(Operands operands, double seconds);
double lookup_dotprod(Operands operands, double seconds);
double popcount_wasm(Operands operands, double seconds);
double float_neon(Operands operands, double seconds);
double int8_neon(Operands operands, double seconds);
double int8_dotprod(Operands operands, double seconds);
double int8_i8mm(Operands operands, double seconds);
double float_wasm(Operands operands, double seconds);
double int8_wasm(Operands operands, double seconds);

}  // namespace bmx
