"""Fused operators in the graphs of hybridized blocks: the same bits as MXNet's operators, and nothing of them in exported networks.

Gradients of fused convolutions differ from MXNet's by rounding: they are compared with those in float64.
"""

import multiprocessing
import shutil
import subprocess
import threading

import mxnet as mx
import numpy as np
import pytest
from support.engines import needs_operator
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius.nn import fusion
from model_zoo import get_model

pytestmark = needs_operator

needs_convolution = pytest.mark.skipif(not fusion._kernels(), reason='no kernels for this processor')


def available_kernels():
    """Return the sets of kernels for convolutions that run here: all the processor supports, up to the chosen instruction set."""
    if not fusion._kernels():
        return []
    available = fusion._processor['instruction_sets']()[1]
    return [name for name in fusion.KERNELS[fusion.KERNELS.index(fusion._kernels()) :] if name in available]


@pytest.fixture(params=available_kernels() or ['none'])
def kernels(request, monkeypatch):
    """Let convolutions be executed by each set of kernels in turn."""
    if request.param == 'none':
        pytest.skip('no kernels for this processor')
    monkeypatch.setattr(fusion, '_kernels', lambda: request.param)
    return request.param


STATIC = pytest.mark.parametrize('static', [False, True], ids=['hybrid', 'static'])


def fused_in(symbol, operator=fusion.OPERATOR):
    return fusion.fused(symbol).tojson().count(f'"{operator}"')


@pytest.fixture()
def run_both(monkeypatch):
    """The function that returns the results of `run()` with MXNet's operators and with fused signs, each in newly prepared graphs."""
    fused = fusion.fused
    monkeypatch.setattr(fusion, '_kernels', lambda: None)

    def run_both(run):
        results = []
        for replacement in (lambda symbol: symbol, fused):
            monkeypatch.setattr(fusion, 'fused', replacement)
            results.append(run())
        return results

    return run_both


def assert_same_bits(results):
    expected, found = results
    assert len(expected) == len(found)
    for one, other in zip(expected, found):
        one, other = one.asnumpy(), other.asnumpy()
        np.testing.assert_array_equal(other, one)
        finite = ~np.isnan(one)
        np.testing.assert_array_equal(np.signbit(other[finite]), np.signbit(one[finite]))


def special_values(threshold):
    around = [np.nextafter(np.float32(threshold), np.float32(end)) for end in (0, 9)]
    values = [0.0, -0.0, 1e-45, -1e-45, 1, -1, threshold, *around, np.inf, np.nan, 3e38]
    return np.array([*values, *(-np.array(values))], np.float32)


@STATIC
@pytest.mark.parametrize('method', fusion.METHODS)
@pytest.mark.parametrize('encoding', ['bit', 'sign'])
@pytest.mark.parametrize('threshold', [0.5, 1.3, 3])
@pytest.mark.parametrize('shape', [(24,), (3, 8), (1, 2, 12), (2, 3, 5, 7), (1, 2, 3, 4, 5), (2, 32, 33, 17)], ids=str)
def test_values_and_gradients_of_an_activation_have_the_same_bits(run_both, shape, threshold, encoding, method, static):
    generator = np.random.default_rng(0)
    x = generator.normal(size=shape).astype(np.float32)
    x.ravel()[: special_values(threshold).size] = special_values(threshold)[: x.size]
    outer = generator.normal(size=shape).astype(np.float32)
    outer.ravel()[3:6] = [np.inf, -0.0, np.nan]

    def run():
        layer = bmx.QActivation(method=method, threshold=threshold, encoding=encoding)
        layer.hybridize(static_alloc=static, static_shape=static)
        data, gradient = mx.nd.array(x), mx.nd.array(outer)
        data.attach_grad()
        for _ in range(3):
            with mx.autograd.record():
                y = layer(data)
            y.backward(gradient)
        return layer(data), y, data.grad

    assert_same_bits(run_both(run))


def gradients_of(net, x, steps=3, request='write'):
    """Return output, gradient of the input and of all parameters after some steps."""
    x = mx.nd.array(x)
    x.attach_grad(request)
    for _ in range(steps):
        with mx.autograd.record():
            y = net(x)
        y.backward(mx.nd.array(np.random.RandomState(0).normal(size=y.shape)))
    return [y, x.grad, *(one.grad() for one in net.collect_params().values() if one.grad_req != 'null')]


