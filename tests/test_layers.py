"""Layers and their gradients against the reference data, NumPy's own loops and their float twins."""

import dataclasses
import inspect
import json
import os
from pathlib import Path

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet import autograd, nd
from mxnet.gluon import nn

from bmx_melius import (
    BinaryConv2D,
    ChannelShuffle,
    GroupedConv2D,
    QActivation,
    QConv1D,
    QConv2D,
    QConv3D,
    QDense,
    ScaledBinaryConv2D,
    UserError,
)
from bmx_melius.channels import concat
from bmx_melius.marks import read_marks
from bmx_melius.quantizers import QUANTIZERS, quantize, quantize_in_parts, register_quantizer, rounds_to_sign

DATA = Path(__file__).parent / 'data'
ARRAYS = np.load(DATA / 'layers.npz')
CASES = json.loads((DATA / 'layers.json').read_text())

# The names by which the reference data calls layers, and what each is here.
LAYERS = {
    'QActivation': QActivation,
    'QConv1D': QConv1D,
    'QConv2D': QConv2D,
    'QDense': QDense,
    'ChannelShuffle': ChannelShuffle,
    'BinaryConvolution': BinaryConv2D,
    'ScaledBinaryConv (approximation=xnor)': ScaledBinaryConv2D,
    'ScaledWeightsBinaryConv (approximation=binet)': lambda **kw: BinaryConv2D(apply_scaling=True, **kw),
}
RENAMED = {'clip_threshold': 'threshold', 'stride': 'strides'}
METHODS = {'det_sign': 'sign', 'sign_approx_sign': 'approx_sign'}


def reference_layer(case):
    facts = dict(CASES[case])
    facts.pop('note', None)
    make = LAYERS[facts.pop('layer')]
    arguments = {
        RENAMED.get(k, k): tuple(v) if isinstance(v, list) else METHODS.get(v, v) if isinstance(v, str) else v for k, v in facts.items()
    }
    if case.endswith('xnorcfg'):
        arguments['scaling_gradient'] = False
    if case.startswith('qconv_dorefa') or case.startswith('qdense_dorefa'):
        arguments['quantization'] = 'dorefa'
    return make(**arguments)


def run(layer, arrays, hybridize):
    """Outputs and gradients of a layer whose weight is that of the reference."""
    layer.initialize()
    if hybridize:
        layer.hybridize()
    x = nd.array(arrays['x'])
    x.attach_grad()
    layer(x)
    weights = list(layer.collect_params('.*weight').values())  # one, or none in an activation
    for weight in weights:
        weight.set_data(nd.array(arrays['weight']))
    with autograd.record():
        y = layer(x)
    y.backward(nd.array(arrays['dy']))
    return dict(y=y, dx=x.grad, **({'dweight': weights[0].grad()} if weights else {}))


@pytest.mark.parametrize('hybridize', [False, True], ids=['imperative', 'hybridized'])
@pytest.mark.parametrize('case', CASES)
def test_layer_and_gradients_equal_the_reference(case, hybridize):
    arrays = {name.split('/', 1)[1]: ARRAYS[name] for name in ARRAYS.files if name.startswith(case + '/')}
    for name, value in run(reference_layer(case), arrays, hybridize).items():
        np.testing.assert_allclose(value.asnumpy(), arrays[name], rtol=1e-5, atol=2e-5, err_msg=name)


# --- convolutions of any dimension, against MXNet's float convolution of signs padded by NumPy -----------------------------------------

CONVOLUTIONS = {1: QConv1D, 2: QConv2D, 3: QConv3D}
shapes = st.fixed_dictionaries(
    {
        'dimensions': st.sampled_from([1, 2, 3]),
        'groups': st.sampled_from([1, 1, 2, 3]),
        'kernel_size': st.integers(1, 3),
        'strides': st.integers(1, 2),
        'padding': st.integers(0, 2),
        'dilation': st.integers(1, 2),
        'pad_value': st.sampled_from([-1, 0, 1]),
        'no_offset': st.booleans(),
        'use_bias': st.booleans(),
        'deferred': st.booleans(),
        'hybridize': st.booleans(),
        'seed': st.integers(0, 2**16),
    }
)


