"""Rules for sums of values, and for scaling and shifting by one constant per channel."""

import numpy as np

from ..builder import UnsupportedError
from .table import rule


@rule('elemwise_add', '_plus', '_Plus', 'broadcast_add', 'broadcast_plus')
def _sum(builder, node):
    sources = builder.network.sources(node)
    if all(source.node.depends_on_data for source in sources):
        builder.set(node, builder.add('add', [builder.real(source) for source in sources]))
    else:
        x, constant, _ = _data_and_constant(builder, node)
        builder.affine(node, x, 1, constant)


@rule('add_n', 'ElementWiseSum')
def _sum_of_many(builder, node):
    first, *rest = [builder.real(source) for source in builder.network.sources(node)]
    for number in rest:
        first = builder.add('add', [first, number])
    builder.set(node, first)


@rule('elemwise_sub', '_minus', '_Minus', 'broadcast_sub', 'broadcast_minus')
def _difference(builder, node):
    x, constant, data_is_first = _data_and_constant(builder, node)
    builder.affine(node, x, *((1, -constant) if data_is_first else (-1, constant)))


@rule('elemwise_mul', '_mul', '_Mul', 'broadcast_mul')
def _product(builder, node):
    x, constant, _ = _data_and_constant(builder, node)
    builder.affine(node, x, constant, 0)


def _data_and_constant(builder, node):
    """Return the number of the data input, the constant as a float64 array (channels,) or (1,), and whether data is the first input."""
    first, second = builder.network.sources(node)
    if first.node.depends_on_data and second.node.depends_on_data:
        raise UnsupportedError(f'the operator {node.operator} of two data inputs has no packed form')
    data, other = (first, second) if first.node.depends_on_data else (second, first)
    constant = builder.network.constant(other).astype(np.float64)
    constant = constant.reshape((1,) * (len(node.shape) - constant.ndim) + constant.shape)
    if builder.network.shape(data) != node.shape or constant.size != constant.shape[1]:
        raise UnsupportedError('it combines data with a parameter that is not one number for each channel')
    return builder.real(data), constant.reshape(-1), data is first


def _scalar_rule(operator, of_scalar):
    """Add a rule for x -> x * scale + shift, where `of_scalar` computes (scale, shift) from the operator's scalar."""

    @rule(operator)
    def scaled_and_shifted(builder, node):
        builder.affine(node, builder.real(builder.network.sources(node)[0]), *of_scalar(float(node.attributes['scalar'])))


_scalar_rule('_plus_scalar', lambda scalar: (1, scalar))
_scalar_rule('_minus_scalar', lambda scalar: (1, -scalar))
_scalar_rule('_rminus_scalar', lambda scalar: (-1, scalar))
_scalar_rule('_mul_scalar', lambda scalar: (scalar, 0))
_scalar_rule('_div_scalar', lambda scalar: (1 / scalar if scalar else np.inf, 0))
