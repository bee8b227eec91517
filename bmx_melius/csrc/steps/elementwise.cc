#include "steps/elementwise.h"

#include <algorithm>

namespace bmx {
namespace {

constexpr int kBytesAtOnce = 16 << 10;  // of the pixels that a chain is applied to, so that they stay in the L1 cache

float* floats(const PixelRange& p) { return static_cast<float*>(p.x); }
int16_t* integers(const PixelRange& p) { return static_cast<int16_t*>(p.x); }

void combine_with_constants(const FloatKernels& kernels, const MapConstants& constants, Combination combination,
                            const PixelRange& p) {
    const bool shared = constants.channels == 1;
    const ptrdiff_t pixel = constants.width == 1 ? 0 : constants.channels;
    const ptrdiff_t row = constants.height == 1 ? 0 : ptrdiff_t(constants.width) * constants.channels;
    const float* y = constants.numbers.data() + p.row * row + p.column * pixel + (shared ? 0 : p.channel);
    kernels.combine({combination, floats(p), p.x_pixel, p.pixels, p.channels, DataType::f32, y, pixel, shared});
}

// Calls visit(numbers, offset, channels) for each slab of a value: the numbers under a range of the channels of pixels,
// which begins `offset` channels after the first one. If the value has one channel, all have its number. Unless `fits`,
// that is, it has the size of the map of the pixels, it may have one column, whose number all pixels of a row have.
template <class Visit>
void visit_numbers(const Memory& memory, const Source& source, const PixelRange& p, bool fits, const Visit& visit) {
    const Value& map = memory.value(source.value);
    const bool shared = map.channels == 1;
    int first = 0;  // channel of the slab
    for (const Slab& slab : source.slabs) {
        const View view = memory.view(slab);
        const int begin = shared ? p.channel : std::max(first, p.channel);
        const int end = shared ? p.channel + p.channels : std::min(first + slab.channels, p.channel + p.channels);
        if (begin < end) {
            const ptrdiff_t row = map.height == 1 ? 0 : p.row * view.row;
            const ptrdiff_t pixel = map.width == 1 && !fits ? 0 : view.pixel;
            const void* y = view.at(row + p.column * pixel + (shared ? 0 : begin - first));
            visit(Numbers{view.type, y, pixel}, begin - p.channel, end - begin);
        }
        first += slab.channels;
    }
}

}  // namespace

void combine_with(const FloatKernels& kernels, const Memory& memory, const Source& source, Combination combination,
                  const PixelRange& p) {
    const bool shared = memory.value(source.value).channels == 1;
    visit_numbers(memory, source, p, false, [&](const Numbers& y, int offset, int channels) {
        kernels.combine(
            {combination, floats(p) + offset, p.x_pixel, p.pixels, channels, y.type, y.first, y.pixel, shared});
    });
}

// Sets x to numbers, or to what the first stage makes of them if that rescales x.
void ElementwiseChain::begin(const Numbers& from, const PixelRange& p) const {
    if (type_ == DataType::f32) {
        if (from.first != p.x) {
            floats_->combine({Combination::copy, floats(p), p.x_pixel, p.pixels, p.channels, from.type, from.first,
                              from.pixel, false});
        }
        return;
    }
    const bool rescales = begins_with_rescaling();
    if (rescales || from.first != p.x) {
        const ShortRescaling rescaling = rescales ? stages_[0].rescaling.from(p.channel) : ShortRescaling{};
        integers_->shorts({from.type, from.first, from.pixel, p.pixels, p.channels, rescales ? &rescaling : nullptr,
                           false, integers(p), p.x_pixel});
    }
}

void ElementwiseChain::go_on_with_integers(const Memory& memory, const PixelRange& p) const {
    for (size_t i = begins_with_rescaling() ? 1 : 0; i < stages_.size(); i++) {
        const ElementwiseStage& stage = stages_[i];
        const bool rescales = !stage.rescaling.empty(), adds = !stage.operand.slabs.empty();
        const auto compute = [&](const Numbers& y, int offset, int channels) {
            const ShortRescaling rescaling = rescales ? stage.rescaling.from(p.channel + offset) : ShortRescaling{};
            integers_->shorts({y.type, y.first, y.pixel, p.pixels, channels, rescales ? &rescaling : nullptr, adds,
                               integers(p) + offset, p.x_pixel});
        };
        if (adds) {
            visit_numbers(memory, stage.operand, p, true, compute);
        } else {
            compute({DataType::i16, p.x, p.x_pixel}, 0, p.channels);
        }
    }
}

void ElementwiseChain::go_on(const Memory& memory, const PixelRange& p) const {
    if (type_ == DataType::i16) {
        go_on_with_integers(memory, p);
        return;
    }
    for (const ElementwiseStage& stage : stages_) {
        switch (stage.row.form) {
            case ElementwiseForm::none:
                break;
            case ElementwiseForm::channels: {
                const auto from = [&](const Constants<float>& numbers) {
                    return numbers.size() ? numbers.data() + p.channel : nullptr;
                };
                floats_->transform(
                    {stage.row.elementwise, floats(p), p.x_pixel, p.pixels, p.channels, from(stage.a), from(stage.b)});
                break;
            }
            case ElementwiseForm::values:
                combine_with(*floats_, memory, stage.operand, stage.row.combination, p);
                break;
            case ElementwiseForm::positions:
                combine_with_constants(*floats_, stage.constants, stage.row.combination, p);
                break;
        }
    }
}

void ElementwiseChain::apply(const Memory& memory, const Source& source, const PixelRange& p) const {
    visit_numbers(memory, source, p, true, [&](const Numbers& from, int offset, int channels) {
        PixelRange part = p;
        part.channel += offset;
        part.channels = channels;
        part.x = type_ == DataType::f32 ? static_cast<void*>(floats(p) + offset) : integers(p) + offset;
        begin(from, part);
    });
    go_on(memory, p);
}

void ElementwiseChain::apply(const Memory& memory, const View& map, int64_t begin, int64_t end, int channel,
                             int channels) const {
    apply(memory, {map.type, map.at(begin * map.pixel + channel), map.pixel}, map, begin, end, channel, channels);
}

void ElementwiseChain::apply(const Memory& memory, Numbers from, const View& map, int64_t begin, int64_t end,
                             int channel, int channels) const {
    if (empty()) {
        return;
    }
    const int64_t width = map.row / map.pixel;
    const int64_t most = std::max<int64_t>(1, kBytesAtOnce / static_cast<int64_t>(size_of(type_)) / channels);
    for (int64_t pixel = begin, next; pixel < end; pixel = next) {
        const int row = static_cast<int>(pixel / width), column = static_cast<int>(pixel % width);
        next = std::min(type_ == DataType::i16 ? pixel + most : pixel + width - column, end);
        const PixelRange pixels = {row,      column,   static_cast<int>(next - pixel),
                                   channel,  channels, map.at(pixel * map.pixel + channel),
                                   map.pixel};
        this->begin(from, pixels);
        go_on(memory, pixels);
        from.first = static_cast<const uint8_t*>(from.first) + (next - pixel) * from.pixel * size_of(from.type);
    }
}

ElementwiseStep::ElementwiseStep(const FloatKernels* kernels, const BinaryKernels* packing, Source source,
                                 ElementwiseChain chain, bool mean, Slab output)
    : kernels_(kernels),
      source_(std::move(source)),
      chain_(std::move(chain)),
      mean_(mean),
      channels_(source_.channels()),
      max_pixels_(std::max(1, kBytesAtOnce / static_cast<int>(sizeof(float)) / channels_)),
      output_(output),
      packer_(packing, output.buffer) {}

size_t ElementwiseStep::thread_bytes() const {
    return mean_ ? round_up(sizeof(float) * max_pixels_ * channels_, 64) : 0;
}

size_t ElementwiseStep::scratch_bytes(const std::vector<Value>&, int threads) const { return threads * thread_bytes(); }

void ElementwiseStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    const View output = memory.view(output_);
    const int64_t count = map.height * map.width, end = team.end(count);
    for (int64_t pixel = team.begin(count); pixel < end;) {
        const int row = static_cast<int>(pixel / map.width), column = static_cast<int>(pixel % map.width);
        const int64_t room = chain_.type() == DataType::i16 ? max_pixels_ : map.width - column;
        const int pixels = static_cast<int>(std::min<int64_t>({max_pixels_, room, end - pixel}));
        void* const to = output.at(pixel * output.pixel);
        void* const x = mean_ ? memory.scratch + team.thread * thread_bytes() : to;
        chain_.apply(memory, source_, {row, column, pixels, 0, channels_, x, channels_});
        if (mean_) {
            kernels_->mean_channels(static_cast<float*>(x), pixels, channels_, static_cast<float*>(to));
        }
        packer_.pack(memory, pixel, pixel + pixels);
        pixel += pixels;
    }
}

}  // namespace bmx
