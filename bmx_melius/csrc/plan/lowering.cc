#include "plan/lowering.h"

#include <algorithm>

#include "plan/arrays.h"
#include "plan/fused_operations.h"
#include "plan/patterns.h"
#include "program/error.h"
#include "steps/binary_step.h"
#include "steps/conv_step.h"
#include "steps/depthwise_step.h"
#include "steps/elementwise.h"
#include "steps/int8_step.h"
#include "steps/map_steps.h"
#include "steps/stem_step.h"

namespace bmx {
namespace {

constexpr int kFewFilters = 16;  // of a group
// Matrices whose products of signs are faster in bits on AVX2: the inner size, and that times the columns.
constexpr int kMinSigns = 32, kMinSignMatrix = 2048;
constexpr int64_t kFewRows = 8;  // pixels of a map at conversion, for matrix products with one row per pixel

class Lowering {
  public:
    Lowering(const Program& program, const int32_t* words, const InstructionSet& instruction_set, const Facts& facts,
             const Fusion& fusion, const Placement& placement)
        : program_(program),
          facts_(facts),
          arrays_(program, words),
          fused_(program, arrays_),
          kernels_(instruction_set),
          fusion_(fusion),
          placement_(placement),
          signs_(program.values().size()) {
        for (size_t i = 0; i < program.operations().size(); i++) {
            const Operation& each = operation(static_cast<int>(i));
            const bool expands = each.op == Op::expand && each.attributes.low == -1;
            const bool selects = row_of(each.op).view == ViewKind::channels &&
                                 std::all_of(each.inputs.begin(), each.inputs.end(), [&](int x) { return signs_[x]; });
            signs_[program.value_of(static_cast<int>(i))] = expands || selects;
        }
    }

    std::vector<StepPtr> run() {
        for (size_t number = 0; number < fusion_.groups.size(); number++) {
            steps_.push_back(step_of(fusion_.groups[number], placement_.packed[number]));
            steps_.back()->operations = fusion_.groups[number].operations;
        }
        return std::move(steps_);
    }

  private:
    const Operation& operation(int i) const { return program_.operations()[i]; }
    const Value& value(int number) const { return program_.values()[number]; }
    const Value& result_of(int operation) const { return value(program_.value_of(operation)); }
    int channels_into(int i) const { return static_cast<int>(value(operation(i).inputs[0]).channels); }

    Source source(const Group& group, int read = 0) const { return placement_.source(group.reads[read]); }

    std::vector<Source> sources(const Group& group) const {
        std::vector<Source> found;
        for (size_t read = 0; read < group.reads.size(); read++) {
            found.push_back(source(group, static_cast<int>(read)));
        }
        return found;
    }

    // Returns the slab for the map that a group computes, a whole buffer.
    Slab output(const Group& group) const { return whole(placement_.buffer_of[group.result]); }
    Slab whole(int buffer) const { return {buffer, 0, placement_.buffers[buffer].channels}; }

    // --- steps

    StepPtr step_of(const Group& group, const std::vector<PackedSlab>& packed) {
        switch (group.kind) {
            case StepKind::input:
                return input_step(kernels_.floats, group.result, output(group));
            case StepKind::input_pack:
                return std::make_unique<InputPackStep>(kernels_.binary, group.result, output(group).buffer);
            case StepKind::stem:
                return stem(group);
            case StepKind::conv:
                return conv(group);
            case StepKind::pool: {
                Prologue prologue = fused_.prologue_of(group);
                return pool_step(kernels_.floats, source(group), prologue.window, std::move(prologue.normalization),
                                 group.result, output(group));
            }
            case StepKind::mean:
                return global_pool_step(kernels_.floats, source(group),
                                        std::move(fused_.prologue_of(group).normalization), output(group));
            case StepKind::single:
                return single(group);
            case StepKind::elementwise:
                return elementwise(group);
            case StepKind::copy:
                return copy_step(source(group), output(group));
            case StepKind::pack:
                return std::make_unique<PackStep>(kernels_.binary, source(group).slabs[0].buffer);
            case StepKind::binary_conv:
                return binary_conv(group, packed);
            case StepKind::int8:
                return int8(group);
            case StepKind::output:
                break;
        }
        return output_step(kernels_.floats, source(group), outputs_++);
    }

