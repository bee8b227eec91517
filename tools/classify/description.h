// The description of a packed network in its files, beside the program itself (bmx_melius/files/exported.py).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "pixels.h"

namespace classify {

struct Description {
    InputSpec input;
    std::optional<std::vector<std::string>> class_names;
    size_t output = 0;   // the number of the program's output that is the network's
    std::string source;  // the file of the class names
};

// Reads PREFIX-symbol.json, and PREFIX-summary.json if the former does not describe the network. Throws Error.
Description read_description(const std::string& prefix);

}  // namespace classify
