// A chain of convolutions of 8-bit integers: rescaling of the source to bytes, optionally max pooling and a shuffle of
// channels, convolutions, each of which reads the bytes of the one before, and optionally max pooling of the last one.
//
// The maps between them are padded and stay in the scratch memory of the step: one phase computes the rows of a map.
#pragma once
#include "steps/packer.h"

namespace bmx {

// Constants of a rescaling, with what vectors read beyond the last channel.
struct RescalingConstants {
    Constants<int32_t> multiplier, offset;
    int shift, min, max;

    Rescaling from(int channel) const { return {multiplier.data() + channel, offset.data() + channel, shift, min, max}; }
};

RescalingConstants rescaling_constants(const std::vector<int32_t>& multiplier, const std::vector<int32_t>& offset,
                                       const Attributes& attributes);

// Scale and shift before a rescaling; empty if there are none.
struct ScaleAndShift {
    std::vector<float> scale, shift;
};

struct Int8LayerSpec {
    Attributes attributes;
    int in_channels;
    const int8_t* weights;  // in the layout of the file
    std::vector<int32_t> pad, multiplier, offset;
    int value;  // number of its result
};

struct Int8Spec {
    const Int8Kernels* kernels;
    const BinaryKernels* packing;
    Source source;
    ScaleAndShift before;
    RescalingConstants rescaling;  // of the source, to bytes
    bool pools_before = false;
    Attributes pool_before;
    int shuffle_groups = 1;  // after the pooling
    int first;               // number of the value that the first layer reads
    std::vector<Int8LayerSpec> layers;
    bool pools_after = false;
    Attributes pool_after;
    int result;
    Slab output;  // a whole buffer of 16-bit integers
};

class Int8Step : public Step {
  public:
    explicit Int8Step(Int8Spec spec);

    int phases(const std::vector<Value>& values, int threads) const override;
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;
    Packer* packer() override { return &packer_; }

  private:
    struct Layer {
        Attributes attributes;
        int in_channels, value;
        Constants<int8_t> weights;
        std::vector<Int8Block> blocks;
        RescalingConstants rescaling;  // by block and lane
        std::vector<uint8_t> pad;
    };
    // The padded input of a layer.
    struct Map {
        size_t offset;  // in the scratch memory
        int64_t height, width, rows, columns;  // without and with padding
        ptrdiff_t pixel, row;                  // in bytes

        size_t bytes() const { return static_cast<size_t>(rows * row); }
    };

    static Layer prepare(const Int8LayerSpec& spec);
    std::vector<Map> maps(const std::vector<Value>& values) const;
    size_t pooled_offset(const std::vector<Map>& maps) const;
    size_t thread_bytes(const std::vector<Value>& values) const;

    void fill_borders(const Layer& layer, const Map& map, int64_t row, uint8_t* data) const;
    void rescale_row(const Memory& memory, int row, uint8_t* to, ptrdiff_t pixel) const;
    void first_row(const Memory& memory, const Map& map, int row, uint8_t* to, uint8_t* scratch) const;
    void convolve(const Memory& memory, const Team& team, size_t number, const std::vector<Map>& maps,
                  ptrdiff_t* taps) const;
    void pool_row(const Memory& memory, const int16_t* from, int row) const;

    Int8Spec spec_;
    std::vector<Layer> layers_;
    Packer packer_;
    int channels_;  // of the source
};

// Rescaling to 16-bit integers.
class RescaleStep : public Step {
  public:
    RescaleStep(Source source, RescalingConstants rescaling, Slab output)
        : source_(std::move(source)), rescaling_(std::move(rescaling)), output_(output) {}
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Source source_;
    RescalingConstants rescaling_;
    Slab output_;
};

// Rounded means over the whole map or over windows, in multiples of 2^-fraction_bits, as float32.
class IntegerMeanStep : public Step {
  public:
    IntegerMeanStep(Source source, const Attributes& attributes, bool is_global, int result, Slab output)
        : source_(std::move(source)),
          attributes_(attributes),
          is_global_(is_global),
          result_(result),
          output_(output) {}
    size_t scratch_bytes(const std::vector<Value>& values, int threads) const override;
    void run(const Memory& memory, const Team& team, int phase) const override;

  private:
    Source source_;
    Attributes attributes_;
    bool is_global_;
    int result_;
    Slab output_;
};

}  // namespace bmx
