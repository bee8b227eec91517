#include "steps/map_steps.h"

#include <algorithm>
#include <cstring>

namespace bmx {
namespace {

float* floats(uint8_t* data) { return reinterpret_cast<float*>(data); }

// Calls visit(pointer, view, channel) for each slab of a source, with a pointer of its number type.
template <class Visit>
void for_each_slab(const Memory& memory, const Source& source, const Visit& visit) {
    int channel = 0;
    for (const Slab& slab : source.slabs) {
        const View view = memory.view(slab);
        visit_typed(view.type, view.data, [&](const auto* x) { visit(x, view, channel); });
        channel += slab.channels;
    }
}

// Copies rows `begin` to `end` - 1 from pixels to planes of channels.
template <class From, class To>
void pixels_to_planes(const From* from, const View& view, const Value& map, int begin, int end, To* to) {
    for (int c = 0; c < view.channels; c++) {
        for (int y = begin; y < end; y++) {
            const From* x = from + y * view.row + c;
            To* plane = to + (static_cast<int64_t>(c) * map.height + y) * map.width;
            for (int i = 0; i < map.width; i++) {
                plane[i] = static_cast<To>(x[i * view.pixel]);
            }
        }
    }
}

}  // namespace

// --- input and output ---------------------------------------------------------------------------

InputStep::InputStep(const FloatKernels* kernels, int input, Slab output)
    : kernels_(kernels), input_(input), output_(output) {}

void InputStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(input_);
    const View view = memory.view(output_);
    const float* from = memory.inputs[input_];
    if (map.height * map.width == 1) {
        if (team.thread == 0) {
            std::memcpy(view.data, from, sizeof(float) * map.channels);
        }
        return;
    }
    const int64_t pixels = map.height * map.width;
    const int begin = team.begin(pixels), end = team.end(pixels);
    kernels_->planar_to_pixels(from + begin, pixels, end - begin, static_cast<int>(map.channels),
                               floats(view.at(begin * view.pixel)), view.pixel);
}

OutputStep::OutputStep(const FloatKernels* kernels, Source source, int output)
    : kernels_(kernels), source_(std::move(source)), output_(output) {}

void OutputStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    float* to = memory.outputs[output_];
    const int64_t pixels = map.height * map.width;
    const int begin = team.begin(pixels), end = team.end(pixels);
    for (const Slab& slab : source_.slabs) {
        const View view = memory.view(slab);
        kernels_->pixels_to_planar(view.type, view.at(begin * view.pixel), view.pixel, end - begin, view.channels,
                                   to + begin, pixels);
        to += view.channels * pixels;
    }
}

// --- pooling -------------------------------------------------------------------------------------

PoolStep::PoolStep(const FloatKernels* kernels, Source source, const PoolWindow& window, Normalization normalization,
                   int result, Slab output)
    : kernels_(kernels),
      source_(std::move(source)),
      window_(window),
      normalization_(std::move(normalization)),
      result_(result),
      output_(output) {}

size_t PoolStep::scratch_bytes(const std::vector<Value>&, int threads) const {
    return threads * window_.offsets_bytes();
}

void PoolStep::run(const Memory& memory, const Team& team, int) const {
    const Value& result = memory.value(result_);
    const View output = memory.view(output_);
    ptrdiff_t* offsets = reinterpret_cast<ptrdiff_t*>(memory.scratch + team.thread * window_.offsets_bytes());
    for (int y = team.begin(result.height); y < team.end(result.height); y++) {
        pool_pixels(*kernels_, memory, source_, window_, normalization_, y, 0, static_cast<int>(result.width),
                    floats(output.at(y * output.row)), output.pixel, offsets);
    }
}

AveragePoolStep::AveragePoolStep(Source source, const Attributes& attributes, int result, Slab output)
    : source_(std::move(source)),
      attributes_(attributes),
      channels_(source_.channels()),
      result_(result),
      output_(output) {}

void AveragePoolStep::run(const Memory& memory, const Team& team, int) const {
    const Attributes& a = attributes_;
    const Value& map = memory.value(source_.value);
    const Value& result = memory.value(result_);
    const View output = memory.view(output_);
    for (int y = team.begin(result.height); y < team.end(result.height); y++) {
        for (int x = 0; x < result.width; x++) {
            const int64_t top = int64_t(y) * a.stride_h - a.pad_top, left = int64_t(x) * a.stride_w - a.pad_left;
            const int64_t y_begin = std::max<int64_t>(top, 0), y_end = std::min(top + a.kernel_h, map.height);
            const int64_t x_begin = std::max<int64_t>(left, 0), x_end = std::min(left + a.kernel_w, map.width);
            float* sums = floats(output.at(y * output.row + x * output.pixel));
            std::fill_n(sums, channels_, 0.0f);
            for_each_slab(memory, source_, [&](const auto* from, const View& view, int channel) {
                for (int64_t i = y_begin; i < y_end; i++) {
                    for (int64_t j = x_begin; j < x_end; j++) {
                        const auto* pixel = from + i * view.row + j * view.pixel;
                        for (int c = 0; c < view.channels; c++) {
                            sums[channel + c] += static_cast<float>(pixel[c]);
                        }
                    }
                }
            });
            // Padding counts only within the padded map.
            const int64_t rows =
                a.count_pad ? std::min(top + a.kernel_h, map.height + a.pad_bottom) - top : y_end - y_begin;
            const int64_t columns =
                a.count_pad ? std::min(left + a.kernel_w, map.width + a.pad_right) - left : x_end - x_begin;
            const float counted = static_cast<float>(rows * columns);
            for (int c = 0; c < channels_; c++) {
                sums[c] /= counted;
            }
        }
    }
}

