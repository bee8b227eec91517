// Cases of the tests of binary kernels: edge cases, and random cases. To add a case, add a line to kEdgeCases.
#pragma once
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

#include "kernels/common/binary_kernels.h"

struct Case {
    bmx::BinaryConv conv;
    int rows, columns;  // size of the computed output
    int margin;         // pixels on each side of the map outside the computed part
    int gap;            // pixels after each row of the map, and elements after each pixel of the output
    bool addend;
    bmx::DataType type;
    int first_step, last_step;  // range of filters, in sixteenths of all filter steps
    unsigned seed;
};

inline std::string describe(const Case& c) {
    char text[400];
    const bmx::BinaryConv& v = c.conv;
    std::snprintf(text, sizeof(text),
                  "channels %d filters %d kernel %dx%d stride %dx%d dilation %dx%d groups %d offset %d, output %dx%d, "
                  "margin %d gap %d addend %d %s filters %d/16 to %d/16 seed %u",
                  v.in_channels, v.out_channels, v.kernel_h, v.kernel_w, v.stride_h, v.stride_w, v.dilation_h,
                  v.dilation_w, v.groups, v.offset, c.rows, c.columns, c.margin, c.gap, c.addend,
                  c.type == bmx::DataType::f32 ? "f32" : "i16", c.first_step, c.last_step, c.seed);
    return text;
}

constexpr bmx::DataType kF32 = bmx::DataType::f32, kI16 = bmx::DataType::i16;

// in, out, kernel, stride, dilation, groups | output | margin gap
inline const Case kEdgeCases[] = {
    {{64, 64, 3, 3, 1, 1, 1, 1, 1, false}, 56, 56, 0, 0, false, kI16, 0, 16, 1},
    {{64, 64, 3, 3, 1, 1, 1, 1, 1, true}, 7, 7, 0, 0, true, kI16, 0, 16, 2},
    {{160, 64, 3, 3, 1, 1, 1, 1, 1, false}, 14, 14, 0, 0, true, kF32, 0, 16, 3},
    {{512, 64, 3, 3, 1, 1, 1, 1, 1, false}, 7, 7, 0, 0, false, kI16, 0, 16, 4},
    {{224, 96, 3, 3, 1, 1, 1, 1, 1, false}, 9, 11, 1, 1, true, kI16, 0, 16, 17},  // an odd number of words
    {{1100, 40, 3, 3, 2, 1, 1, 2, 2, true}, 3, 7, 1, 1, false, kF32, 0, 16, 18},
    {{544, 33, 1, 1, 1, 1, 1, 1, 1, false}, 1, 1, 0, 0, true, kF32, 0, 16, 19},
    {{3584, 64, 3, 3, 1, 1, 1, 1, 1, false}, 2, 3, 0, 0, false, kI16, 0, 16, 5},   // n near the limit of i16
    {{8200, 20, 3, 3, 1, 1, 1, 1, 1, false}, 1, 3, 0, 0, true, kF32, 0, 16, 20},   // n beyond 16 bits
    {{3648, 33, 3, 3, 1, 1, 1, 1, 1, true}, 2, 5, 0, 0, true, kF32, 0, 16, 22},    // n beyond i16, within 16 bits
    {{3648, 33, 3, 3, 1, 1, 1, 1, 1, false}, 5, 13, 0, 0, true, kF32, 0, 16, 24},  // the same, several tiles
    {{672, 80, 3, 3, 1, 1, 1, 1, 1, false}, 5, 7, 0, 0, true, kI16, 0, 16, 27},    // a pixel of 21 words
    {{192, 232, 3, 3, 1, 1, 1, 1, 2, false}, 5, 7, 1, 1, true, kI16, 0, 16, 28},   // groups end with incomplete strips
    {{128, 112, 3, 3, 1, 4, 1, 1, 1, true}, 3, 5, 0, 0, false, kF32, 0, 16, 29},   // columns that windows do not share
    {{64, 64, 2, 2, 4, 3, 1, 1, 1, false}, 5, 7, 0, 0, true, kI16, 0, 16, 23},     // stride beyond the window
    {{224, 64, 3, 3, 1, 1, 1, 1, 1, false}, 37, 2, 0, 0, true, kI16, 0, 16, 25},   // tiles of many rows
    {{96, 33, 3, 3, 1, 1, 1, 1, 1, false}, 40, 1, 0, 1, false, kI16, 0, 16, 26},
    {{160, 40, 3, 3, 1, 1, 1, 1, 1, false}, 29, 31, 1, 1, true, kF32, 0, 16, 30},  // an odd number of vectors of pixels
    {{120, 64, 3, 3, 1, 1, 1, 1, 1, false}, 56, 56, 0, 0, true, kI16, 0, 16, 37},  // nothing differs
    {{192, 48, 3, 3, 1, 1, 2, 3, 2, true}, 20, 50, 0, 0, true, kI16, 0, 16, 46},
    {{128, 80, 3, 3, 1, 1, 1, 1, 1, false}, 60, 17, 2, 0, false, kI16, 6, 14, 34},
    {{130, 96, 3, 3, 1, 1, 1, 1, 2, true}, 30, 30, 0, 0, true, kI16, 11, 16, 77},  // filters within the second group
    {{64, 16, 3, 3, 1, 1, 1, 1, 1, false}, 26, 30, 0, 0, false, kI16, 0, 16, 39},  // 13 vectors of pixels
    {{40, 48, 3, 3, 1, 2, 1, 1, 1, false}, 30, 30, 0, 0, false, kI16, 0, 16, 56},
    {{40, 48, 3, 3, 2, 1, 1, 1, 1, false}, 30, 30, 0, 0, false, kI16, 0, 16, 71},
    {{1530, 8, 3, 3, 1, 1, 1, 1, 1, false}, 28, 31, 0, 0, false, kI16, 0, 16, 25},   // 255 sextets of channels
    {{1536, 16, 3, 3, 1, 1, 1, 1, 1, false}, 30, 28, 0, 0, false, kI16, 0, 16, 48},  // and 256
    {{4736, 32, 3, 3, 1, 1, 1, 1, 4, false}, 31, 31, 0, 0, true, kF32, 0, 16, 67},  // 7 pixels are more than kReadAhead
    {{1, 1, 1, 1, 1, 1, 1, 1, 1, false}, 1, 1, 0, 0, false, kF32, 0, 16, 6},
    {{256, 130, 1, 1, 1, 1, 1, 1, 1, true}, 1, 1, 0, 0, true, kF32, 0, 16, 7},  // a dense layer
    {{64, 64, 3, 3, 2, 2, 1, 1, 1, false}, 28, 28, 0, 0, false, kI16, 0, 16, 8},
    {{64, 64, 1, 1, 2, 2, 1, 1, 1, false}, 9, 9, 0, 0, false, kI16, 0, 16, 9},
    {{64, 64, 3, 3, 1, 1, 2, 2, 1, false}, 14, 14, 0, 0, false, kI16, 0, 16, 10},
    {{96, 96, 3, 3, 1, 1, 1, 1, 96, false}, 5, 33, 0, 0, true, kI16, 0, 16, 11},  // depthwise
    {{128, 48, 3, 3, 1, 1, 1, 1, 2, false}, 4, 17, 0, 0, true, kI16, 0, 16, 12},
    {{64, 64, 3, 3, 1, 1, 1, 1, 1, false}, 1, 56, 2, 0, false, kI16, 8, 16, 13},
    {{64, 40, 7, 7, 2, 2, 1, 1, 1, false}, 20, 21, 0, 0, false, kF32, 4, 16, 14},
    {{48, 64, 3, 3, 1, 1, 1, 1, 1, false}, 14, 14, 1, 1, false, kI16, 0, 16, 15},
    {{32, 16, 5, 2, 1, 1, 1, 1, 1, false}, 3, 200, 0, 0, false, kI16, 0, 16, 16},
    {{1, 16, 64, 64, 1, 1, 1, 1, 1, false}, 1, 3, 0, 0, true, kI16, 0, 16, 21},  // more steps than n requires
};

