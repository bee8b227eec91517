#include "plan/fusion.h"

#include "plan/patterns.h"

namespace bmx {
namespace {

class Fuser {
  public:
    Fuser(const Program& program, const Facts& facts, const Views& views)
        : program_(program),
          facts_(facts),
          views_(views),
          done_(program.operations().size()),
          read_(program.value_of(0)),
          patterns_(program, facts, views, fusion_.producer) {
        fusion_.producer.assign(program.values().size(), -1);
        fusion_.packer.assign(program.values().size(), -1);
    }

    Fusion run() {
        for (int i = 0; i < static_cast<int>(done_.size()); i++) {
            const bool stem = starts_stem(i);
            if (!done_[i]) {
                fuse_from(i);
            }
            for (int input : operation(i).inputs) {
                if (is_input(input) && !stem) {
                    read_[input] = true;
                }
            }
        }
        for (int output : program_.outputs()) {
            add({StepKind::output, {}, {read(output)}});
        }
        return std::move(fusion_);
    }

  private:
    const Operation& operation(int i) const { return program_.operations()[i]; }
    int value_of(int operation) const { return program_.value_of(operation); }
    bool is_input(int value) const { return value < program_.value_of(0); }

    // --- groups

    // Adds a group and returns its number.
    int add(Group group) {
        const int number = static_cast<int>(fusion_.groups.size());
        if (group.result >= 0) {
            fusion_.producer[group.result] = number;
        }
        for (int i : group.operations) {
            done_[i] = true;
        }
        fusion_.groups.push_back(std::move(group));
        return number;
    }

    // Returns the operand for `value`. Groups for program inputs are added when they are first read.
    Operand read(int value) {
        for (const Part& part : views_.parts[value]) {
            if (is_input(part.value) && fusion_.producer[part.value] < 0) {
                const bool packs = facts_.only_compared[part.value];
                add({packs ? StepKind::input_pack : StepKind::input, {}, {}, part.value});
            }
        }
        return {value, views_.parts[value]};
    }

    // Returns the operand for the packed bits of `value`. If the step that computes a part cannot pack it, adds one
    // that can.
    Operand read_packed(int value) {
        Operand operand = read(value);
        for (const Part& part : operand.parts) {
            int& packer = fusion_.packer[part.value];
            if (packer < 0) {
                const int producer = fusion_.producer[part.value];
                packer =
                    packs(fusion_.groups[producer].kind) ? producer : add({StepKind::pack, {}, {read(part.value)}});
            }
        }
        return operand;
    }

    static bool packs(StepKind kind) {
        return kind == StepKind::input_pack || kind == StepKind::stem || kind == StepKind::conv ||
               kind == StepKind::binary_conv || kind == StepKind::elementwise || kind == StepKind::int8;
    }

    // --- operations

    void fuse_from(int i) {
        if (is_view(program_, i)) {
            if (views_.copied[i]) {
                copy(i);
            }
            return;
        }
        switch (operation(i).op) {
            case Op::conv:
            case Op::level_conv:
                starts_stem(i) ? fuse_stem(i) : fuse_chain(i);
                break;
            case Op::rescale:
                if (!fuse_int8(i) && !patterns_.is_postponed(i)) {
                    fuse_elementwise(i);
                }
                break;
            case Op::int8_conv:
            case Op::level_int8_conv:
            case Op::multi_threshold:
                fuse_int8(i) || (add_single(i), true);
                break;
            case Op::affine:
                if (fuse_int8(i)) {
                    break;
                }
                [[fallthrough]];
            case Op::relu:
                starts_elementwise(i) ? fuse_elementwise(i) : fuse_chain(i);
                break;
            case Op::max_pool:
            case Op::global_avg_pool:
            case Op::shuffle:
                fuse_chain(i);
                break;
            case Op::channel_mean:
                fuse_elementwise(i);
                break;
            case Op::binary_conv:
                fuse_binary_conv(i);
                break;
            case Op::threshold:
                if (facts_.packed_by[value_of(i)] < 0) {
                    add_single(i);
                }
                break;
            default:
                if (row_of(operation(i).op).form != ElementwiseForm::none) {
                    fuse_elementwise(i);
                } else {
                    add_single(i);
                }
        }
    }

    DataType type_of(int i) const { return facts_.ranges[value_of(i)].type(); }

    void add_single(int i) {
        Group group = {StepKind::single, {i}, {}, value_of(i), type_of(i)};
        for (int input : operation(i).inputs) {
            group.reads.push_back(read(input));
        }
        add(std::move(group));
    }

