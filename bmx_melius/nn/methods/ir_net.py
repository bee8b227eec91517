"""IR-Net: Qin et al. 2020, *Forward and Backward Information Retention for Accurate Binary Neural Networks*, arXiv:1909.10788.

Layers as in the authors' code (github.com/htqin/IR-Net). Forward (Libra parameter binarization, section 3.2), for filters W with mean m and
deviation s, whose square is the sum of (W - m)^2 over n - 1::

    y = conv(sign(x), 2^e sign(V)),    V = (W - m) / s,    e = round(log2(mean |V|)) of the filter

Backward (error decay estimator, section 3.3): sign has the gradient of k tanh(t z), both for x and for V::

    d sign(z) = k t (1 - tanh(t z)^2),    k = max(1 / t, 1),    t = t0^(1 - p) 10^p

where p rises from 0 to 1 in the course of the training, epoch by epoch (`bmx_melius.nn.methods.schedules`): almost the identity at first,
almost the sign at the end. The gradient also flows through m and s, not through e. t0 is 0.001 in the code for ResNet-20, and 0.1 in that
for VGG-Small and in the paper.

Networks have the order convolution, BN, addition of the shortcut, hard tanh. sign(0) is +1, in the code 0; padding is -1, in the code 0.
"""

from typing import Any, Tuple

from ...signatures import hands_on
from ..channels import repeated_per_channel
from ..layers import BinaryConv2D, QActivation, QConv2D
from ..quantizers import FULL_PRECISION, TINY, Array, cancel_gradient, centred, deviation, sign, zero_with_gradient
from .schedules import SLOPE_AT_START, ScheduledNumber, decaying_surrogate, slope


class IRNetActivation(QActivation):
    """Sign with the gradient of a tanh that becomes steeper in the course of the training. Arguments as in `QActivation`."""

    facts_of_method = {'method': 'ir_net'}
    slope: ScheduledNumber  # of `IRNetConv2D`

    def quantized_in_parts(self, F: Any, x: Array) -> Tuple[Array, Array]:
        passed = cancel_gradient(F, x, self.threshold)
        surrogate = decaying_surrogate(F, passed, self.slope(passed))
        if self.encoding == 'bit':
            return F.BlockGrad(x >= 0), zero_with_gradient(F, surrogate * 0.5)
        return F.BlockGrad(sign(F, x)), zero_with_gradient(F, surrogate)


class IRNetWeights(QConv2D):
    """Convolution with the signs of centred filters, times powers of two. Arguments as in `QConv2D`, without offset and scaling."""

    facts_of_method = {'method': 'ir_net'}
    centres_weights = True
    slope: ScheduledNumber

    def hybrid_forward(self, F, x, weight, bias=None):
        if self.binarization.stored_bits == FULL_PRECISION:
            return super().hybrid_forward(F, x, weight, bias)
        weight = centred(F, weight)
        weight = weight / deviation(F, weight)
        magnitude = F.mean(F.abs(weight), axis=0, exclude=True)
        scale = self._per_channel(F, 2 ** F.round(F.log2(F.maximum(magnitude, TINY))))
        signs = F.BlockGrad(sign(F, weight)) + zero_with_gradient(F, decaying_surrogate(F, weight, self.slope(weight)))
        y = self._convolve(F, x, signs)
        y = y * repeated_per_channel(F, scale, y, gradient=False)
        return y if bias is None else F.broadcast_add(y, self._per_channel(F, bias))


class IRNetConv2D(BinaryConv2D):
    """Sign and convolution with binary weights of centred, standardized filters; see `bmx_melius.nn.methods.ir_net`.

    Parameters
    ----------
    slope_at_start : float
        t of the first epoch.
    threshold : float or None
        As in `BinaryConv2D`, None by default.
    weight_decay : bool
        As in `BinaryConv2D`, by default True as in the authors' code.

    Other parameters, input and output as in `BinaryConv2D`, without offset and scaling.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.ir_net import IRNetConv2D
    >>> layer = IRNetConv2D(1, kernel_size=1, in_channels=3)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([1, 2, 9]).reshape((1, 3, 1, 1)))  # centred -3, -2, 5
    >>> layer(mx.nd.array([[[[2]], [[-1]], [[3]]]])).asnumpy().ravel()
    array([1.], dtype=float32)
    """

    activation = IRNetActivation
    convolution = IRNetWeights

    @hands_on(BinaryConv2D, without=['no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over', 'weight_threshold', 'clip_weights'])
    def __init__(
        self,
        *geometry: Any,
        slope_at_start: float = SLOPE_AT_START,
        threshold: Any = None,
        weight_decay: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(*geometry, threshold=threshold, weight_decay=weight_decay, no_offset=True, **arguments)
        with self.name_scope():
            if self.qact.bits != FULL_PRECISION:
                self.qact.slope = slope(slope_at_start)
            if self.qconv.binarization.stored_bits != FULL_PRECISION:
                self.qconv.slope = slope(slope_at_start)
