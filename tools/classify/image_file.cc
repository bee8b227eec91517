#include "image_file.h"

#include <cstring>

#include "files.h"

namespace classify {
namespace {

// Formats that bmx_melius/vision/pixels.py reads and this program does not.
constexpr struct {
    size_t place;
    const char *bytes, *name;
} kOthers[] = {{8, "WEBP", "WebP"}, {0, "GIF8", "GIF"}, {0, "BM", "BMP"},
               {0, "II*", "TIFF"},  {0, "MM", "TIFF"},  {0, "\x93NUMPY", "NPY"}};

}  // namespace

void require_size(int64_t height, int64_t width) {
    if (height < 1 || width < 1 || height > kMaxPixels / width) {
        throw Error("it has " + std::to_string(height) + " x " + std::to_string(width) + " pixels, more than " +
                    std::to_string(kMaxPixels));
    }
}

Image read_image(const std::string& path, int64_t channels) {
    const std::string content = read_file(path);
    const auto begins = [&](const std::string& bytes) { return content.compare(0, bytes.size(), bytes) == 0; };
    try {
        if (begins("\xff\xd8\xff")) {
            return decode_jpeg(content, channels);
        }
        if (begins("\x89PNG\r\n\x1a\n")) {
            return decode_png(content, channels);
        }
    } catch (const Error& error) {
        throw Error(path + " cannot be decoded as an image: " + error.what());
    }
    for (const auto& other : kOthers) {
        if (content.size() >= 12 && content.compare(other.place, std::strlen(other.bytes), other.bytes) == 0) {
            throw Error(path + " is a " + other.name + " file, which bmx-classify does not read: store it as PNG");
        }
    }
    throw Error(path + " is not a JPEG or PNG file");
}

}  // namespace classify
