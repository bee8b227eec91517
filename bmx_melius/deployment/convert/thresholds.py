"""Search for the thresholds and levels of step functions of float32 numbers.

Float32 numbers are ordered. So where a monotone function changes is found in eight steps of 16 numbers each, by evaluating the function
itself, with whatever rounding it has.
"""

import numpy as np

from ...errors import UserError

_FINITE = np.finfo(np.float32)
_LARGEST = 0x7F7FFFFF  # the bits of the largest finite float32
TRIED = 16  # numbers per channel evaluated at once
_STEPS = [TRIED**power for power in range(7, -1, -1)]


class NotMonotoneError(UserError):
    """The sign of a channel changes more than once."""


def switching_points(is_set, channels):
    """Find threshold and flip such that (x >= threshold) != flip equals is_set(x) for all finite float32 x.

    Parameters
    ----------
    is_set : callable
        Monotone predicate for each channel: (channels, 16) float32 -> (channels, 16) bool.
    channels : int

    Returns
    -------
    threshold : numpy.ndarray of float32, shape (channels,)
        -inf where the predicate is constant.
    flip : numpy.ndarray of bool, shape (channels,)

    Raises
    ------
    NotMonotoneError
        If a predicate is not monotone; the message names the channel.
    """
    first = is_set(np.full((channels, TRIED), _float(-_LARGEST - 1), dtype=np.float32))[:, :1]
    position = np.full((channels, 1), -_LARGEST - 1)
    constant = np.zeros((channels, 1), dtype=bool)
    for step in _STEPS:
        last_of_blocks = np.minimum(position + step * np.arange(1, TRIED + 1) - 1, _LARGEST)
        changed = is_set(_float(last_of_blocks)) != first
        _require(np.all(changed[:, :-1] <= changed[:, 1:], axis=1))
        constant |= ~changed[:, -1:]
        position += step * changed.argmax(axis=1)[:, None]
    flip = first != constant
    threshold = np.where(constant, np.float32(-np.inf), _float(position)) + np.float32(0)  # -0.0 becomes 0.0
    neighbours = np.nextafter(threshold, np.float32(-np.inf)), threshold, np.where(threshold == 0, -threshold, threshold)
    x = np.concatenate(neighbours, axis=1)
    x = np.where(np.isfinite(x), x, _FINITE.max)
    found = is_set(np.pad(x, ((0, 0), (0, TRIED - x.shape[1])), mode='edge'))[:, : x.shape[1]]
    _require(np.all(found == ((x >= threshold) != flip), axis=1))
    return threshold[:, 0], flip[:, 0]


def rising_levels(function, max_levels):
    """Find the levels of a step function of float32 numbers that rises from 0.

    Parameters
    ----------
    function : callable
        Maps float32 arrays (n,) element by element.
    max_levels : int
        Largest number of levels.

    Returns
    -------
    tuple of float or None
        The levels, 0 first; None for other functions.
    """

    def values(x):
        return function(x.reshape(-1).astype(np.float32)).reshape(x.shape)

    def end_of(level, start):
        return switching_points(lambda x: (x >= start) & (values(x) != level), 1)[0][:, None]

    start, levels = np.full((1, 1), -_FINITE.max), [0.0]
    if values(start) != 0:
        return None
    while len(levels) <= max_levels:
        try:
            start = end_of(levels[-1], start)
        except NotMonotoneError:
            return None  # it returns to the level
        if start == -np.inf:
            return tuple(levels) if len(levels) > 1 else None
        level = float(values(start))
        if not level > levels[-1]:
            return None
        levels.append(level)
    return None


def _require(monotone):
    if not monotone.all():
        raise NotMonotoneError(f'the sign of channel {int(np.argmin(monotone))} changes more than once')


def _float(position):
    """Return the float32 at a position in the order of all float32 numbers: 0 is 0.0, -1 is -0.0, 1 is the smallest positive number."""
    position = np.asarray(position, dtype=np.int64)
    bits = np.where(position >= 0, position, (1 << 31) - 1 - position)
    return bits.astype(np.uint32).view(np.float32)
