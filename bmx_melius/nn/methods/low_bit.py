"""Convolutions with activations and weights of different numbers of bits, the base of low-bit methods."""

from typing import Any, Optional

from ...signatures import hands_on
from ..layers import BinaryConv2D


class LowBitConv2D(BinaryConv2D):
    """`BinaryConv2D` for activations that are not negative: by default 2-bit activations, padding with 0, no threshold, no offset.

    Parameters
    ----------
    activation_method, activation_bits
        Quantizer of the activations and its bits; by default 2 bits that represent {0, 1/3, 2/3, 1} (DoReFa-Net, arXiv:1606.06160).

    Other parameters, input, output and errors as in `BinaryConv2D`. Put a BatchNorm before.

    Examples
    --------
    >>> import mxnet as mx
    >>> from bmx_melius.nn.methods.low_bit import LowBitConv2D
    >>> layer = LowBitConv2D(1, kernel_size=1)
    >>> layer.initialize(mx.init.Constant(-2))
    >>> layer(mx.nd.array([[[[-1, 0.3, 5]]]])).asnumpy().ravel() + 0
    array([ 0.        , -0.33333334, -1.        ], dtype=float32)
    """

    @hands_on(BinaryConv2D)
    def __init__(
        self,
        *geometry: Any,
        activation_method: str = 'round',
        activation_bits: Optional[int] = 2,
        threshold: Optional[float] = None,
        pad_value: float = 0,
        no_offset: bool = True,
        **arguments: Any,
    ) -> None:
        super().__init__(
            *geometry,
            activation_method=activation_method,
            activation_bits=activation_bits,
            threshold=threshold,
            pad_value=pad_value,
            no_offset=no_offset,
            **arguments,
        )
