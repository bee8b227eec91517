// Integer arithmetic for kernels. (The linker might use an instance of std::min that was compiled for another
// instruction set, on CPUs that lack it.)
#pragma once

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int least(int a, int b) { return a < b ? a : b; }
inline int divided_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace
}  // namespace bmx
