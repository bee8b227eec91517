"""Units of ResNets with the layers of other methods: convolution, normalization, activation and scales in the order of the method.

A unit is everything between two additions, or half of it if a shortcut goes around two units. `model_zoo.method_resnets` composes
networks of units and explains how to add a method.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping, Optional, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.nn.channelwise import PReLU, Scale, Shift
from bmx_melius.nn.layers import BinaryConv2D, QActivation
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION
from bmx_melius.nn.methods.group_net import GROUP_NET_CONVOLUTION
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
from bmx_melius.nn.quantizers import FULL_PRECISION

from .layer_options import NetworkOptions
from .padding import average_pool, padded


@dataclasses.dataclass(frozen=True)
class Options(NetworkOptions):
    """Arguments of `model_zoo.get_model` for all networks of this family; the stem is that of ResNet, as in the cited papers."""

    initial_layers: str = 'imagenet'


@dataclasses.dataclass(frozen=True)
class SizedOptions(Options):
    """Arguments of `model_zoo.get_model` for networks with parameters for each position of a map, which accept one size of images.

    Attributes
    ----------
    input_size : int
        Height and width of the images.
    """

    input_size: int = 224


@dataclasses.dataclass(frozen=True)
class ShortcutOptions(Options):
    """Arguments of `model_zoo.get_model` for networks with binary shortcuts: GroupNet and BNN.

    Attributes
    ----------
    quantized_shortcuts : bool
        Whether shortcuts that change the shape are binary, as in the authors' code, in GroupNet one for each base with shared weights;
        otherwise they are real-valued projections, in GroupNet one for all bases.
    """

    quantized_shortcuts: bool = True


@dataclasses.dataclass(frozen=True)
class GatedOptions(Options):
    """Arguments of `model_zoo.get_model` for Real-to-Binary.

    Attributes
    ----------
    stem_prelu : bool
        Whether the activation of the stem is a PReLU, as in the published weights of Larq Zoo, instead of a ReLU.
    """

    stem_prelu: bool = False


@dataclasses.dataclass(frozen=True)
class Place:
    """Place of a unit in the network.

    Attributes
    ----------
    channels, in_channels : int
        Channels of its output and of its input.
    stride : {1, 2}
    total_stride : int
        Size of the image / size of the output, rounded up.
    kernel_size : int
        3, or 1 in a shortcut.
    starts_stage : bool
        Whether it is the first unit with maps of its size.
    ends_block : bool
        Whether an addition follows.
    starts_network, ends_network : bool
        Whether it is the first unit of the network, or the last one.
    """

    channels: int
    in_channels: int
    stride: int
    total_stride: int
    kernel_size: int = 3
    starts_stage: bool = False
    ends_block: bool = True
    starts_network: bool = False
    ends_network: bool = False

    @property
    def changes_shape(self) -> bool:
        """Whether input and output differ in size or channels, so that a shortcut cannot be the identity."""
        return self.stride > 1 or self.in_channels != self.channels

    def initial_scale(self, options: Options) -> float:
        """Return the factor that gives the results of the convolution about unit variance at the start of training.

        Sums of n signs have the variance n. The weights of the full-precision counterpart are initialized accordingly.
        """
        return 1.0 if options.bits == FULL_PRECISION else (self.in_channels * self.kernel_size**2) ** -0.5

    def binary_conv(self, options: Options, layer: Type[BinaryConv2D] = BinaryConv2D, **arguments: Any) -> HybridBlock:
        """Return the convolution of a unit: `layer` with the geometry of this place, the options and `arguments`."""
        conv = functools.partial(options.binary_conv, self.channels, layer, self.kernel_size, strides=self.stride, **arguments)
        return padded(functools.partial(conv, in_channels=self.in_channels), self.kernel_size, self.stride, options.same_padding)


def chain(*layers: Optional[HybridBlock]) -> nn.HybridSequential:
    """Return the layers in sequence, without those that are None."""
    sequence = nn.HybridSequential(prefix='')
    sequence.add(*(layer for layer in layers if layer is not None))
    return sequence


# --- shortcuts where size or channels change ------------------------------------------------------------------------------------------


def pooled_shortcut(place: Place, options: Options) -> HybridBlock:
    """Return 2x2 average pooling, a float 1x1 convolution and a BN (Bi-Real Net, arXiv:1808.00278, section 3.2)."""
    return chain(_pool(place), nn.Conv2D(place.channels, 1, use_bias=False, in_channels=place.in_channels), options.norm())


def projected_shortcut(place: Place, options: Options) -> HybridBlock:
    """Return a float 1x1 convolution with the stride of the place, and a BN (ResNet, option B)."""
    return chain(nn.Conv2D(place.channels, 1, place.stride, use_bias=False, in_channels=place.in_channels), options.norm())


def averaged_projection(place: Place, options: Options) -> HybridBlock:
    """Return a float 1x1 convolution, a BN and 2x2 average pooling (CBCN)."""
    return chain(nn.Conv2D(place.channels, 1, use_bias=False, in_channels=place.in_channels), options.norm(), _pool(place))


def _pool(place):
    return average_pool(place.stride) if place.stride > 1 else None


def quantized_shortcut(convolution: Callable[[Place, Options], HybridBlock]) -> Callable[[Place, ShortcutOptions], HybridBlock]:
    """Return the function of the shortcut with this quantized 1x1 convolution and a BN, or a float one and a BN (`ShortcutOptions`)."""

    def shortcut(place, options):
        return chain(convolution(place, options), options.norm()) if options.quantized_shortcuts else projected_shortcut(place, options)

    return shortcut


# --- units ----------------------------------------------------------------------------------------------------------------------------


def hard_tanh(channels: int = 0) -> HybridBlock:
    """Return the layer clip(x, -1, 1)."""
    return QActivation(bits=FULL_PRECISION, method='clip')


def bnn_convolution(place: Place, options: Options) -> HybridBlock:
    """Return sign and convolution (`bmx_melius.nn.methods.bnn`). The gradient of sign includes that of the hard tanh before it.

    Weight decay applies to all weights, as in the authors' ResNet. With ``bits=32`` the hard tanh takes the place of sign.
    """
    method = 'clip' if options.bits == FULL_PRECISION else 'sign'
    return place.binary_conv(options, no_offset=True, weight_threshold=1, weight_decay=True, activation_method=method)


def bnn_unit(place: Place, options: Options) -> HybridBlock:
    """Return sign, convolution and, if no addition follows, BN."""
    return chain(bnn_convolution(place, options), None if place.ends_block else options.norm())


def norm_and_hard_tanh(place: Place, options: Options) -> Optional[HybridBlock]:
    """Return BN and hard tanh, which follow all additions of BNN but the last."""
    return None if place.ends_network else chain(options.norm(), hard_tanh())


def xnor_plus_unit(place: Place, options: SizedOptions) -> HybridBlock:
    """Return the unit of XNOR-Net with learned scales for channels, rows and columns (`bmx_melius.nn.methods.xnor_net_plus`)."""
    size = -(-options.input_size // place.total_stride)
    conv = place.binary_conv(options, no_offset=True, weight_threshold=1)
    return chain(options.norm(), conv, LearnedScale(place.channels, size, place.initial_scale(options)))


def strong_baseline_unit(place: Place, options: Options) -> HybridBlock:
    """Return BN, sign, convolution, learned scale and PReLU (`bmx_melius.nn.methods.real_to_binary`)."""
    conv = place.binary_conv(options, no_offset=True, weight_threshold=1)
    return chain(options.norm(), conv, Scale(place.channels, place.initial_scale(options)), PReLU(place.channels))


def real_to_binary_unit(place: Place, options: Options) -> HybridBlock:
    """Return BN, sign, convolution, gate and PReLU (`bmx_melius.nn.methods.real_to_binary`). With ``bits=32`` tanh replaces sign."""
    method = 'tanh' if options.bits == FULL_PRECISION else 'sign'
    conv = place.binary_conv(options, GatedBinaryConv2D, weight_threshold=1, activation_method=method)
    return chain(options.norm(), conv, PReLU(place.channels))


def reactnet_unit(place: Place, options: Options) -> HybridBlock:
    """Return RSign, convolution and BN (`bmx_melius.nn.methods.reactnet`); RPReLU follows the addition."""
    return chain(Shift(place.in_channels), place.binary_conv(options, **BIREAL_CONVOLUTION), options.norm())


def convolution_and_norm(layer: Type[BinaryConv2D]) -> Callable[[Place, Options], HybridBlock]:
    """Return the function of the unit with a convolution of the class `layer`, which begins with its activation, and a BN."""
    return lambda place, options: chain(place.binary_conv(options, layer), options.norm())


def norm_and_convolution(layer: Type[BinaryConv2D]) -> Callable[[Place, Options], HybridBlock]:
    """Return the function of the unit with a BN and a convolution of the class `layer`, which begins with its activation."""
    return lambda place, options: chain(options.norm(), place.binary_conv(options, layer))


PLAIN = {'scale': False, 'center': False}  # a normalization without learned numbers


def normalized_unit(layer: Type[BinaryConv2D], norm: Optional[Mapping[str, Any]] = None) -> Callable[[Place, Options], HybridBlock]:
    """Return the function of the unit of HWGQ and LQ-Net: BN, a convolution of the class `layer`, and a further BN before an addition.

    The first unit of a stage begins with the convolution: its input is normalized by the stem, or by `norm_and_relu` or a BN that the
    shortcut shares. `norm` contains arguments of the BN at the beginning.
    """

    def unit(place, options):
        before = None if place.starts_stage else options.norm(**(norm or {}))
        return chain(before, place.binary_conv(options, layer), options.norm() if place.ends_block else None)

    return unit


def syq_unit(place: Place, options: Options) -> HybridBlock:
    """Return BN and convolution with 2-bit activations and scaled binary weights (`bmx_melius.nn.methods.syq`)."""
    return chain(options.norm(), place.binary_conv(options, SYQConv2D, initial_scale=place.initial_scale(options)))


def group_net_convolution(place: Place, options: Options) -> HybridBlock:
    """Return sign and scaled convolution (`bmx_melius.nn.methods.group_net`). With ``bits=32`` tanh takes the place of sign."""
    method = 'tanh' if options.bits == FULL_PRECISION else 'approx_sign'
    return place.binary_conv(options, activation_method=method, **GROUP_NET_CONVOLUTION)


def group_net_unit(place: Place, options: Options) -> HybridBlock:
    """Return sign, convolution, ReLU and BN (`bmx_melius.nn.methods.group_net`)."""
    return chain(group_net_convolution(place, options), nn.Activation('relu'), options.norm())


def relu(place: Place, options: Options) -> HybridBlock:
    """Return the ReLU that follows an addition of ResNet."""
    return nn.Activation('relu')


def norm_and_relu(options: Options) -> HybridBlock:
    """Return BN and ReLU, which follow the last addition where units begin with a BN, and in LQ-Net that of each stage."""
    return chain(options.norm(), nn.Activation('relu'))
