// Steps around the convolutions: input, output, pooling, statistics, enlargement, and pixel-wise operations. Each
// writes a whole buffer of float32 unless it says otherwise.
#pragma once
#include "steps/pooling.h"

namespace bmx {

// Copies the user's NCHW map or vector.
StepPtr input_step(const FloatKernels* kernels, int input, Slab output);

// Copies a value to the user's NCHW map or vector.
StepPtr output_step(const FloatKernels* kernels, Source source, int output);

// Normalization, max pooling and ReLU, each optional.
StepPtr pool_step(const FloatKernels* kernels, Source source, const PoolWindow& window, Normalization normalization,
                  int result, Slab output);

StepPtr average_pool_step(const FloatKernels* kernels, Source source, const Attributes& attributes, int result,
                          Slab output);

// Global average pooling of a value, normalized and with ReLU if there is one.
StepPtr global_pool_step(const FloatKernels* kernels, Source source, Normalization normalization, Slab output);

StepPtr global_max_step(Source source, Slab output);

// Subtracts the mean of each group of channels and divides by the square root of its variance + eps.
StepPtr normalize_step(Source source, const Attributes& attributes, double eps, Slab output);

// Enlargement of maps: pixels repeated, or apart from each other with zeros between them.
StepPtr upsample_step(Source source, const Attributes& attributes, int result, Slab output);

// Exchanges the channels and the positions of a map.
StepPtr transpose_step(const FloatKernels* kernels, Source source, Slab output);

// Copies a map to one with the same positions, row by row, in rows of another length.
StepPtr arrange_step(Source source, Slab output);

// Copies positions of maps, all of which are counted one map after the other, row by row. `places` are below
// `positions`.
StepPtr gather_step(std::vector<Source> sources, const Attributes& attributes, std::vector<int32_t> places,
                    Slab output);

// Products of matrices, whose rows are the positions of two maps, for each group of channels; `by_row`, the positions
// of each row of the maps.
StepPtr matmul_step(const FloatKernels* kernels, Source a, Source b, const Attributes& attributes, bool by_row,
                    Slab output);

// The same of two maps of signs, -1 and 1, by counting equal bits. The kernels have no planes and no counts.
StepPtr sign_product_step(const BinaryKernels* kernels, Source a, Source b, const Attributes& attributes, bool by_row,
                          Slab output);

// Softmax of the channels of each group at each position.
StepPtr softmax_step(const FloatKernels* kernels, Source source, int groups, Slab output);

// Copies rows of a table, which has `features` columns, to pixels: those whose numbers are the only channel of a map.
StepPtr embedding_step(Source source, std::vector<float> table, int features, Slab output);

// Copies a map to a vector, channel by channel; of any type.
StepPtr flatten_step(Source source, Slab output);

// Steps that change the rows of a map as float32.
StepPtr copy_step(Source source, Slab output);
StepPtr shuffle_step(Source source, int groups, Slab output);
StepPtr expand_step(Source source, int low, Slab output);

// Computes bits as the integers 0 and 1.
StepPtr threshold_step(Source source, std::vector<float> thresholds, std::vector<uint32_t> flips, Slab output);

}  // namespace bmx
