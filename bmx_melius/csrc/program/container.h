// Reader for MXNet's .params files (lists of named arrays) that does not need MXNet.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bmx {

// Returns the words of the packed program in the content of a file: its only int32 vector with a name that ends in
// `_program`. Throws Error, which begins with `name`.
std::vector<int32_t> find_program_words(const uint8_t* content, size_t bytes, const std::string& name);

// Reads the file and returns the same. Throws Error, which begins with the path.
std::vector<int32_t> read_program_words(const std::string& path);

}  // namespace bmx
