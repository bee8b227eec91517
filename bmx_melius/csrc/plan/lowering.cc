#include "plan/lowering.h"

#include "plan/arrays.h"
#include "steps/binary_step.h"
#include "steps/conv_step.h"
#include "steps/depthwise_step.h"
#include "steps/elementwise.h"
#include "steps/map_steps.h"
#include "steps/statistics_steps.h"
#include "steps/stem_step.h"
#include "steps/upsample_step.h"

namespace bmx {
namespace {

constexpr int64_t kFewPixels = 128;  // pixels of a map at conversion
constexpr int kFewFilters = 16;      // of a group
constexpr int64_t kFewRows = 8;      // likewise, for matrix products with one row per pixel

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

class Lowering {
  public:
    Lowering(const Program& program, const int32_t* words, const InstructionSet& instruction_set, const Fusion& fusion,
             const Placement& placement)
        : program_(program),
          arrays_(program, words),
          kernels_(instruction_set),
          fusion_(fusion),
          placement_(placement) {}

    std::vector<std::unique_ptr<Step>> run() {
        for (size_t number = 0; number < fusion_.groups.size(); number++) {
            steps_.push_back(step_of(fusion_.groups[number], placement_.packed[number]));
            steps_.back()->operations = fusion_.groups[number].operations;
        }
        return std::move(steps_);
    }

  private:
    using Made = std::unique_ptr<Step>;

    const Operation& operation(int i) const { return program_.operations()[i]; }
    const Value& value(int number) const { return program_.values()[number]; }
    const Value& result_of(int operation) const { return value(program_.value_of(operation)); }
    int channels_into(int i) const { return static_cast<int>(value(operation(i).inputs[0]).channels); }

    Source source(const Group& group, int read = 0) const { return placement_.source(group.reads[read]); }

    // Returns the slab for the map that a group computes, a whole buffer.
    Slab output(const Group& group) const { return whole(placement_.buffer_of[group.result]); }
    Slab whole(int buffer) const { return {buffer, 0, placement_.buffers[buffer].channels}; }

    // --- steps

    Made step_of(const Group& group, const std::vector<PackedSlab>& packed) {
        switch (group.kind) {
            case StepKind::input:
                return std::make_unique<InputStep>(kernels_.floats, group.result, output(group));
            case StepKind::input_pack:
                return std::make_unique<InputPackStep>(kernels_.binary, group.result, output(group).buffer);
            case StepKind::stem:
                return stem(group);
            case StepKind::conv:
                return conv(group);
            case StepKind::pool: {
                Before before = before_of(group);
                return std::make_unique<PoolStep>(kernels_.floats, source(group), before.window,
                                                  std::move(before.normalization), group.result, output(group));
            }
            case StepKind::mean:
                return std::make_unique<GlobalPoolStep>(kernels_.floats, source(group),
                                                        std::move(before_of(group).normalization), output(group));
            case StepKind::average_pool:
                return std::make_unique<AveragePoolStep>(source(group), operation(group.operations[0]).attributes,
                                                         group.result, output(group));
            case StepKind::global_max:
                return std::make_unique<GlobalMaxStep>(source(group), output(group));
            case StepKind::normalize: {
                const Operation& normalize = operation(group.operations[0]);
                return std::make_unique<NormalizeStep>(source(group), normalize.attributes,
                                                       arrays_.vector(normalize.first, 1)[0], output(group));
            }
            case StepKind::upsample:
                return std::make_unique<UpsampleStep>(source(group), operation(group.operations[0]).attributes,
                                                      group.result, output(group));
            case StepKind::shuffle:
                return std::make_unique<ShuffleStep>(source(group), operation(group.operations[0]).attributes.groups,
                                                     output(group));
            case StepKind::flatten:
                return std::make_unique<FlattenStep>(source(group), output(group));
            case StepKind::add:
                return std::make_unique<AddStep>(std::vector<Source>{source(group, 0), source(group, 1)},
                                                 output(group));
            case StepKind::threshold:
                return threshold(group);
            case StepKind::expand:
                return std::make_unique<ExpandStep>(source(group), operation(group.operations[0]).attributes.low,
                                                    output(group));
            case StepKind::elementwise:
                return elementwise(group);
            case StepKind::copy:
                return std::make_unique<CopyStep>(std::vector<Source>{source(group)}, output(group));
            case StepKind::pack:
                return std::make_unique<PackStep>(kernels_.binary, source(group).slabs[0].buffer);
            case StepKind::binary_conv:
                return binary_conv(group, packed);
            case StepKind::output:
                break;
        }
        return std::make_unique<OutputStep>(kernels_.floats, source(group), outputs_++);
    }

