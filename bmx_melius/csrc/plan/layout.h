// Layout of the working memory of a run. Buffers that are not used at the same time share memory.
#pragma once
#include "plan/plan.h"

namespace bmx {

struct Layout {
    std::vector<Value> values;               // of the program, for given input sizes
    std::vector<size_t> buffers, scratches;  // offsets of the buffers and of the steps' scratch memory
    uint64_t bytes;                          // of all buffers, also if there are more than an address can count
};

Layout make_layout(const Plan& plan, std::vector<Value> values, int threads);

}  // namespace bmx
