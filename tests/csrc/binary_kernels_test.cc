// Tests of the binary kernels: bitwise comparison with plain loops, on random shapes and edge cases.
//
//     binary_kernels_test INSTRUCTION_SET CASES
//
// Each case draws a layer, a map and a part of the output, computes the expected result as dot products of +1 and -1
// over unpacked elements, and compares the kernel tables of the instruction set with it. Buffers end exactly where the
// contract of the kernels allows accesses to end, next to protected pages.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <limits>
#include <vector>

#include "binary_cases.h"
#include "kernel_tables.h"

namespace {

using namespace bmx;

// Memory between two protected pages, adjacent to one of them: access beyond it terminates the program, including
// access by vector and tile instructions, which AddressSanitizer does not check.
template <typename T>
class Guarded {
  public:
    Guarded(size_t size, bool at_end) : size_(size) {
        const size_t page = sysconf(_SC_PAGESIZE), bytes = (size * sizeof(T) + page - 1) / page * page;
        mapped_ = bytes + 2 * page;
        memory_ = mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        uint8_t* begin = static_cast<uint8_t*>(memory_) + page;
        if (memory_ == MAP_FAILED || (bytes > 0 && mprotect(begin, bytes, PROT_READ | PROT_WRITE))) {
            std::abort();
        }
        data_ = reinterpret_cast<T*>(at_end ? begin + bytes - size * sizeof(T) : begin);
    }
    ~Guarded() { munmap(memory_, mapped_); }
    Guarded(const Guarded&) = delete;
    Guarded& operator=(const Guarded&) = delete;
    T* begin() const { return data_; }
    T* end() const { return data_ + size_; }
    T* data() const { return data_; }
    T& operator[](size_t i) const { return data_[i]; }
    size_t size() const { return size_; }

  private:
    size_t size_, mapped_;
    void* memory_;
    T* data_;
};

bool fail(const BinaryKernels& table, const Case& c, const char* what, long at, double is, double must_be) {
    std::printf("FAILED: %s, %s: %s at %ld is %g, must be %g\n", table.name, describe(c).c_str(), what, at, is,
                must_be);
    return false;
}

// The plain loop with which the kernels are compared. It takes most of the time of the tests: its checks by sanitizers,
// which are for the kernels, would take much longer.
[[gnu::optimize("O3"), gnu::no_sanitize("address", "undefined")]] int dot(const int8_t* x, const int8_t* y, int n) {
    int sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += x[i] * y[i];
    }
    return sum;
}

// A layer with unpacked elements and the expected result.
struct Example {
    explicit Example(const Case& c);
    int element(int y, int x, int channel) const { return elements[(size_t(y) * width + x) * channels + channel]; }

    Case c;
    int channels, height, width;   // size of the map
    std::vector<int8_t> elements;  // +1 or -1
    std::vector<int8_t> weights;   // +1 or -1: (out, kernel_h, kernel_w, in / groups)
    std::vector<uint32_t> words;   // the weights in the layout of the file
    std::vector<int> result;       // (rows, columns, out)
};

