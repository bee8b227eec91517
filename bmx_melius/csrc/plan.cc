#include "plan.h"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>

#include "binary_step.h"
#include "conv_step.h"
#include "map_steps.h"
#include "packer.h"
#include "stem_step.h"

namespace bmx {
namespace {

constexpr size_t kMostSlabs = 256;      // of a value; more are copied into one
constexpr int kMostStemInputs = 16;     // channels of a group, up to which planar kernels are the faster ones
constexpr size_t kMostStemLayers = 16;  // each asks for the rows of the one before: they take room on the stack
constexpr int64_t kFewPixels = 128;     // of a map at conversion
constexpr int64_t kFewRows = 8;         // likewise, where pixels are rows of a matrix
constexpr double kMostInInt16 = 32766;  // leaves a threshold that no value reaches

// What is known of the elements of a value.
struct Range {
    bool integers = false;
    double low = 0, high = 0;

    Number number() const {
        return integers && low >= -kMostInInt16 && high <= kMostInInt16 ? Number::i16 : Number::f32;
    }
};

float float_of_half(uint32_t half) {
    const uint32_t exponent = half >> 10 & 31, mantissa = half & 1023;
    float magnitude;
    if (exponent == 31) {
        magnitude = mantissa ? NAN : INFINITY;
    } else if (exponent == 0) {
        magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    } else {
        magnitude = std::ldexp(static_cast<float>(mantissa + 1024), static_cast<int>(exponent) - 25);
    }
    return half >> 15 ? -magnitude : magnitude;
}

class Planner {
  public:
    Planner(const Program& program, const int32_t* words, const InstructionSet& instruction_set)
        : program_(program), words_(words), kernels_(instruction_set) {
        const size_t values = program.values().size();
        consumers_.resize(values);
        is_output_.resize(values);
        slabs_.resize(values);
        done_.resize(program.operations().size());
        for (int output : program.outputs()) {
            is_output_[output] = true;
        }
        for (size_t i = 0; i < program.operations().size(); i++) {
            for (int input : program.operations()[i].inputs) {
                consumers_[input].push_back(static_cast<int>(i));
            }
        }
        find_ranges();
        look_back();
    }

    Plan make() {
        for (size_t i = 0; i < done_.size(); i++) {
            if (!done_[i]) {
                plan_operation(static_cast<int>(i));
            }
        }
        for (size_t i = 0; i < program_.outputs().size(); i++) {
            add_step<OutputStep>({}, kernels_.floats, source(program_.outputs()[i]), static_cast<int>(i));
        }
        return std::move(plan_);
    }

  private:
    // --- what is known before planning

    const Operation& operation(int i) const { return program_.operations()[i]; }
    int value_of(int operation) const { return program_.value_of(operation); }
    const Value& value(int number) const { return program_.values()[number]; }
    bool is_input(int number) const { return number < static_cast<int>(program_.inputs().size()); }

    // A flatten that moves nothing.
    bool is_renaming(int i) const {
        const Value& x = value(operation(i).inputs[0]);
        return operation(i).op == Op::flatten && x.height * x.width == 1;
    }

    // The operation that is the only one to look at a value, or -1.
    int only_consumer(int number) const {
        return consumers_[number].size() == 1 && !is_output_[number] ? consumers_[number][0] : -1;
    }

    // Whether nothing but packed bits of a value is needed.
    bool only_compared(int number) const {
        const auto packs = [&](int i) { return operation(i).op == Op::threshold && only_packed_[value_of(i)]; };
        return !is_output_[number] && std::all_of(consumers_[number].begin(), consumers_[number].end(), packs);
    }

