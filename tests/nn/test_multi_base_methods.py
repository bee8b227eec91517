"""Layers and networks with several binary bases against their equations in float64 NumPy, their counts and their conversion."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.equations import assert_equals, conv, inputs, triangle

import bmx_melius as bmx
from bmx_melius import QActivation, UserError
from bmx_melius.nn.methods.abc_net import RIDGE, SHIFTS, ABCConv2D, scales
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.group_net import BASES, GroupSum, SoftGate
from model_zoo import get_model
from model_zoo.ensemble import MEMBERS


def signs(x):
    return np.where(x >= 0, 1.0, -1.0)


def everywhere(x):
    return np.ones_like(x)


# --- ABC-Net ---------------------------------------------------------------------------------------------------------------------------


def bases_of(w):
    return [signs(w - w.mean() + u * w.std()) for u in SHIFTS]


def least_squares(w, ridge=0):
    columns = np.stack([base.ravel() for base in bases_of(w)], axis=1)
    return np.linalg.solve(columns.T @ columns + ridge * len(columns) * np.eye(5), columns.T @ w.ravel())


def abc(s, x, shift, w, beta, stride=1):
    """The sum of 25 binary convolutions."""
    alpha, y = s.constant(least_squares(w, RIDGE)), 0
    weights = [s.estimate(base, w, everywhere(w)) for base in bases_of(w)]
    for v, scale in zip(shift, beta):
        z = x + v
        activation = s.estimate(signs(np.clip(z, 0, 1) - 0.5), z, ((z >= 0) & (z <= 1)) * 1.0)
        y = y + scale * sum(a * conv(activation, weight, stride) for a, weight in zip(alpha, weights))
    return y


@pytest.mark.parametrize('stride', [1, 2])
def test_abc_net_adds_25_scaled_binary_convolutions(stride):
    names = ['shift', 'w', 'beta']
    equation = lambda s, x, shift, w, beta: abc(s, x, shift, w, beta, stride)  # noqa: E731
    assert_equals(ABCConv2D(2, 3, stride, 1), equation, inputs(2), names, boundary=False)


def test_activations_of_abc_net_have_a_gradient_at_both_bounds_of_the_clipped_input():
    layer = ABCConv2D(1, 1, in_channels=1)
    layer.initialize()
    layer.qact.shift.set_data(nd.array([0.5, 9, 9, 9, 9]))
    x = nd.array([-0.5, -0.5000001, 0.5, 0.5000001, 0, -0.0]).reshape((1, 1, 1, -1))
    x.attach_grad()
    with autograd.record():
        first = layer.qact(x)[0]
    first.backward()
    np.testing.assert_array_equal(first.asnumpy().ravel(), [0, 0, 1, 1, 1, 1])  # encoded signs
    np.testing.assert_array_equal(x.grad.asnumpy().ravel(), [0.5, 0, 0.5, 0, 0.5, 0.5])


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


def test_abc_net_refuses_real_weights():
    with pytest.raises(UserError, match='weight_bits=32 is not supported'):
        ABCConv2D(4, 3, weight_bits=32)


@pytest.mark.parametrize(
    'arguments, words',
    [
        ({'groups': 2}, 'no grouped convolutions'),
        ({'activation_method': 'round', 'activation_bits': 2}, "'round' with 2 bits is not supported"),
        ({'bits': 2, 'quantization': 'dorefa', 'activation_method': 'round'}, "'round' with 2 bits is not supported"),
        ({'quantization': 'scaled_sign'}, "'scaled_sign' with 1 bits is not supported"),
    ],
)
def test_abc_net_refuses_groups_and_bases_that_are_not_signs(arguments, words):
    with pytest.raises(UserError, match=words):
        ABCConv2D(4, 3, **arguments)


# --- circulant filters -----------------------------------------------------------------------------------------------------------------


def rotations(w):
    """The four rotations of each filter, adjacent; with orientation the fastest axis of the inputs and of the outputs."""
    by_orientation = w.reshape(len(w), -1, 4, *w.shape[2:])
    turned = [np.rot90(np.roll(by_orientation, turns, axis=2), -turns, axes=(3, 4)) for turns in range(4)]
    return np.stack(turned, axis=1).reshape(-1, *w.shape[1:])


@pytest.mark.parametrize('stride', [1, 2])
def test_circulant_filters_are_the_four_rotations_of_one(stride):
    def equation(s, x, w):
        return conv(s.sign(x, triangle), rotations(s.sign(w, triangle)), stride) * np.abs(w).mean()

    layer = CirculantConv2D(8, 3, stride, 1)
    assert_equals(layer, equation, inputs(4), ['w'], boundary=False)
    assert layer.qconv.weight.shape == (2, 4, 3, 3)


@pytest.mark.parametrize('channels, kernel_size, words', [(6, 3, 'not a multiple of the 4 orientations'), (8, (1, 3), 'square kernel')])
def test_filters_that_cannot_be_rotated_are_refused(channels, kernel_size, words):
    with pytest.raises(UserError, match=words):
        CirculantConv2D(channels, kernel_size)


def test_circulant_filters_refuse_groups_and_bias():
    with pytest.raises(UserError, match='no grouped convolutions'):
        CirculantConv2D(8, 3, groups=2)
    with pytest.raises(UserError, match='in_channels=6 is not a multiple of the 4'):
        CirculantConv2D(8, 3, in_channels=6)
    with pytest.raises(TypeError, match="CirculantConv2D: got an unexpected keyword argument 'use_bias'"):
        CirculantConv2D(8, 3, use_bias=True)


# --- GroupNet --------------------------------------------------------------------------------------------------------------------------


class Repeated(nn.HybridSequential):
    """A layer of several maps, applied to multiples of one map."""

    def hybrid_forward(self, F, x):
        y = self[0](*(x * (number + 1) for number in range(BASES)))
        return F.concat(*y, dim=1) if isinstance(y, list) else y


def repeated(layer):
    net = Repeated()
    net.add(layer)
    return net


def total_of(maps, scale):
    return sum(factor * x for factor, x in zip(scale, maps))


def test_groups_are_added_with_learned_scales():
    x = inputs(2)
    assert_equals(repeated(GroupSum()), lambda s, x, scale: total_of([x * (n + 1) for n in range(BASES)], scale), x, ['scale'])


def test_a_soft_gate_mixes_each_base_with_the_sum():
    class Gated(nn.HybridSequential):
        def hybrid_forward(self, F, x):
            return F.concat(*self[0](*(x * (number + 1) for number in range(BASES)), F.square(x)), dim=1)

    def equation(s, x, gate):
        share = 1 / (1 + np.exp(-gate[0]))
        return np.concatenate([share * x * (n + 1) + (1 - share) * x**2 for n in range(BASES)], axis=1)

    net = Gated()
    net.add(SoftGate())
    assert_equals(net, equation, inputs(2), ['gate'])


@pytest.mark.parametrize('quantized', [True, False])
def test_shortcuts_of_group_net_are_binary_for_each_base_or_one_float_projection(quantized):
    net = get_model('groupnet18', classes=3, initial_layers='thumbnail', init_features=8, quantized_shortcuts=quantized)
    counted = bmx.summary(net, (1, 3, 16, 16))
    binary = [layer.kind == 'binary layer' for layer in counted.layers if layer.operator == 'Convolution']
    assert (binary.count(True), binary.count(False)) == ((5 * 16 + 5 * 3, 1) if quantized else (5 * 16, 1 + 3))


# --- ensembles, counts and conversion --------------------------------------------------------------------------------------------------


def test_an_ensemble_is_the_mean_of_networks_that_can_be_trained_separately(tmp_path):
    options = {'classes': 3, 'initial_layers': 'thumbnail', 'init_features': 8}
    net, x = get_model('resnet18_benn', **options), nd.random.normal(shape=(1, 3, 8, 8))
    net.initialize()
    net(x)
    expected = 0
    for number, member in enumerate(net.members):
        single = get_model('resnet18_xnor', **options)
        single.initialize()
        expected = expected + single(x).asnumpy() / MEMBERS
        single.save_parameters(str(tmp_path / f'{number}.params'))
        member.load_parameters(str(tmp_path / f'{number}.params'))
    assert len(net.members) == MEMBERS == 6
    np.testing.assert_allclose(net(x).asnumpy(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    'name, options, convolutions, ops, size, published',
    [
        ('resnet18_abcnet', {}, 5 * 19, 7.80, 8.68, (7.80, 8.7)),
        ('groupnet18', {'quantized_shortcuts': False}, 5 * 16, 2.68, 9.35, (2.68, 9.2)),
        ('groupnet34', {'quantized_shortcuts': False}, 5 * 32, 4.13, 15.51, (4.13, 15.3)),
        ('groupnet18', {}, 5 * 19, 2.50, 8.72, None),
        ('resnet18_cbcn', {}, 16, 6.49, 8.01, None),
    ],
)
def test_every_binary_convolution_is_counted(name, options, convolutions, ops, size, published):
    counted = bmx.summary(get_model(name, **options))
    assert len([layer for layer in counted.layers if layer.kind == 'binary layer']) == convolutions
    assert counted.ops / 1e8 == pytest.approx(ops, abs=0.006) and counted.size_bytes / 2**20 == pytest.approx(size, abs=0.006)
    if published:
        assert (counted.ops / 1e8, counted.size_bytes / 2**20) == pytest.approx(published, rel=0.02)


def test_counts_of_one_layer_with_bases():
    counted = bmx.summary(ABCConv2D(8, 3, padding=1), (1, 4, 6, 6))
    assert counted.bops == 25 * 8 * 4 * 9 * 36
    assert sum(layer.size_bits for layer in counted.layers) == 5 * 8 * 4 * 9 + 32 * 10  # five bits of a weight; shift and beta
    counted = bmx.summary(CirculantConv2D(8, 3, padding=1), (1, 4, 6, 6))
    assert (counted.bops, counted.size_bytes) == (8 * 4 * 9 * 36, 2 * 4 * 9 // 8)


@pytest.mark.parametrize('layer', [ABCConv2D, CirculantConv2D])
def test_binary_bases_are_packed_with_equal_outputs(layer):
    net = nn.HybridSequential()
    net.add(nn.BatchNorm(), layer(8, 3, padding=1), nn.BatchNorm())
    net.initialize(mx.init.Normal(1))
    x = nd.random.normal(shape=(1, 16, 6, 6))
    expected = net(x).asnumpy()
    packed = bmx.deploy(net, x.shape)
    np.testing.assert_allclose(packed(x).asnumpy(), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize('name', ['groupnet18', 'resnet18_abcnet', 'resnet18_cbcn', 'resnet18_lqnet_w1a2', 'resnet18_benn'])
def test_widths_of_stages_follow_the_channels_after_the_stem(name):
    net = get_model(name, init_features=16, classes=3)
    counted = bmx.summary(net, (1, 3, 32, 32))
    assert {layer.output_shape[1] for layer in counted.layers if layer.kind == 'normalization'} == {16, 32, 64, 128}
    output = [layer for layer in counted.layers if layer.operator == 'FullyConnected']
    assert {layer.macs for layer in output} == {3 * 128}


@pytest.mark.parametrize('layer', [ABCConv2D, CirculantConv2D])
@pytest.mark.parametrize('hybridize', [False, True])
def test_shapes_are_inferred(layer, hybridize):
    for arguments in ({}, {'bits': 32}):
        net = layer(4, 3, padding=1, **arguments)
        net.initialize()
        net.hybridize(hybridize)
        assert net(nd.ones((1, 8, 5, 5))).shape == (1, 4, 5, 5)


def test_options_of_an_ensemble_are_those_of_its_members():
    net = get_model('resnet18_benn', clip_threshold=0.75, init_features=8, classes=2)
    activations = []
    net.apply(lambda block: activations.append(block.threshold) if isinstance(block, QActivation) else None)
    assert activations == [0.75] * 16 * MEMBERS
