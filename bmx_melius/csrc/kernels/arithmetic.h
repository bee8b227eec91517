// Integer arithmetic of kernels. (std::min, compiled with an instruction set's flags, might end up in code for CPUs
// that lack it.)
#pragma once

namespace bmx {
namespace {  // each instruction set compiles its own copy with its own flags

inline int least(int a, int b) { return a < b ? a : b; }
inline int divided_up(int a, int b) { return (a + b - 1) / b; }

}  // namespace
}  // namespace bmx