    void find_ranges() {
        ranges_.resize(program_.values().size());
        for (size_t i = 0; i < program_.operations().size(); i++) {
            const Operation& operation = program_.operations()[i];
            const Attributes& a = operation.attributes;
            const Range& x = ranges_[operation.inputs[0]];
            Range& range = ranges_[value_of(static_cast<int>(i))];
            switch (operation.op) {
                case Op::threshold:
                    range = {true, 0, 1};
                    break;
                case Op::expand:
                    range = {true, double(a.low), 1};
                    break;
                case Op::binary_conv: {
                    const int64_t n = a.taps() * (value(operation.inputs[0]).channels / a.groups);
                    const bool halves = a.offset && a.pad_value == 0 && (a.pad_h || a.pad_w);
                    range = {!halves, a.offset ? 0 : -double(n), double(n)};
                    break;
                }
                case Op::add: {
                    const Range& y = ranges_[operation.inputs[1]];
                    range = {x.integers && y.integers, x.low + y.low, x.high + y.high};
                    break;
                }
                case Op::concat:
                    range = x;
                    for (int input : operation.inputs) {
                        const Range& y = ranges_[input];
                        range = {range.integers && y.integers, std::min(range.low, y.low),
                                 std::max(range.high, y.high)};
                    }
                    break;
                case Op::slice:
                case Op::shuffle:
                case Op::flatten:
                    range = x;
                    break;
                default:
                    break;  // floats
            }
        }
    }

    // What depends on the later operations of each value.
    void look_back() {
        only_packed_.assign(program_.values().size(), true);
        last_read_.assign(program_.values().size(), -1);
        for (int output : program_.outputs()) {
            last_read_[output] = INT_MAX;
        }
        for (int i = static_cast<int>(program_.operations().size()) - 1; i >= 0; i--) {
            const bool packs = operation(i).op == Op::binary_conv || (is_renaming(i) && only_packed_[value_of(i)]);
            for (int input : operation(i).inputs) {
                if (!packs) {
                    only_packed_[input] = false;
                }
                last_read_[input] = std::max(last_read_[input], read_by(i));
            }
        }
    }

    // The last operation that looks at memory that operation i reads.
    int read_by(int i) const {
        switch (operation(i).op) {
            case Op::concat:
            case Op::slice:
            case Op::flatten:
            case Op::threshold:
                return std::max(i, last_read_[value_of(i)]);
            default:
                return i;
        }
    }

    // --- arrays

    const uint32_t* bits(size_t position) const { return reinterpret_cast<const uint32_t*>(words_ + position); }

    std::vector<float> vector(size_t position, int64_t count) const {
        std::vector<float> numbers(count);
        std::memcpy(numbers.data(), words_ + position, sizeof(float) * count);
        return numbers;
    }

    std::vector<float> conv_weights(int i) const {
        const Attributes& a = operation(i).attributes;
        const int64_t count = a.out_channels * (value(operation(i).inputs[0]).channels / a.groups) * a.taps();
        if (!a.half) {
            return vector(operation(i).first, count);
        }
        std::vector<float> numbers(count);
        for (int64_t j = 0; j < count; j++) {
            numbers[j] = float_of_half(bits(operation(i).first)[j / 2] >> j % 2 * 16 & 0xffff);
        }
        return numbers;
    }

    // --- steps and buffers

    Slab new_buffer(int number, Number type) {
        const int channels = static_cast<int>(value(number).channels);
        plan_.buffers.push_back({type, channels, number});
        const Slab slab = {static_cast<int>(plan_.buffers.size()) - 1, 0, channels};
        slabs_[number] = {slab};
        return slab;
    }

    template <class Made, class... Arguments>
    void add_step(const std::vector<int>& operations, Arguments&&... arguments) {
        plan_.steps.push_back(std::make_unique<Made>(std::forward<Arguments>(arguments)...));
        Step& step = *plan_.steps.back();
        step.operations = operations;
        if (const Packer* packer = step.packer()) {
            packing_steps_.resize(plan_.buffers.size());
            packing_steps_[packer->buffer()] = &step;
        }
        for (int i : operations) {
            done_[i] = true;
        }
    }

    Source source(int number) {
        if (slabs_[number].empty()) {  // only inputs come into being when they are asked for
            const Slab slab = new_buffer(number, Number::f32);
            if (only_compared(number)) {
                add_step<InputPackStep>({}, kernels_.binary, number, slab.buffer);
            } else {
                add_step<InputStep>({}, kernels_.floats, number, slab);
            }
        }
        return {number, slabs_[number]};
    }

    // Gives a value slabs of others, adjacent ones as one.
    void set_slabs(int i, const std::vector<Slab>& slabs) {
        std::vector<Slab> joined;
        for (const Slab& slab : slabs) {
            if (!joined.empty() && joined.back().buffer == slab.buffer &&
                joined.back().begin + joined.back().channels == slab.begin) {
                joined.back().channels += slab.channels;
            } else {
                joined.push_back(slab);
            }
        }
        const int number = value_of(i);
        if (joined.size() > kMostSlabs) {
            add_step<CopyStep>({i}, std::vector<Source>{{number, joined}},
                               new_buffer(number, ranges_[number].number()));
        } else {
            slabs_[number] = joined;
        }
    }

