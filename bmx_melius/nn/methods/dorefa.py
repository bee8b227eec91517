"""DoReFa-Net: Zhou et al. 2016, arXiv:1606.06160, sections 2.3 to 2.5, with k-bit weights and activations and float gradients.

Forward, with q(z) = round((2^k - 1) z) / (2^k - 1)::

    y = conv(q(clip(x, 0, 1)), w),    w = 2 q(tanh(W) / (2 max |tanh(W)|) + 1/2) - 1

Backward: the derivatives of these functions, with the derivative 1 for q (straight-through estimator). The gradient also flows through the
maximum. The quantizers are ``round`` and ``dorefa`` of `bmx_melius.nn.quantizers`.
"""

from typing import Any

from ...signatures import hands_on
from .low_bit import LowBitConv2D


class DoReFaConv2D(LowBitConv2D):
    """Activations and weights of `bits` bits, 2 by default. Other parameters, input and output as in `BinaryConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.dorefa import DoReFaConv2D
    >>> layer = DoReFaConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 0.        , -0.33333334, -1.        ], dtype=float32)
    """

    @hands_on(LowBitConv2D, without=['activation_method', 'activation_bits', 'quantization'])
    def __init__(self, *geometry: Any, bits: int = 2, **arguments: Any) -> None:
        super().__init__(*geometry, bits=bits, activation_bits=None, quantization='dorefa', **arguments)
