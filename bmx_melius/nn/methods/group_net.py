"""GroupNet: Zhuang et al. 2019, *Structured Binary Neural Networks*, arXiv:1811.10413, with soft gates between groups.

A group, here a residual block of two convolutions, is replaced by K = 5 binary bases B_i of the same structure. With learned scales
lambda_j of the group before and one learned gate theta of this group, base i receives ::

    S_i' = g S_i + (1 - g) T,    S_i = B_i(...) of the group before,    T = sum_j lambda_j S_j,    g = sigmoid(theta)

The bases of the first group receive the map of the stem; the layer after the last group receives T. With g = 0 the groups are connected by
their sums only, with g = 1 the bases are K separate networks. Backward: the derivatives of these functions, the gradient of Bi-Real Net for
the signs of activations, and the straight-through estimator for the weights, ::

    Wb = a sign(W),    a = mean |W| of the layer,    dW = dWb

Networks are as in the authors' code (github.com/bohanzhuang/Group-Net-image-classification, model_ablation_1.py, the network with scales
and gates): each base of a block is sign, convolution, ReLU, BN and addition of its input, twice; padding is +1. Where the shape of a map
changes, the bases share the shortcut, a binary 1x1 convolution of the sign and BN, which each applies to its own input. The stem is a
convolution, pooling and BN. `get_model(..., quantized_shortcuts=False)` has instead a real-valued projection of T: this gives the
operations of the paper and of the MeliusNet paper, table 3.

Scales and gates are initially random numbers from 0 to 1. Networks are trained in two stages, the first one with real weights and tanh in
place of the signs. Unlike the clipped approximation of sign, tanh has a gradient everywhere, so large maps can become smaller: there is no
BN between additions and signs, whose gradient is 0 beyond 1.

Differences from the code: the first stage pads with 0 instead of +1; the stem's convolution has no bias, which the BN removes, as in
model.py; sign(0) is +1 instead of 0.
"""

from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock

from ..channels import element

BASES = 5

# Arguments of `bmx_melius.BinaryConv2D`, with the activation ``approx_sign`` and its threshold 1, in the first stage of training ``tanh``.
GROUP_NET_CONVOLUTION = {
    'apply_scaling': True,
    'scaling_gradient': 'straight_through',
    'scale_over': 'layer',
    'pad_value': 1,
    'weight_decay': False,
}


class FromZeroToOne(mx.init.Initializer):
    """Initializes a parameter with random numbers from 0 to 1, whatever its name is."""

    def _init_weight(self, name, array):
        mx.nd.random.uniform(0, 1, out=array)


class GroupSum(HybridBlock):
    """The sum T of the outputs of BASES bases.

    Inputs: BASES maps (N, C, H, W). Output: their weighted sum. The parameter ``scale`` has shape (BASES,), initially from 0 to 1.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.group_net import BASES, GroupSum
    >>> layer = GroupSum()
    >>> layer.initialize()
    >>> layer.scale.set_data(mx.nd.full(BASES, 1 / BASES))
    >>> float(layer(*(mx.nd.full((1, 1, 1, 1), number) for number in range(BASES))).asscalar())  # the mean of 0 to 4
    2.0
    """

    def __init__(self, **block: Any) -> None:
        super().__init__(**block)
        with self.name_scope():
            self.scale = self.params.get('scale', shape=(BASES,), init=FromZeroToOne())

    def hybrid_forward(self, F, *maps, scale):
        return F.add_n(*(F.broadcast_mul(x, element(F, scale, j)) for j, x in enumerate(maps)))


class SoftGate(HybridBlock):
    """The soft gate before a group: BASES maps (N, C, H, W) and their sum T -> BASES maps.

    The parameter ``gate`` is theta, of shape (1,), initially from 0 to 1.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.group_net import BASES, SoftGate
    >>> layer = SoftGate()
    >>> layer.initialize()
    >>> layer.gate.set_data(mx.nd.zeros(1))
    >>> maps = [mx.nd.full((1, 1, 1, 1), number) for number in range(BASES)]
    >>> [float(output.asscalar()) for output in layer(*maps, mx.nd.full((1, 1, 1, 1), 2))]
    [1.0, 1.5, 2.0, 2.5, 3.0]
    """

    def __init__(self, **block: Any) -> None:
        super().__init__(**block)
        with self.name_scope():
            self.gate = self.params.get('gate', shape=(1,), init=FromZeroToOne())

    def hybrid_forward(self, F, *maps, gate):
        *maps, total = maps
        # one product with T: MXNet's graph fails to add more than 8 gradients in some cases
        share = element(F, F.sigmoid(gate), 0)
        rest = F.broadcast_mul(total, 1 - share)
        return [F.broadcast_mul(x, share) + rest for x in maps]
