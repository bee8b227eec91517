#include "steps/conv_step.h"

#include <algorithm>

#include "kernels/common/arithmetic.h"
#include "program/error.h"

namespace bmx {
namespace {

constexpr int kMaxPanelPixels = 64, kMinPanelPixels = 8;
constexpr size_t kPanelBytes = 256 << 10;
constexpr size_t kMapBytes = 256 << 10;  // of the part of the map under a block
constexpr int kMinColumns = 48;          // of a block, unless there are many threads

}  // namespace

ConvStep::ConvStep(ConvSpec spec)
    : spec_(std::move(spec)),
      packer_(spec_.packing, spec_.output.buffer),
      channels_(spec_.source.channels()),
      pieces_(spec_.kernels, spec_.attributes, channels_, spec_.shuffle_groups, spec_.weights, std::move(spec_.after)) {
    const int pixels = static_cast<int>(kPanelBytes / sizeof(float) / channels_);
    panel_pixels_ = std::min(std::max(pixels, kMinPanelPixels), kMaxPanelPixels);
    spec_.weights = {};
}

ConvStep::Inputs ConvStep::inputs() const {
    const Attributes& a = spec_.attributes;
    if (a.taps() > 1 || a.padded()) {
        return Inputs::window;
    }
    return spec_.has_pooling ? Inputs::panel : Inputs::in_place;
}

// Returns whether threads divide the outputs of a pixel instead of the pixels. Then each of them reads only a part of
// the weights, but the packer is without complete pixels.
bool ConvStep::divides_outputs(const std::vector<Value>& values, int threads) const {
    if (threads == 1 || !packer_.empty()) {
        return false;
    }
    const Value &map = values[spec_.source.value], &result = values[spec_.result];
    const size_t map_bytes = sizeof(float) * map.height * map.width * channels_;
    const bool many_weights = inputs() != Inputs::panel && pieces_.weights_bytes() > map_bytes &&
                              pieces_.all().end >= static_cast<size_t>(threads);
    return many_weights || result.height * result.width < int64_t(threads) * kMinPanelPixels;
}

ConvStep::Blocks ConvStep::blocks(const std::vector<Value>& values, int threads) const {
    const Attributes& a = spec_.attributes;
    const int height = static_cast<int>(values[spec_.result].height),
              width = static_cast<int>(values[spec_.result].width);
    const int64_t pixels = kMapBytes / sizeof(float) / channels_;  // of the map
    const int64_t fitting_columns = (pixels / a.extent_h() - a.extent_w()) / a.stride_w + 1;
    const int max_columns = static_cast<int>(std::min<int64_t>(std::max<int64_t>(fitting_columns, kMinColumns), width));
    Blocks blocks;
    blocks.columns = ceil_div(width, std::max(ceil_div(width, max_columns), ceil_div(threads, height)));
    blocks.across = ceil_div(width, blocks.columns);
    blocks.map_columns = (blocks.columns - 1) * a.stride_w + a.extent_w();
    const int64_t fitting_rows = (pixels / blocks.map_columns - a.extent_h()) / a.stride_h + 1;
    const int max_rows = static_cast<int>(std::min<int64_t>(std::max<int64_t>(fitting_rows, 1), height));
    const int64_t down = round_up(ceil_div(height, max_rows), threads);
    blocks.rows = static_cast<int>(ceil_div(int64_t(height), down));
    blocks.down = ceil_div(height, blocks.rows);
    blocks.map_rows = (blocks.rows - 1) * a.stride_h + a.extent_h();
    blocks.tap_rows = a.dilation_h;
    if (blocks.rows == 1) {  // only the rows under the taps
        blocks.map_rows = a.kernel_h;
        blocks.tap_rows = 1;
    }
    return blocks;
}

size_t ConvStep::panel_bytes() const {
    return round_up(sizeof(float) * panel_pixels_ * channels_ + kFloatReadAhead, 64);
}

size_t ConvStep::columns_bytes() const { return round_up(sizeof(int32_t) * pieces_.inputs(), 64); }

size_t ConvStep::thread_bytes(const std::vector<Value>& values, int threads) const {
    switch (inputs()) {
        case Inputs::in_place:
            return 0;
        case Inputs::panel:
            return panel_bytes() + spec_.window.offsets_bytes();
        case Inputs::window:
            break;
    }
    const Blocks blocks = this->blocks(values, divides_outputs(values, threads) ? 1 : threads);
    const size_t floats = size_t(blocks.map_rows) * blocks.map_columns * channels_;
    if (floats > INT32_MAX) {  // positions of inputs have 32 bits
        throw Error("a convolution reads " + std::to_string(floats) + " numbers under one row of its result; at most " +
                    std::to_string(INT32_MAX) + " are possible");
    }
    return columns_bytes() + round_up(sizeof(float) * floats + kFloatReadAhead, 64);
}

size_t ConvStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return threads * thread_bytes(values, threads);
}