Example::Example(const Case& which) : c(which) {
    const BinaryConv& v = c.conv;
    Random r(c.seed);
    channels = v.in_channels;
    height = (c.rows - 1) * v.stride_h + (v.kernel_h - 1) * v.dilation_h + 1 + 2 * c.margin;
    width = (c.columns - 1) * v.stride_w + (v.kernel_w - 1) * v.dilation_w + 1 + 2 * c.margin;
    elements.resize(size_t(height) * width * channels);
    // A quarter of the cases are random; in the others all elements, all weights or both are equal, or each sixth
    // element is set. Sums in narrow integers are largest if elements and weights differ everywhere or nowhere, and
    // numbers of odd groups of bits if each has a single one.
    const int kind = r.between(0, 11);
    const bool all_clear = kind == 0 || kind == 4 || kind == 6, all_set = kind == 1 || kind == 5 || kind == 7;
    const bool sparse = kind == 8;
    for (size_t i = 0; i < elements.size(); ++i) {
        const bool set = sparse ? i % channels % (channels / v.groups) % 6 == 0 : all_set || r.word() >> 7 & 1;
        elements[i] = set && !all_clear ? 1 : -1;
    }

    const int group_channels = v.in_channels / v.groups;
    words.assign(size_t(v.out_channels) * v.kernel_h * v.kernel_w * v.group_units(), 0);
    for (size_t tap = 0; tap < size_t(v.out_channels) * v.kernel_h * v.kernel_w; ++tap) {
        for (int i = 0; i < group_channels; ++i) {
            const bool all = kind == 2 || kind == 4 || kind == 7, none = kind == 3 || kind == 5 || kind == 6;
            const bool set = all ? true : none ? false : r.word() >> 7 & 1;
            weights.push_back(set ? 1 : -1);
            words[tap * v.group_units() + i / 32] |= uint32_t(set) << i % 32;
        }
    }

    const int n = static_cast<int>(v.weights_per_output());
    for (int row = 0; row < c.rows; ++row) {
        for (int column = 0; column < c.columns; ++column) {
            for (int filter = 0; filter < v.out_channels; ++filter) {
                const int first = filter / (v.out_channels / v.groups) * group_channels;
                const int8_t* w = weights.data() + int64_t(filter) * n;
                int h = 0;
                for (int y = 0; y < v.kernel_h; ++y) {
                    for (int x = 0; x < v.kernel_w; ++x) {
                        const int my = c.margin + row * v.stride_h + y * v.dilation_h;
                        const int mx = c.margin + column * v.stride_w + x * v.dilation_w;
                        h += dot(&elements[(size_t(my) * width + mx) * channels + first], w, group_channels);
                        w += group_channels;
                    }
                }
                result.push_back(v.offset ? (h + n) / 2 : h);
            }
        }
    }
}

// Sets an element of a packed pixel, which must be 0.
void set_element(uint8_t* pixel, int unit_bytes, int element) {
    const int in_byte = 32 / unit_bytes;
    pixel[element / in_byte] |= 1 << element % in_byte;
}

// Fills memory with random bits.
template <typename T>
void fill_randomly(const Guarded<T>& memory, Random& r) {
    for (T& element : memory) {
        element = static_cast<T>(r.word());
    }
}

// The packed map of an example, in memory that ends where kernels may still read; what has no meaning is random.
struct PackedMap {
    PackedMap(const BinaryKernels& table, const Example& e, Random& r)
        : example(e),
          table(table),
          planes(table.plane_units ? e.c.conv.groups * planes_of_group() : 1),
          pixel_bytes(ptrdiff_t(table.plane_units ? table.plane_units : e.c.conv.units()) * table.unit_bytes),
          row_bytes((e.width + e.c.gap) * pixel_bytes),
          plane_bytes(row_bytes * (e.height - 1) + pixel_bytes * e.width),
          group_counts(plane_bytes / pixel_bytes),
          map(planes * plane_bytes + kReadAhead, e.c.seed % 2),
          counts(e.c.conv.groups * group_counts, e.c.seed % 2) {
        fill_randomly(map, r);
        fill_randomly(counts, r);
        for (int y = 0; y < e.height; ++y) {
            for (int x = 0; x < e.width; ++x) {
                pack(y, x);
            }
        }
    }

    const uint8_t* input() const { return map.data() + example.c.margin * (row_bytes + pixel_bytes); }
    const int32_t* counts_at_input() const { return counts.data() + (input() - map.data()) / pixel_bytes; }

    int planes_of_group() const { return (example.c.conv.group_units() + 1) / 2; }
    uint8_t* pixel(int plane, int y, int x) const {
        return map.data() + plane * plane_bytes + y * row_bytes + x * pixel_bytes;
    }

    // Packs a pixel, group by group.
    void pack(int y, int x) const {
        const BinaryConv& v = example.c.conv;
        const int group_channels = v.in_channels / v.groups, plane_units = table.plane_units;
        const bool pairs = plane_units && v.group_units() % 2 && v.kernel_h > 1;
        for (int group = 0; group < v.groups; ++group) {
            int set = 0;
            for (int unit = 0; unit < v.group_units(); ++unit) {
                const int plane = plane_units ? group * planes_of_group() + unit / 2 : 0;
                const int at = plane_units ? unit % 2 : group * v.group_units() + unit;
                uint8_t* const to = pixel(plane, y, x) + at * table.unit_bytes;
                std::memset(to, 0, table.unit_bytes);
                for (int i = 0; i < 32 && unit * 32 + i < group_channels; ++i) {
                    if (example.element(y, x, group * group_channels + unit * 32 + i) > 0) {
                        set_element(to, table.unit_bytes, i);
                        ++set;
                    }
                }
                if (pairs && unit == v.group_units() - 1 && y >= v.dilation_h) {
                    std::memcpy(pixel(plane, y - v.dilation_h, x) + table.unit_bytes, to, table.unit_bytes);
                }
            }
            counts[group * group_counts + (y * row_bytes + x * pixel_bytes) / pixel_bytes] = set;
        }
    }

