"""ABC-Net: Lin et al. 2017, *Towards Accurate Binary Convolutional Neural Network*, arXiv:1711.11294, section 3, with 5 x 5 bases.

Weights W are approximated by binary bases B_m with shifts u_m evenly spaced in [-1, 1], and scales by least squares over the layer::

    B_m = sign(W - mean(W) + u_m std(W)),    alpha = argmin |W - sum_m alpha_m B_m|^2

Activations are approximated by binary bases A_n with learned shifts v_n and scales beta_n::

    A_n = sign(h(x + v_n) - 1/2),    h(z) = clip(z, 0, 1)
    y = sum_n beta_n sum_m alpha_m conv(A_n, B_m)

Backward, with straight-through estimators, and with alpha, the mean and the deviation as constants::

    dW = sum_m dB_m,    dx = sum_n dA_n 1[0 <= x + v_n <= 1],    dv_n = sum of dA_n 1[0 <= x + v_n <= 1]

and the derivative for beta. sign(0) is +1. Initially beta is 1, and the thresholds 1/2 - v_n of x are evenly spaced in [-1, 1] as the
shifts of the weights.

The binary filters of all bases are one convolution with five times as many filters, which is applied to each of the five activations.
"""

from typing import Any, Optional

import mxnet as mx
import numpy as np

from ...errors import UserError
from ...signatures import hands_on
from ..channels import element
from ..layers import BinaryConv2D, QActivation, QConv2D
from ..quantizers import FULL_PRECISION, Array, everywhere, rounds_to_sign, sign

BASES = 5  # of the weights, and of the activations
SHIFTS = np.linspace(-1, 1, BASES)
RIDGE = 1e-5  # of the least-squares problem, relative to its diagonal: few weights can give equal bases


def shifted(F: Any, weight: Array) -> Array:
    """Return the arrays W - mean(W) + u std(W), stacked along the filters; mean and deviation are constants for the gradient."""
    mean = everywhere(F, F.mean(weight, keepdims=True), weight)
    deviation = everywhere(F, F.sqrt(F.mean(F.square(weight - mean), keepdims=True)), weight)
    return F.concat(*(weight + F.BlockGrad(deviation * float(shift) - mean) for shift in SHIFTS), dim=0)


def scales(F: Any, weight: Array) -> Array:
    """Return alpha, of shape (1, BASES, 1), without a gradient. For equal bases, the sum of their scales is optimal."""
    bases = F.reshape(sign(F, shifted(F, weight)), shape=(1, BASES, -1))
    gram = F.batch_dot(bases, bases, transpose_b=True)
    products = F.batch_dot(bases, F.reshape(weight, shape=(1, 1, -1)), transpose_b=True)
    gram, products = (F.broadcast_div(sums, F.max(gram, axis=(1, 2), keepdims=True)) for sums in (gram, products))  # by number of weights
    ridge = F.diag(F.reshape(F.max(gram, axis=2), shape=(BASES,))) * RIDGE  # the diagonal of gram; linalg.makediag fails for unknown shapes
    inverse = F.linalg.inverse(F.broadcast_add(gram, F.reshape(ridge, shape=(1, BASES, BASES))))
    return F.BlockGrad(F.batch_dot(inverse, products))


class ABCActivations(QActivation):
    """BASES signs of a map, each after the addition of an element of the parameter ``shift`` minus 1/2.

    Arguments as in `QActivation`; the threshold of the method is 1/2. Input (N, C, H, W); output a list of BASES maps of this shape.
    """

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        with self.name_scope():
            self.shift = self.params.get('shift', shape=(BASES,), init=mx.init.Constant(mx.nd.array(0.5 + SHIFTS)))

    def hybrid_forward(self, F, x, shift):
        return [super(ABCActivations, self).hybrid_forward(F, F.broadcast_add(x, element(F, shift - 0.5, n))) for n in range(BASES)]


class ABCWeights(QConv2D):
    """Weighted sum of convolutions of binary activations with binary weights that are computed from one latent weight.

    Inputs: BASES maps (N, C, H, W). Output (N, channels, H', W'). The weight has `channels` filters, and the parameter ``beta`` the shape
    (BASES,). Arguments as in `QConv2D`, without scaling and groups. Weight decay applies to the latent weight, of which the scales alpha
    keep the magnitude.
    """

    facts_of_method = {'method': 'abc_net', 'stored_bits': BASES}

    def __init__(self, channels: int, *geometry: Any, **arguments: Any) -> None:
        super().__init__(channels, *geometry, **{'weight_decay': True, **arguments})
        if self._kwargs['num_group'] > 1:
            raise UserError('ABC-Net has no grouped convolutions: use groups=1')
        if not self.binarization.is_float:
            self._channels = self._kwargs['num_filter'] = BASES * channels  # after the shape of the weight has been determined
        with self.name_scope():
            self.beta = self.params.get('beta', shape=(BASES,), init='ones')

    def quantized_weight(self, F, weight):
        return super().quantized_weight(F, shifted(F, weight))

    def hybrid_forward(self, F, *activations, weight, beta):
        betas = [element(F, beta, n) for n in range(BASES)]
        if self.binarization.is_float:
            return super().hybrid_forward(F, F.add_n(*map(F.broadcast_mul, activations, betas)), weight)
        bases = self.quantized_weight(F, weight)
        maps = [self._convolve(F, x, bases, name=f'fwd{n}') for n, x in enumerate(activations)]
        filters = self._channels // BASES
        alpha = F.reshape(F.repeat(scales(F, weight), repeats=filters, axis=1), shape=(1, -1, 1, 1))
        y = F.broadcast_mul(F.add_n(*map(F.broadcast_mul, maps, betas)), alpha)
        return F.add_n(*(F.slice_axis(y, axis=1, begin=m * filters, end=(m + 1) * filters) for m in range(BASES)))


class ABCConv2D(BinaryConv2D):
    """Convolution with 5 binary bases of the weights and 5 of the activations. Put a BatchNorm before.

    Parameters, input and output as in `BinaryConv2D`, without groups, offset and scaling.

    Raises
    ------
    UserError
        As `BinaryConv2D`, and for groups, for real weights with binary activations, and for quantizers that do not round to the sign.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.abc_net import ABCConv2D
    >>> layer = ABCConv2D(8, kernel_size=3, padding=1)
    >>> layer.initialize()
    >>> layer(mx.nd.random.normal(shape=(1, 4, 5, 5))).shape
    (1, 8, 5, 5)
    """

    activation = ABCActivations
    convolution = ABCWeights

    @hands_on(BinaryConv2D, without=['no_offset', 'apply_scaling', 'scaling_gradient', 'use_bias', 'activation', 'bias_initializer'])
    def __init__(self, *geometry: Any, threshold: Optional[float] = 0.5, weight_bits: Optional[int] = None, **arguments: Any) -> None:
        super().__init__(*geometry, threshold=threshold, no_offset=True, **arguments)
        for method, bits in ((self.qact.method, self.qact.bits), (self.qconv.binarization.quantization, self.qconv.binarization.bits)):
            if bits != FULL_PRECISION and not rounds_to_sign(method, bits):
                raise UserError(f'the bases of ABC-Net are signs: the quantizer {method!r} with {bits} bits is not supported')
        if weight_bits not in (None, self.qact.bits):
            raise UserError(f'ABC-Net approximates real weights by binary weights: weight_bits={weight_bits} is not supported')

    def hybrid_forward(self, F, x):
        return self.qconv(*self.qact(x))
