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
        return form != ElementwiseForm::none;
    }
    return facts_.ranges[value_of(i)].type() == DataType::f32 &&
           (o.inputs[0] == x || program_.values()[x] == program_.values()[o.inputs[0]]) &&
           is_computed(other_operand(o, x));
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

int other_operand(const Operation& operation, int x) {
    const std::vector<int>& inputs = operation.inputs;
    return inputs.size() < 2 ? -1 : inputs[0] == x ? inputs[1] : inputs[0];
}

}  // namespace bmx