    const Example& example;
    const BinaryKernels& table;
    const int planes;
    const ptrdiff_t pixel_bytes, row_bytes, plane_bytes, group_counts;
    const Guarded<uint8_t> map;
    const Guarded<int32_t> counts;
};

template <typename T>
bool check_convolve(const BinaryKernels& table, const Example& e) {
    const Case& c = e.c;
    const BinaryConv& v = c.conv;
    Random r(c.seed + 1);
    const bool at_end = c.seed % 2;

    const PackedMap packed(table, e, r);
    // aligned to 64 bytes at either end
    Guarded<uint8_t> prepared((table.weights_bytes(v) + 63) / 64 * 64, at_end);
    {
        Guarded<uint32_t> words(e.words.size(), at_end);
        std::copy(e.words.begin(), e.words.end(), words.begin());
        table.prepare_weights(v, words.data(), prepared.data());
    }

    const int steps = (v.out_channels + table.filter_step - 1) / table.filter_step;
    const int begin = steps * c.first_step / 16 * table.filter_step;
    const int end = std::min(v.out_channels, (steps * c.last_step + 15) / 16 * table.filter_step);
    const ptrdiff_t output_pixel = v.out_channels + c.gap;
    const ptrdiff_t output_row = c.columns * output_pixel + c.gap;
    const size_t output_size = output_row * (c.rows - 1) + output_pixel * (c.columns - 1) + v.out_channels;
    Guarded<T> output(output_size, at_end), addend(output_size, at_end);
    for (auto& x : output) {
        x = T(r.between(-100, 100));
    }
    for (auto& x : addend) {
        x = T(r.between(-100, 100)) / T(c.type == DataType::f32 ? 8 : 1);
    }
    const bool in_place = c.addend && c.seed / 4 % 2;
    if (in_place) {
        std::copy(addend.begin(), addend.end(), output.begin());
    }
    const T* const addend_data = in_place ? output.data() : c.addend ? addend.data() : nullptr;
    const std::vector<T> before(output.begin(), output.end());
    std::vector<T> expected = before;
    for (int row = 0; row < c.rows; ++row) {
        for (int column = 0; column < c.columns; ++column) {
            for (int filter = begin; filter < end; ++filter) {
                const ptrdiff_t at = row * output_row + column * output_pixel + filter;
                const int result = e.result[(size_t(row) * c.columns + column) * v.out_channels + filter];
                expected[at] = c.addend ? T(T(result) + addend[at]) : T(result);
            }
        }
    }

    // Bits of the results, with thresholds of which some equal results.
    const bool packs = table.max_packings && c.type == DataType::i16 && begin == 0 && end == v.out_channels;
    const int packing_count = packs ? r.between(0, table.max_packings(v)) : 0, units = (v.out_channels + 31) / 32;
    const size_t pixels = size_t(c.rows) * c.columns;
    std::deque<Guarded<int16_t>> thresholds;
    std::deque<Guarded<uint32_t>> flips, words;
    std::vector<BinaryPacking> packings;
    for (int i = 0; i < packing_count; ++i) {
        thresholds.emplace_back(v.out_channels, at_end);
        flips.emplace_back(units, at_end);
        words.emplace_back(pixels * units, at_end);
        for (int filter = 0; filter < v.out_channels; ++filter) {
            thresholds[i][filter] = r.once_in(16) ? -32768 : int16_t(expected[filter] + r.between(-20, 20));
            flips[i][filter / 32] |= (r.word() >> 7 & 1) << filter % 32;
        }
        fill_randomly(words[i], r);
        packings.push_back({thresholds[i].data(), flips[i].data(), words[i].data()});
    }

    // Scratch has arbitrary content. Sums of large numbers that a kernel reads from it overflow, which sanitizers
    // detect.
    Guarded<uint8_t> scratch((table.scratch_bytes(v, c.rows, c.columns) + 63) / 64 * 64, at_end);
    std::memset(scratch.data(), c.seed / 2 % 2 ? 0x7f : 0x80, scratch.size());
    BinaryConvRun run = {&v,
                         prepared.data(),
                         packed.input(),
                         packed.row_bytes,
                         packed.pixel_bytes,
                         packed.plane_bytes,
                         packed.counts_at_input(),
                         packed.group_counts,
                         c.rows,
                         c.columns,
                         begin,
                         end,
                         c.type,
                         output.data(),
                         output_row,
                         output_pixel,
                         addend_data,
                         scratch.data(),
                         packings.data(),
                         packing_count};
    table.convolve(run);
    for (size_t i = 0; i < output_size; ++i) {
        if (output[i] != expected[i]) {
            return fail(table, c, "output", i, output[i], expected[i]);
        }
    }
    // The first rows again, with the same working memory.
    std::copy(before.begin(), before.end(), output.begin());
    run.rows = (c.rows + 1) / 2;
    run.continues = true;
    table.convolve(run);
    for (size_t i = 0; i < output_size; ++i) {
        const T must_be = ptrdiff_t(i) < run.rows * output_row ? expected[i] : before[i];
        if (output[i] != must_be) {
            return fail(table, c, "output of a run that continues", i, output[i], must_be);
        }
    }
    for (int i = 0; i < packing_count; ++i) {
        for (size_t pixel = 0; pixel < pixels; ++pixel) {
            const T* const results = &expected[pixel / c.columns * output_row + pixel % c.columns * output_pixel];
            for (int unit = 0; unit < units; ++unit) {
                uint32_t bits = flips[i][unit];
                for (int filter = unit * 32; filter < unit * 32 + 32; ++filter) {
                    bits ^= uint32_t(results[filter] >= thresholds[i][filter]) << filter % 32;
                }
                if (words[i][pixel * units + unit] != bits) {
                    return fail(table, c, "packed result", pixel, words[i][pixel * units + unit], bits);
                }
            }
        }
    }
    return true;
}

