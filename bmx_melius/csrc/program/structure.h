// Reader for the structure of a program as text, the attribute of MXNet's operator that
// deployment/program/packed_operator.py documents.
#pragma once
#include <string>

#include "program/program.h"

namespace bmx {

// Throws Error if the text is not a valid structure.
Program read_structure(const std::string& text);

}  // namespace bmx
