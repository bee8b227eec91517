#include "peaks/peak.h"

#include <cstdint>
#include <cstring>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kChains = 16;  // independent sums, to hide the latency

// Measurements of an instruction set. amx has the registers of avx512.
struct Peaks {
    const char* isa;
    double (*binary_rate)(double seconds);
    double (*float_rate)(double seconds);
};

constexpr Peaks kPeaks[] = {
    {"reference", peak_binary_reference, peak_float_reference},
#ifdef BMX_HAVE_AVX2
    {"avx2", peak_binary_avx2, peak_float_avx2},
#endif
#ifdef BMX_HAVE_AVX512
    {"avx512", peak_binary_avx512, peak_float_avx512},
    {"amx", peak_binary_avx512, peak_float_avx512},
#endif
};

const Peaks* peaks_of(const char* isa) {
    for (const Peaks& peaks : kPeaks) {
        if (!std::strcmp(isa, peaks.isa)) {
            return &peaks;
        }
    }
    return nullptr;
}

}  // namespace

double peak_binary_reference(double seconds) {
    volatile uint64_t seed = 0x0123456789abcdef;
    volatile uint64_t sink = 0;
    return fastest_rate(seconds, kChains * 64., [&](long iterations) {
        uint64_t a[kChains], sums[kChains] = {};
        for (auto& word : a) {
            word = seed;
        }
        for (long i = 0; i < iterations; ++i) {
            for (int c = 0; c < kChains; ++c) {
                asm("" : "+r"(a[c]));  // makes the value unknown to the compiler
                sums[c] += __builtin_popcountll(a[c] ^ i);
            }
        }
        for (auto sum : sums) {
            sink = sink + sum;
        }
    });
}

double peak_float_reference(double seconds) {
    volatile float seed = 1e-3f;
    volatile float sink = 0;
    return fastest_rate(seconds, kChains, [&](long iterations) {
        float sums[kChains] = {};
        const float x = seed, y = seed;
        for (long i = 0; i < iterations; ++i) {
            for (int c = 0; c < kChains; ++c) {
                sums[c] = sums[c] * x + y;
            }
        }
        for (auto sum : sums) {
            sink = sink + sum;
        }
    });
}

double peak_binary(const char* isa, double seconds) {
    const Peaks* peaks = peaks_of(isa);
    return peaks ? peaks->binary_rate(seconds) : 0;
}

double peak_float(const char* isa, double seconds) {
    const Peaks* peaks = peaks_of(isa);
    return peaks ? peaks->float_rate(seconds) : 0;
}

double peak_tiles(double seconds) {
#ifdef BMX_HAVE_AMX
    return peak_tiles_amx(seconds);
#endif
    return 0 * seconds;
}

}  // namespace bmx
