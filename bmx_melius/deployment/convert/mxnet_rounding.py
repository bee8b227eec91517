"""Exact folding of batch normalization and learned shifts followed by sign into a comparison with one threshold per channel.

The sign of a normalized value depends on how MXNet rounds. So the threshold is not computed from the statistics but found by a search
with MXNet's operator (`thresholds`).

MXNet 1.9.1 rounds in one of two ways, depending on the memory layout of the input (not on its size). With
s = gamma / sqrt(variance + eps):

* `PLAIN`, a contiguous NCHW array: (x - mean) s and then + beta, each rounded;
* `BLOCKED`, the layout of oneDNN's convolutions, which pooling and concatenation preserve: the sum is rounded once.

They differ in the last bits, and so in the sign of a few values next to the threshold. Which layout a layer receives depends on the
layers before it; `layout_in_use` determines it from an input and the result.
"""

import mxnet as mx
import numpy as np

from ...forking import lazy_attribute
from .network import BatchNorm
from .thresholds import TRIED, switching_points

PLAIN, BLOCKED = 'plain', 'blocked'

_SIDE = 4  # of the map of numbers that are tried at once
_LANES = 16  # channels in a block of the widest layout
_CROP = 16  # height and width of the part of a map that `layout_in_use` compares


class MxnetBatchNorm(BatchNorm):
    """MXNet's batch normalization.

    Calling it maps a float32 array (N, channels, H, W) or (N, channels) to its normalized values, computed in `layout`.
    """

    def __call__(self, x, layout=PLAIN):
        maps = x if x.ndim == 4 else x.reshape((*x.shape[:2], 1, -1))  # as MXNet reads other arrays
        if maps.shape[2:] == (1, 1):
            # oneDNN takes all layouts of one pixel for the same, and computes in that of an earlier call with these sizes, if there was one
            # (for two dimensions, MXNet crashes then); so with two equal pixels
            return self(maps.repeat(2, axis=3), layout)[..., :1].reshape(x.shape)
        maps = mx.nd.array(maps, dtype=np.float32)
        if layout == BLOCKED:
            # an identity convolution, to obtain oneDNN's blocked layout; depthwise where its result is blocked, too
            groups = self.channels if self.channels % _LANES == 0 else 1
            identity = mx.nd.ones((self.channels, 1, 1, 1)) if groups > 1 else mx.nd.eye(self.channels).expand_dims(2).expand_dims(3)
            maps = mx.nd.Convolution(maps, identity, kernel=(1, 1), num_filter=self.channels, num_group=groups, no_bias=True)
        normalized = mx.nd.BatchNorm(maps, *self._parameters, eps=self.eps, fix_gamma=self.fix_gamma, use_global_stats=True)
        return normalized.asnumpy().reshape(x.shape)

    @lazy_attribute
    def _parameters(self):
        return [mx.nd.array(array, dtype=np.float32) for array in (self.gamma, self.beta, self.mean, self.variance)]


def layout_in_use(batch_norm, x, y):
    """Return the layout in which MXNet computed `y` from `x` inside a network.

    Parameters
    ----------
    batch_norm : MxnetBatchNorm
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
    batch_norm : MxnetBatchNorm
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
        maps = (1, batch_norm.channels, *{3: (TRIED,), 5: (1, _SIDE, _SIDE)}.get(rank, (_SIDE, _SIDE)))
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