    // --- operations

    void plan_operation(int i) {
        const Operation& o = operation(i);
        const int x = o.inputs[0], result = value_of(i);
        switch (o.op) {
            case Op::conv:
                if (is_input(x) && slabs_[x].empty() && is_for_stem(i)) {
                    plan_stem(i);
                } else {
                    plan_chain(i);
                }
                break;
            case Op::affine:
            case Op::relu:
            case Op::max_pool:
            case Op::global_avg_pool:
            case Op::shuffle:
                plan_chain(i);
                break;
            case Op::binary_conv:
                plan_binary_conv(i);
                break;
            case Op::threshold:
                if (!only_packed_[result]) {
                    const int64_t channels = value(x).channels, flip_words = (channels + 31) / 32;
                    add_step<ThresholdStep>({i}, source(x), vector(o.first, channels),
                                            std::vector<uint32_t>(bits(o.second), bits(o.second) + flip_words),
                                            new_buffer(result, Number::i16));
                }
                break;
            case Op::avg_pool: {
                const Source from = source(x);
                add_step<AveragePoolStep>({i}, from, o.attributes, result, new_buffer(result, Number::f32));
                break;
            }
            case Op::add: {
                const std::vector<Source> from = {source(x), source(o.inputs[1])};
                add_step<AddStep>({i}, from, new_buffer(result, ranges_[result].number()));
                break;
            }
            case Op::expand: {
                const Source from = source(x);
                add_step<ExpandStep>({i}, from, o.attributes.low, new_buffer(result, Number::i16));
                break;
            }
            case Op::flatten:
                if (!is_renaming(i)) {
                    const Source from = source(x);
                    add_step<FlattenStep>({i}, from, new_buffer(result, ranges_[result].number()));
                } else if (value(x).kind == Kind::real || !only_packed_[x]) {
                    slabs_[result] = source(x).slabs;
                }
                break;
            case Op::concat: {
                std::vector<Slab> slabs;
                for (int input : o.inputs) {
                    for (const Slab& slab : source(input).slabs) {
                        slabs.push_back(slab);
                    }
                }
                set_slabs(i, slabs);
                break;
            }
            case Op::slice: {
                std::vector<Slab> slabs;
                int begin = o.attributes.begin, left = o.attributes.end - o.attributes.begin;
                for (const Slab& slab : source(x).slabs) {
                    const int channels = std::min(slab.channels - begin, left);
                    if (channels > 0) {
                        slabs.push_back({slab.buffer, slab.begin + begin, channels});
                        left -= channels;
                    }
                    begin = std::max(begin - slab.channels, 0);
                }
                set_slabs(i, slabs);
                break;
            }
        }
    }

    // Affine and relu after a convolution.
    struct After {
        std::vector<float> scale, shift;
        bool relu = false;
    };

    // Takes up what follows convolution i as far as an epilogue can do it.
    After take_up_after(int i, std::vector<int>& operations) const {
        After after;
        const Attributes& a = operation(i).attributes;
        const int64_t channels = a.out_channels;
        if (a.has_bias) {
            after.scale.assign(channels, 1.0f);
            after.shift = vector(operation(i).second, channels);
        }
        bool affine = false;
        for (int next = only_consumer(value_of(i)); next >= 0 && !after.relu; next = only_consumer(value_of(next))) {
            const Operation& o = operation(next);
            if (o.op == Op::relu) {
                after.relu = true;
            } else if (o.op == Op::affine && !affine) {
                affine = true;
                after.scale = vector(o.first, channels);
                std::vector<float> shift = vector(o.second, channels);
                for (size_t c = 0; c < after.shift.size(); c++) {
                    shift[c] += after.shift[c] * after.scale[c];
                }
                after.shift = shift;
            } else {
                break;
            }
            operations.push_back(next);
        }
        return after;
    }

    // --- stem

    bool is_for_stem(int i) const {
        const Value& x = value(operation(i).inputs[0]);
        return operation(i).op == Op::conv && !x.flat && x.channels / operation(i).attributes.groups <= kMostStemInputs;
    }

