// Loops whose counter is a constant in each iteration.
#pragma once
#include <utility>

#define BMX_INLINED __attribute__((always_inline))  // of lambdas: calls would keep sums in memory

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

// Calls body(0), ... body(count - 1) with constants, so that arrays indexed only by these are kept in registers.
template <class Body, int... i>
[[gnu::always_inline]] inline void unrolled(const Body& body, std::integer_sequence<int, i...>) {
    (body(std::integral_constant<int, i>()), ...);
}
template <int count, class Body>
[[gnu::always_inline]] inline void unrolled(const Body& body) {
    unrolled(body, std::make_integer_sequence<int, count>());
}

}  // namespace
}  // namespace bmx
