"""Residual binary networks: ResNetE, Bi-Real Net, and the other residual networks of BMXNet-v2.

ResNetE: Bethge et al. 2019, *Back to Simplicity: How to Train Accurate BNNs from Scratch?*, arXiv:1906.08637, section 3.
Bi-Real Net: Liu et al. 2018, arXiv:1808.00278, layers in `bmx_melius.nn.methods.bireal_net`. The shortcuts form a float map, to which each
layer adds; binary convolutions use its signs.
Networks of BMXNet-v2: github.com/hpi-xnor/BMXNet-v2-examples, binary_models/resnet.py, resnet_e.py and binet.py.
"""

import dataclasses
import functools
from typing import Any, Mapping, Optional, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import GroupedConv2D
from bmx_melius.nn.layers import QConv2D
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION

from .layer_options import QuantizerOptions
from .padding import average_pool, padded, padded_features
from .registry import BMXNET_V2, register
from .stems import add_stem, norm_activation_pool, norm_pool
from .zoo_network import ZooNetwork

WIDTHS = (1, 2, 4, 8)  # channels of a stage / channels after the stem
INPUT_NORM = {'scale': False, 'epsilon': 2e-5}


@dataclasses.dataclass(frozen=True)
class Options(QuantizerOptions):
    """Arguments of `model_zoo.get_model` for all networks of this family, with the defaults of ResNetE.

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
class Place:
    """Place of a block in the network: its channels, its stride, and the slice of the channels to which it adds.

    Attributes
    ----------
    in_channels, channels : int
    stride : {1, 2}
    slices : int
        Number of slices of the channels of its output.
    index : int
        Slice to which the block adds.
    """

    in_channels: int
    channels: int
    stride: int
    slices: int = 1
    index: int = 0

    @property
    def changes_shape(self) -> bool:
        """Whether input and output differ in size or channels, so that the shortcut cannot be the identity."""
        return self.stride > 1 or self.in_channels != self.channels


def shortcut_layers(place: Place, options: Options, norm: bool) -> Optional[nn.HybridSequential]:
    """Return the layers of a shortcut, with a normalization if `norm`; None for the identity."""
    if not place.changes_shape:
        return None
    layers = nn.HybridSequential(prefix='')
    pooled = place.stride > 1 and not options.strided_shortcut
    if pooled:
        layers.add(average_pool(place.stride))
    stride = 1 if pooled else place.stride
    if options.binary_shortcut:
        layers.add(options.binary_conv(place.channels, kernel_size=1, strides=stride, in_channels=place.in_channels, prefix='sc_'))
    else:
        groups = options.shortcut_groups
        layer = functools.partial(GroupedConv2D, groups=groups) if groups > 1 else nn.Conv2D
        layers.add(layer(place.channels, kernel_size=1, strides=stride, use_bias=False, prefix='sc_conv_'))
    if norm:
        layers.add(options.norm())
    return layers


class ResidualBlock(HybridBlock):
    """Residual block with one binary convolution: ``BN(conv(x)) + shortcut(x)``; with `norm_first` ``conv(BN(x)) + shortcut``.

    The shortcut is the identity of x, or where size or channels change a 2x2 average pooling, a 1x1 convolution and a BN; see `Options`.
    With `norm_first` these layers follow the BN of the block instead. Input (N, C, H, W); output (N, channels, H / stride, W / stride),
    rounded up.
    """

    convolutions = 1

    def __init__(self, place: Place, options: Options, norm_first: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._norm_first, self._place = norm_first, place
        conv = functools.partial(options.binary_conv, place.channels // place.slices, strides=place.stride)
        with self.name_scope():
            if norm_first:
                self.norm = options.norm()
            self.conv = padded(conv, 3, place.stride, options.same_padding)
            if not norm_first:
                self.norm = options.norm(gamma_initializer='zeros' if options.last_gamma else 'ones')
            self.shortcut = shortcut_layers(place, options, norm=not norm_first)

    def hybrid_forward(self, F, x):
        if self._norm_first:
            normalized = self.norm(x)
            y, shortcut = self.conv(normalized), self.shortcut(normalized) if self.shortcut else x
        else:
            y, shortcut = self.norm(self.conv(x)), self.shortcut(x) if self.shortcut else x
        if self._place.slices == 1:
            return y + shortcut
        width, index = self._place.channels // self._place.slices, self._place.index
        bounds = [0, index * width, (index + 1) * width, self._place.channels]
        parts = [F.slice_axis(shortcut, axis=1, begin=begin, end=end) for begin, end in zip(bounds, bounds[1:]) if begin < end]
        changed = 1 if index else 0
        return F.concat(*parts[:changed], parts[changed] + y, *parts[changed + 1 :], dim=1)


class BasicBlock(HybridBlock):
    """Residual block with two binary convolutions, as in ResNet: conv, BN, conv, BN; with `norm_first` BN, conv, BN, conv.

    The shortcut is that of `ResidualBlock`. Input (N, C, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    convolutions = 2

    def __init__(self, place: Place, options: Options, norm_first: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first = functools.partial(options.binary_conv, place.channels, strides=place.stride)
        second = functools.partial(options.binary_conv, place.channels)
        with self.name_scope():
            self.norm = options.norm() if norm_first else None
            self.first, self.second = nn.HybridSequential(prefix=''), nn.HybridSequential(prefix='')
            self.first.add(padded(first, 3, place.stride, options.same_padding), options.norm())
            self.second.add(padded(second, 3, 1))
            if not norm_first:
                self.second.add(options.norm(gamma_initializer='zeros' if options.last_gamma else 'ones'))
            self.shortcut = self.shortcut_layers(place, options, not norm_first)

    def shortcut_layers(self, place: Place, options: Options, norm: bool) -> Optional[nn.HybridSequential]:
        """Return the layers of the shortcut; None for the identity."""
        return shortcut_layers(place, options, norm)

    def hybrid_forward(self, F, x):
        normalized = self.norm(x) if self.norm else x
        return self.second(self.first(normalized)) + (self.shortcut(normalized) if self.shortcut else x)


class BiNetBlock(BasicBlock):
    """Residual block of BMXNet-v2's BiNet: two binary convolutions, each with a BN and a shortcut around it.

    Where the map is halved, the shortcut is a 2x2 average pooling and a 1x1 convolution with binary weights whose input is not binary.
    """

    def shortcut_layers(self, place: Place, options: Options, norm: bool) -> Optional[nn.HybridSequential]:
        """Return the layers of the shortcut; None for the identity."""
        if not place.changes_shape:
            return None
        layers = nn.HybridSequential(prefix='')
        layers.add(average_pool(place.stride))
        quantizer = {'bits': options.bits, 'quantization': options.quantization or 'sign'}
        layers.add(QConv2D(place.channels, 1, in_channels=place.in_channels, prefix='sc_qconv0_', **quantizer))
        return layers

    def hybrid_forward(self, F, x):
        y = self.first(x) + (self.shortcut(x) if self.shortcut else x)
        return self.second(y) + y


@dataclasses.dataclass(frozen=True)
class Variant:
    """Differences between the networks of this family.

    Attributes
    ----------
    relus : bool
        Whether there is a ReLU before the pooling of the stem and before the last pooling.
    stage_norm, tail_norm : bool
        Whether there is a normalization between the stem and the first stage, and one after the last stage.
    norm_first : bool
        Whether a block normalizes its input instead of the result of its convolution.
    block : HybridBlock class
        `ResidualBlock`, `BasicBlock` or `BiNetBlock`.
    convolution : dict
        Arguments of every `BinaryConv2D` in addition to those of the options.
    options : Options
        Default options.
    source, preset : str or None
        Paper or code, and protocol of its authors, as in `model_zoo.registry.Network`.
    """

    relus: bool = True
    stage_norm: bool = True
    tail_norm: bool = False
    norm_first: bool = False
    block: Type[HybridBlock] = ResidualBlock
    convolution: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Options = Options()
    source: str = BMXNET_V2
    preset: Optional[str] = None


RESNET_E = Variant(source='arXiv:1906.08637', preset='resnet-e')
RESNET_E2 = Variant(stage_norm=False, tail_norm=True, norm_first=True, preset='resnet-e')
BIREALNET = Variant(
    relus=False,
    stage_norm=False,
    convolution=BIREAL_CONVOLUTION,
    options=Options(clip_threshold=1.0, input_norm=False),
    source='arXiv:1808.00278',
    preset='birealnet',
)
_BINARY_SHORTCUTS = Options(initial_layers='imagenet', binary_shortcut=True, strided_shortcut=True)
RESNET_V1 = Variant(block=BasicBlock, options=_BINARY_SHORTCUTS)
RESNET_V2 = Variant(stage_norm=False, tail_norm=True, norm_first=True, block=BasicBlock, options=_BINARY_SHORTCUTS)
BINET = Variant(stage_norm=False, tail_norm=True, block=BiNetBlock, options=Options(initial_layers='imagenet', clip_threshold=1.0))


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Architecture of a named network.

    Attributes
    ----------
    layers : tuple of int
        Binary convolutions per stage, twice the number of blocks of a ResNet.
    variant : Variant
    """

    layers: Tuple[int, ...]
    variant: Variant

    def __post_init__(self):
        if not 1 <= len(self.layers) <= len(WIDTHS):
            raise UserError(f'a residual network has 1 to {len(WIDTHS)} stages, not {len(self.layers)}')


# Binary convolutions per stage of the networks with 18 and 34 layers.
_18, _34 = (4, 4, 4, 4), (6, 8, 12, 6)

ARCHITECTURES = {
    'resnet_e18': Architecture(_18, RESNET_E),
    'resnet_e34': Architecture(_34, RESNET_E),
    'resnet_e2_18': Architecture(_18, RESNET_E2),
    'resnet_e2_34': Architecture(_34, RESNET_E2),
    'birealnet18': Architecture(_18, BIREALNET),
    'birealnet34': Architecture(_34, BIREALNET),
    'binary_resnet18_v1': Architecture(_18, RESNET_V1),
    'binary_resnet34_v1': Architecture(_34, RESNET_V1),
    'binary_resnet18_v2': Architecture(_18, RESNET_V2),
    'binary_resnet34_v2': Architecture(_34, RESNET_V2),
    'binet18': Architecture(_18, BINET),
    'binet34': Architecture(_34, BINET),
}

# Names in BMXNet-v2. Its resnet18_v1 and others are binary_resnet18_v1 here, because GluonCV has full-precision networks of these names.
ALIASES = {'resnet_e18': 'resnet18_e1', 'resnet_e34': 'resnet34_e1', 'resnet_e2_18': 'resnet18_e2', 'resnet_e2_34': 'resnet34_e2'}


class BinaryResNet(ZooNetwork):
    """A residual binary network, such as ResNetE and Bi-Real Net."""

    def __init__(self, architecture: Architecture, options: Optional[Options] = None, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        variant = architecture.variant
        options = options or variant.options
        options = dataclasses.replace(options, conv_kwargs={**variant.convolution, **(options.conv_kwargs or {})})
        if options.slices > 1 and (variant.block is not ResidualBlock or options.init_features % options.slices):
            raise UserError(
                f'slices={options.slices} is for networks whose blocks have one convolution, such as resnet_e18, and for init_features '
                f'that are a multiple of it, not {options.init_features}'
            )
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            if options.input_norm:
                features.add(options.norm(**INPUT_NORM))
            stride = add_stem(features, options, norm_activation_pool if variant.relus else norm_pool)
            if variant.stage_norm:
                features.add(options.norm())
            channels = options.init_features
            for number, (layers, width) in enumerate(zip(architecture.layers, WIDTHS), start=1):
                halving = 1 if number == 1 else 2
                stride *= halving
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                with stage.name_scope():
                    for place in _places(layers // variant.block.convolutions, channels, width * options.init_features, halving, options):
                        stage.add(variant.block(place, options, variant.norm_first, prefix=''))
                features.add(stage)
                channels = width * options.init_features
            if variant.tail_norm:
                features.add(options.norm())
            if variant.relus:
                features.add(nn.Activation('relu'))
            features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=channels)


def _places(blocks, in_channels, channels, stride, options):
    """Yield the places of the blocks of a stage; a first block that halves the map is not sliced."""
    number = blocks * options.slices if stride == 1 else 1 + (blocks - 1) * options.slices
    for index in range(number):
        is_first = index == 0
        slices = 1 if is_first and stride > 1 else options.slices
        written = (index if stride == 1 else index - 1) % options.slices
        yield Place(in_channels if is_first else channels, channels, stride if is_first else 1, slices, written if slices > 1 else 0)


for _name, _architecture in ARCHITECTURES.items():
    _of = _architecture.variant
    register(_name, BinaryResNet, _architecture, _of.options, alias=ALIASES.get(_name), source=_of.source, preset=_of.preset)
