"""SYQ: Faraone et al. 2018, *SYQ: Learning Symmetric Quantization for Efficient Deep Neural Networks*, arXiv:1807.00301.

Forward, with a learned scale alpha_ij for each position (i, j) of the kernels of a layer ("pixel-wise")::

    y = conv(q(clip(x, 0, 1)), Q),    Q_ocij = alpha_ij sign(W_ocij),    q(z) = round(3 z) / 3

Backward: the derivative 1 for sign and q (straight-through estimators), so that ::

    dW = alpha dQ,    dalpha_ij = sum over o, c of sign(W_ocij) dQ_ocij

The paper initializes alpha with the mean magnitude of pretrained weights. The networks of this project train from the beginning and start
with 1 / sqrt(n), for filters of n weights, which is about the mean magnitude of initialized weights: with alpha = 1 the outputs of the
layers would drown the shortcuts, and little is learned.
"""

from typing import Any

import mxnet as mx

from ...signatures import hands_on
from ..layers import QConv2D
from .low_bit import LowBitConv2D


class SYQWeights(QConv2D):
    """Convolution with binary weights and the parameter ``scale``, of shape (1, 1, kernel height, kernel width)."""

    facts_of_method = {'method': 'syq', 'sign': 0}

    def __init__(self, *geometry: Any, **arguments: Any) -> None:
        super().__init__(*geometry, **arguments)
        if not self.binarization.is_float:
            with self.name_scope():
                self.scale = self.params.get('scale', shape=(1, 1, *self._kwargs['kernel']), init='ones')

    def quantized_weight(self, F, weight, scale):
        return super().quantized_weight(F, weight) * F.broadcast_mul(scale, F.ones_like(weight))


class SYQConv2D(LowBitConv2D):
    """2-bit activations and binary weights with a learned scale for each position of the kernel.

    Parameters, input and output as in `bmx_melius.nn.methods.low_bit.LowBitConv2D`, and the initial value of the scales, `initial_scale`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.syq import SYQConv2D
    >>> layer = SYQConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 0.        , -0.33333334, -1.        ], dtype=float32)
    """

    convolution = SYQWeights

    @hands_on(LowBitConv2D)
    def __init__(self, *geometry: Any, initial_scale: float = 1.0, **arguments: Any) -> None:
        super().__init__(*geometry, **arguments)
        if not self.qconv.binarization.is_float:
            self.qconv.scale.init = mx.init.Constant(initial_scale)