    // Returns the step of an operation that has its own.
    StepPtr single(const Group& group) const {
        const int i = group.operations[0];
        const Attributes& a = operation(i).attributes;
        switch (operation(i).op) {
            case Op::threshold: {
                Thresholds thresholds = fused_.thresholds_of(i);
                return threshold_step(source(group), std::move(thresholds.values), std::move(thresholds.flips),
                                      output(group));
            }
            case Op::expand:
                return expand_step(source(group), a.low, output(group));
            case Op::avg_pool:
                return average_pool_step(kernels_.floats, source(group), a, group.result, output(group));
            case Op::multi_threshold:
                return multi_threshold_step(kernels_.int8, source(group), counted_of(i), output(group));
            case Op::integer_mean:
            case Op::integer_avg_pool:
                return integer_mean_step(kernels_.int8, source(group), a, operation(i).op == Op::integer_mean,
                                         group.result, output(group));
            case Op::global_max_pool:
                return global_max_step(source(group), output(group));
            case Op::normalize:
                return normalize_step(source(group), a, arrays_.vector(operation(i).arrays[0], 1)[0], output(group));
            case Op::upsample:
                return upsample_step(source(group), a, group.result, output(group));
            case Op::transpose:
                return transpose_step(kernels_.floats, source(group), output(group));
            case Op::arrange:
                return arrange_step(source(group), output(group));
            case Op::gather:
                return gather_step(sources(group), a,
                                   arrays_.integers(operation(i).arrays[0], int64_t(a.height) * a.width),
                                   output(group));
            case Op::matmul:
            case Op::row_matmul: {
                const bool by_row = operation(i).op == Op::row_matmul;
                if (multiplies_signs(i)) {
                    return sign_product_step(sign_kernels(), source(group, 0), source(group, 1), a, by_row,
                                             output(group));
                }
                return matmul_step(kernels_.floats, source(group, 0), source(group, 1), a, by_row, output(group));
            }
            case Op::softmax:
                return softmax_step(kernels_.floats, source(group), a.groups, output(group));
            case Op::embedding:
                return embedding_step(source(group), arrays_.table(i), a.features, output(group));
            case Op::shuffle:
                return shuffle_step(source(group), a.groups, output(group));
            case Op::flatten:
                return flatten_step(source(group), output(group));
            default:
                throw Error(std::string(name_of(operation(i).op)) + " has no step in plan/lowering.cc");
        }
    }

    // Returns the kernels with which products of signs are computed; nullptr if there are none.
    const BinaryKernels* sign_kernels() const {
        const BinaryKernels* found = kernels_.binary_narrow ? kernels_.binary_narrow : kernels_.binary;
        return found->plane_units || found->count ? nullptr : found;
    }

    bool multiplies_signs(int i) const {
        const Attributes& a = operation(i).attributes;
        const int64_t inner = channels_into(i) / a.heads, columns = result_of(i).channels / a.heads;
        return sign_kernels() && signs_[operation(i).inputs[0]] && signs_[operation(i).inputs[1]] &&
               inner >= kMinSigns && inner * columns >= kMinSignMatrix;
    }

    // --- elementwise operations

    // Returns the chain of the elementwise operations of a group.
    ElementwiseChain chain_of(const Group& group) const {
        std::vector<ElementwiseStage> stages;
        const size_t first = fused_.first_elementwise(group), end = first + group.elementwise;
        const auto combines = [&](int i) { return row_of(operation(i).op).form == ElementwiseForm::values; };
        const auto chain = group.operations.begin() + static_cast<ptrdiff_t>(first);
        size_t read = group.reads.size() - std::count_if(chain, chain + group.elementwise, combines);
        int x = first > 0 ? program_.value_of(group.operations[first - 1]) : group.reads[0].value;
        for (size_t k = first; k < end; k++) {
            ElementwiseStage stage;
            if (rescales_operand(operation(group.operations[k]), x)) {
                stage.rescaling = short_rescaling_of(group.operations[k++]);
            }
            const int i = group.operations[k];
            stage.row = row_of(operation(i).op);
            if (operation(i).op == Op::rescale) {
                stage.rescaling = short_rescaling_of(i);
            } else if (stage.row.form == ElementwiseForm::values) {
                stage.operand = source(group, static_cast<int>(read++));
            } else {
                stage = fused_.stage_of(i);
            }
            stages.push_back(std::move(stage));
            x = program_.value_of(i);
        }
        return {kernels_.floats, kernels_.int8, group.type, std::move(stages)};
    }

    StepPtr elementwise(const Group& group) const {
        const bool mean = operation(group.operations.back()).op == Op::channel_mean;
        return std::make_unique<ElementwiseStep>(kernels_.floats, kernels_.binary, source(group), chain_of(group), mean,
                                                 output(group));
    }

    // --- stem

