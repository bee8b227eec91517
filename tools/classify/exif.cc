#include "exif.h"

namespace classify {
namespace {

constexpr size_t kOrientation = 0x112, kShort = 3, kEntryBytes = 12;

}  // namespace

int exif_orientation(const std::string& header) {
    const Bytes bytes(header);
    if (!bytes.has(0, 8)) {
        return 1;
    }
    const bool little = bytes.number(0, 2, false) == 0x4949;
    const size_t directory = bytes.number(4, 4, little);
    if (!bytes.has(directory, 2)) {
        return 1;
    }
    const size_t entries = bytes.number(directory, 2, little);
    for (size_t i = 0; i < entries && bytes.has(directory + 2 + i * kEntryBytes, kEntryBytes); i++) {
        const size_t entry = directory + 2 + i * kEntryBytes;
        if (bytes.number(entry, 2, little) == kOrientation && bytes.number(entry + 2, 2, little) == kShort) {
            return static_cast<int>(bytes.number(entry + 8, 2, little));
        }
    }
    return 1;
}

}  // namespace classify
