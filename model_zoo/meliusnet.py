"""MeliusNet (Bethge et al. 2020, arXiv:2001.05936): Dense Blocks and Improvement Blocks in alternation.

A Dense Block appends `growth_rate` new channels to its input, an Improvement Block improves just these by addition; between stages a
transition halves the map and reduces the channels by a full-precision 1x1 convolution. With another block the same plan gives the two
networks it is compared with: BinaryDenseNet, which has no Improvement Blocks, and the paper's naive combination.
"""

import dataclasses
import functools
from typing import Optional, Tuple, Union

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.layers import BinaryConv2D, ChannelShuffle, GroupedConv2D

from .blocks import BLOCKS
from .padding import SamePadded
from .registry import register
from .stems import add_stem

SHUFFLE_GROUPS = 16  # of every transition with a grouped convolution, whatever its number of groups
WIDTH_MULTIPLE = 32


@dataclasses.dataclass(frozen=True)
class Spec:
    """A row of the table of networks (paper, tables 2 and 4).

    Attributes
    ----------
    block_numbers : tuple of int
        Blocks in each stage; one with ``improvement`` is a pair of Dense and Improvement Block.
    transitions : tuple of int or float
        Between stages: the channels after it, or, below 1, the fraction of channels kept, rounded to a multiple of 32.
    groups : int
        Of the transitions' convolutions; above 1 the channels are shuffled before.
    block : str
        A key of `model_zoo.blocks.BLOCKS`: ``improvement``, ``dense`` or ``naive``.
    pool_first : bool
        Whether a transition halves the map before its convolution by a maximum (the paper), or after it by a mean (DenseNet).
    bits : int
        1, or 32 for a network that was never meant to be binary.
    dilations : tuple of int or None
        As in `MeliusNet`.
    aliases : tuple of str
        Names in BMXNet-v2.
    """

    block_numbers: Tuple[int, ...]
    transitions: Tuple[Union[int, float], ...]
    groups: int = 1
    block: str = 'improvement'
    pool_first: bool = True
    bits: int = 1
    dilations: Optional[Tuple[int, ...]] = None
    aliases: Tuple[str, ...] = ()


SPECS = {
    'meliusnet22': Spec((4, 5, 4, 4), (160, 224, 256)),
    'meliusnet29': Spec((4, 6, 8, 6), (128, 192, 256)),
    'meliusnet42': Spec((5, 8, 14, 10), (160, 256, 416)),
    'meliusnet59': Spec((6, 12, 24, 12), (192, 320, 544)),
    'meliusneta': Spec((4, 5, 5, 6), (160, 256, 288), groups=4, aliases=('meliusnet_a',)),
    'meliusnetb': Spec((4, 6, 8, 6), (160, 224, 320), groups=2, aliases=('meliusnet_b',)),
    'meliusnetc': Spec((3, 5, 10, 6), (128, 192, 288), groups=4, aliases=('meliusnet_c',)),
    # Of as many operations as meliusnet22:
    'naivenet17': Spec((3, 3, 3, 3), (128, 160, 192), block='naive'),
    # Bethge et al. 2019, arXiv:1906.08637, table 2: reductions of 2.7, 2.7, 2.2; of 3.3, 3.3, 4; of 2.7, 3.3, 4.
    'binary_densenet28': Spec((6, 6, 6, 5), (160, 192, 256), block='dense', aliases=('densenet28',)),
    'binary_densenet37': Spec((6, 8, 12, 6), (128, 192, 256), block='dense', aliases=('densenet37',)),
    'binary_densenet45': Spec((6, 12, 14, 8), (160, 288, 288), block='dense', aliases=('densenet45',)),
    # Of Larq Zoo (https://docs.larq.dev/zoo/api/literature/#binarydensenet37dilated): the last two stages keep the size of the map.
    'binary_densenet37_dilated': Spec((6, 8, 12, 6), (128, 192, 256), block='dense', dilations=(1, 1, 2, 4)),
    # The 32-bit networks of the paper's comparison (supplement): as deep as what trains well, transitions as in DenseNet.
    'meliusnet_32bit': Spec((4, 4, 4, 3), (160, 192, 224), pool_first=False, bits=32),
    'densenet_32bit': Spec((6, 6, 6, 5), (160, 192, 256), block='dense', pool_first=False, bits=32),
}


