#include "steps/statistics_steps.h"

#include <cmath>

namespace bmx {

GlobalMaxStep::GlobalMaxStep(Source source, Slab output) : source_(std::move(source)), output_(output) {}

void GlobalMaxStep::run(const Memory& memory, const Team& team, int) const {
    const Value& map = memory.value(source_.value);
    const int64_t pixels = map.height * map.width;
    float* maximum = reinterpret_cast<float*>(memory.view(output_).data);
    for (const Slab& slab : source_.slabs) {
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
        });
        maximum += view.channels;
    }
}

NormalizeStep::NormalizeStep(Source source, const Attributes& attributes, float eps, Slab output)
    : source_(std::move(source)), attributes_(attributes), eps_(eps), channels_(source_.channels()), output_(output) {}

void NormalizeStep::run(const Memory& memory, const Team& team, int phase) const {
    const Value& map = memory.value(source_.value);
    const View output = memory.view(output_);
    const int in_group = channels_ / attributes_.groups;
    const auto rows = [&](int y) { return reinterpret_cast<float*>(output.at(y * output.row)); };
    if (phase == 0) {
        for (int y = team.begin(map.height); y < team.end(map.height); y++) {
            gather_row(memory, source_, y, rows(y), output.pixel);
        }
    } else if (attributes_.by_position) {
        for (int y = team.begin(map.height); y < team.end(map.height); y++) {
            for (int64_t i = 0; i < map.width * attributes_.groups; i++) {
                const int64_t pixel = i / attributes_.groups, group = i % attributes_.groups;
                normalize(rows(y) + pixel * output.pixel + group * in_group, 1, output.pixel);
            }
        }
    } else {
        for (int group = team.begin(attributes_.groups); group < team.end(attributes_.groups); group++) {
            normalize(rows(0) + int64_t(group) * in_group, map.height * map.width, output.pixel);
        }
    }
}

// Normalizes the channels of a group at some pixels, `stride` elements apart.
void NormalizeStep::normalize(float* x, int64_t pixels, ptrdiff_t stride) const {
    const int channels = channels_ / attributes_.groups;
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
    const double scale = 1 / std::sqrt(squares / count + eps_);
    for (int64_t i = 0; i < pixels; i++) {
        for (int c = 0; c < channels; c++) {
            x[i * stride + c] = static_cast<float>((x[i * stride + c] - mean) * scale);
        }
    }
}

}  // namespace bmx
