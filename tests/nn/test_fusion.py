"""Fused operators in the graphs of hybridized blocks: the same bits as MXNet's operators, and nothing of them in exported networks."""

import multiprocessing
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

STATIC = pytest.mark.parametrize('static', [False, True], ids=['hybrid', 'static'])


def fused_in(symbol):
    return fusion.fused(symbol).tojson().count(f'"{fusion.OPERATOR}"')


@pytest.fixture()
def run_both(monkeypatch):
    """The function that returns the results of `run()` with MXNet's operators and with fused ones, each in newly prepared graphs."""
    fused = fusion.fused

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
    assert operators.count(fusion.OPERATOR) == 2 and 'abs' not in operators
    net.export(str(tmp_path / 'net'))
    assert fusion.OPERATOR not in (tmp_path / 'net-symbol.json').read_text()
    imported = mx.gluon.SymbolBlock.imports(f'{tmp_path}/net-symbol.json', ['data'], f'{tmp_path}/net-0000.params')
    imported.hybridize()
    np.testing.assert_array_equal(imported(mx.nd.ones((1, 8, 6, 6))).asnumpy(), net(mx.nd.ones((1, 8, 6, 6))).asnumpy())
    assert fusion.OPERATOR in executed[1].tojson()


@pytest.mark.parametrize('dtype', ['float64', 'float16'])
def test_other_types_keep_the_operators_of_mxnet(dtype):
    layer = bmx.BinaryConv2D(4, 3, in_channels=8)
    layer.cast(dtype)
    assert fused_in(layer(mx.sym.var('data'))) == 0
    layer.initialize()
    layer.hybridize()
    assert layer(mx.nd.ones((1, 8, 5, 5), dtype='float64')).dtype == np.float64 if dtype == 'float64' else True


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
