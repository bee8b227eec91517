// Batch normalization in training with AVX-512.
#include "kernels/common/normalization_loops.h"

namespace bmx {

const NormalizationKernels& normalization_avx512() {
    static const NormalizationKernels kernels = {normalize, gradients_of_normalization};
    return kernels;
}

}  // namespace bmx
