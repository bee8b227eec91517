"""A single 3x3 binary convolution in OpenVINO with padding -1, preceded by binarization of its float32 input, one threshold per channel."""

PACKAGES = {'openvino': 'openvino'}
_RUNS = 50  # profiled runs


def prepare(arguments, array, threads):
    """Prepare the peer.

    The number of channels is taken from `array`. Facts: the kernel that computes the convolution, and its time without the binarization in
    seconds, as profiled by OpenVINO.
    """
    import openvino.runtime as ov

    model = layer(array.shape)
    settings = {'INFERENCE_NUM_THREADS': threads, 'NUM_STREAMS': '1'}
    core = ov.Core()
    profiled = core.compile_model(model, 'CPU', {**settings, 'PERF_COUNT': 'YES'}).create_infer_request()
    kernel, seconds = profile(profiled, ov.Tensor(array))
    request = core.compile_model(model, 'CPU', settings).create_infer_request()
    request.set_input_tensor(ov.Tensor(array))
    return request.infer, {'kernel': kernel, 'convolution_seconds': seconds}


def layer(shape):
    """Return the model. The quantizer has equal limits and the levels 0 and 1, so that it compares its input with the threshold."""
    import numpy as np
    from openvino.runtime import Model, Shape, Tensor, Type, op, opset1

    random = np.random.default_rng(0)
    channels = shape[1]
    data = opset1.parameter(list(shape), np.float32, name='data')
    threshold = opset1.constant(random.normal(0, 0.3, (1, channels, 1, 1)).astype(np.float32))
    zero, one = (opset1.constant(np.full((1, 1, 1, 1), value, np.float32)) for value in (0, 1))
    bits = opset1.fake_quantize(data, threshold, threshold, zero, one, 2)
    weight_shape = (channels, channels, 3, 3)
    words = np.packbits(random.integers(0, 2, weight_shape).astype(np.uint8))
    weight = op.Constant(Tensor(words, Shape(weight_shape), Type.u1))
    result = opset1.binary_convolution(bits, weight, [1, 1], [1, 1], [1, 1], [1, 1], 'xnor-popcount', -1.0)
    return Model([result], [data])


def profile(request, tensor):
    """Return the name and the median seconds of the convolution's kernel. Raise RuntimeError if it is OpenVINO's reference code."""
    import statistics

    request.set_input_tensor(tensor)
    seconds, kernel = [], None
    for _ in range(_RUNS):
        request.infer()
        for step in request.profiling_info:
            if step.node_type == 'BinaryConvolution':
                kernel = step.exec_type
                seconds.append(step.real_time.total_seconds())
    if kernel is None or 'ref' in kernel:
        raise RuntimeError(f'OpenVINO runs no binary kernel here, but {kernel}')
    return kernel, statistics.median(seconds)
