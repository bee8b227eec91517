#include "plan/facts.h"

#include <algorithm>
#include <iterator>

namespace bmx {
namespace {

Range range_of(const Program& program, const Operation& operation, const std::vector<Range>& ranges) {
    const Attributes& a = operation.attributes;
    Range range = ranges[operation.inputs[0]];
    switch (row_of(operation.op).range) {
        case RangeRule::bits:
            return {true, double(a.low), 1};
        case RangeRule::sums: {
            const int64_t n = a.taps() * (program.values()[operation.inputs[0]].channels / a.groups);
            const bool halves = a.offset && a.pad_value == 0 && a.padded();
            return {!halves, a.offset ? 0 : -double(n), double(n)};
        }
        case RangeRule::limits:
            return {true, double(a.result_min), double(a.result_max)};
        case RangeRule::counts:
            return {true, 0, double(a.thresholds)};
        case RangeRule::total:
            for (size_t i = 1; i < operation.inputs.size(); i++) {
                const Range& y = ranges[operation.inputs[i]];
                range = {range.integers && y.integers, range.low + y.low, range.high + y.high};
            }
            return range;
        case RangeRule::merged:
            for (int input : operation.inputs) {
                const Range& y = ranges[input];
                range = {range.integers && y.integers, std::min(range.low, y.low), std::max(range.high, y.high)};
            }
            return range;
        case RangeRule::none:
            break;
    }
    return {};  // floats
}

bool takes_packed(const Operation& operation) { return row_of(operation.op).products == Products::binary; }

// Returns for each value whether only binary convolutions read it, directly or through renaming flattens.
std::vector<bool> find_only_packed(const Program& program) {
    std::vector<bool> only_packed(program.values().size(), true);
    for (int i = static_cast<int>(program.operations().size()) - 1; i >= 0; i--) {
        const Operation& operation = program.operations()[i];
        const bool packs = takes_packed(operation) || (is_renaming(program, i) && only_packed[program.value_of(i)]);
        for (int input : operation.inputs) {
            only_packed[input] = only_packed[input] && packs;
        }
    }
    return only_packed;
}

}  // namespace

DataType Range::type() const {
    return integers && low >= -kMaxInt16 && high <= kMaxInt16 ? DataType::i16 : DataType::f32;
}

int Facts::only_consumer(int value) const {
    return consumers[value].size() == 1 && !outputs[value] ? consumers[value][0] : -1;
}

Facts find_facts(const Program& program) {
    const size_t values = program.values().size();
    Facts facts;
    facts.ranges.resize(values);
    facts.consumers.resize(values);
    facts.outputs.resize(values);
    facts.packed_by.assign(values, -1);
    facts.binary_readers.resize(values);
    for (int output : program.outputs()) {
        facts.outputs[output]++;
    }
    const std::vector<bool> only_packed = find_only_packed(program);
    for (int i = 0; i < static_cast<int>(program.operations().size()); i++) {
        const Operation& operation = program.operations()[i];
        const int x = operation.inputs[0], result = program.value_of(i);
        for (int input : operation.inputs) {
            facts.consumers[input].push_back(i);
        }
        facts.ranges[result] = range_of(program, operation, facts.ranges);
        if (row_of(operation.op).result == Result::bits && only_packed[result]) {
            facts.packed_by[result] = i;
        } else if (is_renaming(program, i)) {
            facts.packed_by[result] = facts.packed_by[x];
        } else if (takes_packed(operation)) {
            const int threshold = facts.packed_by[x];
            facts.binary_readers[threshold < 0 ? x : program.operations()[threshold].inputs[0]].push_back(i);
        }
    }
    for (size_t value = 0; value < values; value++) {
        const auto packs = [&](int i) { return facts.packed_by[program.value_of(i)] == i; };
        const std::vector<int>& consumers = facts.consumers[value];
        facts.only_compared.push_back(!facts.outputs[value] && std::all_of(consumers.begin(), consumers.end(), packs));
    }
    return facts;
}

bool is_renaming(const Program& program, int operation) {
    const Operation& o = program.operations()[operation];
    const Value& x = program.values()[o.inputs[0]];
    return row_of(o.op).view == ViewKind::shape && x.height * x.width == 1;
}

bool is_epilogue(Op op) {
    return std::find(std::begin(kEpilogueOperations), std::end(kEpilogueOperations), op) !=
           std::end(kEpilogueOperations);
}

bool is_depthwise(const Program& program, int operation) {
    const Operation& o = program.operations()[operation];
    const Attributes& a = o.attributes;
    return row_of(o.op).products == Products::floats && a.taps() > 1 && a.groups > 1 && a.groups == a.out_channels &&
           a.groups == program.values()[o.inputs[0]].channels;
}

}  // namespace bmx