class Random {
  public:
    explicit Random(unsigned seed) : engine_(seed) {}
    int between(int low, int high) { return low + static_cast<int>(engine_() % (high - low + 1u)); }
    bool once_in(int n) { return engine_() % n == 0; }
    uint32_t word() { return static_cast<uint32_t>(engine_()); }

  private:
    std::mt19937 engine_;
};

inline Case random_case(unsigned seed) {
    Random r(seed);
    Case c;
    bmx::BinaryConv& v = c.conv;
    v.groups = r.once_in(4) ? r.between(2, 6) : 1;
    const bool round_channels = r.once_in(2);  // to cover the fast paths
    const int max_channels = v.groups == 1 ? 200 : 70;
    v.in_channels = v.groups * (round_channels ? 32 * r.between(1, max_channels / 32) : r.between(1, max_channels));
    v.out_channels = v.groups * (r.once_in(2) ? 16 * r.between(1, 5) : r.between(1, v.groups == 1 ? 130 : 40));
    v.kernel_h = r.once_in(2) ? 3 : r.between(1, 7);
    v.kernel_w = r.once_in(2) ? v.kernel_h : r.between(1, 7);
    v.stride_h = r.once_in(3) ? r.between(1, 3) : 1;
    v.stride_w = r.once_in(3) ? r.between(1, 3) : v.stride_h;
    v.dilation_h = r.once_in(4) ? r.between(1, 3) : 1;
    v.dilation_w = r.once_in(4) ? r.between(1, 3) : 1;
    v.offset = r.once_in(3);
    c.rows = r.between(1, r.once_in(2) ? 4 : r.once_in(2) ? 16 : 40);
    c.columns = r.between(1, r.once_in(2) ? 16 : 60);
    if (r.once_in(3)) {
        c.columns = c.rows;
    }
    c.margin = r.once_in(3) ? r.between(1, 3) : 0;
    c.gap = r.once_in(5) ? r.between(1, 3) : 0;
    c.addend = r.once_in(2);
    c.type = r.once_in(2) ? bmx::DataType::f32 : bmx::DataType::i16;
    c.first_step = r.once_in(3) ? r.between(0, 15) : 0;
    c.last_step = r.once_in(3) ? r.between(c.first_step, 16) : 16;
    c.seed = seed;
    return c;
}
