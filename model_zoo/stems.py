"""The first layers of a network, from the image to the first binary layer (MeliusNet, section 3.3).

Each stem adds its layers to a HybridSequential. Names and order of the parameters are those of BMXNet-v2, so that its checkpoints load.
"""
from mxnet.gluon import nn

from bmx_melius import GroupedConv2D, UserError

STEMS = {}
THUMBNAIL = 'thumbnail'


def _stem(build):
    STEMS[build.__name__] = build
    return build


def _conv(channels, kernel_size, strides=1, groups=1):
    layer = GroupedConv2D if groups > 1 else nn.Conv2D
    return layer(channels, kernel_size, strides, padding=kernel_size // 2, groups=groups, use_bias=False)


def _norm_relu_pool(features, norm, relu):
    features.add(norm())
    if relu:
        features.add(nn.Activation('relu'))
    features.add(nn.MaxPool2D(pool_size=3, strides=2, padding=1))


@_stem
def grouped_stem(features, channels, norm, relu):
    """Three 3x3 convolutions, two of them grouped: 59 % fewer operations than the 7x7 one. Output at a quarter of the input's size."""
    half = channels // 2
    convolutions = nn.HybridSequential(prefix='stem_')
    with convolutions.name_scope():
        convolutions.add(_conv(half, 3, strides=2), norm(), nn.Activation('relu'))
        convolutions.add(_conv(half, 3, groups=4), norm(), nn.Activation('relu'))
        convolutions.add(_conv(channels, 3, groups=8))
    features.add(convolutions)
    _norm_relu_pool(features, norm, relu)


@_stem
def imagenet(features, channels, norm, relu):
    """One 7x7 convolution of stride 2, as in ResNet. Output at a quarter of the input's size."""
    features.add(_conv(channels, 7, strides=2))
    _norm_relu_pool(features, norm, relu)


@_stem
def thumbnail(features, channels, norm, relu):
    """One 3x3 convolution for small images. Output at the input's size."""
    features.add(_conv(channels, 3))


def add_stem(name, features, channels, norm, relu=True):
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

    Raises
    ------
    UserError
        For an unknown name.
    """
    if name not in STEMS:
        raise UserError(f'unknown initial_layers {name!r}; known: {", ".join(STEMS)}')
    STEMS[name](features, channels, norm, relu)
