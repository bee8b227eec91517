#include <algorithm>
#include <cmath>
#include <cstring>

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

// Copies columns `stride` elements apart, of k elements, to rows.
void transpose(const float* from, ptrdiff_t stride, int n, int k, float* rows) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < k; j++) {
            rows[int64_t(i) * k + j] = from[j * stride + i];
        }
    }
}

// The right matrices of a product: a matrix for each of `heads` groups of channels, of all positions of a map or, by
// row, of those of each row. The positions are gathered, then each matrix is prepared in `prepared` bytes.
class RightMatrices {
  public:
    RightMatrices(const Source& source, int positions, int heads, bool by_row, size_t prepared)
        : value_(source.value),
          channels_(source.channels()),
          positions_(positions),
          heads_(heads),
          by_row_(by_row),
          prepared_(prepared) {}

    int count(const std::vector<Value>& values) const { return static_cast<int>(rows(values) * heads_); }
    size_t gathered_bytes(const std::vector<Value>& values) const {
        return round_up(sizeof(float) * rows(values) * positions_ * channels_, 64);
    }
    size_t prepared_bytes(const std::vector<Value>& values) const { return count(values) * prepared_; }

    // Returns the number of the matrix with which row y of the left map is multiplied.
    int number(int y, int head) const { return by_row_ ? y * heads_ + head : head; }

    // Returns the number of the first element of a matrix among those that are gathered.
    int64_t first(int matrix) const {
        return int64_t(matrix / heads_) * positions_ * channels_ + matrix % heads_ * (channels_ / heads_);
    }

  private:
    int64_t rows(const std::vector<Value>& values) const { return by_row_ ? values[value_].height : 1; }

    int value_, channels_, positions_, heads_;
    bool by_row_;
    size_t prepared_;
};

}  // namespace

StepPtr transpose_step(const FloatKernels* kernels, Source source, Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        constexpr int kPixelsAtOnce = 64;  // whose channels stay in the cache until all of them are read
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        const int64_t blocks = (map.width + kPixelsAtOnce - 1) / kPixelsAtOnce;  // of a row
        for (int64_t block = team.begin(map.height * blocks); block < team.end(map.height * blocks); block++) {
            const int64_t y = block / blocks, x = block % blocks * kPixelsAtOnce;
            const int pixels = static_cast<int>(std::min<int64_t>(kPixelsAtOnce, map.width - x));
            float* to = floats(output.data) + y * map.width + x;
            for (const Slab& slab : source.slabs) {
                const View view = memory.view(slab);
                kernels->pixels_to_planar(view.type, view.at(y * view.row + x * view.pixel), view.pixel, pixels,
                                          slab.channels, to, output.pixel);
                to += slab.channels * output.pixel;
            }
        }
    });
}

StepPtr arrange_step(Source source, Slab whole) {
    return function_step([=](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        gather_rows(memory, source, team.begin(map.height), team.end(map.height), floats(output.data), output.pixel);
    });
}

StepPtr gather_step(std::vector<Source> sources, const Attributes& attributes, std::vector<int32_t> places,
                    Slab whole) {
    for (int32_t& place : places) {
        place = std::min(std::max(place, 0), attributes.positions - 1);
    }
    return function_step(
        [sources = std::move(sources), places = std::move(places), whole](const Memory& memory, const Team& team, int) {
            const View output = memory.view(whole);
            const int end = team.end(static_cast<int64_t>(places.size()));
            for (int i = team.begin(static_cast<int64_t>(places.size())); i < end;) {
                int64_t place = places[i];
                auto source = sources.begin();
                const auto positions = [&] {
                    return memory.value(source->value).height * memory.value(source->value).width;
                };
                for (; place >= positions(); ++source) {
                    place -= positions();
                }
                int count = 1;  // of successive positions
                while (i + count < end && places[i + count] == places[i] + count && place + count < positions()) {
                    count++;
                }
                gather_pixels(memory, *source, place, count, floats(output.at(i * output.pixel)), output.pixel);
                i += count;
            }
        });
}

