"""How a layer of quantized weights computes its products: the arguments its quantization takes, and their arithmetic.

A binary convolution of signs with padding -1 is computed as a convolution of bits with padding 0. With x the input, p the padding value
and w the quantized weights,

    conv(x padded with p, w) = conv(x - p padded with 0, w) + p sum(w)

holds for every p, and for x in {-1, +1} and p = -1 the difference x - p is in {0, 2}: all sums are small integers, exact in float32.
"""

import dataclasses
from typing import Any, Dict, Optional, Tuple

from .errors import UserError
from .quantizers import FULL_PRECISION, Array, check_quantizer, quantize, rounds_to_sign, stored_bits

ENCODINGS = ('sign', 'bit')


def quantizer_facts(method: str, bits: int) -> Dict[str, object]:
    """Return what marks say about a quantizer (`bmx_melius.marks`)."""
    return {'method': method, 'bits': stored_bits(method, bits), 'sign': int(rounds_to_sign(method, bits))}


def check_encoding(encoding: str, method: str, bits: int, stands_for_signs: bool) -> None:
    """Raise UserError unless there is such an encoding, and it is one of values that are or stand for signs if it is ``bit``."""
    if encoding not in ENCODINGS:
        raise UserError(f'unknown encoding {encoding!r}; known: {", ".join(ENCODINGS)}')
    if encoding == 'bit' and not stands_for_signs:
        raise UserError(f"encoding='bit' is for signs, not for bits={bits} of the quantizer {method!r}; leave encoding='sign'")


@dataclasses.dataclass(frozen=True)
class Binarization:
    """The arguments of `QConv2D` and its kin that concern quantization; they are described there.

    Raises
    ------
    UserError
        For values that do not exist or do not fit each other.
    """

    bits: int = 1
    quantization: str = 'sign'
    pad_value: float = -1
    no_offset: bool = False
    apply_scaling: bool = False
    scaling_gradient: bool = True
    encoding: str = 'sign'

    def __post_init__(self):
        check_quantizer(self.quantization, self.bits)
        check_encoding(self.encoding, self.quantization, self.bits, self.bits == 1)
        if self.encoding == 'bit' and self.pad_value != -1:
            raise UserError(f"encoding='bit' pads with -1, not with pad_value={self.pad_value}; use encoding='sign'")

    @classmethod
    def split(cls, arguments: Dict[str, Any]) -> Tuple['Binarization', Dict[str, Any]]:
        """Return the binarization that some of the keyword arguments of a layer make, and the arguments that are left."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in arguments.items() if name in names}
        return cls(**own), {name: value for name, value in arguments.items() if name not in names}

    @property
    def is_float(self) -> bool:
        """Whether the layer is an ordinary one, without quantization."""
        return self.bits == FULL_PRECISION

    @property
    def stored_bits(self) -> int:
        """Bits that a weight takes: 32 where real ones take the place of signs."""
        return stored_bits(self.quantization, self.bits)

    @property
    def facts(self) -> Dict[str, object]:
        """What the marks of a layer say about it (`bmx_melius.marks`)."""
        return {**quantizer_facts(self.quantization, self.bits), 'encoding': self.encoding}

    def weight_and_constant(self, F: Any, weight: Array, filters: int, shift: float, offset: bool) -> Tuple[Array, Optional[Array]]:
        """Return the weight to multiply x - p with, and the constant of each filter to add, by the identity at the top of this file.

        Parameters
        ----------
        weight : NDArray or Symbol
            (filters, ...): not yet quantized.
        filters : int
        shift : float
            p, the number that stands for 0 in the input.
        offset : bool
            Whether the result is (h + n) / 2 with h the product and n the weights of each filter, instead of h.

        Returns
        -------
        The weight, halved with the offset, and doubled for an input of bits, which are half of x - p; and the constant p sum(w), or
        (n + p sum(w)) / 2 with the offset, of shape (filters,), None where it would be 0.
        """
        quantized = quantize(F, weight, self.quantization, self.bits)
        constant = None
        if offset:
            constant = _sum_per_filter(F, quantized * (shift / 2) + 0.5, filters)
        elif shift:
            constant = _sum_per_filter(F, quantized, filters) * shift
        factor = (0.5 if offset else 1) * (2 if self.encoding == 'bit' else 1)
        return (quantized if factor == 1 else quantized * factor), constant


def _sum_per_filter(F, weight, filters):
    """The sum of each filter's weights: (filters, ...) -> (filters,).

    A batched product, because a sum over axes is several times slower in MXNet and a plain product hides the shape that
    deferred initialization needs.
    """
    rows = F.reshape(weight, shape=(1, filters, -1))
    ones = F.ones_like(F.slice_axis(rows, axis=1, begin=0, end=1))
    return F.reshape(F.batch_dot(rows, ones, transpose_b=True), shape=(-1,))
