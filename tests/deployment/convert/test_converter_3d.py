"""Conversion of networks with 3-D maps (N, C, D, H, W): one packed operator, with MXNet's results."""

import re

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from mxnet import nd
from mxnet.gluon import nn
from mxnet.gluon.contrib.nn import HybridConcurrent, Identity
from support.conversions import imported, next_to, programs, signs
from support.method_layers import Residual
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius import UserError

pytest_plugins = ['support.conversions']  # its fixtures

SHAPE = (2, 6, 4, 5, 6)


# --- binary convolutions --------------------------------------------------------------------------------------------------------------


@given(st.data())
@settings(suppress_health_check=[HealthCheck.filter_too_much])
def test_binary_convolutions_of_any_geometry_are_those_of_mxnet(data):
    axis = st.tuples(*[st.integers(1, 3)] * 3)
    kernel, strides, dilation, size = (data.draw(axis) for _ in range(4))
    padding = data.draw(st.tuples(*[st.integers(0, 2)] * 3))
    size = tuple(2 * s for s in size)
    assume(all(s + 2 * p > d * (k - 1) for s, p, d, k in zip(size, padding, dilation, kernel)))
    groups, pad_value, no_offset = data.draw(st.sampled_from([1, 2, 4])), data.draw(st.sampled_from([-1, 0, 1])), data.draw(st.booleans())
    channels = groups * data.draw(st.sampled_from([1, 3, 32]))
    layer = bmx.QConv3D(4, kernel, strides, padding, dilation, groups, pad_value=pad_value, no_offset=no_offset)
    layer.initialize(mx.init.Normal())
    x = nd.array(signs(1, channels, *size))
    try:
        packed = bmx.deploy(layer, x.shape)
    except UserError as error:
        assert 'it has windows that cover only padding' in str(error) and pad_value == 0
        assume(False)
    np.testing.assert_array_equal(packed(x).asnumpy(), layer(x).asnumpy())


def test_weights_are_stored_once_for_all_depths(pack):
    sizes = [pack(sequence(bmx.QActivation(), bmx.QConv3D(64, 3, padding=1)), (1, 64, depth, 4, 4))[0].size_after for depth in (2, 16)]
    weights = 64 * 64 * 27 // 8
    assert weights < sizes[0] < 1.3 * weights and weights < sizes[1] < 1.6 * weights


def test_signs_of_normalized_3d_maps_are_those_of_mxnet_next_to_the_threshold(pack):
    net = sequence(nn.BatchNorm(), bmx.QActivation(), bmx.QConv3D(8, 3))
    _, prefix = pack(net, (1, 8, 4, 8, 8))
    (operation,) = (each for each in programs(prefix)[0].operations if 'threshold' in each.arrays)
    threshold = operation.arrays['threshold'].reshape(4, 8)
    assert np.ptp(threshold, axis=0).max() == 0, 'one threshold for a channel'
    x = next_to(threshold[0], (4, 8, 8))
    np.testing.assert_array_equal(bmx.Session(prefix)(x), net(nd.array(x)).asnumpy())


# --- other layers ---------------------------------------------------------------------------------------------------------------------


def gate(F, x):
    return F.broadcast_mul(x, F.sigmoid(F.mean(x, axis=(2, 3, 4), keepdims=True)))


def dense_block(F, x):
    return F.concat(x, F.relu(x), F.slice_axis(x, axis=1, begin=1, end=3), dim=1)


def factor_of_positions(shape):
    """Return a function that multiplies by a constant of this shape, with different elements."""

    def function(F, x):
        return F.broadcast_mul(x, F.arange(1, 1 + np.prod(shape)).reshape(shape) / 64)

    return function


