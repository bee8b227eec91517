"""Fast forms of scales, shifts, slopes, repetitions and means: the values and gradients of MXNet's operators, counts and conversion."""

from functools import partial

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.gradients import descend, gradients
from support.networks import of_size
from support.small_networks import sequence

import bmx_melius as bmx
from bmx_melius.analysis import counting, drawing
from bmx_melius.deployment.runtime.packed_files import read_packed
from bmx_melius.graph.tracing import read_graph
from bmx_melius.nn.channels import BATCH, CHANNELS, POSITIONS, mean, repeated, repeated_per_channel
from bmx_melius.nn.channelwise import PReLU, Scale, Shift
from bmx_melius.nn.methods.xnor_net import XNORConv2D
from model_zoo import get_model, takes_option
from model_zoo.residual import NETWORKS

SHAPES = [(3, 16, 6, 5), (2, 5, 1, 7), (4, 8, 3, 3), (64, 7)]
BOUNDARY = np.array([0, -0.0, np.inf, -np.inf, 1e-40, -1e-40, 3e38], np.float32)

# block -> (its parameter, the same with MXNet's operators)
PLAIN = {
    Scale: ('scale', lambda x, v: nd.broadcast_mul(x, along_channels(v, x))),
    Shift: ('shift', lambda x, v: nd.broadcast_add(x, along_channels(v, x))),
    PReLU: ('slope', lambda x, v: nd.LeakyReLU(x, v, act_type='prelu')),
}


def along_channels(vector, x):
    return vector.reshape((1, -1) + (1,) * (x.ndim - 2))


def random(*shape):
    return nd.array(np.random.randn(*shape))


def random_map(shape):
    x = np.random.randn(*shape).astype(np.float32)
    x.reshape(-1)[: len(BOUNDARY)] = BOUNDARY
    return nd.array(x)


def initialized(block, shape, hybridize):
    block.initialize()
    block(nd.zeros(shape))
    for name, parameter in block.collect_params().items():
        if not name.endswith('zeros'):
            parameter.set_data(random(*parameter.shape))
    block.hybridize(hybridize)
    return block


@pytest.mark.parametrize('hybridize', [False, True])
@pytest.mark.parametrize('shape', SHAPES)
@pytest.mark.parametrize('block', PLAIN)
def test_learned_numbers_of_channels_give_the_bits_of_mxnets_operators(block, shape, hybridize):
    name, plain = PLAIN[block]
    layer, x, dy = initialized(block(), shape, hybridize), random_map(shape), np.random.randn(*shape)
    parameter = getattr(layer, name)
    y, dx = gradients(layer, [x], dy)
    expected_y, expected_dx, expected = gradients(plain, [x, parameter.data().copy()], dy)
    np.testing.assert_array_equal(y, expected_y)
    np.testing.assert_array_equal(dx, expected_dx)
    finite = np.isfinite(expected)
    np.testing.assert_allclose(parameter.grad().asnumpy()[finite], expected[finite], rtol=1e-5, atol=1e-4)
    assert finite.mean() > 0.5


@pytest.mark.parametrize('block', PLAIN)
def test_training_changes_the_learned_numbers_and_not_the_zeros(block):
    layer = initialized(block(4), (2, 4, 3, 3), True)
    before = getattr(layer, PLAIN[block][0]).data().asnumpy()
    trainer = mx.gluon.Trainer(layer.collect_params(), 'adam', {'learning_rate': 0.1, 'wd': 0.1})
    descend(trainer, 1, lambda: layer(random(2, 4, 3, 3)).sum())
    assert (getattr(layer, PLAIN[block][0]).data().asnumpy() != before).all()
    assert not layer.zeros.data().asnumpy().any()


@pytest.mark.parametrize('block', PLAIN)
def test_exported_blocks_give_the_same_results_with_mxnet(block, export):
    layer, x = initialized(block(), (2, 4, 3, 3), True), random(2, 4, 3, 3)
    expected = layer(x).asnumpy()
    symbol, parameters = export(layer)
    imported = mx.gluon.SymbolBlock.imports(str(symbol), ['data'], str(parameters))
    np.testing.assert_array_equal(imported(x).asnumpy(), expected)


@pytest.mark.parametrize('block', PLAIN)
def test_a_learned_number_counts_once_and_is_no_normalization(block):
    (layer,) = bmx.summary(block(16), (1, 16, 4, 4)).layers
    assert (layer.parameters, layer.size_bits, layer.kind, layer.bops, layer.flops) == (16, 16 * 32, counting.OTHER, 0, 0)


def test_parameters_are_float32_in_a_network_in_float16():
    layer = Scale(3)
    layer.cast('float16')
    assert layer.scale.dtype == layer.zeros.dtype == 'float32'


