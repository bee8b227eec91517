"""Layers whose weights and inputs have few levels, as exact sums of integers (``level_int8_conv``).

An input of at most 16 equally distant levels is scale u + shift, with the number u of thresholds that ``multi_threshold`` counts. A weight
of few multiples is a number s of its filter times an integer w (`few_levels`). If z = -shift / scale is an integer, which is the level of
zero and so of padding,

    conv(x, s w) = s scale (conv(u, w) - z sum(w))

where u is padded with z. The sum in brackets is an integer that the kernels of 8-bit layers compute exactly, whatever the order of
addition. Otherwise a layer without padding adds s shift sum(w) to its bias.

Layers whose bit planes are faster, of signs, or with weights of up to two bits and few products of planes, are binary convolutions
already (`rules.low_bit`).
"""

import dataclasses

import numpy as np

from ...arithmetic import multiply_add
from ..program.by_operation import ByOperation
from ..program.limits import MAX_INT8_WEIGHTS
from ..program.operation_table import MAX_BYTE, MAX_SUM, OFFSET_SHIFT, OPERATIONS, PADDING
from ..program.operations import FLOAT
from .few_levels import smaller_levels
from .rewriting import Rewriting

_EQUAL = 1e-5  # scales that differ by less, relative, are equal up to rounding, and a level of zero by less is an integer
_MAX_WEIGHT = 127


@dataclasses.dataclass
class _Integers:
    """Integers 0 to `high`, value `number`, that stand for n scale + shift."""

    number: int
    high: int
    scale: float = 1.0
    shift: float = 0.0

    def stands_for_same(self, other):
        """Return whether equal integers of two values stand for equal numbers, up to rounding."""
        tolerance = _EQUAL * abs(self.scale)
        return abs(self.scale - other.scale) * max(self.high, other.high) <= tolerance and abs(self.shift - other.shift) <= tolerance


def with_integer_layers(program):
    """Return the program with layers of few levels on both sides as ``level_int8_conv`` on numbers of levels.

    Parameters
    ----------
    program : Program
        With arrays.

    Returns
    -------
    program : Program
    number_of : dict of int to int
        Old number -> new number of each remaining value.
    bits : dict of int to int
        Number of a value of the new program that such a layer reads -> its bits.
    """
    rewriting = Rewriting(program)
    made, number_of, final = rewriting.run(_INTEGERS_OF)
    read = {x.number: x.high.bit_length() for x in rewriting.known.values()}
    return made, number_of, {final[number]: bits for number, bits in read.items() if number in final}


_INTEGERS_OF = ByOperation()  # (rewriting, number, operation, integers of its inputs or None) -> number of its result, or None: as it was


@_INTEGERS_OF.of('multi_threshold')
def _multi_threshold(rewriting, number, operation, _):
    made = rewriting.copy(operation, [rewriting.number_of[operation.inputs[0]]])
    rewriting.known[number] = _Integers(made, operation.attributes['thresholds'])
    return made


@_INTEGERS_OF.of('affine')
def _affine(rewriting, number, operation, inputs):
    scale, shift = (operation.arrays[name].astype(np.float64) for name in ('scale', 'shift'))
    if inputs[0] and scale[0] > 0 and np.ptp(scale) == np.ptp(shift) == 0:
        x = inputs[0]
        rewriting.known[number] = dataclasses.replace(x, scale=x.scale * scale[0], shift=x.shift * scale[0] + shift[0])


@_INTEGERS_OF.of('relu', 'clip')
def _limits(rewriting, number, operation, inputs):
    """Limits beyond all levels change nothing."""
    low, high = (operation.arrays[name] for name in ('low', 'high')) if operation.arrays else (np.zeros(1), np.full(1, np.inf))
    if inputs[0]:
        tolerance, smallest = _EQUAL * inputs[0].scale, inputs[0].shift
        if low.max() <= smallest + tolerance and high.min() >= smallest + inputs[0].high * inputs[0].scale - tolerance:
            rewriting.known[number] = inputs[0]


@_INTEGERS_OF.of('max_pool', 'global_max_pool', 'flatten', 'unflatten', 'slice', 'shuffle', 'concat')
def _moves(rewriting, number, operation, inputs):
    if all(inputs) and all(inputs[0].stands_for_same(other) for other in inputs[1:]):
        moved = rewriting.copy(operation, [x.number for x in inputs])
        rewriting.known[number] = dataclasses.replace(inputs[0], number=moved, high=max(x.high for x in inputs))


@_INTEGERS_OF.of('conv')
def _conv(rewriting, _, operation, inputs):
    x, found = inputs[0], smaller_levels(operation.arrays['weight'])
    made = _sums(operation, x, found) if x and found else None
    if made is None:
        return None
    attributes, arrays, affine = made
    return rewriting.emit('affine', [rewriting.emit('level_int8_conv', [x.number], attributes, arrays)], arrays=affine)


