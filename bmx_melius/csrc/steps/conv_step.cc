#include "steps/conv_step.h"

#include <algorithm>

#include "kernels/arithmetic.h"

namespace bmx {
namespace {

constexpr int kPieceOutputs = 256, kPieceStep = 16;
constexpr int kMostPanelPixels = 64, kLeastPanelPixels = 8;
constexpr size_t kPanelBytes = 128 << 10;

}  // namespace

ConvStep::ConvStep(ConvSpec spec)
    : spec_(std::move(spec)),
      packer_(spec_.packing, spec_.output.buffer),
      channels_(spec_.source.channels()),
      inputs_(channels_ * spec_.attributes.taps()) {
    const int pixels = static_cast<int>(kPanelBytes / sizeof(float) / inputs_);
    panel_pixels_ = std::min(std::max(pixels, kLeastPanelPixels), kMostPanelPixels);
    after_ = {Constants<float>(spec_.scale), Constants<float>(spec_.shift), spec_.relu};
    prepare_pieces();
    spec_.weights = {};
}

void ConvStep::prepare_pieces() {
    const Attributes& a = spec_.attributes;
    const int taps = a.taps(), group_inputs = channels_ / a.groups, group_outputs = a.out_channels / a.groups;
    const int k = group_inputs * taps;
    const bool in_order = taps == 1 && spec_.shuffle_groups == 1;
    const int pieces = ceil_div(group_outputs, kPieceOutputs);
    const int step = static_cast<int>(round_up(ceil_div(group_outputs, pieces), kPieceStep));
    size_t bytes = 0;
    for (int group = 0; group < a.groups; group++) {
        ptrdiff_t columns = -1;
        if (!in_order && !(a.groups == 1 && spec_.shuffle_groups == 1)) {
            columns = static_cast<ptrdiff_t>(columns_.size());
            const int shuffled_group = channels_ / spec_.shuffle_groups;
            for (int tap = 0; tap < taps; tap++) {
                for (int i = 0; i < group_inputs; i++) {
                    const int c = group * group_inputs + i;  // its position before the shuffle:
                    columns_.push_back(tap * channels_ + c % spec_.shuffle_groups * shuffled_group +
                                       c / spec_.shuffle_groups);
                }
            }
        }
        for (int begin = 0; begin < group_outputs; begin += step) {
            const int outputs = std::min(step, group_outputs - begin);
            pieces_.push_back(
                {group * group_outputs + begin, outputs, columns < 0 ? group * group_inputs : 0, bytes, columns});
            bytes += round_up(spec_.kernels->gemm_weights_bytes(outputs, k), 64);
        }
    }
    weights_ = Constants<uint8_t>(bytes);
    std::vector<float> rows;  // weights of a piece: [output][tap][input]
    for (const Piece& piece : pieces_) {
        rows.resize(static_cast<size_t>(piece.outputs) * k);
        const float* weights = spec_.weights.data() + static_cast<size_t>(piece.begin) * k;
        for (int output = 0; output < piece.outputs; output++, weights += k) {
            for (int i = 0; i < group_inputs; i++) {
                for (int tap = 0; tap < taps; tap++) {
                    rows[static_cast<size_t>(output) * k + tap * group_inputs + i] = weights[i * taps + tap];
                }
            }
        }
        spec_.kernels->gemm_prepare(piece.outputs, k, rows.data(), k, weights_.data() + piece.weights);
    }
}

bool ConvStep::reads_in_place() const {
    const Attributes& a = spec_.attributes;
    return spec_.source_is_plain && !spec_.has_pooling && a.taps() == 1 && a.stride_h == 1 && a.stride_w == 1 &&
           !a.padded();
}

size_t ConvStep::panel_bytes() const { return round_up(sizeof(float) * panel_pixels_ * inputs_ + kFloatReadAhead, 64); }

size_t ConvStep::scratch_bytes(const std::vector<Value>&, int threads) const {
    return reads_in_place() ? 0 : threads * (panel_bytes() + spec_.window.offsets_bytes());
}

void ConvStep::run(const Memory& memory, const Team& team, int) const {
    const Value& result = memory.value(spec_.result);
    const int64_t pixels = result.height * result.width;
    // If there are few pixels, the threads divide the outputs instead, unless pixels must be packed.
    const bool by_pixels = pixels >= team.threads * kLeastPanelPixels || !packer_.empty();
    const int64_t begin = by_pixels ? team.begin(pixels) : 0, end = by_pixels ? team.end(pixels) : pixels;
    const size_t piece_begin = by_pixels ? 0 : team.begin(pieces_.size());
    const size_t piece_end = by_pixels ? pieces_.size() : team.end(pieces_.size());
    if (piece_begin == piece_end) {
        return;
    }
    if (reads_in_place()) {
        const View view = memory.view(spec_.source.slabs[0]);
        for (int64_t pixel = begin; pixel < end; pixel += panel_pixels_) {
            const int64_t panel_end = std::min(pixel + panel_pixels_, end);
            multiply(memory, reinterpret_cast<const float*>(view.at(pixel * view.pixel)), view.pixel, pixel,
                     static_cast<int>(panel_end - pixel), piece_begin, piece_end);
            packer_.pack(memory, pixel, panel_end);
        }
        return;
    }
    uint8_t* scratch = memory.scratch + team.thread * (panel_bytes() + spec_.window.offsets_bytes());
    float* panel = reinterpret_cast<float*>(scratch);
    ptrdiff_t* offsets = reinterpret_cast<ptrdiff_t*>(scratch + panel_bytes());
    for (int64_t pixel = begin; pixel < end; pixel += panel_pixels_) {
        const int64_t panel_end = std::min(pixel + panel_pixels_, end);
        fill_panel(memory, pixel, panel_end, panel, offsets);
        multiply(memory, panel, inputs_, pixel, static_cast<int>(panel_end - pixel), piece_begin, piece_end);
        packer_.pack(memory, pixel, panel_end);
    }
}

// Fills a panel. Output pixels are numbered row by row.
void ConvStep::fill_panel(const Memory& memory, int64_t begin, int64_t end, float* panel, ptrdiff_t* offsets) const {
    const int width = static_cast<int>(memory.value(spec_.result).width);
    while (begin < end) {
        const int y = static_cast<int>(begin / width), x = static_cast<int>(begin % width);
        const int count = static_cast<int>(std::min<int64_t>(width - x, end - begin));
        if (spec_.has_pooling) {
            pool_pixels(*spec_.kernels, memory, spec_.source, spec_.window, spec_.before, y, x, x + count, panel,
                        inputs_, offsets);
        } else {
            for (int i = 0; i < count; i++) {
                fill_window(memory, y, x + i, panel + static_cast<ptrdiff_t>(i) * inputs_);
            }
        }
        panel += static_cast<ptrdiff_t>(count) * inputs_;
        begin += count;
    }
}

void ConvStep::fill_window(const Memory& memory, int y, int x, float* to) const {
    const Attributes& a = spec_.attributes;
    const Value& map = memory.value(spec_.source.value);
    for (int tap = 0; tap < a.taps(); tap++) {
        const int row = y * a.stride_h - a.pad_top + tap / a.kernel_w * a.dilation_h;
        const int column = x * a.stride_w - a.pad_left + tap % a.kernel_w * a.dilation_w;
        if (row < 0 || row >= map.height || column < 0 || column >= map.width) {
            std::fill_n(to, channels_, 0.0f);
            to += channels_;
            continue;
        }
        for (const Slab& slab : spec_.source.slabs) {
            const View view = memory.view(slab);
            visit_numbers(view.number, view.at(row * view.row + column * view.pixel),
                          [&](const auto* from) { to = std::copy_n(from, view.channels, to); });
        }
    }
}

void ConvStep::multiply(const Memory& memory, const float* a, ptrdiff_t lda, int64_t pixel, int pixels,
                        size_t piece_begin, size_t piece_end) const {
    const View output = memory.view(spec_.output);
    const int k = inputs_ / spec_.attributes.groups;
    for (size_t i = piece_begin; i < piece_end; i++) {
        const Piece& piece = pieces_[i];
        Gemm gemm;
        gemm.m = pixels;
        gemm.n = piece.outputs;
        gemm.k = k;
        gemm.a = a + piece.first_input;
        gemm.lda = lda;
        gemm.column = piece.columns < 0 ? nullptr : columns_.data() + piece.columns;
        gemm.b = weights_.data() + piece.weights;
        gemm.c = reinterpret_cast<float*>(output.at(pixel * output.pixel + piece.begin));
        gemm.ldc = output.pixel;
        gemm.epilogue = after_.from(piece.begin);
        spec_.kernels->gemm(gemm);
    }
}

}  // namespace bmx
