"""BNext: Guo et al. 2022, *Join the High Accuracy Club on ImageNet with A Binary Neural Network Ticket*, arXiv:2211.12933.

Layers as in the authors' code (github.com/hpi-xnor/BNext, src/bnext.py). Forward, with a learned share s of each channel and a gate g per
image and channel, computed from a mixture of the results of a binary convolution with its input::

    y = g(s x + (1 - s) c) c,    c = prelu(BN(conv(sign(x + shift), w))),    g(z) = sigmoid(W2 relu(W1 mean(z) + b1) + b2)
    w = clip(W / T, -1, 1) while T >= 1e-7, then sign(W)

where x has the size of c, W1 reduces the channels to an eighth, and T, the temperature of all weights, is multiplied by 0.9 after each of
512 epochs: weights become binary in the course of the training. Backward: dx = d sign(x) 1[|x| <= 1.5], dW = dw, then W <- clip(W - update,
-1.5, 1.5); s is clipped to [0, 1].

Here T is 0.9^(512 p) for a progress p of the training, so that shorter ones end with signs, too, and it is 0 until `begin_epoch` of
`bmx_melius.nn.methods.schedules` has set it: networks that are not trained have binary weights. ``bmx-melius train`` and `fit` evaluate
and save networks with the T of the end of the training, so that the network of every epoch is binary; the code evaluates with the T of
the epoch. Conversion refuses weights that are not signs. The code also clips before the first update; the inner float layers have 8 bits
in the paper's counts, and 32 here. sign(0) is +1, in the code 0; padding is -1, in the code 0.
"""

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import Block, HybridBlock

from ...signatures import hands_on
from ..channels import POSITIONS, mean, repeated
from ..channelwise import scaled
from ..fine_tuning import is_frozen
from ..gates import gate_layers
from ..layers import BinaryConv2D, QConv2D
from ..quantizers import FULL_PRECISION, Array, cancelled, clip, sign, zero_with_gradient
from .schedules import ScheduledNumber

LIMIT = 1.5  # of weights, and of inputs whose sign has a gradient
COOLING, EPOCHS = 0.9, 512  # factor of the temperature after each of the epochs of the authors' training
COLDEST = 1e-7  # temperature below which weights are signs


class BNextWeights(QConv2D):
    """Convolution with weights that become binary as their temperature falls. Arguments as in `QConv2D`."""

    temperature: ScheduledNumber  # of `BNextConv2D`

    def quantized_weight(self, F: Any, weight: Array) -> Array:
        if self.binarization.stored_bits == FULL_PRECISION:
            return super().quantized_weight(F, weight)
        temperature = self.temperature(weight)
        soft = clip(F, weight / F.maximum(temperature, COLDEST / 10), -1, 1)
        value = F.where(temperature < COLDEST, sign(F, weight), soft)
        return F.BlockGrad(value) + zero_with_gradient(F, cancelled(F, weight, self.binarization.weight_threshold))


class BNextConv2D(BinaryConv2D):
    """Sign and convolution with weights of a temperature; see `bmx_melius.nn.methods.bnext`.

    Parameters
    ----------
    temperature : float
        T until training sets it.
    threshold, weight_threshold : float or None
        As in `BinaryConv2D`, 1.5 by default.

    Other parameters, input and output as in `BinaryConv2D`, without offset and scaling.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.bnext import BNextConv2D
    >>> layer = BNextConv2D(1, kernel_size=1, in_channels=2, temperature=0.5)
    >>> layer.initialize()
    >>> layer.qconv.weight.set_data(mx.nd.array([0.25, 9]).reshape((1, 2, 1, 1)))
    >>> layer(mx.nd.ones((1, 2, 1, 1))).asnumpy().ravel()
    array([1.5], dtype=float32)
    """

    convolution = BNextWeights

    @hands_on(BinaryConv2D, without=['no_offset', 'apply_scaling', 'scaling_gradient', 'scale_over'])
    def __init__(
        self, *geometry: Any, temperature: float = 0.0, threshold: Any = LIMIT, weight_threshold: Any = LIMIT, **arguments: Any
    ) -> None:
        super().__init__(*geometry, threshold=threshold, weight_threshold=weight_threshold, no_offset=True, **arguments)
        if self.qconv.binarization.stored_bits != FULL_PRECISION:
            with self.name_scope():
                self.qconv.temperature = ScheduledNumber(lambda progress: COOLING ** (EPOCHS * progress), initial=temperature)


class Recoupling(HybridBlock):
    """Scale the channels of a map by a gate that is computed from a mixture of it and another one (information recoupling, section 3.3).

    Parameters
    ----------
    channels : int
        At least 8.
    prefix, params
        As in every Gluon block.

    Inputs: the map that is scaled, and the other one, both (N, channels, H, W); output of the same shape. The parameter ``share`` of shape
    (channels,) is the share of the other one, initially 0.5; `clip_shares` clips it to [0, 1].

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.bnext import Recoupling
    >>> layer = Recoupling(8)
    >>> layer.initialize(mx.init.Zero())
    >>> layer(mx.nd.ones((1, 8, 1, 1)), mx.nd.ones((1, 8, 1, 1)))[0, 0].asscalar()
    0.5
    """

    def __init__(self, channels: int, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        with self.name_scope():
            self.share = self.params.get('share', shape=(channels,), init=mx.init.Constant(0.5))
            self.zeros = self.params.get('zeros', shape=(channels,), init='zeros', grad_req='null', differentiable=False)
            self.gate = gate_layers(channels, channels)

    def hybrid_forward(self, F, x, other, share, zeros):
        mixture = x + scaled(F, other - x, share, zeros)
        return x * repeated(F, F.sigmoid(self.gate(mean(F, mixture, POSITIONS))), x, POSITIONS)


def clip_shares(net: Block) -> None:
    """Clip the shares of all `Recoupling` of a network to [0, 1], unless they are frozen. Call it after ``Trainer.step``."""
    net.apply(_clip_own)


def _clip_own(block):
    if isinstance(block, Recoupling) and not is_frozen(block.share):
        for share in block.share.list_data():
            share.clip(0, 1, out=share)
