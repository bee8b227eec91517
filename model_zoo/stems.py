"""The first layers of a network, from the image to the first binary layer (MeliusNet, section 3.3).

Each stem adds its layers to a HybridSequential. Names and order of the parameters are those of BMXNet-v2, so that its checkpoints load.
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
    if options.same_padding:  # of an even map all windows begin inside, and the last one may hang over
        features.add(nn.MaxPool2D(pool, 2, ceil_mode=True))
    else:
        features.add(nn.MaxPool2D(pool, 2, padding=(pool - 1) // 2))


@_stem
def grouped_stem(features, options, relu, pool):
    """Three 3x3 convolutions, two of them grouped: 59 % fewer operations than the 7x7 one. Output at a quarter of the input's size."""
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
    """One 7x7 convolution of stride 2, as in ResNet. Output at a quarter of the input's size."""
    features.add(_conv(options.init_features, 7, strides=2, same_padding=options.same_padding))
    _norm_relu_pool(features, options, relu, pool)
    return 4


@_stem
def thumbnail(features, options, relu, pool):
    """One 3x3 convolution for small images. Output at the input's size."""
    features.add(_conv(options.init_features, 3))
    return 1


def add_stem(features: nn.HybridSequential, options: NetworkOptions, relu: bool = True, pool: int = 3) -> int:
    """Add the layers of a stem to a network.

    Parameters
    ----------
    features : HybridSequential
        To which they are added.
    options : NetworkOptions
        Which stem, how many channels, which normalization.
    relu : bool
        Whether a ReLU comes before the pooling, where the stem has one.
    pool : {3, 2}
        Size of the window of that pooling.

    Returns
    -------
    int: how many times smaller the map is than the image.

    Raises
    ------
    UserError
        For an unknown name, or another window.
    """
    if pool not in (2, 3):
        raise UserError(f'the stem pools over windows of 2 or 3, not {pool}')
    if options.initial_layers not in STEMS:
        raise UserError(f'unknown initial_layers {options.initial_layers!r}; known: {", ".join(STEMS)}')
    return STEMS[options.initial_layers](features, options, relu, pool)
