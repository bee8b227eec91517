"""BMXNet-v2's names: operators, layers and configuration compared with their definitions in NumPy and stock operators."""

import re
import sys
import threading

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd

import bmx_melius as bmx
from bmx_melius import UserError
from bmx_melius.compat import bmxnet, mxboard
from bmx_melius.compat.bmxnet import mx as extended

nn = extended.gluon.nn


def value_and_gradient(function, x):
    x = nd.array(x)
    x.attach_grad()
    with autograd.record():
        y = function(x)
    y.backward()
    return y.asnumpy(), x.grad.asnumpy()


X = np.array([-np.inf, -2, -1, -0.3, -0.0, 0.0, 0.6, 1, 1.5, np.inf], dtype=np.float32)
SIGN = np.where(X < 0, -1, 1)
OPERATORS = {  # name: method of arrays, value and gradient
    'det_sign': (SIGN, np.ones_like(X)),
    'approx_sign': (SIGN, 2 - 2 * abs(X)),
    'round_ste': (np.trunc(X + np.copysign(0.5, X)), np.ones_like(X)),
}


@pytest.mark.parametrize('name', OPERATORS)
def test_operators_of_arrays_and_symbols_have_value_and_gradient_of_bmxnet(name):
    value, gradient = OPERATORS[name]
    finite = np.isfinite(X) if name == 'approx_sign' else np.ones_like(X, dtype=bool)
    symbol = mx.gluon.SymbolBlock(getattr(mx.sym.var('x'), name)(), mx.sym.var('x'))
    for function in (getattr(nd, name), lambda x: getattr(x, name)(), symbol):
        y, grad = value_and_gradient(function, X)
        np.testing.assert_array_equal(y[finite], value[finite])
        np.testing.assert_allclose(grad[finite], gradient[finite], rtol=1e-6)


@pytest.mark.parametrize('threshold', [0.3, 1.0, 1.5])
def test_gradcancel_keeps_the_value_and_cancels_the_gradient_beyond_the_threshold(threshold):
    x = X[1:-1]
    for F in (nd.contrib, extended.ndarray.contrib):
        y, grad = value_and_gradient(lambda x, F=F: F.gradcancel(x, threshold=threshold), x)
        np.testing.assert_array_equal(y, x)
        np.testing.assert_array_equal(grad, abs(x) <= np.float32(threshold))
    assert mx.sym.contrib.gradcancel(mx.sym.var('x')).list_arguments() == ['x']


def convolution(x, weight, padding):
    """Products of a 3x3 convolution of maps padded with -1, in float64."""
    x = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)), constant_values=-1).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum('nchwij,ocij->nohw', windows, weight)


@pytest.mark.parametrize(
    'bits, arguments, expected',
    [
        (1, {}, lambda x, w: (convolution(x, np.sign(w), 1) + 36) / 2),
        (1, {'no_offset': True}, lambda x, w: convolution(x, np.sign(w), 1)),
        (1, {'apply_scaling': True}, lambda x, w: convolution(x, np.sign(w), 1) * abs(w).mean(axis=(1, 2, 3))[:, None, None]),
        (32, {}, lambda x, w: convolution(x, w, 1)),
        (32, {'apply_scaling': True}, lambda x, w: convolution(x, w, 1) * abs(w).mean(axis=(1, 2, 3))[:, None, None]),
    ],
)
def test_convolution_is_that_of_bmxnet_with_bits_in_third_place(bits, arguments, expected):
    x = np.random.default_rng(0).choice([-1.0, 1.0], size=(2, 4, 6, 5)).astype(np.float32)
    with nn.set_binary_layer_config(bits=bits):
        layers = nn.QConv2D(3, 3, padding=1, **arguments), nn.QConv2D(3, 3, bits, 1, 1, quantization=None, **arguments)
    for layer in layers:
        layer.initialize(mx.init.Normal(0.5))
        y = layer(nd.array(x)).asnumpy()
        np.testing.assert_allclose(y, expected(x, layer.weight.data().asnumpy().astype(np.float64)), rtol=1e-5, atol=1e-5)
        assert layer.weight.wd_mult == 0


@pytest.mark.parametrize('bits, quantized', [(1, np.sign), (32, lambda w: w)])
def test_dense_layer_has_an_offset_with_all_bits(bits, quantized):
    layer = nn.QDense(5, bits=bits) if bits == 1 else None
    with nn.set_binary_layer_config(bits=bits):
        layer = layer or nn.QDense(5, None, False)  # units, activation, use_bias, as in Gluon
    layer.initialize(mx.init.Normal(0.5))
    x = np.random.default_rng(1).standard_normal((3, 8)).astype(np.float32)
    y = layer(nd.array(x)).asnumpy()
    np.testing.assert_allclose(y, (x.astype(np.float64) @ quantized(layer.weight.data().asnumpy()).T + 8) / 2, rtol=1e-5)


