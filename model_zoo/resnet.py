"""Residual binary networks with a shortcut around every convolution: ResNetE and Bi-Real Net.

ResNetE: Bethge et al. 2019, *Back to Simplicity: How to Train Accurate BNNs from Scratch?*, arXiv:1906.08637, section 3.
Bi-Real Net: Liu et al. 2018, arXiv:1808.00278. The float map is added up along the shortcuts; each binary convolution reads its signs.
"""

import dataclasses
import functools
from typing import Tuple

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.layers import BinaryConv2D

from .padding import SamePadded, padded
from .registry import register
from .stems import THUMBNAIL, add_stem

CHANNELS = (64, 128, 256, 512)  # of the four stages
INPUT_NORM = {'scale': False, 'epsilon': 2e-5}


@dataclasses.dataclass(frozen=True)
class Variant:
    """What tells the two families apart.

    Attributes
    ----------
    input_norm : bool
        Normalize the image first.
    relus : bool
        A ReLU before the stem's pooling and one before the last pooling.
    stage_norm : bool
        Normalize once more between the stem's pooling and the first stage.
    clip_threshold : float
        Default of the argument of this name.
    convolution : dict
        Further arguments of every `BinaryConv2D`.
    """

    input_norm: bool
    relus: bool
    stage_norm: bool
    clip_threshold: float
    convolution: dict = dataclasses.field(default_factory=dict)


RESNET_E = Variant(input_norm=True, relus=True, stage_norm=True, clip_threshold=1.3)
# Its sign has the gradient of section 3.3, max(0, 2 - 2|x|), and its weights the magnitude of their filter (equation 7).
BIREALNET = Variant(
    input_norm=False,
    relus=False,
    stage_norm=False,
    clip_threshold=1.0,
    convolution={'activation_method': 'approx_sign', 'apply_scaling': True},
)


@dataclasses.dataclass(frozen=True)
class Spec:
    """A row of the table of networks.

    Attributes
    ----------
    layers : tuple of int
        Binary convolutions in each stage, each with its own shortcut: twice the blocks of a ResNet.
    variant : Variant
    aliases : tuple of str
        Names in BMXNet-v2.
    """

    layers: Tuple[int, ...]
    variant: Variant
    aliases: Tuple[str, ...] = ()


SPECS = {
    'resnet_e18': Spec((4, 4, 4, 4), RESNET_E, aliases=('resnet18_e1',)),
    'resnet_e34': Spec((6, 8, 12, 6), RESNET_E, aliases=('resnet34_e1',)),
    'birealnet18': Spec((4, 4, 4, 4), BIREALNET),
    'birealnet34': Spec((6, 8, 12, 6), BIREALNET),
}


class ResidualBlock(HybridBlock):
    """``BN(conv(x)) + shortcut(x)``.

    Where the map is halved, the shortcut is a 2x2 average pooling, a full-precision 1x1 convolution and a BN, otherwise x itself.
    Input (N, C, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, channels, stride, norm, conv, last_gamma=False, same_padding=False, **kwargs):
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = padded(functools.partial(conv, channels, strides=stride), 3, stride, same_padding)
            self.norm = norm(gamma_initializer='zeros' if last_gamma else 'ones')
            self.shortcut = None
            if stride > 1:
                self.shortcut = nn.HybridSequential(prefix='')
                self.shortcut.add(nn.AvgPool2D(stride, stride, ceil_mode=True, count_include_pad=False))
                self.shortcut.add(nn.Conv2D(channels, kernel_size=1, use_bias=False, prefix='sc_conv_'), norm())

    def hybrid_forward(self, F, x):
        shortcut = self.shortcut(x) if self.shortcut else x
        return self.norm(self.conv(x)) + shortcut


class BinaryResNet(HybridBlock):
    """A residual binary network of one of the variants.

    Parameters
    ----------
    layers, variant
        As in `Spec`.
    init_features, classes, initial_layers, clip_threshold, bits, weight_bits, norm_layer, norm_kwargs, conv_kwargs, same_padding
        As in `model_zoo.meliusnet.MeliusNet`; clip_threshold None takes the variant's.
    input_norm : bool or None
        Normalize the image first; None: as the variant does.
    last_gamma : bool
        Each block starts as its shortcut: the gamma of its normalization starts at zero, as in GluonCV's networks (Goyal et al. 2017,
        arXiv:1706.02677, section 5.1).

    Input (N, 3, H, W) of any size, float32; output (N, classes) logits. ``features`` and ``output`` as in GluonCV.
    """

    def __init__(
        self,
        layers,
        variant,
        init_features=64,
        classes=1000,
        initial_layers='grouped_stem',
        clip_threshold=None,
        bits=1,
        weight_bits=None,
        last_gamma=False,
        norm_layer=nn.BatchNorm,
        norm_kwargs=None,
        conv_kwargs=None,
        same_padding=False,
        input_norm=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        if not 1 <= len(layers) <= len(CHANNELS):
            raise UserError(f'a residual network has 1 to {len(CHANNELS)} stages, not {len(layers)}')
        norm = functools.partial(norm_layer, **(norm_kwargs or {}))
        threshold = variant.clip_threshold if clip_threshold is None else clip_threshold
        conv = functools.partial(
            BinaryConv2D,
            kernel_size=3,
            threshold=threshold,
            bits=bits,
            weight_bits=weight_bits,
            prefix='',
            **variant.convolution,
            **(conv_kwargs or {}),
        )
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            if variant.input_norm if input_norm is None else input_norm:
                features.add(norm(**INPUT_NORM))
            stride = add_stem(initial_layers, features, init_features, norm, relu=variant.relus, same_padding=same_padding)
            if variant.stage_norm and initial_layers != THUMBNAIL:
                features.add(norm())
            for number, (blocks, channels) in enumerate(zip(layers, CHANNELS), start=1):
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                halving = 1 if number == 1 else 2
                stride *= halving
                with stage.name_scope():
                    for index in range(blocks):
                        stage.add(ResidualBlock(channels, halving if index == 0 else 1, norm, conv, last_gamma, same_padding, prefix=''))
                features.add(stage)
            if variant.relus:
                features.add(nn.Activation('relu'))
            features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = SamePadded(features, stride, prefix='') if same_padding else features
            self.output = nn.Dense(classes, in_units=CHANNELS[len(layers) - 1])

    def hybrid_forward(self, F, x):
        return self.output(self.features(x))


for _name, _spec in SPECS.items():
    register(_name, functools.partial(BinaryResNet, _spec.layers, _spec.variant), _spec.aliases)
