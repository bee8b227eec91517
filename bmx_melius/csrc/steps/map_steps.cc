#include "steps/map_steps.h"

#include <algorithm>
#include <cstring>

#include "steps/function_step.h"

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

// Divides sums of so many numbers by their number. The inverse of a power of two is exact, and multiplies faster.
void divide(float* sums, int channels, int64_t count) {
    const float counted = static_cast<float>(count);
    if ((count & (count - 1)) == 0) {
        const float inverse = 1 / counted;
        for (int c = 0; c < channels; c++) {
            sums[c] *= inverse;
        }
        return;
    }
    for (int c = 0; c < channels; c++) {
        sums[c] /= counted;
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

StepPtr input_step(const FloatKernels* kernels, int input, Slab output) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(input);
        const View view = memory.view(output);
        const float* from = memory.inputs[input];
        if (map.height * map.width == 1) {
            if (team.thread == 0) {
                std::memcpy(view.data, from, sizeof(float) * map.channels);
            }
            return;
        }
        const int64_t pixels = map.height * map.width;
        const int begin = team.begin(pixels), end = team.end(pixels);
        kernels->planar_to_pixels(from + begin, pixels, end - begin, static_cast<int>(map.channels),
                                  floats(view.at(begin * view.pixel)), view.pixel);
    });
}

StepPtr output_step(const FloatKernels* kernels, Source source, int output) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        float* to = memory.outputs[output];
        const int64_t pixels = map.height * map.width;
        const int begin = team.begin(pixels), end = team.end(pixels);
        for (const Slab& slab : source.slabs) {
            const View view = memory.view(slab);
            kernels->pixels_to_planar(view.type, view.at(begin * view.pixel), view.pixel, end - begin, view.channels,
                                      to + begin, pixels);
            to += view.channels * pixels;
        }
    });
}

// --- pooling -------------------------------------------------------------------------------------

StepPtr pool_step(const FloatKernels* kernels, Source source, const PoolWindow& window, Normalization normalization,
                  int result, Slab output) {
    return function_step(
        [=, normalization = std::move(normalization)](const Memory& memory, const Team& team, int) {
            const Value& map = memory.value(result);
            const View view = memory.view(output);
            ptrdiff_t* offsets = reinterpret_cast<ptrdiff_t*>(memory.scratch + team.thread * window.offsets_bytes());
            for (int y = team.begin(map.height); y < team.end(map.height); y++) {
                pool_pixels(*kernels, memory, source, window, normalization, y, 0, static_cast<int>(map.width),
                            floats(view.at(y * view.row)), view.pixel, offsets);
            }
        },
        [=](const std::vector<Value>&, int threads) { return threads * window.offsets_bytes(); });
}

StepPtr average_pool_step(const FloatKernels* kernels, Source source, const Attributes& a, int number, Slab whole) {
    return function_step([=, channels = source.channels()](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const Value& result = memory.value(number);
        const View output = memory.view(whole);
        const Epilogue unchanged = {nullptr, nullptr, false};
        for (int y = team.begin(result.height); y < team.end(result.height); y++) {
            for (int x = 0; x < result.width; x++) {
                const AverageWindow window = average_window(a, map, y, x);
                float* sums = floats(output.at(y * output.row + x * output.pixel));
                std::fill_n(sums, channels, 0.0f);
                int channel = 0;
                for (const Slab& slab : source.slabs) {
                    const View view = memory.view(slab);
                    for (int64_t i = window.top; i < window.bottom; i++) {
                        kernels->sum_pixels(view.type, view.at(i * view.row + window.left * view.pixel), view.pixel,
                                            static_cast<int>(window.right - window.left), view.channels, unchanged,
                                            sums + channel);
                    }
                    channel += slab.channels;
                }
                divide(sums, channels, window.count);
            }
        }
    });
}

