"""Layers of other methods against their equations in float64 NumPy, and the networks that consist of them."""

import dataclasses
from types import SimpleNamespace

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.equations import BOUNDARY, assert_equals, batch_norm, conv, filter_mean, inputs, prelu, triangle, within_one

import bmx_melius as bmx
from bmx_melius import BinaryConv2D, QActivation, QConv2D, UserError
from bmx_melius.nn.channelwise import Shift
from bmx_melius.nn.methods.bnn import clip_latent_weights
from bmx_melius.nn.methods.reactnet import RPReLU
from bmx_melius.nn.methods.real_to_binary import GatedBinaryConv2D
from bmx_melius.nn.methods.updates import finish_update
from bmx_melius.nn.methods.xnor_net import ScaledBinaryConv2D, XNORConv2D
from bmx_melius.nn.methods.xnor_net_plus import LearnedScale
from bmx_melius.training import Objective, Training
from model_zoo import get_model
from model_zoo.method_resnets import METHODS, Architecture, Method, MethodResNet
from model_zoo.method_units import Place, chain
from model_zoo.quicknet import Options as QuickNetOptions
from model_zoo.quicknet import ResidualBlock, transition


def unit(name, channels, in_channels, stride=1, **options):
    """A unit of the table of methods."""
    method = METHODS[name]
    return method.unit(Place(channels, in_channels, stride, 4 * stride), dataclasses.replace(method.options, **options))


# --- BNN -------------------------------------------------------------------------------------------------------------------------------


def bnn(s, x, w, stride=1):
    return conv(s.sign(x, within_one), s.sign(w, within_one), stride)


@pytest.mark.parametrize('stride', [1, 2])
def test_bnn_is_a_convolution_of_signs_with_gradients_within_one(stride):
    layer = BinaryConv2D(4, 3, stride, 1, threshold=1, weight_threshold=1, no_offset=True)
    assert_equals(layer, lambda s, x, w: bnn(s, x, w, stride), inputs(), ['w'])


def test_unit_of_bnn_normalizes_after_the_convolution_unless_an_addition_follows():
    def equation(s, x, w, gamma, beta):
        return batch_norm(bnn(s, x, w, 2), gamma, beta)

    place, method = Place(4, 3, 2, 8, ends_block=False), METHODS['resnet{}_bnn']
    assert_equals(method.unit(place, method.options), equation, inputs(), ['w', 'gamma', 'beta', None, None])
    assert_equals(unit('resnet{}_bnn', 4, 3, stride=2), lambda s, x, w: bnn(s, x, w, 2), inputs(), ['w'])


def test_latent_weights_beyond_the_threshold_are_clipped_and_others_kept():
    net = nn.HybridSequential()
    net.add(*(BinaryConv2D(1, 1, in_channels=3, **arguments) for arguments in ({'weight_threshold': 1.25}, {}, {'bits': 32})))
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


# --- XNOR-Net --------------------------------------------------------------------------------------------------------------------------


def xnor(s, x, w, stride=1, input_scale=False):
    alpha, n = filter_mean(w)[..., None], w[0].size
    slope = n * (1 - 1 / w.shape[1]) * (1 / n + alpha * (np.abs(w) < 1))
    y = conv(s.sign(x, within_one), s.estimate(alpha * np.where(w >= 0, 1.0, -1.0), w, slope), stride)
    if not input_scale:
        return y
    magnitude = np.abs(x).mean(axis=1, keepdims=True)
    return y * s.constant(conv(magnitude, np.full((1, 1, 3, 3), 1 / 9), stride, value=0))


@pytest.mark.parametrize('stride', [1, 2])
@pytest.mark.parametrize('input_scale', [True, False])
def test_xnor_net_scales_by_weights_and_on_request_by_inputs(stride, input_scale):
    layer = XNORConv2D(4, 3, stride, 1, input_scale=input_scale)
    assert_equals(layer, lambda s, x, w: xnor(s, x, w, stride, input_scale), inputs(), ['w'])


def test_xnor_net_does_not_centre_weights_on_request():
    layer = XNORConv2D(4, 3, in_channels=2, center_weights=False)
    layer.initialize(mx.init.Constant(2))
    finish_update(layer)
    assert (layer.qconv.weight.data().asnumpy() == 2).all()


def test_unit_of_xnor_net_normalizes_before_the_sign():
    def equation(s, x, gamma, beta, w):
        return xnor(s, batch_norm(x, gamma, beta), w)

    assert_equals(unit('resnet{}_xnor', 4, 3), equation, inputs(), ['gamma', 'beta', None, None, 'w'])


