"""Rules for sums, differences, products and means of values, and for scaling and shifting by constants."""

import numpy as np

from ....graph.operations import Elementwise, Reduction, ScalarArithmetic
from ....nn import marks
from ..builder import UnsupportedError, is_3d, map_shape
from ..network import combines
from .attributes import reduced_axes
from .maps_3d import global_pooling, joined
from .table import marked_rule, rule


@rule(Elementwise, 'add', maps_3d=True)
def _sum(builder, node):
    """Convert the sum of two values of one shape to `add`, a sum with constants per channel or position to `affine` or `shift_map`."""
    if builder.network.is_identity(node):
        builder.set(node, builder.move(node, None, builder.network.sources(node)[:1]))
    elif _has_data_only(builder, node):
        builder.set(node, builder.add('add', _of_one_shape(builder, node)))
    else:
        x, constants, _ = _data_and_constants(builder, node)
        builder.set(node, _shifted(builder, x, constants))


@rule(Elementwise, 'sum', maps_3d=True)
def _sum_of_many(builder, node):
    """Convert to `add`, one after the other."""
    first, *rest = [builder.real(source) for source in builder.network.sources(node)]
    for number in rest:
        first = builder.add('add', [first, number])
    builder.set(node, first)


@rule(Elementwise, 'subtract', maps_3d=True)
def _difference(builder, node):
    """Convert as a sum, after a multiplication by -1."""
    if _has_data_only(builder, node):
        first, second = _of_one_shape(builder, node)
        builder.set(node, builder.add('add', [first, builder.affine(second, -1, 0)]))
        return
    x, constants, data_is_first = _data_and_constants(builder, node)
    if constants.ndim == 1:
        builder.set(node, builder.affine(x, *((1, -constants) if data_is_first else (-1, constants))))
    else:
        builder.set(node, _shifted(builder, x, -constants) if data_is_first else _shifted(builder, builder.affine(x, -1, 0), constants))


@rule(Elementwise, 'multiply', maps_3d=True)
def _product(builder, node):
    """Convert the product of two values to `multiply`, which repeats one; a product with constants to `affine` or `scale_map`."""
    if _has_data_only(builder, node):
        sources = builder.network.operands(node)
        sources.sort(key=lambda source: builder.network.shape(source) != node.shape)  # one that need not be repeated comes first
        builder.set(node, builder.add('multiply', [_repeated(builder, source, node.shape) for source in sources]))
        return
    x, factors = _data_and_factors(builder, node)
    for factor in factors:
        x = builder.affine(x, factor, 0) if factor.ndim == 1 else builder.add_positionwise('scale_map', x, factor)
    builder.set(node, x)


@rule(Elementwise, 'divide', maps_3d=True)
def _quotient(builder, node):
    """Convert the quotient of a value and constants per channel or position; a quotient of two values has no packed form."""
    x, constants = _dividend_and_divisor(builder, node)
    with np.errstate(divide='ignore'):
        factor = 1 / constants
    builder.set(node, builder.affine(x, factor, 0) if factor.ndim == 1 else builder.add_positionwise('scale_map', x, factor))


@rule(Elementwise, 'true_divide', maps_3d=True)
def _exact_quotient(builder, node):
    """Convert the quotient of a value and constants per channel to `divide`, which equals the operator bit for bit."""
    x, constants = _dividend_and_divisor(builder, node)
    if constants.ndim != 1:
        raise UnsupportedError('it divides by a number for each position; division by a number for each channel can be packed')
    builder.set(node, builder.add_channelwise('divide', x, divisor=constants))


def _dividend_and_divisor(builder, node):
    """Return a value and the constants by which it is divided."""
    if _has_data_only(builder, node):
        raise UnsupportedError('it divides two values that depend on the input; division by constants can be packed')
    x, constants, data_is_first = _data_and_constants(builder, node)
    if not data_is_first:
        raise UnsupportedError('it divides by a value that depends on the input; division by constants can be packed')
    return x, constants


@rule(Elementwise, 'maximum', maps_3d=True)
def _maximum(builder, node):
    """Convert the maximum of two values of one shape to `maximum`."""
    builder.set(node, builder.add('maximum', _of_one_shape(builder, node)))


@rule(Elementwise, 'minimum', maps_3d=True)
def _minimum(builder, node):
    """Convert the minimum of two values of one shape to `maximum`, between multiplications by -1."""
    negated = [builder.affine(number, -1, 0) for number in _of_one_shape(builder, node)]
    builder.set(node, builder.affine(builder.add('maximum', negated), -1, 0))


@rule(Elementwise, 'square', maps_3d=True)
def _square(builder, node):
    """Convert to `multiply`."""
    x = builder.real(builder.network.sources(node)[0])
    builder.set(node, builder.add('multiply', [x, x]))


@rule(Reduction, 'mean', maps_3d=True)
def _mean(builder, node):
    """Convert the mean over the channels (`keepdims`, not in 3-D) or over the map."""
    source = builder.network.sources(node)[0]
    rank = len(builder.network.shape(source))
    axes, keeps = reduced_axes(node.operation, rank), node.operation.keeps_axes
    if axes == {1} and keeps and rank < 5:
        builder.set(node, builder.add('channel_mean', [builder.real(source)]))
    elif axes == set(range(2, rank)) and axes:
        mean = global_pooling(builder, builder.real(source), builder.network.shape(source)[2] if rank == 5 else 1, 'avg')
        builder.set(node, mean if keeps else builder.add('flatten', [mean]))
    else:
        raise UnsupportedError(f'it is the mean over the axes {sorted(axes)}; that over the channels (keepdims) or the map can be packed')


