#include "steps/packed_input.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

constexpr int kUnit = 32;  // channels of a unit

}  // namespace

PackedInput::PackedInput(const BinaryKernels& kernels, const BinaryConv& conv, const Attributes& attributes,
                         std::vector<Segment> segments)
    : kernels_(kernels), conv_(conv), attributes_(attributes) {
    const int plane_units = kernels.plane_units;
    planes_ = plane_units ? conv.groups * ceil_div(conv.group_units(), plane_units) : 1;
    pixel_bytes_ = (plane_units ? plane_units : conv.units()) * kernels.unit_bytes;
    pairs_ = plane_units && conv.group_units() % plane_units && conv.kernel_h > 1;
    order_units(segments);
    for (const Segment& segment : segments) {
        divide(segment);
    }
    make_padding(attributes.pad_value == 1);
}

// Moves segments with an odd number of units to the end, so that the others begin with a plane.
void PackedInput::order_units(std::vector<Segment>& segments) {
    if (!kernels_.plane_units || conv_.groups > 1 || conv_.in_channels % kUnit) {
        return;
    }
    std::stable_partition(segments.begin(), segments.end(),
                          [&](const Segment& segment) { return segment.bits.units % kernels_.plane_units == 0; });
    for (Segment& segment : segments) {
        const int begin = segment.unit;
        segment.unit = static_cast<int>(units_.size());
        for (int i = 0; i < segment.bits.units; i++) {
            units_.push_back(begin + i);
        }
    }
    if (std::is_sorted(units_.begin(), units_.end())) {
        units_.clear();
    }
}

std::vector<uint32_t> PackedInput::reordered(const uint32_t* weights) const {
    std::vector<uint32_t> words;
    if (!units_.empty()) {
        const int pixels = conv_.out_channels * conv_.kernel_h * conv_.kernel_w;
        for (int pixel = 0; pixel < pixels; pixel++, weights += units_.size()) {
            for (int unit : units_) {
                words.push_back(weights[unit]);
            }
        }
    }
    return words;
}

PackedInput::Place PackedInput::place_of(int unit) const {
    const int plane_units = kernels_.plane_units;
    if (!plane_units) {
        return {0, 0, unit * kernels_.unit_bytes, conv_.units() - unit, false};
    }
    const int group_units = conv_.group_units(), group = unit / group_units, in_group = unit % group_units;
    const int plane = group * ceil_div(group_units, plane_units) + in_group / plane_units;
    const int in_plane = in_group % plane_units;
    return {group, plane, in_plane * kernels_.unit_bytes, std::min(plane_units - in_plane, group_units - in_group),
            pairs_ && in_group == group_units - 1};
}

// Divides a segment into pieces.
void PackedInput::divide(const Segment& segment) {
    for (int word = 0; word < segment.bits.units;) {
        const Place place = place_of(segment.unit + word);
        pieces_.push_back({segment.bits, word, std::min(segment.bits.units - word, place.units), place});
        word += pieces_.back().units;
    }
}

// Makes a packed pixel of padding. Set bits end with the last channel of a group.
void PackedInput::make_padding(bool set) {
    const int group_channels = conv_.in_channels / conv_.groups;
    padding_.resize(static_cast<size_t>(planes_) * pixel_bytes_);
    padding_count_ = set ? group_channels : 0;
    for (int unit = 0; set && unit < conv_.units(); unit++) {
        const int channels = std::min(kUnit, group_channels - unit % conv_.group_units() * kUnit);
        const uint32_t word = ~0u >> (kUnit - channels);
        const Place place = place_of(unit);
        uint8_t* const to = padding_.data() + place.plane * pixel_bytes_ + place.byte;
        kernels_.expand(&word, 1, 1, 1, to, pixel_bytes_);
        if (place.paired) {
            std::memcpy(to + kernels_.unit_bytes, to, kernels_.unit_bytes);
        }
    }
}

PackedInput::Rows PackedInput::rows(const Value& map, int kept) const {
    const Attributes& a = attributes_;
    Rows rows;
    rows.height = static_cast<int>(map.height);
    rows.width = static_cast<int>(map.width);
    // The right padding of a row is the left padding of the next one, as far as that suffices, unless a window can lie
    // entirely within padding.
    rows.right = a.pad_right < a.extent_w() ? std::max(a.pad_right - a.pad_left, 0) : a.pad_right;
    rows.pitch = a.pad_left + rows.width + rows.right;
    rows.row_bytes = static_cast<ptrdiff_t>(rows.pitch) * pixel_bytes_;
    rows.plane_bytes = kept * rows.row_bytes + a.pad_left * pixel_bytes_;
    rows.counts = round_up(planes_ * rows.plane_bytes + kReadAhead, sizeof(int32_t));
    rows.group_counts = static_cast<ptrdiff_t>(kept) * rows.pitch + a.pad_left;
    rows.bytes = rows.counts + (kernels_.count ? conv_.groups * rows.group_counts * sizeof(int32_t) : 0);
    return rows;
}

