// The third pass of planning: the steps.
#pragma once
#include <memory>
#include <vector>

#include "kernels/dispatch.h"
#include "plan/placement.h"
#include "steps/step.h"

namespace bmx {

// One for each group, in their order. `words` are those of the program; the steps keep nothing of either.
std::vector<std::unique_ptr<Step>> make_steps(const Program& program, const int32_t* words,
                                              const InstructionSet& instruction_set, const Fusion& fusion,
                                              const Placement& placement);

}  // namespace bmx
