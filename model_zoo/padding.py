"""Padding of layers that halve a map: symmetric as in MXNet, or as TensorFlow's padding ``same``.

A layer of stride 2 with an odd kernel size k needs k - 2 zeros along an axis of even size. MXNet pads k // 2 zeros on each side and does
not use the last one; TensorFlow pads one zero less before the map and uses all, so its windows are shifted by one element. The same windows
result from padding k // 2 + 1 zeros on each side and dropping the first row and column of the output, because this shifts them by two
elements, one stride. In general a stride s needs max(k - s, 0) zeros along an axis whose size is a multiple of s, half of them, rounded
down, before the map; if their number is odd, the padding is one stride larger than that.

Along an axis of odd size, the windows of TensorFlow and MXNet are the same. No stock operator can depend on the size of its input, so a
network with this padding accepts only images whose maps have even sizes up to the last layer of stride 2 (`SamePadded`).

Float networks that are published for one size of images are padded by an operator of their own before the layer (`padded_for`), which
computes nothing in vain and becomes the padding of the packed layer.
"""

from typing import Any, Callable, Sequence, Tuple

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import concat


class DropFirst(HybridBlock):
    """Drop the first row and the first column: (N, C, H, W) -> (N, C, H - 1, W - 1)."""

    def hybrid_forward(self, F, x):
        return F.slice(x, begin=(None, None, 1, 1), end=(None, None, None, None))


def padded(layer: Callable[..., HybridBlock], kernel_size: int, strides: int, same_padding: bool = False) -> HybridBlock:
    """Return a convolution that keeps the size of the map, or divides it by `strides`.

    Parameters
    ----------
    layer : callable (padding=...) -> HybridBlock
        Creates the convolution.
    kernel_size, strides : int
        Of the convolution.
    same_padding : bool
        Pad as TensorFlow does. It makes no difference for odd kernel sizes with stride 1, nor for even sizes with stride 2.
    """
    if not same_padding:
        return layer(padding=(kernel_size - 1) // 2)
    before, unequal = divmod(max(kernel_size - strides, 0), 2)
    if not unequal:
        return layer(padding=before)
    layers = nn.HybridSequential(prefix='')
    layers.add(layer(padding=before + strides), DropFirst())
    return layers


class ZeroPadding(HybridBlock):
    """Add zeros before and after the rows and the columns: (N, C, H, W) -> (N, C, top + H + bottom, left + W + right).

    `widths` are (top, bottom) and (left, right).
    """

    def __init__(self, widths: Sequence[Tuple[int, int]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._widths = (0,) * 4 + tuple(width for pair in widths for width in pair)

    def hybrid_forward(self, F, x):
        return F.pad(x, mode='constant', pad_width=self._widths)


def padded_for(size: Sequence[int], layer: Callable[..., HybridBlock], kernel_size: Sequence[int], strides: Sequence[int]) -> HybridBlock:
    """Return a float convolution that is padded as ``same`` of TensorFlow for maps of one size.

    Parameters
    ----------
    size : sequence of int
        Height and width of its input, or other numbers with the same remainders after division by the strides.
    layer : callable (padding=...) -> HybridBlock
        Creates the convolution.
    kernel_size, strides : sequence of int
        Of the convolution.
    """
    widths = []
    for length, kernel, stride in zip(size, kernel_size, strides):
        zeros = max(kernel - (length % stride or stride), 0)
        widths.append((zeros // 2, zeros - zeros // 2))
    if all(before == after for before, after in widths):
        return layer(padding=tuple(before for before, _ in widths))
    layers = nn.HybridSequential(prefix='')
    layers.add(ZeroPadding(widths), layer(padding=0))
    return layers


def average_pool(stride: int) -> HybridBlock:
    """Return the average pooling of a shortcut, whose last windows may extend past the end of the map."""
    return nn.AvgPool2D(stride, stride, ceil_mode=True, count_include_pad=False)


def padded_features(features: nn.HybridSequential, stride: int, same_padding: bool) -> nn.HybridSequential:
    """Return the layers from an image to a vector, as `SamePadded` if they pad as TensorFlow does."""
    return SamePadded(features, stride, prefix='') if same_padding else features


class SamePadded(nn.HybridSequential):
    """Layers from an image to a vector, with the padding of TensorFlow, and a check of the image size.

    Parameters
    ----------
    layers : HybridSequential
        Its layers are added to this block.
    stride : int
        Total stride: size of the image / size of the last map.

    Input (N, C, H, W) with H and W multiples of `stride`; output (N, D).

    Other image sizes are errors: a `UserError` if the input is an array, a shape error of MXNet in an exported symbol, and an error of a
    packed program when it is run. To cause the latter two, the graph pools one channel of the image twice with the stride `stride`. The
    result for windows of `stride` pixels has the size H / stride rounded down, for windows of one pixel rounded up, and only maps of equal
    size can be concatenated. The values are discarded.
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
