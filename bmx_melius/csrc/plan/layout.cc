#include "plan/layout.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>

namespace bmx {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kMaxPlacedBySize = 4096;  // pieces; placing them by size takes quadratic time

struct Piece {
    uint64_t bytes;
    int first, last;  // the steps that use it
    uint64_t offset = 0;

    bool meets(const Piece& other) const { return first <= other.last && other.first <= last; }
};

// Places large pieces first, each at the lowest possible offset. Returns the size of the memory.
uint64_t place_by_size(std::vector<Piece*> pieces) {
    const auto larger = [](const Piece* a, const Piece* b) { return a->bytes > b->bytes; };
    std::stable_sort(pieces.begin(), pieces.end(), larger);
    std::vector<const Piece*> placed;  // by offset
    uint64_t end = 0;
    for (Piece* piece : pieces) {
        for (const Piece* other : placed) {
            if (!piece->meets(*other)) {
                continue;
            }
            if (piece->offset + piece->bytes <= other->offset) {
                break;
            }
            piece->offset = std::max(piece->offset, other->offset + other->bytes);
        }
        end = std::max(end, piece->offset + piece->bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), piece,
                                       [](const Piece* a, const Piece* b) { return a->offset < b->offset; }),
                      piece);
    }
    return end;
}

// The memory that is not used at a point in time.
class FreeMemory {
  public:
    uint64_t end() const { return end_; }

    // Allocates from the smallest sufficient gap, or at the end.
    uint64_t take(uint64_t bytes) {
        auto gap = by_size_.lower_bound({bytes, 0});
        if (gap == by_size_.end()) {
            const bool extends = !gaps_.empty() && gaps_.rbegin()->first + gaps_.rbegin()->second == end_;
            const uint64_t offset = extends ? gaps_.rbegin()->first : end_;
            if (extends) {
                remove(std::prev(gaps_.end()));
            }
            end_ = offset + bytes;
            return offset;
        }
        const auto [size, offset] = *gap;
        remove(gaps_.find(offset));
        if (size > bytes) {
            add(offset + bytes, size - bytes);
        }
        return offset;
    }

    void give_back(uint64_t offset, uint64_t bytes) {
        auto next = gaps_.lower_bound(offset);
        if (next != gaps_.end() && offset + bytes == next->first) {
            bytes += next->second;
            next = remove(next);
        }
        if (next != gaps_.begin() && std::prev(next)->first + std::prev(next)->second == offset) {
            const auto before = std::prev(next);
            offset = before->first;
            bytes += before->second;
            remove(before);
        }
        add(offset, bytes);
    }

  private:
    using Gaps = std::map<uint64_t, uint64_t>;  // offset -> size

    void add(uint64_t offset, uint64_t bytes) {
        gaps_[offset] = bytes;
        by_size_.insert({bytes, offset});
    }

    Gaps::iterator remove(Gaps::iterator gap) {
        by_size_.erase({gap->second, gap->first});
        return gaps_.erase(gap);
    }

    Gaps gaps_;
    std::set<std::pair<uint64_t, uint64_t>> by_size_;
    uint64_t end_ = 0;
};

// Places pieces in the order of the steps, in O(n log n) time. Returns the size of the memory.
uint64_t place_by_time(const std::vector<Piece*>& pieces) {
    std::vector<Piece*> starts = pieces, ends = pieces;
    std::sort(starts.begin(), starts.end(), [](const Piece* a, const Piece* b) { return a->first < b->first; });
    std::sort(ends.begin(), ends.end(), [](const Piece* a, const Piece* b) { return a->last < b->last; });
    FreeMemory memory;
    auto ended = ends.begin();
    for (Piece* piece : starts) {
        for (; (*ended)->last < piece->first; ++ended) {
            memory.give_back((*ended)->offset, (*ended)->bytes);
        }
        piece->offset = memory.take(piece->bytes);
    }
    return memory.end();
}

}  // namespace

Layout make_layout(const Plan& plan, std::vector<Value> values, int threads) {
    std::vector<Piece> pieces;
    for (size_t i = 0; i < plan.buffers.size(); i++) {
        const Buffer& buffer = plan.buffers[i];
        const Value& map = values[buffer.value];
        const size_t bytes = static_cast<size_t>(map.height * map.width * buffer.channels) * size_of(buffer.type);
        pieces.push_back({round_up(bytes, kAlignment), plan.live_ranges[i].first, plan.live_ranges[i].last});
    }
    for (size_t i = 0; i < plan.steps.size(); i++) {
        const int step = static_cast<int>(i);
        pieces.push_back({round_up(plan.steps[i]->scratch_bytes(values, threads), kAlignment), step, step});
    }
    std::vector<Piece*> needed;
    for (Piece& piece : pieces) {
        if (piece.bytes && piece.first <= piece.last) {
            needed.push_back(&piece);
        }
    }
    Layout layout;
    layout.bytes = needed.size() <= kMaxPlacedBySize ? place_by_size(needed) : place_by_time(needed);
    layout.bytes += round_up(kReadAhead, kAlignment);
    for (size_t i = 0; i < pieces.size(); i++) {
        (i < plan.buffers.size() ? layout.buffers : layout.scratches).push_back(static_cast<size_t>(pieces[i].offset));
    }
    layout.values = std::move(values);
    return layout;
}

}  // namespace bmx
