#include "steps/packer.h"

#include <algorithm>
#include <cmath>

namespace bmx {
namespace {

constexpr int64_t kPixelsAtOnce = 64;  // so that they stay in the L1 cache while they are compared with all thresholds

// Converts a threshold for x >= threshold with integers x within +-32766.
int16_t integer_threshold(float threshold) {
    return static_cast<int16_t>(std::min(std::max(std::ceil(threshold), -32768.0f), 32767.0f));
}

}  // namespace

void Packer::add(const Packing& packing, DataType type, const Bits& bits) {
    Map map = {packing.begin, packing.channels, {}, {}, packing.flips, bits};
    if (type == DataType::f32) {
        map.thresholds = Constants<float>(packing.thresholds);
    } else {
        map.integer_thresholds = Constants<int16_t>(packing.channels);
        std::transform(packing.thresholds.begin(), packing.thresholds.end(), map.integer_thresholds.data(),
                       integer_threshold);
    }
    maps_.push_back(std::move(map));
}

void Packer::pack(const Memory& memory, int64_t begin, int64_t end, int first) const {
    const View view = memory.view({buffer_, 0, (*memory.buffers)[buffer_].channels});
    for (; begin < end; begin += kPixelsAtOnce) {
        const int pixels = static_cast<int>(std::min(kPixelsAtOnce, end - begin));
        for (size_t i = first; i < maps_.size(); i++) {
            const Map& map = maps_[i];
            uint32_t* words = words_of(memory, map.bits) + begin * map.bits.units;
            const uint8_t* from = view.at(begin * view.pixel + map.begin);
            if (view.type == DataType::f32) {
                kernels_->pack_f32(reinterpret_cast<const float*>(from), view.pixel, pixels, map.channels,
                                   map.thresholds.data(), map.flips.data(), words);
            } else {
                kernels_->pack_i16(reinterpret_cast<const int16_t*>(from), view.pixel, pixels, map.channels,
                                   map.integer_thresholds.data(), map.flips.data(), words);
            }
        }
    }
}

bool Packer::packs_integers(int channels) const {
    return std::all_of(maps_.begin(), maps_.end(), [&](const Map& map) {
        return map.integer_thresholds.size() > 0 && map.begin == 0 && map.channels == channels;
    });
}

void Packer::write_packings(const Memory& memory, int64_t pixel, int count, BinaryPacking* packings) const {
    for (int i = 0; i < count; i++) {
        const Map& map = maps_[i];
        packings[i] = {map.integer_thresholds.data(), map.flips.data(),
                       words_of(memory, map.bits) + pixel * map.bits.units};
    }
}

void Packer::pack_planes(const Memory& memory, const float* planes, int64_t begin, int64_t end) const {
    const Value& value = memory.value((*memory.buffers)[buffer_].value);
    const int64_t pixels = value.height * value.width;
    for (const Map& map : maps_) {
        kernels_->pack_planes(planes + map.begin * pixels + begin, pixels, static_cast<int>(end - begin), map.channels,
                              map.thresholds.data(), map.flips.data(),
                              words_of(memory, map.bits) + begin * map.bits.units);
    }
}

void PackStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value((*memory.buffers)[packer_.buffer()].value);
    const int64_t pixels = map.height * map.width;
    packer_.pack(memory, team.begin(pixels), team.end(pixels));
}

void InputPackStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(input_);
    const int64_t pixels = map.height * map.width;
    packer_.pack_planes(memory, memory.inputs[input_], team.begin(pixels), team.end(pixels));
}

}  // namespace bmx
