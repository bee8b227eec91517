// Fused multiply-adds of numbers whose sums are hard to round: prints their bits, for a comparison of machines. In
// WebAssembly they come from the float kernels, elsewhere from the C library.
//
//     multiply_add_test COUNT
//
// COUNT: number of cases of each kind.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#ifdef __wasm__
#include "kernels/wasm/multiply_add_wasm.h"
#endif

namespace {

constexpr int kLanes = 4;

struct Case {
    float a, b, c;
};

std::mt19937 generator(1);

float of_bits(uint32_t bits) {
    float x;
    std::memcpy(&x, &bits, sizeof x);
    return x;
}

uint32_t bits_of(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    return std::isnan(x) ? 0x7fc00000 : bits;  // the bits of NaN depend on the machine
}

// Returns a number of `begin` to end - 1. (Distributions depend on the C++ library. So does the order of operands on
// the compiler: there is one random number in an expression, or they are in braces.)
int pick(int begin, int end) { return begin + int(generator() % uint32_t(end - begin)); }
float sign() { return pick(0, 2) ? 1.0f : -1.0f; }

// Returns 24 random bits as a number of 1 to 2, times a power of 2.
float number(int exponent) {
    const float signed_one = sign();
    return signed_one * std::ldexp(1 + std::ldexp(float(generator() >> 9), -23), exponent);
}

// Returns a product that is slightly smaller than half a unit in the last place of numbers with an exponent, beside any
// of them: in float64 their sum is a midpoint of float32 numbers, which the exact sum is not.
Case beside_midpoint(int exponent) {
    const int half_unit = (exponent < -126 ? -126 : exponent) - 24, part = half_unit / 2;
    const float difference = std::ldexp(float(pick(0, 60)), -23);
    const float largest = sign() * 3.40282347e38f, other = number(exponent);
    const float c = exponent == 127 && pick(0, 4) == 0 ? largest : other;
    return {sign() * std::ldexp(1 + difference, part), std::ldexp(1 - difference, half_unit - part), c};
}

// Returns few bits, so that midpoints and sums of 0 are frequent.
Case of_few_bits() {
    const auto rough = [] {
        const int exponent = pick(-12, 13);
        return std::ldexp(float(pick(-15, 16)), exponent);
    };
    const float smallest = std::ldexp(float(pick(0, 2)), -20);
    return {rough(), rough() + smallest, rough()};
}

// Returns a product near the smallest numbers, and a sum of this size or 0.
Case small() {
    const int exponent = pick(-80, -60);
    const float addend = number(pick(-149, -120));
    return {number(exponent), number(pick(-155, -124) - exponent), pick(0, 4) ? addend : 0 * addend};
}

std::vector<Case> special_cases() {
    std::vector<float> numbers;
    for (const float x : {0.0f, 1.0f, 1.99999988f, 3.40282347e38f, 1.17549435e-38f, 1.17549421e-38f, 1.40129846e-45f,
                          2.4e-23f, 1e-30f, 1e20f, INFINITY}) {
        numbers.insert(numbers.end(), {x, -x});
    }
    numbers.push_back(NAN);
    std::vector<Case> cases;
    for (const float a : numbers) {
        for (const float b : numbers) {
            for (const float c : numbers) {
                cases.push_back({a, b, c});
            }
        }
    }
    return cases;
}

template <class F>
std::vector<Case> random_cases(int count, const F& one) {
    std::vector<Case> cases(count);
    for (Case& any : cases) {
        any = one();
    }
    return cases;
}

void results_of(const Case (&cases)[kLanes], float* results) {
#ifdef __wasm__
    float a[kLanes], b[kLanes], c[kLanes];
    for (int i = 0; i < kLanes; ++i) {
        a[i] = cases[i].a, b[i] = cases[i].b, c[i] = cases[i].c;
    }
    wasm_v128_store(results, bmx::fused_multiply_add(wasm_v128_load(a), wasm_v128_load(b), wasm_v128_load(c)));
#else
    for (int i = 0; i < kLanes; ++i) {
        results[i] = std::fma(cases[i].a, cases[i].b, cases[i].c);
    }
#endif
}

void print(const char* kind, const std::vector<Case>& cases) {
    for (size_t i = 0; i + kLanes <= cases.size(); i += kLanes) {
        Case lanes[kLanes];
        float results[kLanes];
        std::memcpy(lanes, &cases[i], sizeof lanes);
        results_of(lanes, results);
        for (int lane = 0; lane < kLanes; ++lane) {
            const Case& one = lanes[lane];
            std::printf("%s: %08x * %08x + %08x = %08x\n", kind, bits_of(one.a), bits_of(one.b), bits_of(one.c),
                        bits_of(results[lane]));
        }
    }
}

}  // namespace

int main(int, char** arguments) {
    const int count = std::atoi(arguments[1]);
    print("special", special_cases());
    print("any bits", random_cases(count, [] {
              const float a = of_bits(generator()), b = of_bits(generator());
              return Case{a, b, of_bits(generator())};
          }));
    print("similar exponents", random_cases(count, [] {
              const float a = number(pick(-3, 4)), b = number(pick(-3, 4));
              return Case{a, b, number(pick(-6, 7))};
          }));
    print("few bits", random_cases(count, of_few_bits));
    print("beside midpoints", random_cases(count, [] { return beside_midpoint(pick(-20, 20)); }));
    print("beside small midpoints", random_cases(count, [] { return beside_midpoint(pick(-145, -122)); }));
    print("overflow", random_cases(count, [] { return beside_midpoint(127); }));
    print("small", random_cases(count, small));
}
