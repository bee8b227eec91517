"""HWGQ: Cai et al. 2017, *Deep Learning with Low Precision by Half-wave Gaussian Quantization*, arXiv:1702.00953.

Forward, with s = 0.538 and filters W::

    y = conv(q(x), alpha sign(W)),    alpha = mean |W| of the filter
    q(x) = 0 for x <= 0,  s for x <= 1.5 s,  2 s for x <= 2.5 s,  otherwise 3 s

The levels are the best in the least-squares sense for the positive half of a standard normal distribution with equal distances, so a
BatchNorm comes before. Backward, with the clipped ReLU for the activations::

    dx = dq 1[0 < x <= 3 s],    dW = dW~ for W~ = alpha sign(W)

The paper quantizes the weights as XNOR-Net does; the gradient of the weights follows the authors' code (github.com/zhaoweicai/hwgq,
binary_conv_layer.cpp), which passes it on unchanged. The quantizers are ``hwgq`` and ``scaled_sign`` of `bmx_melius.nn.quantizers`.

The networks have the layers of ``res18-hwgq-3ne-clip-poly-320k`` there: the stem pools before its normalization, a further normalization,
the only kind with learned numbers, follows the second convolution of each block, and the shortcuts that halve a map are quantized, too.
"""

from typing import Any

from ...signatures import hands_on
from .low_bit import LowBitConv2D


class HWGQConv2D(LowBitConv2D):
    """2-bit half-wave Gaussian activations and scaled binary weights. Parameters, input and output as in `BinaryConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.hwgq import HWGQConv2D
    >>> layer = HWGQConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 0.   , -1.076, -3.228], dtype=float32)
    """

    @hands_on(LowBitConv2D, without=['activation_method', 'activation_bits', 'quantization'])
    def __init__(self, *geometry: Any, **arguments: Any) -> None:
        super().__init__(*geometry, activation_method='hwgq', quantization='scaled_sign', **arguments)
