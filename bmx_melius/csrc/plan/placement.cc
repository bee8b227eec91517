#include "plan/placement.h"

#include <algorithm>

namespace bmx {
namespace {

class Placer {
  public:
    Placer(const Program& program, const Fusion& fusion)
        : program_(program),
          fusion_(fusion),
          last_reader_(program.values().size(), -1),
          packed_buffer_(fusion.groups.size(), -1) {
        placement_.buffer_of.assign(program.values().size(), -1);
        placement_.packed.resize(fusion.groups.size());
    }

    Placement run() {
        const int groups = static_cast<int>(fusion_.groups.size());
        for (int number = 0; number < groups; number++) {
            for_each_map(number, [&](int value) { last_reader_[value] = number; });
        }
        for (int number = 0; number < groups; number++) {
            place_group(number);
        }
        return std::move(placement_);
    }

  private:
    // Calls visit(value) for each map that a group reads.
    template <class Visit>
    void for_each_map(int number, const Visit& visit) const {
        const Group& group = fusion_.groups[number];
        for (size_t i = group.kind == StepKind::binary_conv ? 1 : 0; i < group.reads.size(); i++) {
            for (const Part& part : group.reads[i].parts) {
                visit(part.value);
            }
        }
    }

    void place_group(int number) {
        const Group& group = fusion_.groups[number];
        if (group.kind == StepKind::binary_conv) {
            place_packed(number);
        }
        for_each_map(number, [&](int value) { needs(placement_.buffer_of[value], number); });
        if (group.result < 0) {
            return;
        }
        int& buffer = placement_.buffer_of[group.result];
        const bool adds = group.kind == StepKind::binary_conv && group.reads.size() > 1 && !group.elementwise;
        const int addend = adds ? group.reads[1].parts[0].value : -1;
        if (addend >= 0 && last_reader_[addend] == number) {  // in place
            buffer = placement_.buffer_of[addend];
            placement_.buffers[buffer].value = group.result;
            return;
        }
        const int channels = static_cast<int>(program_.values()[group.result].channels);
        buffer = new_buffer({group.type, channels, group.result});
        if (group.kind != StepKind::input_pack) {
            needs(buffer, number);
        }
    }

    // Assigns the packed operands of a binary convolution to buffers of bits.
    void place_packed(int number) {
        const Group& group = fusion_.groups[number];
        const Operation& conv = program_.operations()[convolution_of(group)];
        const int channels = static_cast<int>(program_.values()[conv.inputs[0]].channels);
        for (const PackedPart& piece : cut_at_words(group.reads[0].parts, channels, conv.attributes.groups)) {
            const int packer = fusion_.packer[piece.part.value];
            int& buffer = packed_buffer_[packer];
            if (buffer < 0) {
                buffer = new_buffer({DataType::f32, 0, piece.part.value});
                needs(buffer, packer);
            }
            needs(buffer, number);
            Buffer& words = placement_.buffers[buffer];
            const Bits bits = {buffer, (piece.part.channels + 31) / 32, static_cast<size_t>(words.channels)};
            words.channels += bits.units;
            const Slab slab = {placement_.buffer_of[piece.part.value], piece.part.begin, piece.part.channels};
            placement_.packed[number].push_back({packer, slab, piece.channel, piece.unit, bits});
        }
    }

    int convolution_of(const Group& group) const {
        const bool compares = row_of(program_.operations()[group.operations[0]].op).result == Result::bits;
        return group.operations[compares ? 1 : 0];
    }

    int new_buffer(const Buffer& buffer) {
        placement_.buffers.push_back(buffer);
        placement_.live_ranges.push_back({1, 0});
        return static_cast<int>(placement_.buffers.size()) - 1;
    }

    void needs(int buffer, int group) {
        LiveRange& range = placement_.live_ranges[buffer];
        const bool is_first = range.first > range.last;
        range.first = is_first ? group : std::min(range.first, group);
        range.last = is_first ? group : std::max(range.last, group);
    }

    const Program& program_;
    const Fusion& fusion_;
    std::vector<int> last_reader_;    // by value: the last group that reads its map, or -1
    std::vector<int> packed_buffer_;  // by group: the buffer of the bits that it packs, or -1
    Placement placement_;
};

}  // namespace

Source Placement::source(const Operand& operand) const {
    Source source = {operand.value, {}};
    for (const Part& part : operand.parts) {
        source.slabs.push_back({buffer_of[part.value], part.begin, part.channels});
    }
    return source;
}

Placement place(const Program& program, const Fusion& fusion) { return Placer(program, fusion).run(); }

}  // namespace bmx
