#include "steps/stem_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

constexpr int kMaxKernel = 255;
constexpr int kLine = 16;      // floats per cache line
constexpr int kRowsAhead = 2;  // rows of the image are prefetched while earlier rows are computed

}  // namespace

// State of one thread.
struct StemStep::Work {
    const Memory* memory;
    struct Rows {
        Ring ring;
        float* data;
        int next;  // the first row not computed yet

        // Returns the address of channel 0, column 0.
        float* row(int number) const { return data + number % ring.depth * ring.channel * ring.channels + ring.left; }
    };
    Rows* rings;
};

StemStep::StemStep(const StemSpec& spec) : spec_(spec), packer_(spec.packing, spec.output.buffer) {
    for (StemLayer& layer : spec_.layers) {
        const Attributes& a = layer.attributes;
        layers_.emplace_back();
        Layer& made = layers_.back();
        made.conv = {layer.in_channels, a.out_channels, a.kernel_h,   a.kernel_w, a.stride_h,
                     a.stride_w,        a.dilation_h,   a.dilation_w, a.groups};
        made.weights = Constants<uint8_t>(spec_.kernels->planar_weights_bytes(made.conv));
        spec_.kernels->planar_prepare(made.conv, layer.weights.data(), made.weights.data());
        made.scale = Constants<float>(layer.scale);
        made.shift = Constants<float>(layer.shift);
        layer.weights = {};
    }
    for (size_t i = 0; i < layers_.size(); i++) {  // after the last move of the layers
        const bool scaled = !spec_.layers[i].scale.empty();
        layers_[i].epilogue = {scaled ? layers_[i].scale.data() : nullptr, scaled ? layers_[i].shift.data() : nullptr,
                               spec_.layers[i].relu};
    }
}

StemStep::Window StemStep::rows_under(size_t ring) const {
    if (ring < spec_.layers.size()) {
        const Attributes& a = spec_.layers[ring].attributes;
        return {a.extent_h(), a.stride_h, a.pad_top};
    }
    if (spec_.has_pool) {
        return {spec_.pool.kernel_h, spec_.pool.stride_h, spec_.pool.pad_top};
    }
    return {1, 1, 0};
}

// Returns the geometry of a ring. Ring 0 holds rows of the input, ring i rows of layer i - 1.
StemStep::Ring StemStep::ring(const std::vector<Value>& values, size_t number) const {
    const bool before_layer = number < spec_.layers.size();
    const Value& map = values[number == 0 ? spec_.input : spec_.layers[number - 1].value];
    Ring ring;
    ring.height = static_cast<int>(map.height);
    ring.width = static_cast<int>(map.width);
    ring.channels = static_cast<int>(map.channels);
    ring.depth = rows_under(number).extent;
    ring.padding = before_layer ? 0 : -INFINITY;
    int pad = 0, columns = ring.width;
    if (before_layer || spec_.has_pool) {
        const Attributes& a = before_layer ? spec_.layers[number].attributes : spec_.pool;
        const Value& next = values[before_layer ? spec_.layers[number].value : spec_.result];
        pad = a.pad_left;
        columns = std::max(columns, static_cast<int>(next.width - 1) * a.stride_w + a.extent_w() - pad);
    }
    ring.left = static_cast<int>(round_up(pad, kLine));
    // An odd number of cache lines distributes the channels over all cache sets.
    ring.channel = static_cast<ptrdiff_t>(ceil_div(ring.left + columns, kLine) | 1) * kLine;
    return ring;
}

size_t StemStep::thread_bytes(const std::vector<Value>& values) const {
    size_t bytes = round_up((layers_.size() + 1) * sizeof(Work::Rows), 64);
    for (size_t i = 0; i <= layers_.size(); i++) {
        bytes += ring(values, i).bytes();
    }
    return round_up(bytes + kFloatReadAhead, 64);
}

size_t StemStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return threads * thread_bytes(values);
}

