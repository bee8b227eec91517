#include "peaks/peak.h"

#include <cstdint>
#include <cstring>

#include "peaks/peak_loop.h"

namespace bmx {
namespace {

constexpr int kChains = 16;  // independent sums, to hide the latency

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
    if (!std::strcmp(isa, "reference")) {
        return peak_binary_reference(seconds);
    }
#ifdef BMX_HAVE_AVX2
    if (!std::strcmp(isa, "avx2")) {
        return peak_binary_avx2(seconds);
    }
#endif
#ifdef BMX_HAVE_AVX512
    if (!std::strcmp(isa, "avx512") || !std::strcmp(isa, "amx")) {
        return peak_binary_avx512(seconds);
    }
#endif
    return 0;
}

double peak_tiles(double seconds) {
#ifdef BMX_HAVE_AMX
    return peak_tiles_amx(seconds);
#endif
    return 0 * seconds;
}

double peak_float(const char* isa, double seconds) {
    if (!std::strcmp(isa, "reference")) {
        return peak_float_reference(seconds);
    }
#ifdef BMX_HAVE_AVX2
    if (!std::strcmp(isa, "avx2")) {
        return peak_float_avx2(seconds);
    }
#endif
#ifdef BMX_HAVE_AVX512
    if (!std::strcmp(isa, "avx512") || !std::strcmp(isa, "amx")) {
        return peak_float_avx512(seconds);
    }
#endif
    return 0;
}

}  // namespace bmx
