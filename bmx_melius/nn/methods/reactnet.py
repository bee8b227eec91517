"""ReActNet: Liu et al. 2020, arXiv:2003.03488, section 4.2.

Forward, with learned numbers per channel: the threshold alpha (equation 1), and the shifts gamma, zeta and the slope beta (equation 2)::

    RSign(x) = sign(x - alpha)
    RPReLU(x) = prelu(x - gamma) + zeta,    prelu(z) = z if z > 0 else beta z

Backward: the derivatives of these functions, with the gradient (2 - 2|x|) 1[|x| <= 1] for sign. The convolution, with weights
alpha sign(w) and their gradient, is taken from Bi-Real Net (`bmx_melius.nn.methods.bireal_net`). Layers as in the authors' ResNet
(github.com/liuzechun/ReActNet, resnet/2_step2). ReActNet-A, on the base of MobileNet (mobilenet/2_step2), has the same layers.

`bmx_melius.nn.channelwise.Shift` adds a learned number, as in the authors' code: -alpha before a `BinaryConv2D` with
``activation_method='approx_sign'``, which together are RSign, and -gamma and zeta in `RPReLU`. sign(0) is +1, in the paper -1, in the code
0; padding is -1, in the code 0.
"""

from typing import Any, Optional

from mxnet.gluon import nn

from ..channelwise import PReLU, Shift


class RPReLU(nn.HybridSequential):
    """PReLU between two learned shifts of each channel: ``prelu(x - gamma) + zeta``, with one slope per channel.

    Parameters
    ----------
    channels : int
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W). The slopes are initially 0.25, as in `gluon.nn.PReLU`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.reactnet import RPReLU
    >>> layer = RPReLU(1)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[[[-1, 0.5, 5]]]])).asnumpy().ravel()
    array([-0.25,  0.5 ,  5.  ], dtype=float32)
    """

    def __init__(self, channels: int, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.add(Shift(channels), PReLU(channels), Shift(channels))
