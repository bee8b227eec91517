#include "steps/binary_step.h"

#include <algorithm>
#include <cstring>

#include "kernels/common/arithmetic.h"

namespace bmx {
namespace {

constexpr int kMinBandRows = 4;  // of the output

BinaryConv geometry(const Attributes& a, int channels) {
    return {channels,   a.out_channels, a.kernel_h,   a.kernel_w, a.stride_h,
            a.stride_w, a.dilation_h,   a.dilation_w, a.groups,   a.offset != 0};
}

}  // namespace

BinaryStep::BinaryStep(const BinaryStepSpec& spec, std::vector<PackedInput::Segment> segments, ElementwiseChain chain)
    : spec_(spec),
      chain_(std::move(chain)),
      conv_(geometry(spec.attributes, spec.channels)),
      input_(*spec.kernels, conv_, spec.attributes, std::move(segments)),
      packer_(spec.kernels, spec.output.buffer) {
    const BinaryKernels& kernels = *spec.kernels;
    const std::vector<uint32_t> reordered = input_.reordered(spec.weights);
    weights_ = Constants<uint8_t>(kernels.weights_bytes(conv_));
    kernels.prepare_weights(conv_, reordered.empty() ? spec.weights : reordered.data(), weights_.data());

    const Attributes& a = spec.attributes;
    if (a.pad_value == 0 && a.padded()) {
        tap_sums_.resize(static_cast<size_t>(a.taps()) * a.out_channels);
        const uint32_t* word = spec.weights;
        for (int filter = 0; filter < a.out_channels; filter++) {
            for (int tap = 0; tap < a.taps(); tap++) {
                int set = 0;
                for (int unit = 0; unit < conv_.group_units(); unit++) {
                    set += __builtin_popcount(*word++);
                }
                float sum = static_cast<float>(2 * set - conv_.in_channels / conv_.groups);
                tap_sums_[static_cast<size_t>(tap) * a.out_channels + filter] = a.offset ? sum / 2 : sum;
            }
        }
    }
    spec_.weights = nullptr;  // owned by the caller
}

// Returns whether the threads divide the filters instead of the rows, because that makes the largest part smaller.
bool BinaryStep::shares_filters(const std::vector<Value>& values, int threads) const {
    const int step = spec_.kernels->filter_step, blocks = ceil_div(spec_.attributes.out_channels, step);
    auto largest_part = [&](int64_t count) { return double(ceil_div(count, threads)) / double(count); };
    return largest_part(blocks) < largest_part(values[spec_.result].height);
}

// If the threads divide the filters, packing needs a second phase, after all filters have been computed.
int BinaryStep::phases(const std::vector<Value>& values, int threads) const {
    return !packer_.empty() && shares_filters(values, threads) ? 2 : 1;
}

// Returns how many maps of bits the kernel packs, the first ones of the packer, if it computes all filters.
int BinaryStep::packed_by_kernel() const {
    const bool stores_results = chain_.empty() && tap_sums_.empty() && packer_.packs_integers(conv_.out_channels);
    return stores_results && spec_.kernels->max_packings ? std::min(spec_.kernels->max_packings(conv_), packer_.count())
                                                         : 0;
}

BinaryStep::Map BinaryStep::map_of(const std::vector<Value>& values, int threads) const {
    const Value &input = values[spec_.input], &result = values[spec_.result];
    const Attributes& a = spec_.attributes;
    Map map;
    const int height = static_cast<int>(result.height);
    const int max_outputs = shares_filters(values, threads) ? height : ceil_div(height, threads);
    int pixels = spec_.kernels->band_pixels;
    if (!chain_.empty()) {  // a larger band is halved, because the operands of the chain need room in the cache, too
        pixels = std::max(pixels / 2, kBandPixels);
    }
    const int rows = pixels / static_cast<int>(result.width);
    map.band = std::min(max_outputs, std::max(kMinBandRows, rows));
    const int padded = static_cast<int>(input.height) + a.pad_top + a.pad_bottom;
    map.rows = input_.rows(input, std::min(padded, (map.band - 1) * a.stride_h + a.extent_h()));
    map.work = round_up(map.rows.bytes, 64);
    map.sums = map.work + round_up(spec_.kernels->scratch_bytes(conv_, map.band, static_cast<int>(result.width)), 64);
    const size_t sums = adds_in_place() ? 0 : size_of(spec_.sums) * map.band * result.width * a.out_channels;
    map.packings = map.sums + round_up(sums, 64);
    map.bytes = map.packings + round_up(packed_by_kernel() * sizeof(BinaryPacking), 64);
    return map;
}

size_t BinaryStep::scratch_bytes(const std::vector<Value>& values, int threads) const {
    return map_of(values, threads).bytes * threads;
}

void BinaryStep::run(const Memory& memory, const Team& team, int phase) const {
    const std::vector<Value>& values = *memory.values;
    const Value& result = memory.value(spec_.result);
    const int height = static_cast<int>(result.height), filters = spec_.attributes.out_channels;
    if (phase == 1) {
        const int64_t pixels = result.height * result.width;
        packer_.pack(memory, team.begin(pixels), team.end(pixels));
        return;
    }
    Part part = {team.begin(height), team.end(height), 0, filters};
    if (shares_filters(values, team.threads)) {
        const int step = spec_.kernels->filter_step, blocks = ceil_div(filters, step);
        part = {0, height, team.begin(blocks) * step, std::min(filters, team.end(blocks) * step)};
    }
    const Map map = map_of(values, team.threads);
    if (!part.empty()) {
        run_in_bands(memory, map, memory.scratch + team.thread * map.bytes, part);
    }
}

void BinaryStep::run_in_bands(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part) const {
    const Attributes& a = spec_.attributes;
    const int64_t width = memory.value(spec_.result).width;
    const bool packs = part.filter_begin == 0 && part.filter_end == a.out_channels;
    int first = part.row_begin * a.stride_h, expanded = first;  // rows `first` to `expanded` - 1 are expanded
    for (int begin = part.row_begin; begin < part.row_end; begin += map.band) {
        const int end = std::min(begin + map.band, part.row_end), next_first = begin * a.stride_h;
        if (expanded > next_first) {
            input_.move(map.rows, scratch, next_first - first, expanded - first);
        }
        first = next_first;
        const int needed = (end - 1) * a.stride_h + a.extent_h();
        input_.expand(memory, map.rows, scratch, first, std::max(expanded, first), needed);
        expanded = needed;
        convolve(memory, map, scratch, {begin, end, part.filter_begin, part.filter_end}, begin > part.row_begin);
        if (packs) {
            packer_.pack(memory, begin * width, end * width, packed_by_kernel());
        }
    }
}

// Convolves a part. `scratch` begins with the expanded row under the first row of the part. `continues`: whether the
// last part was the one above.
void BinaryStep::convolve(const Memory& memory, const Map& map, uint8_t* scratch, const Part& part,
                          bool continues) const {
    // The results of the convolution, beginning with the first row.
    View sums = memory.view(spec_.output);
    if (adds_in_place()) {
        sums.data = sums.at(part.row_begin * sums.row);
    } else {
        sums.type = spec_.sums;
        sums.data = scratch + map.sums;
    }
    BinaryConvRun run;
    run.conv = &conv_;
    run.weights = weights_.data();
    input_.set_input(map.rows, scratch, run);
    run.scratch = scratch + map.work;
    run.rows = part.row_end - part.row_begin;
    run.columns = static_cast<int>(memory.value(spec_.result).width);
    run.filter_begin = part.filter_begin;
    run.filter_end = part.filter_end;
    run.continues = continues;
    run.type = sums.type;
    run.output = sums.data;
    run.output_row = sums.row;
    run.output_pixel = sums.pixel;
    run.addend = nullptr;
    if (spec_.addend >= 0) {
        const View addend = memory.view({spec_.addend, 0, spec_.attributes.out_channels});
        run.addend = addend.at(part.row_begin * addend.row);
    }
    if (part.filter_begin == 0 && part.filter_end == conv_.out_channels) {
        BinaryPacking* const packings = reinterpret_cast<BinaryPacking*>(scratch + map.packings);
        run.packing_count = packed_by_kernel();
        packer_.write_packings(memory, part.row_begin * int64_t(run.columns), run.packing_count, packings);
        run.packings = packings;
    }
    spec_.kernels->convolve(run);
    if (!tap_sums_.empty()) {
        sums.type == DataType::f32 ? correct_zero_padding<float>(memory, part, sums)
                                   : correct_zero_padding<int16_t>(memory, part, sums);
    }
    if (!chain_.empty()) {
        finish(memory, part, sums);
    }
}

// Applies the elementwise operations to the sums of a part, which is in the cache.
void BinaryStep::finish(const Memory& memory, const Part& part, const View& sums) const {
    const int64_t width = memory.value(spec_.result).width;
    chain_.apply(memory, {sums.type, sums.at(part.filter_begin), sums.pixel}, memory.view(spec_.output),
                 part.row_begin * width, part.row_end * width, part.filter_begin, part.filter_end - part.filter_begin);
}

// Corrects the results of a map padded with -1 to padding with 0: adds the weights of all taps outside the map.
template <class T>
void BinaryStep::correct_zero_padding(const Memory& memory, const Part& part, const View& sums) const {
    const Attributes& a = spec_.attributes;
    const Value& input = memory.value(spec_.input);
    const int columns = static_cast<int>(memory.value(spec_.result).width);
    const int extent_h = a.extent_h(), extent_w = a.extent_w();
    for (int y = part.row_begin; y < part.row_end; y++) {
        const int top = y * a.stride_h - a.pad_top;
        const bool rows_inside = top >= 0 && top + extent_h <= input.height;
        for (int x = 0; x < columns; x++) {
            const int left = x * a.stride_w - a.pad_left;
            if (rows_inside && left >= 0 && left + extent_w <= input.width) {
                continue;
            }
            T* pixel = reinterpret_cast<T*>(sums.at((y - part.row_begin) * sums.row + x * sums.pixel));
            for (int tap = 0; tap < a.taps(); tap++) {
                const int tap_y = top + tap / a.kernel_w * a.dilation_h, tap_x = left + tap % a.kernel_w * a.dilation_w;
                if (tap_y >= 0 && tap_y < input.height && tap_x >= 0 && tap_x < input.width) {
                    continue;
                }
                const float* of_tap = tap_sums_.data() + static_cast<size_t>(tap) * a.out_channels;
                for (int filter = part.filter_begin; filter < part.filter_end; filter++) {
                    pixel[filter] = static_cast<T>(static_cast<float>(pixel[filter]) + of_tap[filter]);
                }
            }
        }
    }
}

}  // namespace bmx
