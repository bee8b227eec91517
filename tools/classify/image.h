// Decoded images.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace classify {

// (height, width, channels) with 3 channels, RGB, or 1, gray.
struct Image {
    int64_t height = 0, width = 0, channels = 0;
    std::vector<uint8_t> pixels;

    Image() = default;
    Image(int64_t rows, int64_t columns, int64_t depth)
        : height(rows), width(columns), channels(depth), pixels(static_cast<size_t>(rows * columns * depth)) {}

    uint8_t* at(int64_t row, int64_t column) { return pixels.data() + (row * width + column) * channels; }
    const uint8_t* at(int64_t row, int64_t column) const { return pixels.data() + (row * width + column) * channels; }
};

// Returns the image turned as an orientation of EXIF, 1 to 8, requires.
Image turned(Image image, int orientation);

}  // namespace classify
