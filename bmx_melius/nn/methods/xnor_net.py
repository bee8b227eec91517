"""XNOR-Net: Rastegari et al. 2016, arXiv:1603.05279, section 3; layers as in the authors' code (github.com/allenai/XNOR-Net).

Forward, for filters W with n weights (equation 6), and in the paper also with the map K of the mean |x| over the channels, averaged over
each window with zeros as padding (equation 11)::

    y = conv(sign(x), sign(W)) alpha [K],    alpha = mean |W| of the filter

The code omits K, and so does `XNORConv2D` unless ``input_scale=True``. K is a constant for the gradient.

Backward, with W~ = alpha sign(W) (section 3.1) and the code's factor for I input channels, which the paper does not have::

    dx = d sign(x) 1[|x| < 1],    dW = n (1 - 1 / I) dW~ (1 / n + alpha 1[|W| < 1])

Without n, gradients are so small that the epsilon of RAdam outweighs them; with Adam, the code multiplies by 1e9 instead.

After each update, which `bmx_melius.nn.methods.updates.finish_update` does here, the code centres and clips the latent weights::

    W <- clip(W - mean of W over the input channels, -1, 1)

It also does so before the first update. Other differences: padding is -1 instead of 0, and sign(0) is +1 instead of 0. The gradient of
sign(x) is also passed on where |x| = 1.

`ScaledBinaryConv2D` is the layer of BMXNet-v2, with K and the gradient dW = dW~ alpha.
"""

import math
from typing import Any

import mxnet as mx
from mxnet.gluon import Block

from ...errors import UserError
from ...signatures import hands_on
from ..channels import CHANNELS, mean, repeated
from ..fine_tuning import is_frozen
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import FULL_PRECISION, TINY, Array, everywhere, zero_with_gradient


class ScaledBinaryConv2D(BinaryConv2D):
    """XNOR-Net's convolution: ``conv(sign(x), sign(w)) * alpha * K`` (Rastegari et al. 2016, arXiv:1603.05279, section 3.2).

    alpha is the mean |w| of each filter; K is the mean |x| over the channels, averaged over each window with zeros as padding. Both are
    constants for the gradient. Parameters, input and output as in `BinaryConv2D`, without dilation, scaling and offset.

    Parameters
    ----------
    input_scale : bool
        Whether to multiply by K, which improves the accuracy little (section 3.2). With ``bits=32`` K is never used. A bias is multiplied,
        too.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import ScaledBinaryConv2D
    >>> layer = ScaledBinaryConv2D(4, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(0.5))
    >>> float(layer(mx.nd.array([[[[2]], [[4]]]]))[0, 0].asscalar())  # 2 signs, alpha = 0.5, K = 3
    3.0
    """

    @hands_on(BinaryConv2D, without=['no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over'])
    def __init__(self, *geometry: Any, input_scale: bool = True, **arguments: Any) -> None:
        super().__init__(*geometry, apply_scaling=True, scaling_gradient=False, **arguments)
        self.input_scale = input_scale and self.qact.bits != FULL_PRECISION
        dilation = self.qconv._kwargs['dilate']
        if dilation != (1, 1):
            raise UserError(f'{type(self).__name__} averages the input over dense windows and supports no dilation (got {dilation})')

    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        if not self.input_scale:
            return y
        magnitude = mean(F, F.abs(F.BlockGrad(x)), CHANNELS)
        window = {key: self.qconv._kwargs[key] for key in ('kernel', 'stride', 'pad')}
        scale = F.Pooling(magnitude, pool_type='avg', count_include_pad=True, **window)
        return y * repeated(F, scale, y, CHANNELS, gradient=False)


def with_xnor_gradient(F: Any, weight: Array, taps: int) -> Array:
    """Return `weight`, of shape (O, I, ...) with `taps` weights per input channel, and the gradient of XNOR-Net.

    dW = d sign(W) (1[|W| < 1] + 1 / sum |W|) (n - taps), with the sum over each filter of n weights. With d sign(W) = alpha dW~ this is
    n (1 - 1 / I) dW~ (1 / n + alpha 1[|W| < 1]).
    """
    norm = F.maximum(F.sum(F.abs(weight), axis=0, exclude=True, keepdims=True), TINY)
    number = F.sum(F.ones_like(weight), axis=0, exclude=True, keepdims=True)
    slope = ((F.abs(weight) < 1) + everywhere(F, 1 / norm, weight)) * everywhere(F, number - taps, weight)
    return F.BlockGrad(weight) + zero_with_gradient(F, weight * F.BlockGrad(slope))


class XNORWeights(QConv2D):
    """`QConv2D` with the gradient of XNOR-Net's weights; `center_weights` is as in `XNORConv2D`."""

    center_weights = True

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.binarization.stored_bits != FULL_PRECISION:
            weight = with_xnor_gradient(F, weight, math.prod(self._kwargs['kernel']))
        return super().hybrid_forward(F, x, weight, bias)


def center_latent_weights(net: Block) -> None:
    """Centre the latent weights of XNOR-Net's layers over their input channels, and clip them to [-1, 1]. Call it after ``Trainer.step``.

    Layers with ``center_weights=False``, real weights and frozen weights are not changed.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.xnor_net import XNORConv2D, center_latent_weights
    >>> layer = XNORConv2D(1, kernel_size=1, in_channels=3)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([0, 0.5, 4]).reshape((1, 3, 1, 1)))
    >>> center_latent_weights(layer)
    >>> layer.qconv.weight.data().asnumpy().ravel()
    array([-1.,  -1.,   1.], dtype=float32)
    """
    net.apply(_center_own)


def _center_own(block):
    if not isinstance(block, XNORWeights) or not block.center_weights or block.binarization.stored_bits == FULL_PRECISION:
        return
    if not is_frozen(block.weight):
        for weight in block.weight.list_data():
            centred = mx.nd.broadcast_sub(weight, mx.nd.mean(weight, axis=1, keepdims=True))
            mx.nd.clip(centred, -1, 1, out=weight)


class XNORConv2D(ScaledBinaryConv2D):
    """XNOR-Net's convolution as in the authors' code; see `bmx_melius.nn.methods.xnor_net`.

    Parameters
    ----------
    center_weights : bool
        Whether `center_latent_weights` centres and clips the latent weights, as the authors' code does, but not their paper.
    input_scale : bool
        Whether to multiply by K, as in the paper, but not in the authors' code.
    threshold : float or None
        As in `BinaryConv2D`, 1 by default.

    Other parameters, input and output as in `ScaledBinaryConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.xnor_net import XNORConv2D
    >>> layer = XNORConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 2., -2., -2.], dtype=float32)
    """

    convolution = XNORWeights

    @hands_on(ScaledBinaryConv2D)
    def __init__(
        self, *geometry: Any, center_weights: bool = True, input_scale: bool = False, threshold: Any = 1.0, **arguments: Any
    ) -> None:
        super().__init__(*geometry, input_scale=input_scale, threshold=threshold, **arguments)
        self.qconv.center_weights = center_weights