StepPtr global_pool_step(const FloatKernels* kernels, Source source, Normalization normalization, Slab output) {
    const int channels = source.channels();
    return function_step(
        [=, normalization = std::move(normalization)](const Memory& memory, const Team& team, int) {
            const Value& map = memory.value(source.value);
            const int64_t pixels = map.height * map.width;
            double* const sums = reinterpret_cast<double*>(memory.scratch);
            float* const parts = reinterpret_cast<float*>(sums + channels);
            float* const means = floats(memory.view(output).data);
            const int begin = team.begin(source.slabs.size()), end = team.end(source.slabs.size());
            int channel = 0;
            for (int i = 0; i < end; channel += source.slabs[i++].channels) {
                if (i < begin) {
                    continue;
                }
                const View view = memory.view(source.slabs[i]);
                std::fill_n(sums + channel, view.channels, 0.0);
                for (int64_t pixel = 0; pixel < pixels; pixel += kSummedPixels) {
                    std::fill_n(parts + channel, view.channels, 0.0f);
                    kernels->sum_pixels(view.type, view.at(pixel * view.pixel), view.pixel,
                                        static_cast<int>(std::min<int64_t>(kSummedPixels, pixels - pixel)),
                                        view.channels, normalization.from(channel), parts + channel);
                    for (int c = channel; c < channel + view.channels; c++) {
                        sums[c] += parts[c];
                    }
                }
                for (int c = channel; c < channel + view.channels; c++) {
                    means[c] = static_cast<float>(sums[c] / static_cast<double>(pixels));
                }
            }
        },
        [=](const std::vector<Value>&, int) {
            return round_up(channels * (sizeof(float) + sizeof(double)) + kFloatReadAhead, 64);
        });
}

// --- the rest ------------------------------------------------------------------------------------

StepPtr flatten_step(Source source, Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        const int begin = team.begin(map.height), end = team.end(map.height);
        for_each_slab(memory, source, [&](const auto* from, const View& view, int channel) {
            visit_typed(output.type, output.at(channel * map.height * map.width),
                        [&](auto* to) { pixels_to_planes(from, view, map, begin, end, to); });
        });
    });
}

namespace {

// Returns the step that processes a map row by row: its rows, as float32 with contiguous channels, are modified in
// place by change(x, y, pixels, channels), where y is working memory of the size of x.
template <class Change>
StepPtr row_step(Source source, Slab output, Change change) {
    const int channels = source.channels(), value = source.value;
    const auto row_bytes = [=](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width * channels + kFloatReadAhead, 64);
    };
    return function_step(
        [=](const Memory& memory, const Team& team, int) {
            const Value& map = memory.value(value);
            const int width = static_cast<int>(map.width);
            uint8_t* scratch = memory.scratch + 2 * team.thread * row_bytes(*memory.values);
            float* x = floats(scratch);
            float* y = floats(scratch + row_bytes(*memory.values));
            for (int row = team.begin(map.height); row < team.end(map.height); row++) {
                gather_row(memory, source, row, x, channels);
                change(x, y, width, channels);
                scatter_row(x, channels, width, memory.view(output), row);
            }
        },
        [=](const std::vector<Value>& values, int threads) { return 2 * threads * row_bytes(values); });
}

}  // namespace

StepPtr copy_step(Source source, Slab output) {
    return row_step(std::move(source), output, [](float*, float*, int, int) {});
}

StepPtr shuffle_step(Source source, int groups, Slab output) {
    return row_step(std::move(source), output, [=](float* x, float* y, int pixels, int channels) {
        const int in_group = channels / groups;
        std::copy_n(x, int64_t(pixels) * channels, y);
        for (int i = 0; i < pixels; i++, x += channels, y += channels) {
            for (int group = 0; group < groups; group++) {
                for (int j = 0; j < in_group; j++) {
                    x[j * groups + group] = y[group * in_group + j];
                }
            }
        }
    });
}

// Neither has a branch for a number, because bits cannot be predicted.

StepPtr expand_step(Source source, int low, Slab output) {
    return row_step(std::move(source), output,
                    [low = static_cast<float>(low)](float* x, float*, int pixels, int channels) {
                        for (int64_t i = 0; i < int64_t(pixels) * channels; i++) {
                            x[i] += static_cast<float>(x[i] == 0) * low;
                        }
                    });
}

StepPtr threshold_step(Source source, std::vector<float> thresholds, std::vector<uint32_t> flips, Slab output) {
    std::vector<int32_t> flipped(thresholds.size());  // 0 or 1 for a channel
    for (size_t c = 0; c < flipped.size(); c++) {
        flipped[c] = flips[c / 32] >> c % 32 & 1;
    }
    return row_step(
        std::move(source), output,
        [thresholds = std::move(thresholds), flipped = std::move(flipped)](float* x, float*, int pixels, int channels) {
            const float* const threshold = thresholds.data();
            const int32_t* const flip = flipped.data();
            for (int i = 0; i < pixels; i++, x += channels) {
                for (int c = 0; c < channels; c++) {
                    x[c] = static_cast<float>((x[c] >= threshold[c]) ^ flip[c]);
                }
            }
        });
}

}  // namespace bmx
