"""Constants of a rescaling in C, and whether 32 bits suffice for it.

A number n becomes min(max((n multiplier + summand) >> shift, result_min), result_max) (`program.operation_table`, ``rescale``). A
product of 64 bits takes about 70 instructions of a Cortex-M0, one of 32 bits a single one. It is used where no sum of a number that occurs
exceeds 32 bits, or only those of numbers that can be replaced: if the sum of the next number would not fit, but the result of a number is
already the limit, all numbers beyond have the result of this one.
"""

import dataclasses

import numpy as np

from ..program.operation_table import OFFSET_SHIFT

_LOWEST, _HIGHEST = -(2**31), 2**31 - 1


@dataclasses.dataclass(frozen=True)
class Rescaling:
    """Constants of a rescaling.

    Attributes
    ----------
    kind : {'i32', 'i64'}
        Of the sums.
    numbers : numpy.ndarray
        int32, a row for each channel, or one for all channels: multiplier, summand, and the smallest and the largest number if `limits`.
    limits : bool
    shift, min, max : int
    """

    kind: str
    numbers: np.ndarray
    limits: bool
    shift: int
    min: int
    max: int

    @property
    def step(self):
        """Numbers between the constants of neighbouring channels."""
        return self.numbers.shape[1] if len(self.numbers) > 1 else 0

    def fields(self):
        """Return the fields of a ``bmx_rescaling`` in C."""
        return {'step': self.step, 'limits': int(self.limits), 'shift': self.shift, 'min': self.min, 'max': self.max}


def rescaling_of(operation, bounds):
    """Return the constants of an operation.

    Parameters
    ----------
    operation : bmx_melius.deployment.program.operations.Operation
        With the attributes and arrays of ``rescale``.
    bounds : list of tuple (int, int)
        The smallest and the largest number of each channel that occurs.
    """
    attributes, arrays = operation.attributes, operation.arrays
    shift, low, high = (attributes[name] for name in ('shift', 'result_min', 'result_max'))
    channels = list(zip(arrays['multiplier'].tolist(), arrays['offset'].tolist(), bounds))
    rows = [_narrow(multiplier, offset, shift, low, high, *bound) for multiplier, offset, bound in channels]
    if None in rows:
        kind, limits, rows = 'i64', False, [row[:2] for row in channels]
    else:
        kind, limits = 'i32', any(row[2:] != bound for row, (_, _, bound) in zip(rows, channels))
        rows = rows if limits else [row[:2] for row in rows]
    numbers = np.array(rows[:1] if len(set(rows)) == 1 else rows, '<i4')
    return Rescaling(kind, numbers, limits, shift, low, high)


def _narrow(multiplier, offset, shift, low, high, smallest, largest):
    """Return multiplier, summand, and the limits of numbers with which all sums have 32 bits; None if there are none."""
    summand = (offset << (shift - OFFSET_SHIFT)) + (1 << (shift - 1))
    if not (_LOWEST <= summand <= _HIGHEST) or shift > 31:
        return None
    if multiplier == 0:
        return multiplier, summand, smallest, largest

    def result(n):
        return min(max((n * multiplier + summand) >> shift, low), high)

    ends = sorted(((_LOWEST, _HIGHEST)[number] - summand) / multiplier for number in range(2))
    first, last = (_within(multiplier, summand, end, step) for end, step in zip(ends, (1, -1)))
    first, last = max(first, smallest), min(last, largest)
    if first > last or result(first) != result(smallest) or result(last) != result(largest):
        return None
    return multiplier, summand, first, last


def _within(multiplier, summand, end, step):
    """Return the number nearest to `end`, in the direction of `step`, whose sum has 32 bits."""
    number = round(end) - 2 * step
    while not _LOWEST <= number * multiplier + summand <= _HIGHEST:
        number += step
    return number
