"""Residual networks: ResNetE, Bi-Real Net, ResNets of BMXNet-v2, ResNets with the layers of other methods, and ResNet-8 of MLPerf Tiny.

All share one structure (He et al. 2016, arXiv:1512.03385): a float stem, up to four stages of 3x3 layers with residual shortcuts, each of
which halves the map and doubles the channels, and a float output layer. They differ in the rows of `NETWORKS`.

To add a network:

1. Write its layers in ``bmx_melius/nn/methods/NAME.py``, with equation, gradient and source.
2. Write a function ``(place, options) -> HybridBlock`` in `model_zoo.units` that composes its *unit*: everything between two additions or,
   with `units_per_block` 2, half of it. That is the quantized convolution with its normalization, activation and scales in the order of
   the method, from `place.in_channels` to `place.channels` channels with `place.stride`. `UnitPlace.binary_conv` creates the
   convolution with the options of `get_model`.
3. Add a row to `NETWORKS` under the name of its networks, in which ``{}`` is the depth. The fields of `ResidualRow` describe what else
   differs.
"""

import dataclasses
import functools
from typing import Any, Callable, List, Mapping, Optional, Tuple

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channelwise import PReLU
from bmx_melius.nn.methods.abc_net import ABCConv2D
from bmx_melius.nn.methods.adabin import AdaBinConv2D, Maxout
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.group_net import BASES, GroupSum, SoftGate
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.ir_net import IRNetConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.recu import ReCUConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.xnor_net import XNORConv2D

from . import units
from .layer_options import FloatOptions, NetworkOptions, WidthOptions
from .padding import padded_features
from .registry import BMXNET_V2, CIFAR, IMAGENET, register
from .stems import KERAS_NORM, add_stem, norm_activation_pool, norm_pool, pool_norm
from .units import MethodOptions, Part, ResNetOptions, UnitPlace, chain
from .zoo_network import ZooNetwork

DEPTHS = {18: (4, 4, 4, 4), 34: (6, 8, 12, 6)}  # units per stage
OF_CIFAR = {20: (6, 6, 6)}
WIDTHS = (1, 2, 4, 8)  # channels of a stage / channels after the stem


@dataclasses.dataclass(frozen=True)
class ResidualRow:
    """A row of `NETWORKS`. A `Part` is a function ``(place, options)`` that returns layers, or None.

    Attributes
    ----------
    unit : Part
        One 3x3 layer of the network, with its normalization, activation and scales.
    units_per_block : {1, 2}
        Number of units that a shortcut goes around; in GroupNet and BiNet, in which each unit has one, the units of a block.
    before : Part or None
        Layers of a block before its units and before the layers of its shortcut.
    shortcut : Part
        Layers of a shortcut where the size or the channels change; elsewhere it is the identity.
    after_sum : Part or None
        Layers after each addition.
    block : HybridBlock class or None
        Replaces `Residual`, the units between two additions; it has the same parameters.
    stem : callable (features, options) -> int
        Adds the layers before the first block, returns their total stride.
    tail, head : tuple of Part
        Layers before the last pooling, and between it and the output layer.
    options : NetworkOptions
        Default options. Their class determines which arguments `get_model` takes.
    prefix : str
        Beginning of the full names of all parameters, followed by a number.
    names : tuple of str or None
        Attributes of a block, which name its parameters in files: `before`, and each of two units, or each layer of a single one. None:
        ``before``, and ``units`` for a sequence of all units.
    alias : str or None
        Name in BMXNet-v2.
    depths : dict of int to tuple of int
        Units per stage of the networks of this row, by their depth.
    source, preset, classes, input_shape
        Paper or code, protocol of its authors, and others as in `model_zoo.registry.RegisteredNetwork`.
    """

    unit: Part
    units_per_block: int = 1
    before: Optional[Part] = None
    shortcut: Part = units.pooled_shortcut
    after_sum: Optional[Part] = None
    block: Optional[Callable[..., HybridBlock]] = None
    stem: Callable[[nn.HybridSequential, Any], int] = add_stem
    tail: Tuple[Part, ...] = ()
    head: Tuple[Part, ...] = ()
    options: NetworkOptions = MethodOptions()
    prefix: str = 'methodresnet'
    names: Optional[Tuple[str, ...]] = None
    alias: Optional[str] = None
    depths: Mapping[int, Tuple[int, ...]] = dataclasses.field(default_factory=lambda: DEPTHS)
    source: Optional[str] = None
    preset: Optional[str] = None
    classes: int = 1000
    input_shape: Tuple[int, int, int] = IMAGENET


