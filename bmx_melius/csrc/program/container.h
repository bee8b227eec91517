// Reads MXNet's .params files, a list of named arrays, without MXNet.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace bmx {

// The words of the one packed program in the file: its only int32 vector with a name that ends in `_program`. Throws
// Error naming the file.
std::vector<int32_t> read_program_words(const std::string& path);

}  // namespace bmx