void StemStep::run(const Memory& memory, const Team& team, int) const {
    const int height = static_cast<int>(memory.value(spec_.result).height);
    const int begin = team.begin(height), end = team.end(height);
    if (begin == end) {
        return;
    }
    uint8_t* scratch = memory.scratch + team.thread * thread_bytes(*memory.values);
    Work work = {&memory, reinterpret_cast<Work::Rows*>(scratch)};
    scratch += round_up((layers_.size() + 1) * sizeof(Work::Rows), 64);
    for (size_t i = 0; i <= layers_.size(); i++) {
        const Ring ring = this->ring(*memory.values, i);
        float* data = reinterpret_cast<float*>(scratch);
        std::fill_n(data, ring.bytes() / sizeof(float), ring.padding);
        work.rings[i] = {ring, data, 0};
        scratch += ring.bytes();
    }
    const View output = memory.view(spec_.output);
    const int64_t width = memory.value(spec_.result).width;
    for (int y = begin; y < end; y++) {
        finish_row(work, y, reinterpret_cast<float*>(output.at(y * output.row)), output.pixel);
        packer_.pack(memory, y * width, (y + 1) * width);
    }
}

// Computes rows `first` to `last` of a ring if necessary. Rows before `first` are no longer needed.
void StemStep::make_rows(Work& work, size_t ring, int first, int last) const {
    Work::Rows& rows = work.rings[ring];
    rows.next = std::max(rows.next, first);
    last = std::min(last, rows.ring.height - 1);
    for (; rows.next <= last; rows.next++) {
        make_row(work, ring, rows.next);
    }
}

void StemStep::make_row(Work& work, size_t number, int y) const {
    const Work::Rows& rows = work.rings[number];
    if (number == 0) {
        const Ring& ring = rows.ring;
        const float* image = work.memory->inputs[spec_.input];
        const int ahead = std::min(kRowsAhead, ring.height - 1 - y) * ring.width;
        for (int c = 0; c < ring.channels; c++) {
            const float* from = image + (static_cast<int64_t>(c) * ring.height + y) * ring.width;
            std::memcpy(rows.row(y) + c * ring.channel, from, sizeof(float) * ring.width);
            for (int x = 0; x < ring.width; x += kLine) {
                __builtin_prefetch(from + ahead + x);
            }
        }
        return;
    }
    const Work::Rows& under = work.rings[number - 1];
    const Layer& layer = layers_[number - 1];
    const Attributes& a = spec_.layers[number - 1].attributes;
    const int top = y * a.stride_h - a.pad_top;
    make_rows(work, number - 1, top, top + a.extent_h() - 1);
    const float* taps[kMaxKernel];
    bool outside[kMaxKernel];
    for (int tap = 0; tap < a.kernel_h; tap++) {
        const int row = top + tap * a.dilation_h;
        outside[tap] = row < 0 || row >= under.ring.height;
        taps[tap] = under.row(outside[tap] ? 0 : row) - a.pad_left;
    }
    PlanarRow row;
    row.conv = &layer.conv;
    row.weights = layer.weights.data();
    row.input = taps;
    row.input_channel = under.ring.channel;
    row.input_is_zero = outside;
    row.columns = rows.ring.width;
    row.output = rows.row(y);
    row.output_channel = rows.ring.channel;
    row.epilogue = layer.epilogue;
    spec_.kernels->planar_row(row);
}

// Computes a row of the result from the last ring.
void StemStep::finish_row(Work& work, int y, float* output, ptrdiff_t output_pixel) const {
    const size_t last = layers_.size();
    const Work::Rows& rows = work.rings[last];
    const Ring& ring = rows.ring;
    if (!spec_.has_pool) {
        make_rows(work, last, y, y);
        spec_.kernels->planar_to_pixels(rows.row(y), ring.channel, ring.width, ring.channels, output, output_pixel);
        return;
    }
    const Attributes& a = spec_.pool;
    const int columns = static_cast<int>(work.memory->value(spec_.result).width);
    const int top = y * a.stride_h - a.pad_top, first = std::max(top, 0);
    const int end = std::min(top + a.kernel_h, ring.height);
    make_rows(work, last, first, end - 1);
    const float* window[kMaxKernel];
    for (int row = first; row < end; row++) {
        window[row - first] = rows.row(row) - a.pad_left;
    }
    spec_.kernels->planar_max_pool(window, end - first, ring.channel, a.kernel_w, a.stride_w, columns, ring.channels,
                                   output, output_pixel);
}

}  // namespace bmx
