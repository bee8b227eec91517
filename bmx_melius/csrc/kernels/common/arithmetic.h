// Integer arithmetic for kernels. (The linker might use an instance of std::min that was compiled for another
// instruction set, on CPUs that lack it.)
#pragma once
#include <cstddef>

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int min(int a, int b) { return a < b ? a : b; }

// a / b, rounded up, in the type that a + b has.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

inline size_t round_up(size_t size, size_t multiple) { return ceil_div(size, multiple) * multiple; }

}  // namespace
}  // namespace bmx
