#include "steps/step.h"

namespace bmx {
namespace {

template <class From, class To>
void copy_pixels(const From* from, ptrdiff_t from_stride, int pixels, int channels, To* to, ptrdiff_t to_stride) {
    for (int i = 0; i < pixels; i++, from += from_stride, to += to_stride) {
        for (int c = 0; c < channels; c++) {
            to[c] = static_cast<To>(from[c]);
        }
    }
}

}  // namespace

void gather_row(const Memory& memory, const Source& source, int row, float* to, ptrdiff_t stride) {
    const int width = static_cast<int>(memory.value(source.value).width);
    for (const Slab& slab : source.slabs) {
        const View view = memory.view(slab);
        visit_typed(view.type, view.at(row * view.row),
                    [&](const auto* from) { copy_pixels(from, view.pixel, width, view.channels, to, stride); });
        to += slab.channels;
    }
}

void scatter_row(const float* from, ptrdiff_t stride, int width, const View& view, int row) {
    visit_typed(view.type, view.at(row * view.row),
                [&](auto* to) { copy_pixels(from, stride, width, view.channels, to, view.pixel); });
}

}  // namespace bmx
