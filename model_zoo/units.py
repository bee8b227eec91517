"""Parts of residual networks: units, shortcuts and stems, each a function that returns the layers of a method in its order.

A unit is everything between two additions, or half of it if a shortcut goes around two units: convolution, normalization, activation and
scales. `model_zoo.residual` composes networks of these parts and explains how to add one.
"""

import dataclasses
import functools
from typing import Any, Callable, Mapping, Optional, Sequence, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import GroupedConv2D, concat
from bmx_melius.nn.channelwise import PReLU, Scale, Shift
from bmx_melius.nn.layers import BinaryConv2D, QActivation, QConv2D
from bmx_melius.nn.methods.adabin import Maxout
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION
from bmx_melius.nn.methods.bnext import BNextConv2D, Recoupling
from bmx_melius.nn.methods.group_net import GROUP_NET_CONVOLUTION
from bmx_melius.nn.methods.reactnet import RPReLU
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
from bmx_melius.nn.quantizers import FULL_PRECISION

from .layer_options import FloatOptions, LayerOptions, NetworkOptions, QuantizerOptions, WidthOptions
from .padding import average_pool, padded, padded_for
from .stems import End, add_stem, norm_activation_pool

# --- options --------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ResNetOptions(QuantizerOptions):
    """Arguments of `model_zoo.get_model` for ResNetE, Bi-Real Net and the residual networks of BMXNet-v2, with the defaults of ResNetE.

    Attributes
    ----------
    input_norm : bool
        Normalize the image by a BatchNorm before the stem.
    last_gamma : bool
        Initialize the gamma of the normalization in each block with 0, so that a block is initially its shortcut, as in GluonCV (Goyal et
        al. 2017, arXiv:1706.02677, section 5.1).
    binary_shortcut : bool
        Whether the 1x1 convolutions in shortcuts are binary instead of full-precision, the default of BMXNet-v2.
    strided_shortcut : bool
        Whether the 1x1 convolutions in shortcuts have stride 2 instead of an average pooling before them, the default of BMXNet-v2.
    shortcut_groups : int
        Groups of the full-precision convolutions in shortcuts.
    slices : {1, 2, 4, 8}
        Each convolution computes this fraction of the channels of its stage and is added to these only; there are as many times more
        convolutions. Blocks that halve the map compute all channels.
    """

    input_norm: bool = True
    last_gamma: bool = False
    binary_shortcut: bool = False
    strided_shortcut: bool = False
    shortcut_groups: int = 1
    slices: int = 1

    def __post_init__(self):
        if self.slices not in (1, 2, 4, 8):
            raise UserError(f'slices must be 1, 2, 4 or 8, not {self.slices}')
        if self.shortcut_groups < 1 or (self.shortcut_groups > 1 and self.binary_shortcut):
            raise UserError(
                f'shortcut_groups={self.shortcut_groups}: must be positive, and 1 with binary_shortcut, whose convolutions have no groups'
            )


@dataclasses.dataclass(frozen=True)
class MethodOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for ResNets of other methods; with ResNet's stem, as in the cited papers."""

    initial_layers: str = 'imagenet'


# Of networks for images of CIFAR.
CIFAR_OPTIONS = MethodOptions(initial_layers='thumbnail', init_features=16)


@dataclasses.dataclass(frozen=True)
class SizedOptions(MethodOptions):
    """Arguments of `model_zoo.get_model` for networks with parameters for each position of a map, which accept one size of images.

    Attributes
    ----------
    input_size : int
        Height and width of the images.
    """

    input_size: int = 224


@dataclasses.dataclass(frozen=True)
class ShortcutOptions(MethodOptions):
    """Arguments of `model_zoo.get_model` for networks with binary shortcuts: GroupNet and BNN.

    Attributes
    ----------
    quantized_shortcuts : bool
        Whether shortcuts that change the shape are binary, as in the authors' code, in GroupNet one for each base with shared weights;
        otherwise they are real-valued projections, in GroupNet one for all bases.
    """

    quantized_shortcuts: bool = True


