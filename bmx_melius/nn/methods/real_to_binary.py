"""Real-to-Binary Net: Martinez et al. 2020, *Training Binary Neural Networks with Real-to-Binary Convolutions*, arXiv:2003.11535.

Forward, with a gate g per image and channel, computed from the real input before its sign (section 4.3, figure 1)::

    y = conv(sign(x), sign(w)) g / sqrt(n),    g = sigmoid(W2 relu(W1 mean(x)))

where n is the number of weights per filter, mean(x) is the average over the positions, W1 reduces the C input channels to C / 8 and W2
expands them to the channels of the output. Backward: dx = d sign(x) 1[|x| <= 1] plus the gradient through the gate, dw = d sign(w) 1[|w| <=
1].

The factor 1 / sqrt(n), which gives the sums of n signs about unit variance, is in neither the paper nor Larq Zoo, the published code, which
the argument ``factor=1`` follows. Without it the sums of the residual connections are so large that training begins with a loss of more
than a hundred. The full-precision counterpart, whose weights are small, has no such factor, and tanh(x) in place of sign(x).

The Strong Baseline of the same paper (section 4.1) has a learned number per channel in place of g: `BinaryConv2D` without offset and
`bmx_melius.nn.channelwise.Scale`, initially 1 / sqrt(n) for the same reason. Larq Zoo's version also scales rows and columns, and starts
with 1. Both networks are trained in two stages: first with binary activations and real weights (``weight_bits=32``), then with binary
weights. In Larq Zoo the real weights are used as they are; here each filter is divided by its mean magnitude, as `bmx_melius.BinaryConv2D`
says, so that the results of both stages have the same size.
"""

import math
from typing import Any, Optional

from ...errors import UserError
from ...signatures import hands_on
from ..channels import POSITIONS, mean, repeated
from ..gates import REDUCTION, gate_layers
from ..layers import BinaryConv2D


class GatedBinaryConv2D(BinaryConv2D):
    """Binary convolution whose channels are scaled by a gate computed from the input before its sign.

    The two matrices of the gate are 1x1 convolutions of a map with one position, without biases, as in Larq Zoo; the paper does not say
    whether there are biases.

    Parameters
    ----------
    factor : float or None
        Constant factor of the gate; None: 1 / sqrt(n), or 1 with ``bits=32``.

    Other parameters, input and output as in `BinaryConv2D`, without offset; `in_channels` is required.

    Raises
    ------
    UserError
        As `BinaryConv2D`, and for fewer than 8 input channels or a missing number.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
    >>> layer = GatedBinaryConv2D(16, kernel_size=3, padding=1, in_channels=8)
    >>> layer.initialize()
    >>> layer(mx.nd.ones((2, 8, 5, 5))).shape
    (2, 16, 5, 5)
    """

    @hands_on(BinaryConv2D, without=['no_offset'])
    def __init__(self, channels: int, *geometry: Any, in_channels: int = 0, factor: Optional[float] = None, **arguments: Any) -> None:
        super().__init__(channels, *geometry, in_channels=in_channels, no_offset=True, **arguments)
        if in_channels < REDUCTION:
            raise UserError(f'GatedBinaryConv2D needs in_channels, at least {REDUCTION}, for the size of its gate (got {in_channels})')
        usual = 1 if self.qconv.binarization.is_float else math.prod(self.qconv.weight.shape[1:]) ** -0.5
        self._factor = usual if factor is None else factor
        with self.name_scope():
            self.gate = gate_layers(channels, in_channels, use_bias=False)

    def hybrid_forward(self, F, x):
        y, gate = super().hybrid_forward(F, x), F.sigmoid(self.gate(mean(F, x, POSITIONS))) * self._factor
        return y * repeated(F, gate, y, POSITIONS)
