#include "binary_step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace bmx {
namespace {

constexpr int kUnit = 32;                             // channels
constexpr int kBandPixels = 900, kLeastBandRows = 4;  // of the output

// x >= threshold for integers x within +-32766.
int16_t integer_threshold(float threshold) {
    return static_cast<int16_t>(std::min(std::max(std::ceil(threshold), -32768.0f), 32767.0f));
}

BinaryConv geometry(const Attributes& a, int64_t channels) {
    return {static_cast<int>(channels),
            a.out_channels,
            a.kernel_h,
            a.kernel_w,
            a.stride_h,
            a.stride_w,
            a.dilation_h,
            a.dilation_w,
            a.groups,
            a.offset != 0};
}

int channels_of(const Source& source) {
    int channels = 0;
    for (const Slab& slab : source.slabs) channels += slab.channels;
    return channels;
}

}  // namespace

BinaryStep::BinaryStep(const BinaryStepSpec& spec)
    : spec_(spec),
      conv_(geometry(spec.attributes, channels_of(spec.source))),
      thresholds_(conv_.in_channels),
      integer_thresholds_(conv_.in_channels) {
    for (int c = 0; c < conv_.in_channels; c++) {
        thresholds_[c] = spec.thresholds[c];
        integer_thresholds_[c] = integer_threshold(spec.thresholds[c]);
    }
    gathers_ = !cut_slabs_at_units();
    if (gathers_) cut_gathered_row();

    const BinaryKernels& kernels = *spec.kernels;
    weights_ = Constants<uint8_t>(kernels.weights_bytes(conv_));
    kernels.prepare_weights(conv_, spec.weights, weights_.data());

    const Attributes& a = spec.attributes;
    padding_.assign(static_cast<size_t>(conv_.units()) * kernels.unit_bytes, 0);
    if (a.pad_value == 1) {  // set elements, but none beyond a group's last channel
        const int channels = conv_.in_channels / conv_.groups;
        const Constants<float> zeros(channels);
        const std::vector<uint32_t> no_flips(conv_.group_units());
        for (int group = 0; group < conv_.groups; group++)
            kernels.pack_f32(zeros.data(), channels, 1, channels, zeros.data(), no_flips.data(),
                             padding_.data() + static_cast<size_t>(group) * conv_.group_units() * kernels.unit_bytes,
                             static_cast<ptrdiff_t>(padding_.size()));
    }
    if (a.pad_value == 0 && (a.pad_h || a.pad_w)) {
        tap_sums_.resize(static_cast<size_t>(a.taps()) * a.out_channels);
        const uint32_t* word = spec.weights;
        for (int filter = 0; filter < a.out_channels; filter++)
            for (int tap = 0; tap < a.taps(); tap++) {
                int set = 0;
                for (int unit = 0; unit < conv_.group_units(); unit++) set += __builtin_popcount(*word++);
                float sum = static_cast<float>(2 * set - conv_.in_channels / conv_.groups);
                tap_sums_[static_cast<size_t>(tap) * a.out_channels + filter] = a.offset ? sum / 2 : sum;
            }
    }
    spec_.thresholds = nullptr;  // of the caller, as the next two
    spec_.flips = nullptr;
    spec_.weights = nullptr;
    for (const Slab& slab : spec.source.slabs) buffers.push_back(slab.buffer);
    buffers.push_back(spec.output.buffer);
    if (spec.addend >= 0) buffers.push_back(spec.addend);
}

// Cuts the channels at the borders of slabs and groups. Returns false if a cut is not at a unit's border.
bool BinaryStep::cut_slabs_at_units() {
    const int group_channels = conv_.in_channels / conv_.groups;
    int channel = 0;
    for (size_t slab = 0; slab < spec_.source.slabs.size(); slab++) {
        const int end = channel + spec_.source.slabs[slab].channels;
        for (int begin = channel; channel < end;) {
            const int in_group = channel % group_channels;
            const int channels = std::min(end - channel, group_channels - in_group);
            if (in_group % kUnit || (channels % kUnit && in_group + channels != group_channels)) return false;
            add_segment(static_cast<int>(slab), channel - begin, channel, channels);
            channel += channels;
        }
    }
    return true;
}

void BinaryStep::cut_gathered_row() {
    segments_.clear();
    flips_.clear();
    const int group_channels = conv_.in_channels / conv_.groups;
    for (int group = 0; group < conv_.groups; group++)
        add_segment(0, group * group_channels, group * group_channels, group_channels);
}

void BinaryStep::add_segment(int slab, int begin, int channel, int channels) {
    const int group_channels = conv_.in_channels / conv_.groups;
    const size_t unit = channel / group_channels * conv_.group_units() + channel % group_channels / kUnit;
    segments_.push_back(
        {slab, begin, channels, unit * spec_.kernels->unit_bytes, static_cast<size_t>(channel), flips_.size()});
    flips_.resize(flips_.size() + (channels + kUnit - 1) / kUnit);
    for (int i = 0; i < channels; i++) {
        const uint32_t flip = spec_.flips[(channel + i) / kUnit] >> (channel + i) % kUnit & 1;
        flips_[segments_.back().flips + i / kUnit] |= flip << i % kUnit;
    }
}

