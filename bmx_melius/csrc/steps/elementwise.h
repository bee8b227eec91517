// Chains of elementwise operations, which a step applies to a few pixels while these are in the cache.
#pragma once
#include <memory>

#include "steps/packer.h"

namespace bmx {

// Constants for the positions of a map: [height][width][channels], where a size of 1 means that they are repeated.
struct MapConstants {
    int height, width, channels;
    Constants<float> numbers;
};

// One operation of a chain. The value that it changes is x.
struct ElementwiseStage {
    OperationRow row;                        // of an elementwise operation
    Constants<float> a, b;                   // for the form channels
    Source operand = {-1, {}};               // for the form values: of the size of x, or 1 along some axes
    MapConstants constants = {1, 1, 1, {}};  // for the form positions
};

// Pixels of a row and a range of their channels.
struct PixelRange {
    int row, column, pixels;
    int channel, channels;
    float* x;  // the first channel of the range at the first pixel
    ptrdiff_t x_pixel;
};

class ElementwiseChain {
  public:
    ElementwiseChain() = default;
    ElementwiseChain(const FloatKernels* kernels, std::vector<ElementwiseStage> stages)
        : kernels_(kernels), stages_(std::move(stages)) {}

    bool empty() const { return stages_.empty(); }
    void apply(const Memory& memory, const PixelRange& pixels) const;

    // The same for a range of channels of pixels `begin` to `end` - 1 of a map of float32, numbered row by row.
    void apply(const Memory& memory, const View& map, int64_t begin, int64_t end, int channel, int channels) const;

  private:
    const FloatKernels* kernels_ = nullptr;
    std::vector<ElementwiseStage> stages_;
};

// Combines x with a value.
void combine_with(const FloatKernels& kernels, const Memory& memory, const Source& source, Combination combination,
                  const PixelRange& pixels);

// A chain of elementwise operations on a value, and optionally the mean of the channels of the result.
class ElementwiseStep : public Step {
  public:
    ElementwiseStep(const FloatKernels* kernels, const BinaryKernels* packing, Source source, ElementwiseChain chain,
                    bool mean, Slab output);

    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    size_t thread_bytes() const;

    const FloatKernels* kernels_;
    Source source_;
    ElementwiseChain chain_;
    bool mean_;
    int channels_, max_pixels_;  // pixels at a time
    Slab output_;                // a whole buffer of float32
    Packer packer_;
};

}  // namespace bmx
