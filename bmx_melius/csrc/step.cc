#include "step.h"

namespace bmx {
namespace {

template <class From, class To>
void copy_pixels(const From* from, ptrdiff_t from_stride, int pixels, int channels, To* to, ptrdiff_t to_stride) {
    for (int i = 0; i < pixels; i++, from += from_stride, to += to_stride)
        for (int c = 0; c < channels; c++) to[c] = static_cast<To>(from[c]);
}

}  // namespace

void gather_row(const Memory& memory, const Source& source, int row, float* to, ptrdiff_t stride) {
    const int width = static_cast<int>(memory.value(source.value).width);
    for (const Slab& slab : source.slabs) {
        View view = memory.view(slab);
        const uint8_t* from = view.at(row * view.row);
        if (view.number == Number::f32)
            copy_pixels(reinterpret_cast<const float*>(from), view.pixel, width, view.channels, to, stride);
        else
            copy_pixels(reinterpret_cast<const int16_t*>(from), view.pixel, width, view.channels, to, stride);
        to += slab.channels;
    }
}

void scatter_row(const float* from, ptrdiff_t stride, int width, const View& view, int row) {
    uint8_t* to = view.at(row * view.row);
    if (view.number == Number::f32)
        copy_pixels(from, stride, width, view.channels, reinterpret_cast<float*>(to), view.pixel);
    else
        copy_pixels(from, stride, width, view.channels, reinterpret_cast<int16_t*>(to), view.pixel);
}

}  // namespace bmx
