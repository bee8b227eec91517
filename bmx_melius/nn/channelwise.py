"""Learned scales, shifts and slopes of channels, with gradients that take little time on CPUs.

In ``broadcast_mul(x, scale)`` MXNet 1.9.1 takes more time on CPUs for the gradient of the scale than for the gradient of a convolution, and
so it does for ``broadcast_add`` and `gluon.nn.PReLU`. A normalization with fixed statistics needs a twentieth of the time. With mean 0,
variance 0 and epsilon 1 it is ::

    (x - 0) / sqrt(0 + 1) scale + shift

of which only the product with the scale or the sum with the shift rounds, so the results equal MXNet's products and sums. MXNet
requires statistics to be variables: each block has a parameter ``zeros`` without a gradient, which is not counted.
"""

from typing import Any, Optional

import mxnet as mx
import numpy as np
from mxnet.gluon import HybridBlock

from .marks import PRELU, SCALE, SHIFT, mark
from .quantizers import Array


class _Channelwise(HybridBlock):
    """Base of blocks with one learned number per channel, the parameter `name` of shape (channels,)."""

    def __init__(self, channels: int, name: str, initial: float, prefix: Optional[str], params: Any) -> None:
        super().__init__(prefix=prefix, params=params)
        shared = {'shape': (channels,), 'allow_deferred_init': True}
        with self.name_scope():
            setattr(self, name, self.params.get(name, init=mx.init.Constant(initial), **shared))
            self.zeros = self.params.get('zeros', init='zeros', grad_req='null', differentiable=False, **shared)

    def cast(self, dtype: Any) -> None:
        # as in gluon.nn.BatchNorm: the parameters of a normalization in float16 are float32
        super().cast('float32' if np.dtype(dtype) == np.float16 else dtype)


def affine(F: Any, x: Array, scale: Array, shift: Array, zeros: Array, fix_scale: bool = False) -> Array:
    """Return ``x * scale + shift`` for numbers per channel, (C,), and a parameter ``zeros`` of this shape."""
    return F.BatchNorm(x, scale, shift, zeros, zeros, eps=1, fix_gamma=fix_scale, use_global_stats=True, name='fwd')


def scaled(F: Any, x: Array, scale: Array, zeros: Array) -> Array:
    """Return ``x * scale`` for numbers per channel, (C,), and a parameter ``zeros`` of this shape."""
    with mark(SCALE):
        return affine(F, x, scale, F.zeros_like(scale), zeros)


class Scale(_Channelwise):
    """Multiply each channel by a learned number: ``x * scale``.

    Parameters
    ----------
    channels : int
        0: inferred from the first input.
    initial : float
        Initial value of the parameter ``scale``, of shape (channels,). For sums of n signs, 1 / sqrt(n) gives about unit variance.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W) or (N, channels).

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.channelwise import Scale
    >>> layer = Scale(2, initial=0.5)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[1, 3]])).asnumpy()
    array([[0.5, 1.5]], dtype=float32)
    """

    def __init__(self, channels: int = 0, initial: float = 1.0, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(channels, 'scale', initial, prefix, params)

    def hybrid_forward(self, F, x, scale, zeros):
        return scaled(F, x, scale, zeros)


class Shift(_Channelwise):
    """Add a learned number to each channel: ``x + shift``, initially 0.

    Parameters
    ----------
    channels : int
        0: inferred from the first input.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W) or (N, channels). The parameter ``shift`` has shape (channels,).

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.channelwise import Shift
    >>> layer = Shift(2)
    >>> layer.initialize()
    >>> layer.shift.set_data(mx.nd.array([1, -1]))
    >>> layer(mx.nd.array([[5, 5]])).asnumpy()
    array([[6., 4.]], dtype=float32)
    """

    def __init__(self, channels: int = 0, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(channels, 'shift', 0.0, prefix, params)

    def hybrid_forward(self, F, x, shift, zeros):
        with mark(SHIFT):
            return affine(F, x, F.ones_like(shift), shift, zeros, fix_scale=True)


class PReLU(_Channelwise):
    """PReLU with one learned slope per channel: ``max(x, 0) + slope * min(x, 0)``. At 0 the derivative is the slope, as in MXNet.

    Parameters
    ----------
    channels : int
        0: inferred from the first input.
    initial : float
        Initial value of the parameter ``slope``, of shape (channels,); by default as in `gluon.nn.PReLU`.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W) or (N, channels).

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.channelwise import PReLU
    >>> layer = PReLU(1)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[[[-1, 0.5, 5]]]])).asnumpy().ravel()
    array([-0.25,  0.5 ,  5.  ], dtype=float32)
    """

    def __init__(self, channels: int = 0, initial: float = 0.25, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(channels, 'slope', initial, prefix, params)

    def hybrid_forward(self, F, x, slope, zeros, positive=None):
        above = F.Activation(x, act_type='relu')
        if positive is not None:
            above = scaled(F, above, positive, zeros)
        below = scaled(F, F.minimum(x, 0), slope, zeros)
        with mark(PRELU):
            return above + below


class TwoSlopes(PReLU):
    """`PReLU` that also has a learned slope for positive numbers: ``positive * max(x, 0) + slope * min(x, 0)``.

    Parameters, input and output as in `PReLU`. The parameter ``positive``, of shape (channels,), is initially 1.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.channelwise import TwoSlopes
    >>> layer = TwoSlopes(1)
    >>> layer.initialize()
    >>> layer.positive.set_data(mx.nd.array([2]))
    >>> layer(mx.nd.array([[[[-1, 0.5, 5]]]])).asnumpy().ravel()
    array([-0.25,  1.  , 10.  ], dtype=float32)
    """

    def __init__(self, channels: int = 0, initial: float = 0.25, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(channels, initial, prefix, params)
        with self.name_scope():
            self.positive = self.params.get('positive', shape=(channels,), init=mx.init.Constant(1.0), allow_deferred_init=True)
