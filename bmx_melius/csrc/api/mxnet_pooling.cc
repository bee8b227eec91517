// The MXNet operator `bmx_melius_max_pool`: the maxima of windows of a map (N, C, H, W), and their gradient.
//
// On processors without AVX-512, oneDNN pools maps in the layout NCHW one window at a time through functions that find
// each element: that takes a fifth of a training step. nn/fusion.py puts this operator in the place of MXNet's. It
// computes the same numbers: the maximum is the first one in the order of rows, and gradients are added in the order of
// windows. As with the other operators, a gradient is always written.

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "api/mxnet_training_operators.h"

namespace {

constexpr char kName[] = "bmx_melius_max_pool";

struct Axis {
    int kernel, stride, pad;

    int out_size(int size) const { return (size + 2 * pad - kernel) / stride + 1; }
    // The part of the window of a result that is inside of the map: from first to end.
    int first(int out) const { return std::max(0, out * stride - pad); }
    int end(int out, int size) const { return std::min(size, out * stride - pad + kernel); }
};

struct Pool {
    explicit Pool(const Attributes& attributes) {
        const Pair kernel = pair_of(attributes, "kernel"), stride = pair_of(attributes, "stride");
        const Pair pad = pair_of(attributes, "pad");
        down = {kernel.h, stride.h, pad.h};
        across = {kernel.w, stride.w, pad.w};
    }

    Axis down, across;
};

MXReturnValue forward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                      const mxnet::ext::OpResource&) {
    const Pool pool(attributes);
    MXTensor &x = (*inputs)[0], &y = (*outputs)[0];
    const int planes = int(x.shape[0] * x.shape[1]), height = int(x.shape[2]), width = int(x.shape[3]);
    const int rows = int(y.shape[2]), columns = int(y.shape[3]);
    const float* from = x.data<float>();
    float* to = y.data<float>();
#pragma omp parallel for schedule(static)
    for (int plane = 0; plane < planes; plane++) {
        for (int row = 0; row < rows; row++) {
            float* result = to + (ptrdiff_t(plane) * rows + row) * columns;
            std::fill(result, result + columns, std::numeric_limits<float>::lowest());
            for (int y = pool.down.first(row); y < pool.down.end(row, height); y++) {
                const float* line = from + (ptrdiff_t(plane) * height + y) * width;
                for (int k = 0; k < pool.across.kernel; k++) {
                    const int shift = k - pool.across.pad, stride = pool.across.stride;
                    int column = shift < 0 ? (stride - 1 - shift) / stride : 0;
                    for (; column < columns && column * stride + shift < width; column++) {
                        const float value = line[column * stride + shift];
                        result[column] = value > result[column] ? value : result[column];
                    }
                }
            }
        }
    }
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue backward(const Attributes& attributes, std::vector<MXTensor>* inputs, std::vector<MXTensor>* outputs,
                       const mxnet::ext::OpResource&) {
    const Pool pool(attributes);
    MXTensor &outer = (*inputs)[0], &x = (*inputs)[1];
    const int planes = int(x.shape[0] * x.shape[1]), height = int(x.shape[2]), width = int(x.shape[3]);
    const int rows = int(outer.shape[2]), columns = int(outer.shape[3]);
    const float *numbers = outer.data<float>(), *from = x.data<float>();
    float* to = (*outputs)[0].data<float>();
#pragma omp parallel for schedule(static)
    for (int plane = 0; plane < planes; plane++) {
        const float* map = from + ptrdiff_t(plane) * height * width;
        float* gradient = to + ptrdiff_t(plane) * height * width;
        std::memset(gradient, 0, sizeof(float) * height * width);
        const float* number = numbers + ptrdiff_t(plane) * rows * columns;
        for (int row = 0; row < rows; row++) {
            const int top = pool.down.first(row), bottom = pool.down.end(row, height);
            for (int column = 0; column < columns; column++, number++) {
                const int left = pool.across.first(column), right = pool.across.end(column, width);
                int place = top * width + left;  // of the first maximum
                float most = std::numeric_limits<float>::lowest();
                for (int i = top; i < bottom; i++) {
                    for (int j = left; j < right; j++) {
                        const float value = map[i * width + j];
                        place = value > most ? i * width + j : place;
                        most = value > most ? value : most;
                    }
                }
                gradient[place] += *number;
            }
        }
    }
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue parse_attributes(const Attributes&, int* inputs, int* outputs) {
    *inputs = *outputs = 1;
    return mxnet::ext::MX_SUCCESS;
}

MXReturnValue infer_shape(const Attributes& attributes, std::vector<Shape>* inputs, std::vector<Shape>* outputs) {
    const Shape& x = (*inputs)[0];
    if (x.size() == 4 && known(x)) {
        const Pool pool(attributes);
        const int rows = pool.down.out_size(int(x[2])), columns = pool.across.out_size(int(x[3]));
        if (int(x[2]) + 2 * pool.down.pad < pool.down.kernel || int(x[3]) + 2 * pool.across.pad < pool.across.kernel) {
            return fail(kName, "the window is larger than the padded map");
        }
        outputs->front() = {x[0], x[1], unsigned(rows), unsigned(columns)};
    }
    return mxnet::ext::MX_SUCCESS;
}

REGISTER_OP(bmx_melius_max_pool)
    .setForward(forward, "cpu")
    .setBackward(backward, "cpu")
    .setParseAttrs(parse_attributes)
    .setInferType(infer_float32<kName>)
    .setInferShape(infer_shape);

}  // namespace
