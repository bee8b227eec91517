// Kernels of 8-bit layers in plain loops, with which the kernels of instruction sets are compared.
#include "kernels/common/int8_loops.h"

namespace bmx {

const Int8Kernels& int8_kernels_reference() {
    static const Int8Kernels kernels = {shorts_row,       rescale_row,    rescale_planes,   max_row,
                                        convolve_plainly, mean_of_window, count_thresholds, 1};
    return kernels;
}

}  // namespace bmx
