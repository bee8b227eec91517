// Measurement of a loop body: the rate of the fastest of many short intervals, because other load can only slow them
// down.
#pragma once
#include <chrono>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// body(iterations) performs `macs` multiply-accumulates per iteration.
template <typename Body>
double fastest_rate(double seconds, double macs, const Body& body) {
    using Clock = std::chrono::steady_clock;
    constexpr long kIterations = 20000;
    const auto start = Clock::now();
    double best = 0;
    for (auto begin = start; std::chrono::duration<double>(begin - start).count() < seconds;) {
        body(kIterations);
        const auto end = Clock::now();
        const double rate = macs * kIterations / std::chrono::duration<double>(end - begin).count();
        best = rate > best ? rate : best;
        begin = end;
    }
    return best;
}

// The same for a step on each of `chains` independent sums, which hide its latency. step(sum) performs `macs`
// multiply-accumulates. (Loops that need all registers, or that the compiler vectorizes, are slower in this form.)
template <int chains, typename Sum, typename Step>
double fastest_rate_of_chains(double seconds, double macs, const Sum& start, const Step& step) {
    return fastest_rate(seconds, chains * macs, [&](long iterations) {
        Sum sums[chains];
        for (Sum& sum : sums) {
            Sum unknown = start;
            asm("" : "+m"(unknown));  // otherwise the compiler merges equal chains
            sum = unknown;
        }
        for (long i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
            for (int c = 0; c < chains; ++c) {
                step(sums[c]);
            }
        }
        for (const Sum& sum : sums) {
            const Sum used = sum;
            asm volatile("" : : "m"(used));  // otherwise the compiler omits chains
        }
    });
}

}  // namespace

double peak_binary_reference(double seconds);
double peak_float_reference(double seconds);
double peak_binary_avx2(double seconds);
double peak_float_avx2(double seconds);
double peak_binary_avx512(double seconds);
double peak_float_avx512(double seconds);
double peak_tiles_amx(double seconds);

}  // namespace bmx
