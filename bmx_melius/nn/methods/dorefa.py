"""DoReFa-Net: Zhou et al. 2016, arXiv:1606.06160, sections 2.3 to 2.5, with k-bit weights and activations and float gradients.

Forward, with q_k(z) = round((2^k - 1) z) / (2^k - 1)::

    y = conv(q(clip(x, 0, 1)), w),    w = 2 q(tanh(W) / (2 max |tanh(W)|) + 1/2) - 1    for several bits (equation 9)
                                      w = mean |W| sign(W)                              for one bit (equation 8)

where the mean and the maximum are over all weights of the layer. Backward: the derivatives of these functions, with the derivative 1 for q
(straight-through estimator); the gradient also flows through the maximum. For one bit dW = dw: the mean has no gradient. The quantizers
are ``round`` and ``dorefa`` of `bmx_melius.nn.quantizers`, for one bit ``sign`` and a scale of the layer. (With 1 bit the quantizer
``dorefa`` is equation 9, levels of +-1 and the gradient of tanh; DoReFa-Net does not use it.)
"""

from typing import Any, Optional

from ...signatures import hands_on
from ..binarization import LAYER, STRAIGHT_THROUGH
from .low_bit import LowBitConv2D

_SEVERAL_BITS = {'quantization': 'dorefa'}
_ONE_BIT = {'apply_scaling': True, 'scaling_gradient': STRAIGHT_THROUGH, 'scale_over': LAYER}


class DoReFaConv2D(LowBitConv2D):
    """Weights and activations of `bits` bits, 2 by default. Other parameters, input and output as in `BinaryConv2D`.

    Parameters
    ----------
    bits : int
        1: signs times the mean magnitude of the layer.
    activation_bits : int or None
        Bits of the activations if they differ from `bits`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.dorefa import DoReFaConv2D
    >>> x = mx.nd.array([[[[-1, 0.3, 5]]]])
    >>> layer = DoReFaConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(x).asnumpy().ravel() + 0
    array([ 0.        , -0.33333334, -1.        ], dtype=float32)
    >>> layer = DoReFaConv2D(1, kernel_size=1, bits=1, activation_bits=2)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(x).asnumpy().ravel() + 0
    array([ 0.       , -0.6666667, -2.       ], dtype=float32)
    """

    @hands_on(LowBitConv2D, without=['activation_method', 'quantization', 'apply_scaling', 'scaling_gradient', 'scale_over'])
    def __init__(self, *geometry: Any, bits: int = 2, activation_bits: Optional[int] = None, **arguments: Any) -> None:
        weights = _ONE_BIT if bits == 1 else _SEVERAL_BITS
        super().__init__(*geometry, bits=bits, activation_bits=activation_bits, **weights, **arguments)
