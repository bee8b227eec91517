// Removal of groups whose results nothing reads, after fusion.
//
// They exist where a value is part of a concatenation of which only other channels are used, such as the check of sizes
// in networks that pad like TensorFlow (model_zoo/padding.py): shape inference performs the check, a run needs nothing.
#pragma once
#include "plan/fusion.h"

namespace bmx {

void eliminate_dead_groups(Fusion& fusion);

}  // namespace bmx
