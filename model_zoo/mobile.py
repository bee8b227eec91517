"""Networks in the form of MobileNet: ReActNet-A (arXiv:2003.03488), BNext (arXiv:2211.12933), and of MLPerf Tiny (arXiv:2106.07597).

A convolution of stride 2, then blocks of a 3x3 layer, which keeps the number of channels, and a 1x1 layer. Blocks whose channels double,
but for the first one, halve the map. In MobileNet for visual wake words and DS-CNN for keywords, of MLPerf Tiny, the 3x3 layer is
depthwise, and float also where the 1x1 layer is binary. In ReActNet and BNext both layers are binary, with one or two 1x1 layers, of which
two are concatenated where the channels double (Liu et al. 2020, section 4.1 and figure 5); ReActNet has a shortcut around each layer,
those of BNext are in its parts.
"""

import dataclasses
import functools
from numbers import Integral
from typing import Any, Callable, Optional, Tuple

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import concat
from bmx_melius.nn.channelwise import PReLU, Shift
from bmx_melius.nn.methods.bireal_net import BIREAL_CONVOLUTION
from bmx_melius.nn.methods.reactnet import RPReLU

from .layer_options import FloatOptions, LayerOptions, NetworkOptions, WidthOptions
from .padding import average_pool, padded_features
from .registry import register
from .stems import KERAS_NORM, add_stem, norm_pool
from .units import BNextLayer, UnitPlace, chain, float_convolution, float_stem
from .zoo_network import ZooNetwork


@dataclasses.dataclass(frozen=True)
class MobileOptions(NetworkOptions):
    """Arguments of `model_zoo.get_model` for these networks."""

    initial_layers: str = 'mobilenet'
    init_features: int = 32
    clip_threshold: Optional[float] = 1.0


@dataclasses.dataclass(frozen=True)
class SpectrogramOptions(WidthOptions):
    """Arguments of `model_zoo.get_model` for keyword spotters.

    Attributes
    ----------
    spectrogram : tuple (int, int)
        Frames and coefficients of the input, its height and width.
    """

    spectrogram: Tuple[int, int] = (49, 10)


