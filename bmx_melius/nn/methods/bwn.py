"""BWN: the Binary-Weight-Networks of Rastegari et al. 2016, arXiv:1603.05279, section 3.1.

Forward, for filters W with n weights and float activations::

    y = conv(relu(x), alpha sign(W)),    alpha = mean |W| of the filter

Backward, with W~ = alpha sign(W), as in XNOR-Net (`bmx_melius.nn.methods.xnor_net`)::

    dx = d relu(x) 1[x > 0],    dW = n (1 - 1 / I) dW~ (1 / n + alpha 1[|W| < 1])

and the latent weights are centred and clipped after each update.

The network has the order of ResNet: convolution, BatchNorm, ReLU. The ReLU is part of the layer that follows it.
"""

from typing import Any

from ...signatures import hands_on
from ..quantizers import FULL_PRECISION
from .low_bit import LowBitConv2D
from .xnor_net import XNORWeights


class BWNConv2D(LowBitConv2D):
    """ReLU and convolution with binary weights that are scaled by their mean magnitude.

    Parameters, input and output as in `BinaryConv2D`, with zero padding and without offset.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.bwn import BWNConv2D
    >>> layer = BWNConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([  0. ,  -0.6, -10. ], dtype=float32)
    """

    convolution = XNORWeights

    @hands_on(LowBitConv2D, without=['activation_method', 'activation_bits', 'apply_scaling', 'scaling_gradient'])
    def __init__(self, *geometry: Any, **arguments: Any) -> None:
        super().__init__(
            *geometry, activation_method='relu', activation_bits=FULL_PRECISION, apply_scaling=True, scaling_gradient=False, **arguments
        )
