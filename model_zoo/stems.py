"""The first layers of a network, from the image to the first binary layer (MeliusNet, section 3.3).

Each stem adds its layers to a HybridSequential. Names and order of the parameters are those of BMXNet-v2, so that its checkpoints load.
"""

import functools

from mxnet.gluon import nn

from bmx_melius.errors import UserError
from bmx_melius.layers import GroupedConv2D

from .padding import padded

STEMS = {}
THUMBNAIL = 'thumbnail'


def _stem(build):
    STEMS[build.__name__] = build
    return build


def _conv(channels, kernel_size, strides=1, groups=1, same_padding=False):
    layer = functools.partial(GroupedConv2D if groups > 1 else nn.Conv2D, channels, kernel_size, strides, groups=groups, use_bias=False)
    return padded(layer, kernel_size, strides, same_padding)


def _norm_relu_pool(features, norm, relu, pool, same_padding):
    features.add(norm())
    if relu:
        features.add(nn.Activation('relu'))
    if same_padding:  # of an even map all windows begin inside, and the last one may hang over
        features.add(nn.MaxPool2D(pool, 2, ceil_mode=True))
    else:
        features.add(nn.MaxPool2D(pool, 2, padding=(pool - 1) // 2))


@_stem
def grouped_stem(features, channels, norm, relu, pool, same_padding):
    """Three 3x3 convolutions, two of them grouped: 59 % fewer operations than the 7x7 one. Output at a quarter of the input's size."""
    half = channels // 2
    convolutions = nn.HybridSequential(prefix='stem_')
    with convolutions.name_scope():
        convolutions.add(_conv(half, 3, strides=2, same_padding=same_padding), norm(), nn.Activation('relu'))
        convolutions.add(_conv(half, 3, groups=4), norm(), nn.Activation('relu'))
        convolutions.add(_conv(channels, 3, groups=8))
    features.add(convolutions)
    _norm_relu_pool(features, norm, relu, pool, same_padding)
    return 4


@_stem
def imagenet(features, channels, norm, relu, pool, same_padding):
    """One 7x7 convolution of stride 2, as in ResNet. Output at a quarter of the input's size."""
    features.add(_conv(channels, 7, strides=2, same_padding=same_padding))
    _norm_relu_pool(features, norm, relu, pool, same_padding)
    return 4


@_stem
def thumbnail(features, channels, norm, relu, pool, same_padding):
    """One 3x3 convolution for small images. Output at the input's size."""
    features.add(_conv(channels, 3))
    return 1


def add_stem(name, features, channels, norm, relu=True, pool=3, same_padding=False):
    """Add the layers of a stem to a network.

    Parameters
    ----------
    name : str
        ``grouped_stem``, ``imagenet`` or ``thumbnail``.
    features : HybridSequential
        To which they are added.
    channels : int
        Of the result.
    norm : function that makes a normalization
    relu : bool
        Whether a ReLU comes before the pooling, where the stem has one.
    pool : {3, 2}
        Size of the window of that pooling.
    same_padding : bool
        Whether layers that halve the map are padded as in TensorFlow, see `model_zoo.padding`.

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
    if name not in STEMS:
        raise UserError(f'unknown initial_layers {name!r}; known: {", ".join(STEMS)}')
    return STEMS[name](features, channels, norm, relu, pool, same_padding)
