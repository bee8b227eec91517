#include "steps/conv_pieces.h"

#include <algorithm>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

// The weights of a piece stay in the second-level cache while all pixels of a block are multiplied with them.
constexpr size_t kPieceBytes = 320 << 10;
constexpr int kMinPieceOutputs = 32, kMaxPieceOutputs = 256;
constexpr int kPieceStep = 16;

// Outputs of a piece of codes: whole tiles of two or three vectors, and more pieces for threads than of all outputs
// that fit into kPieceBytes.
constexpr int kCodedPieceOutputs = 96;

// Returns the number of outputs of each piece but the last one.
int piece_outputs(int outputs, int inputs) {
    const int fitting = static_cast<int>(kPieceBytes / sizeof(float) / inputs) / kMinPieceOutputs * kMinPieceOutputs;
    const int pieces = ceil_div(outputs, std::min(std::max(fitting, kMinPieceOutputs), kMaxPieceOutputs));
    return static_cast<int>(round_up(ceil_div(outputs, pieces), kPieceStep));
}

}  // namespace

ConvPieces::ConvPieces(const FloatKernels* kernels, const Attributes& a, int channels, int shuffle_groups,
                       const std::vector<float>& weights, Normalization after)
    : kernels_(kernels),
      taps_(a.taps()),
      kernel_w_(a.kernel_w),
      group_inputs_(channels / a.groups),
      after_(std::move(after)) {
    const Levels<float> levels =
        kernels_->gemm_of_codes && are_many(weights) ? Levels<float>(weights) : Levels<float>();
    const bool is_coded = levels.bits();
    const int group_outputs = a.out_channels / a.groups;
    const int step = is_coded ? kCodedPieceOutputs : piece_outputs(group_outputs, inputs());
    size_t bytes = 0, blocks = 0;
    for (int group = 0; group < a.groups; group++) {
        for (int begin = 0; begin < group_outputs; begin += step) {
            const int outputs = std::min(step, group_outputs - begin);
            pieces_.push_back({group * group_outputs + begin, outputs, group, is_coded ? blocks : bytes});
            bytes += round_up(kernels_->gemm_weights_bytes(outputs, inputs()), 64);
            blocks += is_coded ? ceil_div(outputs, kernels_->gemm_block) : 0;
        }
    }
    if (is_coded) {
        coded_ = CodedWeights<float>(levels, blocks, size_t(kernels_->gemm_block) * inputs());
    } else {
        weights_ = Constants<uint8_t>(bytes);
    }
    prepare(weights);
    if (shuffle_groups > 1) {
        fill_shuffled_columns(channels, shuffle_groups);
    }
}

void ConvPieces::fill_shuffled_columns(int channels, int shuffle_groups) {
    for (int c = 0; c < channels; c++) {  // its position before the shuffle:
        columns_.push_back(c % shuffle_groups * (channels / shuffle_groups) + c / shuffle_groups);
    }
}

void ConvPieces::prepare(const std::vector<float>& weights) {
    const int k = inputs();
    std::vector<float> rows;    // weights of a piece: [output][tap][input]
    Constants<float> prepared;  // where they become codes
    for (const Piece& piece : pieces_) {
        rows.resize(static_cast<size_t>(piece.outputs) * k);
        const float* from = weights.data() + static_cast<size_t>(piece.begin) * k;
        for (int output = 0; output < piece.outputs; output++, from += k) {
            for (int i = 0; i < group_inputs_; i++) {
                for (int tap = 0; tap < taps_; tap++) {
                    rows[static_cast<size_t>(output) * k + tap * group_inputs_ + i] = from[i * taps_ + tap];
                }
            }
        }
        if (coded_.empty()) {
            kernels_->gemm_prepare(piece.outputs, k, rows.data(), k, weights_.data() + piece.weights);
            continue;
        }
        prepared = Constants<float>(kernels_->gemm_weights_bytes(piece.outputs, k) / sizeof(float));
        kernels_->gemm_prepare(piece.outputs, k, rows.data(), k, prepared.data());
        const size_t block = size_t(kernels_->gemm_block) * k;
        for (int i = 0; i < ceil_div(piece.outputs, kernels_->gemm_block); i++) {
            coded_.store(piece.weights + i, prepared.data() + i * block);
        }
    }
}

void ConvPieces::fill_columns(ptrdiff_t pixel, ptrdiff_t row, int32_t* columns) const {
    for (int tap = 0; tap < taps_; tap++) {
        const ptrdiff_t position = tap / kernel_w_ * row + tap % kernel_w_ * pixel;
        for (int i = 0; i < group_inputs_; i++) {
            *columns++ = static_cast<int32_t>(position + i);
        }
    }
}

void ConvPieces::multiply(const ConvRows& rows, const PieceRange& range) const {
    for (size_t i = range.begin; i < range.end; i++) {
        const Piece& piece = pieces_[i];
        const ptrdiff_t first_input = static_cast<ptrdiff_t>(piece.group) * group_inputs_;
        Gemm gemm;
        gemm.m = rows.pixels;
        gemm.n = piece.outputs;
        gemm.k = inputs();
        gemm.a = rows.inputs + (columns_.empty() ? first_input : 0);
        gemm.lda = rows.input_pixel;
        gemm.column = columns_.empty() ? rows.columns : columns_.data() + first_input;
        gemm.b = coded_.empty() ? weights_.data() + piece.weights : nullptr;
        gemm.c = rows.outputs + piece.begin;
        gemm.ldc = rows.output_pixel;
        gemm.epilogue = after_.from(piece.begin);
        coded_.empty() ? kernels_->gemm(gemm) : kernels_->gemm_of_codes(gemm, coded_.of(piece.weights));
    }
}

}  // namespace bmx
