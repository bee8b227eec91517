#include "pixels.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace classify {
namespace {

constexpr float kUnit = 1 << 11;  // weights of OpenCV's resize have 11 bits

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
Image halved(const Image& image, Window rows, Window columns) {
    Image result(rows.end - rows.begin, columns.end - columns.begin, image.channels);
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
Image resized(const Image& image, int64_t height, int64_t width, Window rows, Window columns) {
    if (image.height == 2 * height && image.width == 2 * width) {
        return halved(image, rows, columns);
    }
    const std::vector<Neighbours> vertical = neighbours(image.height, height, rows, false);
    const std::vector<Neighbours> horizontal = neighbours(image.width, width, columns, true);
    Image result(rows.end - rows.begin, columns.end - columns.begin, image.channels);
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

Image cropped(const Image& image, const InputSpec& spec) {
    const Window all = {0, spec.size};
    if (!spec.resize) {
        return resized(image, spec.size, spec.size, all, all);
    }
    const int64_t side = std::min(image.height, image.width);
    const int64_t height = *spec.resize * image.height / side, width = *spec.resize * image.width / side;
    const int64_t top = (height - spec.size) / 2, left = (width - spec.size) / 2;
    return resized(image, height, width, {top, top + spec.size}, {left, left + spec.size});
}

}  // namespace

Image with_channels(Image image, int64_t channels, const Luma& luma) {
    if (image.channels == channels) {
        return image;
    }
    Image result(image.height, image.width, channels);
    for (int64_t y = 0; y < image.height; y++) {
        for (int64_t x = 0; x < image.width; x++) {
            const uint8_t* from = image.at(y, x);
            if (channels == 3) {
                std::fill_n(result.at(y, x), 3, *from);
            } else {
                const int32_t sum = from[0] * luma.red + from[1] * luma.green + from[2] * luma.blue + luma.rounding;
                *result.at(y, x) = static_cast<uint8_t>(sum / (luma.red + luma.green + luma.blue));
            }
        }
    }
    return result;
}

Image turned(Image image, int orientation) {
    if (orientation < 2 || orientation > 8) {
        return image;
    }
    const bool transposed = orientation >= 5;
    const bool from_bottom = orientation == 3 || orientation == 4 || orientation == 6 || orientation == 7;
    const bool from_right = orientation == 2 || orientation == 3 || orientation == 7 || orientation == 8;
    Image result(transposed ? image.width : image.height, transposed ? image.height : image.width, image.channels);
    for (int64_t y = 0; y < result.height; y++) {
        for (int64_t x = 0; x < result.width; x++) {
            const int64_t row = transposed ? x : y, column = transposed ? y : x;
            const uint8_t* from = image.at(from_bottom ? image.height - 1 - row : row,  //
                                           from_right ? image.width - 1 - column : column);
            std::copy_n(from, image.channels, result.at(y, x));
        }
    }
    return result;
}

std::vector<float> preprocessed(const Image& image, const InputSpec& spec) {
    const Image crop = cropped(image, spec);
    std::vector<float> result(crop.pixels.size());
    float* next = result.data();
    for (int64_t c = 0; c < crop.channels; c++) {
        for (size_t i = static_cast<size_t>(c); i < crop.pixels.size(); i += static_cast<size_t>(crop.channels)) {
            *next++ = (static_cast<float>(crop.pixels[i]) - spec.mean[c]) / spec.std[c];
        }
    }
    return result;
}

}  // namespace classify
