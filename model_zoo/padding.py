"""Where zeros go around a map that a layer halves: on both sides alike, or as TensorFlow's padding ``same`` puts them.

A layer of stride 2 with an odd kernel k needs k - 2 zeros along an axis of even size. MXNet puts k // 2 on each side and does not read the
last one; TensorFlow puts one less before the map and reads them all, so its windows lie one element further. That is the layer padded with
k // 2 + 1 on each side, without its first row and column: its windows begin two elements, one stride, later.

Along an axis of odd size TensorFlow's windows lie as MXNet's do. No stock operator chooses by the size of its input, so a network padded so
takes maps that stay even until the last layer that halves them, and refuses others (`SamePadded`).
"""

from typing import Any, Callable

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

from bmx_melius.channels import concat
from bmx_melius.errors import UserError


class DropFirst(HybridBlock):
    """Leave out the first row and the first column: (N, C, H, W) -> (N, C, H - 1, W - 1)."""

    def hybrid_forward(self, F, x):
        return F.slice(x, begin=(None, None, 1, 1), end=(None, None, None, None))


def padded(layer: Callable[..., HybridBlock], kernel_size: int, strides: int, same_padding: bool = False) -> HybridBlock:
    """A convolution that keeps the size of the map, or with ``strides=2`` halves it.

    Parameters
    ----------
    layer : function of the argument ``padding`` that makes the layer
    kernel_size, strides : int
        Of the layer.
    same_padding : bool
        Pad as TensorFlow does. It makes a difference for strides above 1 and odd kernels alone.
    """
    padding = (kernel_size - 1) // 2
    if not same_padding or strides == 1 or kernel_size % 2 == 0:
        return layer(padding=padding)
    layers = nn.HybridSequential(prefix='')
    layers.add(layer(padding=padding + 1), DropFirst())
    return layers


class SamePadded(nn.HybridSequential):
    """Layers from an image to a vector, of which those that halve a map are padded as in TensorFlow.

    Parameters
    ----------
    layers : HybridSequential
        Whose layers these are.
    stride : int
        How many times smaller the last map is than the image.

    Input (N, C, H, W) with H and W multiples of `stride`; output (N, D).

    Other images are refused: by `UserError` where this block sees arrays, by MXNet's inference of shapes where it has become a symbol, and
    when a packed program runs. For those the graph pools one channel of the image twice, every `stride` pixels: windows of `stride` pixels
    give size / stride rounded down, windows of one pixel round up. Only maps of one size can be joined. Nothing is kept of the values.
    """

    def __init__(self, layers: nn.HybridSequential, stride: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._stride = stride
        self.add(*layers)

    def forward(self, x, *args):
        if isinstance(x, mx.nd.NDArray) and any(size % self._stride for size in x.shape[2:]):
            raise UserError(
                f'height and width of an image must be multiples of {self._stride}, not {" x ".join(map(str, x.shape[2:]))}: '
                'this network pads as TensorFlow does, and other sizes would be padded differently there'
            )
        return super().forward(x, *args)

    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        channel = F.BlockGrad(F.slice_axis(x, axis=1, begin=0, end=1))
        sizes = [F.Pooling(channel, kernel=(window,) * 2, stride=(self._stride,) * 2, pool_type='max') for window in (self._stride, 1)]
        equal = F.concat(*sizes, dim=1, name=f'height_and_width_must_be_multiples_of_{self._stride}')
        equal = F.Flatten(F.Pooling(equal, global_pool=True, pool_type='avg', kernel=(1, 1)))
        return F.slice_axis(concat(F, y, equal), axis=1, begin=0, end=-len(sizes))
