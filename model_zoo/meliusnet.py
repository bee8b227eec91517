"""MeliusNet (Bethge et al. 2020, arXiv:2001.05936): Dense Blocks and Improvement Blocks in alternation.

A Dense Block appends `growth_rate` new channels to its input, an Improvement Block adds its result to only these channels. Between stages
a transition halves the map and reduces the channels by a full-precision 1x1 convolution. With other blocks the same class builds the two
networks to which MeliusNet is compared: BinaryDenseNet, without Improvement Blocks, and the naive combination of the paper.
"""

import dataclasses
from typing import Any, Optional, Tuple, Union

from mxnet.gluon import nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import ChannelShuffle, GroupedConv2D

from .blocks import BLOCKS
from .layer_options import QuantizerOptions
from .padding import padded_features
from .registry import register
from .stems import add_stem
from .zoo_network import ZooNetwork

SHUFFLE_GROUPS = 16  # groups of the channel shuffle in transitions with a grouped convolution, for any number of its groups
WIDTH_MULTIPLE = 32


@dataclasses.dataclass(frozen=True)
class MeliusNetArchitecture:
    """Architecture of a named network: for MeliusNet a row of table 1 of the paper.

    Attributes
    ----------
    block_numbers : tuple of int
        Blocks per stage. A block ``improvement`` is a pair of Dense and Improvement Block.
    transitions : tuple of int or float
        Channels after each transition between stages, or, for values below 1, the fraction of channels kept, rounded to a multiple of 32.
    groups : int
        Groups of the convolutions in transitions; above 1 a channel shuffle precedes them.
    block : str
        A key of `model_zoo.blocks.BLOCKS`: ``improvement``, ``dense`` or ``naive``.
    pool_first : bool
        Whether a transition has max pooling before its convolution (the paper), or average pooling after it (DenseNet); pooling before the
        ReLU saves three quarters of its operations.
    """

    block_numbers: Tuple[int, ...]
    transitions: Tuple[Union[int, float], ...]
    groups: int = 1
    block: str = 'improvement'
    pool_first: bool = True

    def __post_init__(self):
        if len(self.transitions) != len(self.block_numbers) - 1:
            stages = len(self.block_numbers)
            raise UserError(f'{stages} stages need {stages - 1} transitions, not {len(self.transitions)}')
        if self.block not in BLOCKS:
            raise UserError(f'unknown block {self.block!r}; known: {", ".join(BLOCKS)}')

    @property
    def downsample_structure(self) -> str:
        """Layers of a transition, as in `MeliusNetOptions.downsample_structure` (paper, section 3.1)."""
        shuffle, groups = (f'cs:{SHUFFLE_GROUPS},', f':{self.groups}') if self.groups > 1 else ('', '')
        return f'bn,max_pool,relu,{shuffle}fp_conv{groups}' if self.pool_first else f'bn,relu,{shuffle}fp_conv{groups},pool'


@dataclasses.dataclass(frozen=True)
class MeliusNetOptions(QuantizerOptions):
    """Arguments of `model_zoo.get_model` for all networks of this family.

    Attributes
    ----------
    growth_rate : int
        New channels per Dense Block.
    stem_pool : {3, 2}
        Window size of the pooling in the stem.
    dilations : tuple of int or None
        Dilation of the binary convolutions per stage, as in dilated networks for segmentation. The map is not halved before a stage with
        a dilation above 1. None: 1 in all stages.
    downsample_structure : str or None
        Layers of a transition, separated by commas: ``bn``, ``relu``, ``max_pool``, ``pool`` (average), ``cs`` (channel shuffle),
        ``fp_conv`` (full-precision 1x1 convolution) and ``q_conv`` (binary 1x1 convolution); ``cs:N`` and ``fp_conv:N`` have N groups.
        None: the network's layers, ``bn,max_pool,relu,fp_conv`` for MeliusNet-22.
    """

    growth_rate: int = 64
    stem_pool: int = 3
    dilations: Optional[Tuple[int, ...]] = None
    downsample_structure: Optional[str] = None


