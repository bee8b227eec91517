"""Quantization arguments of convolution and dense layers, and the arithmetic of their products.

A binary convolution with padding -1 is computed as a convolution with padding 0, which MXNet supports. With x the input, p the padding
value and w the quantized weights,

    conv(x padded with p, w) = conv(x - p padded with 0, w) + p sum(w)

holds for every p. For x in {-1, +1} and p = -1 the difference x - p is in {0, 2}: all sums are small integers, which float32 represents
exactly.
"""

import dataclasses
from typing import Any, Dict, Optional, Sequence, Tuple, Type, Union

from mxnet.gluon import HybridBlock, nn

from ..errors import UserError
from ..signatures import hands_on
from .channels import plain_layout, repeated_per_channel
from .marks import CONVOLUTION, CONVOLUTION_INPUT, mark
from .quantizers import (
    FULL_PRECISION,
    TINY,
    Array,
    check_quantizer,
    everywhere,
    filter_magnitude,
    quantize,
    rounds_to_sign,
    stored_bits,
    zero_with_gradient,
)

Size = Union[int, Sequence[int]]  # one value per spatial axis, or one value for all
ENCODINGS = ('sign', 'bit')
STRAIGHT_THROUGH = 'straight_through'
SCALING_GRADIENTS = (True, False, STRAIGHT_THROUGH)
FILTER, LAYER = 'filter', 'layer'
# How scales approximate real convolutions, by BMXNet-v2's names: not, by magnitudes of the weights, and by magnitudes of weights and
# inputs.
APPROXIMATIONS = ('', 'binet', 'xnor')


def quantizer_facts(method: str, bits: int) -> Dict[str, object]:
    """Return the facts about a quantizer for marks (`bmx_melius.nn.marks`)."""
    return {'method': method, 'bits': stored_bits(method, bits), 'sign': int(rounds_to_sign(method, bits))}


def check_encoding(encoding: str, method: str, bits: int, represents_signs: bool) -> None:
    """Raise `UserError` unless `encoding` is known; ``bit`` also requires that the values are signs, or replace signs in training."""
    if encoding not in ENCODINGS:
        raise UserError(f'unknown encoding {encoding!r}; known: {", ".join(ENCODINGS)}')
    if encoding == 'bit' and not represents_signs:
        raise UserError(f"encoding='bit' is for signs, not for bits={bits} of the quantizer {method!r}; use encoding='sign'")


def check_approximation(name: str) -> None:
    """Raise `UserError` unless `name` is one of `APPROXIMATIONS`."""
    if name not in APPROXIMATIONS:
        raise UserError(f'unknown approximation {name!r}; known: {", ".join(map(repr, APPROXIMATIONS))}')


