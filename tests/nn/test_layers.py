"""Layers and their gradients against the reference data, NumPy's own loops and their full-precision counterparts."""

import json
import os

import mxnet as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mxnet import autograd, nd
from mxnet.gluon import nn
from support.equations import outputs_and_gradients, signs
from support.gradients import descend, gradients
from support.paths import DATA
from support.small_networks import initialized, sequence

from bmx_melius import BinaryConv2D, ChannelShuffle, GroupedConv2D, QActivation, QConv1D, QConv2D, QConv3D, QDense, ScaledBinaryConv2D
from bmx_melius.nn.channels import concat
from bmx_melius.nn.marks import read_marks
from bmx_melius.nn.quantizers import QUANTIZERS, rounds_to_sign

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


@pytest.mark.parametrize('hybridize', [False, True], ids=['imperative', 'hybridized'])
@pytest.mark.parametrize('case', CASES)
def test_layer_and_gradients_equal_the_reference(case, hybridize):
    arrays = {name.split('/', 1)[1]: ARRAYS[name] for name in ARRAYS.files if name.startswith(case + '/')}
    for name, value in outputs_and_gradients(reference_layer(case), arrays, hybridize).items():
        np.testing.assert_allclose(value, arrays[name], rtol=1e-5, atol=2e-5, err_msg=name)


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
    x = signs(rng.randn(2, in_channels, *[extent + rng.randint(4) for _ in range(dimensions)])).astype(np.float32)
    arguments = {k: case[k] for k in ('kernel_size', 'strides', 'padding', 'dilation', 'groups', 'pad_value', 'no_offset', 'use_bias')}
    layer = CONVOLUTIONS[dimensions](channels, in_channels=0 if case['deferred'] else in_channels, **arguments)
    layer.initialize(mx.init.Normal(1))
    layer.hybridize(case['hybridize'])
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


@given(st.integers(1, 4), st.integers(1, 40), st.integers(1, 5), st.booleans(), st.booleans(), st.sampled_from(['sign', 'bit']))
def test_quantized_dense_equals_numpy(batch, inputs, units, no_offset, hybridize, encoding):
    rng = np.random.RandomState(inputs)
    x = signs(rng.randn(batch, inputs))
    layer = QDense(units, no_offset=no_offset, encoding=encoding)
    layer.initialize(mx.init.Normal(1))
    layer.hybridize(hybridize)
    y = layer(nd.array(x if encoding == 'sign' else (x + 1) / 2)).asnumpy()
    h = x @ signs(layer.weight.data().asnumpy()).T
    np.testing.assert_array_equal(y, h if no_offset else (h + inputs) / 2)


def test_quantized_dense_keeps_leading_axes_without_flatten():
    layer = QDense(3, flatten=False)
    layer.initialize()
    assert layer(nd.ones((2, 5, 7))).shape == (2, 5, 3)


@pytest.mark.parametrize('layer', [QConv1D, QConv2D, QConv3D])
def test_full_precision_equals_the_ordinary_layer(layer):
    counterpart = {QConv1D: nn.Conv1D, QConv2D: nn.Conv2D, QConv3D: nn.Conv3D}[layer](4, 3, padding=1, in_channels=2, use_bias=False)
    quantized = layer(4, 3, padding=1, in_channels=2, bits=32)
    counterpart.initialize()
    quantized.initialize()
    quantized.weight.set_data(counterpart.weight.data())
    x = nd.random.normal(shape=(2, 2) + (5,) * len(counterpart.weight.shape[2:]))
    np.testing.assert_array_equal(quantized(x).asnumpy(), counterpart(x).asnumpy())


def test_fused_activation_is_applied_last():
    layer = QConv2D(4, 3, activation='relu', no_offset=True, use_bias=True, bias_initializer=mx.init.Constant(-100))
    layer.initialize()
    assert layer(nd.ones((1, 2, 4, 4))).asnumpy().max() == 0


def decay_of_a_step(layer):
    """Train a layer by one step with a gradient of 0, rate 0.5 and weight decay 0.25; return the factor by which its weight changes."""
    layer.initialize(mx.init.Constant(2))
    trainer = mx.gluon.Trainer(layer.collect_params(), 'sgd', {'learning_rate': 0.5, 'wd': 0.25})
    descend(trainer, 1, lambda: (layer(nd.ones((1, 4, 3, 3))) * 0).sum())
    (factor,) = np.unique(layer.weight.data().asnumpy() / 2)
    return factor


