"""Small packed networks for tests: operations, programs, and files like those written by a conversion."""

import json

import numpy as np

from bmx_melius.deployment.program.operations import OPERATIONS, PADDING, REAL_KIND, Operation, Value
from bmx_melius.deployment.program.packed_operator import NAME, operator_attributes
from bmx_melius.deployment.program.program import Program
from bmx_melius.files.parameters import write_parameters


def window(kernel=1, stride=1, pad=0, dilation=None):
    """Return the attributes of a window: numbers, or pairs (height, width); the padding may be (top, left, bottom, right), too."""
    attributes = {}
    for name, extent in (('kernel', kernel), ('stride', stride), ('dilation', dilation)):
        if extent is not None:
            attributes[f'{name}_h'], attributes[f'{name}_w'] = np.broadcast_to(extent, 2).tolist()
    sides = np.broadcast_to(pad, 2).tolist() * 2 if np.size(pad) < len(PADDING) else pad
    return {**attributes, **dict(zip(PADDING, sides))}


def operation(name, *inputs, arrays=None, **attributes):
    """Return an operation; attributes that are not given do nothing special. Without inputs it is for `chain`."""
    plain = {attribute: max(least, 0) for attribute, (least, _) in OPERATIONS[name].attributes.items()}
    assert set(attributes) <= set(plain)
    return Operation(name, inputs, {**plain, **attributes}, arrays or {})


def sign(channels, *inputs):
    """Return the comparison of all channels with 0."""
    return operation('threshold', *inputs, arrays={'threshold': np.zeros(channels, 'f'), 'flip': np.zeros(channels, bool)})


def conv(weight, *inputs, bias=None, **attributes):
    """Return a convolution with the kernel of its weight, float32 or float16 (out, in, height, width)."""
    arrays = {'weight': weight, **({} if bias is None else {'bias': bias})}
    facts = {'out_channels': len(weight), 'has_bias': int(bias is not None), 'half': int(weight.dtype == np.float16)}
    return operation('conv', *inputs, arrays=arrays, **{**facts, **window(weight.shape[2:]), **attributes})


def binary_conv(weight, *inputs, pad_value=-1, **attributes):
    """Return a binary convolution with the kernel of its weight, bool (out, height, width, in)."""
    facts = {'out_channels': len(weight), **window(weight.shape[1:3]), 'pad_value': pad_value}
    return operation('binary_conv', *inputs, arrays={'weight': weight}, **{**facts, **attributes})


def chain(shape, *operations, outputs=None):
    """Return a program with an input of a shape without the batch, in which an operation without inputs reads the result of the one before.

    The default output is the last value. The program is read from its words: what is tested is what a file holds.
    """
    channels, height, width = (*shape, 1, 1)[:3]
    fed = [one if one.inputs else Operation(one.name, (number,), one.attributes, one.arrays) for number, one in enumerate(operations)]
    values = [Value(REAL_KIND, channels, height, width, len(shape) == 1)]
    return Program.from_words(Program(values, fed, [len(fed)] if outputs is None else outputs).to_words())


def product_of_signs(heads, inner, rows, columns, transposed, height=1):
    """Return a program that multiplies the signs of two maps, which have `rows` and `columns` or `inner` positions, for each head."""
    size, positions = (inner, columns) if transposed else (columns, inner)
    values = [Value(REAL_KIND, heads * inner, height, rows // height, False), Value(REAL_KIND, heads * size, 1, positions, False)]
    signs = [operation('expand', number, low=-1) for number in (2, 3)]
    product = operation('matmul', 4, 5, heads=heads, positions=positions, transposed=int(transposed))
    return Program(values, [sign(values[0].channels, 0), sign(values[1].channels, 1), *signs, product], [6])


def make_program(seed=0, channels=5, classes=7):
    """Return a program with a sign, a binary convolution, pooling and a dense layer. Outputs: class scores and the pooled map."""
    random = np.random.RandomState(seed)
    filters = 40
    compare = {'threshold': random.randn(channels).astype('f') * 0.1, 'flip': random.rand(channels) < 0.5}
    weight, bias = random.randn(classes, filters, 1, 1).astype('f'), random.randn(classes).astype('f')
    return Program(
        [Value(REAL_KIND, channels, 8, 6, False)],
        [
            operation('threshold', 0, arrays=compare),
            binary_conv(random.rand(filters, 3, 3, channels) < 0.5, 1, **window(3, pad=1)),
            operation('max_pool', 2, **window(3, 2, 1)),
            operation('global_avg_pool', 3),
            operation('flatten', 4),
            conv(weight, 5, bias=bias),
        ],
        [6, 3],
    )


def binary_layers(inputs=32):
    """Return a sign of value 0 and two binary convolutions of it, values 1 to 3."""
    random = np.random.RandomState(0)
    return [sign(inputs, 0), *(binary_conv(random.rand(32, 3, 3, inputs) < 0.5, 1, offset=1, **window(3, pad=1)) for _ in range(2))]


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