LAYERS = {
    'convolution': lambda: nn.Conv3D(7, (3, 2, 3), strides=(1, 2, 1), padding=(1, 0, 2), dilation=(1, 2, 1)),
    'grouped convolution': lambda: nn.Conv3D(6, 3, padding=1, groups=3, use_bias=False),
    'depthwise convolution': lambda: nn.Conv3D(6, 3, padding=(2, 1, 1), strides=(3, 1, 1), groups=6),
    'activations': lambda: sequence(nn.PReLU(), nn.LeakyReLU(0.1), nn.ELU(), nn.Swish(), nn.Activation('tanh')),
    'max pooling': lambda: nn.MaxPool3D((3, 2, 3), (2, 2, 1), (1, 0, 1)),
    'max pooling of each depth': lambda: nn.MaxPool3D((1, 3, 3), (1, 2, 2), (0, 1, 1)),
    'max pooling, full': lambda: nn.MaxPool3D((3, 2, 2), (2, 2, 2), ceil_mode=True),
    'average pooling': lambda: nn.AvgPool3D((3, 2, 3), (2, 2, 1), (1, 0, 1)),
    'average pooling without padding': lambda: nn.AvgPool3D(3, 2, 1, count_include_pad=False),
    'average pooling, full': lambda: nn.AvgPool3D((3, 3, 2), 2, 1, ceil_mode=True),
    'sum pooling': lambda: nn.HybridLambda(lambda F, x: F.Pooling(x, kernel=(2, 3, 1), stride=(1, 2, 1), pool_type='sum')),
    'global maximum': lambda: nn.GlobalMaxPool3D(),
    'mean': lambda: nn.HybridLambda(lambda F, x: F.mean(x, axis=(2, 3, 4))),
    'flattening': lambda: nn.Flatten(),
    'dense': lambda: nn.Dense(3),
    'sum': lambda: Residual(nn.Conv3D(6, 1)),
    'difference and product': lambda: nn.HybridLambda(lambda F, x: F.relu(x) * x - F.sigmoid(x)),
    'maximum and minimum': lambda: nn.HybridLambda(lambda F, x: F.broadcast_maximum(x, 2 - x) - F.broadcast_minimum(x, F.sigmoid(x))),
    'gate': lambda: nn.HybridLambda(gate),
    'gate of positions': lambda: nn.HybridLambda(lambda F, x: F.broadcast_mul(x, F.sigmoid(x))),
    'concatenation': lambda: nn.HybridLambda(dense_block),
    'scalars': lambda: nn.HybridLambda(lambda F, x: 2 - F.clip(x * 3 + 1, 0, 2)),
    'factor of each position': lambda: nn.HybridLambda(factor_of_positions((1, 1, 1, 5, 6))),
    'factor of each depth': lambda: nn.HybridLambda(factor_of_positions((1, 1, 4, 1, 1))),
    'factor of each element': lambda: nn.HybridLambda(factor_of_positions((1, 6, 4, 5, 6))),
    'dropout': lambda: nn.Dropout(0.5),
}


@pytest.mark.parametrize('name', LAYERS)
def test_layers_between_binary_ones_are_packed(name, pack_whole):
    pack_whole(sequence(bmx.QActivation(), bmx.QConv3D(6, 1), nn.BatchNorm(), LAYERS[name]()), SHAPE)


@pytest.mark.parametrize('pool', [nn.MaxPool3D((3, 2, 3), (2, 2, 1), (1, 0, 1)), nn.GlobalMaxPool3D()])
def test_maxima_of_numbers_of_very_different_size_are_exact(pool, pack):
    x = (np.random.choice([-1, 1], SHAPE) * 10 ** np.random.uniform(-30, 30, SHAPE)).astype(np.float32)
    x[:, ::2] = -np.abs(x[:, ::2])
    both = HybridConcurrent(axis=1)
    both.add(Identity(), sequence(bmx.QActivation(), bmx.QConv3D(6, 1)))
    net = sequence(pool, both)
    report, prefix = pack(net, SHAPE)
    assert report.packed_operators == 1 and not report.left
    expected = net(nd.array(x)).asnumpy()
    np.testing.assert_array_equal(bmx.Session(prefix)(x), expected)
    np.testing.assert_array_equal(imported(prefix)(nd.array(x)).asnumpy(), expected)


@pytest.mark.parametrize('name', ['max pooling', 'concatenation', 'flattening'])
def test_layers_that_move_signs_are_packed(name, pack_whole):
    last = bmx.QDense(3) if name == 'flattening' else bmx.QConv3D(3, 1)
    net = sequence(nn.BatchNorm(), bmx.QActivation(), *([] if name == 'concatenation' else [LAYERS[name]()]), last)
    if name == 'concatenation':
        net = sequence(bmx.QActivation(), nn.HybridLambda(lambda F, x: F.concat(x, x, dim=1)), last)
    pack_whole(net, SHAPE)


# --- networks -------------------------------------------------------------------------------------------------------------------------


def video_network():
    """A network for clips: float stem, two residual binary blocks, of which the second one halves the map, and a classifier."""

    def binary(channels, strides=1):
        return sequence(nn.BatchNorm(), bmx.QActivation(), bmx.QConv3D(channels, 3, strides, padding=1), nn.BatchNorm())

    stem = (nn.Conv3D(32, (3, 7, 7), (1, 2, 2), (1, 3, 3), use_bias=False), nn.BatchNorm(), nn.Activation('relu'), nn.MaxPool3D(3, 2, 1))
    return sequence(*stem, Residual(binary(32)), binary(64, 2), Residual(binary(64)), nn.GlobalAvgPool3D(), nn.Dense(5))


