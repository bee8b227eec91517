"""MobileNet v1 in ONNX Runtime, float32 and int8 (quantized statically, calibrated on random images)."""

import os
import tempfile

PACKAGES = {'onnxruntime': 'onnxruntime', 'onnx': 'onnx'}
_STRIDES_AND_CHANNELS = (
    (1, 64),
    (2, 128),
    (1, 128),
    (2, 256),
    (1, 256),
    (2, 512),
    (1, 512),
    (1, 512),
    (1, 512),
    (1, 512),
    (1, 512),
    (2, 1024),
    (1, 1024),
)
_CALIBRATION_IMAGES = 4


def prepare(arguments, array, threads):
    """Prepare the peer. `arguments`: width (multiplier of the channels), int8. Fact: ``file_bytes`` of the model."""
    import onnx
    import onnxruntime

    model = mobilenet(arguments['width'], array.shape)
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, 'model.onnx')
        onnx.save(model, file)
        if arguments['int8']:
            file = quantize(file, array.shape)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        session = onnxruntime.InferenceSession(file, options, providers=['CPUExecutionProvider'])
        facts = {'file_bytes': os.path.getsize(file)}
    return lambda: session.run(None, {'data': array}), facts


def mobilenet(width, input_shape, classes=1000):
    """Return the network as an ONNX model, with batch normalization folded into the convolutions as ONNX Runtime does."""
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    random = np.random.default_rng(0)
    nodes, weights = [], []

    def parameter(shape, fan_in):
        name = f'parameter{len(weights)}'
        weights.append(numpy_helper.from_array(random.normal(0, (2 / fan_in) ** 0.5, shape).astype(np.float32), name))
        return name

    def node(operator, inputs, **attributes):
        name = f'{operator}{len(nodes)}'
        nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def convolution(x, inputs, outputs, kernel, stride, groups=1):
        fan_in = inputs // groups * kernel**2
        pad = [kernel // 2] * 4
        weight, bias = parameter((outputs, inputs // groups, kernel, kernel), fan_in), parameter((outputs,), 200)
        shape = {'kernel_shape': [kernel] * 2, 'strides': [stride] * 2, 'pads': pad, 'group': groups}
        return node('Relu', [node('Conv', [x, weight, bias], **shape)])

    channels = int(32 * width)
    x = convolution('data', input_shape[1], channels, 3, 2)
    for stride, outputs in _STRIDES_AND_CHANNELS:
        x = convolution(x, channels, channels, 3, stride, groups=channels)
        x = convolution(x, channels, int(outputs * width), 1, 1)
        channels = int(outputs * width)
    x = node('Flatten', [node('GlobalAveragePool', [x])])
    x = node('Gemm', [x, parameter((classes, channels), channels), parameter((classes,), 200)], transB=1)
    data = helper.make_tensor_value_info('data', onnx.TensorProto.FLOAT, list(input_shape))
    logits = helper.make_tensor_value_info(x, onnx.TensorProto.FLOAT, [input_shape[0], classes])
    graph = helper.make_graph(nodes, 'mobilenet', [data], [logits], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid('', 13)])
    model.ir_version = 8  # supported by all versions of ONNX Runtime
    return model


def quantize(file, input_shape):
    """Write a quantized model beside `file` and return its path."""
    import numpy as np
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class RandomImages(CalibrationDataReader):
        def __init__(self):
            random = np.random.default_rng(1)
            self.images = iter([random.normal(size=input_shape).astype(np.float32) for _ in range(_CALIBRATION_IMAGES)])

        def get_next(self):
            image = next(self.images, None)
            return None if image is None else {'data': image}

    quantized = file.replace('.onnx', '-int8.onnx')
    quantize_static(
        file,
        quantized,
        RandomImages(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )
    return quantized
