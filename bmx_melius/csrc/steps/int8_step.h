// A chain of convolutions of 8-bit integers: rescaling of the source to bytes or numbers of thresholds, optionally max
// pooling and a shuffle of channels, convolutions, each of which reads the bytes of the one before, and optionally max
// pooling of the last one.
//
// The maps between them are padded and stay in the scratch memory of the step: one phase computes the rows of a map.
// Their channels are ordered as the next layer reads them best. Many weights of few levels are kept as codes.
#pragma once
#include "steps/elementwise.h"
#include "steps/level_codes.h"

namespace bmx {

// Scale and shift before a rescaling; empty if there are none.
struct ScaleAndShift {
    std::vector<float> scale, shift;
};

// Thresholds whose number is counted: those of all channels, one after the other, and 0 or 1 for each channel. None
// if their count is 0.
struct CountedThresholds {
    int count = 0;
    std::vector<float> thresholds;
    std::vector<uint8_t> flips;
};

struct Int8LayerSpec {
    Attributes attributes;
    int in_channels;
    std::vector<int8_t> weights;  // in the order of the file
    std::vector<int32_t> pad, multiplier, offset;
    int value;  // number of its result
};

struct Int8Spec {
    const Int8Kernels* kernels;
    const BinaryKernels* packing;
    int input = -1;  // the user's map that is read, or -1, and then the source is read
    Source source;
    int source_value;  // number of the value that is read
    ScaleAndShift before;
    RescalingConstants rescaling;  // of the source, to bytes, if there are no thresholds
    CountedThresholds counted;
    bool pools_before = false;
    Attributes pool_before;
    int shuffle_groups = 1;  // after the pooling
    int first;               // number of the value that the first layer reads
    std::vector<Int8LayerSpec> layers;
    bool pools_after = false;
    Attributes pool_after;
    ElementwiseChain chain;  // after that
    int result;
    Slab output;  // a whole buffer of 16-bit integers, or of floats without pooling
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
        CodedWeights<int8_t> coded;  // of each of the blocks, instead
        std::vector<Int8Blocks> blocks;
        std::vector<uint8_t> lanes;    // of blocks
        RescalingConstants rescaling;  // by block and lane
        std::vector<uint8_t> pad;      // by position in a pixel
    };
    // The padded input of a layer.
    struct Map {
        size_t offset;                         // in the scratch memory
        int64_t height, width, rows, columns;  // without and with padding
        ptrdiff_t pixel, row;                  // in bytes

        size_t bytes() const { return static_cast<size_t>(rows * row); }
    };
    // How the work of a layer is divided: into items, and each of them into parts of the filters.
    struct Division {
        bool flat;  // all rows are one, and an item consists of pixels of it; otherwise it is a row
        int64_t items;
        int parts;
    };
    // Rows of the last layer's result, of which the rows under a window are kept.
    struct Ring {
        int16_t* data;
        ptrdiff_t row;  // in elements
        int depth;
        int64_t next;  // the first row not computed yet

        ptrdiff_t offset(int64_t y) const { return y % depth * row; }
    };

    static void encode(Layer& layer, const Levels<int8_t>& levels);
    std::vector<Map> maps(const std::vector<Value>& values) const;
    size_t maps_bytes(const std::vector<Map>& maps) const;
    size_t offsets_bytes() const;
    size_t row_bytes() const;
    size_t ring_bytes(const std::vector<Value>& values) const;
    Division division(const std::vector<Value>& values, const std::vector<Map>& maps, size_t number, int threads) const;

    void fill_borders(const Layer& layer, const Map& map, int64_t row, uint8_t* data) const;
    void first_rows(const Memory& memory, const Map& map, int64_t begin, int64_t end, ptrdiff_t* window,
                    uint8_t* scratch) const;
    Int8Row row_of(const Layer& layer, const Map& map, const Value& result, ptrdiff_t* taps) const;
    void convolve(const Memory& memory, const Team& team, size_t number, const std::vector<Map>& maps,
                  ptrdiff_t* taps) const;
    void convolve_and_pool(const Memory& memory, const Team& team, const Map& map, ptrdiff_t* offsets, Ring ring) const;

    Int8Spec spec_;
    std::vector<Layer> layers_;
    Packer packer_;
    int channels_;  // of the source
};

// Numbers of thresholds, as 16-bit integers.
StepPtr multi_threshold_step(const Int8Kernels* kernels, Source source, CountedThresholds counted, Slab output);

// Rounded means over the whole map or over windows, in multiples of 2^-fraction_bits, as float32.
StepPtr integer_mean_step(const Int8Kernels* kernels, Source source, const Attributes& attributes, bool is_global,
                          int result, Slab output);

}  // namespace bmx
