"""VGG and AlexNet of BMXNet-v2: binary weights, real activations.

Source: github.com/hpi-xnor/BMXNet-v2-examples, binary_models/vgg.py and alexnet.py. The first convolution and the output layer are
full-precision; no layer quantizes activations, and the results of binary layers are (h + n) / 2, see `bmx_melius.QConv2D`. The first fully
connected layer has a weight for each position of the map, so a network accepts one size of images.
"""

import dataclasses
from typing import Any, Mapping, Optional, Tuple, Type

from mxnet.gluon import HybridBlock, nn

from bmx_melius.nn.layers import QConv2D, QDense

from .registry import BMXNET_V2, register
from .zoo_network import ZooNetwork


@dataclasses.dataclass(frozen=True)
class BinaryWeightOptions:
    """Arguments of `model_zoo.get_model` for these networks.

    Attributes
    ----------
    bits : int
        1, or 32 for the full-precision counterpart of the network.
    batch_norm : bool
        Whether a normalization follows each convolution, as in ``vgg11_bn`` of BMXNet-v2.
    norm_layer, norm_kwargs : HybridBlock class and dict
        This normalization and its arguments, as in GluonCV.
    init_features : int
        Channels of the first convolution, to which all widths are proportional.
    input_size : int
        Height and width of the images.
    """

    bits: int = 1
    batch_norm: bool = False
    norm_layer: Type[HybridBlock] = nn.BatchNorm
    norm_kwargs: Optional[Mapping[str, Any]] = None
    init_features: int = 64
    input_size: int = 224


@dataclasses.dataclass(frozen=True)
class BinaryWeightConvolution:
    """A row of an architecture: channels / `init_features`, geometry, ReLU, and window of the max pooling after it (0: none)."""

    width: int
    kernel_size: int = 3
    strides: int = 1
    padding: int = 1
    relu: bool = True
    pool: int = 0


@dataclasses.dataclass(frozen=True)
class BinaryWeightArchitecture:
    """Architecture of a named network: its convolutions, and the widths of its hidden fully connected layers / `init_features`."""

    convolutions: Tuple[BinaryWeightConvolution, ...]
    hidden: Tuple[int, ...] = (64, 64)


def _vgg(*layers: int) -> BinaryWeightArchitecture:
    """Return the architecture with this number of convolutions between poolings."""
    rows = (
        BinaryWeightConvolution(width, pool=2 if index == number - 1 else 0)
        for number, width in zip(layers, (1, 2, 4, 8, 8))
        for index in range(number)
    )
    return BinaryWeightArchitecture(tuple(rows))


ARCHITECTURES = {
    'binary_vgg11': _vgg(1, 1, 2, 2, 2),
    'binary_vgg13': _vgg(2, 2, 2, 2, 2),
    'binary_vgg16': _vgg(2, 2, 3, 3, 3),
    'binary_vgg19': _vgg(2, 2, 4, 4, 4),
    'binary_alexnet': BinaryWeightArchitecture(
        (
            BinaryWeightConvolution(1, 11, strides=4, padding=2, pool=3),
            BinaryWeightConvolution(3, 5, padding=2, relu=False, pool=3),
            BinaryWeightConvolution(6, relu=False),
            BinaryWeightConvolution(4, relu=False),
            BinaryWeightConvolution(4, relu=False, pool=3),
        )
    ),
}


class BinaryWeightNetwork(ZooNetwork):
    """A network of convolutions and fully connected layers with binary weights. Images have the option `input_size`."""

    def __init__(
        self,
        architecture: BinaryWeightArchitecture,
        options: BinaryWeightOptions = BinaryWeightOptions(),
        classes: int = 1000,
        **kwargs: Any,
    ) -> None:  # noqa: B008
        super().__init__(options.input_size, **kwargs)
        with self.name_scope():
            self.features = nn.HybridSequential(prefix='')
            for index, row in enumerate(architecture.convolutions):
                arguments = row.width * options.init_features, row.kernel_size, row.strides, row.padding
                self.features.add(QConv2D(*arguments, bits=options.bits) if index else nn.Conv2D(*arguments))
                if options.batch_norm:
                    self.features.add(options.norm_layer(**(options.norm_kwargs or {})))
                if row.relu:
                    self.features.add(nn.Activation('relu'))
                if row.pool:
                    self.features.add(nn.MaxPool2D(row.pool, 2))
            for width in architecture.hidden:
                self.features.add(QDense(width * options.init_features, bits=options.bits), nn.Dropout(0.5))
            self.output = nn.Dense(classes)


for _name, _architecture in ARCHITECTURES.items():
    register(_name, BinaryWeightNetwork, _architecture, BinaryWeightOptions(), source=BMXNET_V2)