uint8_t* PackedInput::pixels(const Rows& rows, uint8_t* memory, int plane, int row) const {
    return memory + plane * rows.plane_bytes + row * rows.row_bytes;
}

int32_t* PackedInput::counts(const Rows& rows, uint8_t* memory, int group, int row) const {
    return reinterpret_cast<int32_t*>(memory + rows.counts) + group * rows.group_counts + row * rows.pitch;
}

void PackedInput::expand(const Memory& memory, const Rows& rows, uint8_t* to, int first, int begin, int end) const {
    const int left = attributes_.pad_left;
    for (int padded = begin; padded < end; padded++) {
        const int row = padded - first, y = padded - attributes_.pad_top;
        if (y >= 0 && y < rows.height) {
            fill(rows, to, row, 0, left);
            fill(rows, to, row, left + rows.width, rows.right);
            expand_words(memory, rows, to, row, y);
        } else {
            fill(rows, to, row, 0, rows.pitch);
            fill_upper_halves(rows, to, row - attributes_.dilation_h);
        }
    }
    fill(rows, to, end - first, 0, left);
}

// Fills pixels of a row with padding.
void PackedInput::fill(const Rows& rows, uint8_t* to, int row, int column, int count) const {
    for (int plane = 0; plane < planes_; plane++) {
        uint8_t* const begin = pixels(rows, to, plane, row) + column * pixel_bytes_;
        const uint8_t* const pixel = padding_.data() + plane * pixel_bytes_;
        if (padding_count_ == 0) {
            std::memset(begin, 0, count * pixel_bytes_);
        } else {
            for (int i = 0; i < count; i++) {
                std::memcpy(begin + i * pixel_bytes_, pixel, pixel_bytes_);
            }
        }
    }
    for (int group = 0; kernels_.count && group < conv_.groups; group++) {
        std::fill_n(counts(rows, to, group, row) + column, count, padding_count_);
    }
}

// Fills the upper halves of planes of pairs with the padding of the row below.
void PackedInput::fill_upper_halves(const Rows& rows, uint8_t* to, int row) const {
    if (!pairs_ || row < 0) {
        return;
    }
    const int half = kernels_.unit_bytes, planes = planes_ / conv_.groups;
    for (int plane = planes - 1; plane < planes_; plane += planes) {
        uint8_t* const begin = pixels(rows, to, plane, row) + half;
        for (int i = 0; i < rows.pitch; i++) {
            std::memcpy(begin + i * pixel_bytes_, padding_.data() + plane * pixel_bytes_, half);
        }
    }
}

// Expands row `y` of the map.
void PackedInput::expand_words(const Memory& memory, const Rows& rows, uint8_t* to, int row, int y) const {
    const int left = attributes_.pad_left;
    for (int group = 0; kernels_.count && group < conv_.groups; group++) {
        std::fill_n(counts(rows, to, group, row) + left, rows.width, 0);
    }
    for (const Piece& piece : pieces_) {
        const Place& place = piece.place;
        const int stride = piece.bits.units;
        const uint32_t* const words =
            words_of(memory, piece.bits) + static_cast<int64_t>(y) * rows.width * stride + piece.word;
        uint8_t* const begin = pixels(rows, to, place.plane, row) + left * pixel_bytes_ + place.byte;
        kernels_.expand(words, stride, rows.width, piece.units, begin, pixel_bytes_);
        if (place.paired && row >= attributes_.dilation_h) {
            kernels_.expand(words, stride, rows.width, piece.units,
                            begin - attributes_.dilation_h * rows.row_bytes + kernels_.unit_bytes, pixel_bytes_);
        }
        if (kernels_.count) {
            kernels_.count(words, stride, rows.width, piece.units, counts(rows, to, place.group, row) + left);
        }
    }
}

void PackedInput::move(const Rows& rows, uint8_t* memory, int from, int end) const {
    const int left = attributes_.pad_left;
    for (int plane = 0; plane < planes_; plane++) {
        std::memmove(pixels(rows, memory, plane, 0), pixels(rows, memory, plane, from),
                     (end - from) * rows.row_bytes + left * pixel_bytes_);
    }
    for (int group = 0; kernels_.count && group < conv_.groups; group++) {
        std::memmove(counts(rows, memory, group, 0), counts(rows, memory, group, from),
                     ((end - from) * rows.pitch + left) * sizeof(int32_t));
    }
}

void PackedInput::set_input(const Rows& rows, const uint8_t* memory, BinaryConvRun& run) const {
    run.input = memory;
    run.row_bytes = rows.row_bytes;
    run.pixel_bytes = pixel_bytes_;
    run.plane_bytes = rows.plane_bytes;
    run.counts = reinterpret_cast<const int32_t*>(memory + rows.counts);
    run.group_counts = rows.group_counts;
}

}  // namespace bmx