@dataclasses.dataclass(frozen=True)
class Binarization:
    """Quantization arguments of a layer. `QConv2D` documents them.

    Raises
    ------
    UserError
        For unknown values and for combinations that are not supported.
    """

    bits: int = 1
    quantization: str = 'sign'
    pad_value: float = -1
    no_offset: bool = False
    apply_scaling: bool = False
    scaling_gradient: Union[bool, str] = True
    scale_over: str = FILTER
    encoding: str = 'sign'
    weight_threshold: Optional[float] = None
    clip_weights: bool = True
    weight_decay: Optional[bool] = None

    def __post_init__(self):
        check_quantizer(self.quantization, self.bits, self.weight_threshold)
        check_encoding(self.encoding, self.quantization, self.bits, self.bits == 1)
        if self.encoding == 'bit' and self.pad_value != -1:
            raise UserError(f"encoding='bit' pads with -1, not with pad_value={self.pad_value}; use encoding='sign'")
        if self.scaling_gradient not in SCALING_GRADIENTS:
            raise UserError(f'unknown scaling_gradient {self.scaling_gradient!r}; known: {", ".join(map(repr, SCALING_GRADIENTS))}')
        if self.scale_over not in (FILTER, LAYER):
            raise UserError(f'unknown scale_over {self.scale_over!r}; known: {FILTER}, {LAYER}')

    @classmethod
    def split(cls, arguments: Dict[str, Any]) -> Tuple['Binarization', Dict[str, Any]]:
        """Split the keyword arguments of a layer into a `Binarization` and a dict of the other arguments."""
        names = {field.name for field in dataclasses.fields(cls)}
        own = {name: value for name, value in arguments.items() if name in names}
        return cls(**own), {name: value for name, value in arguments.items() if name not in names}

    @property
    def is_float(self) -> bool:
        """Whether the layer is an ordinary Gluon layer, without quantization."""
        return self.bits == FULL_PRECISION

    @property
    def stored_bits(self) -> int:
        """Bits per stored weight; 32 if the quantizer does not round, as ``unit_magnitude``."""
        return stored_bits(self.quantization, self.bits)

    @property
    def wd_mult(self) -> float:
        """Factor of the weight decay of the latent weight: 1 or 0, see the argument `weight_decay` of `QConv2D`."""
        decays = self.weight_decay
        if decays is None:
            decays = self.apply_scaling or not rounds_to_sign(self.quantization, self.bits)
        return float(decays or self.stored_bits == FULL_PRECISION)

    @property
    def facts(self) -> Dict[str, object]:
        """Facts for the marks of a layer, a dict (`bmx_melius.nn.marks`)."""
        return {**quantizer_facts(self.quantization, self.bits), 'encoding': self.encoding}

    def quantized(self, F: Any, weight: Array) -> Array:
        """Return the quantized weight for the latent weight `weight`, of the same shape."""
        return quantize(F, weight, self.quantization, self.bits, self.weight_threshold)

    def estimated(self, F: Any, weight: Array) -> Array:
        """Return `weight`, with the gradient divided by alpha if the straight-through estimator is for alpha sign(weight).

        The result of the convolution is multiplied by alpha after it. The gradient of its weight, sign(weight), is thus alpha times the
        gradient of alpha sign(weight).
        """
        if not self.apply_scaling or self.scaling_gradient != STRAIGHT_THROUGH or self.stored_bits == FULL_PRECISION:
            return weight
        alpha = filter_magnitude(F, weight) if self.scale_over == FILTER else everywhere(F, F.mean(F.abs(weight), keepdims=True), weight)
        return F.BlockGrad(weight) + zero_with_gradient(F, weight * F.BlockGrad(1 / F.maximum(alpha, TINY)))

    def scale(self, F: Any, weight: Array) -> Array:
        """Return alpha, the mean magnitude of each filter or of the whole layer, of shape (filters,)."""
        of_filters = F.mean(F.abs(weight), axis=0, exclude=True)
        return of_filters if self.scale_over == FILTER else everywhere(F, F.mean(of_filters, keepdims=True), of_filters)

    @property
    def scale_has_gradient(self) -> bool:
        """Whether the gradient flows through alpha. For real weights alpha is the factor that was divided out, with its derivative."""
        return self.scaling_gradient is True or (self.scaling_gradient == STRAIGHT_THROUGH and self.stored_bits == FULL_PRECISION)

    def weight_and_constant(self, F: Any, quantized: Array, filters: int, shift: float, offset: bool) -> Tuple[Array, Optional[Array]]:
        """Return the weight that multiplies x - p and the constant added to each filter (identity in the module docstring).

        Parameters
        ----------
        quantized : NDArray or Symbol
            The quantized weight, of shape (filters, ...).
        filters : int
        shift : float
            The padding value p.
        offset : bool
            Whether the layer returns (h + n) / 2 instead of h, where h is the product and n the number of weights per filter.

        Returns
        -------
        weight : NDArray or Symbol
            The quantized weight, halved if `offset`, doubled for inputs with encoding ``bit``, which are (x - p) / 2.
        constant : NDArray or Symbol or None
            p sum(w), or (n + p sum(w)) / 2 if `offset`, of shape (filters,). None if it is 0.
        """
        constant = _constant_per_filter(F, quantized, filters, shift, offset) if offset or shift else None
        factor = (0.5 if offset else 1) * (2 if self.encoding == 'bit' else 1)
        return (quantized if factor == 1 else quantized * factor), constant


