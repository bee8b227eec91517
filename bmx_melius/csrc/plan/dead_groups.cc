#include "plan/dead_groups.h"

#include <utility>

namespace bmx {
namespace {

// Returns for each group whether an output depends on it. Groups are in topological order.
std::vector<bool> find_read(const Fusion& fusion) {
    std::vector<bool> read(fusion.groups.size());
    const auto mark = [&](int group) {
        if (group >= 0) {
            read[group] = true;
        }
    };
    for (size_t number = fusion.groups.size(); number-- > 0;) {
        const Group& group = fusion.groups[number];
        read[number] = read[number] || group.kind == StepKind::output;
        if (!read[number]) {
            continue;
        }
        for (const Operand& operand : group.reads) {
            const bool packed = group.kind == StepKind::binary_conv && &operand == &group.reads[0];
            for (const Part& part : operand.parts) {
                mark(packed ? fusion.packer[part.value] : fusion.producer[part.value]);
            }
        }
    }
    return read;
}

}  // namespace

void eliminate_dead_groups(Fusion& fusion) {
    const std::vector<bool> read = find_read(fusion);
    std::vector<int> numbers(fusion.groups.size(), -1);  // the new number of each group
    std::vector<Group> groups;
    for (size_t number = 0; number < read.size(); number++) {
        if (read[number]) {
            numbers[number] = static_cast<int>(groups.size());
            groups.push_back(std::move(fusion.groups[number]));
        }
    }
    fusion.groups = std::move(groups);
    for (std::vector<int>* by_value : {&fusion.producer, &fusion.packer}) {
        for (int& group : *by_value) {
            group = group < 0 ? -1 : numbers[group];
        }
    }
}

}  // namespace bmx
