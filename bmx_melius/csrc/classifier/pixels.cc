#include "classifier/pixels.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "program/error.h"
#include "threads/float_environment.h"

namespace bmx {
namespace {

constexpr int64_t kMaxPixels = 1 << 27;  // also after resizing, as in bmx_melius/vision/pixels.py
constexpr float kUnit = 1 << 11;         // weights of OpenCV's resize have 11 bits

constexpr int64_t kColours = 3;

// Pixels that have been computed.
struct Crop {
    int64_t height, width, channels;
    std::vector<uint8_t> pixels;

    Crop(int64_t rows, int64_t columns, int64_t depth)
        : height(rows), width(columns), channels(depth), pixels(static_cast<size_t>(rows * columns * depth)) {}

    uint8_t* at(int64_t row, int64_t column) { return pixels.data() + (row * width + column) * channels; }
};

// The part of a resized axis that is computed.
struct Window {
    int64_t begin, end;
};

// Two neighbours on an axis, and their weights.
struct Neighbours {
    int64_t first, second;
    int32_t weights[2];
};

// `at_border`: results beyond the centre of the first or last pixel have weights of 1 and 0, as OpenCV's columns do.
std::vector<Neighbours> neighbours(int64_t before, int64_t after, Window window, bool at_border) {
    const double scale = 1 / (static_cast<double>(after) / static_cast<double>(before));  // OpenCV inverts twice
    std::vector<Neighbours> result;
    for (int64_t i = window.begin; i < window.end; i++) {
        const float position = static_cast<float>((static_cast<double>(i) + 0.5) * scale - 0.5);
        const int64_t first = static_cast<int64_t>(std::floor(position));
        float fraction = position - static_cast<float>(first);
        if (at_border && (first < 0 || first >= before - 1)) {
            fraction = 0;
        }
        const auto weight = [](float part) { return static_cast<int32_t>(std::nearbyint(part * kUnit)); };
        const auto inside = [before](int64_t place) { return std::clamp<int64_t>(place, 0, before - 1); };
        result.push_back({inside(first), inside(first + 1), {weight(1.0f - fraction), weight(fraction)}});
    }
    return result;
}

// OpenCV takes means of 2 x 2 pixels where it halves an image.
Crop halved(const ImageView& image, Window rows, Window columns) {
    Crop result(rows.end - rows.begin, columns.end - columns.begin, image.channels);
    for (int64_t y = 0; y < result.height; y++) {
        for (int64_t x = 0; x < result.width; x++) {
            const int64_t row = 2 * (rows.begin + y), column = 2 * (columns.begin + x);
            const uint8_t *above = image.at(row, column), *below = image.at(row + 1, column);
            for (int64_t c = 0; c < image.channels; c++) {
                const int sum = above[c] + above[c + image.channels] + below[c] + below[c + image.channels];
                result.at(y, x)[c] = static_cast<uint8_t>((sum + 2) >> 2);
            }
        }
    }
    return result;
}

// Equals cv2.resize(image, (width, height)) in every pixel of the window.
Crop resized(const ImageView& image, int64_t height, int64_t width, Window rows, Window columns) {
    if (image.height == 2 * height && image.width == 2 * width) {
        return halved(image, rows, columns);
    }
    const std::vector<Neighbours> vertical = neighbours(image.height, height, rows, false);
    const std::vector<Neighbours> horizontal = neighbours(image.width, width, columns, true);
    Crop result(rows.end - rows.begin, columns.end - columns.begin, image.channels);
    for (int64_t y = 0; y < result.height; y++) {
        const Neighbours& v = vertical[y];
        for (int64_t x = 0; x < result.width; x++) {
            const Neighbours& h = horizontal[x];
            for (int64_t c = 0; c < image.channels; c++) {
                const auto sum = [&](int64_t row) {  // OpenCV keeps 15 bits of it
                    return (image.at(row, h.first)[c] * h.weights[0] + image.at(row, h.second)[c] * h.weights[1]) >> 4;
                };
                const int above = (v.weights[0] * sum(v.first)) >> 16, below = (v.weights[1] * sum(v.second)) >> 16;
                result.at(y, x)[c] = static_cast<uint8_t>((above + below + 2) >> 2);
            }
        }
    }
    return result;
}

Crop cropped(const ImageView& image, const InputSpec& spec) {
    const Window all = {0, spec.size};
    if (!spec.resize) {
        return resized(image, spec.size, spec.size, all, all);
    }
    const int64_t side = std::min(image.height, image.width);
    const int64_t height = *spec.resize * image.height / side, width = *spec.resize * image.width / side;
    if (height > kMaxPixels / width) {
        throw Error("an image of " + std::to_string(image.width) + " x " + std::to_string(image.height) +
                    " pixels would be resized to " + std::to_string(width) + " x " + std::to_string(height) +
                    "; at most " + std::to_string(kMaxPixels) + " pixels are possible: crop it first");
    }
    const int64_t top = (height - spec.size) / 2, left = (width - spec.size) / 2;
    return resized(image, height, width, {top, top + spec.size}, {left, left + spec.size});
}

// Returns the luma of colours with OpenCV's weights, 0.299, 0.587 and 0.114 in 14 bits.
std::vector<uint8_t> luma(const ImageView& image) {
    std::vector<uint8_t> result(static_cast<size_t>(image.height * image.width));
    const uint8_t* from = image.data;
    for (uint8_t& gray : result) {
        gray = static_cast<uint8_t>((from[0] * 4899 + from[1] * 9617 + from[2] * 1868 + (1 << 13)) >> 14);
        from += kColours;
    }
    return result;
}

// Throws Error unless an image can become the input.
void check_pixels(const ImageView& image, const InputSpec& spec) {
    if (image.height < 1 || image.width < 1 || image.height > kMaxPixels / image.width) {
        throw Error("an image of " + std::to_string(image.height) + " x " + std::to_string(image.width) +
                    " pixels is not possible; it must have 1 to " + std::to_string(kMaxPixels));
    }
    const auto is_gray_or_rgb = [](int64_t channels) { return channels == 1 || channels == kColours; };
    if (image.channels != spec.channels && !(is_gray_or_rgb(image.channels) && is_gray_or_rgb(spec.channels))) {
        const std::string channels = std::to_string(spec.channels);
        throw Error("the image has " + std::to_string(image.channels) + " channels, but the network takes " +
                    (is_gray_or_rgb(spec.channels) ? "3 (RGB) or 1 (gray)" : channels));
    }
}

}  // namespace

void preprocess(const ImageView& image, const InputSpec& spec, float* input) {
    const DefaultFloatEnvironment environment;  // rounding to nearest
    check_pixels(image, spec);
    std::vector<uint8_t> gray;
    ImageView source = image;
    if (spec.channels == 1 && image.channels == kColours) {
        gray = luma(image);
        source = {gray.data(), image.height, image.width, 1};
    }
    const Crop crop = cropped(source, spec);
    for (int64_t c = 0; c < spec.channels; c++) {
        const size_t first = crop.channels == 1 ? 0 : static_cast<size_t>(c);  // colours of a gray image are equal
        for (size_t i = first; i < crop.pixels.size(); i += static_cast<size_t>(crop.channels)) {
            *input++ = (static_cast<float>(crop.pixels[i]) - spec.mean[c]) / spec.std[c];
        }
    }
}

}  // namespace bmx
