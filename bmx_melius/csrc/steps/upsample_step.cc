#include "steps/function_step.h"
#include "steps/map_steps.h"

namespace bmx {

StepPtr upsample_step(Source source, const Attributes& a, int number, Slab whole) {
    const int channels = source.channels();
    const auto row_bytes = [value = source.value, channels](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width * channels, 64);
    };
    const auto run = [=](const Memory& memory, const Team& team, int) {
        const Value& result = memory.value(number);
        const View output = memory.view(whole);
        float* const row = reinterpret_cast<float*>(memory.scratch + team.thread * row_bytes(*memory.values));
        int gathered = -1;
        for (int y = team.begin(result.height); y < team.end(result.height); y++) {
            float* to = reinterpret_cast<float*>(output.at(y * output.row));
            const bool empty = !a.repeat && y % a.scale_h;
            if (!empty && gathered != y / a.scale_h) {
                gathered = y / a.scale_h;
                gather_row(memory, source, gathered, row, channels);
            }
            for (int x = 0; x < result.width; x++, to += output.pixel) {
                if (empty || (!a.repeat && x % a.scale_w)) {
                    std::fill_n(to, channels, 0.0f);
                } else {
                    std::copy_n(row + int64_t(x / a.scale_w) * channels, channels, to);
                }
            }
        }
    };
    return function_step(run,
                         [=](const std::vector<Value>& values, int threads) { return threads * row_bytes(values); });
}

}  // namespace bmx
