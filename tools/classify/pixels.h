// Pixels of images, and their preprocessing. It computes the same numbers as bmx_melius/vision/pixels.py and
// preprocessing.py.
#pragma once
#include <cstdint>
#include <optional>
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

// Weights of red, green and blue in a gray pixel, and what is added before the division by their sum.
struct Luma {
    int32_t red, green, blue, rounding;
};
constexpr Luma kOpenCvLuma = {4899, 9617, 1868, 8192}, kLibpngLuma = {9797, 19234, 3737, 0};

// Returns the image with 3 or 1 channels.
Image with_channels(Image image, int64_t channels, const Luma& luma);

// Returns the image turned as an orientation of EXIF, 1 to 8, requires.
Image turned(Image image, int orientation);

// InputSpec of bmx_melius/vision/preprocessing.py.
struct InputSpec {
    int64_t channels = 3, size = 224;
    std::optional<int64_t> resize;
    std::vector<float> mean, std;
};

// Returns the input of the network, (1, channels, size, size), for an image that has its channels.
std::vector<float> preprocessed(const Image& image, const InputSpec& spec);

}  // namespace classify
