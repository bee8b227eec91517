// Batch normalization in training with AVX2.
#include "kernels/common/normalization_loops.h"

namespace bmx {

const NormalizationKernels& normalization_avx2() {
    static const NormalizationKernels kernels = {normalize, gradients_of_normalization};
    return kernels;
}

}  // namespace bmx
