#include "steps/int8_step.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/int8_loops.h"

namespace bmx {
namespace {

constexpr int kWordChannels = 4;  // bytes of a word
constexpr int kRowsOfChunk = 4;   // a map of fewer rows for each thread is divided by filters, too

size_t padded_channels(int channels) { return round_up(channels, kWordChannels); }

// Filters that one block computes: of one group, or of several small ones.
struct FilterRange {
    int first, filters, first_group, groups;
};

std::vector<FilterRange> filter_ranges(int filters, int groups) {
    const int in_group = filters / groups;
    std::vector<FilterRange> ranges;
    if (in_group >= kInt8Lanes) {
        for (int group = 0; group < groups; group++) {
            for (int first = 0; first < in_group; first += kInt8Lanes) {
                ranges.push_back({group * in_group + first, std::min(kInt8Lanes, in_group - first), group, 1});
            }
        }
        return ranges;
    }
    const int at_once = kInt8Lanes / in_group;
    for (int group = 0; group < groups; group += at_once) {
        const int count = std::min(at_once, groups - group);
        ranges.push_back({group * in_group, count * in_group, group, count});
    }
    return ranges;
}

}  // namespace

RescalingConstants rescaling_constants(const std::vector<int32_t>& multiplier, const std::vector<int32_t>& offset,
                                       const Attributes& attributes) {
    RescalingConstants constants;
    constants.multiplier = Constants<int32_t>(multiplier.size() + kInt8Lanes);
    constants.offset = Constants<int32_t>(offset.size() + kInt8Lanes);
    std::copy(multiplier.begin(), multiplier.end(), constants.multiplier.data());
    std::copy(offset.begin(), offset.end(), constants.offset.data());
    constants.shift = attributes.shift;
    constants.min = attributes.result_min;
    constants.max = attributes.result_max;
    return constants;
}

// --- preparation ---------------------------------------------------------------------------------

Int8Step::Layer Int8Step::prepare(const Int8LayerSpec& spec) {
    const Attributes& a = spec.attributes;
    const int inputs = spec.in_channels / a.groups, taps = a.taps();
    Layer layer;
    layer.attributes = a;
    layer.in_channels = spec.in_channels;
    layer.value = spec.value;
    layer.pad.assign(padded_channels(spec.in_channels), 0);
    std::transform(spec.pad.begin(), spec.pad.end(), layer.pad.begin(),
                   [](int32_t pad) { return static_cast<uint8_t>(std::min(std::max(pad, 0), kMaxByte)); });

    const std::vector<FilterRange> ranges = filter_ranges(a.out_channels, a.groups);
    std::vector<int32_t> multiplier(ranges.size() * kInt8Lanes), offset(ranges.size() * kInt8Lanes);
    std::vector<size_t> positions;
    size_t bytes = 0;
    for (const FilterRange& range : ranges) {
        const int begin = range.first_group * inputs, end = (range.first_group + range.groups) * inputs;
        const int first_word = begin / kWordChannels, words = ceil_div(end, kWordChannels) - first_word;
        const size_t lane = layer.blocks.size() * kInt8Lanes;
        std::copy_n(spec.multiplier.begin() + range.first, range.filters, multiplier.begin() + lane);
        std::copy_n(spec.offset.begin() + range.first, range.filters, offset.begin() + lane);
        layer.blocks.push_back({nullptr, first_word, words, range.first, range.filters});
        positions.push_back(bytes);
        bytes += size_t(taps) * words * kWordChannels * kInt8Lanes;
    }
    layer.rescaling = rescaling_constants(multiplier, offset, a);
    layer.weights = Constants<int8_t>(bytes);
    const int filters_of_group = a.out_channels / a.groups;
    for (size_t number = 0; number < ranges.size(); number++) {
        Int8Block& block = layer.blocks[number];
        block.weights = layer.weights.data() + positions[number];
        for (int f = 0; f < block.filters; f++) {
            const int filter = block.first_filter + f, first_channel = filter / filters_of_group * inputs;
            for (int c = 0; c < inputs; c++) {
                const int channel = first_channel + c - block.first_word * kWordChannels;
                for (int tap = 0; tap < taps; tap++) {
                    const size_t word = size_t(tap) * block.words + channel / kWordChannels;
                    const size_t to = (word * kInt8Lanes + f) * kWordChannels + channel % kWordChannels;
                    layer.weights[positions[number] + to] = spec.weights[(size_t(filter) * inputs + c) * taps + tap];
                }
            }
        }
    }
    return layer;
}

Int8Step::Int8Step(Int8Spec spec)
    : spec_(std::move(spec)), packer_(spec_.packing, spec_.output.buffer), channels_(spec_.source.channels()) {
    for (const Int8LayerSpec& layer : spec_.layers) {
        layers_.push_back(prepare(layer));
    }
    spec_.layers.clear();
}

// --- memory --------------------------------------------------------------------------------------

std::vector<Int8Step::Map> Int8Step::maps(const std::vector<Value>& values) const {
    std::vector<Map> maps;
    size_t offset = 0;
    for (size_t number = 0; number < layers_.size(); number++) {
        const Value& value = values[number ? layers_[number - 1].value : spec_.first];
        const Attributes& a = layers_[number].attributes;
        Map map;
        map.offset = offset;
        map.height = value.height;
        map.width = value.width;
        map.rows = value.height + a.pad_top + a.pad_bottom;
        map.columns = value.width + a.pad_left + a.pad_right;
        map.pixel = static_cast<ptrdiff_t>(padded_channels(layers_[number].in_channels));
        map.row = map.columns * map.pixel;
        offset += round_up(map.bytes(), 64);
        maps.push_back(map);
    }
    return maps;
}

// Offset of the result of the last layer, if it is pooled.
size_t Int8Step::pooled_offset(const std::vector<Map>& maps) const {
    return maps.back().offset + round_up(maps.back().bytes(), 64);
}

size_t Int8Step::thread_bytes(const std::vector<Value>& values) const {
    int taps = 0;
    for (const Layer& layer : layers_) {
        taps = std::max(taps, layer.attributes.taps());
    }
    // The offsets of taps; before, a pixel, the maxima of columns of the source, and a row of it.
    const size_t pixel = round_up(padded_channels(channels_), 64);
    const size_t row = round_up(values[spec_.source.value].width * padded_channels(channels_), 64);
    return std::max(round_up(sizeof(ptrdiff_t) * taps, 64), pixel + 2 * row);
}

size_t Int8Step::scratch_bytes(const std::vector<Value>& values, int threads) const {
    const std::vector<Map> all = maps(values);
    const Value& last = values[layers_.back().value];
    const size_t pooled = spec_.pools_after ? round_up(sizeof(int16_t) * last.elements(), 64) : 0;
    return pooled_offset(all) + pooled + threads * thread_bytes(values);
}

int Int8Step::phases(const std::vector<Value>&, int) const {
    return 1 + static_cast<int>(layers_.size()) + (spec_.pools_after ? 1 : 0) + (packer_.empty() ? 0 : 1);
}

// --- computation ---------------------------------------------------------------------------------

void Int8Step::run(const Memory& memory, const Team& team, int phase) const {
    const std::vector<Map> all = maps(*memory.values);
    const Value& last = memory.value(layers_.back().value);
    int16_t* pooled = reinterpret_cast<int16_t*>(memory.scratch + pooled_offset(all));
    const size_t own = thread_bytes(*memory.values);
    uint8_t* scratch = memory.scratch + pooled_offset(all) +
                       (spec_.pools_after ? round_up(sizeof(int16_t) * last.elements(), 64) : 0) + team.thread * own;
    const int layers = static_cast<int>(layers_.size());
    if (phase == 0) {
        const Map& map = all[0];
        const Attributes& a = layers_[0].attributes;
        for (int row = team.begin(map.rows); row < team.end(map.rows); row++) {
            uint8_t* to = memory.scratch + map.offset + row * map.row;
            fill_borders(layers_[0], map, row, to);
            const int64_t inside = row - a.pad_top;
            if (inside >= 0 && inside < map.height) {
                first_row(memory, map, static_cast<int>(inside), to + a.pad_left * map.pixel, scratch);
            }
        }
    } else if (phase <= layers) {
        convolve(memory, team, phase - 1, all, reinterpret_cast<ptrdiff_t*>(scratch));
    } else if (phase == layers + 1 && spec_.pools_after) {
        const Value& result = memory.value(spec_.result);
        for (int row = team.begin(result.height); row < team.end(result.height); row++) {
            pool_row(memory, pooled, row);
        }
    } else {
        const Value& result = memory.value(spec_.result);
        const int64_t pixels = result.height * result.width;
        packer_.pack(memory, team.begin(pixels), team.end(pixels));
    }
}

// Fills the padding of a row, and the bytes beyond the last channel of its pixels.
void Int8Step::fill_borders(const Layer& layer, const Map& map, int64_t row, uint8_t* data) const {
    const Attributes& a = layer.attributes;
    const bool outside = row < a.pad_top || row >= a.pad_top + map.height;
    for (int64_t column = 0; column < map.columns; column++) {
        uint8_t* pixel = data + column * map.pixel;
        if (outside || column < a.pad_left || column >= a.pad_left + map.width) {
            std::copy(layer.pad.begin(), layer.pad.end(), pixel);
        } else {
            std::fill(pixel + layer.in_channels, pixel + map.pixel, uint8_t(0));
        }
    }
}

// Rescales a row of the source to bytes.
void Int8Step::rescale_row(const Memory& memory, int row, uint8_t* to, ptrdiff_t pixel) const {
    int channel = 0;
    for (const Slab& slab : spec_.source.slabs) {
        const View view = memory.view(slab);
        RescaleRow rescale;
        rescale.type = view.type;
        rescale.x = view.at(row * view.row);
        rescale.x_pixel = view.pixel;
        rescale.pixels = static_cast<int>(memory.value(spec_.source.value).width);
        rescale.channels = view.channels;
        rescale.scale = spec_.before.scale.empty() ? nullptr : spec_.before.scale.data() + channel;
        rescale.shift = spec_.before.scale.empty() ? nullptr : spec_.before.shift.data() + channel;
        rescale.rescaling = spec_.rescaling.from(channel);
        rescale.y = to + channel;
        rescale.y_pixel = pixel;
        spec_.kernels->rescale(rescale);
        channel += view.channels;
    }
}

// Computes a row of the first map.
void Int8Step::first_row(const Memory& memory, const Map& map, int row, uint8_t* to, uint8_t* scratch) const {
    const Value& source = memory.value(spec_.source.value);
    const size_t channels = padded_channels(channels_);
    if (!spec_.pools_before) {
        rescale_row(memory, row, to, map.pixel);
    } else {
        const Attributes& a = spec_.pool_before;
        const size_t row_bytes = source.width * channels;
        uint8_t* const columns = scratch + round_up(channels, 64);
        uint8_t* const one = columns + round_up(row_bytes, 64);
        const int64_t begin = std::max<int64_t>(int64_t(row) * a.stride_h - a.pad_top, 0);
        const int64_t end = std::min<int64_t>(int64_t(row) * a.stride_h - a.pad_top + a.kernel_h, source.height);
        rescale_row(memory, static_cast<int>(begin), columns, channels);
        for (int64_t y = begin + 1; y < end; y++) {
            rescale_row(memory, static_cast<int>(y), one, channels);
            for (size_t i = 0; i < row_bytes; i++) {
                columns[i] = columns[i] > one[i] ? columns[i] : one[i];
            }
        }
        for (int64_t x = 0; x < map.width; x++) {
            const int64_t left = std::max<int64_t>(x * a.stride_w - a.pad_left, 0);
            const int64_t right = std::min<int64_t>(x * a.stride_w - a.pad_left + a.kernel_w, source.width);
            uint8_t* __restrict pixel = to + x * map.pixel;
            const uint8_t* __restrict from = columns + left * channels;
            std::copy_n(from, channels_, pixel);
            for (int64_t i = left + 1; i < right; i++) {
                from += channels;
                for (int c = 0; c < channels_; c++) {
                    pixel[c] = pixel[c] > from[c] ? pixel[c] : from[c];
                }
            }
        }
    }
    if (spec_.shuffle_groups > 1) {
        const int groups = spec_.shuffle_groups, in_group = channels_ / groups;
        for (int64_t x = 0; x < map.width; x++) {
            uint8_t* pixel = to + x * map.pixel;
            std::copy_n(pixel, channels_, scratch);
            for (int j = 0; j < in_group; j++) {
                for (int group = 0; group < groups; group++) {
                    *pixel++ = scratch[group * in_group + j];
                }
            }
        }
    }
}

void Int8Step::convolve(const Memory& memory, const Team& team, size_t number, const std::vector<Map>& maps,
                        ptrdiff_t* taps) const {
    const Layer& layer = layers_[number];
    const Attributes& a = layer.attributes;
    const Map& map = maps[number];
    const Value& result = memory.value(layer.value);
    const bool is_last = number + 1 == layers_.size();
    for (int tap = 0; tap < a.taps(); tap++) {
        taps[tap] = tap / a.kernel_w * a.dilation_h * map.row + tap % a.kernel_w * a.dilation_w * map.pixel;
    }
    Int8Row row;
    row.step = a.stride_w * map.pixel;
    row.taps = taps;
    row.tap_count = a.taps();
    row.pixels = static_cast<int>(result.width);
    row.to_bytes = !is_last;

    // Rows of the map that is computed, with its padding if it is read by another layer.
    const int above = is_last ? 0 : layers_[number + 1].attributes.pad_top;
    const int64_t rows = is_last ? result.height : maps[number + 1].rows;
    const int blocks = static_cast<int>(layer.blocks.size());
    const int chunks = rows < int64_t(kRowsOfChunk) * team.threads ? std::min(blocks, team.threads) : 1;
    for (int item = team.begin(rows * chunks); item < team.end(rows * chunks); item++) {
        const int64_t to_row = item / chunks, y = to_row - above;
        const int begin = blocks * (item % chunks) / chunks, end = blocks * (item % chunks + 1) / chunks;
        if (!is_last) {
            const Map& next = maps[number + 1];
            uint8_t* data = memory.scratch + next.offset + to_row * next.row;
            if (begin == 0) {
                fill_borders(layers_[number + 1], next, to_row, data);
            }
            row.y = data + layers_[number + 1].attributes.pad_left * next.pixel;
            row.y_pixel = next.pixel;
        } else if (spec_.pools_after) {
            row.y = reinterpret_cast<int16_t*>(memory.scratch + pooled_offset(maps)) +
                    y * result.width * result.channels;
            row.y_pixel = result.channels;
        } else {
            const View view = memory.view(spec_.output);
            row.y = view.at(y * view.row);
            row.y_pixel = view.pixel;
        }
        if (y < 0 || y >= result.height) {
            continue;
        }
        row.x = memory.scratch + map.offset + y * a.stride_h * map.row;
        row.blocks = layer.blocks.data() + begin;
        row.block_count = end - begin;
        row.rescaling = layer.rescaling.from(begin * kInt8Lanes);
        spec_.kernels->convolve(row);
    }
}

// Computes a row of the result from the map of the last layer.
void Int8Step::pool_row(const Memory& memory, const int16_t* from, int row) const {
    const Attributes& a = spec_.pool_after;
    const Value& map = memory.value(layers_.back().value);
    const Value& result = memory.value(spec_.result);
    const View view = memory.view(spec_.output);
    const int64_t channels = map.channels;
    const int64_t top = std::max<int64_t>(int64_t(row) * a.stride_h - a.pad_top, 0);
    const int64_t bottom = std::min<int64_t>(int64_t(row) * a.stride_h - a.pad_top + a.kernel_h, map.height);
    for (int64_t x = 0; x < result.width; x++) {
        const int64_t left = std::max<int64_t>(x * a.stride_w - a.pad_left, 0);
        const int64_t right = std::min<int64_t>(x * a.stride_w - a.pad_left + a.kernel_w, map.width);
        int16_t* __restrict to = reinterpret_cast<int16_t*>(view.at(row * view.row + x * view.pixel));
        std::copy_n(from + (top * map.width + left) * channels, channels, to);
        for (int64_t y = top; y < bottom; y++) {
            for (int64_t i = left; i < right; i++) {
                const int16_t* __restrict pixel = from + (y * map.width + i) * channels;
                for (int64_t c = 0; c < channels; c++) {
                    to[c] = to[c] > pixel[c] ? to[c] : pixel[c];
                }
            }
        }
    }
}

void RescaleStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    const View output = memory.view(output_);
    for (int row = team.begin(map.height); row < team.end(map.height); row++) {
        int channel = 0;
        for (const Slab& slab : source_.slabs) {
            const View view = memory.view(slab);
            const Rescaling r = rescaling_.from(channel);
            visit_typed(view.type, view.at(row * view.row), [&](const auto* from) {
                int16_t* to = reinterpret_cast<int16_t*>(output.at(row * output.row + channel));
                for (int64_t x = 0; x < map.width; x++, from += view.pixel, to += output.pixel) {
                    for (int c = 0; c < view.channels; c++) {
                        const int n = nearest(static_cast<float>(from[c]));
                        to[c] = static_cast<int16_t>(rescaled(n, r.multiplier[c], r.offset[c], r));
                    }
                }
            });
            channel += view.channels;
        }
    }
}