    StepPtr stem(const Group& group) const {
        StemSpec spec;
        spec.kernels = kernels_.products;
        spec.packing = kernels_.binary;
        spec.input = operation(group.operations[0]).inputs[0];
        for (size_t next = 0; next < group.operations.size();) {
            const int conv = group.operations[next++];
            if (operation(conv).op == Op::max_pool) {
                spec.has_pool = true;
                spec.pool = operation(conv).attributes;
                break;
            }
            PostOps post_ops = fused_.scale_and_bias_of(conv);
            int last = conv;
            for (; next < group.operations.size() && fused_.is_post_op(group.operations[next]); next++) {
                last = group.operations[next];
                fused_.append(last, post_ops);
            }
            spec.layers.push_back({operation(conv).attributes, channels_into(conv), arrays_.conv_weights(conv),
                                   std::move(post_ops.scale), std::move(post_ops.shift), post_ops.relu,
                                   program_.value_of(last)});
        }
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<StemStep>(spec);
    }

    // --- convolution

    StepPtr conv(const Group& group) const {
        if (is_depthwise(program_, group.operations[0])) {
            return depthwise(group);
        }
        Prologue prologue = fused_.prologue_of(group);
        ConvSpec spec;
        size_t next = prologue.count;
        if (operation(group.operations[next]).op == Op::shuffle) {
            spec.shuffle_groups = operation(group.operations[next++]).attributes.groups;
        }
        const int i = group.operations[next++];
        const Attributes& a = operation(i).attributes;
        spec.kernels = result_of(i).height * result_of(i).width <= kFewRows ? kernels_.floats : kernels_.products;
        spec.packing = kernels_.binary;
        spec.attributes = a;
        spec.source = source(group);
        spec.source_is_plain = prologue.count == 0 && spec.source.slabs.size() == 1 &&
                               placement_.buffers[spec.source.slabs[0].buffer].type == DataType::f32;
        const bool in_place = spec.source_is_plain && a.stride_h == 1 && a.stride_w == 1;
        spec.has_pooling = a.taps() == 1 && !a.padded() && !in_place;
        spec.window = prologue.window;
        spec.window.stride_h *= a.stride_h;
        spec.window.stride_w *= a.stride_w;
        spec.before = std::move(prologue.normalization);
        spec.weights = arrays_.conv_weights(i);
        spec.after = fused_.normalization_after(group, next);
        spec.chain = chain_of(group);
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<ConvStep>(std::move(spec));
    }

    StepPtr depthwise(const Group& group) const {
        const int i = group.operations[0];
        DepthwiseSpec spec;
        spec.kernels = kernels_.floats;
        spec.packing = kernels_.binary;
        spec.attributes = operation(i).attributes;
        spec.source = source(group);
        spec.weights = arrays_.conv_weights(i);
        spec.after = fused_.normalization_after(group, 1);
        spec.chain = chain_of(group);
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<DepthwiseStep>(std::move(spec));
    }

    // --- 8-bit integers

    // Returns the bounds of the numbers of a value, rounded.
    IntegerRange numbers_of(int value) const {
        const Range& range = facts_.ranges[value];
        if (!range.integers) {
            return kRoundedFloats;
        }
        const auto limited = [](double bound) {
            return static_cast<int64_t>(
                std::min(std::max(bound, double(kRoundedFloats.low)), double(kRoundedFloats.high)));
        };
        return {limited(range.low), limited(range.high)};
    }

    RescalingConstants rescaling_of(int i, IntegerRange numbers) const {
        const size_t* arrays = operation(i).arrays;
        const int channels = channels_into(i);
        return rescaling_constants(arrays_.integers(arrays[0], channels), arrays_.integers(arrays[1], channels),
                                   operation(i).attributes, {numbers});
    }

    ShortRescalingConstants short_rescaling_of(int i) const {
        const size_t* arrays = operation(i).arrays;
        const int channels = channels_into(i);
        return short_rescaling_constants(arrays_.integers(arrays[0], channels), arrays_.integers(arrays[1], channels),
                                         operation(i).attributes, numbers_of(operation(i).inputs[0]));
    }

    CountedThresholds counted_of(int i) const {
        const size_t* arrays = operation(i).arrays;
        const int channels = channels_into(i), count = operation(i).attributes.thresholds;
        CountedThresholds counted = {count, arrays_.vector(arrays[0], int64_t(count) * channels), {}};
        for (int c = 0; c < channels; c++) {
            counted.flips.push_back(arrays_.bits(arrays[1])[c / 32] >> c % 32 & 1);
        }
        return counted;
    }

