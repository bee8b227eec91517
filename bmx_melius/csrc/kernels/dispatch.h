// Chooses the kernels: the only place that asks what the CPU can do.
#pragma once
#include <string>
#include <vector>

#include "kernels/binary_kernels.h"
#include "kernels/float_kernels.h"

namespace bmx {

struct InstructionSet {
    const char* name;
    const BinaryKernels* binary;
    const BinaryKernels* binary_small;  // for maps of few pixels
    const FloatKernels* floats;
    const FloatKernels* floats_small;  // for products of few rows
};

// Those that this build and this CPU have, the best one last.
const std::vector<InstructionSet>& instruction_sets();

// The best one, or the one that the environment variable BMX_MELIUS_ISA names, which is read once. Throws Error, at
// every call, when that is not there.
const InstructionSet& chosen_instruction_set();

std::string instruction_set_names();

}  // namespace bmx
