"""GroupNet: Zhuang et al. 2019, *Structured Binary Neural Networks*, arXiv:1811.10413, with soft gates between groups.

A group, here a residual block of two convolutions, is replaced by K = 5 binary bases B_i of the same structure. With learned scales
lambda_j and gates theta_i, the bases of the next group receive ::

    S_i' = g_i B_i(S_i) + (1 - g_i) T,    T = sum_j lambda_j B_j(S_j),    g_i = sigmoid(theta_i)

and a layer after the last group receives T. With g_i = 0 the groups are connected by their sums only, with g_i = 1 the bases are K separate
networks. Backward: the derivatives of these functions, and those of Bi-Real Net for sign (as in the authors' code).

Each base of a block is conv, ReLU, BN and addition of its input, twice, as in the authors' code (github.com/bohanzhuang,
Group-Net-image-classification). That code has neither scales nor gates, scales weights by their mean magnitude, which the BN undoes, and
pads with +1; here padding is -1. Where the shape of a map changes, the bases share one float projection in the shortcut, computed from T:
this gives the counts of the MeliusNet paper, table 3.
"""

from typing import Any

import mxnet as mx
from mxnet.gluon import HybridBlock

BASES = 5


class GroupSum(HybridBlock):
    """The sum T of the outputs of BASES bases.

    Inputs: BASES maps (N, C, H, W). Output: their weighted sum. The parameter ``scale`` has shape (BASES,), initially 1 / BASES.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.methods.group_net import BASES, GroupSum
    >>> layer = GroupSum()
    >>> layer.initialize()
    >>> float(layer(*(mx.nd.full((1, 1, 1, 1), number) for number in range(BASES))).asscalar())  # the mean of 0 to 4
    2.0
    """

    def __init__(self, **block: Any) -> None:
        super().__init__(**block)
        with self.name_scope():
            self.scale = self.params.get('scale', shape=(BASES,), init=mx.init.Constant(1 / BASES))

    def hybrid_forward(self, F, *maps, scale):
        return F.add_n(*(F.broadcast_mul(x, _element(F, scale, j)) for j, x in enumerate(maps)))


class SoftConnection(HybridBlock):
    """The soft gates between two groups: BASES maps (N, C, H, W) -> BASES maps.

    The parameter ``gate`` is theta, of shape (BASES,), initially 0.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.methods.group_net import BASES, SoftConnection
    >>> layer = SoftConnection()
    >>> layer.initialize()
    >>> [float(output.asscalar()) for output in layer(*(mx.nd.full((1, 1, 1, 1), number) for number in range(BASES)))]
    [1.0, 1.5, 2.0, 2.5, 3.0]
    """

    def __init__(self, **block: Any) -> None:
        super().__init__(**block)
        with self.name_scope():
            self.total = GroupSum()
            self.gate = self.params.get('gate', shape=(BASES,), init='zeros')

    def hybrid_forward(self, F, *maps, gate):
        total, gates = self.total(*maps), F.sigmoid(gate)
        # each map is used at most 8 times: MXNet's graph fails to add more than 8 gradients in some cases
        shares = [_element(F, gates, i) for i in range(BASES)]
        return [F.broadcast_mul(x, share) + F.broadcast_mul(total, 1 - share) for x, share in zip(maps, shares)]


def _element(F, vector, index):
    return F.reshape(F.slice_axis(vector, axis=0, begin=index, end=index + 1), shape=(1, 1, 1, 1))
