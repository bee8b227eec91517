#include "steps/upsample_step.h"

namespace bmx {

UpsampleStep::UpsampleStep(Source source, const Attributes& attributes, int result, Slab output)
    : source_(std::move(source)),
      attributes_(attributes),
      channels_(source_.channels()),
      result_(result),
      output_(output) {}

size_t UpsampleStep::row_bytes(const std::vector<Value>& values) const {
    return round_up(sizeof(float) * values[source_.value].width * channels_, 64);
}

size_t UpsampleStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return threads * row_bytes(values);
}

void UpsampleStep::run(const Memory& memory, const Team& team, int) const {
    const Attributes& a = attributes_;
    const Value& result = memory.value(result_);
    const View output = memory.view(output_);
    float* const row = reinterpret_cast<float*>(memory.scratch + team.thread * row_bytes(*memory.values));
    int gathered = -1;
    for (int y = team.begin(result.height); y < team.end(result.height); y++) {
        float* to = reinterpret_cast<float*>(output.at(y * output.row));
        const bool empty = !a.repeat && y % a.scale_h;
        if (!empty && gathered != y / a.scale_h) {
            gathered = y / a.scale_h;
            gather_row(memory, source_, gathered, row, channels_);
        }
        for (int x = 0; x < result.width; x++, to += output.pixel) {
            if (empty || (!a.repeat && x % a.scale_w)) {
                std::fill_n(to, channels_, 0.0f);
            } else {
                std::copy_n(row + int64_t(x / a.scale_w) * channels_, channels_, to);
            }
        }
    }
}

}  // namespace bmx
