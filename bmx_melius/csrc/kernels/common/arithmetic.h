// Integer arithmetic for kernels. (The linker might use an instance of std::min that was compiled for another
// instruction set, on CPUs that lack it.)
#pragma once
#include <cstddef>
#include <cstdint>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int min(int a, int b) { return a < b ? a : b; }

// a / b, rounded up, in the type that a + b has.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

// x / y, rounded down, for positive y.
[[maybe_unused]] inline int64_t floor_div(int64_t x, int64_t y) { return x / y - (x % y < 0); }

inline size_t round_up(size_t size, size_t multiple) { return ceil_div(size, multiple) * multiple; }

}  // namespace
}  // namespace bmx
