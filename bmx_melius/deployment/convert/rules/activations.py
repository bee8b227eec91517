"""Rules for activation functions."""

import numpy as np

from ..builder import UnsupportedError
from .table import rule


def _input(builder, node):
    return builder.real(builder.network.sources(node)[0])


def _elementwise_rule(operation, *operators):
    """Add a rule for operators that become one operation without constants."""

    @rule(*operators)
    def elementwise(builder, node):
        builder.set(node, builder.add(operation, [_input(builder, node)]))

    return elementwise


_ACTIVATIONS = {'relu': _elementwise_rule('relu', 'relu'), 'sigmoid': _elementwise_rule('sigmoid', 'sigmoid')}
_elementwise_rule('abs', 'abs')


@rule('Activation')
def _activation(builder, node):
    kind = node.attributes['act_type']
    if kind not in _ACTIVATIONS:
        raise UnsupportedError(f'the activation {kind} has no packed form')
    _ACTIVATIONS[kind](builder, node)


@rule('LeakyReLU')
def _leaky_relu(builder, node):
    kind, (x, *parameters) = node.attributes.get('act_type', 'leaky'), builder.network.sources(node)
    if kind == 'leaky':
        slope = float(node.attributes.get('slope', 0.25))
    elif kind == 'prelu' and not parameters[0].node.depends_on_data:
        slope = builder.network.constant(parameters[0]).reshape(-1)
    else:
        raise UnsupportedError(f'the activation {kind} has no packed form')
    builder.set(node, builder.add_channelwise('prelu', builder.real(x), slope=slope))


def _clip(builder, node, x, low, high):
    builder.set(node, builder.add_channelwise('clip', x, low=low, high=high))


@rule('clip')
def _clip_between(builder, node):
    _clip(builder, node, _input(builder, node), float(node.attributes['a_min']), float(node.attributes['a_max']))


@rule('_maximum_scalar', '_MaximumScalar')
def _maximum(builder, node):
    _clip(builder, node, _input(builder, node), float(node.attributes['scalar']), np.inf)


@rule('_minimum_scalar', '_MinimumScalar')
def _minimum(builder, node):
    _clip(builder, node, _input(builder, node), -np.inf, float(node.attributes['scalar']))


@rule('hard_sigmoid')
def _hard_sigmoid(builder, node):
    """Convert min(max(alpha x + beta, 0), 1)."""
    alpha, beta = (float(node.attributes.get(name, default)) for name, default in (('alpha', 0.2), ('beta', 0.5)))
    _clip(builder, node, builder.affine(_input(builder, node), alpha, beta), 0, 1)
