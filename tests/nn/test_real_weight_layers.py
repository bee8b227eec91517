"""Layers of the first of two stages, with binary activations and real weights: values, gradients, and what the second stage takes."""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.equations import outputs_and_gradients

from bmx_melius import BinaryConv2D, QConv2D


def real_weight_layer(channels, in_channels, **arguments):
    """A BinaryConv2D of the first stage, and its weight in float64."""
    layer = BinaryConv2D(channels, 3, padding=1, in_channels=in_channels, weight_bits=32, **arguments)
    layer.initialize(mx.init.Normal(0.05))
    return layer, layer.qconv.weight.data().asnumpy().astype(np.float64)


def agreement_in_numpy(x, weight, groups=1, pad_value=-1):
    """(h + n) / 2 of the signs of x, padded, and filters of mean magnitude 1, by a loop in float64."""
    weight = weight / np.abs(weight).mean(axis=(1, 2, 3), keepdims=True)
    x = np.pad(np.where(x >= 0, 1.0, -1.0), [(0, 0), (0, 0), (1, 1), (1, 1)], constant_values=pad_value)
    size, wide = len(weight) // groups, weight.shape[1]
    y = np.zeros((len(x), len(weight), x.shape[2] - 2, x.shape[3] - 2))
    for channel, row, column in np.ndindex(*y.shape[1:]):
        first = channel // size * wide
        window = x[:, first : first + wide, row : row + 3, column : column + 3]
        y[:, channel, row, column] = ((window * weight[channel]).sum(axis=(1, 2, 3)) + weight[channel].size) / 2
    return y


def test_real_weights_replace_signs_for_every_encoding_of_the_input():
    x, weight = np.random.choice([-1, 1], (2, 3, 5, 4)).astype(np.float32), np.random.randn(4, 3, 3, 3).astype(np.float32)
    expected = agreement_in_numpy(x, weight.astype(np.float64))
    for encoding, encoded in (('sign', x), ('bit', (x + 1) / 2)):
        layer = QConv2D(4, 3, padding=1, quantization='unit_magnitude', encoding=encoding, in_channels=3)
        layer.initialize()
        layer.weight.set_data(nd.array(weight))
        np.testing.assert_allclose(layer(nd.array(encoded)).asnumpy(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize('hybridize', [False, True], ids=['imperative', 'hybridized'])
@pytest.mark.parametrize('groups, pad_value', [(1, -1), (2, -1), (1, 0)])
def test_real_weights_give_the_formula_of_signs_with_filters_of_mean_magnitude_one(groups, pad_value, hybridize):
    layer, weight = real_weight_layer(4, 6, groups=groups, pad_value=pad_value)
    layer.hybridize(hybridize)
    x = np.random.randn(2, 6, 5, 4).astype(np.float32)
    np.testing.assert_allclose(layer(nd.array(x)).asnumpy(), agreement_in_numpy(x, weight, groups, pad_value), rtol=1e-5, atol=1e-4)


def test_gradients_of_real_weights_equal_differences_in_numpy_and_signs_pass_theirs_within_the_threshold():
    layer, weight = BinaryConv2D(2, 3, padding=1, weight_bits=32), np.random.randn(2, 3, 3, 3) / 20
    x, dy = np.random.randn(2, 3, 4, 4).astype(np.float32), np.random.randn(2, 2, 4, 4).astype(np.float32)
    gradients = outputs_and_gradients(layer, {'x': x, 'weight': weight, 'dy': dy}, hybridize=True)
    step, expected = 1e-6, np.zeros_like(weight)
    for index in np.ndindex(*weight.shape):
        shifted = [weight.copy(), weight.copy()]
        shifted[0][index] += step
        shifted[1][index] -= step
        difference = agreement_in_numpy(x, shifted[0]) - agreement_in_numpy(x, shifted[1])
        expected[index] = (difference * dy).sum() / (2 * step)
    np.testing.assert_allclose(gradients['dweight'], expected, rtol=1e-3, atol=1e-3)

    filters = weight / np.abs(weight).mean(axis=(1, 2, 3), keepdims=True)
    padded = np.pad(dy, [(0, 0), (0, 0), (1, 1), (1, 1)])
    dx = np.zeros(x.shape)
    for channel, row, column in np.ndindex(*x.shape[1:]):  # the transposed convolution: filters turned by half a turn
        window = padded[:, :, row : row + 3, column : column + 3]
        dx[:, channel, row, column] = (window * filters[:, channel, ::-1, ::-1]).sum(axis=(1, 2, 3)) / 2
    np.testing.assert_allclose(gradients['dx'], dx * (np.abs(x) <= 1.3), rtol=1e-4, atol=1e-4)


def test_the_second_stage_begins_with_outputs_of_the_same_mean_and_like_spread():
    first, _ = real_weight_layer(32, 64)
    x = nd.random.normal(shape=(4, 64, 8, 8))
    second = BinaryConv2D(32, 3, padding=1, in_channels=64)
    second.initialize()
    second.qconv.weight.set_data(first.qconv.weight.data())
    outputs = [layer(x).asnumpy() for layer in (first, second)]
    inner = [y[:, :, 1:-1, 1:-1] - 64 * 9 / 2 for y in outputs]
    assert abs(inner[0].mean() - inner[1].mean()) < 2
    assert inner[0].std() / inner[1].std() == pytest.approx(np.sqrt(np.pi / 2), rel=0.1), 'of normal weights'
    assert np.corrcoef(inner[0].ravel(), inner[1].ravel())[0, 1] == pytest.approx(np.sqrt(2 / np.pi), abs=0.05)


def test_both_stages_have_parameters_of_one_name_and_shape_and_a_filter_of_zeros_stays_finite(tmp_path):
    layers = [BinaryConv2D(4, 3, padding=1, prefix='conv_', weight_bits=bits) for bits in (32, 1)]
    for layer in layers:
        layer.initialize()
        layer.hybridize()
        layer(nd.ones((1, 3, 5, 5)))
        assert [(name, weight.shape) for name, weight in layer.collect_params().items()] == [('conv_qconv0_weight', (4, 3, 3, 3))]
    layers[0].save_parameters(str(tmp_path / 'first.params'))
    layers[1].load_parameters(str(tmp_path / 'first.params'))
    np.testing.assert_array_equal(layers[0].qconv.weight.data().asnumpy(), layers[1].qconv.weight.data().asnumpy())
    layers[0].qconv.weight.set_data(nd.zeros((4, 3, 3, 3)))
    np.testing.assert_array_equal(layers[0](nd.ones((1, 3, 5, 5))).asnumpy(), 27 / 2)
