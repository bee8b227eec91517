// Selection of the kernels; the only place that queries the features of the CPU. All kernels and peaks are reached
// through an InstructionSet of this list, because making it also asks the system for the permission that tiles need.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/common/binary_kernels.h"
#include "kernels/common/float_kernels.h"
#include "kernels/common/int8_kernels.h"

namespace bmx {

// Binary kernels for maps of at most `pixels` pixels of the output, at conversion.
struct SmallMapKernels {
    int64_t pixels;
    const BinaryKernels* kernels;
};

struct InstructionSet {
    const char* name;
    const BinaryKernels* binary;
    std::vector<SmallMapKernels> binary_small;  // in ascending order; `binary` is for larger maps
    const BinaryKernels* binary_narrow;         // for groups of few filters; or nullptr
    const FloatKernels* floats;                 // the same bits with every instruction set
    const FloatKernels* products;               // for stems and matrix products of many rows; amx rounds differently
    const Int8Kernels* int8;                    // the same numbers with every instruction set
    const FloatKernels* bf16;  // the same in bfloat16; `floats` if this build or this CPU has no such kernels

    const BinaryKernels* binary_for(int64_t pixels) const;
};

enum class Precision { exact, fast, bf16 };

// Returns the instruction sets that this build and this CPU support, the best one last.
const std::vector<InstructionSet>& instruction_sets();

// Returns the instruction set of this name, or nullptr.
const InstructionSet* find_instruction_set(const std::string& name);

// Returns the best instruction set, or the one named by the environment variable BMX_MELIUS_ISA, which is read once;
// `products` belong to the precision: with Precision::exact, `floats`. Throws Error at every call if that one is not
// available.
InstructionSet chosen_instruction_set(Precision precision);

const std::string& instruction_set_names();

}  // namespace bmx
