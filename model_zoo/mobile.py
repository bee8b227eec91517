"""Binary networks on the base of MobileNet: ReActNet-A (arXiv:2003.03488) and BNext (arXiv:2211.12933).

A 3x3 convolution of stride 2, then blocks of a binary 3x3 layer, which keeps the number of channels, and one or two binary 1x1 layers, of
which two are concatenated where the channels double (Liu et al. 2020, section 4.1 and figure 5). Blocks whose channels double, but for the
first one, halve the map. ReActNet has a shortcut around each layer; those of BNext are in its parts.
"""

import dataclasses
from typing import Any, Callable, Optional, Tuple

from mxnet.gluon import HybridBlock, nn

from bmx_melius.nn.channels import concat
from bmx_melius.nn.channelwise import PReLU, Shift
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION
from bmx_melius.nn.methods.reactnet import RPReLU

from .layer_options import NetworkOptions
from .padding import average_pool, padded_features
from .registry import register
from .stems import add_stem, norm_pool
from .units import BNextLayer, UnitPlace, chain
from .zoo_network import ZooNetwork


@dataclasses.dataclass(frozen=True)
class MobileOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for these networks."""

    initial_layers: str = 'mobilenet'
    init_features: int = 32
    clip_threshold: Optional[float] = 1.0


@dataclasses.dataclass(frozen=True)
class MobileArchitecture:
    """Architecture of a named network.

    Attributes
    ----------
    widths : tuple of int
        Channels after each block / channels after the stem.
    block : callable (place, options, index) -> HybridBlock
        The block with the number `index`, from 1.
    tail : callable (channels) -> HybridBlock or None
        The layer between the last block and the pooling.
    """

    widths: Tuple[int, ...]
    block: Callable[..., HybridBlock]
    tail: Optional[Callable[[int], HybridBlock]] = None


class ReActNetBlock(HybridBlock):
    """A 3x3 layer and one or two 1x1 layers, each RSign, convolution and BN with a shortcut, and an RPReLU after each addition.

    Parameters
    ----------
    place : UnitPlace
        Of the block; its channels are as many as those of its input, or twice as many.
    options : NetworkOptions
    index : int
        Number of the block.

    Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, place: UnitPlace, options: NetworkOptions, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = place.in_channels
        first = dataclasses.replace(place, channels=width)
        point = UnitPlace(width, width, 1, place.total_stride, kernel_size=1)
        with self.name_scope():
            self.first = chain(Shift(width), first.binary_conv(options, **BIREAL_CONVOLUTION), options.norm())
            self.pool = average_pool(place.stride) if place.stride > 1 else None
            self.first_activation = RPReLU(width)
            self.shift = Shift(width)
            self.points = nn.HybridSequential(prefix='')
            for _ in range(place.channels // width):
                self.points.add(chain(point.binary_conv(options, **BIREAL_CONVOLUTION), options.norm()))
            self.activation = RPReLU(place.channels)

    def hybrid_forward(self, F, x):
        x = self.first_activation(self.first(x) + (self.pool(x) if self.pool else x))
        shifted = self.shift(x)
        parts = [layer(shifted) + x for layer in self.points]
        return self.activation(concat(F, *parts) if len(parts) > 1 else parts[0])


class BNextBlock(HybridBlock):
    """A 3x3 layer, which in blocks of even numbers multiplies by its shortcut, and one or two 1x1 layers. As `ReActNetBlock`."""

    def __init__(self, place: UnitPlace, options: NetworkOptions, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = place.in_channels
        point = UnitPlace(width, width, 1, place.total_stride, kernel_size=1)
        with self.name_scope():
            self.first = BNextLayer(dataclasses.replace(place, channels=width), options, index % 2 == 0)
            self.points = nn.HybridSequential(prefix='')
            for _ in range(place.channels // width):
                self.points.add(BNextLayer(point, options))

    def hybrid_forward(self, F, x):
        x = self.first(x)
        parts = [layer(x) for layer in self.points]
        return concat(F, *parts) if len(parts) > 1 else parts[0]


class BinaryMobileNet(ZooNetwork):
    """Input (N, 3, H, W), output (N, classes) logits."""

    def __init__(self, architecture: MobileArchitecture, options: MobileOptions, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            total_stride = add_stem(features, options, norm_pool, normalized=True)
            widths = [options.init_features * width for width in (1, *architecture.widths)]
            for index, (channels, wider) in enumerate(zip(widths, widths[1:]), start=1):
                stride = 2 if wider != channels and index > 1 else 1
                total_stride *= stride
                features.add(architecture.block(UnitPlace(wider, channels, stride, total_stride), options, index))
            if architecture.tail:
                features.add(architecture.tail(widths[-1]))
            features.add(nn.GlobalAvgPool2D(), nn.Flatten())
            self.features = padded_features(features, total_stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=widths[-1])


MOBILENET = (2, 4, 4, 8, 8, *(16,) * 6, 32, 32)
_OF_REACTNET = {'source': 'arXiv:2003.03488', 'preset': 'reactnet-a'}
_OF_BNEXT = {'source': 'arXiv:2211.12933', 'preset': 'bnext'}
# name -> widths, channels after the stem
BNEXTS = {
    'bnext_t': (MOBILENET, 32),
    'bnext_s': (MOBILENET, 48),
    'bnext_m': ((2, *(4,) * 4, *(8,) * 4, *(16,) * 8, *(32,) * 4), 48),
    'bnext_l': ((2, *(4,) * 4, *(8,) * 4, *(16,) * 16, *(32,) * 4), 64),
}

register('reactnet_a', BinaryMobileNet, MobileArchitecture(MOBILENET, ReActNetBlock), MobileOptions(), **_OF_REACTNET)
for _name, (_widths, _features) in BNEXTS.items():
    _options = MobileOptions(init_features=_features, clip_threshold=1.5)
    register(_name, BinaryMobileNet, MobileArchitecture(_widths, BNextBlock, PReLU), _options, **_OF_BNEXT)
