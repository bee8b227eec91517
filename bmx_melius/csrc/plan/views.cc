#include "plan/views.h"

#include <algorithm>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

constexpr size_t kMaxParts = 256;            // per view
constexpr int64_t kMaxTotalParts = 1 << 16;  // sum over all views and their readers
constexpr int kWordChannels = 32;

Parts sliced(const Parts& parts, int begin, int end) {
    Parts slice;
    int channel = 0;
    for (const Part& part : parts) {
        const int first = std::max(begin - channel, 0), last = std::min(end - channel, part.channels);
        if (first < last) {
            slice.push_back({part.value, part.begin + first, last - first});
        }
        channel += part.channels;
    }
    return slice;
}

void append_joined(Parts& parts, const Parts& more) {
    for (const Part& part : more) {
        const bool follows = !parts.empty() && parts.back().value == part.value &&
                             parts.back().begin + parts.back().channels == part.begin;
        if (follows) {
            parts.back().channels += part.channels;
        } else {
            parts.push_back(part);
        }
    }
}

// Returns an upper bound of the number of steps and views that read a value.
int64_t reads(const Facts& facts, int value) {
    return int64_t(facts.outputs[value]) + static_cast<int64_t>(facts.consumers[value].size()) +
           static_cast<int64_t>(facts.binary_readers[value].size());
}

bool can_be_cut(const Program& program, const Facts& facts, int value, const Parts& parts) {
    const int channels = static_cast<int>(program.values()[value].channels);
    const std::vector<int>& readers = facts.binary_readers[value];
    return std::all_of(readers.begin(), readers.end(), [&](int i) {
        return !cut_at_words(parts, channels, program.operations()[i].attributes.groups).empty();
    });
}

}  // namespace

bool is_view(const Program& program, int operation) {
    return row_of(program.operations()[operation].op).view == ViewKind::channels || is_renaming(program, operation);
}

Parts viewed_parts(const Program& program, const Views& views, int operation) {
    const Operation& o = program.operations()[operation];
    if (row_of(o.op).shape == ShapeRule::cut_shape) {
        return sliced(views.parts[o.inputs[0]], o.attributes.begin, o.attributes.end);
    }
    Parts parts;
    for (int input : o.inputs) {
        append_joined(parts, views.parts[input]);
    }
    return parts;
}

Views find_views(const Program& program, const Facts& facts) {
    const auto whole = [&](int value) { return Parts{{value, 0, static_cast<int>(program.values()[value].channels)}}; };
    Views views;
    views.copied.resize(program.operations().size());
    for (int input = 0; input < program.value_of(0); input++) {
        views.parts.push_back(whole(input));
    }
    int64_t left = kMaxTotalParts;
    for (int i = 0; i < static_cast<int>(program.operations().size()); i++) {
        const int result = program.value_of(i);
        if (facts.packed_by[result] >= 0) {
            views.parts.emplace_back();
            continue;
        }
        if (!is_view(program, i)) {
            views.parts.push_back(whole(result));
            continue;
        }
        Parts parts = viewed_parts(program, views, i);
        if (parts.size() > 1) {
            const int64_t cost = static_cast<int64_t>(parts.size()) * (1 + reads(facts, result));
            views.copied[i] = parts.size() > kMaxParts || cost > left || !can_be_cut(program, facts, result, parts);
            left -= views.copied[i] ? 0 : cost;
        }
        views.parts.push_back(views.copied[i] ? whole(result) : std::move(parts));
    }
    return views;
}

std::vector<PackedPart> cut_at_words(const Parts& parts, int channels, int groups) {
    const int group_channels = channels / groups, group_words = ceil_div(group_channels, kWordChannels);
    std::vector<PackedPart> pieces;
    int channel = 0;
    for (const Part& part : parts) {
        for (int begin = 0; begin < part.channels;) {
            const int in_group = channel % group_channels;
            const int count = std::min(part.channels - begin, group_channels - in_group);
            if (in_group % kWordChannels || (count % kWordChannels && in_group + count != group_channels)) {
                return {};
            }
            const int word = channel / group_channels * group_words + in_group / kWordChannels;
            pieces.push_back({{part.value, part.begin + begin, count}, channel, word});
            begin += count;
            channel += count;
        }
    }
    return pieces;
}

}  // namespace bmx