def test_a_filter_of_zeros_keeps_finite_gradients():
    layer = XNORConv2D(2, 3, in_channels=2)
    layer.initialize(mx.init.Zero())
    x = nd.ones((1, 2, 5, 5))
    with autograd.record():
        y = layer(x)
    y.backward()
    assert np.isfinite(layer.qconv.weight.grad().asnumpy()).all() and not y.asnumpy().any()


@pytest.mark.parametrize('layer', [ScaledBinaryConv2D, XNORConv2D])
def test_the_full_precision_counterpart_of_xnor_net_is_an_ordinary_convolution(layer):
    counterpart, x = layer(4, 3, padding=1, in_channels=3, bits=32), nd.random.normal(shape=(1, 3, 5, 5))
    counterpart.initialize(mx.init.Normal(1))
    expected = nd.Convolution(x, counterpart.qconv.weight.data(), no_bias=True, kernel=(3, 3), pad=(1, 1), num_filter=4)
    np.testing.assert_array_equal(counterpart(x).asnumpy(), expected.asnumpy())


# --- XNOR-Net++, Strong Baseline and Real-to-Binary -------------------------------------------------------------------------------------


def test_learned_scales_are_a_product_of_three_vectors_with_its_derivatives():
    def equation(s, x, w_alpha, w_beta, w_gamma):
        return x * np.einsum('c,i,j->cij', w_alpha.ravel(), w_beta.ravel(), w_gamma.ravel())

    x = np.random.RandomState(1).randn(2, 3, 4, 4)
    assert_equals(LearnedScale(3, 4), equation, x, ['w_alpha', 'w_beta', 'w_gamma'])


def test_learned_scales_are_initially_one_and_refuse_maps_of_another_size():
    layer, x = LearnedScale(3, 4), nd.random.normal(shape=(1, 3, 4, 4))
    layer.initialize()
    np.testing.assert_array_equal(layer(x).asnumpy(), x.asnumpy())
    with pytest.raises(UserError, match='for maps of 4 x 4, not 1 x 4'):
        layer(nd.ones((1, 3, 1, 4)))


def test_unit_of_xnor_net_plus_scales_by_channel_row_and_column():
    def equation(s, x, gamma, beta, w, w_channel, w_row, w_column):
        return bnn(s, batch_norm(x, gamma, beta), w) * (w_channel * w_row * w_column)[0]

    layer = unit('resnet{}_xnorpp', 4, 3, input_size=16)
    x = np.random.RandomState(2).randn(2, 3, 4, 4)
    assert_equals(layer, equation, x, ['gamma', 'beta', None, None, 'w', 'w_channel', 'w_row', 'w_column'])


def test_unit_of_the_strong_baseline_scales_channels_before_its_prelu():
    def equation(s, x, gamma, beta, w, scale, slope):
        return prelu(s, bnn(s, batch_norm(x, gamma, beta), w, 2) * scale[:, None, None], slope)

    names = ['gamma', 'beta', None, None, 'w', 'scale', None, 'slope', None]
    assert_equals(unit('resnet{}_strong_baseline', 4, 3, stride=2), equation, inputs(boundary=False), names)


def gated(s, x, w, w1, w2):
    hidden = np.maximum(np.einsum('nc,oc->no', x.mean(axis=(2, 3)), w1[:, :, 0, 0]), 0)
    gate = 1 / (1 + np.exp(-np.einsum('nc,oc->no', hidden, w2[:, :, 0, 0]))) / np.sqrt(w[0].size)
    return bnn(s, x, w) * gate[:, :, None, None]


def test_gates_are_computed_from_the_input_before_its_sign():
    layer = GatedBinaryConv2D(3, 3, 1, 1, in_channels=16, threshold=1, weight_threshold=1)
    assert_equals(layer, gated, inputs(16), ['w', 'w1', 'w2'])


def test_unit_of_real_to_binary_applies_gate_and_prelu():
    def equation(s, x, gamma, beta, w, w1, w2, slope):
        return prelu(s, gated(s, batch_norm(x, gamma, beta), w, w1, w2), slope)

    names = ['gamma', 'beta', None, None, 'w', 'w1', 'w2', 'slope', None]
    assert_equals(unit('real_to_binary{}', 3, 8), equation, inputs(8, boundary=False), names)


