"""Stems: the layers of a network from the image to the first binary layer (MeliusNet, section 3.2 and figure 2).

Each function adds the layers of a stem to a HybridSequential and returns their total stride. Names and order of the parameters are those of
BMXNet-v2, so that its checkpoints can be loaded.
"""

import functools
from typing import Callable, Dict

from mxnet.gluon import nn

from bmx_melius.channels import GroupedConv2D
from bmx_melius.errors import UserError

from .layer_options import NetworkOptions
from .padding import padded

STEMS: Dict[str, Callable[..., int]] = {}
THUMBNAIL = 'thumbnail'


def _stem(build):
    STEMS[build.__name__] = build
    return build


def _conv(channels, kernel_size, strides=1, groups=1, same_padding=False):
    layer = functools.partial(GroupedConv2D if groups > 1 else nn.Conv2D, channels, kernel_size, strides, groups=groups, use_bias=False)
    return padded(layer, kernel_size, strides, same_padding)


def _norm_relu_pool(features, options, relu, pool):
    features.add(options.norm())
    if relu:
        features.add(nn.Activation('relu'))
    if options.same_padding:  # for an even map all windows begin inside; the last one may extend past the end
        features.add(nn.MaxPool2D(pool, 2, ceil_mode=True))
    else:
        features.add(nn.MaxPool2D(pool, 2, padding=(pool - 1) // 2))


@_stem
def grouped_stem(features, options, relu, pool):
    """Add three 3x3 convolutions, two of them grouped: 41.8 % fewer operations than the 7x7 convolution. Total stride 4."""
    half, norm = options.init_features // 2, options.norm
    convolutions = nn.HybridSequential(prefix='stem_')
    with convolutions.name_scope():
        convolutions.add(_conv(half, 3, strides=2, same_padding=options.same_padding), norm(), nn.Activation('relu'))
        convolutions.add(_conv(half, 3, groups=4), norm(), nn.Activation('relu'))
        convolutions.add(_conv(options.init_features, 3, groups=8))
    features.add(convolutions)
    _norm_relu_pool(features, options, relu, pool)
    return 4


@_stem
def imagenet(features, options, relu, pool):
    """Add a 7x7 convolution of stride 2, as in ResNet. Total stride 4."""
    features.add(_conv(options.init_features, 7, strides=2, same_padding=options.same_padding))
    _norm_relu_pool(features, options, relu, pool)
    return 4


@_stem
def thumbnail(features, options, relu, pool):
    """Add a 3x3 convolution, for small images. Stride 1."""
    features.add(_conv(options.init_features, 3))
    return 1


def add_stem(features: nn.HybridSequential, options: NetworkOptions, relu: bool = True, pool: int = 3) -> int:
    """Add the layers of a stem to a network.

    Parameters
    ----------
    features : HybridSequential
        Receives the layers.
    options : NetworkOptions
        Determines the stem, its channels and its normalization.
    relu : bool
        Whether there is a ReLU before the pooling, if the stem has one.
    pool : {3, 2}
        Window size of that pooling.

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
    return STEMS[options.initial_layers](features, options, relu, pool)
