"""ResNetE and Bi-Real Net: their block in plain arithmetic, what tells the two apart, maps of odd size."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.equations import conv, filter_mean, signs
from support.networks import layers_of

from bmx_melius import BinaryConv2D, UserError
from model_zoo import get_model
from model_zoo.residual import NETWORKS, Residual, ResidualArchitecture
from model_zoo.units import UnitPlace

RESNET_E, BIREALNET = NETWORKS['resnet_e{}'], NETWORKS['birealnet{}']


def block_of(row, in_channels, channels, stride):
    block = Residual((UnitPlace(channels, in_channels, stride, stride),), row, row.options)
    block.initialize(mx.init.Normal(1))
    return block


@pytest.mark.parametrize('row', [RESNET_E, BIREALNET], ids=['resnet_e', 'birealnet'])
@pytest.mark.parametrize('size', [6, 7])
def test_a_block_that_halves_the_map_adds_an_averaged_and_projected_shortcut(row, size):
    block, x = block_of(row, 4, 8, 2), np.random.RandomState(1).randn(2, 4, size, size).astype(np.float32)
    y = block(nd.array(x)).asnumpy()

    weight = block.conv.qconv.weight.data().asnumpy().astype(np.float64)
    half = -(-size // 2)
    h = conv(signs(x), signs(weight), stride=2)
    h = h * filter_mean(weight) if row is BIREALNET else (h + 4 * 9) / 2
    averaged = np.array(
        [
            [x[..., 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].mean(axis=(2, 3), dtype=np.float64) for column in range(half)]
            for row in range(half)
        ]
    ).transpose(2, 3, 0, 1)
    projected = np.einsum('nchw,oc->nohw', averaged, block.shortcut[1].weight.data().asnumpy()[:, :, 0, 0])
    expected = (h + projected) / np.sqrt(1 + 1e-5)  # both are normalized by running statistics that are still 0 and 1
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)


def test_a_block_that_keeps_the_map_adds_its_input():
    block, x = block_of(RESNET_E, 4, 4, 1), nd.random.normal(shape=(1, 4, 5, 5))
    np.testing.assert_array_equal(block(x).asnumpy(), (block.norm(block.conv(x)) + x).asnumpy())


def test_birealnet_has_no_relu_one_normalization_before_the_blocks_and_scaled_weights():
    net, other = get_model('birealnet18'), get_model('resnet_e18')
    activations = [len(layers_of(each, nn.Activation)) for each in (net, other)]
    assert activations == [2, 4], 'those inside the grouped stem, and two more in ResNetE'
    assert len(layers_of(other, nn.BatchNorm)) - len(layers_of(net, nn.BatchNorm)) == 2
    convolutions = layers_of(net, BinaryConv2D)
    assert len(convolutions) == 16 and all(
        layer.qconv.binarization.apply_scaling and layer.qact.method == 'approx_sign' for layer in convolutions
    )


def test_the_default_clipping_threshold_is_that_of_its_row():
    thresholds = [
        layers_of(get_model(name, **arguments), BinaryConv2D)[0].qact.threshold
        for name, arguments in (('birealnet18', {}), ('resnet_e18', {}), ('resnet_e18', {'clip_threshold': 1.25}))
    ]
    assert thresholds == [1.0, 1.3, 1.25]


def test_more_stages_than_there_are_widths_are_refused():
    with pytest.raises(UserError, match='1 to 4 stages, not 5'):
        ResidualArchitecture((1, 1, 1, 1, 1), RESNET_E)


@pytest.mark.parametrize('name', ['resnet_e18', 'birealnet18'])
def test_the_width_of_all_stages_is_a_multiple_of_the_channels_after_the_stem(name):
    net = get_model(name, classes=10, initial_layers='thumbnail', init_features=16)
    net.infer_shape(nd.zeros((1, 3, 16, 16)))
    assert [layer.qconv.weight.shape[0] for layer in layers_of(net, BinaryConv2D)] == [16] * 4 + [32] * 4 + [64] * 4 + [128] * 4
    assert net.output.weight.shape == (10, 128)