namespace {}

GlobalPoolStep::GlobalPoolStep(const FloatKernels* kernels, Source source, Normalization normalization, Slab output)
    : kernels_(kernels),
      source_(std::move(source)),
      normalization_(std::move(normalization)),
      channels_(source_.channels()),
      output_(output) {}

size_t GlobalPoolStep::scratch_bytes(const std::vector<Value>&, int) const {
    return round_up(channels_ * (sizeof(float) + sizeof(double)) + kFloatReadAhead, 64);
}

void GlobalPoolStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    const int64_t pixels = map.height * map.width;
    double* const sums = reinterpret_cast<double*>(memory.scratch);
    float* const parts = reinterpret_cast<float*>(sums + channels_);
    float* const means = floats(memory.view(output_).data);
    const int begin = team.begin(source_.slabs.size()), end = team.end(source_.slabs.size());
    int channel = 0;
    for (int i = 0; i < end; channel += source_.slabs[i++].channels) {
        if (i < begin) {
            continue;
        }
        const View view = memory.view(source_.slabs[i]);
        std::fill_n(sums + channel, view.channels, 0.0);
        for (int64_t pixel = 0; pixel < pixels; pixel += kSummedPixels) {
            std::fill_n(parts + channel, view.channels, 0.0f);
            kernels_->sum_pixels(view.type, view.at(pixel * view.pixel), view.pixel,
                                 static_cast<int>(std::min<int64_t>(kSummedPixels, pixels - pixel)), view.channels,
                                 normalization_.from(channel), parts + channel);
            for (int c = channel; c < channel + view.channels; c++) {
                sums[c] += parts[c];
            }
        }
        for (int c = channel; c < channel + view.channels; c++) {
            means[c] = static_cast<float>(sums[c] / static_cast<double>(pixels));
        }
    }
}

// --- the rest ------------------------------------------------------------------------------------

FlattenStep::FlattenStep(Source source, Slab output) : source_(std::move(source)), output_(output) {}

void FlattenStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    const View output = memory.view(output_);
    const int begin = team.begin(map.height), end = team.end(map.height);
    for_each_slab(memory, source_, [&](const auto* from, const View& view, int channel) {
        visit_typed(output.type, output.at(channel * map.height * map.width),
                    [&](auto* to) { pixels_to_planes(from, view, map, begin, end, to); });
    });
}

RowStep::RowStep(std::vector<Source> sources, Slab output)
    : sources_(std::move(sources)), channels_(sources_[0].channels()), output_(output) {}

size_t RowStep::row_bytes(const std::vector<Value>& values) const {
    return round_up(sizeof(float) * values[sources_[0].value].width * channels_ + kFloatReadAhead, 64);
}

size_t RowStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return 2 * threads * row_bytes(values);
}

void RowStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(sources_[0].value);
    const int width = static_cast<int>(map.width);
    uint8_t* scratch = memory.scratch + 2 * team.thread * row_bytes(*memory.values);
    float* x = floats(scratch);
    float* y = floats(scratch + row_bytes(*memory.values));
    for (int row = team.begin(map.height); row < team.end(map.height); row++) {
        gather_row(memory, sources_[0], row, x, channels_);
        if (sources_.size() > 1) {
            gather_row(memory, sources_[1], row, y, channels_);
        }
        change(x, y, width, channels_);
        scatter_row(x, channels_, width, memory.view(output_), row);
    }
}

void AddStep::change(float* x, float* y, int pixels, int channels) const {
    for (int64_t i = 0; i < int64_t(pixels) * channels; i++) {
        x[i] += y[i];
    }
}

void ShuffleStep::change(float* x, float* y, int pixels, int channels) const {
    const int in_group = channels / groups_;
    std::copy_n(x, int64_t(pixels) * channels, y);
    for (int i = 0; i < pixels; i++, x += channels, y += channels) {
        for (int group = 0; group < groups_; group++) {
            for (int j = 0; j < in_group; j++) {
                x[j * groups_ + group] = y[group * in_group + j];
            }
        }
    }
}

void ThresholdStep::change(float* x, float*, int pixels, int channels) const {
    for (int i = 0; i < pixels; i++, x += channels) {
        for (int c = 0; c < channels; c++) {
            const bool flip = flips_[c / 32] >> c % 32 & 1;
            x[c] = (x[c] >= thresholds_[c]) != flip ? 1.0f : 0.0f;
        }
    }
}

void ExpandStep::change(float* x, float*, int pixels, int channels) const {
    for (int64_t i = 0; i < int64_t(pixels) * channels; i++) {
        if (x[i] == 0) {
            x[i] = static_cast<float>(low_);
        }
    }
}

}  // namespace bmx
