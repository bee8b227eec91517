"""Gates: a factor per image and channel that is computed from the means of a map (squeeze and excitation, arXiv:1709.01507)."""

from typing import Any, Callable

from mxnet.gluon import HybridBlock, nn

REDUCTION = 8  # channels that a gate reads / channels inside it


def gate_layers(channels: int, in_channels: int, layer: Callable[..., HybridBlock] = nn.Conv2D, **arguments: Any) -> nn.HybridSequential:
    """Return two 1x1 convolutions with a ReLU between them, for a map of one position.

    Parameters
    ----------
    channels, in_channels : int
        Of the result and of the input, the latter at least 8.
    layer : callable (channels, kernel_size, in_channels=..., **arguments) -> HybridBlock
    """
    inside = in_channels // REDUCTION
    layers = nn.HybridSequential(prefix='')
    layers.add(
        layer(inside, 1, in_channels=in_channels, **arguments),
        nn.Activation('relu'),
        layer(channels, 1, in_channels=inside, **arguments),
    )
    return layers
