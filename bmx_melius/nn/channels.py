"""Float operations on channels for binary networks: grouped convolution, channel shuffle, concatenation, repetition, mean.

The results equal MXNet's operators, except for the rounding of the mean; the formulations here need less time or memory in
training.
"""

from typing import Any, Optional, Sequence, Union

from mxnet.gluon import HybridBlock, nn

from ..errors import UserError
from ..signatures import hands_on
from .marks import MEAN, MEAN_INPUT, REPETITION, REPETITION_INPUT, mark
from .quantizers import Array


def plain_layout(F: Any, x: Array) -> Array:
    """Return x, unchanged in value, in MXNet's plain memory layout.

    oneDNN leaves the result of a grouped convolution in a blocked layout, for which MXNet's batch normalization and pooling run slow
    reference code. A slice of the whole array converts it back to the plain layout.
    """
    return F.slice_axis(x, axis=1, begin=0, end=None)


def concat(F: Any, *maps: Array) -> Array:
    """Concatenate maps (N, C_i, H, W) or vectors (N, C_i) along the channels like ``F.concat(*maps, dim=1)``, without a memory leak.

    In MXNet 1.9.1 the gradient of a concatenation of arrays with two or four axes, which oneDNN computes, leaks about 1 KB per map in every
    update, 60 KB for MeliusNet22. For three or five axes MXNet uses its native implementation, which does not leak.
    """
    return F.reshape(F.concat(*(F.expand_dims(x, axis=0) for x in maps), dim=2), shape=(-3, -2))


BATCH, CHANNELS, POSITIONS = 'batch', 'channels', 'positions'


def repeated(F: Any, value: Array, like: Array, along: str, gradient: bool = True) -> Array:
    """Return `value` repeated to the shape of `like`, (N, C, ...), for products and sums of both.

    The gradient of `value` in ``x * repeated(F, value, x, along)`` takes about a tenth of the time of ``broadcast_mul`` on CPUs, because it
    is a product of matrices with vectors of ones.

    Parameters
    ----------
    value : NDArray or Symbol
        Of shape (1, C, ...), (N, 1, ...) or (N, C, 1, ...).
    along : {'batch', 'channels', 'positions'}
        The axes along which it is repeated.
    gradient : bool
        Whether `value` has a gradient. MXNet 1.9.1 crashes if only the gradient of the result is blocked.
    """
    if not gradient:
        value = F.BlockGrad(value)
    with mark(REPETITION_INPUT):  # one node on `value`
        value = F.expand_dims(value, axis=0) if along == BATCH else F.reshape(value, shape=(0, 0, -1))
    rows, whole = (F.reshape(array, shape=(0, 0, -1)) for array in (value, F.expand_dims(like, axis=0) if along == BATCH else like))
    ones = F.ones_like(F.slice_axis(whole, axis=1 if along == POSITIONS else 2, begin=0, end=1))
    product = F.batch_dot(rows, ones) if along == POSITIONS else F.batch_dot(ones, rows)
    with mark(REPETITION):
        result = F.reshape_like(product, like)
    return result if gradient else F.BlockGrad(result)


def repeated_per_channel(F: Any, value: Array, like: Array, gradient: bool = True) -> Array:
    """Return `value`, (1, C, 1, ...), repeated to the shape of `like`, (N, C, ...); see `repeated`."""
    image = F.slice_axis(like, axis=0, begin=0, end=1)
    return repeated(F, repeated(F, value, image, POSITIONS, gradient), like, BATCH, gradient)


def mean(F: Any, x: Array, over: str) -> Array:
    """Return the mean of maps x, (N, C, H, W), over the channels, (N, 1, H, W), or over the positions, (N, C, 1, 1).

    On CPUs `mean` over the channels takes six times as long, and so does the gradient of average pooling over the positions.

    Parameters
    ----------
    over : {'channels', 'positions'}
    """
    with mark(MEAN_INPUT):
        rows = F.reshape(x, shape=(0, 0, -1))
    one = F.slice_axis(rows, axis=2 if over == CHANNELS else 1, begin=0, end=1)
    shares = F.softmax(F.zeros_like(one), axis=1 if over == CHANNELS else 2)  # all equal, with the sum 1
    if over == CHANNELS:
        means, like = F.batch_dot(shares, rows, transpose_a=True), F.slice_axis(x, axis=1, begin=0, end=1)
    else:
        means, like = F.batch_dot(rows, shares, transpose_b=True), F.slice(x, begin=(None, None, 0, 0), end=(None, None, 1, 1))
    with mark(MEAN, over=over):
        return F.reshape_like(means, like)


def element(F: Any, vector: Array, index: int) -> Array:
    """Return an element of a vector in the shape (1, 1, 1, 1), for products with maps and sums of both."""
    return F.reshape(F.slice_axis(vector, axis=0, begin=index, end=index + 1), shape=(1, 1, 1, 1))


class GroupedConv2D(nn.Conv2D):
    """`gluon.nn.Conv2D` whose input and output stay in MXNet's plain memory layout: several times faster on the CPU for ``groups > 1``.

    Parameters, input and output as in `gluon.nn.Conv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import GroupedConv2D
    >>> layer = GroupedConv2D(8, kernel_size=3, padding=1, groups=4)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 16, 5, 5))).shape
    (2, 8, 5, 5)
    """

    @hands_on(nn.Conv2D, HybridBlock)
    def __init__(
        self,
        channels: int,
        kernel_size: Union[int, Sequence[int]],
        strides: Union[int, Sequence[int]] = (1, 1),
        padding: Union[int, Sequence[int]] = (0, 0),
        dilation: Union[int, Sequence[int]] = (1, 1),
        groups: int = 1,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(channels, kernel_size, strides, padding, dilation, groups, *args, **kwargs)

    def hybrid_forward(self, F, x, weight, bias=None):
        return plain_layout(F, super().hybrid_forward(F, plain_layout(F, x), weight, bias))


class ChannelShuffle(HybridBlock):
    """Interleave the channels of `groups` groups: channel i n/g + j becomes j g + i (ShuffleNet, Zhang et al. 2018, arXiv:1707.01083).

    Input and output (N, C, H, W); C must be a multiple of `groups`.

    Raises
    ------
    UserError
        For fewer than one group.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import ChannelShuffle
    >>> ChannelShuffle(2)(mx.nd.arange(6).reshape((1, 6, 1, 1))).asnumpy().ravel()
    array([0., 3., 1., 4., 2., 5.], dtype=float32)
    """

    def __init__(self, groups: int, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        if groups < 1:
            raise UserError(f'groups must be at least 1, not {groups}')
        self.groups = groups

    def hybrid_forward(self, F, x):
        grouped = F.reshape(x, shape=(0, -4, self.groups, -1, -2))
        return F.reshape(F.swapaxes(grouped, 1, 2), shape=(0, -3, -2))

    def __repr__(self):
        return f'{type(self).__name__}({self.groups})'
