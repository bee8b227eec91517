#include "plan/plan.h"

#include <utility>

#include "plan/dead_groups.h"
#include "plan/lowering.h"

namespace bmx {

Plan make_plan(const Program& program, const int32_t* words, const InstructionSet& instruction_set) {
    const Facts facts = find_facts(program);
    Fusion fusion = fuse(program, facts, find_views(program, facts));
    eliminate_dead_groups(fusion);
    Placement placement = place(program, fusion);
    auto steps = make_steps(program, words, instruction_set, facts, fusion, placement);
    return {std::move(steps), std::move(placement.buffers), std::move(placement.live_ranges)};
}

}  // namespace bmx
