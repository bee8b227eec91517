// Errors of a user, and reading of whole files.
#pragma once
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>

namespace classify {

// What is wrong and what to do, one line.
class Error : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

constexpr size_t kMaxFileBytes = size_t{1} << 31;  // as MAX_FILE_BYTES in pixels.py

inline std::string read_file(const std::string& path) {
    std::string content;
    char part[1 << 14];
    std::FILE* file = std::fopen(path.c_str(), "rb");
    while (file && !std::feof(file) && !std::ferror(file)) {
        content.append(part, std::fread(part, 1, sizeof part, file));
        if (content.size() > kMaxFileBytes) {
            std::fclose(file);
            throw Error(path + " has more than " + std::to_string(kMaxFileBytes) + " bytes");
        }
    }
    if (!file || std::ferror(file)) {  // a folder can be opened, but not read
        const std::string reason = std::strerror(errno);
        if (file) {
            std::fclose(file);
        }
        throw Error(path + ": cannot read it: " + reason);
    }
    std::fclose(file);
    return content;
}

}  // namespace classify