# Weights that decay: their magnitude reaches the output. So do HWGQ's solvers ("decay_mult: 1" of every BinaryConvolution), LQ-Net's and
# TTQ's code (the pattern '.*/W'); BMXNet-v2 and Larq decay no signs.
@pytest.mark.parametrize('layer', [lambda **kw: QConv2D(2, 3, **kw), lambda **kw: QDense(2, **kw)])
@pytest.mark.parametrize('method, bits', [(name, bits) for name, row in QUANTIZERS.items() for bits in (1, 2, 32) if bits in row.bits])
def test_weight_decay_changes_weights_whose_magnitude_reaches_the_output(layer, method, bits):
    assert decay_of_a_step(layer(quantization=method, bits=bits)) == (1 if rounds_to_sign(method, bits) else 0.875)


@pytest.mark.parametrize(
    'arguments, decays',
    [
        ({'apply_scaling': True}, True),
        ({'apply_scaling': True, 'scaling_gradient': False}, True),
        ({'weight_decay': True}, True),
        ({'apply_scaling': True, 'weight_decay': False}, False),
        ({'bits': 32, 'weight_decay': False}, True),
    ],
)
def test_weight_decay_applies_to_scaled_weights_and_is_an_argument(arguments, decays):
    assert decay_of_a_step(QConv2D(2, 3, **arguments)) == (0.875 if decays else 1)


@pytest.mark.parametrize('groups', [1, 4])
def test_grouped_convolution_equals_the_ordinary_one(groups):
    x = nd.random.normal(shape=(2, 8, 5, 5))
    grouped, ordinary = (layer(12, 3, padding=1, groups=groups, in_channels=8) for layer in (GroupedConv2D, nn.Conv2D))
    for layer in (grouped, ordinary):
        layer.initialize()
        layer.weight.set_data(nd.array(np.random.RandomState(0).randn(12, 8 // groups, 3, 3)))
    np.testing.assert_array_equal(grouped(x).asnumpy(), ordinary(x).asnumpy())


def test_marks_survive_export_and_import(tmp_path):
    net = sequence(BinaryConv2D(4, 3, padding=1), nn.Flatten(), QActivation(), QDense(3))
    initialized(net, (1, 2, 5, 5)).export(str(tmp_path / 'net'))
    symbol = mx.sym.load(str(tmp_path / 'net-symbol.json'))
    marks = [read_marks(attributes) for attributes in symbol.attr_dict().values()]
    roles = sorted(found['role'] for found in marks if found)
    assert roles == ['activation', 'activation', 'activation_input', 'activation_input', 'convolution', 'dense']
    convolution = next(found for found in marks if found.get('role') == 'convolution')
    assert convolution == dict(role='convolution', bits='1', method='sign', sign='1', encoding='bit', pad_value='-1', offset='1')


# ---- concatenation ----


@pytest.mark.parametrize('size', [(5, 4), ()])
def test_concat_is_mxnets_with_its_gradient(size):
    x, y, weight = (nd.random.normal(shape=(2, channels, *size)) for channels in (3, 6, 9))
    joined, dx, dy = gradients(lambda x, y: concat(nd, x, y), [x, y], weight)
    np.testing.assert_array_equal(joined, np.concatenate([x.asnumpy(), y.asnumpy()], axis=1))
    np.testing.assert_array_equal(np.concatenate([dx, dy], axis=1), weight.asnumpy())


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


@pytest.mark.parametrize('threshold', [1.0, 1.3, None])
@pytest.mark.parametrize('method, slope', [('relu', lambda x: x > 0), ('identity', lambda x: x == x)])
def test_real_activations_before_binary_weights_have_no_gradient_beyond_the_threshold(threshold, method, slope):
    """BMXNet-v2's QActivation with 32 bits: its gradcancel comes before the quantizer, whatever the bits."""
    x = np.array([-np.inf, -1.4, -1.3, -1, -0.3, 0, 0.3, 1, 1.3, 1.4, 7e4, np.inf], dtype=np.float32)
    for bits, cancels in ((1, True), (32, False)):
        method_of = {'activation_method': method} if bits == 1 else {'activation_method': 'sign'}
        layer = BinaryConv2D(1, 1, bits=bits, activation_bits=32, threshold=threshold, no_offset=True, pad_value=0, **method_of)
        layer.initialize(mx.init.One())
        data = nd.array(x[:, None, None, None])
        data.attach_grad()
        with mx.autograd.record():
            y = layer(data)
        y.backward()
        inside = abs(x) <= np.float32(threshold) if threshold and cancels else np.ones_like(x)
        np.testing.assert_array_equal(y.asnumpy().ravel(), np.maximum(x, 0) if bits == 1 and method == 'relu' else x)
        np.testing.assert_array_equal(data.grad.asnumpy().ravel(), inside * (slope(x) if bits == 1 else 1))
