// Planning: the conversion of the operations of a program to steps, with fusion of operations.
#pragma once
#include <memory>
#include <vector>

#include "kernels/dispatch.h"
#include "plan/placement.h"
#include "program/program.h"
#include "steps/step.h"

namespace bmx {

struct Plan {
    std::vector<std::unique_ptr<Step>> steps;
    std::vector<Buffer> buffers;
    std::vector<LiveRange> live_ranges;  // by buffer: the first and the last step that uses it
};

// `words` are the words of the program. The plan references neither argument afterwards.
Plan make_plan(const Program& program, const int32_t* words, const InstructionSet& instruction_set);

}  // namespace bmx
