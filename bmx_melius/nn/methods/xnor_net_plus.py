"""XNOR-Net++: Bulat and Tzimiropoulos 2019, arXiv:1909.13863, section 3.

Forward, with learned vectors alpha over the channels, beta over the rows and gamma over the columns of the output ("case 4")::

    y_cij = conv(sign(x), sign(w))_cij alpha_c beta_i gamma_j

Backward: dx = d sign(x) 1[|x| <= 1], dw = d sign(w) 1[|w| <= 1], and the derivatives of the product for the three vectors, which replace
the scales that XNOR-Net computes from weights and inputs. The vectors tie a layer to one size of its output.

The layer is a `BinaryConv2D` without offset followed by `LearnedScale`. With only alpha ("case 1"), which accepts maps of all sizes, it is
followed by `bmx_melius.nn.channelwise.Scale`.
"""

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import HybridBlock

from ...errors import UserError
from ..channels import BATCH, repeated


class LearnedScale(HybridBlock):
    """Multiply a map by learned numbers per channel, per row and per column.

    Parameters
    ----------
    channels : int
    size : int
        Height and width of the map.
    initial : float
        Initial value of the numbers per channel. For sums of n signs, 1 / sqrt(n) gives about unit variance, as a normalization would; with
        1, the initial value in Larq Zoo, the sum of a residual connection consists of the largest layer almost exclusively.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W), with H = W = `size`. The parameters are ``alpha`` (1, channels, 1, 1), ``beta`` (1, 1, H, 1) and
    ``gamma`` (1, 1, 1, W), of which the latter two are initialized with 1.

    Raises
    ------
    UserError
        For a map of another size.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
    >>> layer = LearnedScale(2, size=3)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((1, 2, 3, 3))).shape
    (1, 2, 3, 3)
    """

    def __init__(self, channels: int, size: int, initial: float = 1.0, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self._size = size
        with self.name_scope():
            self.alpha = self.params.get('alpha', shape=(1, channels, 1, 1), init=mx.init.Constant(initial))
            self.beta = self.params.get('beta', shape=(1, 1, size, 1), init='ones')
            self.gamma = self.params.get('gamma', shape=(1, 1, 1, size), init='ones')

    def forward(self, x, *args):
        if isinstance(x, mx.nd.NDArray) and x.shape[2:] != (self._size,) * 2:
            raise UserError(
                f'{self.name} has learned scales for maps of {self._size} x {self._size}, not {" x ".join(map(str, x.shape[2:]))}'
            )
        return super().forward(x, *args)

    def hybrid_forward(self, F, x, alpha, beta, gamma):
        return x * repeated(F, F.broadcast_mul(F.broadcast_mul(alpha, beta), gamma), x, BATCH)
