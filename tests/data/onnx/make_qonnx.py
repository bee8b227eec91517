"""Generate models as in the zoos of QONNX and FINN: ``python make_qonnx.py [NAME ...]``, as ``requirements-qonnx.txt`` says.

The environment has NumPy 1: QONNX adds integer zero points to float32 arrays, which NumPy 2 makes float64.

They have the forms of TFC, CNV, MobileNet and the jet classifier of https://github.com/fastmachinelearning/qonnx_model_zoo and of models
that FINN has streamlined: old versions of ONNX's operators, domains that no entry declares, zero points and bits as integers, thresholds in
place of activations, and 8-bit images. QONNX computes the results.
"""

import sys

import numpy as np
import onnx
import recording
from onnx import TensorProto, helper, numpy_helper

SHAPE = (3, 12, 12)


class Graph:
    """A model under construction; each method adds nodes that read `self.last`, and returns the graph."""

    def __init__(self, seed, domain, opset, integers=TensorProto.FLOAT, pixels=False):
        self.random, self.domain, self.opset = np.random.default_rng(seed), domain, opset
        self._integers = helper.tensor_dtype_to_np_dtype(integers)
        self._nodes, self._tensors, self.last, self.features = [], [], 'image', SHAPE[0]
        self._input = helper.make_tensor_value_info('image', TensorProto.UINT8 if pixels else TensorProto.FLOAT, (1, *SHAPE))
        if pixels:
            self.node('Cast', to=TensorProto.FLOAT)

    def tensor(self, array):
        name = f'tensor{len(self._tensors)}'
        self._tensors.append(numpy_helper.from_array(np.asarray(array), name))
        return name

    def node(self, kind, *inputs, custom=False, source=None, **attributes):
        """Add a node; arrays among its inputs become initializers."""
        names = [each if isinstance(each, str) else self.tensor(each) for each in inputs]
        output = f'value{len(self._nodes)}'
        domain = self.domain if custom else ''
        self._nodes.append(helper.make_node(kind, [source or self.last, *names], [output], domain=domain, **attributes))
        if source is None:
            self.last = output
        return output

    def quant(self, scale, bits, signed, narrow=0, zero_point=0, source=None, kind='Quant', rounding='ROUND'):
        integers = [np.array(number, self._integers) for number in (zero_point, bits)]
        scale = np.float32(scale)
        return self.node(kind, scale, *integers, custom=True, source=source, signed=signed, narrow=narrow, rounding_mode=rounding)

    def bipolar(self, scale=1.0, source=None):
        return self.node('BipolarQuant', np.float32(scale), custom=True, source=source)

    def conv(self, filters, quantize=None, kernel=3, **attributes):
        """Add a convolution; `quantize` names the quantizer of its weights, or is their number of bits."""
        weight = self.random.normal(size=(filters, self.features, kernel, kernel)).astype(np.float32) * np.float32(0.3)
        if quantize == 'signs':
            weight = np.where(weight < 0, -1, 1).astype(np.float32)
        name = self.tensor(weight)
        name = self.bipolar(0.125, name) if quantize == 'bipolar' else name
        name = self.quant(0.25, 2, 1, 1, source=name) if quantize == 'ternary' else name
        name = self.quant(1 / 2**quantize, quantize, 1, source=name) if isinstance(quantize, int) else name
        self.features = filters
        self.node('Conv', name, kernel_shape=[kernel, kernel], **attributes)
        return self

    def norm(self):
        parameters = [self.random.uniform(0.5, 1.5, self.features), self.random.normal(size=self.features) / 4]
        parameters += [self.random.normal(size=self.features) / 4, self.random.uniform(0.5, 2, self.features)]
        self.node('BatchNormalization', *(array.astype(np.float32) for array in parameters), epsilon=1e-5)
        return self

    def thresholds(self, count, spread, scale, bias, layout='NCHW'):
        channels = np.sort(self.random.normal(size=(self.features, count)) * spread, axis=1).astype(np.float32)
        attributes = {'out_dtype': 'INT8', 'out_scale': scale, 'out_bias': bias, **({'data_layout': layout} if layout else {})}
        self.node('MultiThreshold', channels, custom=True, **attributes)
        return self

    def head(self, classes=5):
        self.node('GlobalAveragePool')
        self.node('Flatten', axis=1)
        weight = self.random.normal(size=(self.features, classes)).astype(np.float32)
        self.node('MatMul', weight)
        return self

    def save(self, name, declared):
        output = helper.make_tensor_value_info(self.last, TensorProto.FLOAT, (1, 5))
        graph = helper.make_graph(self._nodes, name, [self._input], [output], self._tensors)
        opsets = [helper.make_opsetid('', self.opset), *([helper.make_opsetid(self.domain, 1)] if declared else [])]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=6), recording.WORK / f'{name}.onnx')


