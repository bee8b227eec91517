"""XNOR-Net: Rastegari et al. 2016, arXiv:1603.05279, section 3.

Forward, for filters W with n weights and the map K of the mean |x| over the channels, averaged over each window with zeros as padding
(equations 6 and 11)::

    y = conv(sign(x), sign(W)) alpha K,    alpha = mean |W| of the filter

Backward, with W~ = alpha sign(W) (section 3.1)::

    dx = d sign(x) 1[|x| <= 1],    dW = dW~ (1 / n + alpha 1[|W| <= 1])

K is a constant for the gradient. `XNORConv2D` has these gradients. `ScaledBinaryConv2D` is the layer of BMXNet-v2, with the same forward
pass and the gradient dW = dW~ alpha.
"""

from typing import Any

from ..channels import CHANNELS, mean, repeated
from ..errors import UserError
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import FULL_PRECISION, TINY, Array, clip, zero_with_gradient
from ..signatures import hands_on


class ScaledBinaryConv2D(BinaryConv2D):
    """XNOR-Net's convolution: ``conv(sign(x), sign(w)) * alpha * K`` (Rastegari et al. 2016, arXiv:1603.05279, section 3.2).

    alpha is the mean |w| of each filter; K is the mean |x| over the channels, averaged over each window with zeros as padding. Both are
    constants for the gradient. Parameters, input and output as in `BinaryConv2D`, without dilation, scaling and offset.

    Parameters
    ----------
    input_scale : bool
        Whether to multiply by K, which improves the accuracy little (section 3.2). With ``bits=32`` K is never used.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius import ScaledBinaryConv2D
    >>> layer = ScaledBinaryConv2D(4, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(0.5))
    >>> float(layer(mx.nd.array([[[[2]], [[4]]]]))[0, 0].asscalar())  # 2 signs, alpha = 0.5, K = 3
    3.0
    """

    @hands_on(BinaryConv2D, without=['no_offset', 'apply_scaling', 'scaling_gradient'])
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


def with_paper_gradient(F: Any, weight: Array) -> Array:
    """Return `weight`. Gradient: dW = d sign(W) (1[|W| <= 1] + 1 / sum |W|), the sum over each filter.

    With d sign(W) = alpha dW~ this is dW~ (1 / n + alpha 1[|W| <= 1]).
    """
    norm = F.maximum(F.sum(F.abs(weight), axis=0, exclude=True, keepdims=True), TINY)
    inverse = 1 / F.broadcast_mul(norm, F.ones_like(weight))  # with other broadcasts shape inference fails
    return F.BlockGrad(weight) + zero_with_gradient(F, weight * F.BlockGrad((F.abs(weight) <= 1) + inverse))


def centred(F: Any, weight: Array) -> Array:
    """Return weight (O, I, H, W) minus its mean over the inputs I, clipped to [-1, 1]. The gradient also flows through the mean."""
    average = F.mean(weight, axis=1, keepdims=True)
    return clip(F, weight - F.broadcast_mul(average, F.ones_like(weight)), -1, 1)


class XNORWeights(QConv2D):
    """`QConv2D` with the gradient of XNOR-Net's weights and, if the attribute `center_weights` is set, with centred weights."""

    center_weights = False

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.binarization.stored_bits != FULL_PRECISION:
            weight = with_paper_gradient(F, centred(F, weight) if self.center_weights else weight)
        return super().hybrid_forward(F, x, weight, bias)


class XNORConv2D(ScaledBinaryConv2D):
    """XNOR-Net's convolution, with the gradient of the paper for the weights; see `bmx_melius.methods.xnor_net`.

    Parameters
    ----------
    center_weights : bool
        Binarize ``clip(W - mean of W over the input channels, -1, 1)`` instead of W. This is not in the paper but in the authors' code
        (github.com/allenai/XNOR-Net), which also stores the result after each update and multiplies the gradient by a constant.
    threshold : float or None
        As in `BinaryConv2D`, 1 by default.

    Other parameters, input and output as in `ScaledBinaryConv2D`.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.methods.xnor_net import XNORConv2D
    >>> layer = XNORConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([  2. ,  -0.6, -10. ], dtype=float32)
    """

    convolution = XNORWeights

    @hands_on(ScaledBinaryConv2D)
    def __init__(self, *geometry: Any, center_weights: bool = False, threshold: Any = 1.0, **arguments: Any) -> None:
        super().__init__(*geometry, threshold=threshold, **arguments)
        self.qconv.center_weights = center_weights