BinaryStep::Packed BinaryStep::packed_map(const std::vector<Value>& values, int threads) const {
    const Value& input = values[spec_.source.value];
    const Attributes& a = spec_.attributes;
    Packed map;
    map.height = static_cast<int>(input.height);
    map.width = static_cast<int>(input.width);
    map.rows = map.height + 2 * a.pad_h;
    // What lies right of a row lies left of the next one, unless there are windows of nothing but padding.
    map.right = a.pad_w < a.extent_w() ? 0 : a.pad_w;
    map.row = static_cast<ptrdiff_t>(a.pad_w + map.width + map.right) * static_cast<ptrdiff_t>(padding_.size());
    map.kept = map.rows;
    if (threads == 1) {
        const int band = std::max(kLeastBandRows, kBandPixels / static_cast<int>(values[spec_.result].width));
        map.band = band;
        map.kept = std::min(map.rows, std::max((band - 1) * a.stride_h + a.extent_h(), a.pad_h + band));
    }
    map.bytes = round_up(static_cast<size_t>(map.row) * map.kept + a.pad_w * padding_.size() + kReadAhead, 64);
    return map;
}

size_t BinaryStep::gathered_bytes(const std::vector<Value>& values) const {
    if (!gathers_) return 0;
    return round_up(values[spec_.source.value].width * conv_.in_channels * sizeof(float) + kReadAhead, 64);
}

size_t BinaryStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return packed_map(values, threads).bytes + threads * gathered_bytes(values);
}

void BinaryStep::run(const Memory& memory, const Team& team, int phase) const {
    const Packed map = packed_map(*memory.values, team.threads);
    if (team.threads == 1) {
        if (phase == 0) run_in_bands(memory, map);
    } else if (phase == 0) {
        pack(memory, team, map, 0, team.begin(map.rows), team.end(map.rows));
    } else {
        share_convolution(memory, team, map);
    }
}

// One thread convolves a band of rows while what it packed for them is in the cache, and keeps no more than that.
void BinaryStep::run_in_bands(const Memory& memory, const Packed& map) const {
    const Attributes& a = spec_.attributes;
    const int height = static_cast<int>(memory.value(spec_.result).height);
    int first = 0, packed = 0;  // rows `first` to `packed` - 1 are there
    for (int begin = 0; begin < height; begin += map.band) {
        const int end = std::min(begin + map.band, height), next_first = begin * a.stride_h;
        if (packed > next_first)
            std::memmove(memory.scratch, memory.scratch + (next_first - first) * map.row,
                         (packed - next_first) * map.row + a.pad_w * padding_.size());
        first = next_first;
        packed = std::max(packed, first);
        // The output may take the place of some of the input, as far as that is packed.
        const int needed = std::min(std::max((end - 1) * a.stride_h + a.extent_h(), a.pad_h + end), map.rows);
        if (needed > packed) pack(memory, {0, 1}, map, first, packed, needed);
        packed = std::max(packed, needed);
        convolve(memory, map, first, begin, end, 0, a.out_channels);
    }
}

void BinaryStep::fill_pixels_of_padding(uint8_t* to, int pixels) const {
    if (spec_.attributes.pad_value != 1) {
        std::memset(to, 0, pixels * padding_.size());
        return;
    }
    for (int i = 0; i < pixels; i++) std::memcpy(to + i * padding_.size(), padding_.data(), padding_.size());
}

// Rows `begin` to `end` - 1 of the padded map, of which row `first` lies at the beginning.
void BinaryStep::pack(const Memory& memory, const Team& team, const Packed& map, int first, int begin, int end) const {
    const Attributes& a = spec_.attributes;
    float* gathered =
        reinterpret_cast<float*>(memory.scratch + map.bytes + team.thread * gathered_bytes(*memory.values));
    for (int y = begin; y < end; y++) {
        uint8_t* const to = memory.scratch + (y - first) * map.row;
        const bool inside = y >= a.pad_h && y < a.pad_h + map.height;
        fill_pixels_of_padding(to, inside ? a.pad_w : a.pad_w + map.width);
        if (inside) pack_row(memory, y - a.pad_h, to + a.pad_w * padding_.size(), gathered);
        fill_pixels_of_padding(to + (a.pad_w + map.width) * padding_.size(), map.right);
    }
    // The row after these begins with their last padding; another thread may be packing it.
    if (team.threads == 1 || end == map.rows) fill_pixels_of_padding(memory.scratch + (end - first) * map.row, a.pad_w);
}

