// Packing of the result of a step into bits, for all binary convolutions that read it, while it is in the cache.
//
// Bits are stored in separate buffers, declared as buffers of float32 whose elements are words of 32 bits. Such a
// buffer holds maps one after the other. A map consists of the words of each pixel for a range of channels, compared
// with the thresholds of one convolution.
#pragma once
#include "steps/step.h"

namespace bmx {

// A map of bits.
struct Bits {
    int buffer;
    int units;     // words per pixel
    size_t first;  // words per pixel of all maps before this one
};

inline uint32_t* words_of(const Memory& memory, const Bits& bits) {
    const Value& map = memory.value((*memory.buffers)[bits.buffer].value);
    uint32_t* words = reinterpret_cast<uint32_t*>(memory.arena + (*memory.buffer_offsets)[bits.buffer]);
    return words + bits.first * (map.height * map.width);
}

struct Packing {
    int begin, channels;  // range of channels of the buffer to pack
    std::vector<float> thresholds;
    std::vector<uint32_t> flips;
};

class Packer {
  public:
    Packer(const BinaryKernels* kernels, int buffer) : kernels_(kernels), buffer_(buffer) {}

    int buffer() const { return buffer_; }
    bool empty() const { return maps_.empty(); }

    // Packs a range of pixels, numbered row by row, to all maps from number `first` on.
    void pack(const Memory& memory, int64_t begin, int64_t end, int first = 0) const;

    // Returns whether it packs integers, and always all of `channels` channels.
    bool packs_integers(int channels) const;
    int count() const { return static_cast<int>(maps_.size()); }

    // Writes descriptions of the first `count` maps from a pixel on, for a kernel that computes such integers.
    void write_packings(const Memory& memory, int64_t pixel, int count, BinaryPacking* packings) const;

    // The same, from the planes of the user's map.
    void pack_planes(const Memory& memory, const float* planes, int64_t begin, int64_t end) const;

    // Adds a range of channels to pack into the given map. `type` is the type of the buffer.
    void add(const Packing& packing, DataType type, const Bits& bits);

  private:
    struct Map {
        int begin, channels;
        Constants<float> thresholds;            // either thresholds
        Constants<int16_t> integer_thresholds;  // or integer_thresholds is empty
        std::vector<uint32_t> flips;
        Bits bits;
    };

    const BinaryKernels* kernels_;
    int buffer_;
    std::vector<Map> maps_;
};

// Packs a buffer that the step that computes it cannot pack.
class PackStep : public Step {
  public:
    PackStep(const BinaryKernels* kernels, int buffer) : packer_(kernels, buffer) {}

    Packer* packer() override { return &packer_; }
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Packer packer_;
};

// Packs one of the user's maps of which only bits are needed, without copying it to a buffer.
class InputPackStep : public Step {
  public:
    InputPackStep(const BinaryKernels* kernels, int input, int buffer) : input_(input), packer_(kernels, buffer) {}

    Packer* packer() override { return &packer_; }
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    int input_;
    Packer packer_;
};

}  // namespace bmx