float special(float, Random& r) {
    const float infinity = std::numeric_limits<float>::infinity();
    const float values[] = {0.f, -0.f, infinity, -infinity, std::nanf(""), 1e-45f, -1e-45f, 3e38f};
    return values[r.between(0, 7)];
}

int16_t special(int16_t, Random& r) {
    const int16_t values[] = {0, -1, 1, 32767, -32768, -32767, 255, 256};
    return values[r.between(0, 7)];
}

// Numbers, some of them special, and thresholds of channels with which they are compared.
template <typename T>
struct Comparison {
    Comparison(const Case& c, size_t size, Random& r)
        : x(size, c.seed % 2),
          threshold(c.conv.in_channels, c.seed % 2),
          flip((c.conv.in_channels + 31) / 32, c.seed % 2) {
        for (const Guarded<T>* numbers : {&x, &threshold}) {
            for (T& number : *numbers) {
                number = r.once_in(8) ? special(T(), r) : T(r.between(-20, 20));
            }
        }
        for (int i = 0; i < c.conv.in_channels; ++i) {
            flip[i / 32] |= (r.word() >> 7 & 1) << i % 32;
        }
    }
    bool bit(size_t at, int channel) const {
        return (x[at] >= threshold[channel]) != (flip[channel / 32] >> channel % 32 & 1);
    }

    Guarded<T> x, threshold;
    Guarded<uint32_t> flip;
};

template <typename T>
bool check_pack(const BinaryKernels& table,
                void (*pack)(const T*, ptrdiff_t, int, int, const T*, const uint32_t*, uint32_t*), const Case& c) {
    Random r(c.seed + 2);
    const int channels = c.conv.in_channels, pixels = c.columns, units = (channels + 31) / 32;
    const ptrdiff_t stride = channels + c.gap;
    const Comparison<T> compared(c, stride * (pixels - 1) + channels, r);
    const Guarded<uint32_t> words(size_t(units) * pixels, c.seed % 2);
    fill_randomly(words, r);
    std::vector<uint32_t> expected(words.size());
    for (int pixel = 0; pixel < pixels; ++pixel) {
        for (int i = 0; i < channels; ++i) {
            expected[pixel * units + i / 32] |= uint32_t(compared.bit(pixel * stride + i, i)) << i % 32;
        }
    }
    pack(compared.x.data(), stride, pixels, channels, compared.threshold.data(), compared.flip.data(), words.data());
    for (size_t i = 0; i < words.size(); ++i) {
        if (words[i] != expected[i]) {
            return fail(table, c, "packed word", i, words[i], expected[i]);
        }
    }
    return true;
}

