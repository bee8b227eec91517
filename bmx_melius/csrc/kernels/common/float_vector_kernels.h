// Table of the float kernels for vectors of any width. The file of an instruction set defines `Lanes` and then includes
// this file.
#include "kernels/common/elementwise_loops.h"
#include "kernels/common/float_depthwise.h"
#include "kernels/common/float_layouts.h"
#include "kernels/common/float_matrix_product.h"
#include "kernels/common/float_planar_conv.h"
#include "kernels/common/float_pooling.h"

namespace bmx {
namespace {

FloatKernels table(const char* name) {
    return {
        name,
        planar_weights_bytes,
        planar_prepare,
        planar_row,
        gemm_weights_bytes,
        gemm_prepare,
        gemm,
        depthwise_row,
        pool_row,
        planar_to_pixels,
        pixels_to_planar,
        planar_max_pool,
        sum_pixels,
        transform,
        combine,
        mean_channels,
        softmax,
    };
}

}  // namespace
}  // namespace bmx
