// The table of operations and the limits of programs. `make operations` writes this file from operation_table.py,
// limits.py and words.py of deployment/program, which document what is here: do not edit it.
#pragma once
#include <cstddef>
#include <cstdint>

// clang-format off
namespace bmx {

constexpr bool kWide = sizeof(size_t) >= 8;  // false in WebAssembly, whose addresses have 32 bits

constexpr int kMaxChannels = 1048576;
constexpr int kMaxSize = 65536;
constexpr int64_t kMaxElements = kWide ? 2147483648 : 16777216;
constexpr int kMaxWeights = 8388608;
constexpr int kMaxInt8Weights = 65536;
constexpr int kMaxOperands = 4096;
constexpr int kMaxInputs = 4096;
constexpr int kMaxOperations = 65536;
constexpr int kMaxOutputs = 4096;
constexpr int kMaxAllOperands = 262144;
constexpr int kMaxAllGroups = 262144;
constexpr int kMaxAllWeights = 1073741824;
constexpr int kRepeatedWords = 4096;
constexpr int kRepeatedPerStored = 16;
constexpr int kFilterBlock = 64;
constexpr const char* kMemoryVariable = "BMX_MELIUS_MEMORY_LIMIT";
constexpr int64_t kMaxMemory = kWide ? 4294967296 : 1073741824;
constexpr int kMagic = 1347964226;
constexpr int kVersion = 7;
constexpr int kHeaderWords = 8;
constexpr int kInputWords = 4;
constexpr int kRecordWords = 3;
constexpr int kFirstVersion = 2;
constexpr int kInt8Version = 3;
constexpr int kMaxInt16 = 32766;
constexpr int kMaxByte = 255;
constexpr int kMaxSum = 8388608;
constexpr int kMaxThresholds = 255;
constexpr int kMaxLevelBits = 4;
constexpr int kOffsetShift = 8;
constexpr int kMaxStemInputs = 16;
constexpr int kMaxStemLayers = 16;
constexpr int kSummedPixels = 64;
constexpr int kMaxArrays = 5;  // of an operation

enum class Op {
    conv = 1,
    binary_conv = 2,
    threshold = 3,
    affine = 4,
    relu = 5,
    max_pool = 6,
    avg_pool = 7,
    global_avg_pool = 8,
    add = 9,
    concat = 10,
    slice = 11,
    shuffle = 12,
    flatten = 13,
    expand = 14,
    prelu = 15,
    clip = 16,
    sigmoid = 17,
    abs = 18,
    multiply = 19,
    channel_mean = 20,
    scale_map = 21,
    shift_map = 22,
    unflatten = 23,
    elu = 24,
    gelu = 25,
    upsample = 26,
    global_max_pool = 27,
    normalize = 28,
    maximum = 29,
    rescale = 30,
    int8_conv = 31,
    integer_mean = 32,
    integer_avg_pool = 33,
    round = 34,
    divide = 35,
    softplus = 36,
    level_conv = 40,
    level_int8_conv = 41,
    multi_threshold = 42,
    transpose = 50,
    arrange = 51,
    matmul = 52,
    softmax = 53,
    embedding = 54,
    gather = 55,
    row_matmul = 56,
};

enum class ShapeRule {
    same_shape,
    convolution_shape,
    pooling_shape,
    global_shape,
    one_channel_shape,
    equal_shape,
    broadcast_shape,
    positions_shape,
    joined_shape,
    cut_shape,
    groups_shape,
    enlarged_shape,
    flat_shape,
    map_shape,
    transposed_shape,
    arranged_shape,
    product_shape,
    product_of_rows_shape,
    gathered_shape,
    looked_up_shape,
};

// What an elementwise operation combines an element with: constants of its channel, another value, constants of its position.
enum class ElementwiseForm {none, channels, values, positions};

// Operations on an element and constants of its channel.
enum class Elementwise {none, affine, relu, prelu, clip, sigmoid, abs, elu, gelu, round, divide, softplus};

// Operations on an element and another one; copy is the other one.
enum class Combination {copy, add, multiply, maximum};

// What the result of an operation that computes nothing consists of: channels of its inputs, all elements in another shape.
enum class ViewKind {none, channels, shape};

// What an operation multiplies by weights, so how its multiplications are counted.
enum class Products {none, floats, binary, int8};

// The range of results that are integers: of the bits 0 or `low` and 1, of sums of signs, the limits that attributes
// give, 0 to the number of thresholds, the sum of the ranges of the inputs, what these cover together. None if the
// results are real numbers.
enum class RangeRule {none, bits, sums, limits, counts, total, merged};

inline constexpr Op kEpilogueOperations[] = {Op::affine, Op::relu};

// Attributes of an operation. Those that it does not have are neutral.
struct AttributeValues {
    int out_channels = 1;
    int kernel_h = 1;
    int kernel_w = 1;
    int stride_h = 1;
    int stride_w = 1;
    int pad_top = 0;
    int pad_left = 0;
    int pad_bottom = 0;
    int pad_right = 0;
    int dilation_h = 1;
    int dilation_w = 1;
    int groups = 1;
    int has_bias = 0;
    int half = 0;
    int pad_value = 0;
    int offset = 0;
    int planes = 1;
    int ceil = 0;
    int count_pad = 0;
    int begin = 0;
    int end = 1;
    int low = 0;
    int by_channel = 0;
    int height = 1;
    int width = 1;
    int scale_h = 1;
    int scale_w = 1;
    int repeat = 0;
    int by_position = 0;
    int shift = 8;
    int result_min = 0;
    int result_max = 0;
    int fraction_bits = 0;
    int bits = 1;
    int thresholds = 1;
    int row_length = 0;
    int heads = 1;
    int positions = 1;
    int transposed = 0;
    int rows = 1;
    int features = 1;
};

struct AttributeRow {
    const char* name;
    int AttributeValues::* member;
    int low, high;
};

struct AttributeRows {
    const AttributeRow* rows;
    size_t count;