    Made threshold(const Group& group) const {
        const int i = group.operations[0], channels = channels_into(i);
        const uint32_t* flips = arrays_.bits(operation(i).second);
        return std::make_unique<ThresholdStep>(source(group), arrays_.vector(operation(i).first, channels),
                                               std::vector<uint32_t>(flips, flips + (channels + 31) / 32),
                                               output(group));
    }

    // --- elementwise operations

    // Returns the chain of the elementwise operations of a group.
    ElementwiseChain chain_of(const Group& group) const {
        std::vector<ElementwiseStage> stages;
        size_t read = 1;  // reads[0] is the first operand of the group
        const size_t first = first_elementwise(group);
        for (size_t k = first; k < first + group.elementwise; k++) {
            const int i = group.operations[k];
            ElementwiseStage stage = stage_of(i);
            if (stage.what == ElementwiseStage::with_value) {
                stage.operand = source(group, static_cast<int>(read++));
            }
            stages.push_back(std::move(stage));
        }
        return {kernels_.floats, std::move(stages)};
    }

    // Returns the position of the first elementwise operation among those of a group.
    size_t first_elementwise(const Group& group) const {
        const bool mean = operation(group.operations.back()).op == Op::channel_mean;
        return group.operations.size() - group.elementwise - (mean ? 1 : 0);
    }

