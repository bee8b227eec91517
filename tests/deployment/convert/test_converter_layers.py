"""Conversion of single layers: what becomes packed, inputs at thresholds, and why other layers cannot be packed."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.conversions import imported, next_to, programs, signs
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.deployment.convert import mxnet_rounding

pytest_plugins = ['support.conversions']  # its fixtures


@pytest.mark.parametrize(
    'layer, shape',
    [
        (lambda: bmx.QConv2D(64, 3, padding=1), (2, 64, 7, 7)),
        (lambda: bmx.QConv2D(8, 3, padding=1), (1, 3, 1, 1)),
        (lambda: bmx.QConv2D(8, 5, padding=2, pad_value=0), (1, 3, 4, 4)),
        (lambda: bmx.QConv2D(8, 3, strides=2, padding=1, pad_value=1, no_offset=True), (1, 33, 6, 7)),
        (lambda: bmx.QConv2D(20, (3, 2), strides=(1, 2), padding=(1, 0), dilation=2, groups=4), (2, 20, 9, 8)),
        (lambda: bmx.QConv2D(8, 3, apply_scaling=True, use_bias=True, activation='relu'), (1, 16, 5, 5)),
        (lambda: bmx.QConv1D(40, 5, strides=2, padding=3, dilation=2, groups=2), (2, 36, 30)),
        (lambda: bmx.QConv1D(8, 3, padding=1, pad_value=0, no_offset=True, use_bias=True), (1, 64, 5)),
        (lambda: bmx.QDense(10), (3, 50)),
        (lambda: bmx.QDense(10, no_offset=True, use_bias=True), (2, 5, 3, 3)),
        (lambda: bmx.BinaryConv2D(16, 3, padding=1), (2, 8, 5, 5)),
        (lambda: bmx.QConv3D(8, 3, padding=1), (2, 64, 4, 5, 5)),
        (lambda: bmx.QConv3D(8, 3, padding=1, pad_value=0), (1, 33, 3, 4, 5)),
        (lambda: bmx.QConv3D(8, 3, padding=1, pad_value=1, no_offset=True), (1, 8, 5, 4, 4)),
        (lambda: bmx.QConv3D(8, (4, 3, 2), (2, 1, 2), (3, 1, 0)), (1, 32, 5, 6, 7)),
        (lambda: bmx.QConv3D(8, 3, 2, 2, 2, pad_value=0, no_offset=True), (2, 40, 6, 7, 6)),
        (lambda: bmx.QConv3D(8, (3, 1, 3), padding=(2, 0, 1), dilation=(2, 1, 1), groups=2), (1, 64, 5, 3, 4)),
        (lambda: bmx.QConv3D(8, 3, padding=1, groups=8, pad_value=0), (1, 8, 3, 4, 4)),
        (lambda: bmx.QConv3D(8, (1, 3, 3)), (2, 5, 3, 4, 4)),
        (lambda: bmx.QConv3D(8, 3, padding=1), (1, 7, 1, 4, 4)),
        (lambda: bmx.QConv3D(8, 3, padding=1, apply_scaling=True, use_bias=True, activation='relu'), (1, 16, 3, 4, 4)),
    ],
)
def test_single_layers_become_packed_blocks(layer, shape):
    layer = layer()
    layer.initialize(mx.init.Normal())
    packed = bmx.deploy(layer, shape)
    for batch in (shape[0], 4):
        x = nd.array(signs(batch, *shape[1:]))
        is_exact = isinstance(layer, bmx.BinaryConv2D) or not layer.binarization.apply_scaling
        tolerance = dict(rtol=0) if is_exact else dict(rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(packed(x).asnumpy(), layer(x).asnumpy(), **tolerance)


def test_dense_layers_that_read_bits_are_packed():
    layer = bmx.QDense(7, encoding='bit')
    layer.initialize(mx.init.Normal())
    x = nd.array(signs(4, 40) > 0)
    np.testing.assert_array_equal(bmx.deploy(layer, (4, 40))(x).asnumpy(), layer(x).asnumpy())


def test_weights_of_zero_count_as_positive():
    layer = bmx.QConv2D(4, 1)
    layer.initialize(mx.init.Zero())
    x = nd.array(signs(1, 8, 2, 2))
    np.testing.assert_array_equal(bmx.deploy(layer, x.shape)(x).asnumpy(), layer(x).asnumpy())


@pytest.mark.parametrize(
    'layer, shape, words',
    [
        (lambda: bmx.QConv2D(4, 3, padding=1, pad_value=0.5), (1, 3, 8, 8), 'it pads with 0.5'),
        (
            lambda: sequence(nn.Dense(3), nn.HybridLambda('softsign')),
            (1, 8),
            'no binary layers, and .* cannot be packed, the activation softsign has',
        ),
        (lambda: nn.Dropout(0.5), (1, 8), 'the network does nothing with its input'),
    ],
)
def test_layers_that_cannot_be_packed_say_why(layer, shape, words):
    layer = layer()
    layer.initialize()
    with pytest.raises(UserError, match=f'nothing to convert: .*{words}'):
        bmx.deploy(layer, shape)


@pytest.mark.parametrize('layout', [mxnet_rounding.PLAIN, mxnet_rounding.BLOCKED])
def test_inputs_at_the_tie_fall_on_the_side_of_mxnets_layer(layout, convert):
    shape = (1, 64, 16, 16)
    identity = [nn.Conv2D(64, 1, use_bias=False)] if layout == mxnet_rounding.BLOCKED else []
    net = initialized(sequence(*identity, nn.BatchNorm(), bmx.BinaryConv2D(32, 3, padding=1)), shape)
    if identity:
        net[0].weight.set_data(nd.array(np.eye(64)[:, :, None, None]))
    parameters = {kind: getattr(net[-2], kind) for kind in ('gamma', 'beta', 'running_mean', 'running_var')}
    for kind, parameter in parameters.items():
        parameter.set_data(nd.random.uniform(0.5, 2, shape=64) if kind == 'running_var' else nd.random.normal(shape=64))
    report, prefix = convert(net, shape)
    threshold = next(operation for operation in programs(prefix)[0].operations if operation.name == 'threshold').arrays['threshold']
    x = next_to(threshold, (16, 16))
    np.testing.assert_array_equal(imported(prefix)(nd.array(x)).asnumpy(), net(nd.array(x)).asnumpy())
