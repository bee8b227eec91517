#include "plan/fused_operations.h"

namespace bmx {
Prologue FusedOperations::prologue_of(const Group& group) const {
    Prologue prologue;
    for (int i : group.operations) {
        const Attributes& a = operation(i).attributes;
        if (operation(i).op == Op::affine) {
            prologue.normalization.scale = Constants<float>(arrays_.vector(operation(i).arrays[0], channels_into(i)));
            prologue.normalization.shift = Constants<float>(arrays_.vector(operation(i).arrays[1], channels_into(i)));
        } else if (operation(i).op == Op::max_pool) {
            prologue.window = {a.kernel_h, a.kernel_w, a.stride_h, a.stride_w, a.pad_top, a.pad_left, true};
        } else if (operation(i).op == Op::relu) {
            prologue.normalization.relu = true;
        } else {
            break;
        }
        prologue.count++;
    }
    return prologue;
}

PostOps FusedOperations::scale_and_bias_of(int conv) const {
    const Attributes& a = operation(conv).attributes;
    const size_t* arrays = operation(conv).arrays;
    if (row_of(operation(conv).op).weight_levels) {
        return {arrays_.vector(arrays[2], a.out_channels),
                a.has_bias ? arrays_.vector(arrays[3], a.out_channels) : std::vector<float>(a.out_channels)};
    }
    if (!a.has_bias) {
        return {};
    }
    return {std::vector<float>(a.out_channels, 1.0f), arrays_.vector(arrays[1], a.out_channels)};
}

void FusedOperations::append(int i, PostOps& post_ops) const {
    if (operation(i).op == Op::relu) {
        post_ops.relu = true;
        return;
    }
    const int channels = channels_into(i);
    std::vector<float> scale = arrays_.vector(operation(i).arrays[0], channels);
    std::vector<float> shift = arrays_.vector(operation(i).arrays[1], channels);
    for (size_t c = 0; c < post_ops.shift.size(); c++) {
        shift[c] += post_ops.shift[c] * scale[c];
        scale[c] *= post_ops.scale[c];
    }
    post_ops.scale = std::move(scale);
    post_ops.shift = std::move(shift);
}

Normalization FusedOperations::normalization_after(const Group& group, size_t next) const {
    PostOps post_ops = scale_and_bias_of(group.operations[next - 1]);
    for (; next < first_elementwise(group); next++) {
        append(group.operations[next], post_ops);
    }
    return {Constants<float>(post_ops.scale), Constants<float>(post_ops.shift), post_ops.relu};
}

size_t FusedOperations::first_elementwise(const Group& group) const {
    const bool mean = operation(group.operations.back()).op == Op::channel_mean;
    return group.operations.size() - group.elementwise - (mean ? 1 : 0);
}

ElementwiseStage FusedOperations::stage_of(int i) const {
    const Operation& o = operation(i);
    const auto numbers = [&](size_t position) {
        return position ? arrays_.channel_numbers(i, position) : Constants<float>();
    };
    switch (row_of(o.op).form) {
        case ElementwiseForm::channels:
            return {row_of(o.op), numbers(o.arrays[0]), numbers(o.arrays[1])};
        case ElementwiseForm::positions:
            return {row_of(o.op), {}, {}, {-1, {}}, arrays_.map_constants(i)};
        default:
            return {row_of(o.op), {}, {}};
    }
}

Thresholds FusedOperations::thresholds_of(int i) const {
    const size_t channels = channels_into(i), flip_words = (channels + 31) / 32;
    if (operation(i).op != Op::threshold) {  // bits as the integers 0 and 1
        return {std::vector<float>(channels, 1.0f), std::vector<uint32_t>(flip_words)};
    }
    const uint32_t* flips = arrays_.bits(operation(i).arrays[1]);
    return {arrays_.vector(operation(i).arrays[0], channels), std::vector<uint32_t>(flips, flips + flip_words)};
}

}  // namespace bmx
