"""Constants of a rescaling in C, and the cheapest exact arithmetic for it.

A number n becomes min(max((n multiplier + summand) >> shift, result_min), result_max) (`program.operation_table`, ``rescale``), where the
summand is a multiple of 2^(shift - 8). There are two forms:

- ``split``: the multiplier is high 2^k + low with k <= shift - 8, and (n high + (summand >> k) + (n low >> k)) >> (shift - k) has parts of
  32 bits. Bits of n low below 2^k do not matter, because the sum of the others is a multiple of 2^k. Often k is 0, and low, too.
- ``wide``: 64 bits, (((n multiplier) >> (shift - 8)) + offset + 128) >> 8. Without a product of 64 bits in hardware this takes more
  instructions: about 55 of a Cortex-M0.
"""

import dataclasses

import numpy as np

from ..program.operation_table import OFFSET_SHIFT

_LIMIT = 1 << 31  # magnitude of integers of 32 bits, exclusive


@dataclasses.dataclass(frozen=True)
class Rescaling:
    """Constants of a rescaling.

    Attributes
    ----------
    form : {'split', 'wide'}
    numbers : numpy.ndarray
        int32, a row for each channel, or one for all channels: multiplier, and the summand divided by 2^`split`, or if ``wide`` the offset.
    split, shift : int
        k and shift - k.
    min, max : int
    """

    form: str
    numbers: np.ndarray
    split: int
    shift: int
    min: int
    max: int

    @property
    def step(self):
        """Numbers between the constants of neighbouring channels."""
        return self.numbers.shape[1] if len(self.numbers) > 1 else 0

    def fields(self):
        """Return the fields of a ``bmx_rescaling`` in C."""
        return {'step': self.step, 'split': self.split, 'shift': self.shift, 'min': self.min, 'max': self.max}


def rescaling_of(operation, bounds):
    """Return the constants of an operation.

    Parameters
    ----------
    operation : bmx_melius.deployment.program.operations.Operation
        With the attributes and arrays of ``rescale``.
    bounds : list of tuple (int, int)
        The smallest and the largest number of each channel that occurs.
    """
    shift, low, high = (operation.attributes[name] for name in ('shift', 'result_min', 'result_max'))
    fraction = shift - OFFSET_SHIFT
    multipliers, summands = _channels(operation)
    channels = list(zip(multipliers, summands, bounds))
    splits = (split for split in range(fraction + 1) if all(_is_exact(split, shift, *channel) for channel in channels))
    split = next(splits, None)
    if split is None:
        form, split, seconds = 'wide', fraction, operation.arrays['offset'].tolist()
    else:
        form, seconds = 'split', [summand >> split for summand in summands]
    rows = list(zip(multipliers, seconds))
    numbers = np.array(rows[:1] if len(set(rows)) == 1 else rows, '<i4')
    return Rescaling(form, numbers, split, shift - split, low, high)


def limits_of(operation, bounds):
    """Return the smallest and the largest number that matter: numbers beyond them have the result of these in all channels.

    Parameters as in `rescaling_of`.
    """
    shift, low, high = (operation.attributes[name] for name in ('shift', 'result_min', 'result_max'))
    ends = []
    for multiplier, summand, bound in zip(*_channels(operation), bounds):
        above_min, reaches_max = ((low + 1) << shift) - summand, (high << shift) - summand  # of products
        if multiplier > 0:
            numbers = -(-above_min // multiplier) - 1, -(-reaches_max // multiplier)
        elif multiplier < 0:
            numbers = -reaches_max // -multiplier, -above_min // -multiplier + 1
        else:
            numbers = bound
        ends += [min(max(number, bound[0]), bound[1]) for number in numbers]
    return min(ends), max(ends)


def _channels(operation):
    """Return the multipliers and the summands of an operation."""
    multipliers, offsets = (operation.arrays[name].tolist() for name in ('multiplier', 'offset'))
    shift = operation.attributes['shift']
    return multipliers, [(offset << (shift - OFFSET_SHIFT)) + (1 << (shift - 1)) for offset in offsets]


def _is_exact(split, shift, multiplier, summand, bounds):
    """Return whether the parts of sums have 32 bits."""
    low = multiplier & ((1 << split) - 1)
    ends = [(n * multiplier + summand) >> split for n in bounds]
    parts = [n * low for n in bounds]
    return shift - split < 32 and all(-_LIMIT <= part < _LIMIT for part in [*ends, *parts, summand >> split])
