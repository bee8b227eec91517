// Turns the operations of a program into steps, several operations into one where a step can do them at once.
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
    std::vector<Life> lives;  // of each buffer: the first and the last step that needs it
};

// `words` are those of the program. The plan keeps nothing of either.
Plan make_plan(const Program& program, const int32_t* words, const InstructionSet& instruction_set);

}  // namespace bmx
