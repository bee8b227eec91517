"""Quantizers: their values and gradients in every layer that takes them, and which claim to give the sign."""

import dataclasses

import numpy as np
import pytest
from mxnet import nd
from support.gradients import gradients
from support.small_networks import sequence

from bmx_melius import BinaryConv2D, QActivation, QConv2D, UserError
from bmx_melius.nn.quantizers import QUANTIZERS, quantize, quantize_in_parts, register_quantizer, rounds_to_sign


@pytest.mark.parametrize('bits', [2, 4])
@pytest.mark.parametrize('quantization', ['dorefa', 'round', 'largest_levels'])
def test_k_bit_weights_need_no_input_channels_in_advance(quantization, bits):
    layer = QConv2D(4, 3, bits=bits, quantization=quantization)
    layer.initialize()
    assert layer(nd.ones((1, 5, 6, 6))).shape == (1, 4, 4, 4)


@pytest.mark.parametrize('pad_value', [-1, 0, 1])
@pytest.mark.parametrize('no_offset', [False, True])
@pytest.mark.parametrize('method', [method for method, quantizer in QUANTIZERS.items() if 1 in quantizer.bits and quantizer.rounded])
def test_binary_convolution_equals_activation_then_convolution_with_gradients(pad_value, no_offset, method):
    x, dy = nd.random.normal(scale=1.5, shape=(2, 8, 6, 7)), np.random.randn(2, 5, 6, 7)
    x[0, 0, 0] = nd.array([0, -0.0, 1.3, -1.3, np.nextafter(np.float32(1.3), np.float32(2)), 1, -1])
    arguments = dict(padding=1, pad_value=pad_value, no_offset=no_offset)
    fused = BinaryConv2D(5, 3, activation_method=method, **arguments)
    separate = sequence(QActivation(method=method), QConv2D(5, 3, **arguments))
    results = []
    for layer in (fused, separate):
        layer.initialize()
        layer(x)
        weight = next(iter(layer.collect_params().values()))
        weight.set_data(nd.array(np.random.RandomState(0).randn(*weight.shape)))
        results.append((*gradients(layer, [x.copy()], dy), weight.grad().asnumpy()))
    np.testing.assert_array_equal(results[0][0], results[1][0])
    for fused_gradient, gradient in zip(results[0][1:], results[1][1:]):
        np.testing.assert_allclose(fused_gradient, gradient, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    'name, change, error',
    [
        ('sign', {'bits': (1,)}, "a quantizer 'sign' exists already"),
        ('none', {'bits': ()}, "the quantizer 'none' supports no number of bits"),
        ('five', {'bits': 5}, "the quantizer 'five' supports no number of bits: bits is 5"),
        ('', {}, "register_quantizer takes a name and a Quantizer, not '' and Quantizer"),
        ('two', {'bits': (2, 4)}, "the quantizer 'two' has sign=True, but not 1 among its bits"),
        ('float', {'rounded': None}, "the quantizer 'float' has sign=True, but not 1 among its bits, a surrogate and a rounding"),
        ('zero', {'rounded': lambda F, x, surrogate, bits: F.sign(x)}, "the quantizer 'zero' has sign=True, but gives 0 for -?0"),
        ('step', {'rounded': lambda F, x, surrogate, bits: (x >= 1) * 2 - 1}, "'step' has sign=True, but gives -1 for -?0: sign=True"),
    ],
)
def test_a_quantizer_that_cannot_be_used_or_does_not_give_the_sign_is_refused(name, change, error):
    known = dict(QUANTIZERS)
    with pytest.raises(UserError, match=error):
        register_quantizer(name, dataclasses.replace(QUANTIZERS['sign'], **change))
    assert known == QUANTIZERS


@pytest.mark.parametrize('method', [method for method, quantizer in QUANTIZERS.items() if 1 in quantizer.bits])
def test_a_quantizer_is_called_sign_where_one_bit_of_it_is_the_sign_of_every_number(method):
    x = nd.array([0, -0.0, 1e-40, -1e-40, 1e-9, -1e-9, 0.25, -0.25, 1, -1, 1e9, -1e9])
    equal = np.array_equal(quantize(nd, x, method, 1).asnumpy(), np.where(x.asnumpy() >= 0, 1, -1))
    assert rounds_to_sign(method, 1) == equal
    assert not rounds_to_sign(method, 32)


def test_gradient_threshold_is_inclusive_to_the_last_bit():
    t = np.float32(1.3)
    x = nd.array([t, -t, np.nextafter(t, np.float32(2)), -np.nextafter(t, np.float32(2)), 0, 5, np.inf, -np.inf])
    np.testing.assert_array_equal(gradients(QActivation(threshold=1.3), [x]), [[1, -1, 1, -1, 1, 1, 1, -1], [1, 1, 0, 0, 1, 0, 0, 0]])


@pytest.mark.parametrize('value', [1e-38, 1e-9, 0.3, 0.999, 1.7, 5.3, 123.4, 1e8])
def test_binary_values_are_exact_whatever_the_magnitude_of_the_input(value):
    x = nd.array([value, -value])
    assert quantize(nd, x, 'sign', 1).asnumpy().tolist() == [1, -1]
    for threshold in (1.3, 5e4, None):
        terms = quantize_in_parts(nd, x, 'sign', 1, threshold, encoding='bit')
        assert (terms[0] + terms[1]).asnumpy().tolist() == [1, 0]


def test_bits_are_exact_for_every_input_within_the_threshold():
    x = np.random.RandomState(0).uniform(-1, 1, 10**6) * 10.0 ** np.random.RandomState(1).uniform(-30, 4.5, 10**6)
    x = x.astype(np.float32)
    terms = quantize_in_parts(nd, nd.array(x), 'sign', 1, 5e4, encoding='bit')
    np.testing.assert_array_equal((terms[0] + terms[1]).asnumpy(), x >= 0)