@pytest.mark.parametrize('method', ['identity', 'approx_sign', 'relu', 'clip', 'leaky_clip'])
def test_activations_of_32_bits_also_cancel_the_gradient(method):
    x = np.linspace(-2, 2, 17)
    y, grad = value_and_gradient(nn.QActivation(bits=32, method=method, gradient_cancel_threshold=1.3), x)
    plain, plain_grad = value_and_gradient(bmx.QActivation(32, method), x)
    np.testing.assert_array_equal(y, plain)
    np.testing.assert_array_equal(grad, np.where(abs(x) <= 1.3, plain_grad, 0))


def test_scaled_convolution_is_the_product_of_signs_times_both_scales():
    layer = nn.ScaledBinaryConv(3, kernel_size=3, stride=1, padding=1)
    layer.initialize(mx.init.Normal(0.5))
    x = np.random.default_rng(2).standard_normal((2, 4, 6, 5)).astype(np.float32)
    weight = layer(nd.array(x)) is not None and layer.qconv.weight.data().asnumpy()
    magnitude = np.pad(abs(x).mean(axis=1, keepdims=True), ((0, 0), (0, 0), (1, 1), (1, 1)))
    scale = np.lib.stride_tricks.sliding_window_view(magnitude, (3, 3), axis=(2, 3)).mean(axis=(-2, -1))
    expected = convolution(np.sign(x), np.sign(weight), 1) * abs(weight).mean(axis=(1, 2, 3))[:, None, None] * scale
    np.testing.assert_allclose(layer(nd.array(x)).asnumpy(), expected, rtol=1e-5, atol=1e-5)


def test_configuration_holds_within_its_block_and_its_thread():
    assert type(nn.activated_conv(3)) is nn.BinaryConvolution
    with nn.set_binary_layer_config(approximation='xnor', bits_a=2, grad_cancel=0.5, bits=None):
        with nn.set_binary_layer_config(approximation='binet'):
            assert type(nn.activated_conv(3)) is nn.ScaledWeightsBinaryConv
            assert nn.binary_layer_config.bits_a == 2
        layer = nn.activated_conv(3)
        assert type(layer) is nn.ScaledBinaryConv
        activation = layer.qact
        assert (activation.bits, activation.method, activation.threshold) == (2, 'round', 0.5)
        seen = []
        thread = threading.Thread(target=lambda: seen.append(nn.binary_layer_config.bits_a))
        thread.start()
        thread.join()
    assert seen == [1] and nn.binary_layer_config.bits_a == 1


@pytest.mark.parametrize(
    'action, message',
    [
        (lambda: nn.binary_layer_config.set_values(bits=2), 'not global: .*set_binary_layer_config.bits=2.* bits of each layer'),
        (lambda: setattr(nn.binary_layer_config, 'grad_cancel', 1.3), 'clip_threshold of get_model'),
        (lambda: nn.set_binary_layer_config(approximation='abc').__enter__(), "unknown approximation 'abc'"),
        (lambda: nn.set_binary_layer_config(threshold=1).__enter__(), 'takes no threshold; known: grad_cancel'),
        (lambda: nn.QConv2D(3, 3, use_bias=True), 'Bias is not supported'),
        (lambda: nn.QDense(3, activation='relu'), "Activation 'relu' is not supported"),
        (lambda: nn.QActivation(bits=2, method='det_sign'), 'choose from round, dorefa'),
    ],
)
def test_what_is_not_supported_is_refused(action, message):
    with pytest.raises(UserError, match=message):
        action()


def words(weight):
    """Weights as words of 32 bits, lowest bit first."""
    return np.packbits(weight >= 0, bitorder='little').view(np.uint32)