    const AttributeRow* begin() const { return rows; }
    const AttributeRow* end() const { return rows + count; }
    size_t size() const { return count; }
};

enum class Result {real, bits, same};

struct OperationRow {
    const char* name;
    int min_inputs, max_inputs;
    bool takes_real, takes_bits;
    Result result;
    ShapeRule shape;
    ElementwiseForm form;
    Elementwise elementwise;
    Combination combination;
    ViewKind view;
    Products products;
    bool weight_levels;  // whether its weights are stored as the numbers of their levels
    RangeRule range;
    AttributeRows attributes;  // in the order of the file
};

// Attributes with their limits, and the attributes of each operation.
namespace attributes {
inline constexpr AttributeRow kOutChannels = {"out_channels", &AttributeValues::out_channels, 1, 1048576};
inline constexpr AttributeRow kKernelH = {"kernel_h", &AttributeValues::kernel_h, 1, 255};
inline constexpr AttributeRow kKernelW = {"kernel_w", &AttributeValues::kernel_w, 1, 255};
inline constexpr AttributeRow kStrideH = {"stride_h", &AttributeValues::stride_h, 1, 255};
inline constexpr AttributeRow kStrideW = {"stride_w", &AttributeValues::stride_w, 1, 255};
inline constexpr AttributeRow kPadTop = {"pad_top", &AttributeValues::pad_top, 0, 255};
inline constexpr AttributeRow kPadLeft = {"pad_left", &AttributeValues::pad_left, 0, 255};
inline constexpr AttributeRow kPadBottom = {"pad_bottom", &AttributeValues::pad_bottom, 0, 255};
inline constexpr AttributeRow kPadRight = {"pad_right", &AttributeValues::pad_right, 0, 255};
inline constexpr AttributeRow kDilationH = {"dilation_h", &AttributeValues::dilation_h, 1, 255};
inline constexpr AttributeRow kDilationW = {"dilation_w", &AttributeValues::dilation_w, 1, 255};
inline constexpr AttributeRow kGroups = {"groups", &AttributeValues::groups, 1, 1048576};
inline constexpr AttributeRow kHasBias = {"has_bias", &AttributeValues::has_bias, 0, 1};
inline constexpr AttributeRow kHalf = {"half", &AttributeValues::half, 0, 1};
inline constexpr AttributeRow kPadValue = {"pad_value", &AttributeValues::pad_value, -1, 1};
inline constexpr AttributeRow kOffset = {"offset", &AttributeValues::offset, 0, 1};
inline constexpr AttributeRow kPlanes = {"planes", &AttributeValues::planes, 1, 255};
inline constexpr AttributeRow kCeil = {"ceil", &AttributeValues::ceil, 0, 1};
inline constexpr AttributeRow kCountPad = {"count_pad", &AttributeValues::count_pad, 0, 1};
inline constexpr AttributeRow kBegin = {"begin", &AttributeValues::begin, 0, 1048576};
inline constexpr AttributeRow kEnd = {"end", &AttributeValues::end, 1, 1048576};
inline constexpr AttributeRow kLow = {"low", &AttributeValues::low, -1, 0};
inline constexpr AttributeRow kByChannel = {"by_channel", &AttributeValues::by_channel, 0, 1};
inline constexpr AttributeRow kHeight = {"height", &AttributeValues::height, 1, 65536};
inline constexpr AttributeRow kWidth = {"width", &AttributeValues::width, 1, 65536};
inline constexpr AttributeRow kScaleH = {"scale_h", &AttributeValues::scale_h, 1, 255};
inline constexpr AttributeRow kScaleW = {"scale_w", &AttributeValues::scale_w, 1, 255};
inline constexpr AttributeRow kRepeat = {"repeat", &AttributeValues::repeat, 0, 1};
inline constexpr AttributeRow kByPosition = {"by_position", &AttributeValues::by_position, 0, 1};
inline constexpr AttributeRow kShift = {"shift", &AttributeValues::shift, 8, 38};
inline constexpr AttributeRow kResultMin = {"result_min", &AttributeValues::result_min, -32766, 32766};
inline constexpr AttributeRow kResultMax = {"result_max", &AttributeValues::result_max, -32766, 32766};
inline constexpr AttributeRow kFractionBits = {"fraction_bits", &AttributeValues::fraction_bits, 0, 8};
inline constexpr AttributeRow kBits = {"bits", &AttributeValues::bits, 1, 4};
inline constexpr AttributeRow kResultMin2 = {"result_min", &AttributeValues::result_min, -8388608, 8388608};
inline constexpr AttributeRow kResultMax2 = {"result_max", &AttributeValues::result_max, -8388608, 8388608};
inline constexpr AttributeRow kThresholds = {"thresholds", &AttributeValues::thresholds, 1, 255};
inline constexpr AttributeRow kRowLength = {"row_length", &AttributeValues::row_length, 0, 65536};
inline constexpr AttributeRow kHeads = {"heads", &AttributeValues::heads, 1, 1048576};
inline constexpr AttributeRow kPositions = {"positions", &AttributeValues::positions, 1, 1048576};
inline constexpr AttributeRow kTransposed = {"transposed", &AttributeValues::transposed, 0, 1};
inline constexpr AttributeRow kRows = {"rows", &AttributeValues::rows, 1, 1048576};
inline constexpr AttributeRow kFeatures = {"features", &AttributeValues::features, 1, 1048576};

inline constexpr AttributeRow kConvAttributes[] = {kOutChannels, kKernelH, kKernelW, kStrideH, kStrideW, kPadTop,
    kPadLeft, kPadBottom, kPadRight, kDilationH, kDilationW, kGroups, kHasBias, kHalf};
inline constexpr AttributeRow kBinaryConvAttributes[] = {kOutChannels, kKernelH, kKernelW, kStrideH, kStrideW, kPadTop,
    kPadLeft, kPadBottom, kPadRight, kDilationH, kDilationW, kGroups, kPadValue, kOffset, kPlanes};
inline constexpr AttributeRow kMaxPoolAttributes[] = {kKernelH, kKernelW, kStrideH, kStrideW, kPadTop, kPadLeft,
    kPadBottom, kPadRight, kCeil};
inline constexpr AttributeRow kAvgPoolAttributes[] = {kKernelH, kKernelW, kStrideH, kStrideW, kPadTop, kPadLeft,
    kPadBottom, kPadRight, kCeil, kCountPad};
inline constexpr AttributeRow kSliceAttributes[] = {kBegin, kEnd};
inline constexpr AttributeRow kShuffleAttributes[] = {kGroups};
inline constexpr AttributeRow kExpandAttributes[] = {kLow};
inline constexpr AttributeRow kScaleMapAttributes[] = {kByChannel, kHeight, kWidth};
inline constexpr AttributeRow kShiftMapAttributes[] = {kByChannel, kHeight, kWidth};
inline constexpr AttributeRow kUpsampleAttributes[] = {kScaleH, kScaleW, kRepeat};
inline constexpr AttributeRow kNormalizeAttributes[] = {kGroups, kByPosition};
inline constexpr AttributeRow kRescaleAttributes[] = {kShift, kResultMin, kResultMax};
inline constexpr AttributeRow kInt8ConvAttributes[] = {kOutChannels, kKernelH, kKernelW, kStrideH, kStrideW, kPadTop,
    kPadLeft, kPadBottom, kPadRight, kDilationH, kDilationW, kGroups, kShift, kResultMin, kResultMax};
inline constexpr AttributeRow kIntegerMeanAttributes[] = {kFractionBits};
inline constexpr AttributeRow kIntegerAvgPoolAttributes[] = {kKernelH, kKernelW, kStrideH, kStrideW, kPadTop, kPadLeft,
    kPadBottom, kPadRight, kCeil, kCountPad, kFractionBits};
inline constexpr AttributeRow kLevelConvAttributes[] = {kOutChannels, kKernelH, kKernelW, kStrideH, kStrideW, kPadTop,
    kPadLeft, kPadBottom, kPadRight, kDilationH, kDilationW, kGroups, kHasBias, kBits, kByPosition};
inline constexpr AttributeRow kLevelInt8ConvAttributes[] = {kOutChannels, kKernelH, kKernelW, kStrideH, kStrideW,
    kPadTop, kPadLeft, kPadBottom, kPadRight, kDilationH, kDilationW, kGroups, kShift, kResultMin2, kResultMax2, kBits,
    kByPosition};
inline constexpr AttributeRow kMultiThresholdAttributes[] = {kThresholds};
inline constexpr AttributeRow kTransposeAttributes[] = {kHeight, kWidth};
inline constexpr AttributeRow kArrangeAttributes[] = {kRowLength};
inline constexpr AttributeRow kMatmulAttributes[] = {kHeads, kPositions, kTransposed};
inline constexpr AttributeRow kSoftmaxAttributes[] = {kGroups};
inline constexpr AttributeRow kEmbeddingAttributes[] = {kRows, kFeatures, kHalf};
inline constexpr AttributeRow kGatherAttributes[] = {kPositions, kHeight, kWidth};
inline constexpr AttributeRow kRowMatmulAttributes[] = {kHeads, kPositions, kTransposed};
}  // namespace attributes

inline constexpr OperationRow kOperations[] = {
    {"conv", 1, 1, true, false, Result::real, ShapeRule::convolution_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::floats, false, RangeRule::none, {attributes::kConvAttributes, 14}},
    {"binary_conv", 1, 1, false, true, Result::real, ShapeRule::convolution_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::binary, false, RangeRule::sums, {attributes::kBinaryConvAttributes, 15}},
    {"threshold", 1, 1, true, false, Result::bits, ShapeRule::same_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::bits, {nullptr, 0}},
    {"affine", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::affine, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"relu", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::relu, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"max_pool", 1, 1, true, false, Result::real, ShapeRule::pooling_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kMaxPoolAttributes, 9}},
    {"avg_pool", 1, 1, true, false, Result::real, ShapeRule::pooling_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kAvgPoolAttributes, 10}},
    {"global_avg_pool", 1, 1, true, false, Result::real, ShapeRule::global_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"add", 2, 2, true, false, Result::real, ShapeRule::equal_shape, ElementwiseForm::values, Elementwise::none, Combination::add, ViewKind::none, Products::none, false, RangeRule::total, {nullptr, 0}},
    {"concat", 1, 4096, true, true, Result::same, ShapeRule::joined_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::channels, Products::none, false, RangeRule::merged, {nullptr, 0}},
    {"slice", 1, 1, true, true, Result::same, ShapeRule::cut_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::channels, Products::none, false, RangeRule::merged, {attributes::kSliceAttributes, 2}},
    {"shuffle", 1, 1, true, true, Result::same, ShapeRule::groups_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::merged, {attributes::kShuffleAttributes, 1}},
    {"flatten", 1, 1, true, true, Result::same, ShapeRule::flat_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::shape, Products::none, false, RangeRule::merged, {nullptr, 0}},
    {"expand", 1, 1, false, true, Result::real, ShapeRule::same_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::bits, {attributes::kExpandAttributes, 1}},
    {"prelu", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::prelu, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"clip", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::clip, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"sigmoid", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::sigmoid, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"abs", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::abs, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"multiply", 2, 2, true, false, Result::real, ShapeRule::broadcast_shape, ElementwiseForm::values, Elementwise::none, Combination::multiply, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"channel_mean", 1, 1, true, false, Result::real, ShapeRule::one_channel_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"scale_map", 1, 1, true, false, Result::real, ShapeRule::positions_shape, ElementwiseForm::positions, Elementwise::none, Combination::multiply, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kScaleMapAttributes, 3}},
    {"shift_map", 1, 1, true, false, Result::real, ShapeRule::positions_shape, ElementwiseForm::positions, Elementwise::none, Combination::add, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kShiftMapAttributes, 3}},
    {"unflatten", 1, 1, true, true, Result::same, ShapeRule::map_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::shape, Products::none, false, RangeRule::merged, {nullptr, 0}},
    {"elu", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::elu, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"gelu", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::gelu, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"upsample", 1, 1, true, false, Result::real, ShapeRule::enlarged_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kUpsampleAttributes, 3}},
    {"global_max_pool", 1, 1, true, false, Result::real, ShapeRule::global_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"normalize", 1, 1, true, false, Result::real, ShapeRule::groups_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kNormalizeAttributes, 2}},
    {"maximum", 2, 2, true, false, Result::real, ShapeRule::equal_shape, ElementwiseForm::values, Elementwise::none, Combination::maximum, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"rescale", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::limits, {attributes::kRescaleAttributes, 3}},
    {"int8_conv", 1, 1, true, false, Result::real, ShapeRule::convolution_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::int8, false, RangeRule::limits, {attributes::kInt8ConvAttributes, 15}},
    {"integer_mean", 1, 1, true, false, Result::real, ShapeRule::global_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kIntegerMeanAttributes, 1}},
    {"integer_avg_pool", 1, 1, true, false, Result::real, ShapeRule::pooling_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kIntegerAvgPoolAttributes, 11}},
    {"round", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::round, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"divide", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::divide, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"softplus", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::channels, Elementwise::softplus, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {nullptr, 0}},
    {"level_conv", 1, 1, true, false, Result::real, ShapeRule::convolution_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::floats, true, RangeRule::none, {attributes::kLevelConvAttributes, 15}},
    {"level_int8_conv", 1, 1, true, false, Result::real, ShapeRule::convolution_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::int8, true, RangeRule::limits, {attributes::kLevelInt8ConvAttributes, 17}},
    {"multi_threshold", 1, 1, true, false, Result::real, ShapeRule::same_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::counts, {attributes::kMultiThresholdAttributes, 1}},
    {"transpose", 1, 1, true, false, Result::real, ShapeRule::transposed_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kTransposeAttributes, 2}},
    {"arrange", 1, 1, true, false, Result::real, ShapeRule::arranged_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kArrangeAttributes, 1}},
    {"matmul", 2, 2, true, false, Result::real, ShapeRule::product_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kMatmulAttributes, 3}},
    {"softmax", 1, 1, true, false, Result::real, ShapeRule::groups_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kSoftmaxAttributes, 1}},
    {"embedding", 1, 1, true, false, Result::real, ShapeRule::looked_up_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kEmbeddingAttributes, 3}},
    {"gather", 1, 4096, true, false, Result::real, ShapeRule::gathered_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kGatherAttributes, 3}},
    {"row_matmul", 2, 2, true, false, Result::real, ShapeRule::product_of_rows_shape, ElementwiseForm::none, Elementwise::none, Combination::copy, ViewKind::none, Products::none, false, RangeRule::none, {attributes::kRowMatmulAttributes, 3}},
};