@dataclasses.dataclass(frozen=True)
class Variant:
    """A named network: its architecture, its default options, its name in BMXNet-v2, and what else `register` takes."""

    architecture: MeliusNetArchitecture
    options: MeliusNetOptions = MeliusNetOptions()
    alias: Optional[str] = None
    flexible: bool = False
    source: str = 'arXiv:2001.05936'
    preset: Optional[str] = None


# BinaryDenseNet: Bethge et al. 2019, arXiv:1906.08637, table 2.
_DENSENET = {'source': 'arXiv:1906.08637', 'preset': 'binary-densenet'}
_HALVES = (1 / 2, 1 / 2, 1 / 2)

NETWORKS = {
    'meliusnet22': Variant(MeliusNetArchitecture((4, 5, 4, 4), (160, 224, 256))),
    'meliusnet29': Variant(MeliusNetArchitecture((4, 6, 8, 6), (128, 192, 256))),
    'meliusnet42': Variant(MeliusNetArchitecture((5, 8, 14, 10), (160, 256, 416))),
    'meliusnet59': Variant(MeliusNetArchitecture((6, 12, 24, 12), (192, 320, 544)), preset='meliusnet59'),
    'meliusneta': Variant(MeliusNetArchitecture((4, 5, 5, 6), (160, 256, 288), groups=4), alias='meliusnet_a'),
    'meliusnetb': Variant(MeliusNetArchitecture((4, 6, 8, 6), (160, 224, 320), groups=2), alias='meliusnet_b'),
    'meliusnetc': Variant(MeliusNetArchitecture((3, 5, 10, 6), (128, 192, 288), groups=4), alias='meliusnet_c'),
    # The naive combination of supplement B, with as many operations as meliusnet22:
    'naivenet17': Variant(MeliusNetArchitecture((3, 3, 3, 3), (128, 160, 192), block='naive')),
    # Reductions of 2.7, 2.7, 2.2; of 3.3, 3.3, 4; of 2.7, 3.3, 4:
    'binary_densenet28': Variant(MeliusNetArchitecture((6, 6, 6, 5), (160, 192, 256), block='dense'), alias='densenet28', **_DENSENET),
    'binary_densenet37': Variant(MeliusNetArchitecture((6, 8, 12, 6), (128, 192, 256), block='dense'), alias='densenet37', **_DENSENET),
    'binary_densenet45': Variant(MeliusNetArchitecture((6, 12, 14, 8), (160, 288, 288), block='dense'), alias='densenet45', **_DENSENET),
    # From Larq Zoo (https://docs.larq.dev/zoo/api/literature/#binarydensenet37dilated): the last two stages keep the size of the map.
    'binary_densenet37_dilated': Variant(
        MeliusNetArchitecture((6, 8, 12, 6), (128, 192, 256), block='dense'), MeliusNetOptions(dilations=(1, 1, 2, 4)), **_DENSENET
    ),
    # Float networks of the paper's comparison (section 4.2): of a depth that trains well, transitions as in DenseNet.
    'meliusnet_32bit': Variant(MeliusNetArchitecture((4, 4, 4, 3), (160, 192, 224), pool_first=False), MeliusNetOptions(bits=32)),
    'densenet_32bit': Variant(
        MeliusNetArchitecture((6, 6, 6, 5), (160, 192, 256), block='dense', pool_first=False), MeliusNetOptions(bits=32)
    ),
    # Of any size: the architecture, of which these are the defaults, is also given by arguments of get_model.
    'meliusnet_flex': Variant(MeliusNetArchitecture((4, 4, 4, 3), _HALVES), flexible=True),
    'binary_densenet_flex': Variant(
        MeliusNetArchitecture((6, 6, 6, 5), _HALVES, block='dense'), alias='densenet_flex', flexible=True, **_DENSENET
    ),
}


