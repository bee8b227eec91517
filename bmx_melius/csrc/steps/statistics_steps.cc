#include <cmath>

#include "steps/function_step.h"
#include "steps/map_steps.h"

namespace bmx {
namespace {

// Normalizes the channels of a group at some pixels, `stride` elements apart.
void normalize(float* x, int64_t pixels, ptrdiff_t stride, int channels, double eps) {
    const double count = static_cast<double>(pixels) * channels;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < channels; c++) {
            sum += x[i * stride + c];
        }
    }
    const double mean = sum / count;
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < channels; c++) {
            const double difference = x[i * stride + c] - mean;
            squares += difference * difference;
        }
    }
    const double scale = 1 / std::sqrt(squares / count + eps);
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < channels; c++) {
            x[i * stride + c] = static_cast<float>((x[i * stride + c] - mean) * scale);
        }
    }
}

}  // namespace

StepPtr global_max_step(Source source, Slab output) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const int64_t pixels = map.height * map.width;
        float* maximum = reinterpret_cast<float*>(memory.view(output).data);
        for (const Slab& slab : source.slabs) {
            const View view = memory.view(slab);
            const int begin = team.begin(view.channels), end = team.end(view.channels);
            visit_typed(view.type, view.data, [&](const auto* x) {
                for (int c = begin; c < end; c++) {
                    maximum[c] = static_cast<float>(x[c]);
                }
                for (int64_t i = 1; i < pixels; i++) {
                    for (int c = begin; c < end; c++) {
                        maximum[c] = std::max(maximum[c], static_cast<float>(x[i * view.pixel + c]));
                    }
                }
                for (int c = begin; c < end; c++) {
                    maximum[c] += 0.0f;  // -0 becomes +0
                }
            });
            maximum += view.channels;
        }
    });
}

StepPtr normalize_step(Source source, const Attributes& a, double eps, Slab whole) {
    const int in_group = source.channels() / a.groups;
    const auto run = [=](const Memory& memory, const Team& team, int phase) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        const auto rows = [&](int y) { return reinterpret_cast<float*>(output.at(y * output.row)); };
        if (phase == 0) {
            for (int y = team.begin(map.height); y < team.end(map.height); y++) {
                gather_row(memory, source, y, rows(y), output.pixel);
            }
        } else if (a.by_position) {
            for (int y = team.begin(map.height); y < team.end(map.height); y++) {
                for (int64_t i = 0; i < map.width * a.groups; i++) {
                    const int64_t pixel = i / a.groups, group = i % a.groups;
                    normalize(rows(y) + pixel * output.pixel + group * in_group, 1, output.pixel, in_group, eps);
                }
            }
        } else {
            for (int group = team.begin(a.groups); group < team.end(a.groups); group++) {
                normalize(rows(0) + int64_t(group) * in_group, map.height * map.width, output.pixel, in_group, eps);
            }
        }
    };
    return function_step(run, NoScratch(), 2);  // the map is copied to the output, then changed there
}

}  // namespace bmx