// First the right matrices are gathered, then prepared for the kernel, each for a thread, then rows of the left ones
// are multiplied.
StepPtr matmul_step(const FloatKernels* kernels, Source a, Source b, const Attributes& attributes, bool by_row,
                    Slab whole) {
    const int heads = attributes.heads, positions = attributes.positions;
    const bool transposed = attributes.transposed;
    const int b_channels = b.channels(), a_channels = a.channels(), k = a_channels / heads;
    const int n = transposed ? positions : b_channels / heads;
    const size_t prepared = round_up(kernels->gemm_weights_bytes(n, k), 64);
    const RightMatrices matrices(b, positions, heads, by_row, prepared);
    const size_t turned = transposed ? 0 : round_up(sizeof(float) * n * k, 64);  // of each thread
    const auto row_bytes = [value = a.value, a_channels](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width * a_channels + kFloatReadAhead, 64);
    };
    const auto run = [=](const Memory& memory, const Team& team, int phase) {
        const std::vector<Value>& values = *memory.values;
        float* const right = floats(memory.scratch);
        uint8_t* const weights = memory.scratch + matrices.gathered_bytes(values);
        uint8_t* const of_threads = weights + matrices.prepared_bytes(values);
        if (phase == 0) {
            const Value& map = memory.value(b.value);
            gather_rows(memory, b, team.begin(map.height), team.end(map.height), right, b_channels);
        } else if (phase == 1) {
            float* const columns = floats(of_threads + team.thread * turned);
            const int count = matrices.count(values);
            for (int matrix = team.begin(count); matrix < team.end(count); matrix++) {
                const float* from = right + matrices.first(matrix);
                if (!transposed) {
                    transpose(from, b_channels, n, k, columns);
                }
                kernels->gemm_prepare(n, k, transposed ? from : columns, transposed ? b_channels : k,
                                      weights + matrix * prepared);
            }
        } else {
            const Value& map = memory.value(a.value);
            const View output = memory.view(whole);
            float* const row = floats(of_threads + team.threads * turned + team.thread * row_bytes(values));
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
                                   weights + matrices.number(y, head) * prepared,
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
            return matrices.gathered_bytes(values) + matrices.prepared_bytes(values) +
                   threads * (turned + row_bytes(values));
        },
        3);
}

