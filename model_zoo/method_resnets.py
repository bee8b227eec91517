"""ResNet 18 and 34 with the layers of other binary and low-bit methods, to which MeliusNet is compared (paper, table 3).

All networks share one structure: a float stem, four stages of 3x3 layers with residual shortcuts, and a float output layer (He et al. 2016,
arXiv:1512.03385). The methods differ in the rows of `METHODS`.

To add a method:

1. Write its layers in ``bmx_melius/nn/methods/NAME.py``, with equation, gradient and source.
2. Write a function ``(place, options) -> HybridBlock`` in `model_zoo.method_units` that composes its *unit*: everything between two
   additions or, with `units_per_block` 2, half of it. That is the quantized convolution with its normalization, activation and scales in
   the order of the method, from `place.in_channels` to `place.channels` channels with `place.stride`. `Place.binary_conv` creates the
   convolution with the options of `get_model`.
3. Add a row to `METHODS` under the name of its networks, in which ``{}`` is the depth. The fields of `Method` describe what else differs:
   the span and form of the shortcuts, layers after the additions, before the first stage and after the last, and default options.
"""

import dataclasses
import functools
from typing import Any, Callable, Optional, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.nn.channelwise import PReLU
from bmx_melius.nn.layers import BinaryConv2D
from bmx_melius.nn.methods.abc_net import ABCConv2D
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.group_net import BASES, GroupSum, SoftGate
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.reactnet import RPReLU
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.xnor_net import XNORConv2D

from . import method_units as units
from .method_units import Options, Place, SizedOptions, chain
from .padding import padded_features
from .registry import register
from .resnet import WIDTHS
from .stems import End, add_stem, norm_activation_pool, norm_pool, pool_norm
from .zoo_network import ZooNetwork

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}  # depth -> blocks of two layers per stage

# --- the table ------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Method:
    """A row of `METHODS`.

    Attributes
    ----------
    unit : callable (place, options) -> HybridBlock
        One 3x3 layer of the network, with its normalization, activation and scales.
    units_per_block : {1, 2}
        Number of units that a shortcut goes around; in GroupNet, in which each unit has one, those of a block.
    shortcut : callable (place, options) -> HybridBlock
        Layers of a shortcut where the size or the channels change, elsewhere it is the identity: `pooled_shortcut` or
        `projected_shortcut`, whose convolutions are float, or a unit with the kernel size 1 for a quantized one.
    after_sum : callable (place, options) -> HybridBlock, or None
        Layer after each addition.
    stem_end : callable (features, options, pool) -> None
        Adds normalization, activation and pooling of the stem (`model_zoo.stems`).
    stem_norm : bool
        Whether the stem `thumbnail` also has this normalization and activation.
    before : callable (place, options) -> HybridBlock, or None
        Layers of a block whose shape changes, before both its units and its shortcut.
    tail, head : callable (options) -> HybridBlock, or None
        Layers before the last pooling, and between it and the output layer.
    options : Options
        Default options.
    block : callable (places, method, options, prefix=...) -> HybridBlock, or None
        Replaces `Residual`, the units between two additions.
    source, preset : str or None
        Paper, and protocol of its authors, as in `model_zoo.registry.Network`.
    """

    unit: Callable[[Place, Options], HybridBlock]
    units_per_block: int = 1
    shortcut: Callable[[Place, Options], HybridBlock] = units.pooled_shortcut
    after_sum: Optional[Callable[[Place, Options], HybridBlock]] = None
    stem_end: End = norm_activation_pool
    stem_norm: bool = False
    before: Optional[Callable[[Place, Options], HybridBlock]] = None
    tail: Optional[Callable[[Options], HybridBlock]] = None
    head: Optional[Callable[[Options], HybridBlock]] = None
    options: Options = Options()
    block: Optional[Callable[..., HybridBlock]] = None
    source: Optional[str] = None
    preset: Optional[str] = None


