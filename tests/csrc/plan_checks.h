// Invariants of the plan of any program.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <vector>

#include "plan/dead_groups.h"
#include "plan/layout.h"
#include "plan/lowering.h"
#include "plan/plan.h"

inline std::string case_name;  // shown in messages

#define CHECK(condition)                                                                                     \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            std::printf("%s:%d: %s: %s does not hold\n", __FILE__, __LINE__, case_name.c_str(), #condition); \
            std::exit(1);                                                                                    \
        }                                                                                                    \
    } while (false)

// Results of all passes.
struct Planned {
    explicit Planned(const std::vector<int32_t>& program_words)
        : words(program_words),
          program(words.data(), words.size()),
          facts(bmx::find_facts(program)),
          views(bmx::find_views(program, facts)),
          fusion(bmx::fuse(program, facts, views)),
          placement(bmx::place(program, fusion)) {}

    std::vector<int32_t> words;
    bmx::Program program;
    bmx::Facts facts;
    bmx::Views views;
    bmx::Fusion fusion;
    bmx::Placement placement;
};

inline bool is_packed_reading(const bmx::Group& group, size_t read) {
    return group.kind == bmx::StepKind::binary_conv && read == 0;
}

// Every operation is part of one group, except views that are not copied (none) and thresholds (each group that needs
// their bits).
inline void check_operations(const Planned& p) {
    std::vector<int> groups(p.program.operations().size());
    for (const bmx::Group& group : p.fusion.groups) {
        for (int i : group.operations) {
            groups[i]++;
        }
    }
    for (size_t i = 0; i < groups.size(); i++) {
        const int operation = static_cast<int>(i);
        if (bmx::is_view(p.program, operation)) {
            CHECK(groups[i] == (p.views.copied[i] ? 1 : 0));
        } else if (p.facts.packed_by[p.program.value_of(operation)] < 0) {
            CHECK(groups[i] == 1);
        }
    }
}

// Readings cover all channels of their values, in slabs within their buffers.
inline void check_slabs(const Planned& p) {
    for (const bmx::Group& group : p.fusion.groups) {
        for (const bmx::Operand& operand : group.reads) {
            const bmx::Source source = p.placement.source(operand);
            CHECK(source.channels() == p.program.values()[operand.value].channels);
            for (const bmx::Slab& slab : source.slabs) {
                const bmx::Buffer& buffer = p.placement.buffers[slab.buffer];
                CHECK(slab.begin >= 0 && slab.channels > 0 && slab.begin + slab.channels <= buffer.channels);
            }
        }
    }
}

// Simulates the groups in order, with the value that each buffer holds: each group must find its operands in the
// buffers given by the placement, within the live ranges of these.
inline void check_order(const Planned& p) {
    std::vector<int> held(p.placement.buffers.size(), -1);
    const auto is_live = [&](int buffer, int group) {
        return p.placement.live_ranges[buffer].first <= group && group <= p.placement.live_ranges[buffer].last;
    };
    for (int number = 0; number < static_cast<int>(p.fusion.groups.size()); number++) {
        const bmx::Group& group = p.fusion.groups[number];
        for (size_t read = 0; read < group.reads.size(); read++) {
            for (const bmx::Part& part : group.reads[read].parts) {
                const int buffer = p.placement.buffer_of[part.value];
                if (!is_packed_reading(group, read)) {
                    CHECK(held[buffer] == part.value && is_live(buffer, number));
                }
            }
        }
        int channels = 0;
        for (const bmx::PackedSlab& packed : p.placement.packed[number]) {
            const bmx::Buffer& words = p.placement.buffers[packed.bits.buffer];
            CHECK(packed.packer < number && is_live(packed.bits.buffer, packed.packer) &&
                  is_live(packed.bits.buffer, number));
            CHECK(static_cast<int>(packed.bits.first) + packed.bits.units <= words.channels);
            CHECK(packed.channel == channels);
            channels += packed.slab.channels;
        }
        if (group.kind == bmx::StepKind::binary_conv) {
            CHECK(channels == p.program.values()[group.reads[0].value].channels);
        }
        if (group.result >= 0) {
            const int buffer = p.placement.buffer_of[group.result];
            CHECK(p.placement.buffers[buffer].type == group.type);
            CHECK(p.placement.buffers[buffer].channels == p.program.values()[group.result].channels);
            CHECK(is_live(buffer, number) || group.kind == bmx::StepKind::input_pack);
            held[buffer] = group.result;
        }
    }
}

// There is a step for each group on which an output depends, and pieces of memory used at the same time do not overlap.
inline bmx::Layout check_layout(const Planned& p, int threads) {
    const bmx::Plan plan = bmx::make_plan(p.program, p.words.data(), bmx::instruction_sets().front());
    bmx::Fusion fusion = p.fusion;
    bmx::eliminate_dead_groups(fusion);
    CHECK(plan.steps.size() == fusion.groups.size());
    for (size_t i = 0; i < plan.steps.size(); i++) {
        CHECK(plan.steps[i]->operations == fusion.groups[i].operations);
    }
    const bmx::Layout layout = bmx::make_layout(plan, p.program.values(), threads);
    struct Place {
        size_t begin, end;
    };
    const auto later = [](const Place& a, const Place& b) { return a.begin < b.begin; };
    std::multiset<Place, decltype(later)> taken(later);
    std::vector<std::vector<int>> starts(plan.steps.size()), ends(plan.steps.size());
    const auto place_of = [&](int i) {
        const bmx::Value& map = p.program.values()[plan.buffers[i].value];
        const size_t bytes = map.height * map.width * plan.buffers[i].channels * bmx::size_of(plan.buffers[i].type);
        return Place{layout.buffers[i], layout.buffers[i] + bytes};
    };
    for (size_t i = 0; i < plan.buffers.size(); i++) {
        if (plan.live_ranges[i].first <= plan.live_ranges[i].last && place_of(i).begin < place_of(i).end) {
            starts[plan.live_ranges[i].first].push_back(static_cast<int>(i));
            ends[plan.live_ranges[i].last].push_back(static_cast<int>(i));
        }
    }
    const auto take = [&](const Place& place) {
        const auto next = taken.lower_bound(place);
        CHECK(next == taken.end() || place.end <= next->begin);
        CHECK(next == taken.begin() || std::prev(next)->end <= place.begin);
        CHECK(place.end + bmx::kReadAhead <= layout.bytes);  // kernels read ahead of the last map
        CHECK(place.begin % 64 == 0);                        // vectors, and cache lines of different threads
        return taken.insert(next, place);
    };
    for (size_t step = 0; step < plan.steps.size(); step++) {
        for (int buffer : starts[step]) {
            take(place_of(buffer));
        }
        const size_t scratch = plan.steps[step]->scratch_bytes(p.program.values(), threads);
        if (scratch) {
            taken.erase(take({layout.scratches[step], layout.scratches[step] + scratch}));
        }
        for (int buffer : ends[step]) {
            taken.erase(taken.find(place_of(buffer)));
        }
    }
    return layout;
}

inline bmx::Layout check_plan(const Planned& p) {
    check_operations(p);
    check_slabs(p);
    check_order(p);
    check_layout(p, 1);
    return check_layout(p, 3);
}
