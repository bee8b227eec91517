// Decoding of image files to the pixels that bmx_melius/vision/pixels.py decodes.
#pragma once
#include <string>

#include "image.h"

namespace classify {

constexpr int64_t kMaxPixels = 1 << 27;  // as in bmx_melius/vision/pixels.py

// Decodes a JPEG or PNG file for a network with 3 channels, RGB, or 1, gray. The result may have the other number of
// them, from which the library converts. Throws Error with the name of the file.
Image read_image(const std::string& path, int64_t channels);

// Decode the content of a file. Throw Error with the reason only.
Image decode_jpeg(const std::string& content, int64_t channels);
Image decode_png(const std::string& content, int64_t channels);

// Throws Error if an image has too many pixels, or none.
void require_size(int64_t height, int64_t width);

}  // namespace classify
