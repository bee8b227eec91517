// Time the binary kernels on the shapes of MeliusNet's dense blocks (3x3, 64 filters), in one thread.
//
// Prints multiply-accumulates a second (padded positions counted) of the convolution without and with the packing of
// its input from 16-bit integers, and percent of this instruction set's peak: XOR, population count and addition in
// registers. Shapes take turns and the median counts, so that other load on the machine meets all alike. Built and run
// by `python benchmarks/binary_kernels.py`.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <vector>

#include "../tests/csrc/kernel_tables.h"
#include "peaks/peak.h"

namespace {

using namespace bmx;

constexpr int kShapes[][2] = {{64, 56}, {128, 28}, {256, 14}, {320, 56}, {480, 28}, {512, 7}};  // channels, size
constexpr int kFilters = 64;

// Processor time: what other programs take from this one does not count.
double now() {
    timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec + 1e-9 * time.tv_nsec;
}

uint8_t* aligned(size_t size) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, size)) {
        std::abort();
    }
    std::memset(data, 0, size);
    return static_cast<uint8_t*>(data);
}

struct Layer {
    BinaryConv conv;
    int size;
    const BinaryKernels* table;
    int plane_units;  // of a pixel; all if the map has no planes
    ptrdiff_t pixel_bytes, row_bytes, plane_bytes;
    std::vector<int16_t> x, threshold, y;
    std::vector<uint32_t> flip, bits;
    std::vector<int32_t> counts;
    uint8_t *map, *weights, *scratch;  // live as long as the program
    std::vector<double> packing, convolving;

    Layer(const BinaryKernels* kernels, int channels, int map_size)
        : conv{channels, kFilters, 3, 3, 1, 1, 1, 1, 1, false}, size(map_size), table(kernels) {
        std::mt19937 random(1);
        plane_units = table->plane_units ? table->plane_units : conv.units();
        pixel_bytes = ptrdiff_t(plane_units) * table->unit_bytes;
        row_bytes = (size + 1) * pixel_bytes;
        plane_bytes = (size + 2) * row_bytes + pixel_bytes;
        counts.resize(plane_bytes / pixel_bytes);
        for (int i = 0; i < size * size * channels; ++i) {
            x.push_back(static_cast<int16_t>(random()));
        }
        threshold.resize(channels);
        flip.resize(conv.units());
        bits.resize(size * conv.units());
        y.resize(size * size * kFilters);
        map = aligned((conv.units() + plane_units - 1) / plane_units * plane_bytes + kReadAhead);
        std::vector<uint32_t> words(size_t(kFilters) * 9 * conv.units());
        for (auto& word : words) {
            word = static_cast<uint32_t>(random());
        }
        weights = aligned(table->weights_bytes(conv));
        table->prepare_weights(conv, words.data(), weights);
        scratch = aligned(table->scratch_bytes(conv, size, size));
    }

    void pack() {
        for (int row = 0; row < size; ++row) {
            table->pack_i16(x.data() + row * size * conv.in_channels, conv.in_channels, size, conv.in_channels,
                            threshold.data(), flip.data(), bits.data());
            expand((row + 1) * (size + 1) + 1);
        }
    }

    // Expands a row of bits; an odd unit of planes also to the second half of the row above.
    void expand(int first) {
        const int units = conv.units();
        std::fill_n(counts.begin() + first, size, 0);
        for (int unit = 0; unit < units; unit += plane_units) {
            const int some = std::min(plane_units, units - unit);
            uint8_t* const to = map + unit / plane_units * plane_bytes + first * pixel_bytes;
            table->expand(bits.data() + unit, units, size, some, to, pixel_bytes);
            if (some < plane_units) {
                table->expand(bits.data() + unit, units, size, some, to - row_bytes + table->unit_bytes, pixel_bytes);
            }
            if (table->count) {
                table->count(bits.data() + unit, units, size, some, counts.data() + first);
            }
        }
    }

    void convolve() {
        table->convolve({&conv, weights, map, row_bytes, pixel_bytes, plane_bytes, counts.data(),
                         static_cast<ptrdiff_t>(counts.size()), size, size, 0, kFilters, DataType::i16, y.data(),
                         ptrdiff_t(size) * kFilters, kFilters, nullptr, scratch});
    }

    double macs() const { return double(size) * size * kFilters * 9 * conv.in_channels; }

    void time() {
        const int repetitions = 4 + static_cast<int>(8e8 / macs());
        const double begin = now();
        for (int i = 0; i < repetitions; ++i) {
            pack();
        }
        const double middle = now();
        for (int i = 0; i < repetitions; ++i) {
            convolve();
        }
        packing.push_back((middle - begin) / repetitions);
        convolving.push_back((now() - middle) / repetitions);
    }
};

double median(std::vector<double> values) {
    std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
    return values[values.size() / 2];
}

void report(const InstructionSet& set, const BinaryKernels* table, int rounds) {
    std::vector<Layer> layers;
    for (const auto& shape : kShapes) {
        layers.emplace_back(table, shape[0], shape[1]);
    }
    std::vector<double> peaks;
    for (int round = 0; round < rounds; ++round) {
        peaks.push_back(best_rate(measure_peaks(set, .005), MacKind::binary));
        for (Layer& layer : layers) {
            layer.time();
        }
    }
    const double peak = median(peaks);
    std::printf("%s: peak %.3f e12 MAC/s\n", table->name, peak * 1e-12);
    for (const Layer& layer : layers) {
        const double convolution = layer.macs() / median(layer.convolving);
        const double packed = layer.macs() / (median(layer.convolving) + median(layer.packing));
        std::printf("  %3d channels %2dx%-2d  convolve %.3f e12 (%3.0f %%)  with packing %.3f e12 (%3.0f %%)\n",
                    layer.conv.in_channels, layer.size, layer.size, convolution * 1e-12, 100 * convolution / peak,
                    packed * 1e-12, 100 * packed / peak);
    }
}

}  // namespace

int main(int argc, char** argv) {
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 15;
    const char* only = argc > 2 ? argv[2] : nullptr;
    for (const InstructionSet& set : instruction_sets()) {
        if (!only || !std::strcmp(only, set.name)) {
            for (const BinaryKernels* table : binary_tables(set)) {
                report(set, table, rounds);
            }
        }
    }
}
