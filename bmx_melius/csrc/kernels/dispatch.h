// Selection of the kernels; the only place that queries the features of the CPU.
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
    const FloatKernels* floats;         // the same bits with every instruction set
    const FloatKernels* products;       // for matrix products of many rows; those of amx round differently
};

enum class Precision { exact, fast };

// Returns the instruction sets that this build and this CPU support, the best one last.
const std::vector<InstructionSet>& instruction_sets();

// Returns the best instruction set, or the one named by the environment variable BMX_MELIUS_ISA, which is read once;
// with Precision::exact, `products` are `floats`. Throws Error at every call if that one is not available.
InstructionSet chosen_instruction_set(Precision precision);

std::string instruction_set_names();

}  // namespace bmx
