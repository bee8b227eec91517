"""AlexNet with the layers of XNOR-Net: Rastegari et al. 2016, arXiv:1603.05279, section 4.1.

Layers, biases and epsilons follow the authors' code (github.com/allenai/XNOR-Net, models/alexnetxnor.lua): BN, sign, convolution with
a bias, and max pooling. The first convolution and the output layer are float, the latter a 1x1 convolution there. The two fully connected
layers between them are convolutions, of which the first has the size of the map, so that the network accepts one size of images. Their
normalizations have scale and shift: ``nn.SpatialBatchNormalization(n, 1e-4, false)`` of Torch has the momentum as its third argument.
Larq Zoo's version has no biases and no scales, and another padding of the first convolution (`model_zoo.larq`).
"""

import dataclasses
from typing import Any, Optional, Tuple

import mxnet as mx
from mxnet.gluon import nn

from bmx_melius.errors import UserError, last_line
from bmx_melius.nn.methods.xnor_net import XNORConv2D

from .layer_options import NetworkOptions
from .padding import padded_features
from .registry import register
from .stems import add_stem, alexnet_same
from .zoo_network import ZooNetwork


@dataclasses.dataclass(frozen=True)
class AlexNetOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for this network.

    Attributes
    ----------
    input_size : int
        Height and width of the images.
    use_bias : bool
        Whether the binary convolutions and the output layer have biases.
    """

    initial_layers: str = 'alexnet'
    init_features: int = 96
    clip_threshold: Optional[float] = 1.0
    input_size: int = 224
    use_bias: bool = True


@dataclasses.dataclass(frozen=True)
class AlexNetConvolution:
    """A row of the architecture: filters, kernel size (0: as the map), padding, and whether 3x3 max pooling of stride 2 follows."""

    channels: int
    kernel_size: int
    padding: int
    pool: bool = False


@dataclasses.dataclass(frozen=True)
class AlexNetArchitecture:
    """Architecture of the network: its binary layers, each with a normalization before its sign."""

    layers: Tuple[AlexNetConvolution, ...] = (
        AlexNetConvolution(256, 5, 2, pool=True),
        AlexNetConvolution(384, 3, 1),
        AlexNetConvolution(384, 3, 1),
        AlexNetConvolution(256, 3, 1, pool=True),
        AlexNetConvolution(4096, 0, 0),
        AlexNetConvolution(4096, 1, 0),
    )


class BinaryAlexNet(ZooNetwork):
    """The binary AlexNet of XNOR-Net. Images have the option `input_size`, which can be too small."""

    def __init__(
        self, architecture: AlexNetArchitecture, options: AlexNetOptions = AlexNetOptions(), classes: int = 1000, **kwargs: Any
    ) -> None:  # noqa: B008
        super().__init__(options.input_size, **kwargs)
        if options.same_padding:
            raise UserError(
                'alexnet_xnor cannot pad as TensorFlow does, because its pooling has no padding; '
                "initial_layers='alexnet_same' pads its first convolution so"
            )
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            add_stem(features, options)
            channels = options.init_features
            for layer in architecture.layers:
                kernel_size = layer.kernel_size or _map_size(features, options.input_size)
                conv = options.binary_conv(
                    layer.channels, XNORConv2D, kernel_size, padding=layer.padding, in_channels=channels, use_bias=options.use_bias
                )
                features.add(options.norm(epsilon=1e-4), conv)
                if layer.pool:
                    features.add(nn.MaxPool2D(3, 2))
                channels = layer.channels
            features.add(options.norm(epsilon=1e-3), nn.Activation('relu'), nn.Flatten())
            self.features = padded_features(features, 4, options.initial_layers == alexnet_same.__name__)
            self.output = nn.Dense(classes, use_bias=options.use_bias, in_units=channels)


def _map_size(features, input_size):
    """Return height and width of the map that the layers `features` compute from a square image."""
    try:
        _, (shape,), _ = features(mx.sym.var('data')).infer_shape(data=(1, 3, input_size, input_size))
    except mx.MXNetError as error:
        raise UserError(f'input_size={input_size} is too small for this network: {last_line(error)}') from error
    return shape[2]


register('alexnet_xnor', BinaryAlexNet, AlexNetArchitecture(), AlexNetOptions(), source='arXiv:1603.05279', preset='xnor-net')
