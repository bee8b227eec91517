// Chains of elementwise operations, which a step applies to a few pixels while these are in the cache.
#pragma once
#include <memory>

#include "steps/packer.h"
#include "steps/rescaling.h"

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
    ShortRescalingConstants rescaling = {};  // in a chain of integers: of the operand or, without one, of x
};

// The numbers of pixels.
struct Numbers {
    DataType type;
    const void* first;  // the first channel of the first pixel
    ptrdiff_t pixel;    // elements between neighbouring pixels
};

// Pixels of a row and a range of their channels, of the type of a chain. In a chain of integers they may go on in the
// next rows.
struct PixelRange {
    int row, column, pixels;
    int channel, channels;
    void* x;  // the first channel of the range at the first pixel
    ptrdiff_t x_pixel;
};

// Its results, those in between included, are all floats or all 16-bit integers.
class ElementwiseChain {
  public:
    ElementwiseChain() = default;
    ElementwiseChain(const FloatKernels* floats, const Int8Kernels* integers, DataType type,
                     std::vector<ElementwiseStage> stages)
        : floats_(floats), integers_(integers), type_(type), stages_(std::move(stages)) {}

    bool empty() const { return stages_.empty(); }
    DataType type() const { return type_; }

    // Applies the chain to a value.
    void apply(const Memory& memory, const Source& source, const PixelRange& pixels) const;

    // Applies it in place to a range of channels of pixels `begin` to `end` - 1 of a map, numbered row by row.
    void apply(const Memory& memory, const View& map, int64_t begin, int64_t end, int channel, int channels) const;

    // The same, to numbers that are elsewhere.
    void apply(const Memory& memory, Numbers from, const View& map, int64_t begin, int64_t end, int channel,
               int channels) const;

  private:
    void begin(const Numbers& from, const PixelRange& pixels) const;
    void go_on(const Memory& memory, const PixelRange& pixels) const;
    void go_on_with_integers(const Memory& memory, const PixelRange& pixels) const;
    bool begins_with_rescaling() const {
        return type_ == DataType::i16 && !empty() && stages_[0].operand.slabs.empty();
    }

    const FloatKernels* floats_ = nullptr;
    const Int8Kernels* integers_ = nullptr;
    DataType type_ = DataType::f32;
    std::vector<ElementwiseStage> stages_;
};

// Combines x, floats, with a value.
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
    Slab output_;                // a whole buffer of the type of the chain, or of float32 with the mean
    Packer packer_;
};

}  // namespace bmx