void BinaryStep::pack_row(const Memory& memory, int row, uint8_t* to, float* gathered) const {
    const BinaryKernels& kernels = *spec_.kernels;
    const int width = static_cast<int>(memory.value(spec_.source.value).width);
    const ptrdiff_t stride = static_cast<ptrdiff_t>(padding_.size());
    if (gathers_) gather_row(memory, spec_.source, row, gathered, conv_.in_channels);
    for (const Segment& segment : segments_) {
        const uint32_t* flips = flips_.data() + segment.flips;
        if (gathers_) {
            kernels.pack_f32(gathered + segment.begin, conv_.in_channels, width, segment.channels,
                             thresholds_.data() + segment.thresholds, flips, to + segment.packed, stride);
            continue;
        }
        const View view = memory.view(spec_.source.slabs[segment.slab]);
        const uint8_t* from = view.at(row * view.row + segment.begin);
        if (view.number == Number::f32)
            kernels.pack_f32(reinterpret_cast<const float*>(from), view.pixel, width, segment.channels,
                             thresholds_.data() + segment.thresholds, flips, to + segment.packed, stride);
        else
            kernels.pack_i16(reinterpret_cast<const int16_t*>(from), view.pixel, width, segment.channels,
                             integer_thresholds_.data() + segment.thresholds, flips, to + segment.packed, stride);
    }
}

// Each thread takes a part of the rows or of the filters, whichever makes the largest part smaller.
void BinaryStep::share_convolution(const Memory& memory, const Team& team, const Packed& map) const {
    const int height = static_cast<int>(memory.value(spec_.result).height), filters = spec_.attributes.out_channels;
    const int step = spec_.kernels->filter_step, blocks = (filters + step - 1) / step;
    auto largest_part = [&](int count) { return double((count + team.threads - 1) / team.threads) / count; };
    if (largest_part(height) <= largest_part(blocks))
        convolve(memory, map, 0, team.begin(height), team.end(height), 0, filters);
    else
        convolve(memory, map, 0, 0, height, team.begin(blocks) * step, std::min(filters, team.end(blocks) * step));
}

void BinaryStep::convolve(const Memory& memory, const Packed& map, int first, int row_begin, int row_end,
                          int filter_begin, int filter_end) const {
    if (row_begin >= row_end || filter_begin >= filter_end) return;
    const Attributes& a = spec_.attributes;
    const View output = memory.view(spec_.output);
    BinaryConvRun run;
    run.conv = &conv_;
    run.weights = weights_.data();
    run.input = memory.scratch + (row_begin * a.stride_h - first) * map.row;
    run.row_bytes = map.row;
    run.pixel_bytes = static_cast<ptrdiff_t>(padding_.size());
    run.rows = row_end - row_begin;
    run.columns = static_cast<int>(memory.value(spec_.result).width);
    run.filter_begin = filter_begin;
    run.filter_end = filter_end;
    run.number = output.number;
    run.output = output.at(row_begin * output.row);
    run.output_row = output.row;
    run.output_pixel = output.pixel;
    run.addend = nullptr;
    if (spec_.addend >= 0) {
        const View addend = memory.view({spec_.addend, 0, a.out_channels});
        run.addend = addend.at(row_begin * addend.row);
    }
    spec_.kernels->convolve(run);
    if (tap_sums_.empty()) return;
    if (output.number == Number::f32)
        correct_zero_padding<float>(memory, row_begin, row_end, filter_begin, filter_end);
    else
        correct_zero_padding<int16_t>(memory, row_begin, row_end, filter_begin, filter_end);
}

// The map was padded with -1: adds the weights of all taps that lie outside.
template <class T>
void BinaryStep::correct_zero_padding(const Memory& memory, int row_begin, int row_end, int filter_begin,
                                      int filter_end) const {
    const Attributes& a = spec_.attributes;
    const Value& input = memory.value(spec_.source.value);
    const View output = memory.view(spec_.output);
    const int columns = static_cast<int>(memory.value(spec_.result).width);
    const int extent_h = a.extent_h(), extent_w = a.extent_w();
    for (int y = row_begin; y < row_end; y++) {
        const int top = y * a.stride_h - a.pad_h;
        const bool rows_inside = top >= 0 && top + extent_h <= input.height;
        for (int x = 0; x < columns; x++) {
            const int left = x * a.stride_w - a.pad_w;
            if (rows_inside && left >= 0 && left + extent_w <= input.width) continue;
            T* pixel = reinterpret_cast<T*>(output.at(y * output.row + x * output.pixel));
            for (int tap = 0; tap < a.taps(); tap++) {
                const int tap_y = top + tap / a.kernel_w * a.dilation_h, tap_x = left + tap % a.kernel_w * a.dilation_w;
                if (tap_y >= 0 && tap_y < input.height && tap_x >= 0 && tap_x < input.width) continue;
                const float* sums = tap_sums_.data() + static_cast<size_t>(tap) * a.out_channels;
                for (int filter = filter_begin; filter < filter_end; filter++)
                    pixel[filter] = static_cast<T>(static_cast<float>(pixel[filter]) + sums[filter]);
            }
        }
    }
}

}  // namespace bmx
