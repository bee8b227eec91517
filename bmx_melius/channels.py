"""Float operations across channels, for networks of binary layers: grouped convolution, channel shuffle, concatenation.

They compute what MXNet's do, in the form that costs binary networks least time and memory in training.
"""

from typing import Any, Optional

from mxnet.gluon import HybridBlock, nn

from .errors import UserError
from .quantizers import Array


def plain_layout(F: Any, x: Array) -> Array:
    """x itself, in MXNet's plain memory layout (the symbol's value does not change).

    oneDNN leaves the result of a grouped convolution in a blocked layout in which MXNet runs slow reference code for batch
    normalization and pooling; a slice over everything brings the plain one back.
    """
    return F.slice_axis(x, axis=1, begin=0, end=None)


def concat(F: Any, *maps: Array) -> Array:
    """Maps (N, C_i, H, W) or vectors (N, C_i) joined along the channels: ``F.concat(*maps, dim=1)``, but training loses no memory by it.

    The gradient of MXNet 1.9.1's concatenation of two or four axes, which is oneDNN's, leaks about 1 KB for each map in every update: a
    MeliusNet22 60 KB. With three or five axes MXNet takes code of its own.
    """
    return F.reshape(F.concat(*(F.expand_dims(x, axis=0) for x in maps), dim=2), shape=(-3, -2))


class GroupedConv2D(nn.Conv2D):
    """`gluon.nn.Conv2D` for ``groups > 1``, several times faster on the CPU: it keeps its neighbours in MXNet's plain memory layout.

    Parameters, input and output as there.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import GroupedConv2D
    >>> layer = GroupedConv2D(8, kernel_size=3, padding=1, groups=4)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 16, 5, 5))).shape
    (2, 8, 5, 5)
    """

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