# --- blocks ---------------------------------------------------------------------------------------------------------------------------


class Residual(HybridBlock):
    """Units and their shortcut, ``after_sum(units(before(x)) + shortcut(before(x)))``; an identity as shortcut returns x.

    Parameters
    ----------
    places : sequence of UnitPlace
        Of the units, one after the other.
    row : ResidualRow
    options : NetworkOptions

    Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, places: Tuple[UnitPlace, ...], row: ResidualRow, options: NetworkOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first, last = places[0], places[-1]
        around = dataclasses.replace(last, in_channels=first.in_channels, stride=first.stride, kernel_size=1)
        self._last = last
        with self.name_scope():
            before = row.before(around, options) if row.before else None
            each = [row.unit(place, options) for place in places]
            layers = (each if len(each) > 1 else each[0]) if row.names else [chain(*each)]
            self._names = row.names or ('before', 'units')
            for name, layer in zip(self._names, [before, *layers]):
                setattr(self, name, layer)
            self.shortcut = row.shortcut(around, options) if around.changes_shape else None
            self.after_sum = row.after_sum(last, options) if row.after_sum else None

    def _layers(self):
        return [getattr(self, name) for name in self._names]

    def hybrid_forward(self, F, x):
        before, *layers = self._layers()
        y = begin = before(x) if before else x
        for layer in layers:
            y = layer(y)
        shortcut = self.shortcut(begin) if self.shortcut else x
        y = y + shortcut if self._last.slices == 1 else _added_to_slice(F, self._last, shortcut, y)
        return self.after_sum(y) if self.after_sum else y


def _added_to_slice(F, place, x, y):
    """Return the map x, with y added to the slice of its channels that the place names."""
    width = place.channels // place.slices
    bounds = [0, place.index * width, (place.index + 1) * width, place.channels]
    parts = [F.slice_axis(x, axis=1, begin=begin, end=end) for begin, end in zip(bounds, bounds[1:]) if begin < end]
    changed = 1 if place.index else 0
    return F.concat(*parts[:changed], parts[changed] + y, *parts[changed + 1 :], dim=1)


def _each_with_shortcut(layers, x, shortcut):
    """Return the result of units, one after the other, each with its shortcut, which is the identity for all but the first."""
    for unit in layers:
        x = shortcut = unit(x) + shortcut
    return x


class BiNetBlock(Residual):
    """Two units, each with a shortcut around it."""

    def hybrid_forward(self, F, x):
        _, *layers = self._layers()
        return _each_with_shortcut(layers, x, self.shortcut(x) if self.shortcut else x)


class GroupBlock(HybridBlock):
    """BASES residual blocks and their sum, connected to the previous block's by a soft gate (`bmx_melius.nn.methods.group_net`).

    Parameters
    ----------
    places : sequence of UnitPlace
        Of the units of a block, one after the other, each with a shortcut.
    row : ResidualRow
    options : ShortcutOptions

    Input: a map (N, in_channels, H, W) in the first block of a network, otherwise a list with one map for each base and their sum. Output:
    a list of maps (N, channels, H / stride, W / stride), in the last block only their sum. Where the shape changes, all bases share the
    weights of the shortcut.
    """

    def __init__(self, places: Tuple[UnitPlace, ...], row: ResidualRow, options: units.ShortcutOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        first, last = places[0], places[-1]
        self.ends_network, self.shared_projection = last.ends_network, not options.quantized_shortcuts
        with self.name_scope():
            self.gate = None if first.starts_network else SoftGate()
            self.shortcut = row.shortcut(dataclasses.replace(first, kernel_size=1), options) if first.changes_shape else None
            self.bases = nn.HybridSequential(prefix='')
            for _ in range(BASES):
                self.bases.add(chain(*(row.unit(place, options) for place in places)))
            self.total = GroupSum()

    def hybrid_forward(self, F, x):
        if self.gate:
            total, maps = x[-1], self.gate(*x)
        else:  # copies, because MXNet fails to add more than 8 gradients in some cases, and each base uses its input twice
            total, maps = x, [F.identity(x) for _ in range(BASES)]
        outputs = list(map(_each_with_shortcut, self.bases, maps, self._shortcuts(total, maps)))
        total = self.total(*outputs)
        return total if self.ends_network else [*outputs, total]

    def _shortcuts(self, total, maps):
        if self.shortcut is None:
            return maps
        return [self.shortcut(total)] * BASES if self.shared_projection else [self.shortcut(x) for x in maps]


# --- networks -------------------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class ResidualArchitecture:
    """Architecture of a named network: units per stage, and the row of `NETWORKS`."""

    layers: Tuple[int, ...]
    row: ResidualRow

    def __post_init__(self):
        if not 1 <= len(self.layers) <= len(WIDTHS):
            raise UserError(f'a residual network has 1 to {len(WIDTHS)} stages, not {len(self.layers)}')

    def stages(self, options: NetworkOptions, stride: int) -> List[List[UnitPlace]]:
        """Return the places of the units of each stage, after a stem with this total stride."""
        stages, channels, slices = [], options.init_features, getattr(options, 'slices', 1)
        for number, (layers, width) in enumerate(zip(self.layers, WIDTHS)):
            halving = 1 if number else 0  # units that halve the map: the first of all stages but the first
            count = halving + (layers - halving) * slices
            stages.append([])
            for index in range(count):
                halves = index < halving
                stride *= 2 if halves else 1
                place = UnitPlace(
                    width * options.init_features,
                    channels,
                    2 if halves else 1,
                    stride,
                    slices=1 if halves else slices,
                    index=0 if halves else (index - halving) % slices,
                    starts_stage=index == 0,
                    ends_block=(index + 1) % self.row.units_per_block == 0,
                    starts_network=number == index == 0,
                    ends_network=number == len(self.layers) - 1 and index == count - 1,
                )
                stages[-1].append(place)
                channels = place.channels
        return stages


class ResidualNetwork(ZooNetwork):
    """A residual binary network. With the option `input_size` it accepts images of this size only."""

    def __init__(
        self, architecture: ResidualArchitecture, options: Optional[NetworkOptions] = None, classes: int = 1000, **kwargs: Any
    ) -> None:
        row = self._row = architecture.row
        options = options or row.options
        slices = getattr(options, 'slices', 1)
        if slices > 1 and (row.units_per_block > 1 or options.init_features % slices):
            raise UserError(
                f'slices={slices} is for networks whose blocks have one convolution, such as resnet_e18, and for init_features '
                f'that are a multiple of it, not {options.init_features}'
            )
        super().__init__(getattr(options, 'input_size', None), **kwargs)
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            stages = architecture.stages(options, row.stem(features, options))
            for number, places in enumerate(stages, start=1):
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                with stage.name_scope():
                    for start in range(0, len(places), row.units_per_block):
                        block = row.block or Residual
                        stage.add(block(tuple(places[start : start + row.units_per_block]), row, options, prefix=''))
                features.add(stage)
            last = stages[-1][-1]
            features.add(*(part(last, options) for part in row.tail), nn.GlobalAvgPool2D())
            # before Flatten: MXNet's BN of a matrix crashes in inference if the last map was of 1 x 1
            features.add(*(part(last, options) for part in row.head), nn.Flatten())
            self.features = padded_features(features, last.total_stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=last.channels)

    def _alias(self):
        """Return the beginning of the names of parameters, which Gluon takes from the name of the class otherwise."""
        return self._row.prefix


# --- the table ------------------------------------------------------------------------------------------------------------------------

# Networks of BMXNet-v2 (github.com/hpi-xnor/BMXNet-v2-examples, binary_models/resnet.py, resnet_e.py and binet.py). Its resnet18_v1 and
# others are binary_resnet18_v1 here, because GluonCV has full-precision networks of these names.
_of_bmxnet_v2 = functools.partial(
    ResidualRow,
    shortcut=units.resnet_shortcut,
    stem=units.image_stem,
    tail=(units.norm, units.relu),
    options=ResNetOptions(),
    prefix='binaryresnet',
    source=BMXNET_V2,
)
# Units that begin with a normalization, which blocks share with their shortcuts.
_NORM_FIRST = {
    'before': units.norm,
    'unit': functools.partial(units.resnet_unit, norm_first=True),
    'shortcut': functools.partial(units.resnet_shortcut, last_norm=False),
}
_norm_after_stem = functools.partial(units.image_stem, last_norm=True)
_BINARY_SHORTCUTS = ResNetOptions(initial_layers='imagenet', binary_shortcut=True, strided_shortcut=True)

# Units in the order of ResNet with pre-activation, whose additions follow the convolutions.
_preactivated = functools.partial(ResidualRow, units_per_block=2, shortcut=units.projected_shortcut, tail=(units.norm_and_relu,))
# Float activations and weights of few bits in the order of ResNet: convolution, BN, ReLU.
_few_bit_weights = functools.partial(ResidualRow, units_per_block=2, shortcut=units.projected_shortcut, after_sum=units.relu)

# Networks of IR-Net, which ReCU and AdaBin have taken over: convolution and BN, addition, and then the activation; a BN before the output.
# For CIFAR with three stages and shortcuts without weights.
_activated = functools.partial(ResidualRow, head=(units.norm,), options=MethodOptions(clip_threshold=None))
_of_cifar = functools.partial(
    _activated,
    depths=OF_CIFAR,
    shortcut=units.sampled_shortcut,
    options=dataclasses.replace(units.CIFAR_OPTIONS, clip_threshold=None),
    classes=10,
    input_shape=CIFAR,
)


def _stem_with(activation):
    return functools.partial(add_stem, end=functools.partial(norm_activation_pool, activation=activation), normalized=True)


_hard_tanh = {'after_sum': units.tanh_after_sum, 'stem': _stem_with(units.hard_tanh)}
_maxout = {'after_sum': units.maxout_after_sum, 'stem': _stem_with(Maxout)}
_IR_NET = {'unit': units.convolution_and_norm(IRNetConv2D), **_hard_tanh, 'source': 'arXiv:1909.10788', 'preset': 'ir-net'}
_RECU = {'unit': units.convolution_and_norm(ReCUConv2D), **_hard_tanh, 'source': 'arXiv:2103.12369', 'preset': 'recu'}
_ADABIN = {'unit': units.convolution_and_norm(AdaBinConv2D), **_maxout, 'source': 'arXiv:2208.08084', 'preset': 'adabin'}
_UP_TO_ONE = {'clip_threshold': 1.0}

_of_mlperf_tiny = functools.partial(ResidualRow, depths={8: (2, 2, 2)}, source='arXiv:2106.07597', classes=10, input_shape=CIFAR)

_prelu_stem_end = functools.partial(norm_activation_pool, activation=PReLU)

NETWORKS = {
    # Bethge et al. 2019, Back to Simplicity: How to Train Accurate BNNs from Scratch?, section 3. The shortcuts form a float map, to which
    # each layer adds; binary convolutions use its signs.
    'resnet_e{}': _of_bmxnet_v2(
        units.resnet_unit,
        stem=_norm_after_stem,
        tail=(units.relu,),
        names=('before', 'conv', 'norm'),
        alias='resnet{}_e1',
        source='arXiv:1906.08637',
        preset='resnet-e',
    ),
    'resnet_e2_{}': _of_bmxnet_v2(**_NORM_FIRST, names=('norm', 'conv'), alias='resnet{}_e2', preset='resnet-e'),
    'birealnet{}': _of_bmxnet_v2(
        functools.partial(units.resnet_unit, **BIREAL_CONVOLUTION),
        shortcut=functools.partial(units.resnet_shortcut, **BIREAL_CONVOLUTION),
        stem=functools.partial(units.image_stem, end=norm_pool),
        tail=(),
        names=('before', 'conv', 'norm'),
        options=ResNetOptions(clip_threshold=1.0, input_norm=False),
        source='arXiv:1808.00278',
        preset='birealnet',
    ),
    'binary_resnet{}_v1': _of_bmxnet_v2(
        units.resnet_unit,
        units_per_block=2,
        stem=_norm_after_stem,
        tail=(units.relu,),
        names=('before', 'first', 'second'),
        options=_BINARY_SHORTCUTS,
    ),
    'binary_resnet{}_v2': _of_bmxnet_v2(**_NORM_FIRST, units_per_block=2, names=('norm', 'first', 'second'), options=_BINARY_SHORTCUTS),
    'binet{}': _of_bmxnet_v2(
        units.resnet_unit,
        units_per_block=2,
        shortcut=units.binet_shortcut,
        block=BiNetBlock,
        names=('before', 'first', 'second'),
        options=ResNetOptions(initial_layers='imagenet', clip_threshold=1.0),
    ),
    # It has the preset of XNOR-Net, by the same authors.
    'resnet{}_bwn': _few_bit_weights(units.convolution_and_norm(BWNConv2D), source='arXiv:1603.05279', preset='xnor-net'),
    'resnet{}_ttq': _few_bit_weights(
        units.convolution_and_norm(TTQConv2D), options=MethodOptions(bits=2), source='arXiv:1612.01064', preset='ttq'
    ),
    'resnet{}_dorefa_w2a2': _preactivated(
        units.norm_and_convolution(DoReFaConv2D),
        options=MethodOptions(bits=2, clip_threshold=None),
        source='arXiv:1606.06160',
        preset='dorefa',
    ),
    'resnet{}_hwgq': ResidualRow(
        units.normalized_unit(HWGQConv2D, units.PLAIN),
        units_per_block=2,
        before=units.where_shape_changes(lambda place, options: options.norm(**units.PLAIN)),
        shortcut=units.convolution_and_norm(HWGQConv2D),
        stem=functools.partial(add_stem, end=functools.partial(pool_norm, **units.PLAIN), normalized=True),
        tail=(units.relu,),
        options=MethodOptions(clip_threshold=None, norm_kwargs={'momentum': 0.95}),
        source='arXiv:1702.00953',
        preset='hwgq',
    ),
    'resnet{}_lqnet_w1a2': ResidualRow(
        units.normalized_unit(LQConv2D),
        units_per_block=2,
        before=units.where_shape_changes(units.norm_and_relu),
        shortcut=units.convolution_and_norm(LQConv2D),
        stem=functools.partial(add_stem, normalized=True),
        tail=(units.norm_and_relu,),
        options=MethodOptions(clip_threshold=None),
        source='arXiv:1807.10029',
        preset='lq-net',
    ),
    'resnet{}_syq_w1a2': _preactivated(units.syq_unit, options=MethodOptions(clip_threshold=None), source='arXiv:1807.00301', preset='syq'),
    'resnet{}_cbcn': ResidualRow(
        units.norm_and_convolution(CirculantConv2D),
        shortcut=units.averaged_projection,
        after_sum=lambda place, options: PReLU(place.channels),
        stem=functools.partial(add_stem, end=_prelu_stem_end, normalized=True),
        options=MethodOptions(clip_threshold=1.0, init_features=128),
        source='arXiv:1910.10853',
        preset='cbcn',
    ),
    'groupnet{}': ResidualRow(
        units.group_net_unit,
        units_per_block=2,
        shortcut=units.quantized_shortcut(units.group_net_convolution),
        block=GroupBlock,
        stem=functools.partial(add_stem, end=functools.partial(pool_norm, inside=False), normalized=True),
        options=units.ShortcutOptions(clip_threshold=1.0),
        source='arXiv:1811.10413',
        preset='groupnet',
    ),
    'resnet{}_abcnet': _preactivated(
        units.norm_and_convolution(ABCConv2D),
        shortcut=units.norm_and_convolution(ABCConv2D),
        options=MethodOptions(clip_threshold=0.5),
        source='arXiv:1711.11294',
        preset='abc-net',
    ),
    'resnet{}_bnn': ResidualRow(
        units.bnn_unit,
        units_per_block=2,
        shortcut=units.quantized_shortcut(units.bnn_convolution),
        after_sum=lambda place, options: None if place.ends_network else units.norm_and_hard_tanh(place, options),
        stem=functools.partial(add_stem, end=functools.partial(pool_norm, inside=False, activation=units.hard_tanh), normalized=True),
        head=(units.norm_and_hard_tanh,),
        options=units.ShortcutOptions(clip_threshold=1.0),
        source='arXiv:1602.02830',
        preset='bnn',
    ),
    'resnet{}_xnor': _preactivated(  # figure 3 of the paper
        units.norm_and_convolution(XNORConv2D), options=MethodOptions(clip_threshold=1.0), source='arXiv:1603.05279', preset='xnor-net'
    ),
    'resnet{}_xnorpp': _preactivated(units.xnor_plus_unit, options=units.SizedOptions(clip_threshold=1.0), source='arXiv:1909.13863'),
    'resnet{}_strong_baseline': ResidualRow(
        units.strong_baseline_unit,
        stem=functools.partial(add_stem, end=_prelu_stem_end),
        options=MethodOptions(clip_threshold=1.0),
        source='arXiv:2003.11535',
    ),
    'real_to_binary{}': ResidualRow(
        units.real_to_binary_unit,
        stem=units.real_to_binary_stem,
        options=units.GatedOptions(clip_threshold=1.0),
        source='arXiv:2003.11535',
        preset='real-to-binary',
    ),
    'bnext{}': ResidualRow(
        units.bnext_unit,
        units_per_block=2,
        block=units.without_shortcut,
        stem=functools.partial(add_stem, end=norm_pool, normalized=True),
        tail=(lambda place, options: PReLU(place.channels),),
        options=MethodOptions(clip_threshold=1.5),
        depths={18: DEPTHS[18]},
        source='arXiv:2211.12933',
        preset='bnext',
    ),
    'resnet{}_irnet': _activated(**_IR_NET, shortcut=units.projected_shortcut),
    'resnet20_irnet': _of_cifar(**_IR_NET),
    'resnet{}_recu': _activated(**_RECU, shortcut=units.projected_shortcut, options=MethodOptions(**_UP_TO_ONE)),
    'resnet20_recu': _of_cifar(**_RECU, shortcut=units.averaged_shortcut, options=dataclasses.replace(units.CIFAR_OPTIONS, **_UP_TO_ONE)),
    'resnet{}_adabin': _activated(**_ADABIN, shortcut=units.pooled_shortcut, options=MethodOptions(**_UP_TO_ONE)),
    'resnet20_adabin': _of_cifar(**_ADABIN, options=dataclasses.replace(units.CIFAR_OPTIONS, **_UP_TO_ONE)),
    # Banbury et al. 2021, MLPerf Tiny Benchmark, with the widths of its paper, and with the layers of ReActNet.
    'resnet8': _of_mlperf_tiny(
        units.float_unit,
        units_per_block=2,
        shortcut=units.biased_projection,
        after_sum=units.relu,
        stem=units.float_stem,
        options=FloatOptions(norm_kwargs=KERAS_NORM),
    ),
    'binary_resnet8': _of_mlperf_tiny(
        units.reactnet_unit,
        after_sum=units.rprelu,
        stem=functools.partial(units.float_stem, activation=False),
        options=WidthOptions(clip_threshold=1.0),
    ),
    'reactnet{}': ResidualRow(
        units.reactnet_unit,
        after_sum=units.rprelu,
        stem=functools.partial(add_stem, end=norm_pool),
        options=MethodOptions(clip_threshold=1.0),
        source='arXiv:2003.03488',
        preset='reactnet',
    ),
}

for _name, _row in NETWORKS.items():
    for _depth, _layers in _row.depths.items():
        register(
            _name.format(_depth),
            ResidualNetwork,
            ResidualArchitecture(_layers, _row),
            _row.options,
            alias=_row.alias and _row.alias.format(_depth),
            source=_row.source,
            preset=_row.preset,
            classes=_row.classes,
            input_shape=_row.input_shape,
        )