class ManyReaders(mx.gluon.HybridBlock):
    """One map that ten binary layers read, nine of them alike: MXNet adds the gradients of so many in place."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.layers = mx.gluon.nn.HybridSequential()
            self.layers.add(*(bmx.BinaryConv2D(4, 3, padding=1, in_channels=8, threshold=1 + (n == 4)) for n in range(10)))

    def hybrid_forward(self, F, x):
        return sum((layer(x) for layer in self.layers), x.slice_axis(axis=1, begin=0, end=4))


class ManyThresholds(ManyReaders):
    """One map that ten different binary layers read."""

    def __init__(self):
        super().__init__()
        for number, layer in enumerate(self.layers):
            layer.qact.threshold = 0.5 + number / 10


def two_layers():
    net = mx.gluon.nn.HybridSequential()
    net.add(bmx.BinaryConv2D(8, 3, padding=1), mx.gluon.nn.BatchNorm(), bmx.BinaryConv2D(4, 3, activation_method='approx_sign'))
    return net


@STATIC
@pytest.mark.parametrize('request_of_gradient', ['write', 'add'])
@pytest.mark.parametrize('frozen', ['none', '.*weight', '.*gamma|.*beta'])
@pytest.mark.parametrize('make', [two_layers, ManyReaders, ManyThresholds])
def test_gradients_of_networks_have_the_same_bits(run_both, make, frozen, request_of_gradient, static):
    x = np.random.default_rng(0).normal(size=(2, 8, 9, 7)).astype(np.float32)

    def run():
        mx.random.seed(0)
        net = make()
        net.initialize(mx.init.Normal(1))
        net.collect_params(frozen).setattr('grad_req', 'null')
        net.hybridize(static_alloc=static, static_shape=static)
        return gradients_of(net, x, request=request_of_gradient)

    assert_same_bits(run_both(run))


@pytest.mark.parametrize('name', ['meliusnet22', 'resnet18_e1', 'birealnet18', 'quicknet_small'])
def test_training_steps_of_networks_of_the_zoo_have_the_same_bits(run_both, name):
    def run():
        mx.random.seed(0)
        net = get_model(name, classes=10)
        net.initialize(mx.init.Xavier(rnd_type='gaussian', factor_type='in', magnitude=2))
        net.hybridize(static_alloc=True, static_shape=True)
        trainer = mx.gluon.Trainer(net.collect_params(), 'radam', update_on_kvstore=False)
        x = mx.nd.random.normal(shape=(2, 3, 64, 64))
        for _ in range(3):
            with mx.autograd.record():
                loss = net(x).sum()
            loss.backward()
            trainer.step(1)
        return [loss, *(one.data() for one in net.collect_params().values())]

    assert_same_bits(run_both(run))


def test_executed_graphs_have_one_operator_per_activation_and_exported_networks_only_those_of_mxnet(tmp_path, monkeypatch):
    executed = []
    monkeypatch.setattr(
        mx.nd.CachedOp, '_cached_op', lambda symbol, flags: executed.append(symbol) or mx.nd._internal.CachedOp(symbol, flags)
    )
    net = two_layers()
    net.initialize()
    net.hybridize()
    net(mx.nd.ones((1, 8, 6, 6)))
    operators = [node['op'] for node in fusion.SymbolJson.of(executed[0]).nodes]
    operator = fusion.CONVOLUTION_OPERATOR if fusion._kernels() else fusion.OPERATOR
    assert operators.count(operator) == 2 and 'abs' not in operators
    assert ('batch_dot' in operators) == (operator == fusion.OPERATOR)  # of the constant of a convolution
    net.export(str(tmp_path / 'net'))
    assert fusion.OPERATOR not in (tmp_path / 'net-symbol.json').read_text()
    imported = mx.gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'], f'{tmp_path}/net-0000.params')
    imported.hybridize()
    np.testing.assert_array_equal(imported(mx.nd.ones((1, 8, 6, 6))).asnumpy(), net(mx.nd.ones((1, 8, 6, 6))).asnumpy())
    assert operator in executed[1].tojson()


@pytest.mark.parametrize('dtype', ['float64', 'float16'])
def test_other_types_keep_the_operators_of_mxnet(dtype):
    layer = bmx.BinaryConv2D(4, 3, in_channels=8)
    layer.cast(dtype)
    assert fused_in(layer(mx.sym.var('data'))) == 0
    layer.initialize()
    layer.hybridize()
    assert layer(mx.nd.ones((1, 8, 5, 5), dtype='float64')).dtype == np.float64 if dtype == 'float64' else True


def test_a_network_that_is_cast_after_its_first_call_has_the_operators_of_mxnet_and_back_again_fused_ones():
    layer = bmx.BinaryConv2D(4, 3, in_channels=8)
    layer.initialize()
    layer.hybridize()
    x = mx.nd.random.normal(shape=(1, 8, 5, 5))
    expected = layer(x).asnumpy()
    for dtype in ('float64', 'float32'):
        layer.cast(dtype)
        found = layer(x.astype(dtype))
        assert found.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(found.asnumpy(), expected)


def test_a_monitor_sees_the_operators_that_are_executed():
    layer = bmx.BinaryConv2D(4, 3, in_channels=8)
    layer.initialize()
    layer.hybridize()
    seen = []
    layer.register_op_hook(lambda node, operator, array: seen.append(str(operator)))
    layer(mx.nd.ones((1, 8, 5, 5)))
    assert any(fusion.OPERATOR in operator or fusion.CONVOLUTION_OPERATOR in operator for operator in seen), seen


def monitored(symbol_of, in_training, monkeypatch):
    """Return the results that a monitor sees of a small network, by their names, and the names of the operators."""
    monkeypatch.setattr(fusion, 'fused', symbol_of)
    layers = mx.gluon.nn
    net = layers.HybridSequential(prefix='net_')
    with net.name_scope():
        net.add(layers.Conv2D(8, 3, in_channels=3), layers.BatchNorm(in_channels=8), bmx.QActivation())
        net.add(bmx.BinaryConv2D(8, 3, in_channels=8), layers.BatchNorm(in_channels=8), layers.MaxPool2D(2))
    net.initialize(mx.init.Constant(0.5))
    net.hybridize()
    seen, operators = {}, []

    def callback(name, operator, handle):
        seen[name.decode()] = mx.nd.NDArray(mx.base.NDArrayHandle(handle), writable=False).asnumpy()
        operators.append(operator.decode())

    net.register_op_hook(callback)
    x = mx.nd.array(np.random.default_rng(0).normal(size=(4, 3, 16, 16)))
    with mx.autograd.record(train_mode=in_training):
        net(x)
    mx.nd.waitall()
    return seen, operators


@pytest.mark.parametrize('in_training', [True, False])
def test_a_monitor_sees_results_of_fused_operators_under_the_names_of_mxnet(in_training, kernels, monkeypatch):
    found, operators = monitored(fusion.fused, in_training, monkeypatch)
    expected, _ = monitored(lambda symbol: symbol, in_training, monkeypatch)
    used = {operator for operator in operators if operator in fusion.RESULTS}
    assert used >= {fusion.OPERATOR, fusion.CONVOLUTION_OPERATOR} and (fusion.NORMALIZATION_OPERATOR in used) == in_training
    compared = [name for name in found if name.endswith(('_output', '_mean'))]
    assert len(compared) == 8 and expected.keys() >= set(compared)
    for name in compared:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-4, atol=1e-4, err_msg=name)
    for name in (name for name in found if name.endswith('_variance')):
        inverse = expected[name.replace('_variance', '_var')]
        np.testing.assert_allclose(1 / np.sqrt(found[name] + 1e-5), inverse, rtol=1e-4)


def test_only_what_computes_the_same_is_fused():
    def symbol(**arguments):
        return bmx.QActivation(**{'encoding': 'bit', **arguments})(mx.sym.var('data'))

    assert [fused_in(symbol()), fused_in(symbol(threshold=2)), fused_in(symbol(threshold=None))] == [1, 1, 0]
    for old, new in (
        ('"scalar": "0"', '"scalar": "0.1"'),
        ('_greater_equal_scalar', '_greater_scalar'),
        ('"scalar": "1.3"', '"scalar": "1.4"'),
    ):
        text = symbol().tojson()
        assert old in text
        assert fused_in(mx.sym.load_json(text.replace(old, new))) == 0


def train_in_threads(result=None):
    """Train a small network in three threads, each with its own; return whether all have the same gradients."""
    x = np.random.default_rng(0).normal(size=(2, 8, 9, 7)).astype(np.float32)
    nets = [two_layers() for _ in range(3)]
    for net in nets:
        net.initialize(mx.init.Constant(0.5))
        net.hybridize(static_alloc=True, static_shape=True)
        net(mx.nd.array(x))
    outputs = [None] * 3

    def work(number):
        outputs[number] = [array.asnumpy() for array in gradients_of(nets[number], x, steps=5)]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = all(np.array_equal(one, other) for output in outputs for one, other in zip(output, outputs[0]))
    if result:
        result.send(same)
    return same


def test_threads_and_children_of_fork_train():
    assert train_in_threads()
    context = multiprocessing.get_context('fork')
    ours, theirs = context.Pipe()
    child = context.Process(target=train_in_threads, args=(theirs,))
    child.start()
    assert ours.poll(60), 'the child hangs'
    assert ours.recv()
    child.join(60)
    assert child.exitcode == 0
    assert train_in_threads()


@pytest.mark.parametrize('switch, expected', [(None, 'True'), ('0', 'False')])
def test_a_process_ends_while_it_trains_and_a_variable_switches_fusion_off(switch, expected):
    done = run_python(
        'import mxnet as mx, bmx_melius as bmx\n'
        'from bmx_melius.nn import fusion\n'
        'net = bmx.BinaryConv2D(32, 3, in_channels=32)\n'
        'net.initialize(); net.hybridize(static_alloc=True, static_shape=True)\n'
        'x = mx.nd.ones((8, 32, 64, 64))\n'
        'for _ in range(5):\n'
        '    with mx.autograd.record(): y = net(x)\n'
        '    y.backward()\n'
        'print(isinstance(mx.nd.CachedOp, fusion._FusedCachedOp))\n',  # ends with the last steps pending
        BMX_MELIUS_FUSION=switch,
    )
    assert done.stdout.strip() == expected and done.stderr == ''


# --- convolutions -----------------------------------------------------------------------------------------------------------------------


def layer_results(make, x, dtype='float32', request='write'):
    """Return output, gradient of the input and of the latent weight of a binary layer."""
    layer = make()
    layer.cast(dtype)
    layer.qconv.weight.grad_req = request
    layer.initialize()
    layer.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.array(x, dtype=dtype)
    layer(x)
    weight = layer.qconv.weight
    weight.set_data(mx.nd.array(np.random.default_rng(1).normal(size=weight.shape).astype(np.float32), dtype=dtype))
    x.attach_grad(request)
    outer = mx.nd.array(np.random.default_rng(2).normal(size=layer(x).shape).astype(np.float32), dtype=dtype)
    for _ in range(2):
        with mx.autograd.record():
            y = layer(x)
        y.backward(outer)
    return [array.asnumpy() for array in (y, x.grad, weight.grad())]


GEOMETRIES = {
    'blocks of stage 1': ((2, 64, 28, 28), {'channels': 64}),
    'channels and filters that fill no vector': ((2, 40, 9, 7), {'channels': 21}),
    'one channel, one filter': ((2, 1, 5, 6), {'channels': 1}),
    'many channels on few pixels': ((3, 256, 3, 3), {'channels': 70}),
    'a wide map': ((1, 33, 3, 130), {'channels': 9}),
    'stride': ((3, 64, 9, 8), {'channels': 70, 'strides': 2}),
    'different strides, no padding': ((2, 32, 40, 17), {'channels': 16, 'strides': (3, 2), 'padding': 0}),
    'a window of one pixel, with stride': ((2, 96, 7, 9), {'channels': 33, 'kernel_size': 1, 'strides': 2, 'padding': 0}),
    'a large window, dilated': ((2, 33, 12, 11), {'channels': 17, 'kernel_size': (5, 3), 'padding': (2, 0), 'dilation': 2}),
    'more than 16 taps': ((1, 5, 9, 9), {'channels': 4, 'kernel_size': 5, 'padding': 2}),
    'much padding': ((1, 32, 5, 5), {'channels': 8, 'padding': 4}),
    'more images than lanes': ((19, 36, 5, 9), {'channels': 20, 'strides': (2, 1)}),
    'more than 128 channels on a map of two segments': ((8, 161, 4, 31), {'channels': 12}),
    'products of signs': ((2, 32, 6, 6), {'channels': 8, 'no_offset': True}),
    'scales': ((2, 32, 6, 6), {'channels': 8, 'apply_scaling': True}),
    'a bias and a threshold of weights': ((2, 32, 6, 6), {'channels': 8, 'use_bias': True, 'weight_threshold': 1.0}),
}


@pytest.mark.usefixtures('kernels')
@pytest.mark.parametrize('method', fusion.METHODS)
@pytest.mark.parametrize('shape, arguments', GEOMETRIES.values(), ids=GEOMETRIES)
def test_a_convolution_has_the_same_bits_and_gradients_as_near_to_float64(monkeypatch, shape, arguments, method):
    def make():
        return bmx.BinaryConv2D(**{'kernel_size': 3, 'padding': 1, 'activation_method': method, **arguments})

    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    x.ravel()[: min(8, x.size)] = [0, -0.0, 1e-45, -1e-45, 1.3, -1.3, 1.4, 1.0][: x.size]
    assert fused_in(make()(mx.sym.var('data')), fusion.CONVOLUTION_OPERATOR) == 1
    found = layer_results(make, x)
    exact = layer_results(make, x, dtype='float64')
    monkeypatch.setattr(fusion, '_kernels', lambda: None)
    stock = layer_results(make, x)
    if method == 'sign':
        np.testing.assert_array_equal(found[0], stock[0])
    else:  # a bit of MXNet's operators may be 1 - 2**-24: their surrogate can have the opposite sign
        np.testing.assert_allclose(found[0], exact[0], rtol=1e-6, atol=1e-6)
    for one, other, expected in zip(found[1:], stock[1:], exact[1:]):
        scale = np.abs(expected).max()
        error, of_mxnet = (np.sqrt(np.mean((array - expected) ** 2)) / scale for array in (one, other))
        assert error < max(1.5 * of_mxnet, 1e-7), (error, of_mxnet)
        np.testing.assert_array_equal(one == 0, other == 0)  # beyond the threshold


@pytest.mark.usefixtures('kernels')
@pytest.mark.parametrize('special', [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_reach_the_same_results(monkeypatch, special):
    def make():
        return bmx.BinaryConv2D(5, 3, padding=1, strides=2)

    x = np.random.default_rng(0).normal(size=(2, 40, 9, 9)).astype(np.float32)
    x[1, 35, 4, 3] = special
    found = layer_results(make, x)[0]
    monkeypatch.setattr(fusion, '_kernels', lambda: None)
    np.testing.assert_array_equal(found, layer_results(make, x)[0])
    assert 0 < np.isnan(found).sum() < found.size


@pytest.mark.usefixtures('kernels')
def test_gradients_of_a_convolution_are_added_where_that_is_requested():
    x = np.random.default_rng(0).normal(size=(2, 32, 9, 9)).astype(np.float32)
    once, twice = (layer_results(lambda: bmx.BinaryConv2D(5, 3), x, request=request)[1:] for request in ('write', 'add'))
    for one, other in zip(once, twice):
        np.testing.assert_array_equal(other, 2 * one)


@pytest.mark.usefixtures('kernels')
@pytest.mark.parametrize('special', [np.nan, np.inf])
def test_a_latent_weight_that_is_not_finite_spoils_its_filter(special):
    layer = bmx.BinaryConv2D(5, 3, in_channels=40)
    layer.initialize()
    layer.qconv.weight.data()[3, 7, 1, 1] = special
    x = mx.nd.random.normal(shape=(2, 40, 9, 9))
    expected = layer(x).asnumpy()
    layer.hybridize()
    np.testing.assert_array_equal(layer(x).asnumpy(), expected)
    assert np.isnan(expected[:, 3]).all() and np.isfinite(np.delete(expected, 3, 1)).all()


class SharedLayer(mx.gluon.HybridBlock):
    """The same layer several times: the gradients of its weight are added."""

    def __init__(self, times):
        super().__init__()
        self.times = times
        with self.name_scope():
            self.layer = bmx.BinaryConv2D(8, 3, padding=1, in_channels=8)
            self.norms = mx.gluon.nn.HybridSequential()
            self.norms.add(*(mx.gluon.nn.BatchNorm(in_channels=8) for _ in range(times)))

    def hybrid_forward(self, F, x):
        for norm in self.norms:
            x = self.layer(norm(x))
        return x


@pytest.mark.usefixtures('kernels')
@pytest.mark.parametrize(
    'make, convolutions',
    [(two_layers, 2), (ManyReaders, 0), (ManyThresholds, 0), (lambda: SharedLayer(3), 3), (lambda: SharedLayer(9), 0)],
    ids=['two layers', 'many readers', 'many thresholds', 'a layer three times', 'a layer nine times'],
)
def test_gradients_of_networks_with_fused_convolutions_are_those_of_mxnet(monkeypatch, make, convolutions):
    x = np.random.default_rng(0).normal(size=(2, 8, 9, 7)).astype(np.float32)

    def run():
        mx.random.seed(0)
        net = make()
        net.initialize(mx.init.Normal(1))
        net.hybridize(static_alloc=True, static_shape=True)
        return [array.asnumpy() for array in gradients_of(net, x)], fused_in(net(mx.sym.var('data')), fusion.CONVOLUTION_OPERATOR)

    found, count = run()
    monkeypatch.setattr(fusion, '_kernels', lambda: None)
    expected, none = run()
    assert (count, none) == (convolutions, 0)
    np.testing.assert_array_equal(found[0], expected[0])
    for one, other in zip(found[1:], expected[1:]):
        np.testing.assert_allclose(one, other, atol=3e-6 * np.abs(other).max())


@needs_convolution
@pytest.mark.parametrize('name, convolutions', [('meliusnet22', 34), ('resnet_e18', 16), ('birealnet18', 16), ('binary_densenet28', 23)])
def test_networks_of_the_zoo_are_executed_with_fused_convolutions(name, convolutions):
    net = get_model(name, classes=10)
    assert fused_in(net(mx.sym.var('data')), fusion.CONVOLUTION_OPERATOR) == convolutions
    assert fused_in(net(mx.sym.var('data'))) == 0


@needs_convolution
def test_only_convolutions_of_signs_by_signs_are_fused():
    def count(layer, shape=(1, 8, 9, 9)):
        return fused_in(layer(mx.sym.var('data', shape=shape)), fusion.CONVOLUTION_OPERATOR)

    assert count(bmx.BinaryConv2D(8, 3)) == 1
    for arguments in (
        {'groups': 2},
        {'kernel_size': 5, 'padding': 14, 'dilation': 7},
        {'pad_value': 0},
        {'weight_bits': 32},
        {'bits': 2, 'activation_method': 'round', 'quantization': 'round'},
    ):
        assert count(bmx.BinaryConv2D(8, **{'kernel_size': 3, **arguments})) == 0
    text = fusion.SymbolJson.of(bmx.BinaryConv2D(8, 3)(mx.sym.var('data'))).text()
    assert '"scalar": "2"' in text  # of the weight's sign
    assert fused_in(mx.sym.load_json(text.replace('"scalar": "2"', '"scalar": "3"')), fusion.CONVOLUTION_OPERATOR) == 0


PRINT_GRADIENTS = """
import hashlib, mxnet as mx, numpy as np, bmx_melius as bmx
layer = bmx.BinaryConv2D(40, 3, padding=1, in_channels=72)
layer.initialize(); layer.hybridize(static_alloc=True, static_shape=True)
layer.qconv.weight.set_data(mx.nd.array(np.random.RandomState(0).normal(size=layer.qconv.weight.shape)))
x = mx.nd.array(np.random.RandomState(1).normal(size=(5, 72, 23, 17))); x.attach_grad()
for _ in range(3):
    with mx.autograd.record(): y = layer(x)
    y.backward(mx.nd.array(np.random.RandomState(2).normal(size=y.shape)))
    print(*(hashlib.sha256(a.asnumpy().tobytes()).hexdigest() for a in (y, x.grad, layer.qconv.weight.grad())))
