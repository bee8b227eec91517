#include "steps/depthwise_step.h"

#include <algorithm>

#include "kernels/common/arithmetic.h"

namespace bmx {

DepthwiseStep::DepthwiseStep(DepthwiseSpec spec)
    : spec_(std::move(spec)),
      packer_(spec_.packing, spec_.output.buffer),
      channels_(spec_.source.channels()),
      weights_(spec_.weights.size()) {
    const int taps = spec_.attributes.taps();
    for (int c = 0; c < channels_; c++) {
        for (int tap = 0; tap < taps; tap++) {
            weights_[static_cast<size_t>(tap) * channels_ + c] = spec_.weights[static_cast<size_t>(c) * taps + tap];
        }
    }
    spec_.weights = {};
}

void DepthwiseStep::run(const Memory& memory, const Team& team, int) const {
    const Value& result = memory.value(spec_.result);
    const int64_t pixels = result.height * result.width, end = team.end(pixels);
    for (int64_t pixel = team.begin(pixels), next; pixel < end; pixel = next) {
        const int y = static_cast<int>(pixel / result.width), x = static_cast<int>(pixel % result.width);
        next = std::min(pixel + result.width - x, end);
        compute(memory, y, x, x + static_cast<int>(next - pixel));
        spec_.chain.apply(memory, memory.view(spec_.output), pixel, next, 0, channels_);
        packer_.pack(memory, pixel, next);
    }
}

// start: position of the first tap. Taps outside the map are omitted.
DepthwiseStep::Taps DepthwiseStep::taps_inside(int start, int taps, int dilation, int64_t size) {
    const int begin = start < 0 ? std::min(ceil_div(-start, dilation), taps) : 0;
    const int64_t room = size - start;  // positions from the first tap to the end of the map
    const int end = room <= 0 ? 0 : static_cast<int>(std::min<int64_t>(ceil_div(room, dilation), taps));
    return {begin, std::max(end - begin, 0), start + static_cast<ptrdiff_t>(begin) * dilation};
}

// Computes columns `begin` to `end` - 1 of row y of the result.
void DepthwiseStep::compute(const Memory& memory, int y, int begin, int end) const {
    const Attributes& a = spec_.attributes;
    const Value& map = memory.value(spec_.source.value);
    const View output = memory.view(spec_.output);
    const Taps rows = taps_inside(y * a.stride_h - a.pad_top, a.kernel_h, a.dilation_h, map.height);
    // Pixels in the middle have complete windows and are computed by one call.
    const int whole_begin = ceil_div(a.pad_left, a.stride_w);
    const int64_t room = map.width + a.pad_left - a.extent_w();
    const int whole_end = room < 0 ? 0 : static_cast<int>(room / a.stride_w) + 1;
    for (int x = begin, pixels; x < end; x += pixels) {
        pixels = x >= whole_begin && x < whole_end ? std::min(whole_end, end) - x : 1;
        const Taps columns = taps_inside(x * a.stride_w - a.pad_left, a.kernel_w, a.dilation_w, map.width);
        float* const to = reinterpret_cast<float*>(output.at(y * output.row + x * output.pixel));
        int channel = 0;
        for (const Slab& slab : spec_.source.slabs) {
            compute_slab(memory.view(slab), slab, channel, rows, columns, pixels, to + channel, output.pixel);
            channel += slab.channels;
        }
    }
}

// Computes the channels of a slab, the first of which is `channel`.
void DepthwiseStep::compute_slab(const View& view, const Slab& slab, int channel, const Taps& rows, const Taps& columns,
                                 int pixels, float* output, ptrdiff_t output_pixel) const {
    const Attributes& a = spec_.attributes;
    const bool empty = rows.count == 0 || columns.count == 0;
    DepthwiseRow row;
    row.type = view.type;
    row.x = empty ? view.data : view.at(rows.position * view.row + columns.position * view.pixel);
    row.step = a.stride_w * view.pixel;
    row.rows = empty ? 0 : rows.count;
    row.columns = columns.count;
    row.row = a.dilation_h * view.row;
    row.column = a.dilation_w * view.pixel;
    row.weight_column = channels_;
    row.weight_row = row.weight_column * a.kernel_w;
    row.weights =
        weights_.data() + (empty ? 0 : rows.begin * row.weight_row + columns.begin * row.weight_column) + channel;
    row.pixels = pixels;
    row.channels = slab.channels;
    row.epilogue = spec_.after.from(channel);
    row.output = output;
    row.output_pixel = output_pixel;
    spec_.kernels->depthwise_row(row);
}

}  // namespace bmx
