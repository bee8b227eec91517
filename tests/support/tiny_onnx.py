"""Tiny ONNX models."""

import numpy as np
import onnx

FLOAT = onnx.TensorProto.FLOAT
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def make(nodes, constants=None, inputs=None, outputs=('y',), domains=(), functions=(), opset=17):
    """Return a model with float32 inputs, by default x of (1, 4, 6, 6)."""
    inputs = {'x': (1, 4, 6, 6)} if inputs is None else inputs
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in (constants or {}).items()]
    graph = helper.make_graph(
        list(nodes),
        'graph',
        [helper.make_tensor_value_info(name, FLOAT, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, ()) for name in outputs],
        tensors,
    )
    opsets = [helper.make_opsetid('', opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions))
    model.ir_version = 8
    return model


def node(kind, inputs, output='y', **attributes):
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def binary_network(weight=None):
    """Return a small network with a binary convolution."""
    weight = np.where(np.random.RandomState(0).rand(8, 8, 3, 3) < 0.5, -1, 1).astype(np.float32) if weight is None else weight
    first = np.random.RandomState(1).normal(size=(8, 4, 3, 3)).astype(np.float32)
    nodes = [
        *(node('Conv', 'x first', 'a', pads=[1] * 4), node('Less', 'a zero', 'less'), node('Not', 'less', 'at_least')),
        *(node('Where', 'at_least one minus', 's'), node('Conv', 's weight', 'c', pads=[1] * 4), node('GlobalAveragePool', 'c', 'p')),
        node('Flatten', 'p'),
    ]
    numbers = {'zero': np.float32(0), 'one': np.float32(1), 'minus': np.float32(-1)}
    return make(nodes, {'first': first, 'weight': weight, **numbers})


def signs(*shape, seed=0):
    """Return random signs, float32."""
    return np.where(np.random.RandomState(seed).rand(*shape) < 0.5, -1, 1).astype(np.float32)


def networks():
    """Return small networks that together have most forms of binary layers."""
    random = np.random.RandomState(0)
    first, dense = random.normal(size=(8, 4, 3, 3)).astype(np.float32), random.normal(size=(3, 8)).astype(np.float32)
    numbers = {'zero': np.float32(0), 'one': np.float32(1), 'two': np.float32(2), 'half': np.float32(0.5), 'minus': np.float32(-1)}
    norm = {name: random.rand(8).astype(np.float32) + 0.5 for name in ('gamma', 'beta', 'mean', 'var')}
    constants = {'first': first, 'weight': signs(8, 8, 3, 3), 'dense': dense, **numbers}
    begin = node('Conv', 'x first', 'a', pads=[1, 1, 1, 1])
    end = [node('GlobalAveragePool', 'c', 'p'), node('Flatten', 'p', 'f'), node('Gemm', 'f dense', transB=1)]
    levels = [
        *(node('Clip', 'a zero one', 'l'), node('Add', 'l l', 'm'), node('Add', 'm l', 'n'), node('Round', 'n', 'r')),
        *(node('Div', 'r three', 's'), node('Conv', 's weight', 'c')),
    ]
    estimator = [
        *(node('BatchNormalization', 'a gamma beta mean var', 'b'), node('Sign', 'b', 'g'), node('Clip', 'b minus one', 'h')),
        *(node('Sub', 'g h', 'd'), node('Add', 'd h', 's'), node('Conv', 's weight', 'c', pads=[0, 1, 0, 1], strides=[2, 1])),
    ]
    halves = [
        *(node('Relu', 'a', 'b'), node('Greater', 'b half', 'g'), node('Cast', 'g', 'h', to=1), node('Mul', 'h two', 'i')),
        *(node('Sub', 'i one', 's'), node('Pad', 's pads minus', 't'), node('Conv', 't grouped', 'c', group=2)),
        *(helper.make_node('Split', ['c', 'sizes'], ['c0', 'c1'], axis=1), node('Concat', 'c1 c0', 'd', axis=1)),
        *(
            node('MaxPool', 'd', 'e', kernel_shape=[2, 2]),
            node('PRelu', 'e slope', 'c9'),
            node('ReduceMean', 'c9', 'f', axes=[2, 3], keepdims=0),
        ),
        node('MatMul', 'f matrix'),
    ]
    more = {'pads': np.array([0, 0, 1, 1, 0, 0, 1, 1]), 'sizes': np.array([4, 4]), 'matrix': signs(8, 3, seed=1) * np.float32(0.25)}
    more.update(
        grouped=signs(8, 4, 3, 3) * np.abs(random.normal(size=(8, 1, 1, 1))).astype(np.float32), slope=np.full((8, 1, 1), 0.25, np.float32)
    )
    quantized = [helper.make_node('BipolarQuant', ['a', 'one'], ['s'], domain='qonnx.custom_op.general'), node('Conv', 's weight', 'c')]
    return [
        binary_network(),
        make([begin, *levels, *end], {**constants, 'three': np.float32(3)}),
        make([begin, *estimator, *end], {**constants, **norm}),
        make([begin, *halves], {**constants, **more}),
        make([begin, *quantized, *end], constants, domains=['qonnx.custom_op.general']),
    ]