class MeliusNet(ZooNetwork):
    """A MeliusNet of any size."""

    def __init__(
        self, architecture: MeliusNetArchitecture, options: MeliusNetOptions = MeliusNetOptions(), classes: int = 1000, **kwargs: Any
    ) -> None:  # noqa: B008
        super().__init__(**kwargs)
        stages = len(architecture.block_numbers)
        dilations = options.dilations or (1,) * stages
        if len(dilations) != stages:
            raise UserError(f'{stages} stages need {stages} dilations, not {len(dilations)}')
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            stride = add_stem(features, options, pool=options.stem_pool)
            channels = options.init_features
            for number, (blocks, dilation) in enumerate(zip(architecture.block_numbers, dilations), start=1):
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                with stage.name_scope():
                    for _ in range(blocks):
                        stage.add(BLOCKS[architecture.block](channels, options.growth_rate, options, dilation, prefix=''))
                        channels += options.growth_rate
                features.add(stage)
                if number < stages:
                    width = _transition_width(architecture.transitions[number - 1], channels)
                    structure = _parsed(options.downsample_structure or architecture.downsample_structure, dilations[number] > 1)
                    features.add(_transition(channels, width, structure, options))
                    channels, stride = width, stride * 2 ** sum(name in _POOLS for name, _ in structure)
            features.add(options.norm(), nn.Activation('relu'), nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=channels)


def _transition_width(width_or_fraction, channels):
    if width_or_fraction >= 1:
        return int(width_or_fraction)
    kept = channels // (1 / width_or_fraction)  # rounded as in BMXNet-v2, which divides by a reduction
    width = int(round(kept / WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
    if width <= 0:
        raise UserError(f'the transition {width_or_fraction} leaves none of {channels} channels, rounded to a multiple of {WIDTH_MULTIPLE}')
    return width


_POOLS = ('max_pool', 'pool')
# Layer of a transition -> its groups, if it is not said how many; None: it has none.
_TRANSITION_LAYERS = {'bn': None, 'relu': None, 'max_pool': None, 'pool': None, 'cs': SHUFFLE_GROUPS, 'fp_conv': 1, 'q_conv': None}


def _parsed(structure, keeps_size):
    """Return the layers of a transition, pairs of name and groups; without pooling if it keeps the size of the map."""
    layers = []
    for text in structure.split(','):
        name, colon, number = text.strip().partition(':')
        groups = _TRANSITION_LAYERS.get(name)
        if name not in _TRANSITION_LAYERS or (colon and (groups is None or not number.isdigit() or not int(number))):
            raise UserError(f'downsample_structure {structure!r}: {text!r} is not one of {", ".join(_TRANSITION_LAYERS)}, cs:N, fp_conv:N')
        layers.append((name, int(number) if colon else groups))
    convolutions = sum(name.endswith('conv') for name, _ in layers)
    if convolutions != 1:
        raise UserError(f'downsample_structure {structure!r}: it must have one fp_conv or q_conv, not {convolutions}')
    return [(name, groups) for name, groups in layers if not (keeps_size and name in _POOLS)]


def _transition(channels, width, structure, options):
    """Return the layers of a transition from `channels` to `width` channels."""
    layers = nn.HybridSequential(prefix='')
    for name, groups in structure:
        if channels % (groups or 1) or (name == 'fp_conv' and width % groups):
            raise UserError(
                f'a transition from {channels} to {width} channels cannot have {groups} groups in {name}: these must be multiples of it'
            )
        if name == 'bn':
            layers.add(options.norm())
        elif name == 'relu':
            layers.add(nn.Activation('relu'))
        elif name == 'max_pool':
            layers.add(nn.MaxPool2D(pool_size=2, strides=2))
        elif name == 'pool':
            layers.add(nn.AvgPool2D(pool_size=2, strides=2))
        elif name == 'cs':
            layers.add(ChannelShuffle(groups))
        elif name == 'q_conv':
            layers.add(options.binary_conv(width, kernel_size=1, in_channels=channels))
        elif groups > 1:
            layers.add(GroupedConv2D(width, kernel_size=1, groups=groups, use_bias=False))
        else:
            layers.add(nn.Conv2D(width, kernel_size=1, use_bias=False))
        channels = width if name.endswith('conv') else channels
    return layers


for _name, _row in NETWORKS.items():
    register(_name, MeliusNet, **vars(_row))