def test_a_gate_needs_the_number_of_input_channels():
    with pytest.raises(UserError, match='needs in_channels, at least 8'):
        GatedBinaryConv2D(4, 3)


# --- ReActNet --------------------------------------------------------------------------------------------------------------------------


def test_unit_of_reactnet_shifts_before_the_sign():
    def equation(s, x, w_shift, w, gamma, beta):
        scaled = filter_mean(w)[..., None] * np.where(w >= 0, 1.0, -1.0)
        y = conv(s.sign(x + w_shift[:, None, None], triangle), s.estimate(scaled, w, within_one(w)))
        return batch_norm(y, gamma, beta)

    names = ['w_shift', None, 'w', 'gamma', 'beta', None, None]
    assert_equals(unit('reactnet{}', 4, 3), equation, inputs(), names)


def test_sign_of_reactnet_has_the_triangular_gradient_with_its_bounds():
    layer = chain(Shift(1), QActivation(method='approx_sign', threshold=1))
    layer.cast('float64')
    layer.initialize()
    x = nd.array(BOUNDARY.reshape(1, 1, 1, -1), dtype='float64')
    x.attach_grad()
    with autograd.record():
        y = layer(x)
    y.backward()
    np.testing.assert_array_equal(y.asnumpy().ravel(), [1, 1, 1, -1, 1, -1, 1, -1])
    np.testing.assert_array_equal(x.grad.asnumpy().ravel(), [2, 2, 0, 0, 0, 0, 2, 2])


def test_rprelu_is_the_equation_of_the_paper():
    def equation(s, x, minus_gamma, beta, zeta):
        gamma, beta, zeta = (vector[:, None, None] for vector in (-minus_gamma, beta, zeta))
        return np.where(x > gamma, x - gamma + zeta, beta * (x - gamma) + zeta)

    assert_equals(RPReLU(3), equation, inputs(), ['minus_gamma', None, 'beta', None, 'zeta', None])


# --- QuickNet --------------------------------------------------------------------------------------------------------------------------


def test_block_of_quicknet_pads_with_one_and_applies_relu_before_its_normalization():
    def slope(x):
        return (np.abs(x) <= 1.25) * 1.0

    def equation(s, x, w, gamma, beta):
        y = conv(s.sign(x, slope), s.sign(w, slope), value=1)
        return batch_norm(s.estimate(np.maximum(y, 0), y, y > 0), gamma, beta) + x  # y is an integer: the gradient of 0 is 0

    x = inputs(4)
    x[1, 0, 0, :4] = [1.25, -1.25, np.nextafter(1.25, 2), -np.nextafter(1.25, 2)]
    assert_equals(ResidualBlock(4, QuickNetOptions()), equation, x, ['w', 'gamma', 'beta', None, None])


@pytest.mark.parametrize('size', [2, 5, 6])
def test_transition_of_quicknet_blurs_the_maximum(size):
    x = np.random.RandomState(3).randn(1, 4, size, size + 1)
    layer = transition(2, 4, QuickNetOptions())
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


# --- networks --------------------------------------------------------------------------------------------------------------------------


def test_alexnet_has_the_layers_of_its_table_and_accepts_one_size_of_images():
    net = get_model('alexnet_xnor', classes=5)
    shapes = [layer.qconv.weight.shape for layer in net.features if isinstance(layer, XNORConv2D)]
    assert shapes == [(256, 96, 5, 5), (384, 256, 3, 3), (384, 384, 3, 3), (256, 384, 3, 3), (4096, 256, 6, 6), (4096, 4096, 1, 1)]
    with pytest.raises(UserError, match='built for images of 224 x 224, not 64 x 64'):
        net(nd.zeros((1, 3, 64, 64)))
    with pytest.raises(UserError, match='input_size=16 is too small'):
        get_model('alexnet_xnor', input_size=16)
    with pytest.raises(UserError, match='cannot pad as TensorFlow does'):
        get_model('alexnet_xnor', same_padding=True)


@pytest.mark.parametrize('initial_layers, size', [('thumbnail', 9), ('imagenet', 70), ('thumbnail', 16)])
def test_learned_scales_fit_the_maps_of_images_of_their_size(initial_layers, size):
    net = get_model('resnet18_xnorpp', classes=3, initial_layers=initial_layers, input_size=size)
    net.initialize()
    assert net(nd.zeros((1, 3, size, size))).shape == (1, 3)
    net.hybridize()
    with pytest.raises(UserError, match=f'built for images of {size} x {size}, not 20 x 24'):
        net(nd.zeros((1, 3, 20, 24)))