# --- repetitions and means ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('shape', [(3, 4, 6, 5), (1, 8, 1, 1), (2, 1, 3, 4)])
@pytest.mark.parametrize('along, axes', [(BATCH, [0]), (CHANNELS, [1]), (POSITIONS, [2, 3]), (None, [0, 2, 3])])
def test_products_with_repeated_values_are_those_of_broadcast_mul(along, axes, shape):
    repeat = partial(repeated, along=along) if along else repeated_per_channel
    x, dy = random(*shape), np.random.randn(*shape)
    value = random(*(1 if axis in axes else size for axis, size in enumerate(shape)))
    found = gradients(lambda x, value: x * repeat(nd, value, x), [x, value], dy)
    expected = gradients(nd.broadcast_mul, [x, value], dy)
    for array, right in zip(found[:2], expected[:2]):
        np.testing.assert_array_equal(array, right)
    np.testing.assert_allclose(found[2], expected[2], rtol=1e-5, atol=1e-5)
    if along:
        constant = gradients(lambda x, value: x * repeat(nd, value, x, gradient=False), [x, value], dy)
        np.testing.assert_array_equal(constant[1], expected[1])
        assert not constant[2].any()


@pytest.mark.parametrize('over, axes', [(CHANNELS, 1), (POSITIONS, (2, 3))])
def test_means_are_those_of_mxnet(over, axes):
    x = random(3, 48, 6, 5)
    expected = nd.mean(x, axis=axes, keepdims=True)
    dy = np.random.randn(*expected.shape)
    found = gradients(lambda x: mean(nd, x, over), [x], dy)
    right = gradients(lambda x: nd.mean(x, axis=axes, keepdims=True), [x], dy)
    for array, other in zip(found, right):
        np.testing.assert_allclose(array, other, rtol=1e-5, atol=1e-6)


# --- conversion and drawing -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def operations(export, tmp_path):
    """Convert a network that becomes one operator and compare it with MXNet: the names of its operations."""

    def call(net, shape):
        net.initialize(mx.init.Normal(0.5))
        net(nd.zeros(shape))
        for name, parameter in net.collect_params().items():
            if name.endswith(('scale', 'shift', 'slope', 'alpha', 'beta', 'gamma', 'running_mean')):
                parameter.set_data(random(*parameter.shape))
        x = random(*shape)
        net.hybridize()
        expected = net(x).asnumpy()
        report = bmx.convert(*export(net), tmp_path / 'packed', shape)
        assert report.packed_operators == 1 and not report.left
        program = read_packed(tmp_path / 'packed')[0]
        np.testing.assert_allclose(bmx.Session(tmp_path / 'packed')(x.asnumpy()), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        return [operation.name for operation in program.operations]

    return call


def binary_conv(**options):
    return bmx.BinaryConv2D(8, 3, padding=1, in_channels=8, no_offset=True, **options)


def test_learned_scale_and_prelu_become_one_operation_each(operations):
    net = sequence(nn.BatchNorm(), binary_conv(), Scale(), PReLU())
    assert operations(net, (2, 8, 6, 6)) == ['threshold', 'binary_conv', 'affine', 'prelu']


@pytest.mark.parametrize('before', [[], [nn.BatchNorm]])
def test_learned_shifts_before_a_sign_are_part_of_its_threshold(before, operations):
    net = sequence(*(make() for make in before), Shift(), Shift(), binary_conv())
    assert operations(net, (2, 8, 6, 6)) == ['threshold', 'binary_conv']


def test_scales_of_weights_and_inputs_become_products(operations):
    net = sequence(nn.BatchNorm(), XNORConv2D(8, 3, padding=1, in_channels=8, input_scale=True))
    names = ['affine', 'threshold', 'binary_conv', 'affine', 'abs', 'channel_mean', 'avg_pool', 'multiply']
    assert sorted(operations(net, (2, 8, 6, 6))) == sorted(names)


def test_a_scale_before_a_sign_is_folded_with_the_normalization_after_it(operations):
    net = sequence(Scale(), nn.BatchNorm(), binary_conv())
    assert operations(net, (2, 8, 6, 6)) == ['affine', 'threshold', 'binary_conv']


def test_drawings_name_scales_and_show_no_boxes_for_repetitions():
    net = sequence(nn.BatchNorm(), XNORConv2D(8, 3, padding=1, in_channels=8, input_scale=True), Scale(8), Shift(8), PReLU(8))
    source = drawing.draw(read_graph(net, (1, 8, 6, 6))).source
    assert all(word in source for word in ('scale', 'shift', 'prelu'))
    assert 'batch_dot' not in source and 'reshape_like' not in source


# --- the beginning of training --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('name', NETWORKS)
def test_training_begins_with_a_loss_not_far_from_that_of_chance(name):
    name, size = name.format(18), 32
    stem = {'initial_layers': 'thumbnail'} if takes_option(name, 'initial_layers') else {}
    net = get_model(name, classes=10, **{**of_size(name, size), 'init_features': 16, **stem})
    net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
    labels = nd.array(np.random.randint(0, 10, 8))
    with autograd.record():
        loss = mx.gluon.loss.SoftmaxCrossEntropyLoss()(net(nd.random.normal(shape=(8, 3, size, size))), labels)
    assert loss.mean().asscalar() < 5  # log(10) = 2.3
