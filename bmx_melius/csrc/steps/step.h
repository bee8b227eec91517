// Steps of a plan, and the memory representation of the values between them.
//
// All maps are NHWC. A real value is a list of slabs, that is, ranges of channels of buffers, so that concatenation and
// slicing need no computation. Bits that are not packed immediately are stored as the integers 0 and 1. One run
// computes one image.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/common/arithmetic.h"
#include "kernels/dispatch.h"
#include "program/program.h"

namespace bmx {

struct Buffer {
    DataType type;
    int channels;  // per pixel
    int value;     // the value with the same height and width
};

struct Slab {
    int buffer;
    int begin, channels;  // range of channels of the buffer
};

// A value of the program and the slabs that hold it.
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

// Address of a slab during a run. Distances are in elements.
struct View {
    DataType type;
    uint8_t* data;  // the first channel of the first pixel
    int channels;
    ptrdiff_t pixel, row;

    uint8_t* at(ptrdiff_t element) const { return data + element * static_cast<ptrdiff_t>(size_of(type)); }
};

// The memory of one run.
struct Memory {
    const std::vector<Value>* values;
    const std::vector<Buffer>* buffers;
    const std::vector<size_t>* buffer_offsets;  // within the arena
    uint8_t* arena;
    uint8_t* scratch;            // scratch memory of this step
    const float* const* inputs;  // the user's arrays for this image
    float* const* outputs;

    const Value& value(int number) const { return (*values)[number]; }

    View view(const Slab& slab) const {
        const Buffer& buffer = (*buffers)[slab.buffer];
        uint8_t* data = arena + (*buffer_offsets)[slab.buffer] + slab.begin * size_of(buffer.type);
        const ptrdiff_t row = static_cast<ptrdiff_t>(buffer.channels * value(buffer.value).width);
        return {buffer.type, data, slab.channels, buffer.channels, row};
    }
};

struct Team {
    int thread, threads;

    // The range of this thread among `count` items.
    int begin(int64_t count) const { return static_cast<int>(count * thread / threads); }
    int end(int64_t count) const { return static_cast<int>(count * (thread + 1) / threads); }
};

class Packer;

class Step {
  public:
    virtual ~Step() = default;

    // There is a barrier between phases.
    virtual int phases(const std::vector<Value>&, int /*threads*/) const { return 1; }
    virtual size_t scratch_bytes(const std::vector<Value>&, int /*threads*/) const { return 0; }
    virtual void run(const Memory& memory, const Team& team, int phase) const = 0;

    // Returns the packer of the buffer that this step computes, or nullptr if it cannot pack it.
    virtual Packer* packer() { return nullptr; }

    std::vector<int> operations;  // the operations that it computes
};

using StepPtr = std::unique_ptr<Step>;

// --- helpers of the steps ------------------------------------------------------------------------

// Array of load-time constants, aligned for all kernels and padded to a whole cache line. It can be moved but not
// copied, because the memory of a copy would be aligned differently.
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

// Copies one row of a value to pixels with contiguous channels, `stride` elements apart.
void gather_row(const Memory& memory, const Source& source, int row, float* to, ptrdiff_t stride);

// Copies `count` pixels of a value likewise, from pixel `first` on, counted row by row.
void gather_pixels(const Memory& memory, const Source& source, int64_t first, int count, float* to, ptrdiff_t stride);

// Copies `width` pixels, `stride` elements apart, to a row of a view.
void scatter_row(const float* from, ptrdiff_t stride, int width, const View& view, int row);

}  // namespace bmx
