// Reader for MXNet's .params files (lists of named arrays) that does not need MXNet.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace bmx {

// Returns the words of the packed program in the file: its only int32 vector with a name that ends in `_program`.
// Throws Error with the name of the file.
std::vector<int32_t> read_program_words(const std::string& path);

}  // namespace bmx