@marked_rule(marks.MEAN)
def _marked_mean(builder, node):
    """Convert the mean of `bmx_melius.nn.channels.mean` to one operation."""
    x = builder.network.marked_input(node, marks.MEAN_INPUT)
    if x is None:
        raise UnsupportedError('the start of the mean is not marked')
    operation = {'channels': 'channel_mean', 'positions': 'global_avg_pool'}[node.marks['over']]
    builder.set(node, builder.add(operation, [builder.real(x)]))


def _of_one_shape(builder, node):
    """Return the numbers of the inputs of a node, which must have the shape of its result if that is a 3-D map."""
    sources = builder.network.sources(node)
    if is_3d(node.shape) and any(builder.network.shape(source) != node.shape for source in sources):
        raise UnsupportedError('it repeats a value along an axis of a 3-D map')
    return [builder.real(source) for source in sources]


def _repeated(builder, source, shape):
    """Return the number of a factor, a value repeated for each depth of a product of this shape if it has one depth."""
    number, own = builder.real(source), builder.network.shape(source)
    if not is_3d(shape) or own[1:3] in (shape[1:3], (1, 1)):
        return number
    if own[:3] != (*shape[:2], 1):
        raise UnsupportedError('it repeats channels of a 3-D map')
    return joined(builder, [number] * shape[2])


def _has_data_only(builder, node):
    return all(source.node.depends_on_data for source in builder.network.operands(node))


def _shifted(builder, x, constants):
    """Add constants per channel or per position to value `x`; return the number of the result."""
    return builder.affine(x, 1, constants) if constants.ndim == 1 else builder.add_positionwise('shift_map', x, constants)


def _split(builder, node):
    """Return the data input and the constant input of a node, and whether data is the first one."""
    first, second = builder.network.operands(node)
    data, constant = (first, second) if first.node.depends_on_data else (second, first)
    if builder.network.shape(data) != node.shape:
        raise UnsupportedError('it repeats data to the shape of a parameter')
    return data, constant, data is first


def _constants(network, node, entry):
    """Return a constant input of a node as a float64 array (channels,) or (1,), or (channels, height, width) if it depends on positions.

    The axes of the latter are 1 where all elements have the same constant.
    """
    constant = network.constant(entry).astype(np.float64)
    constant = constant.reshape((1,) * (len(node.shape) - constant.ndim) + constant.shape)
    if constant.shape[0] != 1:
        raise UnsupportedError('it combines data with a parameter that differs between the images of a batch')
    if constant.size == constant.shape[1]:
        return constant.reshape(-1)
    if is_3d(node.shape) and constant.shape[1:3] != (1, 1):
        constant = np.broadcast_to(constant, (1, *node.shape[1:3], *constant.shape[3:])).swapaxes(1, 2)
    return constant.reshape(map_shape(constant.shape))


def _data_and_constants(builder, node):
    """Return the number of the data input, the constants (`_constants`), and whether data is the first input."""
    data, constant, data_is_first = _split(builder, node)
    return builder.real(data), _constants(builder.network, node, constant), data_is_first


def _data_and_factors(builder, node):
    """Return the number of the data input and the factors by which it is multiplied, one after the other (`_constants`).

    If a constant that depends on positions is itself a product, the factors of channels and of positions stay apart, because their
    product has many more elements (XNOR-Net++, arXiv:1909.13863: a vector for each axis).
    """
    network = builder.network
    data, constant, _ = _split(builder, node)
    whole = _constants(network, node, constant)
    if whole.ndim == 1:
        return builder.real(data), [whole]
    factors, waiting = [], [constant]
    while waiting:
        entry = waiting.pop()
        if combines(entry.node, 'multiply'):
            waiting.extend(network.operands(entry.node))
        else:
            factors.append(_constants(network, node, entry))
    products = {}  # kind -> the product of its factors
    for factor in factors:
        kind = 'channels' if factor.ndim == 1 else 'positions' if len(factor) == 1 else 'both'
        products[kind] = products.get(kind, 1) * factor
    return builder.real(data), [products[kind] for kind in ('channels', 'positions', 'both') if kind in products]


def _scalar_rule(kind, of_number):
    """Add a rule for x -> x * scale + shift, where `of_number` computes (scale, shift) from the number of a `ScalarArithmetic`."""

    @rule(ScalarArithmetic, kind, maps_3d=True)
    def scaled_and_shifted(builder, node):
        """Convert to `affine`."""
        x = builder.real(builder.network.sources(node)[0])
        builder.set(node, builder.affine(x, *of_number(node.operation.number)))


_scalar_rule('add', lambda number: (1, number))
_scalar_rule('subtract', lambda number: (1, -number))
_scalar_rule('subtract_from', lambda number: (-1, number))
_scalar_rule('multiply', lambda number: (number, 0))
_scalar_rule('divide', lambda number: (1 / number if number else np.inf, 0))


@rule(Elementwise, 'negative', maps_3d=True)
def _negative(builder, node):
    """Convert to `affine`."""
    builder.set(node, builder.affine(builder.real(builder.network.sources(node)[0]), -1, 0))
