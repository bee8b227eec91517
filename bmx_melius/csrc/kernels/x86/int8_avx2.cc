// Kernels of 8-bit layers with AVX2.
#include "kernels/common/int8_loops.h"

namespace bmx {

const Int8Kernels& int8_kernels_avx2() {
    static const Int8Kernels kernels = {rescale_row, rescale_planes, max_row, convolve_plainly, sum_pixels};
    return kernels;
}

}  // namespace bmx