StepPtr sign_product_step(const BinaryKernels* kernels, Source a, Source b, const Attributes& attributes, bool by_row,
                          Slab whole) {
    const int heads = attributes.heads, positions = attributes.positions;
    const bool transposed = attributes.transposed;
    const int b_channels = b.channels(), a_channels = a.channels(), k = a_channels / heads;
    const int n = transposed ? positions : b_channels / heads;
    const BinaryConv conv = {k, n, 1, 1, 1, 1, 1, 1, 1, false};
    const int units = conv.units();
    const ptrdiff_t pixel_bytes = units * kernels->unit_bytes;
    const size_t prepared = round_up(kernels->weights_bytes(conv), 64);
    const RightMatrices matrices(b, positions, heads, by_row, prepared);
    const size_t turned = transposed ? 0 : round_up(sizeof(float) * n * k, 64);
    struct Parts {  // of the memory of a thread: rows or columns as floats, as words, as the kernel reads them, and its
                    // own
        size_t words, packed, work, bytes;
    };
    const auto parts_of = [=, value = a.value](const std::vector<Value>& values) {
        const int64_t width = values[value].width;
        Parts parts;
        parts.words = std::max(turned, round_up(sizeof(float) * width * a_channels, 64));
        parts.packed = parts.words + round_up(sizeof(uint32_t) * units * std::max<int64_t>(n, width), 64);
        parts.work = parts.packed + round_up(width * pixel_bytes + kReadAhead, 64);
        parts.bytes = parts.work + round_up(kernels->scratch_bytes(conv, 1, static_cast<int>(width)), 64);
        return parts;
    };
    const std::vector<float> zeros(k);
    const std::vector<uint32_t> no_flips(units);
    const auto run = [=](const Memory& memory, const Team& team, int phase) {
        const std::vector<Value>& values = *memory.values;
        float* const right = floats(memory.scratch);
        uint8_t* const weights = memory.scratch + matrices.gathered_bytes(values);
        uint8_t* const of_threads = weights + matrices.prepared_bytes(values);
        const Parts parts = parts_of(values);
        uint8_t* const own = of_threads + team.thread * parts.bytes;
        auto* const words = reinterpret_cast<uint32_t*>(own + parts.words);
        const auto pack = [&](const float* rows, ptrdiff_t stride, int count) {
            kernels->pack_f32(rows, stride, count, k, zeros.data(), no_flips.data(), words);
        };
        if (phase == 0) {
            const Value& map = memory.value(b.value);
            gather_rows(memory, b, team.begin(map.height), team.end(map.height), right, b_channels);
        } else if (phase == 1) {
            const int count = matrices.count(values);
            for (int matrix = team.begin(count); matrix < team.end(count); matrix++) {
                const float* from = right + matrices.first(matrix);
                if (!transposed) {
                    transpose(from, b_channels, n, k, floats(own));
                }
                pack(transposed ? from : floats(own), transposed ? b_channels : k, n);
                kernels->prepare_weights(conv, words, weights + matrix * prepared);
            }
        } else {
            const Value& map = memory.value(a.value);
            const View output = memory.view(whole);
            BinaryConvRun product = {};
            product.conv = &conv;
            product.input = own + parts.packed;
            product.pixel_bytes = pixel_bytes;
            product.row_bytes = map.width * pixel_bytes;
            product.rows = 1;
            product.columns = static_cast<int>(map.width);
            product.filter_end = n;
            product.type = DataType::f32;
            product.output_row = output.row;
            product.output_pixel = output.pixel;
            product.scratch = own + parts.work;
            for (int y = team.begin(map.height); y < team.end(map.height); y++) {
                gather_row(memory, a, y, floats(own), a_channels);
                for (int head = 0; head < heads; head++) {
                    pack(floats(own) + int64_t(head) * k, a_channels, product.columns);
                    kernels->expand(words, units, product.columns, units, own + parts.packed, pixel_bytes);
                    product.weights = weights + matrices.number(y, head) * prepared;
                    product.output = floats(output.at(y * output.row)) + int64_t(head) * n;
                    kernels->convolve(product);
                }
            }
        }
    };
    return function_step(
        run,
        [=](const std::vector<Value>& values, int threads) {
            return matrices.gathered_bytes(values) + matrices.prepared_bytes(values) + threads * parts_of(values).bytes;
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

StepPtr embedding_step(Source source, std::vector<float> table, int features, Slab whole) {
    const auto row_bytes = [value = source.value](const std::vector<Value>& values) {
        return round_up(sizeof(float) * values[value].width, 64);
    };
    const float last = static_cast<float>(table.size() / features - 1);
    const auto run = [=, table = std::move(table)](const Memory& memory, const Team& team, int) {
        const Value& map = memory.value(source.value);
        const View output = memory.view(whole);
        float* const numbers = floats(memory.scratch + team.thread * row_bytes(*memory.values));
        for (int y = team.begin(map.height); y < team.end(map.height); y++) {
            gather_row(memory, source, y, numbers, 1);
            float* to = floats(output.at(y * output.row));
            for (int64_t x = 0; x < map.width; x++, to += output.pixel) {
                const float limited = numbers[x] < last ? std::max(numbers[x], 0.0f) : last;  // also of NaN
                const auto row = static_cast<int64_t>(std::nearbyint(limited));
                std::memcpy(to, table.data() + row * features, sizeof(float) * features);
            }
        }
    };
    return function_step(run,
                         [=](const std::vector<Value>& values, int threads) { return threads * row_bytes(values); });
}

}  // namespace bmx
