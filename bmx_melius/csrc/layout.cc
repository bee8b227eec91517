#include "layout.h"

#include <algorithm>
#include <numeric>

namespace bmx {
namespace {

constexpr size_t kAlignment = 64;

struct Piece {
    size_t bytes = 0;
    size_t first = SIZE_MAX, last = 0;  // the steps that need it
    size_t offset = 0;

    bool meets(const Piece& other) const { return first <= other.last && other.first <= last; }
    void needed_by(size_t step) {
        first = std::min(first, step);
        last = std::max(last, step);
    }
};

// Large ones first, each as low as possible. Returns where the memory ends.
size_t place(std::vector<Piece>& pieces) {
    std::vector<size_t> order(pieces.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return pieces[a].bytes > pieces[b].bytes; });
    std::vector<const Piece*> placed;  // by offset
    size_t end = 0;
    for (size_t number : order) {
        Piece& piece = pieces[number];
        if (!piece.bytes || piece.first > piece.last) {
            continue;  // nothing, or needed by no step
        }
        for (const Piece* other : placed) {
            if (!piece.meets(*other)) {
                continue;
            }
            if (piece.offset + piece.bytes <= other->offset) {
                break;
            }
            piece.offset = std::max(piece.offset, other->offset + other->bytes);
        }
        end = std::max(end, piece.offset + piece.bytes);
        placed.insert(std::upper_bound(placed.begin(), placed.end(), &piece,
                                       [](const Piece* a, const Piece* b) { return a->offset < b->offset; }),
                      &piece);
    }
    return end;
}

}  // namespace

Layout make_layout(const Plan& plan, std::vector<Value> values, int threads) {
    std::vector<Piece> pieces(plan.buffers.size() + plan.steps.size());
    for (size_t i = 0; i < plan.buffers.size(); i++) {
        const Buffer& buffer = plan.buffers[i];
        const Value& map = values[buffer.value];
        pieces[i].bytes = round_up(map.height * map.width * buffer.channels * size_of(buffer.number), kAlignment);
    }
    for (size_t step = 0; step < plan.steps.size(); step++) {
        for (int buffer : plan.steps[step]->buffers) {
            pieces[buffer].needed_by(step);
        }
        Piece& scratch = pieces[plan.buffers.size() + step];
        scratch.bytes = round_up(plan.steps[step]->scratch_bytes(values, threads), kAlignment);
        scratch.needed_by(step);
    }
    Layout layout;
    layout.bytes = place(pieces) + round_up(kReadAhead, kAlignment);
    for (size_t i = 0; i < pieces.size(); i++) {
        (i < plan.buffers.size() ? layout.buffers : layout.scratches).push_back(pieces[i].offset);
    }
    layout.values = std::move(values);
    return layout;
}

}  // namespace bmx
