#include "plan/patterns.h"

namespace bmx {
namespace {

constexpr size_t kMaxElementwise = 32;  // operations of a chain; the operations of a long one are visited many times

}  // namespace

bool FusionPatterns::is_for_stem(int i) const {
    const Value& x = program_.values()[operation(i).inputs[0]];
    return row_of(operation(i).op).products == Products::floats && !x.flat &&
           x.channels / operation(i).attributes.groups <= kMaxStemInputs;
}

void FusionPatterns::append_post_ops(std::vector<int>& operations) const {
    for (const Op op : kEpilogueOperations) {
        const int next = facts_.only_consumer(value_of(operations.back()));
        if (next >= 0 && operation(next).op == op) {
            operations.push_back(next);
        }
    }
}

FusionPatterns::Prologue FusionPatterns::find_prologue(int i) const {
    Prologue prologue;
    bool relu = false;
    for (prologue.next = i; prologue.next >= 0; prologue.next = facts_.only_consumer(value_of(prologue.next))) {
        const Op op = operation(prologue.next).op;
        if (op == Op::max_pool && !prologue.pools) {
            prologue.pools = true;
        } else if (op == Op::relu && !relu) {
            relu = true;
        } else if (op != Op::affine || !prologue.operations.empty()) {
            break;
        }
        prologue.operations.push_back(prologue.next);
    }
    return prologue;
}

bool FusionPatterns::is_pointwise(int i) const {
    const Attributes& a = operation(i).attributes;
    return row_of(operation(i).op).products == Products::floats && a.taps() == 1 && !a.padded();
}

bool FusionPatterns::is_elementwise(int i, int x) const {
    const Operation& o = operation(i);
    const ElementwiseForm form = row_of(o.op).form;
    if (form != ElementwiseForm::values) {
        return form != ElementwiseForm::none || (o.op == Op::rescale && int8_from(i).empty());
    }
    const int other = other_operand(o, x), rescaling = postponed(other);
    return (o.inputs[0] == x || program_.values()[x] == program_.values()[o.inputs[0]]) &&
           (is_computed(other) || (rescaling >= 0 && is_computed(operation(rescaling).inputs[0])));
}

bool FusionPatterns::is_postponed(int i) const {
    const int next = facts_.only_consumer(value_of(i));
    return operation(i).op == Op::rescale && is(next, Op::add) && type_of(next) == DataType::i16;
}

std::vector<int> FusionPatterns::int8_from(int i) const {
    std::vector<int> operations;
    int next = i;
    const auto take = [&] {
        operations.push_back(next);
        next = facts_.only_consumer(value_of(next));
    };
    const auto makes_bytes = [&] {
        return operation(next).attributes.result_min >= 0 && operation(next).attributes.result_max <= kMaxByte;
    };
    if (is(next, Op::affine)) {
        take();
        if (!is(next, Op::rescale)) {
            return {};
        }
    }
    if (is(next, Op::rescale) || is(next, Op::multi_threshold)) {
        if (is(next, Op::rescale) && !makes_bytes()) {
            return {};
        }
        take();
        if (is(next, Op::max_pool)) {
            take();
        }
        if (is(next, Op::shuffle)) {
            take();
        }
    }
    if (!is_int8_conv(next)) {
        return {};
    }
    while (is_int8_conv(next)) {
        const bool continues = makes_bytes();
        take();
        if (!continues) {
            break;
        }
    }
    if (is(next, Op::max_pool) && type_of(operations.back()) == DataType::i16) {
        take();
    }
    return operations;
}

bool FusionPatterns::is_computed(int value) const {
    for (const Part& part : views_.parts[value]) {
        if (!is_input(part.value) && producer_[part.value] < 0) {
            return false;
        }
    }
    return true;
}

std::vector<int> FusionPatterns::elementwise_from(int i, int x) const {
    std::vector<int> chain;
    for (; i >= 0 && chain.size() < kMaxElementwise && is_elementwise(i, x); i = facts_.only_consumer(x)) {
        if (!chain.empty() && type_of(i) != type_of(chain.back())) {
            break;
        }
        const int other = other_operand(operation(i), x);
        if (other >= 0 && !is_computed(other)) {
            chain.push_back(postponed(other));
        }
        chain.push_back(i);
        x = value_of(i);
    }
    return chain;
}

bool FusionPatterns::is_worth_a_step(const std::vector<int>& chain, bool after_convolution) const {
    for (int i : chain) {
        if (!is_epilogue(operation(i).op)) {
            return true;
        }
    }
    const int next = facts_.only_consumer(value_of(chain.back()));
    if (next >= 0 && operation(next).op == Op::channel_mean) {
        return true;
    }
    const bool absorbs = next >= 0 && (operation(next).op == Op::max_pool || operation(next).op == Op::shuffle ||
                                       operation(next).op == Op::global_avg_pool || is_pointwise(next));
    return after_convolution && !absorbs;
}

bool rescales_operand(const Operation& operation, int x) {
    return operation.op == Op::rescale && operation.inputs[0] != x;
}

int other_operand(const Operation& operation, int x) {
    const std::vector<int>& inputs = operation.inputs;
    return inputs.size() < 2 ? -1 : inputs[0] == x ? inputs[1] : inputs[0];
}

}  // namespace bmx
