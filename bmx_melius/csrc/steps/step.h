// What a plan is made of: steps, and the values between them as they lie in memory.
//
// All maps lie in NHWC. A real value is a list of slabs, ranges of channels of buffers, so that concatenating and
// slicing are no work. Bits that are not packed at once are the integers 0 and 1. One run computes one image.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/dispatch.h"
#include "program/program.h"

namespace bmx {

struct Buffer {
    Number number;
    int channels;  // of a pixel
    int value;     // whose height and width it has
};

struct Slab {
    int buffer;
    int begin, channels;  // the range of the buffer's channels
};

// A value of the program and where it lies.
struct Source {
    int value;
    std::vector<Slab> slabs;

    int channels() const {
        int sum = 0;
        for (const Slab& slab : slabs) {
            sum += slab.channels;
        }
        return sum;
    }
};

// Where a slab lies in a run. Distances are in elements.
struct View {
    Number number;
    uint8_t* data;  // of its first channel of the first pixel
    int channels;
    ptrdiff_t pixel, row;

    uint8_t* at(ptrdiff_t element) const { return data + element * static_cast<ptrdiff_t>(size_of(number)); }
};

// The memory of one run.
struct Memory {
    const std::vector<Value>* values;
    const std::vector<Buffer>* buffers;
    const std::vector<size_t>* buffer_offsets;  // in the arena
    uint8_t* arena;
    uint8_t* scratch;            // of this step
    const float* const* inputs;  // of this image, as the user gave them
    float* const* outputs;

    const Value& value(int number) const { return (*values)[number]; }

    View view(const Slab& slab) const {
        const Buffer& buffer = (*buffers)[slab.buffer];
        uint8_t* data = arena + (*buffer_offsets)[slab.buffer] + slab.begin * size_of(buffer.number);
        return {buffer.number, data, slab.channels, buffer.channels, buffer.channels * value(buffer.value).width};
    }
};

struct Team {
    int thread, threads;

    // This thread's part of `count` things.
    int begin(int64_t count) const { return static_cast<int>(count * thread / threads); }
    int end(int64_t count) const { return static_cast<int>(count * (thread + 1) / threads); }
};

class Packer;

class Step {
  public:
    virtual ~Step() = default;

    // Threads meet between phases.
    virtual int phases(const std::vector<Value>&, int /*threads*/) const { return 1; }
    virtual size_t scratch_bytes(const std::vector<Value>&, int /*threads*/) const { return 0; }
    virtual void run(const Memory& memory, const Team& team, int phase) const = 0;

    // Of the buffer it makes, if it can pack that.
    virtual Packer* packer() { return nullptr; }

    std::vector<int> operations;  // that it carries out
};

// --- small tools of the steps --------------------------------------------------------------------

inline size_t round_up(size_t size, size_t multiple) { return (size + multiple - 1) / multiple * multiple; }

// An array of one load-time constant, aligned for any kernel, and its last cache line is whole. It moves with its
// memory; in a copy the elements would not begin where that is aligned.
template <class T>
class Constants {
  public:
    Constants() = default;
    explicit Constants(size_t size) : size_(size), bytes_(round_up(size * sizeof(T), kAlignment) + kAlignment) {}
    explicit Constants(const std::vector<T>& elements) : Constants(elements.size()) {
        std::copy(elements.begin(), elements.end(), data());
    }
    Constants(Constants&&) = default;
    Constants& operator=(Constants&&) = default;

    T* data() {
        size_t address = reinterpret_cast<size_t>(bytes_.data());
        return reinterpret_cast<T*>(bytes_.data() + (round_up(address, kAlignment) - address));
    }
    const T* data() const { return const_cast<Constants*>(this)->data(); }
    T& operator[](size_t i) { return data()[i]; }
    const T& operator[](size_t i) const { return data()[i]; }
    size_t size() const { return size_; }

  private:
    static constexpr size_t kAlignment = 64;

    size_t size_ = 0;
    std::vector<uint8_t> bytes_;
};

// Copies one row of a value, channels side by side, pixels `stride` apart.
void gather_row(const Memory& memory, const Source& source, int row, float* to, ptrdiff_t stride);

// Copies `width` pixels of `channels` channels to a view's row.
void scatter_row(const float* from, ptrdiff_t stride, int width, const View& view, int row);

}  // namespace bmx
