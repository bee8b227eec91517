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
    const int64_t width = memory.value(source.value).width;
    gather_pixels(memory, source, row * width, static_cast<int>(width), to, stride);
}

void gather_pixels(const Memory& memory, const Source& source, int64_t first, int count, float* to, ptrdiff_t stride) {
    for (const Slab& slab : source.slabs) {
        const View view = memory.view(slab);  // whose rows follow one another
        visit_typed(view.type, view.at(static_cast<ptrdiff_t>(first) * view.pixel),
                    [&](const auto* from) { copy_pixels(from, view.pixel, count, view.channels, to, stride); });
        to += slab.channels;
    }
}

void scatter_row(const float* from, ptrdiff_t stride, int width, const View& view, int row) {
    visit_typed(view.type, view.at(row * view.row),
                [&](auto* to) { copy_pixels(from, stride, width, view.channels, to, view.pixel); });
}

}  // namespace bmx