class GroupBlock(HybridBlock):
    """BASES residual blocks and their sum, connected to those of the block before by a soft gate (`bmx_melius.nn.methods.group_net`).

    Parameters
    ----------
    places : sequence of Place
        Of the units of a block, one after the other, each with a shortcut.
    method : Method
    options : ShortcutOptions

    Input: a map (N, in_channels, H, W) in the first block of a network, otherwise a list with one map for each base and their sum. Output:
    a list of maps (N, channels, H / stride, W / stride), in the last block only their sum. Where the shape changes, all bases share the
    weights of the shortcut.
    """

    def __init__(self, places: Tuple[Place, ...], method: Method, options: units.ShortcutOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first, last = places[0], places[-1]
        self.ends_network, self.shared_projection = last.ends_network, not options.quantized_shortcuts
        with self.name_scope():
            self.gate = None if first.starts_network else SoftGate()
            self.shortcut = method.shortcut(dataclasses.replace(first, kernel_size=1), options) if first.changes_shape else None
            self.bases = nn.HybridSequential(prefix='')
            for _ in range(BASES):
                self.bases.add(chain(*(method.unit(place, options) for place in places)))
            self.total = GroupSum()

    def hybrid_forward(self, F, x):
        if self.gate:
            total, maps = x[-1], self.gate(*x)
        else:  # copies, because MXNet fails to add more than 8 gradients in some cases, and each base uses its input twice
            total, maps = x, [F.identity(x) for _ in range(BASES)]
        outputs = list(map(self._base, self.bases, maps, self._shortcuts(total, maps)))
        total = self.total(*outputs)
        return total if self.ends_network else [*outputs, total]

    def _shortcuts(self, total, maps):
        if self.shortcut is None:
            return maps
        return [self.shortcut(total)] * BASES if self.shared_projection else [self.shortcut(x) for x in maps]

    @staticmethod
    def _base(base, x, shortcut):
        for unit in base:
            x = shortcut = unit(x) + shortcut
        return x


def preactivated(
    unit: Callable[[Place, Options], HybridBlock],
    options: Options,
    shortcut: Callable[[Place, Options], HybridBlock] = units.projected_shortcut,
    **row: str,
) -> Method:
    """Return the method with units in the order of ResNet with pre-activation, whose additions follow the convolutions."""
    return Method(unit, units_per_block=2, shortcut=shortcut, tail=units.norm_and_relu, options=options, **row)


def few_bit_weights(layer: Type[BinaryConv2D], bits: int = 1, **row: str) -> Method:
    """Return the method with float activations and weights of few bits in the order of ResNet: convolution, BN, ReLU."""
    return Method(
        units.convolution_and_norm(layer),
        units_per_block=2,
        shortcut=units.projected_shortcut,
        after_sum=units.relu,
        options=Options(bits=bits),
        **row,
    )


def real_to_binary_stem_end(features: nn.HybridSequential, options: units.GatedOptions, pool: int) -> None:
    """Add BN, PReLU or ReLU, and max pooling."""
    activation = {'activation': PReLU} if options.stem_prelu else {}
    norm_activation_pool(features, options, pool, **activation)


METHODS = {
    'resnet{}_bwn': few_bit_weights(BWNConv2D, source='arXiv:1603.05279', preset='xnor-net'),
    'resnet{}_ttq': few_bit_weights(TTQConv2D, bits=2, source='arXiv:1612.01064', preset='ttq'),
    'resnet{}_dorefa_w2a2': preactivated(
        units.norm_and_convolution(DoReFaConv2D), Options(bits=2, clip_threshold=None), source='arXiv:1606.06160', preset='dorefa'
    ),
    'resnet{}_hwgq': Method(
        units.normalized_unit(HWGQConv2D, units.PLAIN),
        units_per_block=2,
        shortcut=units.convolution_and_norm(HWGQConv2D),
        before=lambda place, options: options.norm(**units.PLAIN),
        stem_end=functools.partial(pool_norm, **units.PLAIN),
        stem_norm=True,
        tail=lambda options: nn.Activation('relu'),
        options=Options(clip_threshold=None, norm_kwargs={'momentum': 0.95}),
        source='arXiv:1702.00953',
        preset='hwgq',
    ),
    'resnet{}_lqnet_w1a2': Method(
        units.normalized_unit(LQConv2D),
        units_per_block=2,
        shortcut=units.convolution_and_norm(LQConv2D),
        before=lambda place, options: units.norm_and_relu(options),
        stem_norm=True,
        tail=units.norm_and_relu,
        options=Options(clip_threshold=None),
        source='arXiv:1807.10029',
        preset='lq-net',
    ),
    'resnet{}_syq_w1a2': preactivated(units.syq_unit, Options(clip_threshold=None), source='arXiv:1807.00301', preset='syq'),
    'resnet{}_cbcn': Method(
        units.norm_and_convolution(CirculantConv2D),
        shortcut=units.averaged_projection,
        stem_end=functools.partial(norm_activation_pool, activation=PReLU),
        stem_norm=True,
        after_sum=lambda place, options: PReLU(place.channels),
        options=Options(clip_threshold=1.0, init_features=128),
        source='arXiv:1910.10853',
        preset='cbcn',
    ),
    'groupnet{}': Method(
        units.group_net_unit,
        units_per_block=2,
        shortcut=units.quantized_shortcut(units.group_net_convolution),
        stem_end=functools.partial(pool_norm, inside=False),
        stem_norm=True,
        options=units.ShortcutOptions(clip_threshold=1.0),
        block=GroupBlock,
        source='arXiv:1811.10413',
        preset='groupnet',
    ),
    'resnet{}_abcnet': preactivated(
        units.norm_and_convolution(ABCConv2D),
        Options(clip_threshold=0.5),
        shortcut=units.norm_and_convolution(ABCConv2D),
        source='arXiv:1711.11294',
        preset='abc-net',
    ),
    'resnet{}_bnn': Method(
        units.bnn_unit,
        units_per_block=2,
        shortcut=units.quantized_shortcut(units.bnn_convolution),
        after_sum=units.norm_and_hard_tanh,
        stem_end=functools.partial(pool_norm, inside=False, activation=units.hard_tanh),
        stem_norm=True,
        head=lambda options: chain(options.norm(), units.hard_tanh()),
        options=units.ShortcutOptions(clip_threshold=1.0),
        source='arXiv:1602.02830',
        preset='bnn',
    ),
    'resnet{}_xnor': preactivated(
        units.norm_and_convolution(XNORConv2D), Options(clip_threshold=1.0), source='arXiv:1603.05279', preset='xnor-net'
    ),  # figure 3 of the paper
    'resnet{}_xnorpp': preactivated(units.xnor_plus_unit, SizedOptions(clip_threshold=1.0), source='arXiv:1909.13863'),
    'resnet{}_strong_baseline': Method(
        units.strong_baseline_unit,
        stem_end=functools.partial(norm_activation_pool, activation=PReLU),
        options=Options(clip_threshold=1.0),
        source='arXiv:2003.11535',
    ),
    'real_to_binary{}': Method(
        units.real_to_binary_unit,
        stem_end=real_to_binary_stem_end,
        options=units.GatedOptions(clip_threshold=1.0),
        source='arXiv:2003.11535',
        preset='real-to-binary',
    ),
    'reactnet{}': Method(
        units.reactnet_unit,
        after_sum=lambda place, options: RPReLU(place.channels),
        stem_end=norm_pool,
        options=Options(clip_threshold=1.0),
        source='arXiv:2003.03488',
        preset='reactnet',
    ),
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Architecture of a named network: blocks of two units per stage, and the method."""

    blocks: Tuple[int, ...]
    method: Method


class Residual(HybridBlock):
    """Units and their shortcut: ``after_sum(units(x) + shortcut(x))``, after the layers `before` of the method if the shape changes.

    Parameters
    ----------
    places : sequence of Place
        Of the units, one after the other.
    method : Method
    options : Options

    Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, places: Tuple[Place, ...], method: Method, options: Options, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first, last = places[0], places[-1]
        around = dataclasses.replace(last, in_channels=first.in_channels, stride=first.stride, kernel_size=1)
        with self.name_scope():
            self.before = method.before(around, options) if method.before and around.changes_shape else None
            self.units = chain(*(method.unit(place, options) for place in places))
            self.shortcut = method.shortcut(around, options) if around.changes_shape else None
            self.after_sum = method.after_sum(last, options) if method.after_sum else None

    def hybrid_forward(self, F, x):
        x = self.before(x) if self.before else x
        y = self.units(x) + (self.shortcut(x) if self.shortcut else x)
        return self.after_sum(y) if self.after_sum else y


class MethodResNet(ZooNetwork):
    """A ResNet with the layers of a method. With `SizedOptions` images have the option `input_size`."""

    def __init__(self, architecture: Architecture, options: Optional[Options] = None, classes: int = 1000, **kwargs: Any) -> None:
        method = architecture.method
        options = options or method.options
        super().__init__(options.input_size if isinstance(options, SizedOptions) else None, **kwargs)
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            stride = add_stem(features, options, method.stem_end, normalized=method.stem_norm)
            channels = options.init_features
            for number, (blocks, width) in enumerate(zip(architecture.blocks, WIDTHS), start=1):
                width *= options.init_features
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                places = []
                for index in range(2 * blocks):
                    halving = 2 if number > 1 and index == 0 else 1
                    stride *= halving
                    places.append(
                        Place(
                            width,
                            channels,
                            halving,
                            stride,
                            starts_stage=index == 0,
                            ends_block=(index + 1) % method.units_per_block == 0,
                            starts_network=number == 1 and index == 0,
                            ends_network=number == len(architecture.blocks) and index == 2 * blocks - 1,
                        )
                    )
                    channels = width
                with stage.name_scope():
                    for start in range(0, len(places), method.units_per_block):
                        block = method.block or Residual
                        stage.add(block(tuple(places[start : start + method.units_per_block]), method, options, prefix=''))
                features.add(stage)
            if method.tail:
                features.add(method.tail(options))
            features.add(nn.GlobalAvgPool2D())
            if method.head:  # before Flatten: MXNet's BN of a matrix crashes in inference if the last map was of 1 x 1
                features.add(method.head(options))
            features.add(nn.Flatten())
            self.features = padded_features(features, stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=channels)


for _name, _method in METHODS.items():
    for _depth, _blocks in BLOCKS.items():
        _architecture = Architecture(_blocks, _method)
        register(_name.format(_depth), MethodResNet, _architecture, _method.options, source=_method.source, preset=_method.preset)