void ConvStep::run(const Memory& memory, const Team& team, int) const {
    const Value& result = memory.value(spec_.result);
    const bool divides = divides_outputs(*memory.values, team.threads);
    const size_t count = pieces_.all().end;
    const Team whole = {0, 1}, &of_pixels = divides ? whole : team, &of_outputs = divides ? team : whole;
    const PieceRange pieces = {static_cast<size_t>(of_outputs.begin(count)),
                               static_cast<size_t>(of_outputs.end(count))};
    if (pieces.begin == pieces.end) {
        return;
    }
    uint8_t* scratch = memory.scratch + team.thread * thread_bytes(*memory.values, team.threads);
    if (inputs() != Inputs::window) {
        const int64_t pixels = result.height * result.width;
        run_pixels(memory, of_pixels.begin(pixels), of_pixels.end(pixels), pieces, scratch);
        return;
    }
    const Blocks blocks = this->blocks(*memory.values, of_pixels.threads);
    pieces_.fill_columns(ptrdiff_t(spec_.attributes.dilation_w) * channels_,
                         ptrdiff_t(blocks.tap_rows) * blocks.map_columns * channels_,
                         reinterpret_cast<int32_t*>(scratch));
    const int64_t end = of_pixels.end(blocks.down * blocks.across);
    for (int64_t i = of_pixels.begin(blocks.down * blocks.across); i < end; i++) {
        const int row = static_cast<int>(i / blocks.across) * blocks.rows;
        const int column = static_cast<int>(i % blocks.across) * blocks.columns;
        const Block block = {row, static_cast<int>(std::min<int64_t>(row + blocks.rows, result.height)), column,
                             static_cast<int>(std::min<int64_t>(column + blocks.columns, result.width))};
        run_block(memory, blocks, block, pieces, scratch);
    }
}

// --- pixels of the map, or of a panel

// Output pixels are numbered row by row.
void ConvStep::run_pixels(const Memory& memory, int64_t begin, int64_t end, const PieceRange& pieces,
                          uint8_t* scratch) const {
    const bool in_place = inputs() == Inputs::in_place;
    const View output = memory.view(spec_.output), input = memory.view(spec_.source.slabs[0]);
    float* panel = reinterpret_cast<float*>(scratch);
    ptrdiff_t* offsets = reinterpret_cast<ptrdiff_t*>(scratch + panel_bytes());
    for (int64_t pixel = begin, next; pixel < end; pixel = next) {
        next = std::min(pixel + panel_pixels_, end);
        ConvRows rows = {panel,
                         channels_,
                         nullptr,
                         static_cast<int>(next - pixel),
                         reinterpret_cast<float*>(output.at(pixel * output.pixel)),
                         output.pixel};
        if (in_place) {
            rows.inputs = reinterpret_cast<const float*>(input.at(pixel * input.pixel));
            rows.input_pixel = input.pixel;
        } else {
            fill_panel(memory, pixel, next, panel, offsets);
        }
        pieces_.multiply(rows, pieces);
        finish(memory, pixel, next, pieces);
    }
}