"""


@pytest.mark.parametrize('name', available_kernels())
def test_gradients_of_a_convolution_do_not_depend_on_the_number_of_threads(name):
    program = f'import mxnet; from bmx_melius.nn import fusion; fusion._kernels = lambda: {name!r}{PRINT_GRADIENTS}'
    lines = [line for threads in '123' for line in run_python(program, OMP_NUM_THREADS=threads).stdout.splitlines()]
    assert len(lines) == 9 and len(set(lines)) == 1


@pytest.mark.parametrize('special', [np.nan, np.inf])
def test_gradients_that_are_not_finite_reach_the_gradients_that_they_reach_in_mxnet(monkeypatch, kernels, special):
    x = np.random.default_rng(0).normal(size=(3, 33, 7, 6)).astype(np.float32)

    def run():
        layer = bmx.BinaryConv2D(10, 3, padding=1, in_channels=33)
        layer.initialize()
        layer.hybridize(static_alloc=True, static_shape=True)
        layer.qconv.weight.set_data(mx.nd.array(np.random.default_rng(1).normal(size=layer.qconv.weight.shape)))
        data = mx.nd.array(x)
        data.attach_grad()
        outer = np.random.default_rng(2).normal(size=(3, 10, 7, 6)).astype(np.float32)
        outer[1, 7, 3, 2] = special
        with mx.autograd.record():
            y = layer(data)
        y.backward(mx.nd.array(outer))
        return data.grad.asnumpy(), layer.qconv.weight.grad().asnumpy()

    found = run()
    monkeypatch.setattr(fusion, '_kernels', lambda: None)
    for one, other in zip(found, run()):
        np.testing.assert_array_equal(np.isfinite(one), np.isfinite(other))
        assert 0 < np.isfinite(one).sum() < one.size


def test_the_instruction_set_that_is_chosen_selects_the_kernels():
    for name in available_kernels():
        done = run_python('import mxnet, bmx_melius.nn.fusion as f; print(f._kernels())', BMX_MELIUS_ISA=name)
        assert done.stdout.strip() == name
    done = run_python('import mxnet, bmx_melius.nn.fusion as f; print(f._kernels())', BMX_MELIUS_ISA='reference')
    assert done.stdout.strip() == 'None'


# --- batch normalization ----------------------------------------------------------------------------------------------------------------


class Normalized(mx.gluon.HybridBlock):
    """A batch normalization between a sign and an output that nothing simplifies, which is added to another map."""

    def __init__(self, addend='none', **arguments):
        super().__init__()
        self.addend = addend
        with self.name_scope():
            self.activation = bmx.QActivation()
            self.norm = mx.gluon.nn.BatchNorm(**arguments)

    def hybrid_forward(self, F, x):
        y = self.norm(x * 3 + self.activation(x) * x)
        return {'none': lambda: y, 'first': lambda: x * x + y, 'last': lambda: y + x * x}[self.addend]()


def normalizations_in(symbol):
    return fusion.with_fused_normalization(fusion.fused(symbol)).tojson().count(f'"{fusion.NORMALIZATION_OPERATOR}"')


@pytest.mark.usefixtures('kernels')
@pytest.mark.parametrize('request_of_gradient', ['write', 'add'])
@pytest.mark.parametrize(
    'frozen, addend', [('none', 'none'), ('none', 'first'), ('none', 'last'), ('.*gamma', 'none'), ('.*beta', 'first')]
)
@pytest.mark.parametrize('shape', [(64, 5), (3, 7, 18), (4, 16, 9, 7), (16, 3, 28, 28), (2, 2, 3, 4, 5)], ids=str)
def test_batch_normalization_and_its_gradients_are_as_near_to_float64_as_those_of_mxnet(
    monkeypatch, shape, frozen, addend, request_of_gradient
):
    x = (np.random.default_rng(0).normal(size=shape) * 2 + 1).astype(np.float32)

    def run(dtype='float32'):
        net = Normalized(addend, momentum=0.7, epsilon=1e-3)
        net.cast(dtype)
        net.initialize(mx.init.Normal(1))
        net.hybridize(static_alloc=True, static_shape=True)
        data = mx.nd.array(x, dtype=dtype)
        net(data)
        net.collect_params(frozen).setattr('grad_req', 'null')
        for seed, name in enumerate(('gamma', 'beta')):
            parameter = getattr(net.norm, name)
            parameter.set_data(mx.nd.array(np.random.default_rng(seed).normal(size=shape[1]).astype(np.float32), dtype=dtype))
            if parameter.grad_req != 'null':
                parameter.grad_req = request_of_gradient
        data.attach_grad(request_of_gradient)
        for step in range(3):
            with mx.autograd.record():
                y = net(data + step)
            y.backward(mx.nd.array(np.random.default_rng(5).normal(size=shape).astype(np.float32), dtype=dtype))
        parameters = net.collect_params().values()
        gradients = [one.grad() for one in parameters if one.grad_req != 'null']
        return [array.asnumpy() for array in (y, net(data), data.grad, *(one.data() for one in parameters), *gradients)]

    assert normalizations_in(Normalized(addend)(mx.sym.var('data'))) == 1
    found, exact = run(), run('float64')
    monkeypatch.setattr(fusion, '_kernels', lambda: None)
    for one, other, expected in zip(found, run(), exact):
        error, of_mxnet = (np.abs(array - expected).max() / np.abs(expected).max() for array in (one, other))
        assert error < max(2 * of_mxnet, 5e-7), (error, of_mxnet)


@needs_convolution
def test_inference_uses_the_moving_statistics_by_the_operators_of_mxnet(monkeypatch):
    net = Normalized()
    net.initialize()
    net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.random.normal(2, 3, shape=(4, 6, 5, 5))
    for _ in range(3):
        with mx.autograd.record():
            trained = net(x)
    found = [net(x).asnumpy()]
    with mx.autograd.record(train_mode=False):
        found.append(net(x).asnumpy())
    monkeypatch.setattr(fusion, 'fused', lambda symbol: symbol)
    net.hybridize(static_alloc=True, static_shape=True)
    for values in found:
        np.testing.assert_array_equal(values, net(x).asnumpy())
    assert np.abs(found[0] - trained.asnumpy()).max() > 0.1


@needs_convolution
def test_gradients_of_a_batch_normalization_do_not_depend_on_the_number_of_threads_nor_on_the_instruction_set():
    program = """