@pytest.mark.parametrize('stored', [lambda bits: bits.view(np.int32), lambda bits: bits.view(np.float32), lambda bits: bits.astype('f8')])
def test_operators_on_packed_weights_give_the_results_of_the_layers(stored):
    rng = np.random.default_rng(3)
    x, weight = nd.array(rng.standard_normal((2, 32, 4, 4))), rng.standard_normal((3, 32, 3, 3)).astype(np.float32)
    packed = stored(words(weight))
    conv = nn.QConv2D(3, 3, in_channels=32)
    expected = conv.hybrid_forward(nd, x.det_sign(), nd.array(weight)).asnumpy()
    y = nd.BinaryInferenceConvolution(data=x, weight=nd.array(packed, dtype=packed.dtype), kernel=(3, 3), num_filter=3)
    np.testing.assert_array_equal(y.asnumpy(), expected)
    x, weight = nd.array(rng.standard_normal((2, 64))), rng.standard_normal((5, 64)).astype(np.float32)
    packed = stored(words(weight.reshape(5, 2, 32).transpose(1, 0, 2).ravel()))
    y = nd.BinaryInferenceFullyConnected(data=x, weight=nd.array(packed, dtype=packed.dtype), num_hidden=5)
    np.testing.assert_array_equal(y.asnumpy(), nn.QDense(5).hybrid_forward(nd, x.det_sign(), nd.array(weight)).asnumpy())


def test_networks_of_these_layers_are_counted_and_packed():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(32, 3), nn.BatchNorm(), nn.QActivation(), nn.QConv2D(32, 3, padding=1), nn.BatchNorm(), nn.BinaryConvolution(32))
    net.add(nn.BatchNorm(), nn.Flatten(), nn.QActivation(), nn.QDense(16), nn.BatchNorm(), nn.Dense(10))
    net.initialize()
    x = nd.random.normal(shape=(2, 1, 10, 10))
    y = net(x).asnumpy()
    assert len([layer for layer in bmx.summary(net, (1, 1, 10, 10)).layers if layer.bops]) >= 2
    np.testing.assert_allclose(bmx.deploy(net, (1, 1, 10, 10))(x).asnumpy(), y, rtol=1e-4, atol=1e-4)
    assert not {name for name in bmxnet.__all__ if not hasattr(bmxnet, name)}


def test_the_summary_of_a_symbol_has_the_totals_of_bmxnet(capsys):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, in_channels=3, use_bias=False), nn.BatchNorm(), nn.activated_conv(16, kernel_size=3, padding=1), nn.Dense(5))
    symbol = net(mx.sym.var('data'))
    extended.viz.print_summary(symbol, shape={'data': (1, 3, 10, 10)}, quantized_bitwidth=2)
    printed = dict(re.findall(r'^(.*): +(.*)$', capsys.readouterr().out, re.MULTILINE))
    real, quantized, macs, binary_macs = 8 * 27 + 2 * 8 + 5 * 1024 + 5, 16 * 72, 64 * 8 * 27, 64 * 16 * 72
    assert printed['Total params'] == str(real + quantized)
    assert printed['FP params'] == f'{real} ({real / (real + quantized):.2%})'
    assert printed['Quantized params'] == f'{quantized} ({quantized / (real + quantized):.2%})'
    assert printed['Model size (compressed)'] == f'{(real * 4 + quantized / 4) / 2**20:.2f} MB'
    assert (float(printed['FLOPS (binary)']), float(printed['FLOPS (full-precision)'])) == pytest.approx((binary_macs, macs), rel=0.01)
    assert float(printed['FLOPS (combined)']) == pytest.approx(binary_macs / 64 + macs, rel=0.01)
    with pytest.raises(UserError, match='needs the shapes of the inputs'):
        extended.viz.print_summary(symbol, quantized_bitwidth=1)
    extended.viz.print_summary(mx.sym.FullyConnected(mx.sym.var('data'), num_hidden=3, name='dense'), {'data': (1, 7)})
    assert 'Total params: 24' in capsys.readouterr().out  # by MXNet's function


def test_the_writer_of_summaries_has_the_calls_of_bmxnets_scripts(tmp_path):
    pytest.importorskip('tensorboardX')
    from tensorboardX.proto.event_pb2 import Event

    writer = mxboard.SummaryWriter(logdir=str(tmp_path), flush_secs=5)
    writer.add_scalar(tag='loss', value=nd.array([2.5]).mean(), global_step=3)
    writer.add_image('batch', nd.random.uniform(shape=(4, 1, 6, 6)), 0)
    writer.add_histogram(tag='weights', values=nd.random.normal(shape=(3, 4)), global_step=1, bins=1000)
    writer.add_graph(nn.Dense(2))
    writer.close()
    (file,) = tmp_path.iterdir()
    content, values = file.read_bytes(), {}
    while content:
        length = int.from_bytes(content[:8], 'little')
        values.update({value.tag: value for value in Event.FromString(content[12 : 12 + length]).summary.value})
        content = content[16 + length :]
    assert values['loss'].simple_value == 2.5 and values['batch'].image.height and values['weights'].histo.num == 12


def test_the_writer_of_summaries_names_the_package_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, 'tensorboardX', None)
    with pytest.raises(UserError, match='needs the package tensorboardX'):
        mxboard.SummaryWriter('logs')