bool check_pack_planes(const BinaryKernels& table, const Case& c) {
    Random r(c.seed + 4);
    const int channels = c.conv.in_channels, pixels = c.columns, units = (channels + 31) / 32;
    const ptrdiff_t stride = pixels + c.gap;
    const Comparison<float> compared(c, stride * (channels - 1) + pixels, r);
    const Guarded<uint32_t> words(size_t(units) * pixels, c.seed % 2);
    fill_randomly(words, r);
    table.pack_planes(compared.x.data(), stride, pixels, channels, compared.threshold.data(), compared.flip.data(),
                      words.data());
    for (int pixel = 0; pixel < pixels; ++pixel) {
        for (int channel = 0; channel < units * 32; ++channel) {
            const bool is = words[pixel * units + channel / 32] >> channel % 32 & 1;
            if (is != (channel < channels && compared.bit(channel * stride + pixel, channel))) {
                return fail(table, c, "bit packed from planes", channel, is, !is);
            }
        }
    }
    return true;
}

bool check_expand(const BinaryKernels& table, const Case& c) {
    Random r(c.seed + 3);
    const int pixels = c.columns, all = (c.conv.in_channels + 31) / 32;
    const int units = table.plane_units ? std::min(all, table.plane_units) : all;
    const ptrdiff_t stride = units + (c.addend ? c.gap : 0),
                    packed_stride = ptrdiff_t(units + c.gap) * table.unit_bytes;
    const Guarded<uint32_t> words(stride * (pixels - 1) + units, c.seed % 2);
    fill_randomly(words, r);
    Guarded<uint8_t> packed(packed_stride * (pixels - 1) + units * table.unit_bytes, c.seed % 2);
    fill_randomly(packed, r);
    Guarded<int32_t> counts(pixels, c.seed % 2);
    std::vector<uint8_t> expected(packed.begin(), packed.end());
    std::vector<int32_t> expected_counts(pixels);
    for (int pixel = 0; pixel < pixels; ++pixel) {
        counts[pixel] = expected_counts[pixel] = r.between(0, 1000);
        uint8_t* to = expected.data() + pixel * packed_stride;
        std::memset(to, 0, units * table.unit_bytes);
        for (int i = 0; i < units * 32; ++i) {
            if (words[pixel * stride + i / 32] >> i % 32 & 1) {
                set_element(to, table.unit_bytes, i);
                ++expected_counts[pixel];
            }
        }
    }
    table.expand(words.data(), stride, pixels, units, packed.data(), packed_stride);
    for (size_t i = 0; i < packed.size(); ++i) {
        if (packed[i] != expected[i]) {
            return fail(table, c, "expanded byte", i, packed[i], expected[i]);
        }
    }
    if (table.count) {
        table.count(words.data(), stride, pixels, units, counts.data());
        for (int pixel = 0; pixel < pixels; ++pixel) {
            if (counts[pixel] != expected_counts[pixel]) {
                return fail(table, c, "count", pixel, counts[pixel], expected_counts[pixel]);
            }
        }
    }
    return true;
}

bool check(const std::vector<const BinaryKernels*>& tables, const Case& c) {
    const Example example(c);
    bool good = true;
    for (const BinaryKernels* table : tables) {
        const bool is_float = c.type == DataType::f32;
        good &= is_float ? check_convolve<float>(*table, example) : check_convolve<int16_t>(*table, example);
        good &= check_pack<float>(*table, table->pack_f32, c) && check_pack<int16_t>(*table, table->pack_i16, c);
        good &= check_pack_planes(*table, c) && check_expand(*table, c);
    }
    return good;
}

}  // namespace

int main(int, char** arguments) {
    const std::vector<const BinaryKernels*> tables = binary_tables(require_instruction_set(arguments[1]));
    const int cases = std::atoi(arguments[2]);
    bool good = true;
    for (const Case& c : kEdgeCases) {
        good &= check(tables, c);
    }
    for (int i = 0; i < cases && good; ++i) {
        good &= check(tables, random_case(i));
    }
    std::printf("%s: %s\n", arguments[1], good ? "ok" : "FAILED");
    return good ? 0 : 1;
}
