"""VGG-Small for images of CIFAR, with the binary layers of IR-Net, ReCU and AdaBin.

Six 3x3 convolutions, of which the first is float, each followed by a BN and an activation; every second one is pooled before its BN. The
output layer reads the whole last map, so a network accepts one size of images. As in the authors' code of IR-Net (github.com/htqin/IR-Net,
CIFAR-10/VGG-Small) and ReCU (github.com/z-hXu/ReCU, cifar). The code of AdaBin has no such network; this one has AdaBin's layers in their
place, and its Maxout in place of hard tanh.
"""

import dataclasses
import functools
from typing import Any, Callable, Dict, Optional, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.layers import BinaryConv2D
from bmx_melius.nn.methods.adabin import AdaBinConv2D, Maxout
from bmx_melius.nn.methods.ir_net import IRNetConv2D
from bmx_melius.nn.methods.recu import ReCUConv2D

from .layer_options import NetworkOptions
from .registry import CIFAR, register
from .stems import THUMBNAIL, add_stem, norm_activation_pool
from .units import hard_tanh
from .zoo_network import ZooNetwork

WIDTHS = (1, 2, 2, 4, 4)  # channels of the binary convolutions / channels of the first one
POOLED = (0, 2, 4)  # binary convolutions whose map is halved
STRIDE = 2 ** len(POOLED)


@dataclasses.dataclass(frozen=True)
class VGGSmallOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for these networks.

    Attributes
    ----------
    input_size : int
        Height and width of the images, a multiple of 8.
    """

    initial_layers: str = THUMBNAIL
    init_features: int = 128
    input_size: int = 32


@dataclasses.dataclass(frozen=True)
class VGGSmallArchitecture:
    """Architecture of a named network: its binary convolution, that layer's arguments, and its activation, given the channels."""

    layer: Type[BinaryConv2D]
    activation: Callable[[int], HybridBlock]
    arguments: Dict[str, Any] = dataclasses.field(default_factory=dict)


class VGGSmall(ZooNetwork):
    """Input (N, 3, H, W) of one size, output (N, classes) logits. Raises `UserError` for a size that is not a multiple of 8."""

    def __init__(self, architecture: VGGSmallArchitecture, options: VGGSmallOptions, classes: int = 10, **kwargs: Any) -> None:
        super().__init__(options.input_size, **kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix='')
            end = functools.partial(norm_activation_pool, activation=architecture.activation)
            stride = STRIDE * add_stem(self.features, options, end, normalized=True)
            if options.input_size % stride:
                raise UserError(f'input_size={options.input_size} is not a multiple of {stride}, the total stride of this network')
            channels = options.init_features
            for index, width in enumerate(WIDTHS):
                filters = width * options.init_features
                arguments = {'padding': 1, 'in_channels': channels, **architecture.arguments}
                self.features.add(options.binary_conv(filters, architecture.layer, **arguments))
                if index in POOLED:
                    self.features.add(nn.MaxPool2D(2, 2))
                self.features.add(options.norm(), architecture.activation(filters))
                channels = filters
            self.features.add(nn.Flatten())
            self.output = nn.Dense(classes, in_units=channels * (options.input_size // stride) ** 2)


def _register(name: str, architecture: VGGSmallArchitecture, source: str, preset: str, clip_threshold: Optional[float] = 1.0) -> None:
    options = VGGSmallOptions(clip_threshold=clip_threshold)
    register(name, VGGSmall, architecture, options, source=source, preset=preset, classes=10, input_shape=CIFAR)


_register('vgg_small_irnet', VGGSmallArchitecture(IRNetConv2D, hard_tanh, {'slope_at_start': 0.1}), 'arXiv:1909.10788', 'ir-net', None)
_register('vgg_small_recu', VGGSmallArchitecture(ReCUConv2D, hard_tanh), 'arXiv:2103.12369', 'recu')
_register('vgg_small_adabin', VGGSmallArchitecture(AdaBinConv2D, Maxout), 'arXiv:2208.08084', 'adabin')
