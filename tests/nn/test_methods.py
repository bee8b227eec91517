"""Layers of the methods of other papers, and the networks that consist of them: updates, counts, widths, conversion, and refusals."""

import dataclasses
import json
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.equations import BOUNDARY, conv
from support.gradients import gradients
from support.networks import layers_of
from support.small_networks import sequence
from support.training_runs import train

import bmx_melius as bmx
from bmx_melius import BinaryConv2D, QActivation, QConv2D, UserError
from bmx_melius.nn.channelwise import Shift
from bmx_melius.nn.methods.abc_net import ABCConv2D
from bmx_melius.nn.methods.bnn import clip_latent_weights
from bmx_melius.nn.methods.bwn import BWNConv2D
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.hwgq import HWGQConv2D
from bmx_melius.nn.methods.lq_net import LQConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.updates import finish_update
from bmx_melius.nn.methods.xnor_net import ScaledBinaryConv2D, XNORConv2D
from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
from bmx_melius.training import Objective, Training
from model_zoo import get_model
from model_zoo.ensemble import MEMBERS
from model_zoo.quicknet import QuickNetOptions, Transition
from model_zoo.residual import NETWORKS, ResidualArchitecture, ResidualNetwork, ResidualRow
from model_zoo.units import chain

# --- layers ----------------------------------------------------------------------------------------------------------------------------


def test_latent_weights_beyond_the_threshold_are_clipped_and_others_kept():
    net = sequence(*(BinaryConv2D(1, 1, in_channels=3, **arguments) for arguments in ({'weight_threshold': 1.25}, {}, {'bits': 32})))
    net.initialize()
    values = np.array([-3, 1.2, 1.3], np.float32).reshape(1, 3, 1, 1)
    for layer in net:
        layer.qconv.weight.set_data(nd.array(values))
    clip_latent_weights(net)
    clipped, *kept = (layer.qconv.weight.data().asnumpy() for layer in net)
    np.testing.assert_array_equal(clipped.ravel(), np.array([-1.25, 1.2, 1.25], np.float32))
    assert all(np.array_equal(weight, values) for weight in kept)


def test_real_weights_of_the_first_stage_are_not_clipped():
    layer = BinaryConv2D(1, 1, in_channels=2, weight_threshold=1, no_offset=True, weight_bits=32)
    layer.initialize(mx.init.Constant(3))
    clip_latent_weights(layer)
    np.testing.assert_array_equal(layer.qconv.weight.data().asnumpy().ravel(), [3, 3])


def test_training_clips_latent_weights_after_each_update():
    net = QConv2D(1, 1, in_channels=2, weight_threshold=1, no_offset=True)
    net.initialize(mx.init.Constant(0.5))
    trainer = mx.gluon.Trainer(net.collect_params(), 'sgd', {'learning_rate': 3})
    data = SimpleNamespace(images_per_update=1, updates_per_epoch=1)
    training = Training(net, data, Objective(loss=lambda output, target: output), trainer, num_epochs=1)
    training.step(nd.array([[[[1]], [[-1]]]]), nd.zeros((1,)), epoch=0, batch=0)
    np.testing.assert_array_equal(net.weight.data().asnumpy().ravel(), [-1, 1])


def test_xnor_net_does_not_centre_weights_on_request():
    layer = XNORConv2D(4, 3, in_channels=2, center_weights=False)
    layer.initialize(mx.init.Constant(2))
    finish_update(layer)
    assert (layer.qconv.weight.data().asnumpy() == 2).all()


def test_a_filter_of_zeros_keeps_finite_gradients():
    layer = XNORConv2D(2, 3, in_channels=2)
    layer.initialize(mx.init.Zero())
    y, _ = gradients(layer, [nd.ones((1, 2, 5, 5))])
    assert np.isfinite(layer.qconv.weight.grad().asnumpy()).all() and not y.any()


@pytest.mark.parametrize('layer', [ScaledBinaryConv2D, XNORConv2D])
def test_the_full_precision_counterpart_of_xnor_net_is_an_ordinary_convolution(layer):
    counterpart, x = layer(4, 3, padding=1, in_channels=3, bits=32), nd.random.normal(shape=(1, 3, 5, 5))
    counterpart.initialize(mx.init.Normal(1))
    expected = nd.Convolution(x, counterpart.qconv.weight.data(), no_bias=True, kernel=(3, 3), pad=(1, 1), num_filter=4)
    np.testing.assert_array_equal(counterpart(x).asnumpy(), expected.asnumpy())


