// Integer arithmetic of kernels. (std::min, compiled with an instruction set's flags, might end up in code for CPUs
// that lack it.)
#pragma once

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int least(int a, int b) { return a < b ? a : b; }

// a / b, rounded up, in the type that a + b has.
template <class A, class B>
constexpr auto ceil_div(A a, B b) {
    return (a + b - 1) / b;
}

}  // namespace
}  // namespace bmx
