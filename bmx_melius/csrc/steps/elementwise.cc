#include "steps/elementwise.h"

#include <algorithm>

namespace bmx {
namespace {

constexpr int kBytesAtOnce = 16 << 10;  // of the pixels that a chain is applied to, so that they stay in the L1 cache

void combine_with_constants(const FloatKernels& kernels, const MapConstants& constants, Combination combination,
                            const PixelRange& p) {
    const bool shared = constants.channels == 1;
    const ptrdiff_t pixel = constants.width == 1 ? 0 : constants.channels;
    const ptrdiff_t row = constants.height == 1 ? 0 : ptrdiff_t(constants.width) * constants.channels;
    const float* y = constants.numbers.data() + p.row * row + p.column * pixel + (shared ? 0 : p.channel);
    kernels.combine({combination, p.x, p.x_pixel, p.pixels, p.channels, DataType::f32, y, pixel, shared});
}

}  // namespace

void combine_with(const FloatKernels& kernels, const Memory& memory, const Source& source, Combination combination,
                  const PixelRange& p) {
    const Value& map = memory.value(source.value);
    const bool shared = map.channels == 1;
    int first = 0;  // channel of the slab
    for (const Slab& slab : source.slabs) {
        const View view = memory.view(slab);
        const int begin = shared ? p.channel : std::max(first, p.channel);
        const int end = shared ? p.channel + p.channels : std::min(first + slab.channels, p.channel + p.channels);
        if (begin < end) {
            const ptrdiff_t row = map.height == 1 ? 0 : p.row * view.row;
            const ptrdiff_t pixel = map.width == 1 ? 0 : view.pixel;
            const void* y = view.at(row + p.column * pixel + (shared ? 0 : begin - first));
            kernels.combine({combination, p.x + (begin - p.channel), p.x_pixel, p.pixels, end - begin, view.type, y,
                             pixel, shared});
        }
        first += slab.channels;
    }
}

void ElementwiseChain::apply(const Memory& memory, const PixelRange& p) const {
    for (const ElementwiseStage& stage : stages_) {
        switch (stage.row.form) {
            case ElementwiseForm::none:
                break;
            case ElementwiseForm::channels: {
                const auto from = [&](const Constants<float>& numbers) {
                    return numbers.size() ? numbers.data() + p.channel : nullptr;
                };
                kernels_->transform(
                    {stage.row.elementwise, p.x, p.x_pixel, p.pixels, p.channels, from(stage.a), from(stage.b)});
                break;
            }
            case ElementwiseForm::values:
                combine_with(*kernels_, memory, stage.operand, stage.row.combination, p);
                break;
            case ElementwiseForm::positions:
                combine_with_constants(*kernels_, stage.constants, stage.row.combination, p);
                break;
        }
    }
}

void ElementwiseChain::apply(const Memory& memory, const View& map, int64_t begin, int64_t end, int channel,
                             int channels) const {
    if (empty()) {
        return;
    }
    const int64_t width = map.row / map.pixel;
    for (int64_t pixel = begin, next; pixel < end; pixel = next) {
        const int row = static_cast<int>(pixel / width), column = static_cast<int>(pixel % width);
        next = std::min(pixel + width - column, end);
        apply(memory, {row, column, static_cast<int>(next - pixel), channel, channels,
                       reinterpret_cast<float*>(map.at(pixel * map.pixel + channel)), map.pixel});
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
        const int pixels = static_cast<int>(std::min<int64_t>({max_pixels_, map.width - column, end - pixel}));
        float* const to = reinterpret_cast<float*>(output.at(pixel * output.pixel));
        float* const x = mean_ ? reinterpret_cast<float*>(memory.scratch + team.thread * thread_bytes()) : to;
        const PixelRange part = {row, column, pixels, 0, channels_, x, channels_};
        combine_with(*kernels_, memory, source_, Combination::copy, part);
        chain_.apply(memory, part);
        if (mean_) {
            kernels_->mean_channels(x, pixels, channels_, to);
        }
        packer_.pack(memory, pixel, pixel + pixels);
        pixel += pixels;
    }
}

}  // namespace bmx