def signs(values):
    return np.where(values >= 0, 1.0, -1.0).astype(np.float32)


def padded_convolution(x, weight, pad_value, padding, strides, dilation, groups):
    """The float convolution of `x` padded with `pad_value`, by MXNet's own operator on an array that NumPy padded."""
    dimensions = x.ndim - 2
    x = np.pad(x, [(0, 0), (0, 0)] + [(padding, padding)] * dimensions, constant_values=pad_value)
    return nd.Convolution(
        nd.array(x),
        nd.array(weight),
        no_bias=True,
        kernel=weight.shape[2:],
        num_filter=len(weight),
        num_group=groups,
        stride=(strides,) * dimensions,
        dilate=(dilation,) * dimensions,
    ).asnumpy()


@settings(suppress_health_check=list(HealthCheck))
@given(shapes)
def test_quantized_convolution_equals_the_float_convolution_of_signs_exactly(case):
    rng = np.random.RandomState(case['seed'])
    dimensions, groups = case['dimensions'], case['groups']
    channels, in_channels = groups * rng.randint(1, 4), groups * rng.randint(1, 4)
    extent = (case['kernel_size'] - 1) * case['dilation'] + 1
    x = signs(rng.randn(2, in_channels, *[extent + rng.randint(4) for _ in range(dimensions)]))
    arguments = {k: case[k] for k in ('kernel_size', 'strides', 'padding', 'dilation', 'groups', 'pad_value', 'no_offset', 'use_bias')}
    layer = CONVOLUTIONS[dimensions](channels, in_channels=0 if case['deferred'] else in_channels, **arguments)
    layer.initialize(mx.init.Normal(1))
    if case['hybridize']:
        layer.hybridize()
    y = layer(nd.array(x)).asnumpy()
    weight = layer.weight.data().asnumpy()
    bias = rng.randn(channels).astype(np.float32)
    if case['use_bias']:
        layer.bias.set_data(nd.array(bias))
        y = layer(nd.array(x)).asnumpy() - bias.reshape((1, -1) + (1,) * dimensions)

    geometry = {k: case[k] for k in ('padding', 'strides', 'dilation', 'groups')}
    expected = padded_convolution(x, signs(weight), case['pad_value'], **geometry)
    if not case['no_offset']:
        expected = (expected + weight[0].size) / 2
    if case['use_bias']:
        np.testing.assert_allclose(y, expected, atol=1e-4)
    else:
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize('bits', [2, 4])
@pytest.mark.parametrize('quantization', ['dorefa', 'round'])
def test_k_bit_weights_need_no_input_channels_in_advance(quantization, bits):
    layer = QConv2D(4, 3, bits=bits, quantization=quantization)
    layer.initialize()
    assert layer(nd.ones((1, 5, 6, 6))).shape == (1, 4, 4, 4)


