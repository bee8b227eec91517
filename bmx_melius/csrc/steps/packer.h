// Packing what a step makes into bits, for all binary convolutions that will look at it, while it is in the cache.
//
// Bits lie in buffers of their own, taken as buffers of float32 whose numbers are words of 32 bits. Such a buffer holds
// one map after the other, of each pixel the words of a range of channels, compared with the thresholds of one
// convolution.
#pragma once
#include "steps/step.h"

namespace bmx {

// One of the maps of bits.
struct Bits {
    int buffer;
    int units;     // words of a pixel
    size_t first;  // words of a pixel in all maps before this one
};

inline uint32_t* words_of(const Memory& memory, const Bits& bits) {
    const Value& map = memory.value((*memory.buffers)[bits.buffer].value);
    uint32_t* words = reinterpret_cast<uint32_t*>(memory.arena + (*memory.buffer_offsets)[bits.buffer]);
    return words + bits.first * (map.height * map.width);
}

struct Packing {
    int begin, channels;  // of the buffer that is packed
    std::vector<float> thresholds;
    std::vector<uint32_t> flips;
};

class Packer {
  public:
    Packer(const BinaryKernels* kernels, int buffer) : kernels_(kernels), buffer_(buffer) {}

    int buffer() const { return buffer_; }
    bool empty() const { return maps_.empty(); }

    // Packs some pixels, counted row by row.
    void pack(const Memory& memory, int64_t begin, int64_t end) const;

    // The same from the planes of the user's map.
    void pack_planes(const Memory& memory, const float* planes, int64_t begin, int64_t end) const;

    // Packs a range of channels from now on, into the given map; `number` is what the buffer holds.
    void add(const Packing& packing, Number number, const Bits& bits);

  private:
    struct Map {
        int begin, channels;
        Constants<float> thresholds;            // one of the two
        Constants<int16_t> integer_thresholds;  // is empty
        std::vector<uint32_t> flips;
        Bits bits;
    };

    const BinaryKernels* kernels_;
    int buffer_;
    std::vector<Map> maps_;
};

// Packs a buffer whose maker does not.
class PackStep : public Step {
  public:
    PackStep(const BinaryKernels* kernels, int buffer) : packer_(kernels, buffer) {}

    Packer* packer() override { return &packer_; }
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Packer packer_;
};

// Packs one of the user's maps of which nothing but bits is needed, without the buffer that its packer would look at.
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