    void plan_stem(int i) {
        StemSpec spec;
        spec.kernels = kernels_.floats;
        spec.packing = kernels_.binary;
        spec.input = operation(i).inputs[0];
        std::vector<int> operations;
        for (int conv = i; conv >= 0;) {
            operations.push_back(conv);
            StemLayer layer;
            layer.attributes = operation(conv).attributes;
            layer.in_channels = static_cast<int>(value(operation(conv).inputs[0]).channels);
            layer.weights = conv_weights(conv);
            After after = take_up_after(conv, operations);
            layer.scale = after.scale;
            layer.shift = after.shift;
            layer.relu = after.relu;
            layer.value = value_of(operations.back());
            spec.layers.push_back(layer);
            conv = only_consumer(layer.value);
            const bool is_full = spec.layers.size() == kMostStemLayers;
            if (conv >= 0 && (is_full || !is_for_stem(conv) || operation(conv).attributes.taps() == 1)) {
                if (operation(conv).op == Op::max_pool) {
                    spec.has_pool = true;
                    spec.pool = operation(conv).attributes;
                    operations.push_back(conv);
                }
                conv = -1;
            }
        }
        spec.result = value_of(operations.back());
        spec.output = new_buffer(spec.result, Number::f32);
        add_step<StemStep>(operations, spec);
    }

    // --- normalization, pooling, rectification; shuffle and convolution, or the mean

    static bool is_pointwise(const Operation& o) {
        const Attributes& a = o.attributes;
        return o.op == Op::conv && a.taps() == 1 && !a.pad_h && !a.pad_w;
    }

    // Normalization, pooling and rectification of a value, as far as a step can do them together.
    struct Before {
        std::vector<int> operations;
        Normalization normalization;
        PoolWindow window;
        bool pools = false;
        int next;  // the operation after them; -1: none, or several
    };

    Before take_up_before(int i) const {
        Before before;
        for (before.next = i; before.next >= 0; before.next = only_consumer(value_of(before.next))) {
            const Operation& o = operation(before.next);
            const Attributes& a = o.attributes;
            if (o.op == Op::affine && before.operations.empty()) {
                const int64_t channels = value(o.inputs[0]).channels;
                before.normalization.scale = Constants<float>(vector(o.first, channels));
                before.normalization.shift = Constants<float>(vector(o.second, channels));
            } else if (o.op == Op::max_pool && !before.pools) {
                before.pools = true;
                before.window = {a.kernel_h, a.kernel_w, a.stride_h, a.stride_w, a.pad_h, a.pad_w};
            } else if (o.op == Op::relu && !before.normalization.relu) {
                before.normalization.relu = true;
            } else {
                break;
            }
            before.operations.push_back(before.next);
        }
        return before;
    }

    void plan_chain(int i) {
        const int x = operation(i).inputs[0];
        Before before = take_up_before(i);
        const int next = before.next;
        const bool shuffles = next >= 0 && operation(next).op == Op::shuffle;
        const int conv = shuffles ? only_consumer(value_of(next)) : next;
        if (conv >= 0 && is_pointwise(operation(conv))) {
            plan_conv(conv, x, std::move(before), shuffles ? next : -1);
        } else if (next >= 0 && operation(next).op == Op::global_avg_pool && !before.pools) {
            plan_mean(x, std::move(before));
        } else if (!before.operations.empty()) {
            plan_pool(x, std::move(before));
        } else if (operation(i).op == Op::conv) {
            plan_conv(i, x, std::move(before), -1);
        } else {
            plan_shuffle(i, x);
        }
    }

    void plan_mean(int x, Before before) {
        const Source from = source(x);
        before.operations.push_back(before.next);
        const Slab output = new_buffer(value_of(before.next), Number::f32);
        add_step<GlobalPoolStep>(before.operations, kernels_.floats, from, std::move(before.normalization), output);
    }

    void plan_pool(int x, Before before) {
        const Source from = source(x);
        const int result = value_of(before.operations.back());
        const Slab output = new_buffer(result, Number::f32);
        add_step<PoolStep>(before.operations, kernels_.floats, from, before.window, std::move(before.normalization),
                           result, output);
    }

