"""Stems: the layers of a network from the image to the first binary layer (MeliusNet, section 3.2 and figure 2).

Each function adds the layers of a stem to a HybridSequential and returns their total stride. Names and order of the parameters are taken
from BMXNet-v2, so that its checkpoints can be loaded.
"""

import functools
from typing import Any, Callable, Dict, Optional

from mxnet.gluon import HybridBlock, nn

from bmx_melius.errors import UserError
from bmx_melius.nn.channels import GroupedConv2D

from .layer_options import NetworkOptions
from .padding import padded

STEMS: Dict[str, Callable[..., int]] = {}
THUMBNAIL = 'thumbnail'
KERAS_NORM = {'epsilon': 1e-3, 'momentum': 0.99}  # defaults of Keras


def _stem(build):
    STEMS[build.__name__] = build
    return build


def _conv(channels, kernel_size, strides=1, groups=1, same_padding=False):
    layer = functools.partial(GroupedConv2D if groups > 1 else nn.Conv2D, channels, kernel_size, strides, groups=groups, use_bias=False)
    return padded(layer, kernel_size, strides, same_padding)


# --- ends of stems that halve the map by pooling: functions (features, options, pool) ---------------------------------------------------


def _max_pool(pool, options, inside=False):
    """Return max pooling that halves a map. `inside`: all windows begin inside the map, and the last one may extend past its end."""
    if inside or options.same_padding:  # the same for an even map
        return nn.MaxPool2D(pool, 2, ceil_mode=True)
    return nn.MaxPool2D(pool, 2, padding=(pool - 1) // 2)


def _relu(channels):
    return nn.Activation('relu')


def norm_activation_pool(
    features: nn.HybridSequential,
    options: NetworkOptions,
    pool: int,
    activation: Optional[Callable[[int], HybridBlock]] = _relu,
) -> None:
    """Add BN, an activation and max pooling with windows of `pool`, which is omitted for 0.

    Parameters
    ----------
    activation : callable (channels) -> HybridBlock, or None
        Creates the layer between BN and pooling, a ReLU by default.
    """
    features.add(options.norm())
    if activation:
        features.add(activation(options.init_features))
    if pool:
        features.add(_max_pool(pool, options))


def norm_pool(features: nn.HybridSequential, options: NetworkOptions, pool: int) -> None:
    """Add BN and max pooling."""
    norm_activation_pool(features, options, pool, activation=None)


def pool_norm(
    features: nn.HybridSequential,
    options: NetworkOptions,
    pool: int,
    inside: bool = True,
    activation: Optional[Callable[[int], HybridBlock]] = None,
    **norm: Any,
) -> None:
    """Add max pooling, a BN with the arguments `norm`, and an activation, as `norm_activation_pool` in another order.

    Parameters
    ----------
    inside : bool
        Whether the pooling has no padding, and its last windows may extend past the map, as in Caffe.
    """
    if pool:
        features.add(_max_pool(pool, options, inside))
    features.add(options.norm(**norm))
    if activation:
        features.add(activation(options.init_features))


# --- the stems ------------------------------------------------------------------------------------------------------------------------


@_stem
def grouped_stem(features, options, end, pool):
    """Add three 3x3 convolutions, two of them grouped: 41.8 % fewer operations than the 7x7 convolution. Total stride 4."""
    half, norm = options.init_features // 2, options.norm
    convolutions = nn.HybridSequential(prefix='stem_')
    with convolutions.name_scope():
        convolutions.add(_conv(half, 3, strides=2, same_padding=options.same_padding), norm(), nn.Activation('relu'))
        convolutions.add(_conv(half, 3, groups=4), norm(), nn.Activation('relu'))
        convolutions.add(_conv(options.init_features, 3, groups=8))
    features.add(convolutions)
    end(features, options, pool)
    return 4


@_stem
def imagenet(features, options, end, pool):
    """Add a 7x7 convolution of stride 2, as in ResNet. Total stride 4."""
    features.add(_conv(options.init_features, 7, strides=2, same_padding=options.same_padding))
    end(features, options, pool)
    return 4


@_stem
def mobilenet(features, options, end, pool):
    """Add a 3x3 convolution of stride 2 without pooling, as in MobileNet. Stride 2."""
    features.add(_conv(options.init_features, 3, strides=2, same_padding=options.same_padding))
    end(features, options, 0)
    return 2


@_stem
def thumbnail(features, options, end, pool):
    """Add a 3x3 convolution, for small images. Stride 1."""
    features.add(_conv(options.init_features, 3))
    return 1


@_stem
def alexnet(features, options, end, pool):
    """Add an 11x11 convolution of stride 4 with a bias, as in AlexNet, whose pooling has no padding. Total stride 8."""
    if options.same_padding:
        raise UserError("the stem 'alexnet' cannot pad as TensorFlow does; use another stem or same_padding=False")
    features.add(nn.Conv2D(options.init_features, 11, strides=4, padding=2))
    end(features, options, 0)
    features.add(nn.MaxPool2D(pool, 2))
    return 8


@_stem
def alexnet_same(features, options, end, pool):
    """Add the layers of `alexnet`, but a convolution without bias that is padded as in TensorFlow, as in XNOR-Net of Larq Zoo.

    Total stride 8. Windows are TensorFlow's only if height and width are multiples of 4; `alexnet_xnor` refuses other sizes.
    """
    if options.same_padding:
        raise UserError("with the stem 'alexnet_same' same_padding must be False: its pooling has no padding")
    features.add(_conv(options.init_features, 11, strides=4, same_padding=True))
    end(features, options, 0)
    features.add(nn.MaxPool2D(pool, 2))
    return 8


@_stem
def quicknet(features, options, end, pool):
    """Add a 3x3 and a depthwise 3x3 convolution of stride 2 and a 1x1 convolution, without pooling (QuickNet). Total stride 4."""
    quarter, same = options.init_features // 4, options.same_padding
    norm = functools.partial(options.norm, KERAS_NORM)  # in the residual blocks Larq Zoo has other values
    features.add(_conv(quarter, 3, strides=2, same_padding=same), norm(), nn.Activation('relu'))
    features.add(_conv(quarter, 3, strides=2, groups=quarter, same_padding=same), norm(scale=False, center=False))
    features.add(_conv(options.init_features, 1), norm())
    return 4


End = Callable[[nn.HybridSequential, NetworkOptions, int], None]


def add_stem(
    features: nn.HybridSequential, options: NetworkOptions, end: End = norm_activation_pool, pool: int = 3, normalized: bool = False
) -> int:
    """Add the layers of a stem to a network.

    Parameters
    ----------
    features : HybridSequential
        Receives the layers.
    options : NetworkOptions
        Determines the stem, its channels and its normalization.
    end : callable (features, options, pool) -> None
        Adds normalization, activation and pooling after the last convolution of a stem with pooling: BN, ReLU and pooling, or another of
        the functions above.
    pool : {3, 2}
        Window size of that pooling.
    normalized : bool
        Whether the stem `thumbnail`, which is only a convolution, also has the normalization and the activation of `end`.

    Returns
    -------
    int
        Total stride: size of the image / size of the map.

    Raises
    ------
    UserError
        For an unknown name or another window size.
    """
    if pool not in (2, 3):
        raise UserError(f'the stem must pool over windows of 2 or 3, not {pool}')
    if options.initial_layers not in STEMS:
        raise UserError(f'unknown initial_layers {options.initial_layers!r}; known: {", ".join(STEMS)}')
    stride = STEMS[options.initial_layers](features, options, end, pool)
    if normalized and options.initial_layers == THUMBNAIL:
        end(features, options, 0)
    return stride
