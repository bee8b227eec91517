"""PokeBNN: Zhang et al. 2022, arXiv:2112.00133, in the form of ResNet-50.

A stem of two convolutions with 8-bit weights, and blocks of a 1x1, a 3x3 and a 1x1 layer, the last with four times the channels. Each layer
has a shortcut, and the last one that of the block, too, without weights: where channels become fewer, groups of them are averaged; where
they become more, the shortcut is added to the first ones, and that of a block is repeated; 3x3 average pooling halves maps.
"""

import dataclasses
import functools
from typing import Any, Optional, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import ChannelShuffle, concat
from bmx_melius.nn.gates import REDUCTION
from bmx_melius.nn.layers import QConv2D, QDense
from bmx_melius.nn.methods.pokebnn import BOUND, LEVELS, DPReLU, PokeConv2D, PokeGate
from bmx_melius.nn.quantizers import FULL_PRECISION

from .layer_options import WidthOptions
from .padding import padded, padded_features
from .registry import register
from .units import UnitPlace
from .zoo_network import ZooNetwork

STEM_CHANNELS, STEM_GROUPS = 64, 32
EXPANSION = 4  # channels of the last layer of a block / channels of the others
STEM_BITS, GATE_BITS, OUTPUT_BITS = 8, 4, 8  # of weights
WIDTHS = {'0_5': 32, '0_75': 48, '1_0': 64, '1_25': 80, '1_5': 96, '2_0': 128}  # channels of the first layers, by the factor of all widths


@dataclasses.dataclass(frozen=True)
class PokeBNNOptions(WidthOptions):
    """Arguments of `model_zoo.get_model` for these networks.

    Attributes
    ----------
    init_features : int
        Channels of the first layers of the first blocks, of which all widths but the stem's are multiples; from 8 to 16, or a multiple of
        16.
    clip_threshold : float or None
        The bound of the activations, whose signs have this magnitude (`bmx_melius.nn.methods.pokebnn`); None: 2, with a gradient
        everywhere.
    last_gamma : bool
        Initialize the gamma of the normalization after the last convolution of each block with 0, as in the authors' code, so that a block
        initially consists of its shortcuts.
    """

    init_features: int = 64
    clip_threshold: Optional[float] = BOUND
    last_gamma: bool = True

    def __post_init__(self):
        if self.init_features not in range(REDUCTION, 17) and (self.init_features < 16 or self.init_features % 16):
            raise UserError(
                f'init_features must be from 8 to 16 or a multiple of 16, not {self.init_features}: the shortcut of the first block '
                f'repeats or averages the {STEM_CHANNELS} channels of the stem'
            )

    def layer(self, kind: Type[HybridBlock], bits: int, *geometry: Any, **arguments: Any) -> HybridBlock:
        """Return a layer with weights of several bits, or with real ones where the binary layers have real weights, too."""
        is_real = FULL_PRECISION in (self.bits, self.weight_bits)
        return kind(*geometry, bits=FULL_PRECISION if is_real else bits, **arguments)


@dataclasses.dataclass(frozen=True)
class PokeBNNArchitecture:
    """Architecture of a named network: blocks per stage."""

    blocks: Tuple[int, ...] = (3, 4, 6, 3)