class MeliusNet(HybridBlock):
    """A MeliusNet of any size.

    Parameters
    ----------
    block_numbers, transitions, groups, block, pool_first
        As in `Spec`.
    growth_rate : int
        Channels a Dense Block adds.
    init_features : int
        Channels after the stem.
    classes : int
        Number of outputs.
    initial_layers : str
        The stem: ``grouped_stem``, ``imagenet`` or ``thumbnail``, see `model_zoo.stems`.
    clip_threshold : float
        The gradient of a sign is cancelled where its input's magnitude exceeds this (paper, section 4.1).
    bits : int
        1, or 32 for the network's float twin: the same layers without quantization.
    weight_bits : int or None
        32 keeps the weights of binary layers real while activations are binary, the first stage of two-stage training, see
        `bmx_melius.BinaryConv2D`; None: as `bits`.
    norm_layer, norm_kwargs : HybridBlock class and dict
        The normalization and its arguments, as in GluonCV.
    conv_kwargs : dict
        Further arguments of every `bmx_melius.BinaryConv2D`, such as ``pad_value=0`` and ``no_offset=True``.
    stem_pool : {3, 2}
        Size of the window of the stem's pooling.
    same_padding : bool
        Pad the layers that halve the map as TensorFlow does, see `model_zoo.padding`; H and W must then be multiples of the stride of all
        layers, 32 in the networks of the table.
    dilations : tuple of int or None
        Of the binary convolutions in each stage, as in dilated networks for segmentation: before a stage with one above 1 the map is
        not halved. None: 1 everywhere.

    Input (N, 3, H, W) of any size, float32; output (N, classes) logits. ``features`` and ``output`` as in GluonCV.
    """

    def __init__(
        self,
        block_numbers,
        transitions,
        groups=1,
        block='improvement',
        pool_first=True,
        growth_rate=64,
        init_features=64,
        classes=1000,
        initial_layers='grouped_stem',
        clip_threshold=1.3,
        bits=1,
        weight_bits=None,
        norm_layer=nn.BatchNorm,
        norm_kwargs=None,
        conv_kwargs=None,
        stem_pool=3,
        same_padding=False,
        dilations=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if len(transitions) != len(block_numbers) - 1:
            raise UserError(f'{len(block_numbers)} stages need {len(block_numbers) - 1} transitions, not {len(transitions)}')
        if block not in BLOCKS:
            raise UserError(f'unknown block {block!r}; known: {", ".join(BLOCKS)}')
        dilations = dilations or (1,) * len(block_numbers)
        if len(dilations) != len(block_numbers):
            raise UserError(f'{len(block_numbers)} stages need {len(block_numbers)} dilations, not {len(dilations)}')
        norm = functools.partial(norm_layer, **(norm_kwargs or {}))
        conv = functools.partial(
            BinaryConv2D, kernel_size=3, threshold=clip_threshold, bits=bits, weight_bits=weight_bits, prefix='', **(conv_kwargs or {})
        )
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            stride = add_stem(initial_layers, features, init_features, norm, pool=stem_pool, same_padding=same_padding)
            channels = init_features
            for number, (blocks, dilation) in enumerate(zip(block_numbers, dilations), start=1):
                dilated = functools.partial(conv, padding=dilation, dilation=dilation)
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                with stage.name_scope():
                    for _ in range(blocks):
                        stage.add(BLOCKS[block](channels, growth_rate, norm, dilated, prefix=''))
                        channels += growth_rate
                features.add(stage)
                if number <= len(transitions):
                    width = _transition_width(transitions[number - 1], channels)
                    pool = None if dilations[number] > 1 else 'max' if pool_first else 'avg'
                    features.add(_transition(channels, width, groups, norm, pool))
                    channels, stride = width, stride * (2 if pool else 1)
            features.add(norm(), nn.Activation('relu'), nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = SamePadded(features, stride, prefix='') if same_padding else features
            self.output = nn.Dense(classes, in_units=channels)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


def _transition_width(width_or_fraction, channels):
    if width_or_fraction >= 1:
        return int(width_or_fraction)
    width = int(round(channels * width_or_fraction / WIDTH_MULTIPLE)) * WIDTH_MULTIPLE
    if width <= 0:
        raise UserError(f'the transition {width_or_fraction} leaves none of {channels} channels, rounded to a multiple of {WIDTH_MULTIPLE}')
    return width


def _transition(channels, width, groups, norm, pool):
    """BN, 2x2 max pooling, ReLU and a 1x1 convolution (paper, section 3.3); pooling before the ReLU costs a quarter of the ReLUs.

    Or, as in DenseNet, BN, ReLU, a 1x1 convolution and 2x2 average pooling. `pool` is ``max``, ``avg``, or None for neither.
    """
    layers = nn.HybridSequential(prefix='')
    layers.add(norm())
    if pool == 'max':
        layers.add(nn.MaxPool2D(pool_size=2, strides=2))
    layers.add(nn.Activation('relu'))
    if groups > 1:
        if channels % SHUFFLE_GROUPS or channels % groups or width % groups:
            raise UserError(
                f'a transition from {channels} to {width} channels cannot have {groups} groups: both numbers must be multiples of it, '
                f'and the first one of the {SHUFFLE_GROUPS} groups of the channel shuffle'
            )
        layers.add(ChannelShuffle(SHUFFLE_GROUPS), GroupedConv2D(width, kernel_size=1, groups=groups, use_bias=False))
    else:
        layers.add(nn.Conv2D(width, kernel_size=1, use_bias=False))
    if pool == 'avg':
        layers.add(nn.AvgPool2D(pool_size=2, strides=2))
    return layers


for _name, _spec in SPECS.items():
    register(
        _name,
        functools.partial(
            MeliusNet,
            _spec.block_numbers,
            _spec.transitions,
            _spec.groups,
            _spec.block,
            _spec.pool_first,
            bits=_spec.bits,
            dilations=_spec.dilations,
        ),
        _spec.aliases,
    )

# One of one's own: every argument of `MeliusNet`, with defaults for the numbers of blocks and the transitions.
register('meliusnet_flex', functools.partial(MeliusNet, block_numbers=(4, 4, 4, 3), transitions=(1 / 2, 1 / 2, 1 / 2)))