size_t IntegerMeanStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return threads * round_up(sizeof(int64_t) * values[source_.value].channels, 64);
}

void IntegerMeanStep::run(const Memory& memory, const Team& team, int) const {
    const Attributes& a = attributes_;
    const Value& map = memory.value(source_.value);
    const Value& result = memory.value(result_);
    const View output = memory.view(output_);
    const size_t own = round_up(sizeof(int64_t) * map.channels, 64);
    int64_t* sums = reinterpret_cast<int64_t*>(memory.scratch + team.thread * own);
    const int64_t results = result.height * result.width;
    for (int item = team.begin(results); item < team.end(results); item++) {
        const int64_t y = item / result.width, x = item % result.width;
        int64_t top = 0, left = 0, bottom = map.height, right = map.width, count = map.height * map.width;
        if (!is_global_) {
            top = y * a.stride_h - a.pad_top;
            left = x * a.stride_w - a.pad_left;
            bottom = std::min(top + a.kernel_h, map.height + a.pad_bottom);
            right = std::min(left + a.kernel_w, map.width + a.pad_right);
            count = (bottom - top) * (right - left);
            top = std::max<int64_t>(top, 0);
            left = std::max<int64_t>(left, 0);
            bottom = std::min(bottom, map.height);
            right = std::min(right, map.width);
            count = a.count_pad ? count : (bottom - top) * (right - left);
        }
        float* to = reinterpret_cast<float*>(output.at(y * output.row + x * output.pixel));
        for (const Slab& slab : source_.slabs) {
            const View view = memory.view(slab);
            std::fill_n(sums, view.channels, 0);
            visit_typed(view.type, view.data, [&](const auto* from) {
                for (int64_t i = top; i < bottom; i++) {
                    for (int64_t j = left; j < right; j++) {
                        const auto* pixel = from + i * view.row + j * view.pixel;
                        for (int c = 0; c < view.channels; c++) {
                            const int n = nearest(static_cast<float>(pixel[c]));
                            sums[c] += std::min(std::max(n, -kMaxInt16), kMaxInt16);
                        }
                    }
                }
            });
            for (int c = 0; c < view.channels; c++) {
                const int64_t numerator = 2 * (sums[c] * (int64_t(1) << a.fraction_bits)) + count, divisor = 2 * count;
                const int64_t rest = numerator % divisor;
                *to++ = static_cast<float>((numerator - rest) / divisor - (rest < 0 ? 1 : 0));
            }
        }
    }
}

}  // namespace bmx
