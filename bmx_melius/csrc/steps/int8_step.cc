#include "steps/int8_step.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "program/operation_table.h"
#include "steps/function_step.h"
#include "steps/pooling.h"

namespace bmx {
namespace {

constexpr int kWordChannels = 4;   // bytes of a word
constexpr int kItemsOfThread = 4;  // of fewer items for each thread, the filters are divided, too
constexpr int kPixelsOfItem = 60;  // so that they stay in the L1 cache while all filters read them

size_t padded_channels(int channels) { return round_up(channels, kWordChannels); }

// --- blocks --------------------------------------------------------------------------------------

// What blocks compute that read the same words.
struct BlocksShape {
    int first_output, outputs, count, first_word, words, period;
};

// How a layer reads a pixel: lanes of `period` groups alternate, which have `words` words each.
struct Reading {
    int period = 1, words = 0;

    bool moves() const { return period > 1 && words > 1; }
    // Channels that change places among one another.
    int channels() const { return period * words * kWordChannels; }
    // The channel at a position of a pixel: words of the groups alternate.
    int channel_at(int position) const {
        const int first = position / channels() * channels(), word = (position - first) / kWordChannels;
        return first + (word % period * words + word / period) * kWordChannels + position % kWordChannels;
    }
};

// Returns how a layer reads groups that are smaller than a block: so that no lane reads words of other groups. `blocks`
// is the largest number of blocks that do so together.
Reading reading_of(const Attributes& a, int in_channels, int blocks) {
    const int filters = a.out_channels / a.groups, inputs = in_channels / a.groups;
    if (filters >= kInt8Lanes || inputs % kWordChannels) {
        return {};
    }
    for (int period = kInt8Period; period > 1; period /= 2) {
        const int lanes = period * filters;
        if (a.groups % period == 0 && lanes % kInt8Lanes == 0 && lanes / kInt8Lanes <= blocks) {
            return {period, inputs / kWordChannels};
        }
    }
    return {};
}

std::vector<BlocksShape> shapes_of(const Attributes& a, int in_channels, const Reading& reading) {
    const int filters = a.out_channels / a.groups, inputs = in_channels / a.groups;
    std::vector<BlocksShape> shapes;
    if (reading.period > 1) {
        const int outputs = reading.period * filters;
        for (int group = 0; group < a.groups; group += reading.period) {
            shapes.push_back(
                {group * filters, outputs, outputs / kInt8Lanes, group * reading.words, reading.words, reading.period});
        }
        return shapes;
    }
    const int together = std::max(1, kInt8Lanes / filters);  // groups of a block
    for (int group = 0; group < a.groups; group += together) {
        const int groups = std::min(together, a.groups - group);
        const int first_word = group * inputs / kWordChannels;
        const int words = ceil_div((group + groups) * inputs, kWordChannels) - first_word;
        const int blocks = ceil_div(groups * filters, kInt8Lanes), parts = ceil_div(blocks, kInt8Blocks);
        for (int part = 0; part < parts; part++) {
            const int begin = blocks * part / parts, end = blocks * (part + 1) / parts;
            const int first = begin * kInt8Lanes, last = std::min(end * kInt8Lanes, groups * filters);
            shapes.push_back({group * filters + first, last - first, end - begin, first_word, words, 1});
        }
    }
    return shapes;
}

// Returns the levels of a layer that keeps its weights as codes, for blocks that read all words of a pixel, otherwise
// none. All blocks have the same size, so that some lanes may be without a filter.
Levels<int8_t> coded_levels(const Int8Kernels& kernels, const Int8LayerSpec& layer) {
    const Attributes& a = layer.attributes;
    const int lanes = static_cast<int>(round_up(a.out_channels, kCodedBlocks * kInt8Lanes));
    const bool fits = kernels.reads_codes && a.groups == 1 && layer.in_channels % (2 * kWordChannels) == 0 &&
                      lanes - a.out_channels <= a.out_channels / 16;
    return fits && are_many(layer.weights) ? Levels<int8_t>(layer.weights) : Levels<int8_t>();
}

std::vector<BlocksShape> coded_shapes(const Attributes& a, int in_channels) {
    constexpr int kLanes = kCodedBlocks * kInt8Lanes;
    std::vector<BlocksShape> shapes;
    for (int first = 0; first < a.out_channels; first += kLanes) {
        shapes.push_back(
            {first, std::min(kLanes, a.out_channels - first), kCodedBlocks, 0, in_channels / kWordChannels, 1});
    }
    return shapes;
}

// Returns whether the blocks of the layer before can store the outputs in the order of a reading.
bool can_store(const std::vector<BlocksShape>& shapes, const Reading& reading) {
    return std::all_of(shapes.begin(), shapes.end(), [&](const BlocksShape& shape) {
        return shape.first_output % reading.channels() == 0 && shape.outputs % reading.channels() == 0;
    });
}

// --- shuffle of channels --------------------------------------------------------------------------

constexpr int kTile = 8;

// Transposes 8 rows of 8 bytes: blocks of 4 x 4, of 2 x 2, then single bytes change places.
void transpose_tile(const uint8_t* from, int from_row, uint8_t* to, int to_row) {
    uint64_t rows[kTile];
    for (int i = 0; i < kTile; i++) {
        std::memcpy(rows + i, from + i * from_row, sizeof rows[i]);
    }
    const auto exchange = [&](int distance, uint64_t mask) {
        for (int i = 0; i < kTile; i++) {
            if (!(i & distance)) {
                const uint64_t changed = ((rows[i] >> 8 * distance) ^ rows[i + distance]) & mask;
                rows[i + distance] ^= changed;
                rows[i] ^= changed << 8 * distance;
            }
        }
    };
    exchange(4, 0x00000000ffffffff);
    exchange(2, 0x0000ffff0000ffff);
    exchange(1, 0x00ff00ff00ff00ff);
    for (int i = 0; i < kTile; i++) {
        std::memcpy(to + i * to_row, rows + i, sizeof rows[i]);
    }
}

// Transposes a matrix of bytes. Tiles at its end overlap those before.
void transpose(const uint8_t* from, int rows, int columns, uint8_t* to) {
    if (rows < kTile || columns < kTile) {
        for (int column = 0; column < columns; column++) {
            for (int row = 0; row < rows; row++) {
                to[column * rows + row] = from[row * columns + column];
            }
        }
        return;
    }
    for (int at_row = 0; at_row < rows; at_row += kTile) {
        const int row = std::min(at_row, rows - kTile);
        for (int at_column = 0; at_column < columns; at_column += kTile) {
            const int column = std::min(at_column, columns - kTile);
            transpose_tile(from + row * columns + column, columns, to + column * rows + row, rows);
        }
    }
}

// --- windows -------------------------------------------------------------------------------------

struct Range {
    int64_t begin, end;
};

Range clipped(int64_t begin, int length, int64_t size) {
    return {std::max<int64_t>(begin, 0), std::min<int64_t>(begin + length, size)};
}

// Calls visit(x, pixels, first, size) for the windows of row y of a pooled map: `pixels` outputs from column x on,
// whose windows are equal, the first window begins at column `first`. The offsets of its `size` pixels are stored.
template <class RowOffset, class Visit>
void visit_windows(const Attributes& a, const Value& map, int64_t y, int64_t width, const RowOffset& row_offset,
                   ptrdiff_t pixel, ptrdiff_t* offsets, const Visit& visit) {
    const Range rows = clipped(y * a.stride_h - a.pad_top, a.kernel_h, map.height);
    // Pixels in the middle have complete windows.
    const int64_t whole_begin = ceil_div(a.pad_left, a.stride_w);
    const int64_t room = map.width + a.pad_left - a.kernel_w;
    const int64_t whole_end = room < 0 ? 0 : room / a.stride_w + 1;
    for (int64_t x = 0; x < width;) {
        const int64_t pixels = x >= whole_begin && x < whole_end ? std::min(whole_end, width) - x : 1;
        const Range columns = clipped(x * a.stride_w - a.pad_left, a.kernel_w, map.width);
        int size = 0;
        for (int64_t row = rows.begin; row < rows.end; row++) {
            for (int64_t column = columns.begin; column < columns.end; column++) {
                offsets[size++] = row_offset(row) + (column - columns.begin) * pixel;
            }
        }
        visit(x, static_cast<int>(pixels), columns.begin, size);
        x += pixels;
    }
}

}  // namespace

// --- preparation ---------------------------------------------------------------------------------

Int8Step::Int8Step(Int8Spec spec)
    : spec_(std::move(spec)), packer_(spec_.packing, spec_.output.buffer), channels_(spec_.layers[0].in_channels) {
    // First the shapes, because a layer stores its outputs as the next one reads them.
    std::vector<Reading> readings;
    std::vector<Levels<int8_t>> levels;
    std::vector<std::vector<BlocksShape>> shapes;
    for (const Int8LayerSpec& layer : spec_.layers) {
        Reading reading = reading_of(layer.attributes, layer.in_channels, spec_.kernels->alternating_blocks);
        if (reading.moves() && (shapes.empty() || !can_store(shapes.back(), reading))) {
            reading = {};
        }
        levels.push_back(coded_levels(*spec_.kernels, layer));
        shapes.push_back(levels.back().bits() ? coded_shapes(layer.attributes, layer.in_channels)
                                              : shapes_of(layer.attributes, layer.in_channels, reading));
        readings.push_back(reading);
    }
    readings.emplace_back();  // of the result
    for (size_t number = 0; number < spec_.layers.size(); number++) {
        const Int8LayerSpec& from = spec_.layers[number];
        const Attributes& a = from.attributes;
        const int inputs = from.in_channels / a.groups, filters = a.out_channels / a.groups, taps = a.taps();
        // Channels by position, and positions by channel.
        const auto order_of = [](const Reading& reading, int channels) {
            std::vector<int> order(channels);
            std::iota(order.begin(), order.end(), 0);
            if (reading.moves()) {
                std::transform(order.begin(), order.end(), order.begin(),
                               [&](int position) { return reading.channel_at(position); });
            }
            return order;
        };
        const std::vector<int> input_order = order_of(readings[number], from.in_channels);
        const std::vector<int> output_order = order_of(readings[number + 1], a.out_channels);
        std::vector<int> position_of(from.in_channels);
        for (int position = 0; position < from.in_channels; position++) {
            position_of[input_order[position]] = position;
        }

        layers_.emplace_back();
        Layer& layer = layers_.back();
        layer.attributes = a;
        layer.in_channels = from.in_channels;
        layer.value = from.value;
        layer.pad.assign(padded_channels(from.in_channels), 0);
        for (int position = 0; position < from.in_channels; position++) {
            const int pad = from.pad[input_order[position]];
            layer.pad[position] = static_cast<uint8_t>(std::min(std::max(pad, 0), kMaxByte));
        }

        size_t bytes = 0, blocks = 0;
        for (const BlocksShape& shape : shapes[number]) {
            bytes += size_t(taps) * shape.words * shape.count * kWordChannels * kInt8Lanes;
            blocks += shape.count;
        }
        layer.weights = Constants<int8_t>(bytes);
        layer.lanes.resize(a.out_channels);
        std::vector<int32_t> multiplier(blocks * kInt8Lanes), offset(blocks * kInt8Lanes);
        std::vector<IntegerRange> sums(blocks * kInt8Lanes, {0, 0});
        size_t first_lane = 0;
        int8_t* weights = layer.weights.data();
        for (const BlocksShape& shape : shapes[number]) {
            bool in_order = true;
            const size_t tap_bytes = size_t(shape.words) * shape.count * kWordChannels * kInt8Lanes;
            for (int output = 0; output < shape.outputs; output++) {
                const int filter = output_order[shape.first_output + output], group = filter / filters;
                int lane = output;
                if (shape.period > 1) {  // lanes of the groups alternate
                    const int in_group = filter - shape.first_output - (group * filters - shape.first_output);
                    const int in_block = kInt8Lanes / shape.period;
                    lane = in_group / in_block * kInt8Lanes + in_group % in_block * shape.period + group % shape.period;
                }
                in_order = in_order && lane == output;
                layer.lanes[shape.first_output + output] = static_cast<uint8_t>(lane);
                multiplier[first_lane + lane] = from.multiplier[filter];
                offset[first_lane + lane] = from.offset[filter];
                for (int c = 0; c < inputs; c++) {
                    const int position = position_of[group * inputs + c] - shape.first_word * kWordChannels;
                    const int word = position / kWordChannels / shape.period;
                    const size_t to =
                        ((size_t(word) * shape.count + lane / kInt8Lanes) * kInt8Lanes + lane % kInt8Lanes) *
                            kWordChannels +
                        position % kWordChannels;
                    for (int tap = 0; tap < taps; tap++) {
                        const int8_t weight = from.weights[(size_t(filter) * inputs + c) * taps + tap];
                        weights[tap * tap_bytes + to] = weight;
                        IntegerRange& sum = sums[first_lane + lane];
                        (weight < 0 ? sum.low : sum.high) += int64_t(kMaxByte) * weight;
                    }
                }
            }
            layer.blocks.push_back({weights, shape.count, shape.first_word, shape.words, shape.period,
                                    shape.first_output, shape.outputs,
                                    in_order ? nullptr : layer.lanes.data() + shape.first_output, Rescaling()});
            weights += taps * tap_bytes;
            first_lane += size_t(shape.count) * kInt8Lanes;
        }
        if (levels[number].bits()) {
            encode(layer, levels[number]);
        }
        layer.rescaling = rescaling_constants(multiplier, offset, a, sums);
        int lane = 0;
        for (Int8Blocks& made : layer.blocks) {
            made.rescaling = layer.rescaling.from(lane);
            lane += made.count * kInt8Lanes;
        }
    }
    spec_.layers.clear();
}

// Replaces the weights of all blocks by codes.
void Int8Step::encode(Layer& layer, const Levels<int8_t>& levels) {
    const size_t size = layer.weights.size() / layer.blocks.size();
    layer.coded = CodedWeights<int8_t>(levels, layer.blocks.size(), size);
    for (size_t i = 0; i < layer.blocks.size(); i++) {
        Int8Blocks& blocks = layer.blocks[i];
        layer.coded.store(i, blocks.weights);
        blocks.weights = nullptr;
        blocks.codes = layer.coded.of(i);
    }
    layer.weights = {};
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

size_t Int8Step::maps_bytes(const std::vector<Map>& maps) const {
    return maps.back().offset + round_up(maps.back().bytes(), 64);
}

// Bytes of the offsets of taps and of pixels under windows.
size_t Int8Step::offsets_bytes() const {
    int most = 1;
    for (const Layer& layer : layers_) {
        most = std::max(most, layer.attributes.taps());
    }
    most = spec_.pools_before ? std::max(most, spec_.pool_before.taps()) : most;
    most = spec_.pools_after ? std::max(most, spec_.pool_after.taps()) : most;
    return round_up(sizeof(ptrdiff_t) * most, 64);
}

size_t Int8Step::row_bytes() const { return round_up(padded_channels(channels_), 64); }

size_t Int8Step::ring_bytes(const std::vector<Value>& values) const {
    const Value& last = values[layers_.back().value];
    return spec_.pools_after ? round_up(sizeof(int16_t) * spec_.pool_after.kernel_h * last.width * last.channels, 64)
                             : 0;
}

size_t Int8Step::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return maps_bytes(maps(values)) + threads * (offsets_bytes() + row_bytes() + ring_bytes(values));
}

Int8Step::Division Int8Step::division(const std::vector<Value>& values, const std::vector<Map>& maps, size_t number,
                                      int threads) const {
    const Layer& layer = layers_[number];
    const Attributes& a = layer.attributes;
    const Map& map = maps[number];
    const Value& result = values[layer.value];
    const bool is_last = number + 1 == layers_.size();
    const int64_t rows = is_last ? result.height : maps[number + 1].rows;
    Division division;
    division.flat = a.taps() == 1 && map.columns == result.width && map.rows == result.height &&
                    (is_last || (maps[number + 1].columns == result.width && rows == result.height));
    division.items = division.flat ? ceil_div(rows * result.width, int64_t(kPixelsOfItem)) : rows;
    const bool few = threads > 1 && division.items < int64_t(kItemsOfThread) * threads;
    division.parts = few ? std::min(static_cast<int>(layer.blocks.size()), threads) : 1;
    return division;
}

int Int8Step::phases(const std::vector<Value>& values, int threads) const {
    const bool packs_later =
        !packer_.empty() && !spec_.pools_after && division(values, maps(values), layers_.size() - 1, threads).parts > 1;
    return 1 + static_cast<int>(layers_.size()) + packs_later;
}

// --- computation ---------------------------------------------------------------------------------

void Int8Step::run(const Memory& memory, const Team& team, int phase) const {
    const std::vector<Map> all = maps(*memory.values);
    const size_t ring = ring_bytes(*memory.values), own = offsets_bytes() + row_bytes() + ring;
    uint8_t* const scratch = memory.scratch + maps_bytes(all) + team.thread * own;
    ptrdiff_t* const offsets = reinterpret_cast<ptrdiff_t*>(scratch + row_bytes());
    const int layers = static_cast<int>(layers_.size());
    if (phase == 0) {
        const Map& map = all[0];
        const int top = layers_[0].attributes.pad_top, begin = team.begin(map.rows), end = team.end(map.rows);
        for (int row = begin; row < end; row++) {
            fill_borders(layers_[0], map, row, memory.scratch + map.offset + row * map.row);
        }
        first_rows(memory, map, std::max(begin - top, 0), std::min<int64_t>(end - top, map.height), offsets, scratch);
    } else if (phase == layers && spec_.pools_after) {
        const Value& last = memory.value(layers_.back().value);
        int16_t* data = reinterpret_cast<int16_t*>(scratch + row_bytes() + offsets_bytes());
        convolve_and_pool(memory, team, all.back(), offsets,
                          {data, static_cast<ptrdiff_t>(last.width * last.channels), spec_.pool_after.kernel_h, 0});
    } else if (phase <= layers) {
        convolve(memory, team, phase - 1, all, offsets);
    } else {
        const Value& result = memory.value(spec_.result);
        const int64_t pixels = result.height * result.width;
        packer_.pack(memory, team.begin(pixels), team.end(pixels));
    }
}

// Fills the padding of a row.
void Int8Step::fill_borders(const Layer& layer, const Map& map, int64_t row, uint8_t* data) const {
    const Attributes& a = layer.attributes;
    const auto fill = [&](int64_t begin, int64_t end) {
        for (int64_t column = begin; column < end; column++) {
            std::copy(layer.pad.begin(), layer.pad.end(), data + column * map.pixel);
        }
    };
    if (row < a.pad_top || row >= a.pad_top + map.height) {
        fill(0, map.columns);
    } else {
        fill(0, a.pad_left);
        fill(a.pad_left + map.width, map.columns);
    }
}

// Computes rows of the first map, numbered without padding.
void Int8Step::first_rows(const Memory& memory, const Map& map, int64_t begin, int64_t end, ptrdiff_t* window,
                          uint8_t* scratch) const {
    const Value& source = memory.value(spec_.source_value);
    const float* const scale = spec_.before.scale.empty() ? nullptr : spec_.before.scale.data();
    const float* const shift = spec_.before.shift.data();
    const Attributes& first = layers_[0].attributes;
    const auto row_of_map = [&](int64_t row) {
        return memory.scratch + map.offset + (row + first.pad_top) * map.row + first.pad_left * map.pixel;
    };
    if (spec_.input >= 0) {
        const ptrdiff_t plane = static_cast<ptrdiff_t>(source.height * source.width);
        for (int64_t row = begin; row < end; row++) {
            spec_.kernels->rescale_planes({memory.inputs[spec_.input] + row * source.width, plane,
                                           static_cast<int>(source.width), channels_, scale, shift,
                                           spec_.rescaling.from(0), row_of_map(row), map.pixel});
        }
    } else {
        const Attributes no_pooling;
        const Attributes& a = spec_.pools_before ? spec_.pool_before : no_pooling;
        int channel = 0;
        for (const Slab& slab : spec_.source.slabs) {  // one after the other, because rows of a slab follow one another
            const View view = memory.view(slab);
            for (int64_t row = begin; row < end; row++) {
                uint8_t* to = row_of_map(row) + channel;
                visit_windows(
                    a, source, row, map.width, [&](int64_t y) { return y * view.row; }, view.pixel, window,
                    [&](int64_t x, int pixels, int64_t column, int size) {
                        if (spec_.counted.count) {
                            spec_.kernels->count_thresholds(
                                {view.type, view.at(column * view.pixel), a.stride_w * view.pixel, window, size, pixels,
                                 view.channels, spec_.counted.thresholds.data() + channel, channels_,
                                 spec_.counted.count, spec_.counted.flips.data() + channel, true, to + x * map.pixel,
                                 map.pixel});
                            return;
                        }
                        spec_.kernels->rescale({view.type, view.at(column * view.pixel), a.stride_w * view.pixel,
                                                window, size, pixels, view.channels, scale ? scale + channel : nullptr,
                                                scale ? shift + channel : nullptr, spec_.rescaling.from(channel),
                                                to + x * map.pixel, map.pixel});
                    });
            }
            channel += view.channels;
        }
    }
    for (int64_t row = begin; row < end && spec_.shuffle_groups > 1; row++) {
        for (int64_t x = 0; x < map.width; x++) {
            uint8_t* pixel = row_of_map(row) + x * map.pixel;
            std::copy_n(pixel, channels_, scratch);
            transpose(scratch, spec_.shuffle_groups, channels_ / spec_.shuffle_groups, pixel);
        }
    }
}

// Returns what all rows of a layer have in common.
Int8Row Int8Step::row_of(const Layer& layer, const Map& map, const Value& result, ptrdiff_t* taps) const {
    const Attributes& a = layer.attributes;
    for (int tap = 0; tap < a.taps(); tap++) {
        taps[tap] = tap / a.kernel_w * a.dilation_h * map.row + tap % a.kernel_w * a.dilation_w * map.pixel;
    }
    Int8Row row;
    row.step = a.stride_w * map.pixel;
    row.taps = taps;
    row.tap_count = a.taps();
    row.pixels = static_cast<int>(result.width);
    row.blocks = layer.blocks.data();
    row.blocks_count = static_cast<int>(layer.blocks.size());
    row.result = Int8Result::shorts;
    return row;
}

void Int8Step::convolve(const Memory& memory, const Team& team, size_t number, const std::vector<Map>& maps,
                        ptrdiff_t* taps) const {
    const Layer& layer = layers_[number];
    const Map& map = maps[number];
    const Value& result = memory.value(layer.value);
    const bool is_last = number + 1 == layers_.size();
    const Division division = this->division(*memory.values, maps, number, team.threads);
    const int blocks = static_cast<int>(layer.blocks.size()), parts = division.parts;
    const int above = is_last ? 0 : layers_[number + 1].attributes.pad_top;
    Int8Row row = row_of(layer, map, result, taps);
    const bool floats = is_last && memory.view(spec_.output).type == DataType::f32;
    row.result = !is_last ? Int8Result::bytes : floats ? Int8Result::floats : Int8Result::shorts;
    for (int item = team.begin(division.items * parts); item < team.end(division.items * parts); item++) {
        const int begin = blocks * (item % parts) / parts, end = blocks * (item % parts + 1) / parts;
        row.blocks = layer.blocks.data() + begin;
        row.blocks_count = end - begin;
        // Pixels of the result, numbered row by row.
        const int64_t y = item / parts - above;
        const int64_t first = division.flat ? int64_t(item / parts) * kPixelsOfItem : y * result.width;
        if (division.flat) {
            row.pixels = static_cast<int>(std::min<int64_t>(kPixelsOfItem, result.height * result.width - first));
            row.x = memory.scratch + map.offset + first * map.pixel;
        } else {
            row.x = memory.scratch + map.offset + y * layer.attributes.stride_h * map.row;
        }
        if (is_last) {
            const View view = memory.view(spec_.output);
            row.y = view.at(first * view.pixel);
            row.y_pixel = view.pixel;
        } else {
            const Map& next = maps[number + 1];
            uint8_t* data =
                memory.scratch + next.offset + (division.flat ? first * next.pixel : (y + above) * next.row);
            if (!division.flat && begin == 0) {
                fill_borders(layers_[number + 1], next, y + above, data);
            }
            if (y < 0 || (!division.flat && y >= result.height)) {
                continue;
            }
            row.y = data + layers_[number + 1].attributes.pad_left * next.pixel;
            row.y_pixel = next.pixel;
        }
        spec_.kernels->convolve(row);
        if (is_last) {
            const Int8Blocks &front = row.blocks[0], &back = row.blocks[row.blocks_count - 1];
            spec_.chain.apply(memory, memory.view(spec_.output), first, first + row.pixels, front.first_output,
                              back.first_output + back.outputs - front.first_output);
        }
        if (is_last && parts == 1) {
            packer_.pack(memory, first, first + row.pixels);
        }
    }
}

// Computes rows of the result, the maxima of the last layer's result. Threads compute some rows of that twice.
void Int8Step::convolve_and_pool(const Memory& memory, const Team& team, const Map& map, ptrdiff_t* offsets,
                                 Ring ring) const {
    const Layer& layer = layers_.back();
    const Attributes& pool = spec_.pool_after;
    const Value& under = memory.value(layer.value);
    const Value& result = memory.value(spec_.result);
    const View view = memory.view(spec_.output);
    for (int y = team.begin(result.height); y < team.end(result.height); y++) {
        const Range rows = clipped(int64_t(y) * pool.stride_h - pool.pad_top, pool.kernel_h, under.height);
        Int8Row row = row_of(layer, map, under, offsets);
        row.y_pixel = under.channels;
        for (ring.next = std::max(ring.next, rows.begin); ring.next < rows.end; ring.next++) {
            row.x = memory.scratch + map.offset + ring.next * layer.attributes.stride_h * map.row;
            row.y = ring.data + ring.offset(ring.next);
            spec_.kernels->convolve(row);
        }
        visit_windows(
            pool, under, y, result.width, [&](int64_t at) { return ring.offset(at); }, under.channels, offsets,
            [&](int64_t x, int pixels, int64_t column, int size) {
                int16_t* to = reinterpret_cast<int16_t*>(view.at(y * view.row + x * view.pixel));
                spec_.kernels->max_row({ring.data + column * under.channels,
                                        static_cast<ptrdiff_t>(pool.stride_w * under.channels), offsets, size, pixels,
                                        static_cast<int>(under.channels), to, view.pixel});
            });
        spec_.chain.apply(memory, view, y * result.width, (y + 1) * result.width, 0, static_cast<int>(result.channels));
        packer_.pack(memory, y * result.width, (y + 1) * result.width);
    }
}

// --- single operations ---------------------------------------------------------------------------

StepPtr multi_threshold_step(const Int8Kernels* kernels, Source source, CountedThresholds counted, Slab whole) {
    return function_step([=, counted = std::move(counted)](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        const ptrdiff_t window[] = {0};
        for (int row = team.begin(map.height); row < team.end(map.height); row++) {
            int channel = 0;
            for (const Slab& slab : source.slabs) {
                const View view = memory.view(slab);
                kernels->count_thresholds(
                    {view.type, view.at(row * view.row), view.pixel, window, 1, static_cast<int>(map.width),
                     view.channels, counted.thresholds.data() + channel, source.channels(), counted.count,
                     counted.flips.data() + channel, false, output.at(row * output.row + channel), output.pixel});
                channel += view.channels;
            }
        }
    });
}

StepPtr integer_mean_step(const Int8Kernels* kernels, Source source, const Attributes& a, bool is_global, int number,
                          Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const Value& result = memory.value(number);
        const View output = memory.view(whole);
        const int64_t results = result.height * result.width;
        for (int item = team.begin(results); item < team.end(results); item++) {
            const int64_t y = item / result.width, x = item % result.width;
            const AverageWindow window = is_global ? AverageWindow{0, 0, map.height, map.width, map.height * map.width}
                                                   : average_window(a, map, y, x);
            float* to = reinterpret_cast<float*>(output.at(y * output.row + x * output.pixel));
            for (const Slab& slab : source.slabs) {
                const View view = memory.view(slab);
                kernels->mean({view.type, view.at(window.top * view.row + window.left * view.pixel),
                               static_cast<int>(window.bottom - window.top),
                               static_cast<int>(window.right - window.left), view.row, view.pixel, view.channels,
                               window.count, a.fraction_bits, to});
                to += view.channels;
            }
        }
    });
}

}  // namespace bmx
