"""PokeBNN: Zhang et al. 2022, *PokeBNN: A Binary Pursuit of Lightweight Accuracy*, arXiv:2112.00133.

Layers as in the authors' code (github.com/google/aqt, aqt/jax_legacy/jax/imagenet/pokebnn.py and the quantizers that it uses). Forward, for
filters W and the clipping bound B = 3 of the activations::

    y = conv(B / 2 sign(x), W~),    W~ = m / 2 sign(W),    m = max |W| of the filter

Backward, with m as a constant; e = 1/128 keeps numbers at the bound from the next level::

    dx = dq 1[|x| <= B (1 - e)] for q = B / 2 sign(x),    dW = dW~ 1[|W| <= m (1 - e)]

Weights of k > 1 bits are rounded to the 2^k - 1 levels from -m to m, with the gradient 1. DPReLU has learned numbers per channel, a and c
and a slope for each side (section 3.2)::

    dprelu(x) = slope (x - a) - c,    slope = positive where x >= a, otherwise negative

A gate is computed from the map that a layer reads, by weights of 4 bits::

    y g(x),    g = hard_sigmoid(W2 relu(W1 mean(x) + b1) + b2),    hard_sigmoid(z) = min(max(z + 3, 0), 6) / 6

where W1 reduces the channels to an eighth. `bmx_melius.nn.channelwise.Shift` adds -a and -c. At x = a the derivative is the negative slope,
in the code the positive one; padding is -1, in the code 0. From step 7500 on the code also rounds the inputs of layers with 4 and 8 bits,
to levels up to bounds that it has measured until then; here they are float in training, and ``bmx-melius convert --int8`` rounds them
after it.
"""

from typing import Any, Optional

from mxnet.gluon import HybridBlock, nn

from ...signatures import hands_on
from ..channels import POSITIONS, mean, repeated
from ..channelwise import Shift, TwoSlopes
from ..gates import gate_layers
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import FULL_PRECISION, Array, clip

BOUND = 3.0  # of activations
LEVELS = {'quantization': 'largest_levels', 'pad_value': 0, 'no_offset': True}  # arguments of layers with several bits


class PokeWeights(QConv2D):
    """Convolution whose weights are multiplied by the magnitude of the activations, of which it reads the signs. Arguments as in `QConv2D`.

    Real weights, of the first stage of training, are used as they are.
    """

    input_magnitude = BOUND / 2

    def quantized_weight(self, F: Any, weight: Array) -> Array:
        is_real = self.binarization.stored_bits == FULL_PRECISION
        return (weight if is_real else super().quantized_weight(F, weight)) * self.input_magnitude


class PokeConv2D(BinaryConv2D):
    """Sign and convolution with scaled binary weights; see `bmx_melius.nn.methods.pokebnn`.

    Parameters
    ----------
    threshold : float or None
        The bound B of the activations. None: 2, with a gradient everywhere.
    weight_decay : bool
        As in `BinaryConv2D`, by default True as in the authors' code.

    Other parameters, input and output as in `BinaryConv2D`, without offset and scaling.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.pokebnn import PokeConv2D
    >>> layer = PokeConv2D(1, kernel_size=1, in_channels=2)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([1, -4]).reshape((1, 2, 1, 1)))  # 2, -2
    >>> layer(mx.nd.array([[[[5]], [[-0.5]]]])).asnumpy().ravel()  # 1.5, -1.5
    array([6.], dtype=float32)
    """

    convolution = PokeWeights

    @hands_on(
        BinaryConv2D,
        without=['activation_method', 'quantization', 'no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over', 'clip_weights'],
    )
    def __init__(self, *geometry: Any, threshold: Any = BOUND, weight_decay: bool = True, **arguments: Any) -> None:
        super().__init__(
            *geometry,
            threshold=threshold,
            weight_decay=weight_decay,
            activation_method='bounded_sign',
            quantization='largest_sign',
            no_offset=True,
            **arguments,
        )
        self.qconv.input_magnitude = (threshold or 2) / 2


class DPReLU(nn.HybridSequential):
    """PReLU with a slope for each side, between two learned shifts of each channel.

    Parameters
    ----------
    channels : int
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W). The slopes are initially 0.25 for negative and 1 for positive numbers.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.pokebnn import DPReLU
    >>> layer = DPReLU(1)
    >>> layer.initialize()
    >>> layer(mx.nd.array([[[[-1, 0.5, 5]]]])).asnumpy().ravel()
    array([-0.25,  0.5 ,  5.  ], dtype=float32)
    """

    def __init__(self, channels: int, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.add(Shift(channels), TwoSlopes(channels), Shift(channels))


class PokeGate(HybridBlock):
    """Scale the channels of a map by a gate that is computed from another one, with weights of few bits.

    Parameters
    ----------
    channels, in_channels : int
        Of the map that is scaled, and of the other one, which has at least 8.
    bits : int
        Of the weights; 32 for real ones.
    prefix, params
        As in every Gluon block.

    Inputs: the map that is scaled, (N, channels, H, W), and the other one, (N, in_channels, H', W'); output of the shape of the former.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.pokebnn import PokeGate
    >>> layer = PokeGate(8, 8)
    >>> layer.initialize(mx.init.Zero())
    >>> layer(mx.nd.ones((1, 8, 1, 1)), mx.nd.ones((1, 8, 1, 1)))[0, 0].asscalar()
    0.5
    """

    def __init__(self, channels: int, in_channels: int, bits: int = 4, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.gate = gate_layers(channels, in_channels, QConv2D, use_bias=True, bits=bits, **LEVELS)

    def hybrid_forward(self, F, x, other):
        gate = clip(F, self.gate(mean(F, other, POSITIONS)) + 3, 0, 6) / 6
        return x * repeated(F, gate, x, POSITIONS)
