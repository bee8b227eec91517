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

std::string read_file(const std::string& path) {
    if (is_folder(path)) {
        throw Error(path +
                    ": cannot read it: it is a folder");  // opening a folder succeeds, and its size appears unlimited
    }
    errno = 0;
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
    std::string content(size > 0 ? static_cast<size_t>(size) : 0, '\0');
    file.seekg(0);
    if (size < 0 || !file.read(content.data(), size)) {
        throw Error(path + ": cannot read it: " + std::strerror(errno ? errno : EIO));
    }
    return content;
}

}  // namespace bmx
