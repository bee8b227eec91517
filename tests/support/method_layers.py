"""Blocks with the operators of other binary methods, for tests of conversion."""

import mxnet as mx
from mxnet.gluon import HybridBlock, nn

import bmx_melius as bmx
from support.small_networks import sequence


class Constants(HybridBlock):
    """Base of blocks with parameters of given shapes, drawn at random."""

    def __init__(self, **shapes):
        super().__init__()
        with self.name_scope():
            for name, shape in shapes.items():
                setattr(self, name, self.params.get(name, shape=shape, init=mx.init.Normal(1)))


class Shift(Constants):
    """A learned shift of each channel (ReActNet)."""

    def __init__(self, channels):
        super().__init__(shift=(1, channels, 1, 1))

    def hybrid_forward(self, F, x, shift):
        return F.broadcast_add(x, shift)


class LearnedScales(Constants):
    """Factors of channels, rows and columns (XNOR-Net++), multiplied `together` before they are multiplied with the map, or one by one."""

    def __init__(self, channels, height, width, together):
        super().__init__(alpha=(1, channels, 1, 1), beta=(1, 1, height, 1), gamma=(1, 1, 1, width))
        self.together = together

    def hybrid_forward(self, F, x, alpha, beta, gamma):
        if self.together:
            return F.broadcast_mul(x, F.broadcast_mul(F.broadcast_mul(alpha, beta), gamma))
        return F.broadcast_mul(F.broadcast_mul(F.broadcast_mul(x, alpha), beta), gamma)


class MapScale(Constants):
    """A factor or, with `adds`, a summand for each element of a map, or for each of its positions."""

    def __init__(self, shape, adds=False):
        super().__init__(numbers=shape)
        self.adds = adds

    def hybrid_forward(self, F, x, numbers):
        return F.broadcast_add(x, numbers) if self.adds else F.broadcast_mul(x, numbers)


class Gate(HybridBlock):
    """Squeeze and excitation: channels scaled by numbers computed from their means.

    `form`: ``map`` computes them by 1x1 convolutions, ``reshape`` and ``expand`` by dense layers, followed by these operators.
    """

    def __init__(self, channels, form='map'):
        super().__init__()
        self.form = form
        with self.name_scope():
            make = (lambda n: nn.Conv2D(n, 1)) if form == 'map' else nn.Dense
            self.squeeze, self.excite, self.mean = make(channels // 4), make(channels), nn.GlobalAvgPool2D()

    def hybrid_forward(self, F, x):
        gate = F.sigmoid(self.excite(F.relu(self.squeeze(self.mean(x)))))
        if self.form == 'reshape':
            gate = F.reshape(gate, shape=(0, -1, 1, 1))
        elif self.form == 'expand':
            gate = F.expand_dims(F.expand_dims(gate, axis=2), axis=3)
        return F.broadcast_mul(x, gate)


class Residual(HybridBlock):
    """``after(f(x) + x)``."""

    def __init__(self, f, after=None):
        super().__init__()
        self.f, self.after = f, after or nn.HybridLambda('identity')

    def hybrid_forward(self, F, x):
        return self.after(self.f(x) + x)


def binary_conv(channels, **options):
    return bmx.BinaryConv2D(channels, 3, padding=1, in_channels=channels, **options)


# One block of each method, for maps of `channels` channels and `size` x `size` positions.
BLOCKS = {
    'XNOR-Net': lambda channels, size: sequence(nn.BatchNorm(), bmx.ScaledBinaryConv2D(channels, 3, padding=1)),
    'XNOR-Net++': lambda channels, size: Residual(
        sequence(nn.BatchNorm(), binary_conv(channels, no_offset=True), LearnedScales(channels, size, size, True))
    ),
    'Strong Baseline': lambda channels, size: Residual(
        sequence(nn.BatchNorm(), binary_conv(channels, no_offset=True), nn.BatchNorm(), nn.PReLU(in_channels=channels))
    ),
    'Real-to-Binary': lambda channels, size: Residual(
        sequence(nn.BatchNorm(), binary_conv(channels, no_offset=True), Gate(channels), nn.PReLU(in_channels=channels))
    ),
    'ReActNet': lambda channels, size: Residual(
        sequence(Shift(channels), binary_conv(channels, apply_scaling=True), nn.BatchNorm()),
        sequence(Shift(channels), nn.PReLU(in_channels=channels), Shift(channels)),
    ),
}
