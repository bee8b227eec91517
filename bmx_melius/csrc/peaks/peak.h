// Measurement of the peak rates of one thread: the inner loops of the kernels without anything around them.
// They are part of the engine, because `bmx-melius bench` compares every step with them also where the package is
// installed as a wheel and there is no compiler; they run only when they are asked for.
#pragma once
#include <vector>

#include "kernels/common/mac_kind.h"
#include "kernels/dispatch.h"

namespace bmx {

// A method of multiplying and accumulating, and its multiply-accumulates per second with operands in registers and with
// operands loaded from the first-level cache, where several sums use each of them.
struct Peak {
    const char* method;
    MacKind kind;
    double in_registers, in_cache;
};

// Returns all methods of an instruction set. Takes about `seconds` for each of the two rates of a method.
std::vector<Peak> measure_peaks(const InstructionSet& set, double seconds);

// Returns the highest rate in registers of the methods of a kind, 0 if there is none.
double best_rate(const std::vector<Peak>& peaks, MacKind kind);

}  // namespace bmx