@dataclasses.dataclass(frozen=True)
class FloatSpectrogramOptions(FloatOptions, SpectrogramOptions):
    """Arguments of `model_zoo.get_model` for keyword spotters without binary layers."""


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
    stem : callable (features, options) -> int
        Adds the layers before the first block, returns their total stride.
    dropout : tuple (float, float)
        Shares of the elements that are dropped in training after the stem and before the pooling.
    """

    widths: Tuple[int, ...]
    block: Callable[..., HybridBlock]
    tail: Optional[Callable[[int], HybridBlock]] = None
    stem: Callable[[nn.HybridSequential, Any], int] = functools.partial(add_stem, end=norm_pool, normalized=True)
    dropout: Tuple[float, float] = (0, 0)


def _depthwise(place, options, **layer):
    width, strides = place.in_channels, (place.stride, place.stride)
    return float_convolution(width, options, (3, 3), strides, groups=width, in_channels=width, **layer)


class SeparableBlock(nn.HybridSequential):
    """A depthwise 3x3 and a 1x1 convolution, both float with a bias, BN and ReLU (MLPerf Tiny). As `ReActNetBlock`."""

    def __init__(self, place: UnitPlace, options: WidthOptions, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(_depthwise(place, options), nn.Activation('relu'))
            self.add(float_convolution(place.channels, options, (1, 1), in_channels=place.in_channels), nn.Activation('relu'))


class ReActNetPoints(HybridBlock):
    """One or two 1x1 layers, each RSign, convolution and BN with a shortcut, concatenated, and an RPReLU.

    Parameters
    ----------
    place : UnitPlace
        Of the block; its channels are as many as those of its input, or twice as many.
    options : LayerOptions

    Input (N, in_channels, H, W); output (N, channels, H, W).
    """

    def __init__(self, place: UnitPlace, options: LayerOptions, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = place.in_channels
        point = UnitPlace(width, width, 1, place.total_stride, kernel_size=1)
        with self.name_scope():
            self.shift = Shift(width)
            self.points = nn.HybridSequential(prefix='')
            for _ in range(place.channels // width):
                self.points.add(chain(point.binary_conv(options, **BIREAL_CONVOLUTION), options.norm()))
            self.activation = RPReLU(place.channels)

    def hybrid_forward(self, F, x):
        shifted = self.shift(x)
        parts = [layer(shifted) + x for layer in self.points]
        return self.activation(concat(F, *parts) if len(parts) > 1 else parts[0])


class ReActNetBlock(HybridBlock):
    """A 3x3 layer and one or two 1x1 layers, each RSign, convolution and BN with a shortcut, and an RPReLU after each addition.

    Parameters
    ----------
    place : UnitPlace
        Of the block; its channels are as many as those of its input, or twice as many.
    options : LayerOptions
    index : int
        Number of the block.

    Input (N, in_channels, H, W); output (N, channels, H / stride, W / stride), rounded up.
    """

    def __init__(self, place: UnitPlace, options: LayerOptions, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        width = place.in_channels
        first = dataclasses.replace(place, channels=width)
        with self.name_scope():
            self.first = chain(Shift(width), first.binary_conv(options, **BIREAL_CONVOLUTION), options.norm())
            self.pool = average_pool(place.stride) if place.stride > 1 else None
            self.activation = RPReLU(width)
            self.points = ReActNetPoints(place, options)

    def hybrid_forward(self, F, x):
        return self.points(self.activation(self.first(x) + (self.pool(x) if self.pool else x)))


class BinarySeparableBlock(nn.HybridSequential):
    """A float depthwise 3x3 convolution with BN, and the binary 1x1 layers of ReActNet. As `ReActNetBlock`."""

    def __init__(self, place: UnitPlace, options: WidthOptions, index: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.add(_depthwise(place, options, use_bias=False), ReActNetPoints(place, options))


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


class MobileNet(ZooNetwork):
    """Input (N, 3, H, W), output (N, classes) logits; with the option `spectrogram` (N, 1, frames, coefficients) of this size only."""

    def __init__(self, architecture: MobileArchitecture, options: Any, classes: int = 1000, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._spectrogram = getattr(options, 'spectrogram', None)
        if self._spectrogram is not None and not _are_lengths(self._spectrogram):
            raise UserError(f'spectrogram must be two whole numbers above 1, frames and coefficients, not {self._spectrogram!r}')
        after_stem, before_pooling = architecture.dropout
        with self.name_scope():
            features = nn.HybridSequential(prefix='')
            total_stride = architecture.stem(features, options)
            if after_stem:
                features.add(nn.Dropout(after_stem))
            widths = [options.init_features * width for width in (1, *architecture.widths)]
            for index, (channels, wider) in enumerate(zip(widths, widths[1:]), start=1):
                stride = 2 if wider != channels and index > 1 else 1
                total_stride *= stride
                features.add(architecture.block(UnitPlace(wider, channels, stride, total_stride), options, index))
            if architecture.tail:
                features.add(architecture.tail(widths[-1]))
            if before_pooling:
                features.add(nn.Dropout(before_pooling))
            features.add(_pooling(self._spectrogram), nn.Flatten())
            self.features = padded_features(features, total_stride, options.same_padding)
            self.output = nn.Dense(classes, in_units=widths[-1])

    def _check_size(self, x):
        size = self._spectrogram
        if size and isinstance(x, mx.nd.NDArray) and x.shape[2:] != tuple(size):
            raise UserError(
                f'this network was built for spectrograms of {size[0]} x {size[1]}, not {" x ".join(map(str, x.shape[2:]))}: for others '
                'build it with spectrogram=(frames, coefficients), an argument of get_model'
            )


def _are_lengths(numbers):
    """Return whether `numbers` are two numbers of which the halves, rounded down, are the size of a window."""
    is_pair = isinstance(numbers, (list, tuple)) and len(numbers) == 2
    return is_pair and all(isinstance(number, Integral) and number > 1 for number in numbers)


def _pooling(size):
    """Return the pooling to one element: of spectrograms over half their frames and coefficients, rounded down, as in MLPerf Tiny."""
    return nn.AvgPool2D(tuple(length // 2 for length in size)) if size else nn.GlobalAvgPool2D()


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

register('reactnet_a', MobileNet, MobileArchitecture(MOBILENET, ReActNetBlock), MobileOptions(), **_OF_REACTNET)
for _name, (_widths, _features) in BNEXTS.items():
    _options = MobileOptions(init_features=_features, clip_threshold=1.5)
    register(_name, MobileNet, MobileArchitecture(_widths, BNextBlock, PReLU), _options, **_OF_BNEXT)

# MLPerf Tiny: the float networks have the layers of its code; in the binary ones, which are of this project, ReActNet's 1x1 layers.
_of_mlperf_tiny = functools.partial(register, build=MobileNet, source='arXiv:2106.07597')
_for_wake_words = functools.partial(_of_mlperf_tiny, classes=2, input_shape=(3, 96, 96))
_for_keywords = functools.partial(_of_mlperf_tiny, classes=12, input_shape=(1, 49, 10))
_halving = functools.partial(float_stem, strides=(2, 2))
_of_keywords = functools.partial(_halving, kernel_size=(10, 4))
_FLOAT, _BINARY = {'norm_kwargs': KERAS_NORM}, {'clip_threshold': 1.0}

_for_wake_words(
    'mobilenet_vww',
    architecture=MobileArchitecture(MOBILENET, SeparableBlock, stem=_halving),
    options=FloatOptions(init_features=8, **_FLOAT),
)
_for_wake_words(
    'binary_mobilenet_vww',
    architecture=MobileArchitecture(MOBILENET, BinarySeparableBlock, stem=functools.partial(_halving, activation=False)),
    options=WidthOptions(init_features=8, **_BINARY),
)
_for_keywords(
    'ds_cnn',
    architecture=MobileArchitecture((1,) * 4, SeparableBlock, stem=_of_keywords, dropout=(0.2, 0.4)),
    options=FloatSpectrogramOptions(init_features=64, **_FLOAT),
)
_for_keywords(
    'binary_ds_cnn',
    architecture=MobileArchitecture(
        (1,) * 4, BinarySeparableBlock, stem=functools.partial(_of_keywords, activation=False), dropout=(0.2, 0.4)
    ),
    options=SpectrogramOptions(init_features=64, **_BINARY),
)
