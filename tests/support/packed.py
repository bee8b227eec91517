"""Small packed networks for tests: programs, and files like those written by a conversion."""

import json

import numpy as np

from bmx_melius.deployment.program.operations import PADDING, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.packed_operator import NAME, operator_attributes
from bmx_melius.deployment.program.program import Program
from bmx_melius.files.parameters import write_parameters


def geometry(kernel=1, stride=1, pad=0):
    window = {f'{name}_{axis}': number for name, number in (('kernel', kernel), ('stride', stride)) for axis in 'hw'}
    return {**window, **dict.fromkeys(PADDING, pad)}


def make_program(seed=0, channels=5, classes=7):
    """Return a program with a sign, a binary convolution, pooling and a dense layer. Outputs: class scores and the pooled map."""
    random = np.random.RandomState(seed)
    filters = 40
    dilation = {'dilation_h': 1, 'dilation_w': 1, 'groups': 1}
    sign = {'threshold': random.randn(channels).astype('f') * 0.1, 'flip': random.rand(channels) < 0.5}
    binary = {'out_channels': filters, **geometry(3, pad=1), **dilation, 'pad_value': -1, 'offset': 0, 'planes': 1}
    dense = {'out_channels': classes, **geometry(), **dilation, 'has_bias': 1, 'half': 0}
    scores = {'weight': random.randn(classes, filters, 1, 1).astype('f'), 'bias': random.randn(classes).astype('f')}
    return Program(
        [Value(REAL_KIND, channels, 8, 6, False)],
        [
            Operation('threshold', (0,), {}, sign),
            Operation('binary_conv', (1,), binary, {'weight': random.rand(filters, 3, 3, channels) < 0.5}),
            Operation('max_pool', (2,), {**geometry(3, 2, 1), 'ceil': 0}),
            Operation('global_avg_pool', (3,)),
            Operation('flatten', (4,)),
            Operation('conv', (5,), dense, scores),
        ],
        [6, 3],
    )


def make_image(batch=2, channels=5, height=8, width=6, seed=0):
    return np.random.RandomState(seed).randn(batch, channels, height, width).astype(np.float32)


def write_packed(prefix, program, outputs=None):
    """Write PREFIX-symbol.json and PREFIX-0000.params. `outputs`: indices of the operator's outputs that the network has."""
    words = program.to_words()
    names = [f'data{number}' for number in range(len(program.inputs))]
    nodes = [{'op': 'null', 'name': name, 'inputs': []} for name in names]
    described = {'__dtype__': '4', '__shape__': f'({len(words)},)'}
    nodes.append({'op': 'null', 'name': 'net_program', 'attrs': described, 'inputs': []})
    inputs = [[number, 0, 0] for number in range(len(nodes))]
    nodes.append({'op': NAME, 'name': 'net', 'attrs': operator_attributes(program), 'inputs': inputs})
    last = len(nodes) - 1
    graph = {
        'nodes': nodes,
        'arg_nodes': list(range(last)),
        'heads': [[last, output, 0] for output in (range(len(program.outputs)) if outputs is None else outputs)],
        'attrs': {'mxnet_version': ['int', 10901]},
    }
    with open(f'{prefix}-symbol.json', 'w') as file:
        json.dump(graph, file)
    write_parameters(f'{prefix}-0000.params', {'arg:net_program': words})


def binary_layers(inputs=32):
    """Return a sign of value 0 and two binary convolutions of it, values 1 to 3."""
    random = np.random.RandomState(0)
    sign = {'threshold': np.zeros(inputs, 'f'), 'flip': np.zeros(inputs, bool)}
    binary = {'out_channels': 32, **geometry(3, pad=1), 'dilation_h': 1, 'dilation_w': 1, 'groups': 1, 'pad_value': -1, 'offset': 1}
    weights = [{'weight': random.rand(32, 3, 3, inputs) < 0.5} for _ in range(2)]
    return [Operation('threshold', (0,), {}, sign)] + [Operation('binary_conv', (1,), {**binary, 'planes': 1}, array) for array in weights]


def window(kernel, stride, pad, dilation=(1, 1)):
    """Return the attributes of a window: pairs (height, width), and the padding (top, left, bottom, right)."""
    pairs = {'kernel': kernel, 'stride': stride, 'dilation': dilation}
    return {**{f'{name}_{axis}': pair[i] for name, pair in pairs.items() for i, axis in enumerate('hw')}, **dict(zip(PADDING, pad))}
