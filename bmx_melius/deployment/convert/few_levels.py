"""Float convolutions whose weights have few levels, which a program stores as the numbers of these (``level_conv``).

Quantized layers that read real numbers cannot be computed by bit operations, but their weights take few bits: a sign of BWN takes one,
one of three levels of TTQ two, an integer of LSQ or of DoReFa-Net as many as the quantizer has. What a conversion sees of them is a
constant weight: levels times a number for each filter, because normalizations are merged into the weights. So levels are found in the
numbers, whatever library or method made them, as one of three forms:

- Multiples of a number for each filter, from -15 to 15, of which at most 16 occur. A filter may have the opposite sign, so that -8 to 7
  are 16 levels although a negative factor of a normalization makes -7 to 8 of them.
- A table of levels for all filters, times a number for each: the filter with most levels shows it (TTQ).
- Signs, times a number for each position of the kernel and one for each filter (SYQ).

The product of level and number must be the weight but for a rounding error of float32, so nothing is lost.
"""

import dataclasses
from typing import Optional

import numpy as np

from ..program.operation_table import MAX_LEVEL_BITS
from ..program.operations import FLOAT
from ..program.program import Program

_ROUNDING = 2.0**-21  # relative to the largest weight of a filter: of a quotient, a product and a normalization, each rounded to float32
_MAX_LEVELS = 1 << MAX_LEVEL_BITS
_MAX_MULTIPLE = _MAX_LEVELS - 1
_SCALE_BITS = 32


@dataclasses.dataclass
class WeightLevels:
    """Weights as numbers of levels.

    Attributes
    ----------
    numbers : numpy.ndarray of int, shape (weights,)
    levels : numpy.ndarray of float32, shape (positions of the kernel or 1, 2^bits)
    scale : numpy.ndarray of float32, shape (filters,)
    """

    numbers: np.ndarray
    levels: np.ndarray
    scale: np.ndarray

    @property
    def bits(self):
        """Bits of a number."""
        return (self.levels.shape[1] - 1).bit_length()

    @property
    def codes(self):
        """The bit planes of the numbers, bool (bits, weights)."""
        return (self.numbers >> np.arange(self.bits)[:, None] & 1).astype(bool)

    @property
    def stored_bits(self):
        """Size of the arrays in bits."""
        return self.bits * self.numbers.size + _SCALE_BITS * (self.levels.size + self.scale.size)


def with_levels(program, half):
    """Return the program with float convolutions whose weights have few levels as ``level_conv``, where these take less memory.

    `half` says whether the weights of other convolutions will be stored in float16.
    """
    operations = []
    for operation in program.operations:
        if operation.row.products == 'floats' and not operation.row.weight_levels:
            found = smaller_levels(operation.arrays['weight'], half)
            operation = operation if found is None else _of_levels(operation, found)
        operations.append(operation)
    return Program(program.inputs, operations, program.outputs)


def smaller_levels(weight, half=False):
    """Return the `WeightLevels` of a weight if they take less memory than it, as float16 if `half`; otherwise None."""
    found = weight_levels(weight)
    return found if found is not None and found.stored_bits < (16 if half else 32) * weight.size else None


def _of_levels(operation, found):
    attributes = {name: value for name, value in operation.attributes.items() if name != 'half'}
    attributes.update(bits=found.bits, by_position=int(len(found.levels) > 1))
    arrays = {name: array for name, array in operation.arrays.items() if name != 'weight'}
    arrays = {'codes': found.codes, 'levels': found.levels, 'scale': found.scale, **arrays}
    return dataclasses.replace(operation, name='level_conv', attributes=attributes, arrays=arrays)


def weight_levels(weight) -> Optional[WeightLevels]:
    """Return the `WeightLevels` of a weight, float32 (filters, channels, ...), or None if it has none."""
    rows = weight.astype(np.float64).reshape(len(weight), -1)
    if not np.isfinite(rows).all():
        return None
    tolerance = np.abs(rows).max(axis=1, keepdims=True) * _ROUNDING
    few = len(_distinct(rows[0], tolerance[0, 0])) <= _MAX_LEVELS
    for find in (_multiples, _table, _by_position) if few else (_by_position,):
        found = find(weight, rows, tolerance)
        if found is not None and _represents(found, rows, tolerance):
            return found
    return None


