"""Options of all networks of this zoo. The fields of these classes are keyword arguments of `get_model`."""

import dataclasses
from typing import Any, Mapping, Optional, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.binarization import check_approximation
from bmx_melius.nn.layers import BinaryConv2D
from bmx_melius.nn.methods.xnor_net import ScaledBinaryConv2D
from bmx_melius.nn.quantizers import CLIP_THRESHOLD, FULL_PRECISION


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Options of layers, and methods that create layers with them.

    Attributes
    ----------
    clip_threshold : float or None
        The gradient of a sign is cancelled where the magnitude of its input exceeds this (MeliusNet, section 3.3); None: never.
    bits : int
        1, or 32 for the full-precision counterpart of the network: the same layers without quantization.
    weight_bits : int or None
        32 for real weights with binary activations, the first stage of two-stage training, see `bmx_melius.BinaryConv2D`; None: as
        `bits`.
    norm_layer, norm_kwargs : HybridBlock class and dict
        Normalization layer and its arguments, as in GluonCV.
    conv_kwargs : dict
        Additional arguments of every `bmx_melius.BinaryConv2D`, such as ``pad_value=0`` and ``no_offset=True``.
    same_padding : bool
        Pad layers of stride 2 as TensorFlow does, see `model_zoo.padding`. H and W of the input must then be multiples of the total stride
        of the network, 32 for most networks.
    """

    clip_threshold: Optional[float] = CLIP_THRESHOLD
    bits: int = 1
    weight_bits: Optional[int] = None
    norm_layer: Type[HybridBlock] = nn.BatchNorm
    norm_kwargs: Optional[Mapping[str, Any]] = None
    conv_kwargs: Optional[Mapping[str, Any]] = None
    same_padding: bool = False

    def norm(self, defaults: Optional[Mapping[str, Any]] = None, **arguments: Any) -> HybridBlock:
        """Return a normalization layer.

        `norm_kwargs` override `defaults`, which only batch normalizations take, and `arguments` override both.
        """
        known = defaults if defaults and issubclass(self.norm_layer, nn.BatchNorm) else {}
        return self.norm_layer(**{**known, **(self.norm_kwargs or {}), **arguments})

    def binary_conv(self, channels: int, layer: Type[BinaryConv2D] = BinaryConv2D, kernel_size: int = 3, **arguments: Any) -> BinaryConv2D:
        """Return a binary convolution with `channels` filters, of the class `layer`.

        `arguments` contain padding, strides, dilation, prefix and the arguments of a method (`model_zoo.units`); `conv_kwargs`
        override them.
        """
        layer, arguments = self.layer_and_arguments(layer, {'prefix': '', **arguments, **(self.conv_kwargs or {})})
        return layer(channels, kernel_size, threshold=self.clip_threshold, bits=self.bits, weight_bits=self.weight_bits, **arguments)

    def layer_and_arguments(self, layer: Type[BinaryConv2D], arguments: Mapping[str, Any]) -> Tuple[Type[BinaryConv2D], Mapping[str, Any]]:
        """Return the class of a binary convolution and its arguments. Options that replace the quantizers of a network override this."""
        return layer, arguments


@dataclasses.dataclass(frozen=True)
class NetworkOptions(LayerOptions):
    """Options of every network of this zoo.

    Attributes
    ----------
    initial_layers : str
        Stem of the network: ``grouped_stem``, ``imagenet``, ``thumbnail``, ``alexnet``, ``alexnet_same``, ``mobilenet`` or ``quicknet``,
        see `model_zoo.stems`.
    init_features : int
        Channels after the stem; residual networks have this many in the first stage, and 2, 4 and 8 times as many in the others.
    """

    initial_layers: str = 'grouped_stem'
    init_features: int = 64


@dataclasses.dataclass(frozen=True)
class WidthOptions(LayerOptions):
    """Options of networks whose stem is a part of the network.

    Attributes
    ----------
    init_features : int
        Channels after the stem, of which those of the other layers are multiples.
    """

    init_features: int = 16


@dataclasses.dataclass(frozen=True)
class FloatOptions(WidthOptions):
    """Options of networks without binary layers: `bits` is 32."""

    bits: int = FULL_PRECISION

    def __post_init__(self):
        if self.bits != FULL_PRECISION or self.weight_bits not in (None, FULL_PRECISION):
            raise UserError(f'this network has no binary layers: bits and weight_bits must be 32, not {self.bits} and {self.weight_bits}')


# Arguments of `BinaryConv2D` that `approximation='xnor'` determines.
_SCALING = ('no_offset', 'apply_scaling', 'scaling_gradient')


@dataclasses.dataclass(frozen=True)
class QuantizerOptions(NetworkOptions):
    """Options of networks whose binary layers may be quantized in another way, as by the flags of BMXNet-v2.

    With these options `bits` may also be 2 to 16, the bits of the weights.

    Attributes
    ----------
    activation_bits : int or None
        Bits of the activations: 1 to 16, or 32 for real activations with quantized weights. None: as `bits`.
    activation_method : str or None
        Quantizer of the activations, see `bmx_melius.nn.quantizers`. None: the network's for 1 bit, ``round`` for 2 to 16 bits, and
        ``relu`` for 32 bits.
    weight_quantization : str or None
        Quantizer of the weights. None: the network's for 1 bit, ``dorefa`` for 2 to 16 bits.
    approximation : str
        ``binet``: weights scaled by the mean magnitude of their filter, with its gradient (Bi-Real Net); ``xnor``: results scaled by the
        magnitudes of weights and inputs (`bmx_melius.ScaledBinaryConv2D`); empty: the layers of the network.
    """

    activation_bits: Optional[int] = None
    activation_method: Optional[str] = None
    weight_quantization: Optional[str] = None
    approximation: str = ''

    @property
    def quantization(self) -> Optional[str]:
        """Quantizer of the weights, or None for the network's."""
        if self.weight_quantization is None and 1 < self.bits < FULL_PRECISION:
            return 'dorefa'
        return self.weight_quantization

    def layer_and_arguments(self, layer: Type[BinaryConv2D], arguments: Mapping[str, Any]) -> Tuple[Type[BinaryConv2D], Mapping[str, Any]]:
        check_approximation(self.approximation)
        if self.bits == FULL_PRECISION and self.activation_bits not in (None, FULL_PRECISION):
            raise UserError(
                f'activation_bits={self.activation_bits} with bits=32 is not supported; for real weights and binary activations use '
                'bits=1 and weight_bits=32'
            )
        bits, method = self.activation_bits or self.bits, self.activation_method
        if method is None and self.bits < FULL_PRECISION and bits > 1:
            method = 'relu' if bits == FULL_PRECISION else 'round'
        chosen = {'activation_bits': self.activation_bits, 'activation_method': method, 'quantization': self.quantization}
        arguments = {**arguments, **{name: value for name, value in chosen.items() if value is not None}}
        if self.approximation == 'xnor':
            return ScaledBinaryConv2D, {name: value for name, value in arguments.items() if name not in _SCALING}
        if self.approximation == 'binet':
            arguments.update(apply_scaling=True, scaling_gradient=True)
        return layer, arguments
