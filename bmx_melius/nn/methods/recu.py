"""ReCU: Xu et al. 2021, *ReCU: Reviving the Dead Weights in Binary Neural Networks*, arXiv:2103.12369.

Layers as in the authors' code (github.com/z-hXu/ReCU). Forward, for filters W with mean m and variance v (the sum of (W - m)^2 over n - 1),
and a learned number alpha per filter::

    y = alpha conv(sign(x), sign(V)),    V = 2 sqrt(2) (W - m) / sqrt(v + 1e-5)

Backward (rectified clamp unit, equations 10 and 16)::

    dV = d sign(V) 1[|V| <= Q],    Q = -mean |V| of the layer log(2 - 2 tau)
    dz = d sign(z) (2 - 2|z|) 1[|z| <= 1],    z = x / sqrt(variance of x over the image + 1e-5)

and the derivatives of V and z. Q, which is a constant for the gradient, is the quantile tau of a Laplace distribution: few weights beyond
it are "dead". tau rises from 0.85 to 0.99 with the progress p of the training, epoch by epoch (section 4.3)::

    tau = 0.85 + 0.14 (exp(p) - 1) / (exp(1) - 1)

The code divides x by its deviation in training only, which does not change its sign, and applies the clamp to the value of the weights,
whose sign it does not change either. Networks have the order of IR-Net's (`bmx_melius.nn.methods.ir_net`). sign(0) is +1, in the code 0;
padding is -1, in the code 0.
"""

import math
from typing import Any, Tuple

import mxnet as mx

from ...signatures import hands_on
from ..channelwise import Scale
from ..layers import BinaryConv2D, QActivation, QConv2D
from ..quantizers import FINITE, FULL_PRECISION, Array, centred, clip, everywhere, sign, triangular, zero_with_gradient
from .schedules import ScheduledNumber

TAU_AT_START, TAU_AT_END = 0.85, 0.99
EPSILON = 1e-5  # added to variances


def tau(start: float) -> ScheduledNumber:
    """Return the quantile beyond which weights have no gradient, which rises from `start` to 0.99."""
    return ScheduledNumber(lambda progress: start + (TAU_AT_END - start) * math.expm1(progress) / math.expm1(1))


class ReCUActivation(QActivation):
    """Sign with the gradient of Bi-Real Net for the input divided by its deviation over the image. Arguments as in `QActivation`."""

    facts_of_method = {'method': 'recu'}

    def quantized_in_parts(self, F: Any, x: Array) -> Tuple[Array, Array]:
        finite = clip(F, x, -FINITE, FINITE)
        rows = F.reshape(finite, shape=(0, -1))
        mean = F.broadcast_like(F.mean(rows, axis=1, keepdims=True), rows)
        squares = F.sum(F.square(rows - mean), axis=1, keepdims=True)
        number = F.sum(F.ones_like(rows), axis=1, keepdims=True)
        deviation = F.broadcast_like(F.sqrt(squares / F.maximum(number - 1, 1) + EPSILON), rows)
        normalized = F.reshape_like(rows / deviation, x)
        is_bit = self.encoding == 'bit'
        value = F.BlockGrad(x >= 0) if is_bit else F.BlockGrad(sign(F, x))
        return value, zero_with_gradient(F, triangular(F, normalized, self.threshold, 0.5 if is_bit else 1))


class ReCUWeights(QConv2D):
    """Convolution with the signs of centred filters, whose gradient is cancelled beyond a quantile. Arguments as in `QConv2D`."""

    facts_of_method = {'method': 'recu'}
    centres_weights = True
    tau: ScheduledNumber  # of `ReCUConv2D`

    def quantized_weight(self, F: Any, weight: Array) -> Array:
        if self.binarization.stored_bits == FULL_PRECISION:
            return super().quantized_weight(F, weight)
        weight = centred(F, weight)
        number = F.sum(F.ones_like(weight), axis=0, exclude=True, keepdims=True)
        variance = F.sum(F.square(weight), axis=0, exclude=True, keepdims=True) / F.maximum(number - 1, 1)
        weight = weight / everywhere(F, F.sqrt(variance + EPSILON), weight) * math.sqrt(8)
        magnitude = everywhere(F, F.mean(F.abs(weight), keepdims=True), weight)
        quantile = -magnitude * F.log(2 - 2 * self.tau(weight))
        surrogate = weight * F.BlockGrad(F.abs(weight) <= quantile)
        return F.BlockGrad(sign(F, weight)) + zero_with_gradient(F, surrogate)


class ReCUConv2D(BinaryConv2D):
    """Sign, convolution with binary weights, and a learned scale of each filter; see `bmx_melius.nn.methods.recu`.

    Parameters
    ----------
    tau_at_start : float
        tau of the first epoch.
    threshold : float or None
        As in `BinaryConv2D`, for the input divided by its deviation; 1 by default.
    weight_decay : bool
        As in `BinaryConv2D`, by default True as in the authors' code.

    Other parameters, input and output as in `BinaryConv2D`, without offset, scaling and bias. The scales are initially uniform in [0, 1).

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.recu import ReCUConv2D
    >>> layer = ReCUConv2D(1, kernel_size=1, in_channels=3)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([1, 2, 9]).reshape((1, 3, 1, 1)))  # centred -3, -2, 5
    >>> layer.alpha.scale.set_data(mx.nd.array([0.5]))
    >>> layer(mx.nd.array([[[[2]], [[-1]], [[3]]]])).asnumpy().ravel()
    array([0.5], dtype=float32)
    """

    activation = ReCUActivation
    convolution = ReCUWeights

    @hands_on(
        BinaryConv2D,
        without=['no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over', 'weight_threshold', 'clip_weights', 'use_bias'],
    )
    def __init__(
        self,
        channels: int,
        *geometry: Any,
        tau_at_start: float = TAU_AT_START,
        threshold: Any = 1.0,
        weight_decay: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(channels, *geometry, threshold=threshold, weight_decay=weight_decay, no_offset=True, **arguments)
        with self.name_scope():
            if self.qconv.binarization.stored_bits != FULL_PRECISION:
                self.qconv.tau = tau(tau_at_start)
            self.alpha = None
            if not self.qconv.binarization.is_float:
                self.alpha = Scale(channels)
                self.alpha.scale.init = UnitUniform()

    def hybrid_forward(self, F, x):
        y = super().hybrid_forward(F, x)
        return self.alpha(y) if self.alpha else y


@mx.init.register
class UnitUniform(mx.init.Initializer):
    """Numbers that are uniform in [0, 1), whatever the name of the parameter is."""

    def _init_weight(self, _, arr):
        arr[:] = mx.nd.random.uniform(0, 1, shape=arr.shape, dtype=arr.dtype, ctx=arr.context)
