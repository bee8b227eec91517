"""AdaBin: Tu et al. 2022, *AdaBin: Improving Binary Neural Networks with Adaptive Binary Sets*, arXiv:2208.08084.

Layers as in the authors' code (github.com/huawei-noah/Efficient-Computing, BinaryNetworks/AdaBin). Activations and weights have two values
each, which need not be opposites. Forward (section 3), for learned numbers alpha and beta of a layer, and filters W with mean b and
deviation a, whose square is the mean of (W - b)^2::

    y = conv(alpha (sign(z) + beta), a sign(V) + b),    z = (x - beta) / alpha,    V = (W - b) / a
    Maxout(y) = p relu(y) - q relu(-y)

with learned numbers p and q of each channel. Backward: the derivatives of these functions, with (2 - 2|z|) 1[|z| <= 1] for the sign of an
activation, and for the sign of a weight the gradient of IR-Net, which becomes steeper in the course of the training
(`bmx_melius.nn.methods.ir_net`).

The convolution is computed from signs, as ``alpha (conv(sign(z), w) + beta sum(w))`` with w = a sign(V) + b. A program computes it as a
binary convolution and sums of the windows (`bmx_melius.deployment.convert.rules.low_bit`).

sign(0) is +1, in the code 0. The padding is the lower one of the two values of the activations, in the code 0: ``pad_value=0``. Then a
program computes a float convolution.
"""

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import HybridBlock

from ...signatures import hands_on
from ..channels import repeated_per_channel
from ..channelwise import affine, scaled
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import FULL_PRECISION, Array, centred, deviation, sign, zero_with_gradient
from .schedules import SLOPE_AT_START, ScheduledNumber, decaying_surrogate, slope


class Maxout(HybridBlock):
    """Scale positive and negative numbers of each channel: ``positive relu(x) - negative relu(-x)``.

    Parameters
    ----------
    channels : int
        0: inferred from the first input.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W) or (N, channels). The parameters ``positive`` and ``negative``, of shape (channels,), are initially
    1 and 0.25.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.adabin import Maxout
    >>> layer = Maxout(1)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[[[-1, 0.5, 5]]]])).asnumpy().ravel()
    array([-0.25,  0.5 ,  5.  ], dtype=float32)
    """

    def __init__(self, channels: int = 0, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        shared = {'shape': (channels,), 'allow_deferred_init': True}
        with self.name_scope():
            self.negative = self.params.get('negative', init=mx.init.Constant(0.25), **shared)
            self.positive = self.params.get('positive', init='ones', **shared)
            self.zeros = self.params.get('zeros', init='zeros', grad_req='null', differentiable=False, **shared)

    def hybrid_forward(self, F, x, negative, positive, zeros):
        rest = scaled(F, F.minimum(x, 0), negative, zeros)
        return scaled(F, F.Activation(x, act_type='relu'), positive, zeros) + rest


class TwoValues(HybridBlock):
    """The distance alpha and the centre beta of the two values of the activations of a layer, parameters of shape (1,).

    Input: a map x, (N, in_channels, H, W). Output: a list of (x - beta) / alpha, alpha and beta.
    """

    def __init__(self, in_channels: int = 0, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.alpha = self.params.get('alpha', shape=(1,), init='ones')
            self.beta = self.params.get('beta', shape=(1,), init='zeros')
            fixed = {'grad_req': 'null', 'differentiable': False, 'allow_deferred_init': True}
            self.zeros = self.params.get('zeros', shape=(in_channels,), init='zeros', **fixed)

    def hybrid_forward(self, F, x, alpha, beta, zeros):
        scale, shift = (F.broadcast_mul(number, F.ones_like(zeros)) for number in (1 / alpha, -beta / alpha))
        return [affine(F, x, scale, shift, zeros), alpha, beta]


class AdaBinWeights(QConv2D):
    """Convolution of two values with two values per filter: ``alpha conv(x + beta, w)``. Arguments as in `QConv2D`.

    Input: signs (N, C, H, W), encoded as the binarization says, alpha and beta, of shape (1,).
    """

    facts_of_method = {'method': 'adabin', 'sign': 0}
    centres_weights = True
    slope: ScheduledNumber  # of `AdaBinConv2D`

    def quantized_weight(self, F: Any, weight: Array) -> Array:
        if self.binarization.stored_bits == FULL_PRECISION:
            return super().quantized_weight(F, weight)
        rest = centred(F, weight)
        spread = deviation(F, rest, unbiased=False)
        normalized = rest / spread
        signs = F.BlockGrad(sign(F, normalized)) + zero_with_gradient(F, decaying_surrogate(F, normalized, self.slope(normalized)))
        return signs * spread + (weight - rest)

    def hybrid_forward(self, F, x, *values, weight):
        if not values:
            return super().hybrid_forward(F, x, weight)
        alpha, beta = values
        quantized = self.quantized_weight(F, weight)
        sums = F.sum(quantized, axis=0, exclude=True)
        if self.binarization.pad_value == 0:
            y = self._convolve(F, F.broadcast_add(x, F.reshape(beta, shape=(1, 1, 1, 1))), quantized)
        else:
            y = self._convolve(F, x, quantized)
            y = y + repeated_per_channel(F, self._per_channel(F, F.broadcast_mul(sums, beta)), y)
        return y * repeated_per_channel(F, self._per_channel(F, F.broadcast_mul(F.ones_like(sums), alpha)), y)


class AdaBinConv2D(BinaryConv2D):
    """Convolution of activations and weights with two learned values each; see `bmx_melius.nn.methods.adabin`.

    Parameters
    ----------
    pad_value : float
        -1: the lower one of the two values of the activations; 0: as in the authors' code.
    slope_at_start : float
        As in `bmx_melius.nn.methods.ir_net.IRNetConv2D`.
    threshold : float or None
        As in `BinaryConv2D`, 1 by default.
    weight_decay : bool
        As in `BinaryConv2D`, by default True as in the authors' code.

    Other parameters, input and output as in `BinaryConv2D`, without offset, scaling and bias.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.adabin import AdaBinConv2D
    >>> layer = AdaBinConv2D(1, kernel_size=1, in_channels=2)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([1, 5]).reshape((1, 2, 1, 1)))  # mean 3, deviation 2
    >>> layer(mx.nd.array([[[[2]], [[-1]]]])).asnumpy().ravel()
    array([-4.], dtype=float32)
    """

    convolution = AdaBinWeights

    @hands_on(
        BinaryConv2D,
        without=['no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over', 'weight_threshold', 'clip_weights', 'use_bias'],
    )
    def __init__(
        self,
        *geometry: Any,
        in_channels: int = 0,
        slope_at_start: float = SLOPE_AT_START,
        threshold: Any = 1.0,
        activation_method: str = 'approx_sign',
        weight_decay: bool = True,
        **arguments: Any,
    ) -> None:
        arguments.update(threshold=threshold, activation_method=activation_method, weight_decay=weight_decay)
        super().__init__(*geometry, in_channels=in_channels, no_offset=True, **arguments)
        with self.name_scope():
            if self.qconv.binarization.stored_bits != FULL_PRECISION:
                self.qconv.slope = slope(slope_at_start)
            self.values = None if self.qconv.binarization.is_float else TwoValues(in_channels)

    def hybrid_forward(self, F, x):
        if self.values is None:
            return super().hybrid_forward(F, x)
        normalized, alpha, beta = self.values(x)
        return self.qconv(self.qact(normalized), alpha, beta)