// The row of each opcode, -1 for numbers that no operation has.
inline constexpr signed char kRowOfOpcode[] = {-1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19,
    20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, -1, -1, -1, 36, 37, 38, -1, -1, -1, -1, -1, -1, -1,
    39, 40, 41, 42, 43, 44, 45};
constexpr int kMaxOpcode = 56;

constexpr bool is_opcode(int32_t code) { return code >= 0 && code <= kMaxOpcode && kRowOfOpcode[code] >= 0; }
constexpr const OperationRow& row_of(Op op) { return kOperations[kRowOfOpcode[static_cast<size_t>(op)]]; }
constexpr const char* name_of(Op op) { return row_of(op).name; }

enum class ArrayType {float32, float16, int32, int8, bits};

struct ArrayRow {
    const char* name;
    ArrayType type;
    int rank;
    int64_t sizes[4];
    bool ordered;  // compared with elements, so that it must not contain NaN
};

// Calls `visit` with each array of an operation with `channels` input channels, in the order of the file.
template <class Visit>
void visit_arrays(Op op, const AttributeValues& a, int64_t channels, const Visit& visit) {
    switch (op) {
        case Op::conv:
            visit({"weight", a.half ? ArrayType::float16 : ArrayType::float32, 4, {a.out_channels, channels / a.groups, a.kernel_h, a.kernel_w}, false});
            if (a.has_bias) visit({"bias", ArrayType::float32, 1, {a.out_channels}, false});
            break;
        case Op::binary_conv:
            visit({"weight", ArrayType::bits, 4, {a.out_channels, a.kernel_h, a.kernel_w, channels / a.groups / a.planes}, false});
            break;
        case Op::threshold:
            visit({"threshold", ArrayType::float32, 1, {channels}, true});
            visit({"flip", ArrayType::bits, 1, {channels}, false});
            break;
        case Op::affine:
            visit({"scale", ArrayType::float32, 1, {channels}, false});
            visit({"shift", ArrayType::float32, 1, {channels}, false});
            break;
        case Op::prelu:
            visit({"slope", ArrayType::float32, 1, {channels}, false});
            break;
        case Op::clip:
            visit({"low", ArrayType::float32, 1, {channels}, true});
            visit({"high", ArrayType::float32, 1, {channels}, true});
            break;
        case Op::scale_map:
            visit({"factor", ArrayType::float32, 3, {a.by_channel ? channels : 1, a.height, a.width}, false});
            break;
        case Op::shift_map:
            visit({"summand", ArrayType::float32, 3, {a.by_channel ? channels : 1, a.height, a.width}, false});
            break;
        case Op::elu:
            visit({"slope", ArrayType::float32, 1, {channels}, false});
            break;
        case Op::normalize:
            visit({"eps", ArrayType::float32, 1, {1}, false});
            break;
        case Op::rescale:
            visit({"multiplier", ArrayType::int32, 1, {channels}, false});
            visit({"offset", ArrayType::int32, 1, {channels}, false});
            break;
        case Op::int8_conv:
            visit({"weight", ArrayType::int8, 4, {a.out_channels, channels / a.groups, a.kernel_h, a.kernel_w}, false});
            visit({"pad", ArrayType::int32, 1, {channels}, false});
            visit({"multiplier", ArrayType::int32, 1, {a.out_channels}, false});
            visit({"offset", ArrayType::int32, 1, {a.out_channels}, false});
            break;
        case Op::divide:
            visit({"divisor", ArrayType::float32, 1, {channels}, false});
            break;
        case Op::level_conv:
            visit({"codes", ArrayType::bits, 2, {a.bits, a.out_channels * channels / a.groups * a.kernel_h * a.kernel_w}, false});
            visit({"levels", ArrayType::float32, 2, {a.by_position ? a.kernel_h * a.kernel_w : 1, (1 << a.bits)}, false});
            visit({"scale", ArrayType::float32, 1, {a.out_channels}, false});
            if (a.has_bias) visit({"bias", ArrayType::float32, 1, {a.out_channels}, false});
            break;
        case Op::level_int8_conv:
            visit({"codes", ArrayType::bits, 2, {a.bits, a.out_channels * channels / a.groups * a.kernel_h * a.kernel_w}, false});
            visit({"levels", ArrayType::int8, 2, {a.by_position ? a.kernel_h * a.kernel_w : 1, (1 << a.bits)}, false});
            visit({"pad", ArrayType::int32, 1, {channels}, false});
            visit({"multiplier", ArrayType::int32, 1, {a.out_channels}, false});
            visit({"offset", ArrayType::int32, 1, {a.out_channels}, false});
            break;
        case Op::multi_threshold:
            visit({"threshold", ArrayType::float32, 2, {a.thresholds, channels}, true});
            visit({"flip", ArrayType::bits, 1, {channels}, false});
            break;
        case Op::embedding:
            visit({"table", a.half ? ArrayType::float16 : ArrayType::float32, 2, {a.rows, a.features}, false});
            break;
        case Op::gather:
            visit({"places", ArrayType::int32, 2, {a.height, a.width}, false});
            break;
        default:
            break;
    }
}

}  // namespace bmx
// clang-format on