def _constant_per_filter(F, weight, filters, shift, offset):
    """Return shift sum(w), or (n + shift sum(w)) / 2 if `offset`, of the n weights w of each filter: (filters, ...) -> (filters,).

    Everything but the sum is computed with one number per filter: no other array of the size of the weight is kept for the backward pass.
    The sum is computed by `batch_dot`: `sum` over axes is several times slower in MXNet, and with `dot` shape inference, and with it
    deferred initialization, fails.
    """
    rows = F.reshape(weight, shape=(1, filters, -1))
    ones = F.ones_like(F.slice_axis(rows, axis=1, begin=0, end=1))
    constant = F.batch_dot(rows, ones, transpose_b=True) * shift
    if offset:
        constant = F.broadcast_add(constant, F.BlockGrad(F.batch_dot(ones, ones, transpose_b=True))) * 0.5
    return F.reshape(constant, shape=(-1,))


class QuantizedConvolution:
    """Common implementation of QConv1D, QConv2D and QConv3D; a mixin before the Gluon layer of the same dimension."""

    settings: Type[Binarization] = Binarization  # subclasses may replace these two
    facts_of_method: Dict[str, object] = {}  # for the mark, in place of the quantizer's facts
    centres_weights = False  # whether signs are those of weights minus a mean, so that they may differ from the signs of the weights

    @hands_on(Binarization, nn.Conv2D, HybridBlock)
    def __init__(
        self,
        channels: int,
        kernel_size: Size,
        strides: Size = 1,
        padding: Size = 0,
        dilation: Size = 1,
        groups: int = 1,
        *,
        in_channels: int = 0,
        use_bias: bool = False,
        layout: Optional[str] = None,
        **arguments: Any,
    ) -> None:
        self.binarization, gluon = self.settings.split(arguments)
        if layout not in (None, self.layout):
            raise UserError(f'{type(self).__name__} computes in layout {self.layout} only, not {layout}; transpose the input instead')
        geometry = (channels, kernel_size, strides, padding, dilation, groups, self.layout)
        super().__init__(*geometry, in_channels=in_channels, use_bias=use_bias, **gluon)
        self.weight.wd_mult = self.binarization.wd_mult
        self.padding = self._kwargs['pad']

    @property
    def facts(self) -> Dict[str, object]:
        """Facts for the mark of this layer, a dict (`bmx_melius.nn.marks`)."""
        return {**self.binarization.facts, **self.facts_of_method}

    def quantized_weight(self, F: Any, weight: Array) -> Array:
        """Return the quantized weight. Subclasses with other parameters, such as scales, take them as further arguments."""
        return self.binarization.quantized(F, weight)

    def hybrid_forward(self, F, x, weight, bias=None, **learned):
        settings = self.binarization
        if settings.is_float:
            return super().hybrid_forward(F, x, weight, bias)
        y = self._convolve(F, x, self.quantized_weight(F, settings.estimated(F, weight), **learned))
        if settings.apply_scaling:
            scale = self._per_channel(F, settings.scale(F, weight))
            y = y * repeated_per_channel(F, scale, y, gradient=settings.scale_has_gradient)
        if bias is not None:
            y = F.broadcast_add(y, self._per_channel(F, bias))
        return y if self.act is None else self.act(y)

    def _convolve(self, F, x, quantized, name='fwd'):
        """Return (h + n) / 2 or h, in the notation of `QConv2D`, for the quantized weight w."""
        settings, pad_value = self.binarization, self.binarization.pad_value
        offset = settings.bits == 1 and not settings.no_offset and not settings.apply_scaling
        scaled, constant = settings.weight_and_constant(F, quantized, self._channels, pad_value, offset)
        if settings.encoding == 'sign' and pad_value:
            with mark(CONVOLUTION_INPUT, pad_value=pad_value):
                x = x - pad_value
        grouped = self._kwargs['num_group'] > 1
        if grouped:
            x = plain_layout(F, x)
        arguments = dict(self._kwargs, pad=self.padding, no_bias=constant is None)
        with mark(CONVOLUTION, **self.facts, pad_value=pad_value, offset=int(offset)):
            y = F.Convolution(*[v for v in (x, scaled, constant) if v is not None], name=name, **arguments)
        return plain_layout(F, y) if grouped else y

    def _per_channel(self, F, vector):
        return F.reshape(vector, shape=(1, -1) + (1,) * len(self._kwargs['kernel']))

    def _alias(self):
        return 'qconv'
