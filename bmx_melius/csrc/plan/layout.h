// Where everything lies in the working memory of a run: buffers share memory when they are not needed at the same time.
#pragma once
#include "plan/plan.h"

namespace bmx {

struct Layout {
    std::vector<Value> values;               // of the program, for one size of the inputs
    std::vector<size_t> buffers, scratches;  // offsets: of each buffer, of each step's scratch memory
    size_t bytes;
};

Layout make_layout(const Plan& plan, std::vector<Value> values, int threads);

}  // namespace bmx
