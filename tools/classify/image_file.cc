#include "image_file.h"

#include "files.h"

namespace classify {

void require_size(int64_t height, int64_t width) {
    if (height < 1 || width < 1 || height > kMostPixels / width) {
        throw Error("it has " + std::to_string(height) + " x " + std::to_string(width) + " pixels, more than " +
                    std::to_string(kMostPixels));
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
    throw Error(path + " is not a JPEG or PNG file");
}

}  // namespace classify
