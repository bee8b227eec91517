"""Options of all networks of this zoo. The fields of these classes are keyword arguments of `get_model`."""

import dataclasses
from typing import Any, Mapping, Optional, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.layers import BinaryConv2D
from bmx_melius.quantizers import CLIP_THRESHOLD


@dataclasses.dataclass(frozen=True)
class LayerOptions:
    """Options of layers, and methods that create layers with them.

    Attributes
    ----------
    clip_threshold : float or None
        The gradient of a sign is cancelled where the magnitude of its input exceeds this (MeliusNet, section 3.3); None: never.
    bits : int
        1, or 32 for the float twin of the network: the same layers without quantization.
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

    def norm(self, **arguments: Any) -> HybridBlock:
        """Return a normalization layer; `arguments` override `norm_kwargs`."""
        return self.norm_layer(**{**(self.norm_kwargs or {}), **arguments})

    def binary_conv(self, channels: int, **geometry: Any) -> BinaryConv2D:
        """Return a binary 3x3 convolution with `channels` filters; `geometry` contains padding, strides, dilation."""
        return BinaryConv2D(
            channels,
            kernel_size=3,
            threshold=self.clip_threshold,
            bits=self.bits,
            weight_bits=self.weight_bits,
            prefix='',
            **geometry,
            **(self.conv_kwargs or {}),
        )


@dataclasses.dataclass(frozen=True)
class NetworkOptions(LayerOptions):
    """Options of every network of this zoo.

    Attributes
    ----------
    initial_layers : str
        Stem of the network: ``grouped_stem``, ``imagenet`` or ``thumbnail``, see `model_zoo.stems`.
    init_features : int
        Channels after the stem; residual networks have this many in the first stage, and 2, 4 and 8 times as many in the others.
    """

    initial_layers: str = 'grouped_stem'
    init_features: int = 64
