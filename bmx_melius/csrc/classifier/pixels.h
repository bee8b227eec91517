// Preprocessing of images. It computes the same numbers as bmx_melius/vision/pixels.py and preprocessing.py.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

namespace bmx {

// An image in memory: (height, width, channels), contiguous.
struct ImageView {
    const uint8_t* data;
    int64_t height, width, channels;

    const uint8_t* at(int64_t row, int64_t column) const { return data + (row * width + column) * channels; }
};

// InputSpec of bmx_melius/vision/preprocessing.py.
struct InputSpec {
    int64_t channels = 0, size = 0;
    std::optional<int64_t> resize;
    std::vector<float> mean, std;
};

// Writes the input of the network, (1, channels, size, size), for an image with its channels; RGB becomes gray, and
// gray RGB, as the network needs. Throws Error for other channels and for too many pixels.
void preprocess(const ImageView& image, const InputSpec& spec, float* input);

}  // namespace bmx
