"""TTQ: Zhu et al. 2017, *Trained Ternary Quantization*, arXiv:1612.01064, sections 3 and 4.

Forward, with two learned scales P and N of a layer and float activations::

    y = conv(relu(x), w),    w = P where W > d,  -N where W < -d,  otherwise 0,    d = 0.05 max |W|

Backward, with dw the gradient of w::

    dP = sum of dw where W > d,    dN = -(sum of dw where W < -d)
    dW = P dw where W > d,  N dw where W < -d,  otherwise dw

The paper prints dN (equation 7) without the minus sign of the derivative of -N, which its authors' code has. The scales begin with 1, as in
that code. A ternary weight takes 2 bits.
"""

from typing import Any

from ...signatures import hands_on
from ..layers import QConv2D
from ..quantizers import FULL_PRECISION
from .low_bit import LowBitConv2D


class TTQWeights(QConv2D):
    """Convolution with ternary weights and the parameters ``positive`` and ``negative``, of shape (1, 1, 1, 1)."""

    facts_of_method = {'method': 'ttq'}

    def __init__(self, *geometry: Any, **arguments: Any) -> None:
        super().__init__(*geometry, **arguments)
        if not self.binarization.is_float:
            with self.name_scope():
                self.positive = self.params.get('positive', shape=(1, 1, 1, 1), init='ones')
                self.negative = self.params.get('negative', shape=(1, 1, 1, 1), init='ones')

    def quantized_weight(self, F, weight, positive, negative):
        ternary = super().quantized_weight(F, weight)
        codes = F.BlockGrad(ternary)
        scale = F.broadcast_mul(positive, codes > 0) + F.broadcast_mul(negative, codes < 0) + (codes == 0)
        return ternary * scale


class TTQConv2D(LowBitConv2D):
    """ReLU and convolution with ternary weights, which have learned scales. Parameters, input and output as in `BinaryConv2D`.

    `bits` is 2, or 32 for its full-precision counterpart.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.ttq import TTQConv2D
    >>> layer = TTQConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 0. , -0.3, -5. ], dtype=float32)
    """

    convolution = TTQWeights

    @hands_on(LowBitConv2D, without=['activation_method', 'activation_bits', 'quantization'])
    def __init__(self, *geometry: Any, bits: int = 2, **arguments: Any) -> None:
        super().__init__(
            *geometry, bits=bits, activation_method='relu', activation_bits=FULL_PRECISION, quantization='ternary', **arguments
        )
