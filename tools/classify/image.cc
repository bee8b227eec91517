#include "image.h"

#include <algorithm>

namespace classify {

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

}  // namespace classify
