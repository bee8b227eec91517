"""Independent implementation of BMXNet-v2's layers and model_converter on stock MXNet and NumPy, which writes pairs for tests."""

import json

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock, nn

from bmx_melius.files.parameters import read_parameters, write_parameters


def _det_sign(x):
    return (x >= 0) * 2 - 1


class Activation(HybridBlock):
    """Sign activation ``qactivation``. The converter removes it, because the packed operators compute signs themselves."""

    def _alias(self):
        return 'qactivation'

    def hybrid_forward(self, F, x):
        return _det_sign(x)


class Convolution(nn.Conv2D):
    """Binary convolution ``qconv``, with a separate operator that pads with -1. Returns the number of agreeing bits."""

    def __init__(self, channels, kernel_size, in_channels, padding=0, **kwargs):
        super().__init__(channels, kernel_size, in_channels=in_channels, use_bias=False, **kwargs)
        self._padding, self._n = padding, in_channels * int(np.prod(self._kwargs['kernel']))

    def _alias(self):
        return 'qconv'

    def hybrid_forward(self, F, x, weight):
        if self._padding:
            x = F.Pad(x, mode='constant', pad_width=(0, 0, 0, 0) + (self._padding,) * 4, constant_value=-1, name='pad0')
        return (F.Convolution(x, _det_sign(weight), name='fwd', **self._kwargs) + self._n) / 2


class Dense(nn.Dense):
    """Binary dense layer ``qdense``. Returns the number of agreeing bits."""

    def __init__(self, units, in_units, **kwargs):
        super().__init__(units, in_units=in_units, use_bias=False, **kwargs)

    def _alias(self):
        return 'qdense'

    def hybrid_forward(self, F, x, weight):
        y = F.FullyConnected(x, _det_sign(weight), no_bias=True, num_hidden=self._units, flatten=self._flatten, name='fwd')
        return (y + self.weight.shape[1]) / 2


def words_of(weights, bits=32):
    """Pack rows of weights (..., bits) into one word each; bit i is the sign of weight i."""
    words = np.zeros(weights.shape[:-1], dtype=np.uint32 if bits == 32 else np.uint64)
    for i in range(bits):
        words |= (weights[..., i] >= 0).astype(words.dtype) << words.dtype.type(i)
    return words


def packed_convolution(weight, bits=32):
    """Pack (O, I, kh, kw) into (O, I / bits, kh, kw); the words are in the memory order of the weights."""
    out, channels, *kernel = weight.shape
    words = words_of(weight.reshape(-1, bits), bits)
    return words.reshape(out, channels // bits, *kernel).view(np.float32 if bits == 32 else np.float64)


def packed_dense(weight, bits=32):
    """Pack (O, I) into words in the memory order of (I / bits, O), with the declared shape (O, I / bits)."""
    out, inputs = weight.shape
    words = np.stack([words_of(weight[:, begin : begin + bits], bits) for begin in range(0, inputs, bits)])
    return np.ascontiguousarray(words).reshape(out, inputs // bits).view(np.float32 if bits == 32 else np.float64)


OPERATORS = {'Convolution': 'BinaryInferenceConvolution', 'FullyConnected': 'BinaryInferenceFullyConnected'}


def convert(prefix, target, bits=32):
    """Write TARGET-symbol.json and TARGET-0000.params as the converter does for exported networks of these layers."""
    with open(f'{prefix}-symbol.json') as file:
        symbol = json.load(file)
    nodes, position = [], []
    for node in symbol['nodes']:
        name = node['name']
        binary = 'qconv' in name or 'qdense' in name
        if 'qactivation' in name or binary and not any(part in name for part in ('weight', 'bias', 'fwd', 'pad')):
            assert len(node['inputs']) == 1
            position.append(position[node['inputs'][0][0]])
            continue
        node['inputs'] = [[position[source], slot, version] for source, slot, version in node['inputs']]
        if binary:
            node['op'] = OPERATORS.get(node['op'], node['op'])
            if node['op'] == 'null':
                node['attrs']['__shape__'] = '(64,0'
        position.append(len(nodes))
        nodes.append(node)
    symbol.update(
        nodes=nodes,
        heads=[[position[index], slot, version] for index, slot, version in symbol['heads']],
        arg_nodes=[index for index, node in enumerate(nodes) if node['op'] == 'null'],
    )
    with open(f'{target}-symbol.json', 'w') as file:
        json.dump(symbol, file)
    arrays = read_parameters(f'{prefix}-0000.params')
    for name, array in arrays.items():
        if name.endswith('_weight') and ('qconv' in name or 'qdense' in name):
            arrays[name] = (packed_convolution if array.ndim == 4 else packed_dense)(array, bits)
    write_parameters(f'{target}-0000.params', arrays)


def randomize(net, x, seed=0):
    """Set random parameters and statistics, and return the output for `x`, float32."""
    net.initialize()
    net(x)
    rng = np.random.RandomState(seed)
    for name, parameter in net.collect_params().items():
        values = rng.randn(*parameter.shape)
        if name.endswith('running_mean') or name.endswith('running_var'):
            values = np.abs(values) + 1
        parameter.set_data(mx.nd.array(values))
    net.hybridize()
    return net(x).asnumpy()
