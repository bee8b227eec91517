"""Blocks of densely connected networks. Each appends new channels to its input; they differ in how these are improved.

Arguments of a block are the `channels` of its input, the `growth_rate`, the `LayerOptions` that create its layers, and the `dilation` of
its 3x3 convolutions, which keep the size of the map. Input (N, channels, H, W), output (N, channels + growth_rate, H, W).
"""

from typing import Any

from mxnet.gluon import HybridBlock

from bmx_melius.nn.channels import concat

from .layer_options import LayerOptions


def _norm_and_conv(layers, channels, dilation):
    return layers.norm(), layers.binary_conv(channels, padding=dilation, dilation=dilation)


class DenseBlock(HybridBlock):
    """Dense Block without improvement, [x, conv(BN(x))] (BinaryDenseNet, Bethge et al. 2019, arXiv:1906.08637, figure 2)."""

    def __init__(self, channels: int, growth_rate: int, layers: LayerOptions, dilation: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense_norm, self.dense_conv = _norm_and_conv(layers, growth_rate, dilation)

    def hybrid_forward(self, F, x):
        return concat(F, x, self.dense_conv(self.dense_norm(x)))


class MeliusBlock(HybridBlock):
    """A Dense Block followed by an Improvement Block (paper, section 3.1 and figure 1).

    y = conv(BN(x)) are the new channels, z = conv(BN([x, y])) their improvement; the output is [x, y + z]. This is the paper's
    [x, y] + [0, z] with one concatenation less.
    """

    def __init__(self, channels: int, growth_rate: int, layers: LayerOptions, dilation: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense_norm, self.dense_conv = _norm_and_conv(layers, growth_rate, dilation)
            self.improvement_norm, self.improvement_conv = _norm_and_conv(layers, growth_rate, dilation)

    def hybrid_forward(self, F, x):
        new = self.dense_conv(self.dense_norm(x))
        improvement = self.improvement_conv(self.improvement_norm(concat(F, x, new)))
        return concat(F, x, new + improvement)


class NaiveBlock(HybridBlock):
    """A Dense Block and a residual connection for all channels: d + conv(BN(d)) with d = [x, conv(BN(x))].

    The naive combination to which the paper compares its block (section 3.1, supplement B): all channels are improved, so the cost grows
    with their number.
    """

    def __init__(self, channels: int, growth_rate: int, layers: LayerOptions, dilation: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        with self.name_scope():
            self.dense_norm, self.dense_conv = _norm_and_conv(layers, growth_rate, dilation)
            self.residual_norm, self.residual_conv = _norm_and_conv(layers, channels + growth_rate, dilation)

    def hybrid_forward(self, F, x):
        dense = concat(F, x, self.dense_conv(self.dense_norm(x)))
        return dense + self.residual_conv(self.residual_norm(dense))


BLOCKS = {'improvement': MeliusBlock, 'dense': DenseBlock, 'naive': NaiveBlock}
