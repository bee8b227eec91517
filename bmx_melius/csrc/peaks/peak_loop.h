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

}  // namespace

double peak_binary_reference(double seconds);
double peak_float_reference(double seconds);
double peak_binary_avx2(double seconds);
double peak_float_avx2(double seconds);
double peak_binary_avx512(double seconds);
double peak_float_avx512(double seconds);
double peak_tiles_amx(double seconds);

}  // namespace bmx
