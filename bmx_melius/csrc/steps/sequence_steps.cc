#include "steps/function_step.h"
#include "steps/map_steps.h"

namespace bmx {
namespace {

float* floats(uint8_t* data) { return reinterpret_cast<float*>(data); }

// Copies the rows `begin` to `end` - 1 of a value to pixels `stride` elements apart, of which `to` is the first one.
void gather_rows(const Memory& memory, const Source& source, int begin, int end, float* to, ptrdiff_t stride) {
    const int64_t width = memory.value(source.value).width;
    for (int y = begin; y < end; y++) {
        gather_row(memory, source, y, to + y * width * stride, stride);
    }
}

int64_t pixels_of(const Value& map) { return map.height * map.width; }

}  // namespace

StepPtr transpose_step(Source source, Slab whole) {
    const int channels = source.channels();
    const auto row_bytes = [value = source.value, channels](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width * channels, 64);
    };
    const auto run = [=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        float* const row = floats(memory.scratch + team.thread * row_bytes(*memory.values));
        for (int y = team.begin(map.height); y < team.end(map.height); y++) {
            gather_row(memory, source, y, row, channels);
            float* to = floats(output.data) + y * map.width;
            for (int c = 0; c < channels; c++, to += output.pixel) {
                for (int64_t x = 0; x < map.width; x++) {
                    to[x] = row[x * channels + c];
                }
            }
        }
    };
    return function_step(run,
                         [=](const std::vector<Value>& values, int threads) { return threads * row_bytes(values); });
}

StepPtr arrange_step(Source source, Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        gather_rows(memory, source, team.begin(map.height), team.end(map.height), floats(output.data), output.pixel);
    });
}

// First the right matrices are gathered, then prepared for the kernel, each for a thread, then rows of the left ones
// are multiplied.
StepPtr matmul_step(const FloatKernels* kernels, Source a, Source b, const Attributes& attributes, Slab whole) {
    const int heads = attributes.heads, positions = attributes.positions;
    const bool transposed = attributes.transposed;
    const int b_channels = b.channels(), a_channels = a.channels(), k = a_channels / heads;
    const int n = transposed ? positions : b_channels / heads;
    const size_t gathered = round_up(sizeof(float) * positions * b_channels, 64);
    const size_t prepared = round_up(kernels->gemm_weights_bytes(n, k), 64), all = heads * prepared;
    const size_t turned = transposed ? 0 : round_up(sizeof(float) * n * k, 64);  // of each thread
    const auto row_bytes = [value = a.value, a_channels](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width * a_channels + kFloatReadAhead, 64);
    };
    const auto run = [=](const Memory& memory, const Team& team, int phase) {
        float* const right = floats(memory.scratch);
        uint8_t* const weights = memory.scratch + gathered;
        if (phase == 0) {
            const Value& map = memory.value(b.value);
            gather_rows(memory, b, team.begin(map.height), team.end(map.height), right, b_channels);
        } else if (phase == 1) {
            float* const columns = floats(weights + all + team.thread * turned);
            for (int head = team.begin(heads); head < team.end(heads); head++) {
                const float* from = right + head * (b_channels / heads);
                if (!transposed) {
                    for (int i = 0; i < n; i++) {
                        for (int j = 0; j < k; j++) {
                            columns[int64_t(i) * k + j] = from[int64_t(j) * b_channels + i];
                        }
                    }
                }
                kernels->gemm_prepare(n, k, transposed ? from : columns, transposed ? b_channels : k,
                                      weights + head * prepared);
            }
        } else {
            const Value& map = memory.value(a.value);
            const View output = memory.view(whole);
            float* const row = floats(weights + all + team.threads * turned + team.thread * row_bytes(*memory.values));
            const int width = static_cast<int>(map.width);
            for (int y = team.begin(map.height); y < team.end(map.height); y++) {
                gather_row(memory, a, y, row, a_channels);
                for (int head = 0; head < heads; head++) {
                    kernels->gemm({width,
                                   n,
                                   k,
                                   row + int64_t(head) * k,
                                   a_channels,
                                   nullptr,
                                   weights + head * prepared,
                                   floats(output.at(y * output.row)) + int64_t(head) * n,
                                   output.pixel,
                                   {nullptr, nullptr, false}});
                }
            }
        }
    };
    return function_step(
        run,
        [=](const std::vector<Value>& values, int threads) {
            return gathered + all + threads * (turned + row_bytes(values));
        },
        3);
}

StepPtr softmax_step(const FloatKernels* kernels, Source source, int groups, Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        const int in_group = source.channels() / groups;
        for (int y = team.begin(map.height); y < team.end(map.height); y++) {
            float* const row = floats(output.at(y * output.row));
            gather_row(memory, source, y, row, output.pixel);
            for (int64_t i = 0; i < map.width * groups; i++) {
                kernels->softmax(row + i / groups * output.pixel + i % groups * in_group, in_group);
            }
        }
    });
}

}  // namespace bmx