def test_a_video_network_becomes_one_operator_that_takes_clips_of_one_depth(pack_whole, tmp_path):
    pack_whole(video_network(), (1, 3, 8, 32, 32))
    session = bmx.Session(tmp_path / 'packed')
    assert session(np.zeros((2, 3, 8, 48, 40), np.float32)).shape == (2, 5), 'height and width may differ'
    for wrong in ((1, 3, 16, 32, 32), (1, 24, 32, 32), (1, 6, 8, 32, 32)):
        words = re.escape(f'input 0 must have the shape (batch, 3, 8, height, width), not {wrong}')
        with pytest.raises(UserError, match=words):
            session(np.zeros(wrong, np.float32))
        with pytest.raises(UserError, match=words):
            session.output_shapes(wrong)


def test_messages_about_sizes_have_the_shapes_of_the_network(pack, monkeypatch):
    shape = (1, 4, 4, 6, 6)
    _, prefix = pack(sequence(bmx.QActivation(), bmx.QConv3D(6, 3)), shape)
    session = bmx.Session(prefix)
    with pytest.raises(UserError, match=r'converted with inputs of \(4, 4, 6, 6\) and does not accept \(4, 4, 2, 6\)'):
        session(np.zeros((1, 4, 4, 2, 6), np.float32))
    monkeypatch.setenv('BMX_MELIUS_MEMORY_LIMIT', '10')
    with pytest.raises(UserError, match='at most 10 are allowed') as error:
        session(np.zeros(shape, np.float32))
    assert 'does not accept' not in str(error.value)


def test_the_shape_that_a_network_without_description_needs_is_named(export, run, tmp_path):
    files = export(initialized(sequence(bmx.QActivation(), bmx.QConv3D(6, 3)), (1, 4, 4, 6, 6)))
    status, _, errors = run('convert', *files, tmp_path / 'packed')
    assert status == 2 and 'N,C,D,H,W' in errors


def test_mxnet_refuses_other_depths(pack):
    _, prefix = pack(sequence(bmx.QActivation(), bmx.QConv3D(6, 3)), (1, 4, 4, 6, 6))
    assert imported(prefix)(nd.zeros((2, 4, 4, 7, 5))).shape == (2, 6, 2, 5, 3)
    for wrong in ((1, 2, 8, 6, 6), (1, 8, 2, 6, 6), (1, 16, 1, 6, 6)):
        with pytest.raises(mx.MXNetError):
            imported(prefix)(nd.zeros(wrong)).wait_to_read()


def test_3d_maps_pass_between_packed_operators_and_mxnet(pack):
    def binary():
        return sequence(bmx.QActivation(), bmx.QConv3D(6, 3, padding=1), nn.BatchNorm())

    net = sequence(binary(), nn.HybridLambda('softsign'), binary())
    report, prefix = pack(net, SHAPE)
    assert report.packed_operators == 2 and [left.operator for left in report.left] == ['softsign']
    x = nd.random.normal(shape=SHAPE)
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), rtol=1e-5, atol=1e-5)
    with pytest.raises(UserError, match='operators of MXNet'):
        bmx.Session(prefix)


def test_weights_of_several_bits_are_stored_with_their_bits(pack_whole):
    layer = bmx.QConv3D(4, 3, bits=2, quantization='dorefa', pad_value=0)
    _, report = pack_whole(sequence(bmx.QActivation(), bmx.QConv3D(6, 3, padding=1), nn.BatchNorm(), layer), SHAPE)
    assert list(report.level_bits.values()) == [2]


@pytest.mark.parametrize(
    'layer, words',
    [
        (lambda: nn.Conv3DTranspose(4, 3), 'it makes a 3-D map, for which it has no packed form'),
        (lambda: nn.InstanceNorm(), 'it makes a 3-D map'),
        (lambda: nn.HybridLambda(lambda F, x: F.mean(x, axis=1, keepdims=True)), 'it is the mean over the axes'),
        (lambda: nn.HybridLambda(lambda F, x: F.reshape(x, (0, 0, -1))), 'it reshapes'),
        (
            lambda: nn.HybridLambda(lambda F, x: F.broadcast_add(x, F.mean(x, axis=(2, 3, 4), keepdims=True))),
            'it repeats a value along an axis',
        ),
    ],
)
def test_what_has_no_packed_form_is_kept_in_mxnet_with_the_reason(layer, words, pack):
    net = sequence(bmx.QActivation(), bmx.QConv3D(6, 3, padding=1), nn.BatchNorm(), layer())
    report, prefix = pack(net, SHAPE)
    assert report.packed_operators == 1 and words in str(report)
    x = nd.random.normal(shape=SHAPE)
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-5)