    void copy(int i) {
        for (int input : operation(i).inputs) {
            read(input);
        }
        const Operand scattered = {value_of(i), viewed_parts(program_, views_, i)};
        add({StepKind::copy, {i}, {scattered}, value_of(i), type_of(i)});
    }

    // --- stem

    // A stem depends on the order of the operations, not on what is fused with what: the export to C decides alike
    // (deployment/c_export/facts.py), because the order of additions differs.
    bool starts_stem(int i) const {
        const int x = operation(i).inputs[0];
        return is_input(x) && !read_[x] && patterns_.is_for_stem(i);
    }

    bool is_faster_in_pixels(int i) const { return operation(i).attributes.taps() == 1 || is_depthwise(program_, i); }

    void fuse_stem(int i) {
        std::vector<int> operations;
        int next = i;
        for (int layers = 0; next >= 0; layers++) {
            const bool continues = layers < kMaxStemLayers && patterns_.is_for_stem(next);
            if (!continues || (layers > 0 && is_faster_in_pixels(next))) {
                break;
            }
            operations.push_back(next);
            patterns_.append_post_ops(operations);
            next = facts_.only_consumer(value_of(operations.back()));
        }
        if (next >= 0 && operation(next).op == Op::max_pool) {
            operations.push_back(next);
        }
        const int result = value_of(operations.back());
        add({StepKind::stem, std::move(operations), {}, result});
    }

    // --- chains: normalization, pooling, ReLU, followed by shuffle and convolution, or by the mean

    void fuse_chain(int i) {
        FusionPatterns::Prologue prologue = patterns_.find_prologue(i);
        std::vector<int>& operations = prologue.operations;
        const int next = prologue.next;
        const bool shuffles = next >= 0 && operation(next).op == Op::shuffle;
        const int conv = shuffles ? facts_.only_consumer(value_of(next)) : next;
        StepKind kind = StepKind::pool;
        DataType type = DataType::f32;
        if (conv >= 0 && patterns_.is_pointwise(conv)) {
            kind = StepKind::conv;
            if (shuffles) {
                operations.push_back(next);
            }
            operations.push_back(conv);
            patterns_.append_post_ops(operations);
        } else if (next >= 0 && operation(next).op == Op::global_avg_pool && !prologue.pools) {
            kind = StepKind::mean;
            operations.push_back(next);
        } else if (operations.empty() && row_of(operation(i).op).products == Products::floats) {
            kind = StepKind::conv;
            operations.push_back(i);
            patterns_.append_post_ops(operations);
        } else if (operations.empty()) {
            kind = StepKind::single;  // a shuffle
            type = type_of(i);
            operations.push_back(i);
        }
        const int result = value_of(operations.back());
        Operand operand = read(operation(i).inputs[0]);
        Group group = {kind, std::move(operations), {std::move(operand)}, result, type};
        if (kind == StepKind::conv) {
            take_elementwise(group);
        }
        add(std::move(group));
    }

    // --- 8-bit integers

    // Adds the group that begins with operation `i`, if 8-bit convolutions follow. If it only rescales one of the
    // user's maps, it reads that itself.
    bool fuse_int8(int i) {
        std::vector<int> operations = patterns_.int8_from(i);
        if (operations.empty()) {
            return false;
        }
        const int x = operation(i).inputs[0];
        bool reads_planes =
            is_input(x) && fusion_.producer[x] < 0 && (operation(i).op == Op::affine || operation(i).op == Op::rescale);
        for (size_t k = 0; !patterns_.is_int8_conv(operations[k]); k++) {
            reads_planes = reads_planes && operation(operations[k]).op != Op::max_pool;
        }
        const int result = value_of(operations.back());
        const bool pools = !patterns_.is_int8_conv(operations.back());
        const DataType type = pools ? DataType::i16 : type_of(operations.back());
        Group group = {StepKind::int8, std::move(operations), {}, result, type};
        if (!reads_planes) {
            group.reads.push_back(read(x));
        }
        take_elementwise(group);
        add(std::move(group));
        return true;
    }

    // --- elementwise operations

    bool starts_elementwise(int i) const {
        return patterns_.is_worth_a_step(patterns_.elementwise_from(i, operation(i).inputs[0]), false);
    }