    void plan_shuffle(int i, int x) {
        const Source from = source(x);
        const int result = value_of(i);
        add_step<ShuffleStep>({i}, from, operation(i).attributes.groups, new_buffer(result, ranges_[result].number()));
    }

    // Convolution i of value x, after other operations and after a shuffle, or -1.
    void plan_conv(int i, int x, Before before, int shuffle) {
        ConvSpec spec;
        const Attributes& a = operation(i).attributes;
        const Value& map = value(value_of(i));
        spec.kernels = map.height * map.width <= kFewRows ? kernels_.floats_small : kernels_.floats;
        spec.packing = kernels_.binary;
        spec.attributes = a;
        spec.source = source(x);
        spec.source_is_plain = before.operations.empty() && spec.source.slabs.size() == 1 &&
                               plan_.buffers[spec.source.slabs[0].buffer].number == Number::f32;
        const bool in_place = spec.source_is_plain && a.stride_h == 1 && a.stride_w == 1;
        spec.has_pooling = is_pointwise(operation(i)) && !in_place;
        spec.window = before.window;
        spec.window.stride_h *= a.stride_h;
        spec.window.stride_w *= a.stride_w;
        spec.before = std::move(before.normalization);
        spec.weights = conv_weights(i);
        std::vector<int> operations = std::move(before.operations);
        if (shuffle >= 0) {
            spec.shuffle_groups = operation(shuffle).attributes.groups;
            operations.push_back(shuffle);
        }
        operations.push_back(i);
        After after = take_up_after(i, operations);
        spec.scale = after.scale;
        spec.shift = after.shift;
        spec.relu = after.relu;
        spec.result = value_of(operations.back());
        spec.output = new_buffer(spec.result, Number::f32);
        add_step<ConvStep>(operations, std::move(spec));
    }

    // --- binary convolution

    // A range of channels of a buffer that becomes whole units of a packed pixel.
    struct Piece {
        Slab slab;
        int channel, unit;  // of the pixel
    };

    // Cuts a value's channels at the borders of slabs and groups; nothing if a cut were not at a unit's border.
    static std::vector<Piece> cut_at_units(const Source& from, int channels, int groups) {
        constexpr int kUnit = 32;
        const int group_channels = channels / groups, group_units = (group_channels + kUnit - 1) / kUnit;
        std::vector<Piece> pieces;
        int channel = 0;
        for (const Slab& slab : from.slabs) {
            for (int begin = 0; begin < slab.channels;) {
                const int in_group = channel % group_channels;
                const int count = std::min(slab.channels - begin, group_channels - in_group);
                if (in_group % kUnit || (count % kUnit && in_group + count != group_channels)) {
                    return {};
                }
                pieces.push_back({{slab.buffer, slab.begin + begin, count},
                                  channel,
                                  channel / group_channels * group_units + in_group / kUnit});
                begin += count;
                channel += count;
            }
        }
        return pieces;
    }

    // Has the step that makes a buffer, or one after it, pack a range of its channels too.
    Bits pack(const Slab& slab, const float* thresholds, const uint32_t* flips, int channel) {
        Packing packing = {slab.begin, slab.channels, {}, {}};
        packing.thresholds.assign(thresholds, thresholds + slab.channels);
        packing.flips.resize((slab.channels + 31) / 32);
        for (int c = 0; c < slab.channels; c++) {
            packing.flips[c / 32] |= (flips[(channel + c) / 32] >> (channel + c) % 32 & 1) << c % 32;
        }

        packing_steps_.resize(plan_.buffers.size());
        if (!packing_steps_[slab.buffer]) {
            add_step<PackStep>({}, kernels_.binary, slab.buffer);
        }
        Step& step = *packing_steps_[slab.buffer];
        if (step.packer()->empty()) {
            step.packed = static_cast<int>(plan_.buffers.size());
            step.buffers.push_back(step.packed);
            plan_.buffers.push_back({Number::f32, 0, plan_.buffers[slab.buffer].value});
        }
        Buffer& words = plan_.buffers[step.packed];
        const Bits bits = {step.packed, static_cast<int>(packing.flips.size()), static_cast<size_t>(words.channels)};
        words.channels += bits.units;
        step.packer()->add(packing, plan_.buffers[slab.buffer].number, bits);
        return bits;
    }

