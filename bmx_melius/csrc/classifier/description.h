// What the files of a packed network say of it beside its program (bmx_melius/files/exported.py).
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "classifier/pixels.h"

namespace bmx {

constexpr size_t kMaxTextBytes = 1 << 26;  // of a symbol or a description, as in bmx_melius/files/symbol_json.py

// PREFIX-symbol.json of a network in one packed operator with one output.
struct PackedSymbol {
    size_t output = 0;                       // the number of the program's output that is the network's
    std::optional<std::string> description;  // JSON text
};

// Throws Error, which begins with `name`, if the text is not such a symbol.
PackedSymbol read_symbol(const std::string& text, const std::string& name);

struct Description {
    InputSpec input;
    std::optional<std::vector<std::string>> class_names;
};

// Reads the JSON text of a description. Throws Error, which begins with `name`, if it is malformed, lacks the
// preprocessing of images, or has a name with control characters, which a terminal could execute.
Description read_description(const std::string& text, const std::string& name);

}  // namespace bmx