    StepPtr int8(const Group& group) const {
        Int8Spec spec;
        spec.kernels = kernels_.int8;
        spec.packing = kernels_.binary;
        spec.source_value = operation(group.operations[0]).inputs[0];
        IntegerRange numbers = kRoundedFloats;
        if (group.reads.empty()) {
            spec.input = spec.source_value;
        } else {
            spec.source = source(group);
            numbers = numbers_of(spec.source_value);
        }
        size_t next = 0;
        const auto op = [&] { return operation(group.operations[next]).op; };
        if (op() == Op::affine) {
            const int i = group.operations[next++];
            spec.before.scale = arrays_.vector(operation(i).arrays[0], channels_into(i));
            spec.before.shift = arrays_.vector(operation(i).arrays[1], channels_into(i));
            numbers = kRoundedFloats;
        }
        if (op() == Op::multi_threshold) {
            spec.counted = counted_of(group.operations[next++]);
        } else if (op() == Op::rescale) {
            spec.rescaling = rescaling_of(group.operations[next++], numbers);
        } else {  // only rounds
            const int channels = spec.source.channels();
            Attributes whole;
            whole.shift = kOffsetShift;
            whole.result_max = kMaxByte;
            spec.rescaling = rescaling_constants(std::vector<int32_t>(channels, 1 << kOffsetShift),
                                                 std::vector<int32_t>(channels), whole, {numbers});
        }
        if (op() == Op::max_pool) {
            spec.pools_before = true;
            spec.pool_before = operation(group.operations[next++]).attributes;
        }
        if (op() == Op::shuffle) {
            spec.shuffle_groups = operation(group.operations[next++]).attributes.groups;
        }
        spec.first = operation(group.operations[next]).inputs[0];
        for (; next < group.operations.size() && row_of(op()).products == Products::int8; next++) {
            const int i = group.operations[next];
            const size_t* arrays = operation(i).arrays + (row_of(op()).weight_levels ? 2 : 1);  // after the weights
            const Attributes& a = operation(i).attributes;
            const int channels = channels_into(i);
            spec.layers.push_back({a, channels, arrays_.int8_weights(i), arrays_.integers(arrays[0], channels),
                                   arrays_.integers(arrays[1], a.out_channels),
                                   arrays_.integers(arrays[2], a.out_channels), program_.value_of(i)});
        }
        if (next < fused_.first_elementwise(group)) {
            spec.pools_after = true;
            spec.pool_after = operation(group.operations[next]).attributes;
        }
        spec.chain = chain_of(group);
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<Int8Step>(std::move(spec));
    }

    // --- binary convolution

    StepPtr binary_conv(const Group& group, const std::vector<PackedSlab>& packed) {
        const Thresholds thresholds = fused_.thresholds_of(group.operations[0]);
        const bool compares = operation(group.operations[0]).op == Op::threshold;
        const int i = group.operations[compares ? 1 : 0];
        BinaryStepSpec spec;
        spec.attributes = operation(i).attributes;
        spec.kernels = kernels_.binary_for(result_of(i).height * result_of(i).width);
        if (kernels_.binary_narrow && spec.attributes.out_channels / spec.attributes.groups <= kFewFilters) {
            spec.kernels = kernels_.binary_narrow;
        }
        const std::vector<uint32_t> repeated = arrays_.repeated_weights(i);
        spec.weights = repeated.empty() ? arrays_.bits(operation(i).arrays[0]) : repeated.data();
        spec.input = operation(i).inputs[0];
        spec.channels = channels_into(i);
        spec.result = group.result;
        spec.output = output(group);
        spec.sums = group.sums;
        if (group.reads.size() > 1 && !group.elementwise) {
            spec.addend = source(group, 1).slabs[0].buffer;
        }
        std::vector<PackedInput::Segment> segments;
        for (const PackedSlab& slab : packed) {
            have_packed(slab, thresholds);
            segments.push_back({slab.bits, slab.unit});
        }
        return std::make_unique<BinaryStep>(spec, segments, chain_of(group));
    }

    void have_packed(const PackedSlab& packed, const Thresholds& thresholds) {
        const Slab& slab = packed.slab;
        const float* values = thresholds.values.data() + packed.channel;
        Packing packing = {slab.begin, slab.channels, {values, values + slab.channels}, {}};
        packing.flips.resize(packed.bits.units);
        for (int c = 0; c < slab.channels; c++) {
            const int channel = packed.channel + c;
            packing.flips[c / 32] |= (thresholds.flips[channel / 32] >> channel % 32 & 1) << c % 32;
        }
        steps_[packed.packer]->packer()->add(packing, placement_.buffers[slab.buffer].type, packed.bits);
    }

    const Program& program_;
    const Facts& facts_;
    const Arrays arrays_;
    const FusedOperations fused_;
    const InstructionSet& kernels_;
    const Fusion& fusion_;
    const Placement& placement_;
    std::vector<bool> signs_;  // whether a value consists of signs, -1 and 1
    std::vector<StepPtr> steps_;
    int outputs_ = 0;
};

}  // namespace

std::vector<StepPtr> make_steps(const Program& program, const int32_t* words, const InstructionSet& instruction_set,
                                const Facts& facts, const Fusion& fusion, const Placement& placement) {
    return Lowering(program, words, instruction_set, facts, fusion, placement).run();
}

}  // namespace bmx
