"""Rules for activation functions."""

import numpy as np

from ....graph.operations import Activation, Clip, Elementwise, HardSigmoid, Rounding, ScalarArithmetic
from ....nn import marks
from ..builder import UnsupportedError
from .table import marked_rule, rule


def _input(builder, node):
    return builder.real(builder.network.sources(node)[0])


def _elementwise_rule(name, operation_class, kind):
    """Add a rule for a kind of operations that become the operation `name` of a program, without constants."""

    def elementwise(builder, node):
        builder.set(node, builder.add(name, [_input(builder, node)]))

    elementwise.__doc__ = f'Convert to `{name}`.'
    rule(operation_class, kind, maps_3d=True)(elementwise)


_elementwise_rule('abs', Elementwise, 'abs')
_elementwise_rule('relu', Activation, 'relu')
_elementwise_rule('sigmoid', Activation, 'sigmoid')
_elementwise_rule('softplus', Activation, 'softrelu')


@rule(Activation, 'tanh', maps_3d=True)
def _tanh(builder, node):
    """Convert to 2 sigmoid(2x) - 1."""
    doubled = builder.affine(_input(builder, node), 2, 0)
    builder.set(node, builder.affine(builder.add('sigmoid', [doubled]), 2, -1))


@rule(Rounding, maps_3d=True)
def _around(builder, node):
    """Convert `numpy.around` to whole numbers, ties to even, to `round`; other decimals have no packed form."""
    if node.operation.decimals:
        raise UnsupportedError('it rounds to multiples of a number other than 1')
    builder.set(node, builder.add('round', [_input(builder, node)]))


@rule(Activation, maps_3d=True)
def _other_activation(_, node):
    """Convert `relu`, `sigmoid`, `softrelu` and `tanh`; `softsign` has no packed form.

    These have rules of their own; this one is for other kinds.
    """
    raise UnsupportedError(f'the activation {node.operation.kind} has no packed form; relu, sigmoid, softrelu, tanh have one')


_SELU = 1.0507009873554805, 1.6732632423543772  # scale and slope (arXiv:1706.02515)


@rule(Activation, 'leaky', 'prelu', 'elu', 'selu', 'gelu', 'rrelu', maps_3d=True)
def _leaky_relu(builder, node):
    """Convert `leaky` and `prelu` to `prelu`, `elu` and `selu` to `elu`, `gelu` to `gelu`; `rrelu` has no packed form."""
    kind, (x, *parameters) = node.operation.kind, builder.network.sources(node)
    if kind == 'gelu':
        return builder.set(node, builder.add('gelu', [builder.real(x)]))
    if kind in ('elu', 'selu'):
        scale, slope = _SELU if kind == 'selu' else (1, node.operation.slope)
        y = builder.add_channelwise('elu', builder.real(x), slope=slope)
        return builder.set(node, builder.affine(y, scale, 0) if scale != 1 else y)
    if kind == 'leaky':
        slope = node.operation.slope
    elif kind == 'prelu' and not parameters[0].node.depends_on_data:
        slope = builder.network.constant(parameters[0]).reshape(-1)
    else:
        raise UnsupportedError(f'the activation {kind} has no packed form')
    builder.set(node, builder.add_channelwise('prelu', builder.real(x), slope=slope))


@marked_rule(marks.PRELU, maps_3d=True)
def _marked_prelu(builder, node):
    """Convert relu(x) + slope * min(x, 0), also where relu(x) has a factor, by which the slope is divided."""
    network = builder.network
    above, below = (source.node for source in network.sources(node))
    if not _is_scaled(below):
        raise UnsupportedError('it is marked as a PReLU, but its second summand is not a product with constants')
    slope = network.constant(network.sources(below)[1])
    if not _is_scaled(above):
        x = builder.real(network.sources(above)[0])
        builder.set(node, builder.add_channelwise('prelu', x, slope=slope))
        return
    positive, relu = network.constant(network.sources(above)[1]), network.sources(above)[0].node
    x = builder.real(network.sources(relu)[0])
    if positive.all():
        ratio = slope.astype(np.float64) / positive
        builder.set(node, builder.affine(builder.add_channelwise('prelu', x, slope=ratio), positive, 0))
    else:
        negative = builder.add_channelwise('clip', x, low=-np.inf, high=0)
        builder.set(node, builder.add('add', [builder.affine(builder.add('relu', [x]), positive, 0), builder.affine(negative, slope, 0)]))


def _is_scaled(node):
    return node.marks.get(marks.ROLE) == marks.SCALE and not node.inputs[1].depends_on_data


def _clip(builder, node, x, low, high):
    builder.set(node, builder.add_channelwise('clip', x, low=low, high=high))


@rule(Clip, maps_3d=True)
def _clip_between(builder, node):
    """Convert to `clip`."""
    _clip(builder, node, _input(builder, node), node.operation.low, node.operation.high)


@rule(ScalarArithmetic, 'maximum', maps_3d=True)
def _maximum_with_number(builder, node):
    """Convert the maximum of a value and a number to `clip`."""
    _clip(builder, node, _input(builder, node), node.operation.number, np.inf)


@rule(ScalarArithmetic, 'minimum', maps_3d=True)
def _minimum_with_number(builder, node):
    """Convert the minimum of a value and a number to `clip`."""
    _clip(builder, node, _input(builder, node), -np.inf, node.operation.number)


@rule(HardSigmoid, maps_3d=True)
def _hard_sigmoid(builder, node):
    """Convert min(max(alpha x + beta, 0), 1)."""
    _clip(builder, node, builder.affine(_input(builder, node), node.operation.alpha, node.operation.beta), 0, 1)
