// Reading of whole files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace bmx {

// Throws Error, which begins with `name`, if something has too many bytes.
void check_bytes(const std::string& name, size_t bytes, size_t max_bytes);

// Throws Error, which begins with the path, also for a file of more bytes, which is not read.
std::string read_file(const std::string& path, size_t max_bytes = SIZE_MAX);

}  // namespace bmx