    void plan_binary_conv(int i) {
        const Operation& o = operation(i);
        BinaryStepSpec spec;
        const Value& map = value(value_of(i));
        spec.kernels = map.height * map.width <= kFewPixels ? kernels_.binary_small : kernels_.binary;
        spec.attributes = o.attributes;
        spec.weights = bits(o.first);
        spec.input = o.inputs[0];
        spec.channels = static_cast<int>(value(spec.input).channels);
        std::vector<int> operations;

        int packed = o.inputs[0];  // the bits, before they are renamed
        while (!is_input(packed) && slabs_[packed].empty() && is_renaming(packed - value_of(0))) {
            packed = operation(packed - value_of(0)).inputs[0];
        }
        int compared = packed;
        std::vector<float> thresholds(spec.channels, 1.0f);  // of the integers 0 and 1
        const std::vector<uint32_t> no_flips((spec.channels + 31) / 32);
        const uint32_t* flips = no_flips.data();
        if (slabs_[packed].empty()) {
            const Operation& threshold = operation(packed - value_of(0));
            operations.push_back(packed - value_of(0));
            compared = threshold.inputs[0];
            thresholds = vector(threshold.first, spec.channels);
            flips = bits(threshold.second);
        }
        std::vector<Piece> pieces = cut_at_units(source(compared), spec.channels, o.attributes.groups);
        if (pieces.empty()) {
            const Source scattered = source(compared);
            add_step<CopyStep>({}, std::vector<Source>{scattered}, new_buffer(compared, ranges_[compared].number()));
            pieces = cut_at_units(source(compared), spec.channels, o.attributes.groups);
        }
        std::vector<BinaryStep::Segment> segments;
        for (const Piece& piece : pieces) {
            segments.push_back({pack(piece.slab, thresholds.data() + piece.channel, flips, piece.channel), piece.unit});
        }
        operations.push_back(i);
        const int result = value_of(i), add = only_consumer(result);
        if (add < 0 || operation(add).op != Op::add || !take_up_add(i, add, spec)) {
            spec.result = result;
            spec.output = new_buffer(result, ranges_[result].number());
        } else {
            operations.push_back(add);
        }
        add_step<BinaryStep>(operations, spec, segments);
    }

    // Makes an addition part of binary convolution i if its other value lies there in the form of the result.
    bool take_up_add(int i, int add, BinaryStepSpec& spec) {
        const std::vector<int>& inputs = operation(add).inputs;
        const int other = inputs[0] == value_of(i) ? inputs[1] : inputs[0], result = value_of(add);
        if (slabs_[other].size() != 1) {
            return false;
        }
        const Slab slab = slabs_[other][0];
        Buffer& buffer = plan_.buffers[slab.buffer];
        if (slab.channels != buffer.channels) {
            return false;
        }
        if (buffer.number == Number::i16 && ranges_[result].number() != Number::i16) {
            return false;
        }
        // Padding with 0 corrects sums that are there: they must not have been rounded.
        const Attributes& a = operation(i).attributes;
        if (a.pad_value == 0 && (a.pad_h || a.pad_w) && !ranges_[other].integers) {
            return false;
        }
        spec.result = result;
        spec.addend = slab.buffer;
        bool read_later = is_output_[other] || buffer.value != other;
        for (int consumer : consumers_[other]) {
            if (consumer != add && read_by(consumer) > i) {
                read_later = true;
            }
        }
        if (read_later) {
            spec.output = new_buffer(result, buffer.number);
        } else {  // in place
            buffer.value = result;
            slabs_[result] = {slab};
            spec.output = slab;
        }
        return true;
    }

    const Program& program_;
    const int32_t* words_;
    const InstructionSet& kernels_;
    Plan plan_;
    std::vector<std::vector<int>> consumers_;  // of each value: operations
    std::vector<bool> is_output_;
    std::vector<Range> ranges_;
    std::vector<bool> only_packed_;  // values of bits that only binary convolutions look at
    std::vector<int> last_read_;
    std::vector<std::vector<Slab>> slabs_;  // of each value that lies in memory
    std::vector<bool> done_;                // operations that are part of a step
    std::vector<Step*> packing_steps_;      // of each buffer: the one that packs it
};

}  // namespace

Plan make_plan(const Program& program, const int32_t* words, const InstructionSet& instruction_set) {
    return Planner(program, words, instruction_set).make();
}

}  // namespace bmx
