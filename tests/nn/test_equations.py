"""Quantizers, layers and units of all methods against their equations in float64 NumPy: values, and the gradients that methods state."""

import dataclasses
from functools import partial

import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.equations import assert_equals, batch_norm, beside, conv, everywhere, filter_mean, inputs, prelu, signs, triangle, within_one
from support.gradients import gradients

from bmx_melius import BinaryConv2D
from bmx_melius.nn.methods.abc_net import RIDGE, SHIFTS, ABCConv2D, scales
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.group_net import BASES, GroupSum, SoftGate
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.pokebnn import DPReLU, PokeConv2D
from bmx_melius.nn.methods.reactnet import RPReLU
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.xnor_net import XNORConv2D
from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
from bmx_melius.nn.quantizers import quantize
from model_zoo.quicknet import QuickNetOptions, ResidualBlock
from model_zoo.residual import NETWORKS
from model_zoo.units import UnitPlace

S = 0.538  # HWGQ: distance of the levels


def above(x):
    return (x > 0) * 1.0


def relu(s, x):
    return s.estimate(np.maximum(x, 0), x, above(x))


def scaled_signs(w):
    return filter_mean(w)[..., None] * signs(w)


def hwgq(x):
    bounds = [x.dtype.type(bound) for bound in (0, 1.5 * S, 2.5 * S)]
    return np.select([x <= bound for bound in bounds], [0, S, 2 * S], 3 * S)


def hwgq_slope(x):
    return ((x > 0) & (x <= x.dtype.type(3 * S))) * 1.0


def largest(w):
    return (np.abs(w).max(axis=(1, 2, 3), keepdims=True) + 2.0**-23).astype(w.dtype)


def below_largest(w):
    return (np.abs(w) <= largest(w) * w.dtype.type(127 / 128)) * 1.0


def levels(w, steps):
    return np.floor(w / largest(w) * steps + 0.5) * (largest(w) / steps)


def ternary(w):
    d = 0.05 * np.abs(w).max()
    return np.select([w > d, w < -d], [1.0, -1.0], 0.0)