def _represents(found, rows, tolerance):
    numbers = np.arange(found.numbers.size) % len(found.levels)
    levels = found.levels.astype(np.float64)[numbers, found.numbers].reshape(rows.shape)
    return bool((np.abs(levels * found.scale[:, None] - rows) <= tolerance).all())


def _multiples(weight, rows, tolerance):
    multiples, missing = np.zeros(rows.shape, np.int64), rows.any(axis=1)
    largest = np.abs(rows).max(axis=1, keepdims=True)
    for most in range(1, _MAX_MULTIPLE + 1):  # of a filter the largest multiple, at first as if there were no common divisor
        step = largest[missing] / most
        rounded = np.rint(rows[missing] / step)
        fits = (np.abs(rounded * step - rows[missing]) <= 2 * tolerance[missing]).all(axis=1)
        where = np.flatnonzero(missing)[fits]
        multiples[where] = rounded[fits]
        missing[where] = False
    if missing.any():
        return None
    turned = np.where(multiples.max(axis=1) > -multiples.min(axis=1), -1, 1)[:, None]
    candidates = [multiples] if (turned > 0).all() else [multiples, multiples * turned]
    levels, multiples = min(((_used(numbers), numbers) for numbers in candidates), key=lambda pair: len(pair[0]))
    if len(levels) > _MAX_LEVELS:
        return None
    squares = np.square(multiples).sum(axis=1)
    scale = (rows * multiples).sum(axis=1) / np.maximum(squares, 1)
    numbers = np.searchsorted(levels, multiples).clip(0, len(levels) - 1)  # of filters of zeros any level, times 0
    return WeightLevels(numbers.reshape(-1), _complete(levels[None]), scale.astype(FLOAT))


def _used(multiples):
    """Return the multiples that occur, ascending, except of filters of zeros."""
    used = np.unique(multiples[multiples.any(axis=1)])
    return used if len(used) else np.ones(1, np.int64)


def _complete(levels):
    """Return levels (positions, n) with the last one repeated until their number is a power of two, 2 or more."""
    count = max(2, 1 << (levels.shape[1] - 1).bit_length())
    return np.concatenate([levels, np.repeat(levels[:, -1:], count - levels.shape[1], axis=1)], axis=1).astype(FLOAT)


def _table(weight, rows, tolerance):
    distinct = [_distinct(row, limit) for row, limit in zip(rows, tolerance[:, 0])]
    most = max(distinct, key=len)
    if len(most) > _MAX_LEVELS or not most.any():
        return None
    table = most / np.abs(most).max()
    scale, numbers = np.zeros(len(rows)), np.zeros(rows.shape, np.int64)
    for i, (row, limit) in enumerate(zip(rows, tolerance[:, 0])):
        if not row.any():
            continue
        scale[i] = next((factor for factor in _factors(distinct[i], table) if _fits(distinct[i], factor * table, limit)), 0)
        if not scale[i]:
            return None
        numbers[i] = np.abs(row[:, None] - scale[i] * table).argmin(axis=1)
    return WeightLevels(numbers.reshape(-1), _complete(table[None]), scale.astype(FLOAT))


def _distinct(row, limit):
    """Return the numbers of a row that differ by more than a rounding error, ascending."""
    row = np.sort(row)
    return row[np.concatenate([[True], np.diff(row) > 2 * limit])]


def _factors(levels, table):
    """Return the numbers by which a table may have been multiplied: one of them makes the largest level of a filter."""
    largest = levels[np.abs(levels).argmax()]
    return largest / table[table != 0]


def _fits(levels, table, limit):
    return bool((np.abs(levels[:, None] - table).min(axis=1) <= 2 * limit).all())


def _by_position(weight, rows, tolerance):
    magnitudes = np.abs(weight[:, 0].astype(np.float64)).reshape(len(weight), -1)
    scale = magnitudes.max(axis=1)
    if not scale.any():
        return None
    positions = magnitudes[scale.argmax()] / scale.max()
    signs = (rows > 0).astype(np.int64).reshape(-1)
    return WeightLevels(signs, np.stack([-positions, positions], axis=1).astype(FLOAT), scale.astype(FLOAT))
