#include "program/file.h"

#include <dirent.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "program/error.h"

namespace bmx {
namespace {

// Without stat(), which compiled with glibc 2.33 or newer does not exist in older versions.
bool is_folder(const std::string& path) {
    DIR* folder = opendir(path.c_str());
    return folder && closedir(folder) == 0;
}

}  // namespace

void check_bytes(const std::string& name, size_t bytes, size_t max_bytes) {
    if (bytes > max_bytes) {
        throw Error(name + " has " + std::to_string(bytes) + " bytes; at most " + std::to_string(max_bytes) +
                    " are possible");
    }
}

std::string read_file(const std::string& path, size_t max_bytes) {
    if (is_folder(path)) {
        throw Error(path +
                    ": cannot read it: it is a folder");  // opening a folder succeeds, and its size appears unlimited
    }
    errno = 0;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
    if (size > 0) {
        check_bytes(path, static_cast<size_t>(size), max_bytes);
    }
    std::string content(size > 0 ? static_cast<size_t>(size) : 0, '\0');
    file.seekg(0);
    if (size < 0 || !file.read(content.data(), size)) {
        throw Error(path + ": cannot read it: " + std::strerror(errno ? errno : EIO));
    }
    return content;
}

}  // namespace bmx