def cnv():
    """Return a network in the form of CNV: an 8-bit image, BipolarQuant of inputs and weights."""
    graph = Graph(0, 'onnx.brevitas', 9)
    graph.node('Mul', np.float32(2))
    graph.node('Sub', np.float32(1))
    graph.quant(2**-7, 8, 1, 1)
    graph.conv(16, 'bipolar').norm().bipolar()
    graph.conv(16, 'bipolar').norm().bipolar()
    graph.node('MaxPool', kernel_shape=[2, 2], strides=[2, 2])
    graph.conv(32, 'bipolar').norm()
    return graph.head()


def integers():
    """Return a network whose zero points and bits are integers, one zero point of them not 0."""
    graph = Graph(1, 'finn.custom_op.general', 10, TensorProto.INT64)
    graph.conv(16).norm().quant(0.5, 2, 0, zero_point=1)
    graph.conv(16, 'ternary').norm()
    graph.node('Clip', min=-1.0, max=1.0)
    graph.quant(1, 1, 1, 1)
    graph.conv(16, 'bipolar', pads=[1] * 4).norm()
    graph.node('Relu')
    graph.quant(0.5, 2, 0, rounding='FLOOR')
    return graph.conv(32, 'bipolar').head()


def several_bits():
    """Return a network with 3 and 4 bits of inputs, with and without a sign, and of weights."""
    graph = Graph(5, 'qonnx.custom_op.general', 13)
    graph.conv(16).norm()
    graph.node('Relu')
    graph.quant(0.25, 4, 0)
    graph.conv(16, 4, pads=[1] * 4).norm().quant(0.25, 4, 1)
    graph.conv(16, 3).norm().quant(0.5, 3, 1, 1)
    return graph.conv(32, 3).head()


def thresholds():
    """Return a network that FINN has streamlined: thresholds for each channel, and images of bytes."""
    graph = Graph(2, 'finn.custom_op.general', 11, pixels=True)
    graph.node('Div', np.float32(255))
    graph.conv(16).thresholds(1, 0.3, 2.0, -1.0)
    graph.conv(16, 'signs').thresholds(3, 8, 1.0, 0.0, layout='')
    graph.conv(16, 'signs', pads=[1] * 4).thresholds(3, 12, 0.5, -0.75)
    return graph.conv(32, 'signs').head()


def truncations():
    """Return a network whose means of 4-bit integers are truncated to 2 bits."""
    graph = Graph(3, 'qonnx.custom_op.general', 9, TensorProto.INT8)
    graph.conv(16).norm()
    graph.node('Relu')
    graph.quant(0.25, 4, 0, kind='IntQuant', rounding='HALF_UP')
    graph.node('Trunc', np.float32(0.25), np.int8(0), np.int8(4), np.int8(2), custom=True, rounding_mode='FLOOR')
    graph.conv(16, 'bipolar').norm().quant(0.5, 2, 1, 1, kind='IntQuant', rounding='HALF_EVEN')
    return graph.conv(32, 'bipolar').head()


SOURCE = 'forms of fastmachinelearning/qonnx_model_zoo and Xilinx/finn (qonnx 1.0.0)'
# name: network, whether its domain is declared, facts
MODELS = {
    'qonnx-cnv-opset9': (
        cnv, False, {'form': 'BipolarQuant of inputs and weights, 8-bit Quant of the image; undeclared domain onnx.brevitas', 'binary': 2,
                      'levels': 1},
    ),
    'qonnx-integers-opset10': (
        integers, True,
        {'form': 'Quant with zero points and bits of int64, also of 1 bit; weights BipolarQuant and Quant of 3 levels', 'binary': 1,
         'low_bit': 2},
    ),
    'qonnx-w4a4': (several_bits, True, {'form': 'Quant of 3 and 4 bits, of inputs and weights', 'binary': 0, 'levels': 3}),
    'finn-thresholds-opset11': (
        thresholds, False, {'form': 'MultiThreshold for each channel; weights -1 and 1; image of uint8', 'binary': 1, 'low_bit': 2},
    ),
    'qonnx-trunc-opset9': (
        truncations, True, {'form': 'IntQuant and Trunc of inputs, HALF_UP; weights BipolarQuant; zero points and bits of int8',
                            'binary': 0, 'low_bit': 2},
    ),
}  # fmt: skip


def make(name, build, declared, facts):
    graph = build()
    graph.save(name, declared)
    pixels = 'uint8' in facts['form']
    dtype, high = (np.uint8, 255.0) if pixels else (np.float32, 1.0)
    inputs = recording.choose_inputs(name, [(2, *SHAPE)], dtype, low=0.0, high=high)
    outputs = recording.run(onnx.load(recording.WORK / f'{name}.onnx'), inputs)
    recording.record(name, inputs, outputs, exporter='make_qonnx.py, batch 1', source=SOURCE, **facts)


if __name__ == '__main__':
    for name in sys.argv[1:] or MODELS:
        make(name, *MODELS[name])