@pytest.mark.parametrize('name', ['resnet18_strong_baseline', 'real_to_binary18', 'resnet18_xnor', 'quicknet'])
def test_both_stages_of_training_have_the_same_parameters(name):
    names = [
        [(own[len(net.prefix) :], parameter.shape) for own, parameter in net.collect_params().items()]
        for net in (get_model(name), get_model(name, weight_bits=32))
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize('name', METHODS)
def test_a_network_of_each_method_trains_all_its_layers(name):
    method = METHODS[name]
    size = {'input_size': 8} if hasattr(method.options, 'input_size') else {}
    options = dataclasses.replace(method.options, initial_layers='thumbnail', **size)
    net = MethodResNet(Architecture((1, 1), method), options, classes=5)
    net.initialize()
    assert not bmx.check(net, nd.random.normal(shape=(4, 3, 8, 8))).problems


WITHOUT_DECAY = {'xnorpp', 'strong', 'real', 'groupnet', 'syq'}  # of the latent weights, see docs/training.md


@pytest.mark.parametrize('name', METHODS)
def test_the_latent_weights_of_each_method_decay_as_the_documentation_says(name):
    method = METHODS[name]
    size = {'input_size': 8} if hasattr(method.options, 'input_size') else {}
    options = dataclasses.replace(method.options, initial_layers='thumbnail', **size)
    net = MethodResNet(Architecture((1, 1), method), options)
    decays = {parameter.wd_mult for parameter in net.collect_params('.*qconv.*weight').values()}
    short = name.format('').split('_')
    assert decays == {0.0 if WITHOUT_DECAY & set(short) else 1.0}


@pytest.mark.parametrize('span, additions', [(1, 4), (2, 2)])
def test_a_further_method_is_one_row(span, additions):
    def float_unit(place, options):
        return chain(nn.Conv2D(place.channels, place.kernel_size, place.stride, place.kernel_size // 2), options.norm())

    sums = []

    def after_sum(place, options):
        sums.append((place.channels, place.total_stride))
        return nn.Activation('relu')

    method = Method(float_unit, units_per_block=span, shortcut=float_unit, after_sum=after_sum)
    net = MethodResNet(Architecture((1, 1), method), classes=3)
    net.initialize()
    assert net(nd.zeros((1, 3, 32, 32))).shape == (1, 3)
    assert sums == [(64, 4)] * (additions // 2) + [(128, 8)] * (additions // 2)


def test_same_padding_keeps_the_scales_of_a_method_at_their_windows():
    net = get_model('resnet18_xnor', classes=3, initial_layers='thumbnail', same_padding=True)
    net.initialize()
    assert net(nd.zeros((1, 3, 16, 16))).shape == (1, 3)
    with pytest.raises(UserError, match='multiples of 8'):
        net(nd.zeros((1, 3, 15, 15)))


# --- activations of BMXNet-v2 -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'method, value, slope',
    [
        ('relu', lambda x: np.maximum(x, 0), lambda x: (x > 0) * 1.0),
        ('leaky_clip', lambda x: np.where(np.abs(x) <= 1, x, 0.1 * x), lambda x: np.where(np.abs(x) <= 1, 1, 0.1)),
    ],
)
def test_float_activations_of_bmxnet_v2(method, value, slope):
    points = np.concatenate([BOUNDARY, [-3, -0.5, 0.5, 3]])
    x = nd.array(points, dtype='float64')
    x.attach_grad()
    with autograd.record():
        y = QActivation(bits=32, method=method)(x)
    y.backward()
    np.testing.assert_allclose(y.asnumpy(), value(points), rtol=1e-15)
    np.testing.assert_allclose(x.grad.asnumpy(), slope(points), rtol=1e-15)
    with pytest.raises(UserError, match=f'{method!r} cannot round to 1 bits; choose from 32'):
        QActivation(method=method)


def test_sign_approx_sign_is_approx_sign_with_one_bit():
    results = []
    for method in ('sign_approx_sign', 'approx_sign'):
        x = nd.array([*BOUNDARY, 0.3, -0.7, 1.3, 1.4], dtype='float64')
        x.attach_grad()
        with autograd.record():
            y = QActivation(method=method)(x)
        y.backward()
        results.append((y.asnumpy(), x.grad.asnumpy()))
    np.testing.assert_array_equal(*results)
    with pytest.raises(UserError, match='cannot round to 32 bits'):
        QActivation(bits=32, method='sign_approx_sign')
