"""QuickNet: Bannink et al. 2021, *Larq Compute Engine*, arXiv:2011.09398; layers as in Larq Zoo 2.

A float stem without pooling, four stages of residual blocks with one binary convolution, and transitions in which the map is halved by
anti-aliased pooling and the channels are changed by a float 1x1 convolution. The ReLU directly after the convolution and the padding with
+1 are chosen for Larq's kernels; the order ReLU, BN also applies here.
"""

import dataclasses
from typing import Any, Optional, Tuple

from mxnet.gluon import HybridBlock, nn

from .layer_options import NetworkOptions
from .padding import padded_features
from .registry import register
from .stems import add_stem
from .zoo_network import ZooNetwork

CLIP = 1.25  # threshold of the gradients of activations and weights


@dataclasses.dataclass(frozen=True)
class QuickNetOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for all networks of this family."""

    initial_layers: str = 'quicknet'
    clip_threshold: Optional[float] = CLIP


@dataclasses.dataclass(frozen=True)
class QuickNetArchitecture:
    """Architecture of a named network: residual blocks and channels per stage."""

    blocks: Tuple[int, ...]
    channels: Tuple[int, ...] = (64, 128, 256, 512)


ARCHITECTURES = {
    'quicknet': QuickNetArchitecture((4, 4, 4, 4)),
    'quicknet_small': QuickNetArchitecture((4, 4, 4, 4), (32, 64, 256, 512)),
    'quicknet_large': QuickNetArchitecture((6, 8, 12, 6)),
}


class ResidualBlock(HybridBlock):
    """``BN(relu(conv(sign(x)))) + x``, with a binary 3x3 convolution. Input and output (N, channels, H, W)."""

    def __init__(self, channels: int, options: QuickNetOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.conv = options.binary_conv(channels, padding=1, pad_value=1, no_offset=True, weight_threshold=CLIP, in_channels=channels)
            self.relu = nn.Activation('relu')
            self.norm = options.norm()

    def hybrid_forward(self, F, x):
        return self.norm(self.relu(self.conv(x))) + x


BLUR = ((1 / 16, 1 / 8, 1 / 16), (1 / 8, 1 / 4, 1 / 8), (1 / 16, 1 / 8, 1 / 16))  # filter of the anti-aliased pooling


class Transition(nn.HybridSequential):
    """Layers that halve the map and change the channels: ReLU, anti-aliased max pooling, float 1x1 convolution and BN.

    The pooling is a maximum over 2x2 windows with stride 1, and a convolution of each channel by `BLUR`, [1, 2, 1] x [1, 2, 1] / 16, with
    stride 2 and padding 1 (Zhang 2019, arXiv:1904.11486). The latter is computed as two averages over 2x2 windows, the second with
    stride 2.
    """

    def __init__(self, channels: int, in_channels: int, options: QuickNetOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(nn.Activation('relu'), nn.MaxPool2D(2, strides=1))
            self.add(nn.AvgPool2D(2, strides=1, padding=1), nn.AvgPool2D(2, strides=2))
            self.add(nn.Conv2D(channels, 1, use_bias=False, in_channels=in_channels), options.norm())


class QuickNet(ZooNetwork):
    """A QuickNet. Height and width of images are at least 32 with the default stem."""

    def __init__(
        self, architecture: QuickNetArchitecture, options: QuickNetOptions = QuickNetOptions(), classes: int = 1000, **kwargs: Any
    ) -> None:  # noqa: B008
        super().__init__(**kwargs)
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            stride = add_stem(features, options)
            channels = options.init_features
            widths = (channels, *architecture.channels[1:])
            for number, (blocks, width) in enumerate(zip(architecture.blocks, widths), start=1):
                stage = nn.HybridSequential(prefix=f'stage{number}_')
                with stage.name_scope():
                    if number > 1:
                        stage.add(Transition(width, channels, options, prefix=''))
                        stride *= 2
                    stage.add(*(ResidualBlock(width, options, prefix='') for _ in range(blocks)))
                features.add(stage)
                channels = width
            features.add(nn.Activation('relu'), nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=channels)


for _name, _architecture in ARCHITECTURES.items():
    _options = QuickNetOptions(init_features=_architecture.channels[0])
    register(_name, QuickNet, _architecture, _options, source='arXiv:2011.09398', preset='quicknet')
