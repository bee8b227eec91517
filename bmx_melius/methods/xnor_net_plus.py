"""XNOR-Net++: Bulat and Tzimiropoulos 2019, arXiv:1909.13863, section 3.

Forward, with learned vectors alpha over the channels, beta over the rows and gamma over the columns of the output ("case 4")::

    y_cij = conv(sign(x), sign(w))_cij alpha_c beta_i gamma_j

Backward: dx = d sign(x) 1[|x| <= 1], dw = d sign(w) 1[|w| <= 1], and the derivatives of the product for the three vectors, which replace
the scales that XNOR-Net computes from weights and inputs. The vectors tie a layer to one size of its output.

The layer is a `BinaryConv2D` without offset followed by `LearnedScale`. With only alpha ("case 1") it accepts all sizes.
"""

from typing import Any, Optional

import mxnet as mx
from mxnet.gluon import HybridBlock

from ..errors import UserError


class LearnedScale(HybridBlock):
    """Multiply a map by a learned number per channel and, if a size is given, by learned numbers per row and per column.

    Parameters
    ----------
    channels : int
    size : int or None
        Height and width of the map; None: scale the channels only.
    prefix, params
        As in every Gluon block.

    Input and output (N, channels, H, W), with H = W = `size` if it is given. The parameters ``alpha`` (1, channels, 1, 1), ``beta``
    (1, 1, H, 1) and ``gamma`` (1, 1, 1, W) are initialized with 1.

    Raises
    ------
    UserError
        For a map of another size.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.methods.xnor_net_plus import LearnedScale
    >>> layer = LearnedScale(2, size=3)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((1, 2, 3, 3))).shape
    (1, 2, 3, 3)
    """

    def __init__(self, channels: int, size: Optional[int] = None, prefix: Optional[str] = None, params: Any = None) -> None:
        super().__init__(prefix=prefix, params=params)
        self._size = size
        shapes = {'alpha': (1, channels, 1, 1)}
        if size is not None:
            shapes.update(beta=(1, 1, size, 1), gamma=(1, 1, 1, size))
        with self.name_scope():
            for name, shape in shapes.items():
                setattr(self, name, self.params.get(name, shape=shape, init='ones'))

    def forward(self, x, *args):
        if self._size is not None and isinstance(x, mx.nd.NDArray) and x.shape[2:] != (self._size,) * 2:
            raise UserError(
                f'{self.name} has learned scales for maps of {self._size} x {self._size}, not {" x ".join(map(str, x.shape[2:]))}'
            )
        return super().forward(x, *args)

    def hybrid_forward(self, F, x, alpha, beta=None, gamma=None):
        scale = alpha if beta is None else F.broadcast_mul(F.broadcast_mul(alpha, beta), gamma)
        return F.broadcast_mul(x, scale)
