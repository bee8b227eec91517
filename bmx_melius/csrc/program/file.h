// Reading of whole files.
#pragma once
#include <string>

namespace bmx {

// Throws Error, which begins with the path.
std::string read_file(const std::string& path);

}  // namespace bmx
