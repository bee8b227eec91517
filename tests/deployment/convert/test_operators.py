"""Operators of MXNet in packed networks: results equal to those of MXNet, or the reason why an operator is not packed."""

import io
import json
import subprocess
import sys
import types

import mxnet as mx
import numpy as np
import pytest
from mxnet.gluon import HybridBlock, nn
from support.paths import ROOT

import bmx_melius as bmx
from bmx_melius.cli import operators
from bmx_melius.deployment.convert.rules import MARKED_RULES, RULES
from bmx_melius.deployment.convert.rules.table import REASONS
from bmx_melius.errors import UserError


class Function(HybridBlock):
    """A block that computes f(F, x)."""

    def __init__(self, f):
        super().__init__()
        self._f = f

    def hybrid_forward(self, F, x):
        return self._f(F, x)


class Gate(HybridBlock):
    """Squeeze and excitation."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.gate = nn.HybridSequential()
            self.gate.add(nn.GlobalAvgPool2D(), nn.Conv2D(2, 1), nn.Activation('relu'), nn.Conv2D(4, 1), nn.Activation('sigmoid'))

    def hybrid_forward(self, F, x):
        return F.broadcast_mul(x, self.gate(x))


def bilinear(F, x):
    return F.UpSampling(x, F.ones((4, 1, 4, 4)) / 4, scale=2, sample_type='bilinear', num_filter=4, num_args=2)


def zero_pad(F, x):
    return F.pad(x, mode='constant', constant_value=0, pad_width=(0, 0, 0, 0, 1, 2, 0, 1))


MAPS = {  # layers after a convolution with four channels, on maps of 8 x 6
    'leaky': lambda: nn.LeakyReLU(0.1),
    'prelu': nn.PReLU,
    'elu': lambda: nn.ELU(0.7),
    'selu': nn.SELU,
    'gelu': nn.GELU,
    'swish': lambda: nn.Swish(1.5),
    'tanh': lambda: nn.Activation('tanh'),
    'sigmoid': lambda: nn.Activation('sigmoid'),
    'relu6': lambda: Function(lambda F, x: F.clip(x, 0, 6)),
    'hard sigmoid': lambda: Function(lambda F, x: F.hard_sigmoid(x)),
    'hard swish': lambda: Function(lambda F, x: x * F.clip(x + 3, 0, 6) / 6),
    'squeeze and excitation': Gate,
    'group norm': lambda: nn.GroupNorm(2),
    'instance norm': nn.InstanceNorm,
    'layer norm': lambda: nn.LayerNorm(axis=1),
    'nearest': lambda: Function(lambda F, x: F.UpSampling(x, scale=3, sample_type='nearest')),
    'bilinear': lambda: Function(bilinear),
    'deconvolution': lambda: nn.Conv2DTranspose(6, 3, 2, 1, 1),
    'grouped deconvolution': lambda: nn.Conv2DTranspose(6, (4, 3), (3, 2), (1, 0), (2, 1), groups=2, use_bias=False, in_channels=4),
    'dilated deconvolution': lambda: nn.Conv2DTranspose(3, 3, 2, 1, dilation=2),
    'global max': nn.GlobalMaxPool2D,
    'maximum over the map': lambda: Function(lambda F, x: F.max(x, axis=(2, 3))),
    'global mean': nn.GlobalAvgPool2D,
    'sum pooling': lambda: Function(lambda F, x: F.Pooling(x, kernel=(2, 3), stride=(2, 1), pad=(1, 1), pool_type='sum')),
    'zeros': lambda: Function(zero_pad),
    'zeros before a convolution': lambda: Function(
        lambda F, x: F.Convolution(zero_pad(F, x), F.ones((3, 4, 3, 3)) / 9, kernel=(3, 3), pad=(1, 0), num_filter=3, no_bias=True)
    ),
    'zeros before a dense layer': lambda: Function(
        lambda F, x: F.FullyConnected(
            zero_pad(F, F.Pooling(x, global_pool=True)), F.arange(64).reshape((2, 32)) / 64, num_hidden=2, no_bias=True
        )
    ),
    'division by a number': lambda: Function(lambda F, x: x / 3),
    'division by constants': lambda: Function(lambda F, x: F.broadcast_div(x, F.reshape(F.arange(1, 5), (1, 4, 1, 1)))),
    'scaled binary': lambda: bmx.ScaledBinaryConv2D(8, 3, padding=1),
}


def randomized(net, shape):
    """Return a network whose parameters are random, those of normalizations included, after a run in MXNet."""
    net.initialize(mx.init.Normal(0.5))
    net(mx.nd.random.normal(shape=shape))
    for name, parameter in net.collect_params().items():
        if name.endswith(('gamma', 'beta', 'alpha')):
            parameter.set_data(mx.nd.random.normal(shape=parameter.shape))
    return net


def assert_packed(net, shape, sizes=()):
    """Compare a network, which must become one operator, with MXNet at the given size and others; return the packed one."""
    packed = bmx.deploy(randomized(net, shape), shape)
    graph = json.loads(packed(mx.sym.var('data')).tojson())
    assert [node['op'] for node in graph['nodes'] if node['op'] not in ('null', 'expand_dims', 'squeeze')] == ['bmx_melius_packed']
    for size in (shape[2:], *sizes):
        x = mx.nd.random.normal(shape=(2, shape[1], *size))
        expected = net(x).asnumpy()
        np.testing.assert_allclose(packed(x).asnumpy(), expected, rtol=1e-4, atol=2e-5 * max(1, np.abs(expected).max()))
    return packed


@pytest.mark.parametrize('name', MAPS)
def test_a_layer_after_a_convolution_is_packed_with_the_results_of_mxnet(name):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), MAPS[name]())
    assert_packed(net, (1, 3, 8, 6), sizes=[(5, 9)])


@pytest.mark.parametrize('layer', [nn.LayerNorm, nn.GELU, nn.SELU, lambda: nn.Activation('tanh')])
def test_layers_on_vectors_are_packed(layer):
    net = nn.HybridSequential()
    net.add(nn.Dense(8), layer(), nn.Dense(3))
    assert_packed(net, (1, 5))


@pytest.mark.parametrize(
    'layer', [nn.GlobalMaxPool1D, nn.InstanceNorm, lambda: nn.GroupNorm(2), lambda: nn.Conv1DTranspose(3, 3, 2, 1, 1), nn.GELU]
)
def test_layers_in_one_dimension_are_packed(layer):
    net = nn.HybridSequential()
    net.add(nn.Conv1D(4, 3), layer())
    assert_packed(net, (1, 2, 12))


def test_a_vgg_with_prelu_becomes_one_operator():
    net = nn.HybridSequential()
    net.add(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.PReLU(), nn.MaxPool2D())
    for channels in (32, 64):
        net.add(nn.BatchNorm(), bmx.BinaryConv2D(channels, 3, padding=1), nn.BatchNorm(), nn.PReLU(), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(32), nn.PReLU(), nn.Dense(10))
    packed = bmx.deploy(randomized(net, (1, 3, 16, 16)), (1, 3, 16, 16))
    graph = json.loads(packed(mx.sym.var('data')).tojson())
    assert [node['op'] for node in graph['nodes'] if node['op'] != 'null'] == ['bmx_melius_packed']
    x = mx.nd.random.normal(shape=(4, 3, 16, 16))
    np.testing.assert_allclose(packed(x).asnumpy(), net(x).asnumpy(), rtol=1e-3, atol=1e-3)


REFUSED = {
    'softmax': (lambda F, x: F.softmax(x, axis=1), 'softmax', 'logits after the packed network'),
    'softsign': (lambda F, x: F.softsign(x), 'softsign', 'has no packed form'),
    'softrelu': (
        lambda F, x: F.Activation(x, act_type='softrelu'),
        'activation',
        'softrelu has no packed form; relu, sigmoid, tanh have one',
    ),
    'reflection': (lambda F, x: F.pad(x, mode='reflect', pad_width=(0, 0, 0, 0, 1, 1, 1, 1)), 'pad', 'it pads with other numbers than 0'),
    'quotient': (lambda F, x: F.broadcast_div(x, F.abs(x) + 1), 'broadcast_div', 'it divides two values'),
    'lp': (lambda F, x: F.Pooling(x, global_pool=True, kernel=(1, 1), pool_type='lp', p_value=2), 'pooling', 'kind lp'),
    'layer norm of rows': (lambda F, x: F.LayerNorm(x, F.ones((6,)), F.zeros((6,))), 'layernorm', 'it normalizes axis 3'),
    'resize': (lambda F, x: F.contrib.BilinearResize2D(x, scale_height=2, scale_width=2), 'bilinearresize', 'depend on the size'),
}


@pytest.mark.parametrize('name', REFUSED)
def test_an_operator_that_is_not_packed_is_named_with_its_node_and_the_reason(name, tmp_path):
    function, node, reason = REFUSED[name]
    net = nn.HybridSequential()
    net.add(nn.Conv2D(4, 3, padding=1), Function(function))
    net.initialize()
    with pytest.raises(UserError, match=f'{node}[a-z0-9_]* cannot be packed, .*{reason}') as refusal:
        bmx.deploy(net, (1, 3, 8, 6))
    assert '\n' not in str(refusal.value)

    net = nn.HybridSequential()
    net.add(nn.BatchNorm(), bmx.BinaryConv2D(4, 3, padding=1), Function(function))
    net.initialize()
    net.hybridize()
    net(mx.nd.zeros((1, 3, 8, 6)))
    net.export(str(tmp_path / 'net'))
    report = bmx.convert(*(str(tmp_path / file) for file in ('net-symbol.json', 'net-0000.params', 'packed')), (1, 3, 8, 6))
    (line,) = [line for line in str(report).splitlines() if line.startswith('left to MXNet') and reason in line]
    assert node in line and report.packed_operators == 1


@pytest.mark.parametrize(
    'function',
    [
        lambda F, x: F.reshape(F.swapaxes(F.reshape(x, (1, 4, 4, 2, 4)), 1, 2), (1, 8, 4, 4)),  # not of groups of channels
        lambda F, x: F.reshape(F.swapaxes(F.reshape(x, (1, 2, 4, 4, 4)), 1, 2), (1, 8, 2, 8)),  # not to the shape before
        lambda F, x: F.reshape(F.broadcast_add(F.expand_dims(x, 0), F.expand_dims(x, 0)), (1, 8, 4, 4)),  # not joined
        lambda F, x: F.reshape(F.concat(F.expand_dims(x, 0), F.expand_dims(x, 0), dim=3), (1, 8, 8, 4)),  # joined, not by channel
    ],
)
def test_reshapes_that_only_resemble_a_channel_shuffle_or_a_concatenation_are_not_packed(function):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(8, 3, padding=1), Function(function))
    net.initialize()
    with pytest.raises(UserError, match='cannot be packed, it reshapes'):
        bmx.deploy(net, (1, 3, 4, 4))


# --- the document ---------------------------------------------------------------------------------------------------------------------


def printed(**flags):
    output = io.StringIO()
    operators.run(types.SimpleNamespace(**{'json': False, **flags}), output)
    return output.getvalue()


def test_the_document_is_the_output_of_the_command():
    assert (ROOT / 'docs' / 'operators.md').read_text() == printed()


def test_the_command_prints_it_in_a_process_of_its_own():
    command = [sys.executable, '-m', 'bmx_melius', 'operators']
    assert subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout == printed()


def test_every_rule_is_described_and_every_operator_exists_once():
    listed = [name for row in json.loads(printed(json=True)) for name in row['operators']]
    assert sorted(listed) == sorted([*RULES, *REASONS])
    assert all(row['text'] for row in json.loads(printed(json=True)))
    assert not set(RULES) & set(REASONS)
    assert all(function.__doc__ for function in MARKED_RULES.values())


# --- quantizers of users --------------------------------------------------------------------------------------------------------------

SCRIPT = """
import mxnet as mx
import numpy as np
import bmx_melius as bmx
from bmx_melius.nn.quantizers import BINARY, cancel_gradient, sign

