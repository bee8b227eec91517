#include "plan/fused_operations.h"

namespace bmx {
namespace {

// Returns how an elementwise operation combines its operands.
Combination combination_of(Op op) {
    switch (op) {
        case Op::add:
        case Op::shift_map:
            return Combination::add;
        case Op::maximum:
            return Combination::maximum;
        default:
            return Combination::multiply;
    }
}

}  // namespace

Before FusedOperations::before_of(const Group& group) const {
    Before before;
    for (int i : group.operations) {
        const Attributes& a = operation(i).attributes;
        if (operation(i).op == Op::affine) {
            before.normalization.scale = Constants<float>(arrays_.vector(operation(i).first, channels_into(i)));
            before.normalization.shift = Constants<float>(arrays_.vector(operation(i).second, channels_into(i)));
        } else if (operation(i).op == Op::max_pool) {
            before.window = {a.kernel_h, a.kernel_w, a.stride_h, a.stride_w, a.pad_top, a.pad_left};
        } else if (operation(i).op == Op::relu) {
            before.normalization.relu = true;
        } else {
            break;
        }
        before.count++;
    }
    return before;
}

After FusedOperations::bias_of(int conv) const {
    const Attributes& a = operation(conv).attributes;
    if (!a.has_bias) {
        return {};
    }
    return {std::vector<float>(a.out_channels, 1.0f), arrays_.vector(operation(conv).second, a.out_channels)};
}

void FusedOperations::append(int i, After& after) const {
    if (operation(i).op == Op::relu) {
        after.relu = true;
        return;
    }
    const int channels = channels_into(i);
    after.scale = arrays_.vector(operation(i).first, channels);
    std::vector<float> shift = arrays_.vector(operation(i).second, channels);
    for (size_t c = 0; c < after.shift.size(); c++) {
        shift[c] += after.shift[c] * after.scale[c];
    }
    after.shift = std::move(shift);
}

Normalization FusedOperations::normalization_after(const Group& group, size_t next) const {
    After after = bias_of(group.operations[next - 1]);
    for (; next < first_elementwise(group); next++) {
        append(group.operations[next], after);
    }
    return {Constants<float>(after.scale), Constants<float>(after.shift), after.relu};
}

size_t FusedOperations::first_elementwise(const Group& group) const {
    const bool mean = operation(group.operations.back()).op == Op::channel_mean;
    return group.operations.size() - group.elementwise - (mean ? 1 : 0);
}

ElementwiseStage FusedOperations::stage_of(int i) const {
    ElementwiseStage stage;
    stage.what = ElementwiseStage::transform;
    switch (operation(i).op) {
        case Op::affine:
            stage.kind = Elementwise::affine;
            stage.a = arrays_.channel_numbers(i, operation(i).first);
            stage.b = arrays_.channel_numbers(i, operation(i).second);
            break;
        case Op::prelu:
            stage.kind = Elementwise::prelu;
            stage.a = arrays_.channel_numbers(i, operation(i).first);
            break;
        case Op::elu:
            stage.kind = Elementwise::elu;
            stage.a = arrays_.channel_numbers(i, operation(i).first);
            break;
        case Op::gelu:
            stage.kind = Elementwise::gelu;
            break;
        case Op::clip:
            stage.kind = Elementwise::clip;
            stage.a = arrays_.channel_numbers(i, operation(i).first);
            stage.b = arrays_.channel_numbers(i, operation(i).second);
            break;
        case Op::relu:
            stage.kind = Elementwise::relu;
            break;
        case Op::abs:
            stage.kind = Elementwise::abs;
            break;
        case Op::sigmoid:
            stage.kind = Elementwise::sigmoid;
            break;
        case Op::add:
        case Op::multiply:
        case Op::maximum:
            stage.what = ElementwiseStage::with_value;
            stage.combination = combination_of(operation(i).op);
            break;
        default:
            stage.what = ElementwiseStage::with_constants;
            stage.combination = combination_of(operation(i).op);
            stage.constants = arrays_.map_constants(i);
    }
    return stage;
}

Thresholds FusedOperations::thresholds_of(int i) const {
    const size_t channels = channels_into(i), flip_words = (channels + 31) / 32;
    if (operation(i).op != Op::threshold) {  // bits as the integers 0 and 1
        return {std::vector<float>(channels, 1.0f), std::vector<uint32_t>(flip_words)};
    }
    const uint32_t* flips = arrays_.bits(operation(i).second);
    return {arrays_.vector(operation(i).first, channels), std::vector<uint32_t>(flips, flips + flip_words)};
}

}  // namespace bmx