    // Appends elementwise operations to a group whose result so far is `x`.
    void append_elementwise(const std::vector<int>& chain, int x, Group& group) {
        int rescaled = -1;  // the operand of the next addition, which is rescaled for that only
        for (int i : chain) {
            if (rescales_operand(operation(i), x)) {
                group.reads.push_back(read(operation(i).inputs[0]));
                rescaled = value_of(i);
                continue;
            }
            const int other = other_operand(operation(i), x);
            if (other >= 0 && other != rescaled) {
                group.reads.push_back(read(other));
            }
            x = value_of(i);
        }
        group.operations.insert(group.operations.end(), chain.begin(), chain.end());
        group.elementwise = chain.size();
        group.result = x;
        group.type = chain.empty() ? DataType::f32 : type_of(chain.back());
    }

    // Adds the group that begins with operation `i`, or with the rescaling of one of its operands.
    void fuse_elementwise(int i) {
        int first = i;
        for (int input : operation(i).inputs) {
            const int rescaling = patterns_.postponed(input);
            if (rescaling >= 0 && !done_[rescaling]) {
                first = rescaling;
            }
        }
        const int x = operation(first).inputs[0];
        Group group = {StepKind::elementwise, {}, {read(x)}, x};
        append_elementwise(patterns_.elementwise_from(first, x), x, group);
        const int next = group.operations.empty() ? i : facts_.only_consumer(group.result);
        if (next >= 0 && operation(next).op == Op::channel_mean && group.type == DataType::f32) {
            group.operations.push_back(next);
            group.result = value_of(next);
        }
        add(std::move(group));
    }

    // --- binary convolutions

    void fuse_binary_conv(int i) {
        const int bits = operation(i).inputs[0], threshold = facts_.packed_by[bits];
        Group group = {StepKind::binary_conv, {}, {}, value_of(i), type_of(i)};
        group.reads.push_back(read_packed(threshold < 0 ? bits : operation(threshold).inputs[0]));
        if (threshold >= 0) {
            group.operations.push_back(threshold);
        }
        group.operations.push_back(i);
        take_addition(i, group);
        if (group.result == value_of(i)) {
            take_elementwise(group);
        }
        add(std::move(group));
    }

    // Fuses the elementwise operations that follow a convolution.
    void take_elementwise(Group& group) {
        const int x = group.result, next = facts_.only_consumer(x);
        if (next < 0) {
            return;
        }
        const std::vector<int> chain = patterns_.elementwise_from(next, x);
        if (!chain.empty() && patterns_.is_worth_a_step(chain, true) && can_store(group, type_of(chain.back()))) {
            group.sums = group.type;
            append_elementwise(chain, x, group);
        }
    }

    // Returns whether a convolution can store its sums in a map of this type, or elsewhere before they are changed.
    bool can_store(const Group& group, DataType type) const {
        switch (group.kind) {
            case StepKind::binary_conv:
                return true;
            case StepKind::int8:
                return type == group.type || (type == DataType::f32 && patterns_.is_int8_conv(group.operations.back()));
            default:
                return type == DataType::f32;
        }
    }

    // Fuses an addition into binary convolution `i` if its other operand is already computed, as a map in the form of
    // the result.
    void take_addition(int i, Group& group) {
        const int add = facts_.only_consumer(value_of(i));
        if (add < 0 || operation(add).op != Op::add) {
            return;
        }
        const std::vector<int>& inputs = operation(add).inputs;
        const int other = inputs[0] == value_of(i) ? inputs[1] : inputs[0];
        const Parts& parts = views_.parts[other];
        if (parts.size() != 1 || parts[0].channels != program_.values()[parts[0].value].channels ||
            !(is_input(parts[0].value) || fusion_.producer[parts[0].value] >= 0)) {
            return;
        }
        const int producer = fusion_.producer[parts[0].value];
        const DataType type = producer < 0 ? DataType::f32 : fusion_.groups[producer].type;
        if (type == DataType::i16 && facts_.ranges[value_of(add)].type() != DataType::i16) {
            return;
        }
        // Padding with 0 corrects sums after the addition, which must therefore be exact.
        const Attributes& a = operation(i).attributes;
        if (a.pad_value == 0 && a.padded() && !facts_.ranges[other].integers) {
            return;
        }
        group.operations.push_back(add);
        group.reads.push_back(read(other));
        group.result = value_of(add);
        group.type = type;
    }

    const Program& program_;
    const Facts& facts_;
    const Views& views_;
    std::vector<bool> done_;  // by operation: whether it is part of a group
    std::vector<bool> read_;  // by input of the program: whether an operation so far, other than stems, reads it
    Fusion fusion_;
    const FusionPatterns patterns_;
};

}  // namespace

Fusion fuse(const Program& program, const Facts& facts, const Views& views) {
    return Fuser(program, facts, views).run();
}

}  // namespace bmx