@pytest.mark.parametrize(
    'method, bits, boundary, value, slope',
    [
        ('hwgq', 2, (0, 1.5 * S, 2.5 * S, 3 * S), hwgq, hwgq_slope),
        ('hwgq', 32, (0, 3 * S), lambda x: np.clip(x, 0, 3 * S), hwgq_slope),
        ('ternary', 2, (8.0, 0.4, -0.4, 0), ternary, everywhere),
        ('ternary', 32, (0,), lambda x: x, everywhere),
        ('scaled_sign', 1, (0, -1), scaled_signs, everywhere),
        ('scaled_sign', 32, (0,), lambda x: x, everywhere),
        ('bounded_sign', 1, (0, -1), signs, everywhere),
        ('largest_sign', 1, (0, 8, 8 * 127 / 128, -8 * 127 / 128), lambda w: largest(w) / 2 * signs(w), below_largest),
        ('largest_sign', 32, (0,), lambda x: x, everywhere),
        ('largest_levels', 4, (7.0, 0.5, -0.5, 3.5, 0), partial(levels, steps=7), everywhere),
        ('largest_levels', 8, (7.0, 0), partial(levels, steps=127), everywhere),
    ],
)
def test_quantizers_have_their_values_and_gradients_at_the_bounds_of_regions_too(method, bits, boundary, value, slope):
    # MXNet parses scalars for float64 with an error in the last bit
    numbers = inputs(3, beside(*boundary, dtype=np.float32)).astype(np.float32)
    y, dx = gradients(lambda x: quantize(nd, x, method, bits), [nd.array(numbers)])
    np.testing.assert_allclose(y, value(numbers), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(dx, slope(numbers))


def test_levels_of_hwgq_are_those_printed_in_the_paper():
    x = nd.array([-5, 0, 1e-6, 0.8, 0.81, 1.34, 1.35, 100])
    expected = [0, 0, 0.538, 0.538, 1.076, 1.076, 1.614, 1.614]
    np.testing.assert_allclose(quantize(nd, x, 'hwgq', 2).asnumpy(), expected, rtol=1e-6)


# --- layers of one binary base ---------------------------------------------------------------------------------------------------------


def bnn(s, x, w, stride=1):
    return conv(s.sign(x, within_one), s.sign(w, within_one), stride)


def bnn_normalized(s, x, w, gamma, beta):
    return batch_norm(bnn(s, x, w, 2), gamma, beta)


def xnor(s, x, w, stride=1, input_scale=False):
    alpha, n = filter_mean(w)[..., None], w[0].size
    slope = n * (1 - 1 / w.shape[1]) * (1 / n + alpha * (np.abs(w) < 1))
    y = conv(s.sign(x, within_one), s.estimate(alpha * signs(w), w, slope), stride)
    if not input_scale:
        return y
    magnitude = np.abs(x).mean(axis=1, keepdims=True)
    return y * s.constant(conv(magnitude, np.full((1, 1, 3, 3), 1 / 9), stride, value=0))


def xnor_unit(s, x, gamma, beta, w):
    return xnor(s, batch_norm(x, gamma, beta), w)


def learned_scale(s, x, w_alpha, w_beta, w_gamma):
    return x * np.einsum('c,i,j->cij', w_alpha.ravel(), w_beta.ravel(), w_gamma.ravel())


def xnor_net_plus_unit(s, x, gamma, beta, w, w_channel, w_row, w_column):
    return bnn(s, batch_norm(x, gamma, beta), w) * (w_channel * w_row * w_column)[0]


def strong_baseline_unit(s, x, gamma, beta, w, scale, slope):
    return prelu(s, bnn(s, batch_norm(x, gamma, beta), w, 2) * scale[:, None, None], slope)


def gated(s, x, w, w1, w2):
    hidden = np.maximum(np.einsum('nc,oc->no', x.mean(axis=(2, 3)), w1[:, :, 0, 0]), 0)
    gate = 1 / (1 + np.exp(-np.einsum('nc,oc->no', hidden, w2[:, :, 0, 0]))) / np.sqrt(w[0].size)
    return bnn(s, x, w) * gate[:, :, None, None]


def real_to_binary_unit(s, x, gamma, beta, w, w1, w2, slope):
    return prelu(s, gated(s, batch_norm(x, gamma, beta), w, w1, w2), slope)


def reactnet_unit(s, x, w_shift, w, gamma, beta):
    y = conv(s.sign(x + w_shift[:, None, None], triangle), s.estimate(scaled_signs(w), w, within_one(w)))
    return batch_norm(y, gamma, beta)


def rprelu(s, x, minus_gamma, beta, zeta):
    gamma, beta, zeta = (vector[:, None, None] for vector in (-minus_gamma, beta, zeta))
    return np.where(x > gamma, x - gamma + zeta, beta * (x - gamma) + zeta)


def dprelu(s, x, minus_a, negative, positive, minus_c):
    a, negative, positive, c = (vector[:, None, None] for vector in (-minus_a, negative, positive, -minus_c))
    return np.where(x > a, positive, negative) * (x - a) - c


def poke_conv(s, x, w, bound=3, stride=1):
    """It pads with -1, the sign of -B / 2."""
    q = s.estimate(bound / 2 * signs(x), x, np.abs(x) <= bound * 127 / 128)
    return conv(q, s.estimate(largest(w) / 2 * signs(w), w, below_largest(w)), stride, value=-bound / 2)


def quicknet_block(s, x, w, gamma, beta):
    """Its padding is 1."""

    def slope(x):
        return (np.abs(x) <= 1.25) * 1.0

    y = conv(s.sign(x, slope), s.sign(w, slope), value=1)
    return batch_norm(s.estimate(np.maximum(y, 0), y, y > 0), gamma, beta) + x  # y is an integer: the gradient of 0 is 0


def quicknet_inputs():
    x = inputs(4)
    x[1, 0, 0, :4] = [1.25, -1.25, np.nextafter(1.25, 2), -np.nextafter(1.25, 2)]
    return x


# --- layers of few bits ----------------------------------------------------------------------------------------------------------------


def two_bits(s, x):
    """The 2-bit activation of DoReFa-Net: clip(x, 0, 1), rounded."""
    inside = ((x >= 0) & (x <= 1)) * 1.0
    return s.estimate(np.floor(3 * np.clip(x, 0, 1) + 0.5) / 3, x, inside)


def bwn(s, x, w, stride=1):
    """Its gradient of the weights equals XNOR-Net's."""
    slope = (w[0].size - 9) * (1 / w[0].size + filter_mean(w)[..., None] * (np.abs(w) < 1))
    return conv(relu(s, x), s.estimate(scaled_signs(w), w, slope), stride, value=0)


def dorefa(s, x, w):
    scaled = np.tanh(w) / np.abs(np.tanh(w)).max()
    rounded = s.estimate(2 * np.floor(3 * (scaled / 2 + 0.5) + 0.5) / 3 - 1, scaled, everywhere(w))
    return conv(two_bits(s, x), rounded, value=0)


def dorefa_one_bit(s, x, w, bits):
    """Its weights: E sign(w / E), with E = mean |w| of the layer, which has no gradient, and the gradient 1 / E of the sign."""
    steps, scale = 2**bits - 1, s.constant(np.abs(w).mean())
    inside = ((x >= 0) & (x <= 1)) * 1.0
    z = steps * np.clip(x, 0, 1)
    activation = s.estimate((np.floor(z) + (z - np.floor(z) >= 0.5)) / steps, x, inside)
    return conv(activation, scale * s.estimate(signs(w), w, everywhere(w) / scale), value=0)


def hwgq_layer(s, x, w):
    return conv(s.estimate(hwgq(x), x, hwgq_slope(x)), s.estimate(scaled_signs(w), w, everywhere(w)), value=0)


def syq(s, x, w, scale):
    return conv(two_bits(s, x), scale * s.sign(w, everywhere), pad=len(w[0, 0]) // 2, value=0)


def ttq(s, x, w, positive, negative):
    codes = ternary(w)
    slopes = np.select([codes > 0, codes < 0], [positive, negative], 1.0)
    weight = s.constant(above(codes)) * positive - s.constant(above(-codes)) * negative
    return conv(relu(s, x), weight + s.estimate(np.zeros_like(w), w, slopes), value=0)


def lq_net(s, x, basis, moments, w, scale):
    small, large = np.sort(basis)
    top = small + large
    levels = np.select([x <= small / 2, x <= top / 2, x <= large + small / 2], [0, small, large], top)
    activation = s.estimate(s.constant(levels), x, ((x > 0) & (x <= top)) * 1.0)
    return conv(activation, s.estimate(s.constant(scale * signs(w)), w, everywhere(w)), value=0)


# --- layers of several bases -----------------------------------------------------------------------------------------------------------


def bases_of(w):
    return [signs(w - w.mean() + u * w.std()) for u in SHIFTS]


def least_squares(w, ridge=0):
    columns = np.stack([base.ravel() for base in bases_of(w)], axis=1)
    return np.linalg.solve(columns.T @ columns + ridge * len(columns) * np.eye(5), columns.T @ w.ravel())


def abc_net(s, x, shift, w, beta, stride=1):
    """The sum of 25 binary convolutions."""
    alpha, y = s.constant(least_squares(w, RIDGE)), 0
    weights = [s.estimate(base, w, everywhere(w)) for base in bases_of(w)]
    for v, scale in zip(shift, beta):
        z = x + v
        activation = s.estimate(signs(np.clip(z, 0, 1) - 0.5), z, ((z >= 0) & (z <= 1)) * 1.0)
        y = y + scale * sum(a * conv(activation, weight, stride) for a, weight in zip(alpha, weights))
    return y


def test_scales_of_abc_net_are_the_least_squares_solution():
    w = np.random.RandomState(0).randn(16, 8, 3, 3).astype(np.float32)
    alpha = scales(nd, nd.array(w)).asnumpy().ravel()
    np.testing.assert_allclose(alpha, least_squares(w.astype(np.float64)), rtol=1e-3)
    approximation = np.tensordot(alpha, bases_of(w), axes=1)
    assert np.square(w - approximation).mean() < 0.1 < np.square(w - np.abs(w).mean() * signs(w)).mean()


def test_scales_of_equal_bases_remain_finite():
    w = nd.array([1, -1, 1, 1]).reshape((1, 1, 2, 2))
    approximation = np.tensordot(scales(nd, w).asnumpy().ravel(), bases_of(w.asnumpy()), axes=1)
    # the condition number of five equal bases is 5 / RIDGE, times the precision of float32: 0.03 (0.01 on one processor)
    np.testing.assert_allclose(approximation, w.asnumpy(), atol=0.05)


def circulant(s, x, w, stride=1):
    """The four rotations of each filter, adjacent; orientation is the fastest axis of the inputs and of the outputs."""
    binary = s.sign(w, triangle)
    by_orientation = binary.reshape(len(w), -1, 4, *w.shape[2:])
    turned = [np.rot90(np.roll(by_orientation, turns, axis=2), -turns, axes=(3, 4)) for turns in range(4)]
    rotations = np.stack(turned, axis=1).reshape(-1, *w.shape[1:])
    return conv(s.sign(x, triangle), rotations, stride) * np.abs(w).mean()


class Repeated(nn.HybridSequential):
    """A layer of several maps, applied to multiples of one map and, with `squared`, to its square."""

    def __init__(self, layer, squared=False):
        super().__init__()
        self.add(layer)
        self.squared = squared

    def hybrid_forward(self, F, x):
        y = self[0](*(x * (number + 1) for number in range(BASES)), *([F.square(x)] if self.squared else []))
        return F.concat(*y, dim=1) if isinstance(y, list) else y


def group_sum(s, x, scale):
    return sum(factor * x * (n + 1) for n, factor in enumerate(scale))


def soft_gate(s, x, gate):
    """Each base is mixed with the sum."""
    share = 1 / (1 + np.exp(-gate[0]))
    return np.concatenate([share * x * (n + 1) + (1 - share) * x**2 for n in range(BASES)], axis=1)


# --- comparison ------------------------------------------------------------------------------------------------------------------------


def unit(name, channels, in_channels, stride=1, ends_block=True, **options):
    """A unit of the table of networks."""
    row = NETWORKS[name]
    return row.unit(
        UnitPlace(channels, in_channels, stride, 4 * stride, ends_block=ends_block), dataclasses.replace(row.options, **options)
    )


SIGNS = {'threshold': 1, 'weight_threshold': 1}
MAP = np.random.RandomState(1).randn(2, 3, 4, 4)
PLAIN = {'boundary': False}  # the weights are random numbers only

# layer, its equation, input, and the parameters of the layer as the equation calls them; - are running statistics
EQUATIONS = {
    'BNN': (lambda: BinaryConv2D(4, 3, 1, 1, **SIGNS, no_offset=True), bnn, inputs(), 'w'),
    'BNN, stride 2': (lambda: BinaryConv2D(4, 3, 2, 1, **SIGNS, no_offset=True), partial(bnn, stride=2), inputs(), 'w'),
    # it normalizes after the convolution unless an addition follows
    'unit of BNN': (lambda: unit('resnet{}_bnn', 4, 3, 2, ends_block=False), bnn_normalized, inputs(), 'w gamma beta - -'),
    'last unit of BNN': (lambda: unit('resnet{}_bnn', 4, 3, 2), partial(bnn, stride=2), inputs(), 'w'),
    **{
        f'XNOR-Net, stride {stride}{", input scale" * scale}': (
            partial(XNORConv2D, 4, 3, stride, 1, input_scale=scale),
            partial(xnor, stride=stride, input_scale=scale),
            inputs(),
            'w',
        )
        for stride in (1, 2)
        for scale in (False, True)
    },
    'unit of XNOR-Net': (lambda: unit('resnet{}_xnor', 4, 3), xnor_unit, inputs(), 'gamma beta - - w'),
    'learned scales': (lambda: LearnedScale(3, 4), learned_scale, MAP, 'w_alpha w_beta w_gamma'),
    'unit of XNOR-Net++': (
        lambda: unit('resnet{}_xnorpp', 4, 3, input_size=16),
        xnor_net_plus_unit,
        MAP,
        'gamma beta - - w w_channel w_row w_column',
    ),
    'unit of Strong Baseline': (
        lambda: unit('resnet{}_strong_baseline', 4, 3, 2),
        strong_baseline_unit,
        inputs(3, ()),
        'gamma beta - - w scale - slope -',
    ),
    # the gate is computed from the input before its sign
    'gate': (lambda: GatedBinaryConv2D(3, 3, 1, 1, in_channels=16, **SIGNS), gated, inputs(16), 'w w1 w2'),
    'unit of Real-to-Binary': (
        lambda: unit('real_to_binary{}', 3, 8),
        real_to_binary_unit,
        inputs(8, ()),
        'gamma beta - - w w1 w2 slope -',
    ),
    'unit of ReActNet': (lambda: unit('reactnet{}', 4, 3), reactnet_unit, inputs(), 'w_shift - w gamma beta - -'),
    'RPReLU': (lambda: RPReLU(3), rprelu, inputs(), 'minus_gamma - beta - zeta -'),
    'PokeBNN': (lambda: PokeConv2D(4, 3, 1, 1), poke_conv, inputs(3, beside(0, 3 * 127 / 128, -3)), 'w'),
    'PokeBNN, bound 1': (
        lambda: PokeConv2D(4, 3, 2, 1, threshold=1),
        partial(poke_conv, bound=1, stride=2),
        inputs(3, beside(0, 127 / 128, -1)),
        'w',
    ),
    'DPReLU': (lambda: DPReLU(3), dprelu, inputs(), 'minus_a - negative - positive minus_c -'),
    'block of QuickNet': (lambda: ResidualBlock(4, QuickNetOptions()), quicknet_block, quicknet_inputs(), 'w gamma beta - -'),
    'BWN': (lambda: BWNConv2D(4, 3, 1, 1), bwn, inputs(3, beside(0)), 'w'),
    'BWN, stride 2': (lambda: BWNConv2D(4, 3, 2, 1), partial(bwn, stride=2), inputs(3, beside(0)), 'w'),
    'DoReFa-Net': (lambda: DoReFaConv2D(4, 3, 1, 1), dorefa, inputs(3, beside(0, 1 / 6, 0.5, 5 / 6, 1)), 'w'),
    **{
        f'DoReFa-Net, 1 bit and {bits}': (
            lambda bits=bits: DoReFaConv2D(4, 3, 1, 1, bits=1, activation_bits=bits),
            partial(dorefa_one_bit, bits=bits),
            inputs(3, beside(0, 0.5 / (2**bits - 1), 1)),
            'w',
        )
        for bits in (1, 2, 4)
    },
    'HWGQ': (lambda: HWGQConv2D(4, 3, 1, 1), hwgq_layer, inputs(3, beside(0)), 'w'),
    'SYQ': (lambda: SYQConv2D(4, 3, 1, 1), syq, inputs(3, beside(0, 0.5, 1)), 'w scale'),
    'SYQ, 1x1': (lambda: SYQConv2D(4, 1), syq, inputs(3, beside(0, 0.5, 1)), 'w scale'),
    'TTQ': (lambda: TTQConv2D(4, 3, 1, 1), ttq, inputs(3, beside(0)), 'w positive negative'),
    'TTQ, random weights': (lambda: TTQConv2D(4, 3, 1, 1), ttq, inputs(3, beside(0)), 'w positive negative', PLAIN),
    # codes times bases; gradients pass within the largest level
    'LQ-Net': (
        lambda: LQConv2D(4, 3, 1, 1),
        lq_net,
        inputs(3, beside(0)),
        'basis moments w scale',
        {'ungraded': ['basis', 'moments', 'scale']},
    ),
    'ABC-Net': (lambda: ABCConv2D(2, 3, 1, 1), abc_net, inputs(2), 'shift w beta', PLAIN),
    'ABC-Net, stride 2': (lambda: ABCConv2D(2, 3, 2, 1), partial(abc_net, stride=2), inputs(2), 'shift w beta', PLAIN),
    'CBCN': (lambda: CirculantConv2D(8, 3, 1, 1), circulant, inputs(4), 'w', PLAIN),
    'CBCN, stride 2': (lambda: CirculantConv2D(8, 3, 2, 1), partial(circulant, stride=2), inputs(4), 'w', PLAIN),
    'GroupNet': (lambda: Repeated(GroupSum()), group_sum, inputs(2), 'scale'),
    'soft gate of GroupNet': (lambda: Repeated(SoftGate(), squared=True), soft_gate, inputs(2), 'gate'),
}


@pytest.mark.parametrize('name', EQUATIONS)
def test_layer_has_the_values_and_gradients_of_its_equation(name):
    make, equation, x, names, *options = EQUATIONS[name]
    assert_equals(make(), equation, x, [None if one == '-' else one for one in names.split()], **dict(*options))
