"""Residual binary networks with a shortcut around every convolution: ResNetE and Bi-Real Net.

ResNetE: Bethge et al. 2019, *Back to Simplicity: How to Train Accurate BNNs from Scratch?*, arXiv:1906.08637, section 3.
Bi-Real Net: Liu et al. 2018, arXiv:1808.00278, layers in `bmx_melius.methods.bireal_net`. The shortcuts form a float map, to which each
layer adds; binary convolutions use its signs.
"""

import dataclasses
import functools
from typing import Any, Mapping, Optional, Tuple

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.methods.bireal_net import BIREAL_CONVOLUTION

from .layer_options import NetworkOptions
from .padding import padded, padded_features
from .registry import register
from .stems import THUMBNAIL, add_stem

WIDTHS = (1, 2, 4, 8)  # channels of a stage / channels after the stem
INPUT_NORM = {'scale': False, 'epsilon': 2e-5}


@dataclasses.dataclass(frozen=True)
class Options(NetworkOptions):
    """Arguments of `model_zoo.get_model` for all networks of this family, with the defaults of ResNetE.

    Attributes
    ----------
    input_norm : bool
        Normalize the image by a BatchNorm before the stem.
    last_gamma : bool
        Initialize the gamma of the normalization in each block with 0, so that a block is initially its shortcut, as in GluonCV (Goyal et
        al. 2017, arXiv:1706.02677, section 5.1).
    """

    input_norm: bool = True
    last_gamma: bool = False


@dataclasses.dataclass(frozen=True)
class Variant:
    """Differences between ResNetE and Bi-Real Net.

    Attributes
    ----------
    relus : bool
        Whether there is a ReLU before the pooling of the stem and before the last pooling.
    stage_norm : bool
        Whether there is a normalization between the pooling of the stem and the first stage.
    convolution : dict
        Arguments of every `BinaryConv2D` in addition to those of the options.
    options : Options
        Default options.
    """

    relus: bool = True
    stage_norm: bool = True
    convolution: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    options: Options = Options()


RESNET_E = Variant()
BIREALNET = Variant(
    relus=False,
    stage_norm=False,
    convolution=BIREAL_CONVOLUTION,
    options=Options(clip_threshold=1.0, input_norm=False),
)


@dataclasses.dataclass(frozen=True)
class Architecture:
    """Architecture of a named network.

    Attributes
    ----------
    layers : tuple of int
        Binary convolutions per stage, each with a shortcut: twice the number of blocks of a ResNet.
    variant : Variant
    """

    layers: Tuple[int, ...]
    variant: Variant

    def __post_init__(self):
        if not 1 <= len(self.layers) <= len(WIDTHS):
            raise UserError(f'a residual network has 1 to {len(WIDTHS)} stages, not {len(self.layers)}')


ARCHITECTURES = {
    'resnet_e18': Architecture((4, 4, 4, 4), RESNET_E),
    'resnet_e34': Architecture((6, 8, 12, 6), RESNET_E),
    'birealnet18': Architecture((4, 4, 4, 4), BIREALNET),
    'birealnet34': Architecture((6, 8, 12, 6), BIREALNET),
}

# Names in BMXNet-v2.
ALIASES = {'resnet_e18': 'resnet18_e1', 'resnet_e34': 'resnet34_e1'}


class ResidualBlock(HybridBlock):
    """Residual block with one binary convolution: ``BN(conv(x)) + shortcut(x)``.

    The shortcut is the identity, or for stride 2 a 2x2 average pooling, a full-precision 1x1 convolution and a BN. Input (N, C, H, W);
    output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, channels: int, stride: int, options: Options, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            conv = functools.partial(options.binary_conv, channels, strides=stride)
            self.conv = padded(conv, 3, stride, options.same_padding)
            self.norm = options.norm(gamma_initializer='zeros' if options.last_gamma else 'ones')
            self.shortcut = None
            if stride > 1:
                self.shortcut = nn.HybridSequential(prefix='')
                self.shortcut.add(nn.AvgPool2D(stride, stride, ceil_mode=True, count_include_pad=False))
                self.shortcut.add(nn.Conv2D(channels, kernel_size=1, use_bias=False, prefix='sc_conv_'), options.norm())

    def hybrid_forward(self, F, x):
        shortcut = self.shortcut(x) if self.shortcut else x
        return self.norm(self.conv(x)) + shortcut


class BinaryResNet(HybridBlock):
    """A residual binary network: ResNetE or Bi-Real Net.

    Parameters
    ----------
    architecture : Architecture
    options : Options or None
        None: the defaults of the variant.
    classes : int
        Number of outputs.
    prefix, params
        As in every Gluon block.

    Input (N, 3, H, W) of any size, float32; output (N, classes) logits. ``features`` and ``output`` as in GluonCV.
    """

    def __init__(self, architecture: Architecture, options: Optional[Options] = None, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        variant = architecture.variant
        options = options or variant.options
        options = dataclasses.replace(options, conv_kwargs={**variant.convolution, **(options.conv_kwargs or {})})
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            if options.input_norm:
                features.add(options.norm(**INPUT_NORM))
            stride = add_stem(features, options, relu=variant.relus)
            if variant.stage_norm and options.initial_layers != THUMBNAIL:
                features.add(options.norm())
            for number, (blocks, width) in enumerate(zip(architecture.layers, WIDTHS), start=1):
                channels = width * options.init_features
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                halving = 1 if number == 1 else 2
                stride *= halving
                with stage.name_scope():
                    for index in range(blocks):
                        stage.add(ResidualBlock(channels, halving if index == 0 else 1, options, prefix=''))
                features.add(stage)
            if variant.relus:
                features.add(nn.Activation('relu'))
            features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=channels)

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


for _name, _architecture in ARCHITECTURES.items():
    register(_name, BinaryResNet, _architecture, _architecture.variant.options, alias=ALIASES.get(_name))