    ElementwiseStage stage_of(int i) const {
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

    Made elementwise(const Group& group) const {
        const bool mean = operation(group.operations.back()).op == Op::channel_mean;
        return std::make_unique<ElementwiseStep>(kernels_.floats, kernels_.binary, source(group), chain_of(group), mean,
                                                 output(group));
    }

    // --- operations fused with convolutions and means

    // Bias, affine and ReLU after a convolution.
    struct After {
        std::vector<float> scale, shift;
        bool relu = false;
    };

    After bias_of(int conv) const {
        const Attributes& a = operation(conv).attributes;
        if (!a.has_bias) {
            return {};
        }
        return {std::vector<float>(a.out_channels, 1.0f), arrays_.vector(operation(conv).second, a.out_channels)};
    }

    void append(int i, After& after) const {
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

    // Returns what follows a convolution, from operation `next` of its group up to the elementwise operations.
    Normalization normalization_after(const Group& group, size_t next) const {
        After after = bias_of(group.operations[next - 1]);
        for (; next < first_elementwise(group); next++) {
            append(group.operations[next], after);
        }
        return {Constants<float>(after.scale), Constants<float>(after.shift), after.relu};
    }

    // Normalization, pooling and ReLU before a convolution or a mean, or without either.
    struct Before {
        Normalization normalization;
        PoolWindow window;
        size_t count = 0;  // number of the group's operations consumed
    };

    Before before_of(const Group& group) const {
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

    // --- stem

    Made stem(const Group& group) const {
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
            After after = bias_of(conv);
            int last = conv;
            for (; next < group.operations.size() && is_after(group.operations[next]); next++) {
                last = group.operations[next];
                append(last, after);
            }
            spec.layers.push_back({operation(conv).attributes, channels_into(conv), arrays_.conv_weights(conv),
                                   std::move(after.scale), std::move(after.shift), after.relu,
                                   program_.value_of(last)});
        }
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<StemStep>(spec);
    }

    bool is_after(int i) const { return operation(i).op == Op::affine || operation(i).op == Op::relu; }

    // --- convolution

    Made conv(const Group& group) const {
        if (is_depthwise(program_, group.operations[0])) {
            return depthwise(group);
        }
        Before before = before_of(group);
        ConvSpec spec;
        size_t next = before.count;
        if (operation(group.operations[next]).op == Op::shuffle) {
            spec.shuffle_groups = operation(group.operations[next++]).attributes.groups;
        }
        const int i = group.operations[next++];
        const Attributes& a = operation(i).attributes;
        spec.kernels = result_of(i).height * result_of(i).width <= kFewRows ? kernels_.floats : kernels_.products;
        spec.packing = kernels_.binary;
        spec.attributes = a;
        spec.source = source(group);
        spec.source_is_plain = before.count == 0 && spec.source.slabs.size() == 1 &&
                               placement_.buffers[spec.source.slabs[0].buffer].number == Number::f32;
        const bool in_place = spec.source_is_plain && a.stride_h == 1 && a.stride_w == 1;
        spec.has_pooling = a.taps() == 1 && !a.padded() && !in_place;
        spec.window = before.window;
        spec.window.stride_h *= a.stride_h;
        spec.window.stride_w *= a.stride_w;
        spec.before = std::move(before.normalization);
        spec.weights = arrays_.conv_weights(i);
        spec.after = normalization_after(group, next);
        spec.chain = chain_of(group);
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<ConvStep>(std::move(spec));
    }

    Made depthwise(const Group& group) const {
        const int i = group.operations[0];
        DepthwiseSpec spec;
        spec.kernels = kernels_.floats;
        spec.packing = kernels_.binary;
        spec.attributes = operation(i).attributes;
        spec.source = source(group);
        spec.weights = arrays_.conv_weights(i);
        spec.after = normalization_after(group, 1);
        spec.chain = chain_of(group);
        spec.result = group.result;
        spec.output = output(group);
        return std::make_unique<DepthwiseStep>(std::move(spec));
    }

    // --- binary convolution

    // Thresholds with which the channels are compared.
    struct Thresholds {
        std::vector<float> values;
        std::vector<uint32_t> flips;
    };

    Thresholds thresholds_of(const Group& group) const {
        const int i = group.operations[0];
        const size_t channels = channels_into(i), flip_words = (channels + 31) / 32;
        if (operation(i).op != Op::threshold) {  // bits as the integers 0 and 1
            return {std::vector<float>(channels, 1.0f), std::vector<uint32_t>(flip_words)};
        }
        const uint32_t* flips = arrays_.bits(operation(i).second);
        return {arrays_.vector(operation(i).first, channels), std::vector<uint32_t>(flips, flips + flip_words)};
    }

    Made binary_conv(const Group& group, const std::vector<PackedSlab>& packed) {
        const Thresholds thresholds = thresholds_of(group);
        const bool compares = operation(group.operations[0]).op == Op::threshold;
        const int i = group.operations[compares ? 1 : 0];
        BinaryStepSpec spec;
        spec.attributes = operation(i).attributes;
        const bool few = result_of(i).height * result_of(i).width <= kFewPixels;
        spec.kernels = few ? kernels_.binary_small : kernels_.binary;
        if (kernels_.binary_narrow && spec.attributes.out_channels / spec.attributes.groups <= kFewFilters) {
            spec.kernels = kernels_.binary_narrow;
        }
        const std::vector<uint32_t> repeated = arrays_.repeated_weights(i);
        spec.weights = repeated.empty() ? arrays_.bits(operation(i).first) : repeated.data();
        spec.input = operation(i).inputs[0];
        spec.channels = channels_into(i);
        spec.result = group.result;
        spec.output = output(group);
        spec.sums = group.sums;
        spec.floats = kernels_.floats;
        if (group.reads.size() > 1 && !group.elementwise) {
            spec.addend = source(group, 1).slabs[0].buffer;
        }
        std::vector<BinaryStep::Segment> segments;
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
        steps_[packed.packer]->packer()->add(packing, placement_.buffers[slab.buffer].number, packed.bits);
    }

    const Program& program_;
    const Arrays arrays_;
    const InstructionSet& kernels_;
    const Fusion& fusion_;
    const Placement& placement_;
    std::vector<Made> steps_;
    int outputs_ = 0;
};

}  // namespace

std::vector<std::unique_ptr<Step>> make_steps(const Program& program, const int32_t* words,
                                              const InstructionSet& instruction_set, const Fusion& fusion,
                                              const Placement& placement) {
    return Lowering(program, words, instruction_set, fusion, placement).run();
}

}  // namespace bmx