@pytest.mark.parametrize('pad_value', [-1, 0, 1])
@pytest.mark.parametrize('no_offset', [False, True])
@pytest.mark.parametrize('method', [method for method, quantizer in QUANTIZERS.items() if 1 in quantizer.bits and quantizer.rounded])
def test_binary_convolution_equals_activation_then_convolution_with_gradients(pad_value, no_offset, method):
    x, dy = nd.random.normal(scale=1.5, shape=(2, 8, 6, 7)), nd.random.normal(shape=(2, 5, 6, 7))
    x[0, 0, 0] = nd.array([0, -0.0, 1.3, -1.3, np.nextafter(np.float32(1.3), np.float32(2)), 1, -1])
    arguments = dict(padding=1, pad_value=pad_value, no_offset=no_offset)
    fused = BinaryConv2D(5, 3, activation_method=method, **arguments)
    separate = nn.HybridSequential()
    separate.add(QActivation(method=method), QConv2D(5, 3, **arguments))
    results = []
    for layer in (fused, separate):
        layer.initialize()
        layer(x)
        weight = next(iter(layer.collect_params().values()))
        weight.set_data(nd.array(np.random.RandomState(0).randn(*weight.shape)))
        data = x.copy()
        data.attach_grad()
        with autograd.record():
            y = layer(data)
        y.backward(dy)
        results.append((y.asnumpy(), data.grad.asnumpy(), weight.grad().asnumpy()))
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
    x.attach_grad()
    layer = QActivation(threshold=1.3)
    with autograd.record():
        y = layer(x)
    y.backward()
    np.testing.assert_array_equal(y.asnumpy(), [1, -1, 1, -1, 1, 1, 1, -1])
    np.testing.assert_array_equal(x.grad.asnumpy(), [1, 1, 0, 0, 1, 0, 0, 0])


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


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 5), st.booleans(), st.booleans(), st.sampled_from(['sign', 'bit']))
def test_quantized_dense_equals_numpy(batch, inputs, units, no_offset, hybridize, encoding):
    rng = np.random.RandomState(inputs)
    x = signs(rng.randn(batch, inputs))
    layer = QDense(units, no_offset=no_offset, encoding=encoding)
    layer.initialize(mx.init.Normal(1))
    if hybridize:
        layer.hybridize()
    y = layer(nd.array(x if encoding == 'sign' else (x + 1) / 2)).asnumpy()
    h = x @ signs(layer.weight.data().asnumpy()).T
    np.testing.assert_array_equal(y, h if no_offset else (h + inputs) / 2)


def test_quantized_dense_keeps_leading_axes_without_flatten():
    layer = QDense(3, flatten=False)
    layer.initialize()
    assert layer(nd.ones((2, 5, 7))).shape == (2, 5, 3)


@pytest.mark.parametrize('layer', [QConv1D, QConv2D, QConv3D])
def test_full_precision_equals_the_ordinary_layer(layer):
    twin = {QConv1D: nn.Conv1D, QConv2D: nn.Conv2D, QConv3D: nn.Conv3D}[layer](4, 3, padding=1, in_channels=2, use_bias=False)
    quantized = layer(4, 3, padding=1, in_channels=2, bits=32)
    twin.initialize()
    quantized.initialize()
    quantized.weight.set_data(twin.weight.data())
    x = nd.random.normal(shape=(2, 2) + (5,) * len(twin.weight.shape[2:]))
    np.testing.assert_array_equal(quantized(x).asnumpy(), twin(x).asnumpy())


def test_fused_activation_is_applied_last():
    layer = QConv2D(4, 3, activation='relu', no_offset=True, use_bias=True, bias_initializer=mx.init.Constant(-100))
    layer.initialize()
    assert layer(nd.ones((1, 2, 4, 4))).asnumpy().max() == 0


def test_weight_decay_spares_quantized_weights():
    assert QConv2D(4, 3).weight.wd_mult == 0 and QDense(4).weight.wd_mult == 0
    assert QConv2D(4, 3, bits=32).weight.wd_mult == QConv2D(4, 3, quantization='unit_magnitude').weight.wd_mult == 1