import hashlib, mxnet as mx, numpy as np, bmx_melius as bmx
from bmx_melius.nn import fusion
for kernels in KERNELS:
    fusion._kernels = lambda: kernels
    net = mx.gluon.nn.HybridSequential()
    net.add(mx.gluon.nn.MaxPool2D(2, 1), mx.gluon.nn.BatchNorm(in_channels=37), bmx.QActivation())
    net.initialize(); net.hybridize(static_alloc=True, static_shape=True)
    x = mx.nd.array(np.random.RandomState(1).normal(size=(5, 37, 24, 18))); x.attach_grad()
    with mx.autograd.record(): y = net(x)
    y.backward(mx.nd.array(np.random.RandomState(2).normal(size=y.shape)))
    arrays = [y, x.grad, net[1].gamma.grad(), net[1].beta.grad(), net[1].running_mean.data(), net[1].running_var.data()]
    print(*(hashlib.sha256(array.asnumpy().tobytes()).hexdigest() for array in arrays))
""".replace('KERNELS', repr(available_kernels()))
    lines = [line for threads in '123' for line in run_python(program, OMP_NUM_THREADS=threads).stdout.splitlines()]
    assert len(lines) == 3 * len(available_kernels()) and len(set(lines)) == 1


@needs_convolution
def test_numbers_of_operators_are_read_in_locales_with_a_decimal_comma(tmp_path):
    localedef = ['localedef', '-i', 'de_DE', '-f', 'UTF-8', tmp_path / 'de_DE.UTF-8']
    if not shutil.which('localedef') or subprocess.run(localedef, capture_output=True).returncode > 1:
        pytest.skip('no locale with a decimal comma can be made')
    program = """