@dataclasses.dataclass(frozen=True)
class GatedOptions(MethodOptions):
    """Arguments of `model_zoo.get_model` for Real-to-Binary.

    Attributes
    ----------
    stem_prelu : bool
        Whether the activation of the stem is a PReLU, as in the published weights of Larq Zoo, instead of a ReLU.
    """

    stem_prelu: bool = False


# --- places ---------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class UnitPlace:
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
    slices, index : int
        Number of slices of the channels of its output, and the slice that it computes and is added to (`ResNetOptions`).
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
    slices: int = 1
    index: int = 0
    starts_stage: bool = False
    ends_block: bool = True
    starts_network: bool = False
    ends_network: bool = False

    @property
    def changes_shape(self) -> bool:
        """Whether input and output differ in size or channels, so that a shortcut cannot be the identity."""
        return self.stride > 1 or self.in_channels != self.channels

    def initial_scale(self, options: NetworkOptions) -> float:
        """Return the factor that gives the results of the convolution about unit variance at the start of training.

        Sums of n signs have the variance n. The weights of the full-precision counterpart are initialized accordingly.
        """
        return 1.0 if options.bits == FULL_PRECISION else (self.in_channels * self.kernel_size**2) ** -0.5

    def binary_conv(self, options: NetworkOptions, layer: Type[BinaryConv2D] = BinaryConv2D, **arguments: Any) -> HybridBlock:
        """Return the convolution of a unit: `layer` with the geometry of this place, the options and `arguments`."""
        arguments = {'strides': self.stride, 'in_channels': self.in_channels, **arguments}
        conv = functools.partial(options.binary_conv, self.channels // self.slices, layer, self.kernel_size, **arguments)
        return padded(conv, self.kernel_size, self.stride, options.same_padding)


def chain(*layers: Optional[HybridBlock]) -> nn.HybridSequential:
    """Return the layers in sequence; None stands for no layer."""
    sequence = nn.HybridSequential(prefix='')
    sequence.add(*(layer for layer in layers if layer is not None))
    return sequence


Part = Callable[[UnitPlace, Any], Optional[HybridBlock]]  # of a place and options: layers, or None


# --- shortcuts where size or channels change ------------------------------------------------------------------------------------------


def pooled_shortcut(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return 2x2 average pooling, a float 1x1 convolution and a BN (Bi-Real Net, arXiv:1808.00278, section 3.2)."""
    return chain(_pool(place), nn.Conv2D(place.channels, 1, use_bias=False, in_channels=place.in_channels), options.norm())


def projected_shortcut(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return a float 1x1 convolution with the stride of the place, and a BN (ResNet, option B)."""
    return chain(nn.Conv2D(place.channels, 1, place.stride, use_bias=False, in_channels=place.in_channels), options.norm())


def averaged_projection(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return a float 1x1 convolution, a BN and 2x2 average pooling (CBCN)."""
    return chain(nn.Conv2D(place.channels, 1, use_bias=False, in_channels=place.in_channels), options.norm(), _pool(place))


class PaddedChannels(HybridBlock):
    """Append `before` and `after` channels of zeros to a map: (N, C, H, W) -> (N, before + C + after, H, W), with at most C each."""

    def __init__(self, before: int, after: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._before, self._after = before, after

    def hybrid_forward(self, F, x):
        first, last = (F.slice_axis(x, axis=1, begin=0, end=number) * 0 for number in (self._before, self._after))
        return concat(F, first, x, last)


def biased_projection(place: UnitPlace, options: FloatOptions) -> HybridBlock:
    """Return a float 1x1 convolution with the stride of the place, and a bias in place of a BN (ResNet-8 of MLPerf Tiny)."""
    return nn.Conv2D(place.channels, 1, place.stride, in_channels=place.in_channels)


def _padded_to(place):
    before = (place.channels - place.in_channels) // 2
    return PaddedChannels(before, place.channels - place.in_channels - before)


def sampled_shortcut(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return the choice of every second row and column, and channels of zeros on both sides (ResNet, option A, as for CIFAR)."""
    return chain(nn.MaxPool2D(1, place.stride) if place.stride > 1 else None, _padded_to(place))


def averaged_shortcut(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return 2x2 average pooling, and channels of zeros on both sides (ReCU, for CIFAR)."""
    return chain(_pool(place), _padded_to(place))


def _pool(place):
    return average_pool(place.stride) if place.stride > 1 else None


def quantized_shortcut(convolution: Part) -> Part:
    """Return the function of the shortcut with this quantized 1x1 convolution and a BN, or a float one and a BN (`ShortcutOptions`)."""

    def shortcut(place, options):
        return chain(convolution(place, options), options.norm()) if options.quantized_shortcuts else projected_shortcut(place, options)

    return shortcut


def resnet_shortcut(place: UnitPlace, options: ResNetOptions, last_norm: bool = True, **convolution: Any) -> HybridBlock:
    """Return 2x2 average pooling, a 1x1 convolution and, with `last_norm`, a BN, as the options choose.

    `convolution` has arguments of a binary one.
    """
    pool = None if options.strided_shortcut else _pool(place)
    place = dataclasses.replace(place, stride=1) if pool else place
    if options.binary_shortcut:
        conv = place.binary_conv(options, prefix='sc_', **convolution)
    else:
        layer = functools.partial(GroupedConv2D, groups=options.shortcut_groups) if options.shortcut_groups > 1 else nn.Conv2D
        conv = layer(place.channels, kernel_size=1, strides=place.stride, use_bias=False, prefix='sc_conv_')
    return chain(pool, conv, options.norm() if last_norm else None)


def binet_shortcut(place: UnitPlace, options: ResNetOptions) -> HybridBlock:
    """Return 2x2 average pooling and a 1x1 convolution with binary weights whose input is not binary (BiNet of BMXNet-v2)."""
    quantizer = {'bits': options.bits, 'quantization': options.quantization or 'sign'}
    return chain(_pool(place), QConv2D(place.channels, 1, in_channels=place.in_channels, prefix='sc_qconv0_', **quantizer))


# --- units ----------------------------------------------------------------------------------------------------------------------------


def resnet_unit(place: UnitPlace, options: ResNetOptions, norm_first: bool = False, **convolution: Any) -> nn.HybridSequential:
    """Return convolution and BN; with `norm_first`, if a BN begins the block, without a BN before the addition.

    The number of input channels is inferred in the first forward pass, as in BMXNet-v2: the weights of a seed depend on it.
    """
    conv = place.binary_conv(options, in_channels=0, **convolution)
    if not place.ends_block:
        return chain(conv, options.norm())
    return chain(conv, None if norm_first else options.norm(gamma_initializer='zeros' if options.last_gamma else 'ones'))


def hard_tanh(channels: int = 0) -> HybridBlock:
    """Return the layer clip(x, -1, 1)."""
    return QActivation(bits=FULL_PRECISION, method='clip')


def bnn_convolution(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return sign and convolution (`bmx_melius.nn.methods.bnn`). The gradient of sign includes the hard tanh before it.

    Weight decay applies to all weights, as in the authors' ResNet. With ``bits=32`` the hard tanh takes the place of sign.
    """
    method = 'clip' if options.bits == FULL_PRECISION else 'sign'
    return place.binary_conv(options, no_offset=True, weight_threshold=1, weight_decay=True, activation_method=method)


def bnn_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return sign, convolution and, if no addition follows, BN."""
    return chain(bnn_convolution(place, options), None if place.ends_block else options.norm())


def xnor_plus_unit(place: UnitPlace, options: SizedOptions) -> HybridBlock:
    """Return the unit of XNOR-Net with learned scales for channels, rows and columns (`bmx_melius.nn.methods.xnor_net_plus`)."""
    size = -(-options.input_size // place.total_stride)
    conv = place.binary_conv(options, no_offset=True, weight_threshold=1)
    return chain(options.norm(), conv, LearnedScale(place.channels, size, place.initial_scale(options)))


def strong_baseline_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return BN, sign, convolution, learned scale and PReLU (`bmx_melius.nn.methods.real_to_binary`)."""
    conv = place.binary_conv(options, no_offset=True, weight_threshold=1)
    return chain(options.norm(), conv, Scale(place.channels, place.initial_scale(options)), PReLU(place.channels))


def real_to_binary_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return BN, sign, convolution, gate and PReLU (`bmx_melius.nn.methods.real_to_binary`). With ``bits=32`` tanh replaces sign."""
    method = 'tanh' if options.bits == FULL_PRECISION else 'sign'
    conv = place.binary_conv(options, GatedBinaryConv2D, weight_threshold=1, activation_method=method)
    return chain(options.norm(), conv, PReLU(place.channels))


def reactnet_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return RSign, convolution and BN (`bmx_melius.nn.methods.reactnet`); RPReLU follows the addition."""
    return chain(Shift(place.in_channels), place.binary_conv(options, **BIREAL_CONVOLUTION), options.norm())


def convolution_and_norm(layer: Type[BinaryConv2D], **arguments: Any) -> Part:
    """Return the function of the unit with a convolution of the class `layer`, which begins with its activation, and a BN.

    `arguments` are those of the layer.
    """
    return lambda place, options: chain(place.binary_conv(options, layer, **arguments), options.norm())


def norm_and_convolution(layer: Type[BinaryConv2D]) -> Part:
    """Return the function of the unit with a BN and a convolution of the class `layer`, which begins with its activation."""
    return lambda place, options: chain(options.norm(), place.binary_conv(options, layer))


def float_convolution(
    channels: int,
    options: WidthOptions,
    kernel_size: Tuple[int, int],
    strides: Tuple[int, int] = (1, 1),
    size: Sequence[int] = (),
    **layer: Any,
) -> HybridBlock:
    """Return a float convolution and a BN, as in MLPerf Tiny; `layer` are further arguments of the convolution, such as `groups`.

    Zeros are added as in TensorFlow for maps of `size`; without it for those whose height and width are multiples of the strides.
    """
    conv = functools.partial(nn.Conv2D, channels, kernel_size, strides, **layer)
    return chain(padded_for(size or strides, conv, kernel_size, strides), options.norm())


def float_unit(place: UnitPlace, options: FloatOptions) -> HybridBlock:
    """Return a float convolution with a bias and a BN, and a ReLU if no addition follows (ResNet-8 of MLPerf Tiny)."""
    conv = float_convolution(place.channels, options, (3, 3), (place.stride, place.stride), in_channels=place.in_channels)
    return chain(conv, None if place.ends_block else nn.Activation('relu'))


PLAIN = {'scale': False, 'center': False}  # a normalization without learned numbers


def normalized_unit(layer: Type[BinaryConv2D], norm: Optional[Mapping[str, Any]] = None) -> Part:
    """Return the function of the unit of HWGQ and LQ-Net: BN, a convolution of the class `layer`, and a further BN before an addition.

    The first unit of a stage begins with the convolution: its input is normalized by the stem, or by `norm_and_relu` or a BN that the
    shortcut shares. `norm` contains arguments of the BN at the beginning.
    """

    def unit(place, options):
        before = None if place.starts_stage else options.norm(**(norm or {}))
        return chain(before, place.binary_conv(options, layer), options.norm() if place.ends_block else None)

    return unit


def syq_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return BN and convolution with 2-bit activations and scaled binary weights (`bmx_melius.nn.methods.syq`)."""
    return chain(options.norm(), place.binary_conv(options, SYQConv2D, initial_scale=place.initial_scale(options)))


def group_net_convolution(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return sign and scaled convolution (`bmx_melius.nn.methods.group_net`). With ``bits=32`` tanh takes the place of sign."""
    method = 'tanh' if options.bits == FULL_PRECISION else 'approx_sign'
    return place.binary_conv(options, activation_method=method, **GROUP_NET_CONVOLUTION)


def group_net_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return sign, convolution, ReLU and BN (`bmx_melius.nn.methods.group_net`)."""
    return chain(group_net_convolution(place, options), nn.Activation('relu'), options.norm())


class BNextLayer(HybridBlock):
    """Shift, sign, convolution, BN, PReLU, gate and BN, with a shortcut (`bmx_melius.nn.methods.bnext`).

    Parameters
    ----------
    place : UnitPlace
    options : NetworkOptions
    multiplies : bool
        Whether the shortcut begins with a PReLU, and is also multiplied with the result before the second BN (element-wise attention,
        section 3.3).
    shortcut : HybridBlock or None
        Layers of the shortcut, whose result the gate then reads, too, in place of the input. None: average pooling, if the map is halved.

    Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(
        self,
        place: UnitPlace,
        options: NetworkOptions,
        multiplies: bool = False,
        shortcut: Optional[HybridBlock] = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self._multiplies, self._gate_reads_shortcut = multiplies, shortcut is not None
        with self.name_scope():
            self.conv = chain(Shift(place.in_channels), place.binary_conv(options, BNextConv2D), options.norm(), PReLU(place.channels))
            self.recoupling = Recoupling(place.channels)
            self.norm = options.norm()
            self.activation = PReLU(place.in_channels) if multiplies else None
            self.shortcut = shortcut or _pool(place)

    def hybrid_forward(self, F, x):
        shortcut = self.activation(x) if self._multiplies else x
        shortcut = self.shortcut(shortcut) if self.shortcut else shortcut
        before = shortcut
        if self._multiplies and not self._gate_reads_shortcut:
            before = self.shortcut(x) if self.shortcut else x
        y = self.recoupling(self.conv(x), before)
        return self.norm(y * shortcut if self._multiplies else y) + shortcut


def bnext_unit(place: UnitPlace, options: MethodOptions) -> HybridBlock:
    """Return the layer of BNext-18, whose first one of two multiplies by its shortcut. The gates of these read the shortcuts."""
    if place.ends_block:
        return BNextLayer(place, options)
    around = dataclasses.replace(place, kernel_size=1)
    return BNextLayer(place, options, True, pooled_shortcut(around, options) if place.changes_shape else chain())


def without_shortcut(places: Sequence[UnitPlace], row: Any, options: MethodOptions, **kwargs: Any) -> HybridBlock:
    """Return the units of a block, which contain their shortcuts."""
    return chain(*(row.unit(place, options) for place in places))


# --- other layers: before blocks, after additions, at the end of a network ------------------------------------------------------------


def norm(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return a BN."""
    return options.norm()


def relu(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return a ReLU."""
    return nn.Activation('relu')


def tanh_after_sum(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return hard tanh."""
    return hard_tanh()


def maxout_after_sum(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return the Maxout of AdaBin."""
    return Maxout(place.channels)


def rprelu(place: UnitPlace, options: LayerOptions) -> HybridBlock:
    """Return the RPReLU of ReActNet."""
    return RPReLU(place.channels)


def norm_and_relu(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return BN and ReLU."""
    return chain(options.norm(), nn.Activation('relu'))


def norm_and_hard_tanh(place: UnitPlace, options: NetworkOptions) -> HybridBlock:
    """Return BN and hard tanh."""
    return chain(options.norm(), hard_tanh())


def where_shape_changes(part: Part) -> Part:
    """Return the function of a part that only blocks have whose output has another shape than their input."""
    return lambda place, options: part(place, options) if place.changes_shape else None


# --- stems: functions (features, options) that return the total stride, as `add_stem` does --------------------------------------------


def image_stem(features: nn.HybridSequential, options: ResNetOptions, end: End = norm_activation_pool, last_norm: bool = False) -> int:
    """Add a BN of the image, if the options have it, a stem and, with `last_norm`, a BN."""
    if options.input_norm:
        features.add(options.norm(scale=False, epsilon=2e-5))
    stride = add_stem(features, options, end)
    if last_norm:
        features.add(options.norm())
    return stride


def real_to_binary_stem(features: nn.HybridSequential, options: GatedOptions) -> int:
    """Add a stem with BN, PReLU or ReLU, and max pooling."""
    activation = {'activation': PReLU} if options.stem_prelu else {}
    return add_stem(features, options, functools.partial(norm_activation_pool, **activation))


def float_stem(
    features: nn.HybridSequential,
    options: WidthOptions,
    kernel_size: Tuple[int, int] = (3, 3),
    strides: Tuple[int, int] = (1, 1),
    activation: bool = True,
) -> int:
    """Add a convolution and a BN, as in MLPerf Tiny, and with `activation` a ReLU and a bias."""
    size = getattr(options, 'spectrogram', ())
    features.add(float_convolution(options.init_features, options, kernel_size, strides, size, use_bias=activation))
    if activation:
        features.add(nn.Activation('relu'))
    return max(strides)