@pytest.mark.parametrize('groups', [1, 4])
def test_grouped_convolution_equals_the_ordinary_one(groups):
    x = nd.random.normal(shape=(2, 8, 5, 5))
    grouped, ordinary = (layer(12, 3, padding=1, groups=groups, in_channels=8) for layer in (GroupedConv2D, nn.Conv2D))
    for layer in (grouped, ordinary):
        layer.initialize()
        layer.weight.set_data(nd.array(np.random.RandomState(0).randn(12, 8 // groups, 3, 3)))
    np.testing.assert_array_equal(grouped(x).asnumpy(), ordinary(x).asnumpy())


def test_marks_survive_export_and_import(tmp_path):
    net = nn.HybridSequential()
    net.add(BinaryConv2D(4, 3, padding=1), nn.Flatten(), QActivation(), QDense(3))
    net.initialize()
    net.hybridize()
    net(nd.ones((1, 2, 5, 5)))
    net.export(str(tmp_path / 'net'))
    symbol = mx.sym.load(str(tmp_path / 'net-symbol.json'))
    marks = [read_marks(attributes) for attributes in symbol.attr_dict().values()]
    roles = sorted(found['role'] for found in marks if found)
    assert roles == ['activation', 'activation', 'activation_input', 'activation_input', 'convolution', 'dense']
    convolution = next(found for found in marks if found.get('role') == 'convolution')
    assert convolution == dict(role='convolution', bits='1', method='sign', sign='1', encoding='bit', pad_value='-1', offset='1')


@pytest.mark.parametrize(
    'make, words',
    [
        (lambda: QActivation(method='det_sign'), 'unknown quantizer'),
        (lambda: QActivation(bits=2), "'sign' cannot round to 2 bits"),
        (lambda: QActivation(threshold=0), 'threshold must be positive'),
        (lambda: QActivation(method='unit_magnitude'), 'cannot quantize activations'),
        (lambda: QConv2D(4, 3, bits=32, quantization='unit_magnitude'), 'cannot round to 32 bits; choose from 1$'),
        (lambda: QActivation(encoding='bytes'), 'unknown encoding'),
        (lambda: QActivation(method='dorefa', bits=2, encoding='bit'), "for signs, not for bits=2 of the quantizer 'dorefa'"),
        (lambda: QActivation(method='round', bits=1, encoding='bit'), "for signs, not for bits=1 of the quantizer 'round'"),
        (lambda: QConv2D(4, 3, layout='NHWC'), 'NCHW only'),
        (lambda: QConv2D(4, 3, pad_value=0, encoding='bit'), 'pads with -1'),
        (lambda: QConv2D(4, 3, bits=32, encoding='bit'), "for signs, not for bits=32 of the quantizer 'sign'"),
        (lambda: ScaledBinaryConv2D(4, 3, dilation=2), 'no dilation'),
        (lambda: ChannelShuffle(0), 'at least 1'),
    ],
)
def test_wrong_arguments_are_named(make, words):
    with pytest.raises(UserError, match=words):
        make()


SIZED = {QActivation: (), QDense: (4,), ChannelShuffle: (2,)}  # the arguments without which a layer cannot be made; (4, 3) of convolutions
QUANTIZED = [QActivation, QConv1D, QConv2D, QConv3D, QDense, BinaryConv2D, ScaledBinaryConv2D]


@pytest.mark.parametrize('layer', [*QUANTIZED, ChannelShuffle])
def test_a_signature_shows_arguments_that_the_layer_takes_with_their_defaults(layer):
    shown = inspect.signature(layer).parameters.values()
    assert not [argument for argument in shown if argument.kind in (argument.VAR_POSITIONAL, argument.VAR_KEYWORD)]
    defaults = {argument.name: argument.default for argument in shown if argument.default is not argument.empty}
    given = layer(*SIZED.get(layer, (4, 3)), **{**defaults, 'prefix': 'one_'})
    assert repr(given) == repr(layer(*SIZED.get(layer, (4, 3)), prefix='one_'))


@pytest.mark.parametrize('layer', [*QUANTIZED, ChannelShuffle])
def test_an_argument_that_does_not_exist_is_a_type_error_that_names_it(layer):
    with pytest.raises(TypeError, match="unexpected keyword argument 'clip_threshold'"):
        layer(*SIZED.get(layer, (4, 3)), clip_threshold=1)


def test_arguments_that_a_composed_layer_sets_are_refused():
    with pytest.raises(TypeError, match="^BinaryConv2D: .*argument 'encoding'; its arguments are channels, kernel_size, strides, "):
        BinaryConv2D(4, 3, encoding='bit')
    with pytest.raises(TypeError, match="^ScaledBinaryConv2D: .*argument 'no_offset'"):
        ScaledBinaryConv2D(4, 3, no_offset=True)
    with pytest.raises(TypeError, match="^QConv2D: missing a required argument: 'kernel_size'"):
        QConv2D(4)


@pytest.mark.parametrize('layer', [BinaryConv2D, ScaledBinaryConv2D])
def test_a_binary_convolution_takes_its_geometry_in_gluons_order(layer):
    layer = layer(4, 3, 2, 1, 1, 2, in_channels=4)
    layer.initialize()
    assert layer(nd.ones((1, 4, 8, 8))).shape == (1, 4, 4, 4) and layer.qconv.weight.shape == (4, 2, 3, 3)


# --- the first of two stages: binary activations, real weights --------------------------------------------------------------------------


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
    if hybridize:
        layer.hybridize()
    x = np.random.randn(2, 6, 5, 4).astype(np.float32)
    np.testing.assert_allclose(layer(nd.array(x)).asnumpy(), agreement_in_numpy(x, weight, groups, pad_value), rtol=1e-5, atol=1e-4)


def test_gradients_of_real_weights_equal_differences_in_numpy_and_signs_pass_theirs_within_the_threshold():
    layer, weight = BinaryConv2D(2, 3, padding=1, weight_bits=32), np.random.randn(2, 3, 3, 3) / 20
    x, dy = np.random.randn(2, 3, 4, 4).astype(np.float32), np.random.randn(2, 2, 4, 4).astype(np.float32)
    gradients = run(layer, {'x': x, 'weight': weight, 'dy': dy}, hybridize=True)
    step, expected = 1e-6, np.zeros_like(weight)
    for index in np.ndindex(*weight.shape):
        shifted = [weight.copy(), weight.copy()]
        shifted[0][index] += step
        shifted[1][index] -= step
        difference = agreement_in_numpy(x, shifted[0]) - agreement_in_numpy(x, shifted[1])
        expected[index] = (difference * dy).sum() / (2 * step)
    np.testing.assert_allclose(gradients['dweight'].asnumpy(), expected, rtol=1e-3, atol=1e-3)

    filters = weight / np.abs(weight).mean(axis=(1, 2, 3), keepdims=True)
    padded = np.pad(dy, [(0, 0), (0, 0), (1, 1), (1, 1)])
    dx = np.zeros(x.shape)
    for channel, row, column in np.ndindex(*x.shape[1:]):  # the transposed convolution: filters turned by half a turn
        window = padded[:, :, row : row + 3, column : column + 3]
        dx[:, channel, row, column] = (window * filters[:, channel, ::-1, ::-1]).sum(axis=(1, 2, 3)) / 2
    np.testing.assert_allclose(gradients['dx'].asnumpy(), dx * (np.abs(x) <= 1.3), rtol=1e-4, atol=1e-4)


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


@pytest.mark.parametrize('arguments', [{'bits': 32, 'weight_bits': 1}, {'weight_bits': 2}])
def test_weights_that_cannot_differ_from_activations_are_refused(arguments):
    with pytest.raises(UserError, match='weight_bits'):
        BinaryConv2D(4, 3, **arguments)


# ---- concatenation ----


@pytest.mark.parametrize('size', [(5, 4), ()])
def test_concat_is_mxnets_with_its_gradient(size):
    x, y, weight = (nd.random.normal(shape=(2, channels, *size)) for channels in (3, 6, 9))
    for array in (x, y):
        array.attach_grad()
    with autograd.record():
        joined = concat(nd, x, y)
        (joined * weight).sum().backward()
    np.testing.assert_array_equal(joined.asnumpy(), np.concatenate([x.asnumpy(), y.asnumpy()], axis=1))
    np.testing.assert_array_equal(np.concatenate([x.grad.asnumpy(), y.grad.asnumpy()], axis=1), weight.asnumpy())


@pytest.mark.parametrize('size', [(8, 8), ()])
def test_training_with_concat_does_not_lose_memory(size):
    """MXNet's own concatenation loses 2 KB in each of these steps."""
    x = nd.random.normal(shape=(2, 8, *size))
    x.attach_grad()

    def grow(steps):
        before = resident_bytes()
        for _ in range(steps):
            with autograd.record():
                y = concat(nd, x, x)
            y.backward()
            x.grad.wait_to_read()
        return resident_bytes() - before

    grow(500)
    assert grow(3000) < 2 * 2**20


def resident_bytes():
    with open('/proc/self/statm', encoding='ascii') as file:
        return int(file.read().split()[1]) * os.sysconf('SC_PAGE_SIZE')
