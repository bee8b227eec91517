// The orientation in EXIF headers.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace classify {

// Numbers in the bytes of a file.
class Bytes {
  public:
    explicit Bytes(const std::string& content) : content_(content) {}

    bool has(size_t place, size_t bytes) const { return place <= content_.size() && bytes <= content_.size() - place; }

    size_t number(size_t place, int bytes, bool little) const {
        size_t result = 0;
        for (int i = 0; i < bytes; i++) {
            const size_t byte = static_cast<uint8_t>(content_[place + (little ? bytes - 1 - i : i)]);
            result = result << 8 | byte;
        }
        return result;
    }

  private:
    const std::string& content_;
};

// Returns the orientation in the first directory of an EXIF header, which begins with the header of TIFF; 1 if it has
// none.
int exif_orientation(const std::string& header);

}  // namespace classify