def cosine_surrogate(F, x, threshold, scale):
    return F.sin(cancel_gradient(F, x, threshold)) * scale

bmx.register_quantizer('cosine_sign', bmx.Quantizer(
    bits=BINARY,
    surrogate=cosine_surrogate,
    rounded=lambda F, x, surrogate, bits: sign(F, x),
    full_precision=lambda F, x: F.sin(x),
    sign=True,
))
x = mx.nd.array([-2, -0.5, 0, 0.5])
x.attach_grad()
activation = bmx.QActivation(method='cosine_sign')
with mx.autograd.record():
    y = activation(x)
y.backward()
assert y.asnumpy().tolist() == [-1, -1, 1, 1], y
np.testing.assert_allclose(x.grad.asnumpy(), [0, np.cos(0.5), 1, np.cos(0.5)], rtol=1e-6)

net = mx.gluon.nn.HybridSequential()
net.add(mx.gluon.nn.BatchNorm(), bmx.QActivation(method='cosine_sign'), bmx.QConv2D(8, 3, padding=1, quantization='cosine_sign'),
        mx.gluon.nn.BatchNorm(), bmx.QActivation(method='cosine_sign'), bmx.QDense(5, quantization='cosine_sign'))
net.initialize(mx.init.Normal(1))
net.hybridize()
x = mx.nd.random.normal(shape=(2, 4, 6, 6))
y = net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', x.shape)
assert (report.packed_operators, report.binary_layers, report.left) == (1, 2, []), report
np.testing.assert_array_equal(bmx.Session('packed')(x.asnumpy()), y.asnumpy())
print('packed')
"""


def test_a_quantizer_of_a_users_script_that_rounds_to_the_sign_is_packed(tmp_path):
    done = subprocess.run([sys.executable, '-c', SCRIPT], cwd=tmp_path, text=True, capture_output=True, timeout=120)
    assert done.stdout.endswith('packed\n'), done.stderr[-3000:]
