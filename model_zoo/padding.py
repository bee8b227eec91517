"""Where zeros go around a map that a layer halves: on both sides alike, or as TensorFlow's padding ``same`` puts them.

A layer of stride 2 with an odd kernel k needs k - 2 zeros along an axis of even size. MXNet puts k // 2 on each side and does not read the
last one; TensorFlow puts one less before the map and reads them all, so its windows lie one element further. That is the layer padded with
k // 2 + 1 on each side, without its first row and column: its windows begin two elements, one stride, later. For an axis of odd size both
conventions agree, and this layer with neither: a network padded so needs sizes that stay even until the last layer that halves them.
"""
from mxnet.gluon import HybridBlock, nn


class DropFirst(HybridBlock):
    """Leave out the first row and the first column: (N, C, H, W) -> (N, C, H - 1, W - 1)."""

    def hybrid_forward(self, F, x):
        return F.slice(x, begin=(None, None, 1, 1), end=(None, None, None, None))


def padded(layer, kernel_size, strides, same_padding=False):
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