import locale, mxnet as mx, bmx_melius as bmx
locale.setlocale(locale.LC_ALL, LOCALE)
net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.MaxPool2D(1), mx.gluon.nn.BatchNorm(momentum=0.5, epsilon=0.5), bmx.QActivation(threshold=1.5))
net.initialize(); net.hybridize()
x = mx.nd.array([[[[2.0, 4.0]]]]); x.attach_grad()
with mx.autograd.record(): y = net(x)
y.backward()
print(net[1].running_mean.data().asscalar(), net[1].running_var.data().asscalar())
"""
    outputs = {run_python(program.replace('LOCALE', repr(name)), LOCPATH=str(tmp_path)).stdout for name in ('C', 'de_DE.UTF-8')}
    assert outputs == {'1.5 1.0\n'}


@needs_convolution
@pytest.mark.parametrize('arguments', [{'scale': False}, {'use_global_stats': True}, {'axis': 2}], ids=str)
def test_other_batch_normalizations_keep_the_operators_of_mxnet(arguments):
    assert normalizations_in(Normalized(**arguments)(mx.sym.var('data'))) == 0


@needs_convolution
def test_a_sum_is_that_of_one_normalization_if_nothing_else_reads_what_it_normalizes_nor_many_the_addend():
    def addends_in(symbol):
        graph = fusion.SymbolJson.of(fusion.with_fused_normalization(fusion.fused(symbol)))
        return [node['attrs']['addend'] for node in graph.nodes if node['op'] == fusion.NORMALIZATION_OPERATOR]

    x, sign, norms = mx.sym.var('data'), bmx.QActivation(), [mx.gluon.nn.BatchNorm(in_channels=3) for _ in range(2)]
    twice = x * 2
    y = norms[0](twice)
    assert addends_in(sign(y + twice)) == ['last'] and addends_in(sign(twice + y)) == ['first']
    assert sorted(addends_in(sign(y + norms[1](x * 3)))) == ['last', 'none']
    assert addends_in(sign(y + twice) + y) == addends_in(sign(y + x)) == addends_in(sign(y + y)) == ['none']
    assert addends_in(sign(norms[0](x * 3) + twice) + mx.sym.add_n(*(twice * n for n in range(9)))) == ['none']


@needs_convolution
def test_a_batch_normalization_of_a_map_with_many_readers_or_of_the_input_keeps_the_operators_of_mxnet():
    x, norm, sign = mx.sym.var('data'), mx.gluon.nn.BatchNorm(in_channels=3), bmx.QActivation()
    twice = x * 2
    assert normalizations_in(sign(norm(twice)) + twice) == 1
    assert normalizations_in(sign(norm(twice)) + mx.sym.add_n(*(twice * n for n in range(9)))) == 0
    assert normalizations_in(sign(norm(x))) == 0


# --- pooling ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif('avx2' not in available_kernels(), reason='no kernels for this processor')
@pytest.mark.parametrize(
    'shape, arguments',
    [
        ((2, 8, 12, 14), {'pool_size': 2}),
        ((3, 5, 11, 9), {'pool_size': 3, 'strides': 2, 'padding': 1}),
        ((1, 4, 9, 8), {'pool_size': (2, 3), 'strides': (3, 1), 'padding': (0, 2)}),
        ((2, 3, 7, 7), {'pool_size': 4, 'strides': 2, 'padding': 3}),
    ],
    ids=str,
)
def test_maxima_have_the_same_bits_and_their_gradients_the_same_without_avx512(monkeypatch, shape, arguments):
    monkeypatch.setattr(fusion, '_kernels', lambda: 'avx2')

    def run():
        net = mx.gluon.nn.HybridSequential()
        net.add(bmx.BinaryConv2D(5, 3, padding=1, in_channels=shape[1]), mx.gluon.nn.MaxPool2D(**arguments))  # integers, many equal
        net.initialize(mx.init.Constant(0.5))
        net[0].qconv.weight.set_data(mx.nd.array(np.random.default_rng(1).normal(size=net[0].qconv.weight.shape)))
        net.hybridize(static_alloc=True, static_shape=True)
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        return gradients_of(net, x), fused_in(net(mx.sym.var('data')), fusion.POOLING_OPERATOR)

    found, count = run()
    monkeypatch.setattr(fusion, '_replace_pooling', lambda graph: None)
    expected, none = run()
    assert (count, none) == (1, 0)
    assert_same_bits((expected[:1], found[:1]))
    if 'avx512' not in fusion._processor['instruction_sets']()[1]:
        assert_same_bits((expected, found))
    for one, other in zip(expected, found):  # with AVX-512 oneDNN adds the gradients of overlapping windows in another order
        np.testing.assert_allclose(other.asnumpy(), one.asnumpy(), rtol=1e-4, atol=1e-5)


def test_only_plain_maximum_pooling_of_maps_that_nothing_else_reads_is_replaced(monkeypatch):
    monkeypatch.setattr(fusion, '_kernels', lambda: 'avx2')
    nn = mx.gluon.nn

    def count(pool):
        net = nn.HybridSequential()
        net.add(bmx.BinaryConv2D(8, 3, in_channels=8), pool)
        return fused_in(net(mx.sym.var('data')), fusion.POOLING_OPERATOR)

    assert count(nn.MaxPool2D(2)) == 1
    for pool in (nn.MaxPool2D(2, ceil_mode=True), nn.AvgPool2D(2), nn.GlobalMaxPool2D(), nn.MaxPool2D(2, layout='NHWC')):
        assert count(pool) == 0
    x = bmx.BinaryConv2D(8, 3, in_channels=8)(mx.sym.var('data'))
    pooled = mx.sym.Pooling(x, kernel=(2, 2), pool_type='max')
    assert [fused_in(pooled, fusion.POOLING_OPERATOR), fused_in(mx.sym.Group([pooled, x]), fusion.POOLING_OPERATOR)] == [1, 0]
