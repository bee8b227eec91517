"""Exact folding of batch normalization and learned shifts followed by sign into a comparison with one threshold per channel.

The sign of a normalized value depends on how MXNet rounds. So the threshold is not computed from the statistics but found by a search
with MXNet's operator: float32 numbers are ordered, the operator is monotone, and eight steps of 16 numbers each find where the sign
changes.

MXNet 1.9.1 rounds in one of two ways, depending on the memory layout of the input (not on its size). With
s = gamma / sqrt(variance + eps):

* `PLAIN`, a contiguous NCHW array: (x - mean) s and then + beta, each rounded;
* `BLOCKED`, the layout of oneDNN's convolutions, which pooling and concatenation preserve: the sum is rounded once.

They differ in the last bits, and so in the sign of a few values next to the threshold. Which layout a layer receives depends on the
layers before it; `layout_in_use` determines it from an input and the result.
"""

import dataclasses
import functools

import mxnet as mx
import numpy as np

from ...errors import UserError

PLAIN, BLOCKED = 'plain', 'blocked'

_FINITE = np.finfo(np.float32)
_LARGEST = 0x7F7FFFFF  # the bits of the largest finite float32
_SIDE = 4
_TRIED = _SIDE**2  # numbers per channel evaluated at once, as a map of _SIDE x _SIDE
_STEPS = [_TRIED**power for power in range(7, -1, -1)]
_LANES = 16  # channels in a block of the widest layout
_CROP = 16  # height and width of the part of a map that `layout_in_use` compares


class NotMonotoneError(UserError):
    """The sign of a channel changes more than once."""


@dataclasses.dataclass
class BatchNorm:
    """MXNet's batch normalization of axis 1 at inference, with its parameters as NumPy arrays (channels,).

    Calling it maps a float32 array (N, channels, H, W) or (N, channels) to its normalized values, computed in `layout`.
    """

    gamma: np.ndarray
    beta: np.ndarray
    mean: np.ndarray
    variance: np.ndarray
    eps: float
    fix_gamma: bool

    @property
    def channels(self):
        """The number of channels."""
        return len(self.gamma)

    def __call__(self, x, layout=PLAIN):
        x = mx.nd.array(x, dtype=np.float32)
        if layout == BLOCKED:
            # an identity convolution, to obtain oneDNN's blocked layout; depthwise where its result is blocked, too
            groups = self.channels if self.channels % _LANES == 0 else 1
            identity = mx.nd.ones((self.channels, 1, 1, 1)) if groups > 1 else mx.nd.eye(self.channels).expand_dims(2).expand_dims(3)
            x = mx.nd.Convolution(x, identity, kernel=(1, 1), num_filter=self.channels, num_group=groups, no_bias=True)
        return mx.nd.BatchNorm(x, *self._parameters, eps=self.eps, fix_gamma=self.fix_gamma, use_global_stats=True).asnumpy()

    @functools.cached_property
    def _parameters(self):
        return [mx.nd.array(array, dtype=np.float32) for array in (self.gamma, self.beta, self.mean, self.variance)]

    def affine(self):
        """Return float64 arrays scale and shift (channels,), such that the result is x * scale + shift up to rounding."""
        gamma = np.ones(self.channels) if self.fix_gamma else self.gamma.astype(np.float64)
        scale = gamma / np.sqrt(self.variance.astype(np.float64) + self.eps)
        return scale, self.beta - self.mean * scale


def layout_in_use(batch_norm, x, y):
    """Return the layout in which MXNet computed `y` from `x` inside a network.

    Parameters
    ----------
    batch_norm : BatchNorm
    x, y : numpy.ndarray of float32, shape (N, channels, D, H, W), (N, channels, H, W), (N, channels, W) or (N, channels)

    Returns
    -------
    str or None
        `PLAIN` or `BLOCKED`; `PLAIN` if both give `y`, None if neither does.
    """
    if x.ndim == 4:
        x, y = x[:1, :, :_CROP, :_CROP], y[:1, :, :_CROP, :_CROP]
    if np.array_equal(batch_norm(x), y, equal_nan=True):
        return PLAIN
    if x.ndim == 4 and np.array_equal(batch_norm(x, BLOCKED), y, equal_nan=True):
        return BLOCKED
    return None