def _sums(operation, x, found):
    """Return attributes and arrays of the sums of a layer, and the arrays of the ``affine`` that makes its results of them.

    None if the weight has no integers, or sums may be too large.
    """
    levels = found.levels[0]
    if len(found.levels) > 1 or (levels != np.rint(levels)).any() or np.abs(levels).max() > _MAX_WEIGHT:
        return None
    weight = levels[found.numbers].astype(np.int64).reshape(len(found.scale), -1)
    zero = -x.shift / x.scale
    has_zero = abs(zero - round(zero)) <= _EQUAL * max(x.high, 1) and 0 <= round(zero) <= MAX_BYTE
    if not has_zero and any(operation.attributes[side] for side in PADDING) or weight.shape[1] >= MAX_INT8_WEIGHTS:
        return None
    z = round(zero) if has_zero else 0
    largest = np.abs(weight).sum(axis=1) * max(x.high, z) + z * np.abs(weight.sum(axis=1))
    if largest.max() >= MAX_SUM:
        return None
    geometry = {name: number for name, number in operation.attributes.items() if name in OPERATIONS['level_int8_conv'].attributes}
    limit = int(largest.max())
    identity = {'shift': OFFSET_SHIFT, 'result_min': -limit, 'result_max': limit}
    filters, channels = len(weight), operation.arrays['weight'].shape[1] * operation.attributes['groups']
    arrays = {
        'codes': found.codes,
        'levels': levels[None].astype(np.int8),
        'pad': np.full(channels, z, np.int32),
        'multiplier': np.full(filters, 1 << OFFSET_SHIFT, np.int32),
        'offset': (-z * weight.sum(axis=1) << OFFSET_SHIFT).astype(np.int32),
    }
    scale = found.scale.astype(np.float64)
    bias = operation.arrays['bias'].astype(np.float64) if operation.attributes['has_bias'] else np.zeros(filters)
    if not has_zero:
        bias = bias + scale * x.shift * weight.sum(axis=1)
    affine = {'scale': (scale * x.scale).astype(FLOAT), 'shift': bias.astype(FLOAT)}
    return {**geometry, **identity, 'bits': found.bits, 'by_position': 0}, arrays, affine


# --- thresholds of sums ---------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Sums:
    """Sums of integers, value `number`, that stand for n scale[c] + shift[c], rounded to float32 once."""

    number: int
    scale: np.ndarray
    shift: np.ndarray

    def numbers(self, n):
        """Return the float32 number for which integers (..., channels) stand, as ``affine`` computes it."""
        return multiply_add(n, self.scale, self.shift)


def with_thresholds_of_sums(program):
    """Return the program with thresholds that are compared with the sums of ``level_int8_conv`` instead of numbers computed from these.

    A sum reaches an integer threshold if and only if the float32 number that ``affine`` computes from it reaches the threshold before.
    Returns the numbers of values as well, like `with_integer_layers`.
    """
    return Rewriting(program).run(_SUMS_OF)[:2]


_SUMS_OF = ByOperation()  # like `_INTEGERS_OF`


@_SUMS_OF.of('level_int8_conv')
def _sums_of_layer(rewriting, number, operation, _):
    made = rewriting.copy(operation, [rewriting.number_of[operation.inputs[0]]])
    filters = operation.attributes['out_channels']
    rewriting.known[number] = _Sums(made, np.ones(filters, FLOAT), np.zeros(filters, FLOAT))
    return made


@_SUMS_OF.of('affine')
def _scaled_sums(rewriting, number, operation, inputs):
    if inputs[0] and (inputs[0].scale == 1).all() and not inputs[0].shift.any():
        rewriting.known[number] = _Sums(inputs[0].number, operation.arrays['scale'], operation.arrays['shift'])


@_SUMS_OF.of('max_pool', 'global_max_pool')
def _largest_sums(rewriting, number, operation, inputs):
    if inputs[0] and (inputs[0].scale >= 0).all():
        rewriting.known[number] = dataclasses.replace(inputs[0], number=rewriting.copy(operation, [inputs[0].number]))


@_SUMS_OF.of('threshold', 'multi_threshold')
def _thresholds_of_sums(rewriting, _, operation, inputs):
    x = inputs[0]
    if not x:
        return None
    thresholds, turned = _integer_thresholds(x, operation.arrays['threshold'])
    arrays = {'threshold': thresholds, 'flip': operation.arrays['flip'] != turned}
    return rewriting.emit(operation.name, [x.number], operation.attributes, arrays)


def _integer_thresholds(x, thresholds):
    """Return integers t, float32 like `thresholds` (..., channels), and whether the comparison turns around: bool (channels,).

    (n >= t) != turned equals x.numbers(n) >= thresholds for all integers n of sums; t is infinite where that is constant.
    """
    turned = x.scale < 0
    # the largest integer below which the comparison has one result: numbers rise, or with a negative scale fall, with n
    below, above = np.full(thresholds.shape, -MAX_SUM - 1, np.int64), np.full(thresholds.shape, MAX_SUM + 1, np.int64)
    while (above - below > 1).any():
        middle = (below + above) // 2
        reached = (x.numbers(middle) >= thresholds) != turned
        below, above = np.where(reached, below, middle), np.where(reached, middle, above)
    found = above.astype(np.float64)
    found[above > MAX_SUM] = np.inf
    found[above == -MAX_SUM] = -np.inf
    return found.astype(FLOAT), turned
