// Lookup of the kernel tables of an instruction set in the engine's dispatch.
#pragma once
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/dispatch.h"

constexpr int kNotAvailable = 77;  // exit status if this build or this CPU lacks an instruction set

inline const bmx::InstructionSet& require_instruction_set(const std::string& name) {
    if (const bmx::InstructionSet* set = bmx::find_instruction_set(name)) {
        return *set;
    }
    std::printf("%s: not in this build or not on this CPU, which have %s\n", name.c_str(),
                bmx::instruction_set_names().c_str());
    std::exit(kNotAvailable);
}

// Returns the table and those for maps of few pixels.
inline std::vector<const bmx::BinaryKernels*> binary_tables(const bmx::InstructionSet& set) {
    std::vector<const bmx::BinaryKernels*> tables = {set.binary};
    for (const bmx::SmallMapKernels& small : set.binary_small) {
        if (std::find(tables.begin(), tables.end(), small.kernels) == tables.end()) {
            tables.push_back(small.kernels);
        }
    }
    return tables;
}

// Returns the table with the same bits as every instruction set and, if there are any, the tables of Precision::fast
// and Precision::bf16.
inline std::vector<const bmx::FloatKernels*> float_tables(const bmx::InstructionSet& set) {
    std::vector<const bmx::FloatKernels*> tables = {set.floats};
    for (const bmx::FloatKernels* table : {set.products, set.bf16}) {
        if (table != set.floats) {
            tables.push_back(table);
        }
    }
    return tables;
}