def fold(batch_norm, rank, layout=PLAIN, shifts=()):
    """Find threshold and flip such that (x >= threshold) != flip equals batch_norm(x) >= 0 for all finite float32 x.

    Parameters
    ----------
    batch_norm : BatchNorm
    rank : int
        Rank of its input: 2 to 5.
    layout : str
        `PLAIN` or `BLOCKED`.
    shifts : sequence of callable
        Monotone functions of MXNet arrays (1, channels, n, 1) that are applied to the normalized values before the comparison.

    Returns
    -------
    threshold : numpy.ndarray of float32, shape (channels,)
    flip : numpy.ndarray of bool, shape (channels,)

    Raises
    ------
    NotMonotoneError
        If a channel has no such threshold because its statistics are so large that the operator overflows; the message names it.
    """

    def is_set(x):
        x = x.reshape(batch_norm.channels, -1)
        maps = (1, batch_norm.channels, *{3: (_TRIED,), 5: (1, _SIDE, _SIDE)}.get(rank, (_SIDE, _SIDE)))
        y = batch_norm(x.T).T if rank == 2 else batch_norm(x.reshape(maps), layout).reshape(x.shape)
        return _shifted(y, shifts) >= 0

    return switching_points(is_set, batch_norm.channels)


def fold_shifts(shifts, channels):
    """Find threshold and flip such that (x >= threshold) != flip equals shift(x) >= 0 for all finite float32 x; see `fold`.

    Parameters
    ----------
    shifts : sequence of callable
        As in `fold`, applied one after the other.
    channels : int
    """
    return switching_points(lambda x: _shifted(x.reshape(channels, -1), shifts) >= 0, channels)


def _shifted(x, shifts):
    y = mx.nd.array(x[None, :, :, None], dtype=np.float32)
    for shift in shifts:
        y = shift(y)
    return y.asnumpy().reshape(x.shape)


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
    first = is_set(np.full((channels, _TRIED), _float(-_LARGEST - 1), dtype=np.float32))[:, :1]
    position = np.full((channels, 1), -_LARGEST - 1)
    constant = np.zeros((channels, 1), dtype=bool)
    for step in _STEPS:
        last_of_blocks = np.minimum(position + step * np.arange(1, _TRIED + 1) - 1, _LARGEST)
        changed = is_set(_float(last_of_blocks)) != first
        _require(np.all(changed[:, :-1] <= changed[:, 1:], axis=1))
        constant |= ~changed[:, -1:]
        position += step * changed.argmax(axis=1)[:, None]
    flip = first != constant
    threshold = np.where(constant, np.float32(-np.inf), _float(position)) + np.float32(0)  # -0.0 becomes 0.0
    neighbours = np.nextafter(threshold, np.float32(-np.inf)), threshold, np.where(threshold == 0, -threshold, threshold)
    x = np.concatenate(neighbours, axis=1)
    x = np.where(np.isfinite(x), x, _FINITE.max)
    found = is_set(np.pad(x, ((0, 0), (0, _TRIED - x.shape[1])), mode='edge'))[:, : x.shape[1]]
    _require(np.all(found == ((x >= threshold) != flip), axis=1))
    return threshold[:, 0], flip[:, 0]


def rising_levels(function, max_levels):
    """Find the levels of a step function of float32 numbers that is 0 for the lowest ones and rises.

    Parameters
    ----------
    function : callable
        Maps MXNet arrays (1, 1, n, 1) element by element.
    max_levels : int
        Largest number of levels.

    Returns
    -------
    tuple of float or None
        The levels, 0 first; None for other functions.
    """

    def values(x):
        return function(mx.nd.array(x.reshape(1, 1, -1, 1), dtype=np.float32)).asnumpy().reshape(x.shape)

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