void ConvStep::fill_panel(const Memory& memory, int64_t begin, int64_t end, float* panel, ptrdiff_t* offsets) const {
    const int width = static_cast<int>(memory.value(spec_.result).width);
    while (begin < end) {
        const int y = static_cast<int>(begin / width), x = static_cast<int>(begin % width);
        const int count = static_cast<int>(std::min<int64_t>(width - x, end - begin));
        pool_pixels(*spec_.kernels, memory, spec_.source, spec_.window, spec_.before, y, x, x + count, panel, channels_,
                    offsets);
        panel += static_cast<ptrdiff_t>(count) * channels_;
        begin += count;
    }
}

// --- windows

void ConvStep::run_block(const Memory& memory, const Blocks& blocks, const Block& block, const PieceRange& pieces,
                         uint8_t* scratch) const {
    const Attributes& a = spec_.attributes;
    const View output = memory.view(spec_.output);
    const ptrdiff_t map_row = ptrdiff_t(blocks.map_columns) * channels_;
    float* map = reinterpret_cast<float*>(scratch + columns_bytes());
    copy_map(memory, blocks, block, map);
    ConvRows rows = {map,
                     ptrdiff_t(a.stride_w) * channels_,
                     reinterpret_cast<const int32_t*>(scratch),
                     block.column_end - block.column_begin,
                     nullptr,
                     output.pixel};
    for (size_t piece = pieces.begin; piece < pieces.end; piece++) {  // all rows while its weights are in the cache
        for (int y = block.row_begin; y < block.row_end; y++) {
            rows.inputs = map + (y - block.row_begin) * a.stride_h * map_row;
            rows.outputs = reinterpret_cast<float*>(output.at(y * output.row + block.column_begin * output.pixel));
            pieces_.multiply(rows, {piece, piece + 1});
        }
    }
    const int64_t width = memory.value(spec_.result).width;
    for (int y = block.row_begin; y < block.row_end; y++) {
        finish(memory, y * width + block.column_begin, y * width + block.column_end, pieces);
    }
}

// Copies the part of the map under a block, with zeros outside the map.
void ConvStep::copy_map(const Memory& memory, const Blocks& blocks, const Block& block, float* to) const {
    const Attributes& a = spec_.attributes;
    const Value& map = memory.value(spec_.source.value);
    const int top = block.row_begin * a.stride_h - a.pad_top, left = block.column_begin * a.stride_w - a.pad_left;
    const int distance = a.dilation_h / blocks.tap_rows;  // of the rows to copy
    const int rows = blocks.rows == 1 ? a.kernel_h : (block.row_end - block.row_begin - 1) * a.stride_h + a.extent_h();
    const int begin = std::max(left, 0);
    const int end = std::max(begin, static_cast<int>(std::min<int64_t>(left + blocks.map_columns, map.width)));
    const ptrdiff_t row_floats = ptrdiff_t(blocks.map_columns) * channels_;
    for (int i = 0; i < rows; i++, to += row_floats) {
        const int y = top + i * distance;
        if (y < 0 || y >= map.height || begin == end) {
            std::fill_n(to, row_floats, 0.0f);
            continue;
        }
        float* const inside = to + ptrdiff_t(begin - left) * channels_;
        float* const after = inside + ptrdiff_t(end - begin) * channels_;
        std::fill(to, inside, 0.0f);
        combine_with(*spec_.kernels, memory, spec_.source, Combination::copy,
                     {y, begin, end - begin, 0, channels_, inside, channels_});
        std::fill(after, to + row_floats, 0.0f);
    }
}

// Applies the chain to a range of pixels, and packs them.
void ConvStep::finish(const Memory& memory, int64_t begin, int64_t end, const PieceRange& pieces) const {
    const int first = pieces_.first_output(pieces);
    spec_.chain.apply(memory, memory.view(spec_.output), begin, end, first, pieces_.end_output(pieces) - first);
    packer_.pack(memory, begin, end);
}

}  // namespace bmx
