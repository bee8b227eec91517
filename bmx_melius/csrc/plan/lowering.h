// Third pass of planning: construction of the steps.
#pragma once
#include <vector>

#include "kernels/dispatch.h"
#include "plan/placement.h"
#include "steps/step.h"

namespace bmx {

// Returns one step for each group, in order. `words` are the words of the program. The steps reference neither
// afterwards.
std::vector<StepPtr> make_steps(const Program& program, const int32_t* words, const InstructionSet& instruction_set,
                                const Facts& facts, const Fusion& fusion, const Placement& placement);

}  // namespace bmx