class ReshapeAdd(HybridBlock):
    """Add a map of another number of channels, and of twice the size if `pool` halves it.

    Parameters
    ----------
    channels, in_channels : int
        Of the first map, and of the second one. More channels are averaged in groups, of which those that remain are left out.
    pool : HybridBlock or None
    repeats : bool
        Whether fewer channels are repeated, instead of being added to the first ones.

    Inputs: (N, channels, H, W) and (N, in_channels, H or 2 H, W or 2 W); output of the shape of the former.
    """

    def __init__(self, channels: int, in_channels: int, pool: Optional[HybridBlock] = None, repeats: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._channels, self._in_channels = channels, in_channels
        self._averaged = in_channels // channels
        self._repeated = max(channels // in_channels, 1) if repeats else 1
        with self.name_scope():
            self.pool = pool
            self.shuffle = ChannelShuffle(channels) if self._averaged > 1 else None

    def hybrid_forward(self, F, x, shortcut):
        shortcut = self._narrowed(F, shortcut)
        if self.pool:
            shortcut = self.pool(shortcut)
        if self._repeated > 1:
            shortcut = concat(F, *[shortcut] * self._repeated)
        width = self._in_channels * self._repeated
        if width >= self._channels:
            return x + shortcut
        first, rest = (F.slice_axis(x, axis=1, begin=begin, end=end) for begin, end in ((0, width), (width, None)))
        return concat(F, first + shortcut, rest)

    def _narrowed(self, F, x):
        """Return the averages of successive channels, in groups of one size."""
        width, size = self._channels, self._averaged
        if self._in_channels <= width:
            return x
        if self._in_channels > width * size:
            x = F.slice_axis(x, axis=1, begin=0, end=width * size)
        if size == 1:
            return x
        x = self.shuffle(x)  # the first channels of all groups, then the second ones
        parts = [F.slice_axis(x, axis=1, begin=index * width, end=(index + 1) * width) for index in range(size)]
        return sum(parts[1:], parts[0]) / size


class PokeLayer(HybridBlock):
    """Sign, convolution, BN, the additions of shortcuts, DPReLU, gate and BN.

    Parameters
    ----------
    place : UnitPlace
        Of the layer.
    options : PokeBNNOptions
    block : UnitPlace or None
        Of the block that ends with this layer, whose input is added, too.

    Inputs (N, in_channels, H, W), and in the last layer of a block that of the block; output (N, channels, H / stride, W / stride), rounded
    up.
    """

    def __init__(self, place: UnitPlace, options: PokeBNNOptions, block: Optional[UnitPlace] = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = place.binary_conv(options, PokeConv2D)
            self.norm = options.norm(gamma_initializer='zeros' if block and options.last_gamma else 'ones')
            self.addition = _addition(place, options)
            self.block_addition = _addition(block, options, repeats=True) if block else None
            self.activation = DPReLU(place.channels)
            self.gate = options.layer(PokeGate, GATE_BITS, place.channels, place.in_channels)
            self.last_norm = options.norm()

    def hybrid_forward(self, F, x, block_input=None):
        y = self.addition(self.norm(self.conv(x)), x)
        if self.block_addition:
            y = self.block_addition(y, block_input)
        return self.last_norm(self.gate(self.activation(y), x))


def _addition(place, options, repeats=False):
    pool = padded(functools.partial(nn.AvgPool2D, 3, 2), 3, 2, options.same_padding) if place.stride > 1 else None
    return ReshapeAdd(place.channels, place.in_channels, pool, repeats)


class PokeBlock(HybridBlock):
    """A 1x1, a 3x3 and a 1x1 layer. Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up."""

    def __init__(self, place: UnitPlace, options: PokeBNNOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = place.channels // EXPANSION
        with self.name_scope():
            self.first = PokeLayer(UnitPlace(width, place.in_channels, 1, place.total_stride // place.stride, kernel_size=1), options)
            self.middle = PokeLayer(UnitPlace(width, width, place.stride, place.total_stride), options)
            self.last = PokeLayer(UnitPlace(place.channels, width, 1, place.total_stride, kernel_size=1), options, place)

    def hybrid_forward(self, F, x):
        return self.last(self.middle(self.first(x)), x)


class PokeBNN(ZooNetwork):
    """A PokeBNN. Height and width of images are at least 32."""

    def __init__(
        self, architecture: PokeBNNArchitecture, options: PokeBNNOptions = PokeBNNOptions(), classes: int = 1000, **kwargs: Any
    ) -> None:  # noqa: B008
        super().__init__(**kwargs)
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            total_stride = add_stem(features, options)
            channels = STEM_CHANNELS
            for number, blocks in enumerate(architecture.blocks):
                stage = nn.HybridSequential(prefix=f'stage{number + 1}_')
                with stage.name_scope():
                    for index in range(blocks):
                        stride = 2 if number and not index else 1
                        total_stride *= stride
                        wider = EXPANSION * options.init_features * 2**number
                        stage.add(PokeBlock(UnitPlace(wider, channels, stride, total_stride), options, prefix=''))
                        channels = wider
                features.add(stage)
            features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, total_stride, options.same_padding)
            self.output = options.layer(
                QDense, OUTPUT_BITS, classes, in_units=channels, use_bias=True, quantization='largest_levels', no_offset=True
            )


def add_stem(features: nn.HybridSequential, options: PokeBNNOptions) -> int:
    """Add a 4x4 convolution of stride 4, which uses each pixel once, and a grouped 3x3 one, each with BN and DPReLU. Total stride 4."""
    levels = {**LEVELS, 'use_bias': False}
    features.add(options.layer(QConv2D, STEM_BITS, STEM_GROUPS, 4, 4, **levels))
    features.add(options.norm(), DPReLU(STEM_GROUPS))
    grouped = {'groups': STEM_GROUPS, 'in_channels': STEM_GROUPS, **levels}
    features.add(options.layer(QConv2D, STEM_BITS, STEM_CHANNELS, 3, padding=1, **grouped))
    features.add(options.norm(), DPReLU(STEM_CHANNELS))
    return 4


for _name, _features in WIDTHS.items():
    _options = PokeBNNOptions(init_features=_features)
    register(f'pokebnn_{_name}', PokeBNN, PokeBNNArchitecture(), _options, source='arXiv:2112.00133', preset='pokebnn')