def test_learned_scales_are_initially_one_and_refuse_maps_of_another_size():
    layer, x = LearnedScale(3, 4), nd.random.normal(shape=(1, 3, 4, 4))
    layer.initialize()
    np.testing.assert_array_equal(layer(x).asnumpy(), x.asnumpy())
    with pytest.raises(UserError, match='for maps of 4 x 4, not 1 x 4'):
        layer(nd.ones((1, 3, 1, 4)))


@pytest.mark.parametrize('size', [2, 5, 6])
def test_transition_of_quicknet_blurs_the_maximum(size):
    x = np.random.RandomState(3).randn(1, 4, size, size + 1)
    layer = Transition(2, 4, QuickNetOptions())
    layer.cast('float64')
    layer.initialize()
    largest = np.max([x[:, :, i : size - 1 + i, j : size + j] for i in (0, 1) for j in (0, 1)], axis=0)
    blur = np.outer([1, 2, 1], [1, 2, 1]) / 16 * np.eye(4)[:, :, None, None]
    blurred = conv(np.maximum(largest, 0), blur, stride=2, value=0)
    y = layer(nd.array(x, dtype='float64')).asnumpy()
    weight = layer[4].weight.data().asnumpy()
    np.testing.assert_allclose(y, conv(blurred, weight, pad=0) / np.sqrt(1 + 1e-5), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize('name, published, blurred', [('quicknet', 13234088, (64, 128, 256)), ('quicknet_large', 23342248, (64, 128, 256))])
def test_quicknets_have_the_parameters_that_larq_zoo_publishes(name, published, blurred):
    counts = bmx.summary(get_model(name), (1, 3, 224, 224)).counts
    assert counts['binary_params'] + counts['float_params'] == published - 9 * sum(blurred)  # its blurring filters are not parameters here


# --- activations -----------------------------------------------------------------------------------------------------------------------


def test_sign_of_reactnet_has_the_triangular_gradient_with_its_bounds():
    layer = chain(Shift(1), QActivation(method='approx_sign', threshold=1))
    layer.cast('float64')
    layer.initialize()
    y, dx = gradients(layer, [nd.array(BOUNDARY.reshape(1, 1, 1, -1), dtype='float64')])
    np.testing.assert_array_equal(y.ravel(), [1, 1, 1, -1, 1, -1, 1, -1])
    np.testing.assert_array_equal(dx.ravel(), [2, 2, 0, 0, 0, 0, 2, 2])


def test_activations_of_abc_net_have_a_gradient_at_both_bounds_of_the_clipped_input():
    layer = ABCConv2D(1, 1, in_channels=1)
    layer.initialize()
    layer.qact.shift.set_data(nd.array([0.5, 9, 9, 9, 9]))
    first, dx = gradients(lambda x: layer.qact(x)[0], [nd.array([[[[-0.5, -0.5000001, 0.5, 0.5000001, 0, -0.0]]]])])
    np.testing.assert_array_equal(first.ravel(), [0, 0, 1, 1, 1, 1])  # encoded signs
    np.testing.assert_array_equal(dx.ravel(), [0.5, 0, 0.5, 0, 0.5, 0.5])


@pytest.mark.parametrize(
    'method, value, slope',
    [
        ('relu', lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        ('leaky_clip', lambda x: np.where(np.abs(x) <= 1, x, 0.1 * x), lambda x: np.where(np.abs(x) <= 1, 1, 0.1)),
    ],
)
def test_float_activations_of_bmxnet_v2(method, value, slope):
    points = np.concatenate([BOUNDARY, [-3, -0.5, 0.5, 3]])
    y, dx = gradients(QActivation(bits=32, method=method), [nd.array(points, dtype='float64')])
    np.testing.assert_allclose(y, value(points), rtol=1e-15)
    np.testing.assert_allclose(dx, slope(points), rtol=1e-15)
    with pytest.raises(UserError, match=f'{method!r} cannot round to 1 bits; choose from 32'):
        QActivation(method=method)


def test_sign_approx_sign_is_approx_sign_with_one_bit():
    points = [*BOUNDARY, 0.3, -0.7, 1.3, 1.4]
    results = [gradients(QActivation(method=name), [nd.array(points, dtype='float64')]) for name in ('sign_approx_sign', 'approx_sign')]
    np.testing.assert_array_equal(*results)
    with pytest.raises(UserError, match='cannot round to 32 bits'):
        QActivation(bits=32, method='sign_approx_sign')


# --- networks --------------------------------------------------------------------------------------------------------------------------


def test_alexnet_has_the_layers_of_its_table_and_accepts_one_size_of_images():
    net = get_model('alexnet_xnor', classes=5)
    shapes = [layer.qconv.weight.shape for layer in net.features if isinstance(layer, XNORConv2D)]
    assert shapes == [(256, 96, 5, 5), (384, 256, 3, 3), (384, 384, 3, 3), (256, 384, 3, 3), (4096, 256, 6, 6), (4096, 4096, 1, 1)]
    with pytest.raises(UserError, match='built for images of 224 x 224, not 64 x 64'):
        net(nd.zeros((1, 3, 64, 64)))


@pytest.mark.parametrize('initial_layers, size', [('thumbnail', 9), ('imagenet', 70), ('thumbnail', 16)])
def test_learned_scales_fit_the_maps_of_images_of_their_size(initial_layers, size):
    net = get_model('resnet18_xnorpp', classes=3, initial_layers=initial_layers, input_size=size)
    net.initialize()
    assert net(nd.zeros((1, 3, size, size))).shape == (1, 3)
    net.hybridize()
    with pytest.raises(UserError, match=f'built for images of {size} x {size}, not 20 x 24'):
        net(nd.zeros((1, 3, 20, 24)))


def small_network(name):
    """A network of a row with two stages of two layers, for images of 8 x 8."""
    row = NETWORKS[name]
    small = {'input_size': 8, 'initial_layers': 'thumbnail'}
    options = dataclasses.replace(row.options, **{option: value for option, value in small.items() if hasattr(row.options, option)})
    return ResidualNetwork(ResidualArchitecture((2, 2), row), options, classes=5)


@pytest.mark.parametrize('name', [name for name in NETWORKS if name != 'binet{}'])  # in which no BN precedes a sign after a shortcut
def test_a_network_of_each_row_trains_all_its_layers(name):
    net = small_network(name)
    net.initialize()
    assert not bmx.check(net, nd.random.normal(shape=(4, 3, 8, 8))).problems


WITHOUT_DECAY = {
    'xnorpp',
    'strong',
    'real',
    'groupnet',
    'syq',
    'e',
    'e2',
    'v1',
    'v2',
    'binet',
    'bnext',
}  # of the latent weights, see docs/training-reference.md


@pytest.mark.parametrize('name', [name for name in NETWORKS if name != 'resnet8'])  # in float
def test_the_latent_weights_of_each_row_decay_as_the_documentation_says(name):
    decays = {parameter.wd_mult for parameter in small_network(name).collect_params('.*qconv.*weight').values()}
    short = name.format('').split('_')
    assert decays == {0.0 if WITHOUT_DECAY & set(short) else 1.0}


@pytest.mark.parametrize('span, additions', [(1, 4), (2, 2)])
def test_a_further_network_is_one_row(span, additions):
    def float_unit(place, options):
        return chain(nn.Conv2D(place.channels, place.kernel_size, place.stride, place.kernel_size // 2), options.norm())

    sums = []

    def after_sum(place, options):
        sums.append((place.channels, place.total_stride))
        return nn.Activation('relu')

    row = ResidualRow(float_unit, units_per_block=span, shortcut=float_unit, after_sum=after_sum)
    net = ResidualNetwork(ResidualArchitecture((2, 2), row), classes=3)
    net.initialize()
    assert net(nd.zeros((1, 3, 32, 32))).shape == (1, 3)
    assert sums == [(64, 4)] * (additions // 2) + [(128, 8)] * (additions // 2)


def test_same_padding_keeps_the_scales_of_a_method_at_their_windows():
    net = get_model('resnet18_xnor', classes=3, initial_layers='thumbnail', same_padding=True)
    net.initialize()
    assert net(nd.zeros((1, 3, 16, 16))).shape == (1, 3)
    with pytest.raises(UserError, match='multiples of 8'):
        net(nd.zeros((1, 3, 15, 15)))


@pytest.mark.parametrize(
    'name, options, flags, bits',
    [
        ('resnet18_bwn', {}, [], (32, 1)),
        ('resnet18_ttq', {}, [], (32, 2)),
        ('resnet18_dorefa_w2a2', {}, [], (2, 2)),
        ('resnet18_dorefa_w2a2', {'bits': 4}, [], (4, 4)),
        ('resnet18_hwgq', {}, ['--weight-bits', '32'], (2, 32)),
        ('resnet18_syq_w1a2', {}, ['--bits', '32'], (32, 32)),
    ],
)
def test_the_plan_of_a_training_shows_the_bits_of_the_layers(name, options, flags, bits, tmp_path, capsys):
    options = {'init_features': 4, **options}
    small = ['--dataset', 'digits', '--batch-size', '8', '--model-options', json.dumps(options)]
    train('--model', name, *small, *flags, '--dry-run', '--save-dir', tmp_path / 'run')
    assert '; activations of {}, weights of {} bits\n'.format(*bits) in capsys.readouterr().out


OF_FEW_BITS = [BWNConv2D, DoReFaConv2D, HWGQConv2D, LQConv2D, SYQConv2D, TTQConv2D]


@pytest.mark.parametrize('layer', [*OF_FEW_BITS, ABCConv2D, CirculantConv2D])
@pytest.mark.parametrize('hybridize', [False, True])
def test_shapes_are_inferred_and_full_precision_counterparts_have_only_a_weight(layer, hybridize):
    for arguments in ({}, {'bits': 32}):
        net = layer(4, 3, padding=1, **arguments)
        net.initialize()
        net.hybridize(hybridize)
        assert net(nd.ones((1, 8, 5, 5))).shape == (1, 4, 5, 5)
    if layer in OF_FEW_BITS:
        counterpart = layer(4, 3, padding=1, bits=32, in_channels=3)
        assert [parameter.shape for parameter in counterpart.collect_params().values()] == [(4, 3, 3, 3)]


@pytest.mark.parametrize(
    'name, options, convolutions, ops, size, published',
    [
        ('resnet18_bwn', {}, 16, 18.14, 4.00, None),
        ('resnet18_ttq', {}, 0, 18.14, 5.30, None),
        ('resnet18_dorefa_w2a2', {}, 0, 2.42, 5.31, None),
        ('resnet18_hwgq', {}, 19, 1.71, 3.37, None),
        ('resnet18_lqnet_w1a2', {}, 19, 1.71, 3.39, None),
        ('resnet18_syq_w1a2', {}, 16, 1.90, 4.00, None),
        ('resnet18_abcnet', {}, 5 * 19, 7.80, 8.68, (7.80, 8.7)),
        ('groupnet18', {'quantized_shortcuts': False}, 5 * 16, 2.68, 9.35, (2.68, 9.2)),
        ('groupnet34', {'quantized_shortcuts': False}, 5 * 32, 4.13, 15.51, (4.13, 15.3)),
        ('groupnet18', {}, 5 * 19, 2.50, 8.72, None),
        ('resnet18_cbcn', {}, 16, 6.49, 8.01, None),
    ],
)
def test_every_binary_convolution_is_counted_and_others_by_their_bits(name, options, convolutions, ops, size, published):
    counted = bmx.summary(get_model(name, **options))
    assert len([layer for layer in counted.layers if layer.kind == 'binary layer']) == convolutions
    assert {layer.bits for layer in counted.layers if layer.kind == 'k-bit layer'} <= {2}
    assert counted.ops / 1e8 == pytest.approx(ops, abs=0.005) and counted.size_bytes / 2**20 == pytest.approx(size, abs=0.006)
    if published:
        assert (counted.ops / 1e8, counted.size_bytes / 2**20) == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize('quantized', [True, False])
def test_shortcuts_of_group_net_are_binary_for_each_base_or_one_float_projection(quantized):
    net = get_model('groupnet18', classes=3, initial_layers='thumbnail', init_features=8, quantized_shortcuts=quantized)
    counted = bmx.summary(net, (1, 3, 16, 16))
    binary = [layer.kind == 'binary layer' for layer in counted.layers if layer.operator == 'Convolution']
    assert (binary.count(True), binary.count(False)) == ((5 * 16 + 5 * 3, 1) if quantized else (5 * 16, 1 + 3))


def test_counts_of_one_layer_with_bases():
    counted = bmx.summary(ABCConv2D(8, 3, padding=1), (1, 4, 6, 6))
    assert counted.bops == 25 * 8 * 4 * 9 * 36
    assert sum(layer.size_bits for layer in counted.layers) == 5 * 8 * 4 * 9 + 32 * 10  # five bits of a weight; shift and beta
    layer = CirculantConv2D(8, 3, padding=1, in_channels=4)
    counted = bmx.summary(layer, (1, 4, 6, 6))
    assert (counted.bops, counted.size_bytes, layer.qconv.weight.shape) == (8 * 4 * 9 * 36, 2 * 4 * 9 // 8, (2, 4, 3, 3))


@pytest.mark.parametrize('layer', [ABCConv2D, CirculantConv2D])
def test_binary_bases_are_packed_with_equal_outputs(layer):
    net = sequence(nn.BatchNorm(), layer(8, 3, padding=1), nn.BatchNorm())
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


def test_options_of_an_ensemble_are_those_of_its_members():
    net = get_model('resnet18_benn', clip_threshold=0.75, init_features=8, classes=2)
    assert len(net.members) == MEMBERS == 6
    assert [activation.threshold for activation in layers_of(net, QActivation)] == [0.75] * 16 * MEMBERS
