"""Operators of MXNet in packed networks: results equal to MXNet's, or the reason why an operator is not packed."""

import io
import json
import subprocess
import sys
import types

import pytest
from mxnet.gluon import nn
from support.conversions import names_of
from support.method_layers import Gate
from support.paths import ROOT
from support.python_programs import run_python
from support.small_networks import initialized, sequence

import bmx_melius as bmx
from bmx_melius.cli import operators
from bmx_melius.deployment.convert.rules import MARKED_RULES
from bmx_melius.deployment.convert.rules.table import REASONS, RULES
from bmx_melius.errors import UserError
from bmx_melius.graph.mxnet_operators import READ_AS
from bmx_melius.nn.channelwise import TwoSlopes

pytest_plugins = ['support.conversions']  # its fixtures

CHANNELS = 32


def bilinear(F, x):
    return F.UpSampling(x, F.ones((CHANNELS, 1, 4, 4)) / 4, scale=2, sample_type='bilinear', num_filter=CHANNELS, num_args=2)


def zero_pad(F, x):
    return F.pad(x, mode='constant', constant_value=0, pad_width=(0, 0, 0, 0, 1, 2, 0, 1))


def padded_convolution(F, x):
    return F.Convolution(zero_pad(F, x), F.ones((3, CHANNELS, 3, 3)) / 99, kernel=(3, 3), pad=(1, 0), num_filter=3, no_bias=True)


def padded_dense(F, x):
    weight = F.arange(16 * CHANNELS).reshape((2, 8 * CHANNELS)) / 999
    return F.FullyConnected(zero_pad(F, F.Pooling(x, global_pool=True)), weight, num_hidden=2, no_bias=True)


def products_of_means(F, x):
    both = F.broadcast_mul(F.mean(x, axis=1, keepdims=True), x)
    return F.broadcast_mul(both, F.mean(x, axis=(0, 1), exclude=True, keepdims=True))


def in_numpy(function, *inputs):
    """Return the result of a function of MXNet's NumPy interface."""
    return function(*(x.as_np_ndarray() for x in inputs)).as_nd_ndarray()


MAPS = {  # layers on maps of CHANNELS channels
    'leaky': lambda: nn.LeakyReLU(0.1),
    'prelu': nn.PReLU,
    'prelu of each channel': lambda: nn.PReLU(in_channels=CHANNELS),
    'elu': lambda: nn.ELU(0.7),
    'selu': nn.SELU,
    'gelu': nn.GELU,
    'swish': lambda: nn.Swish(1.5),
    'tanh': lambda: nn.Activation('tanh'),
    'sigmoid': lambda: nn.Activation('sigmoid'),
    'softrelu': lambda: nn.Activation('softrelu'),
    'relu6': lambda: nn.HybridLambda(lambda F, x: F.clip(x, 0, 6)),
    'relu6 as a minimum': lambda: nn.HybridLambda(lambda F, x: F.minimum(F.relu(x), 6)),
    'hard tanh': lambda: nn.HybridLambda(lambda F, x: F.clip(x, -1, 1)),
    'hard sigmoid': lambda: nn.HybridLambda(lambda F, x: F.hard_sigmoid(x)),
    'hard sigmoid of other numbers': lambda: nn.HybridLambda(lambda F, x: F.hard_sigmoid(x, alpha=0.3, beta=0.25)),
    'hard swish': lambda: nn.HybridLambda(lambda F, x: x * F.clip(x + 3, 0, 6) / 6),
    'maximum': lambda: nn.HybridLambda(lambda F, x: F.maximum(x, -0.5)),
    'abs and square': lambda: nn.HybridLambda(lambda F, x: F.abs(-x) + F.square(x)),
    'differences': lambda: nn.HybridLambda(lambda F, x: (x - F.relu(x)) * (F.sigmoid(x) - x)),
    'means': lambda: nn.HybridLambda(products_of_means),
    'spatial mean': lambda: nn.HybridLambda(lambda F, x: F.mean(x, axis=(2, 3))),
    'squeeze and excitation': lambda: Gate(CHANNELS),
    'group norm': lambda: nn.GroupNorm(2),
    'instance norm': nn.InstanceNorm,
    'layer norm': lambda: nn.LayerNorm(axis=1),
    'nearest': lambda: nn.HybridLambda(lambda F, x: F.UpSampling(x, scale=3, sample_type='nearest')),
    'bilinear': lambda: nn.HybridLambda(bilinear),
    'deconvolution': lambda: nn.Conv2DTranspose(6, 3, 2, 1, 1),
    'grouped deconvolution': lambda: nn.Conv2DTranspose(6, (4, 3), (3, 2), (1, 0), (2, 1), groups=2, use_bias=False, in_channels=CHANNELS),
    'dilated deconvolution': lambda: nn.Conv2DTranspose(3, 3, 2, 1, dilation=2),
    'global max': nn.GlobalMaxPool2D,
    'maximum over the map': lambda: nn.HybridLambda(lambda F, x: F.max(x, axis=(2, 3))),
    'global mean': nn.GlobalAvgPool2D,
    'sum pooling': lambda: nn.HybridLambda(lambda F, x: F.Pooling(x, kernel=(2, 3), stride=(2, 1), pad=(1, 1), pool_type='sum')),
    'zeros': lambda: nn.HybridLambda(zero_pad),
    'zeros before a convolution': lambda: nn.HybridLambda(padded_convolution),
    'zeros before a dense layer': lambda: nn.HybridLambda(padded_dense),
    'division by a number': lambda: nn.HybridLambda(lambda F, x: x / 3),
    'division by constants': lambda: nn.HybridLambda(lambda F, x: F.broadcast_div(x, F.arange(1, CHANNELS + 1).reshape((1, -1, 1, 1)))),
    'exact division by constants': lambda: nn.HybridLambda(
        lambda F, x: in_numpy(F.np.true_divide, x, F.arange(3, CHANNELS + 3).reshape((1, -1, 1, 1)))
    ),
    'whole numbers': lambda: nn.HybridLambda(lambda F, x: in_numpy(F.np.around, x)),
    'scaled binary': lambda: bmx.ScaledBinaryConv2D(8, 3, padding=1),
}
BEFORE = {
    'float': lambda: [nn.Conv2D(CHANNELS, 3, padding=1)],
    'binary': lambda: [nn.BatchNorm(), bmx.BinaryConv2D(CHANNELS, 3, padding=1, no_offset=True), nn.BatchNorm()],
}


@pytest.mark.parametrize('before', BEFORE)
@pytest.mark.parametrize('name', MAPS)
def test_a_layer_after_a_convolution_is_packed_with_the_results_of_mxnet(name, before, pack_whole):
    pack_whole(sequence(*BEFORE[before](), MAPS[name]()), (1, 3, 8, 6), sizes=[(5, 9)])


@pytest.mark.parametrize('positive', [(2, -0.5, 1), (2, 0, 1)])
def test_slopes_of_both_sides_are_packed_also_where_one_is_zero(positive, pack_whole):
    net = sequence(nn.Conv2D(3, 1), TwoSlopes(3))
    program, _ = pack_whole(net, (1, 3, 8, 6), positive=positive, slope=(0.25, -2, 0))
    assert ('prelu' in names_of(program)) == all(positive)


OF_ONE_SIZE = {
    'edge': lambda F, x: F.pad(x, mode='edge', pad_width=(0, 0, 0, 0, 1, 2, 0, 3)),
    'reflection': lambda F, x: F.pad(x, mode='reflect', pad_width=(0, 0, 0, 0, 2, 2, 3, 3)),
    'corners': lambda F, x: F.contrib.BilinearResize2D(x, height=15, width=12),
    'smaller': lambda F, x: F.contrib.BilinearResize2D(x, height=4, width=5),
    'scales': lambda F, x: F.contrib.BilinearResize2D(x, scale_height=2, scale_width=1.5),
    'half pixels': lambda F, x: F.contrib.BilinearResize2D(x, height=16, width=13, align_corners=False),
    'half pixels, smaller': lambda F, x: F.contrib.BilinearResize2D(x, height=4, width=4, align_corners=False),
    'to one element': lambda F, x: F.contrib.BilinearResize2D(x, height=1, width=1),
    'of one element': lambda F, x: F.contrib.BilinearResize2D(F.Pooling(x, global_pool=True), height=12, width=9),
}


@pytest.mark.parametrize('name', OF_ONE_SIZE)
def test_rows_and_columns_of_a_map_of_one_size_are_packed_with_the_results_of_mxnet(name, pack_whole):
    pack_whole(sequence(*BEFORE['binary'](), nn.HybridLambda(OF_ONE_SIZE[name])), (1, 3, 8, 6))


VECTORS = ['prelu', 'sigmoid', 'swish', 'hard sigmoid of other numbers', 'maximum', 'abs and square', 'gelu', 'selu', 'tanh']


@pytest.mark.parametrize('layer', [nn.LayerNorm, *(MAPS[name] for name in VECTORS)], ids=['layer norm', *VECTORS])
def test_layers_on_vectors_are_packed(layer, pack_whole):
    pack_whole(sequence(nn.Dense(8), layer(), bmx.QActivation(), bmx.QDense(5), nn.Dense(3)), (1, 5))


@pytest.mark.parametrize(
    'layer', [nn.GlobalMaxPool1D, nn.InstanceNorm, lambda: nn.GroupNorm(2), lambda: nn.Conv1DTranspose(3, 3, 2, 1, 1), nn.GELU]
)
def test_layers_in_one_dimension_are_packed(layer, pack_whole):
    pack_whole(sequence(nn.Conv1D(4, 3), layer()), (1, 2, 12))


def test_a_vgg_with_prelu_becomes_one_operator(pack_whole):
    net = sequence(nn.Conv2D(16, 3, padding=1), nn.BatchNorm(), nn.PReLU(), nn.MaxPool2D())
    for channels in (32, 64):
        net.add(nn.BatchNorm(), bmx.BinaryConv2D(channels, 3, padding=1), nn.BatchNorm(), nn.PReLU(), nn.MaxPool2D())
    net.add(nn.Flatten(), nn.Dense(32), nn.PReLU(), nn.Dense(10))
    pack_whole(net, (1, 3, 16, 16))


REFUSED = {
    'softmax': (lambda F, x: F.softmax(x, axis=1), 'softmax', 'logits after the packed network'),
    'softsign': (lambda F, x: F.softsign(x), 'softsign', 'has no packed form'),
    'activation softsign': (
        lambda F, x: F.Activation(x, act_type='softsign'),
        'activation',
        'softsign has no packed form; relu, sigmoid, softrelu, tanh have one',
    ),
    'ones': (
        lambda F, x: F.pad(x, mode='constant', constant_value=1, pad_width=(0, 0, 0, 0, 1, 1, 1, 1)),
        'pad',
        'it pads with other numbers than 0',
    ),
    'quotient': (lambda F, x: F.broadcast_div(x, F.abs(x) + 1), 'broadcast_div', 'it divides two values'),
    'rint': (lambda F, x: F.rint(x), 'rint', 'it rounds ties down'),
    'decimals': (lambda F, x: in_numpy(lambda y: F.np.around(y, 1), x), 'around', 'it rounds to multiples of a number other than 1'),
    'lp': (lambda F, x: F.Pooling(x, global_pool=True, kernel=(1, 1), pool_type='lp', p_value=2), 'pooling', 'kind lp'),
    'layer norm of rows': (lambda F, x: F.LayerNorm(x, F.ones((6,)), F.zeros((6,))), 'layernorm', 'it normalizes axis 3'),
    'odd size': (
        lambda F, x: F.contrib.BilinearResize2D(x, scale_height=2, scale_width=2, mode='odd_scale'),
        'bilinearresize',
        'a fixed size can be packed',
    ),
}


@pytest.mark.parametrize('name', REFUSED)
def test_an_operator_that_is_not_packed_is_named_with_its_node_and_the_reason(name, convert):
    function, node, reason = REFUSED[name]
    net = sequence(nn.Conv2D(4, 3, padding=1), nn.HybridLambda(function))
    net.initialize()
    with pytest.raises(UserError, match=f'{node}[a-z0-9_]* cannot be packed, .*{reason}') as refusal:
        bmx.deploy(net, (1, 3, 8, 6))
    assert '\n' not in str(refusal.value)

    net = sequence(nn.BatchNorm(), bmx.BinaryConv2D(4, 3, padding=1), nn.HybridLambda(function))
    report, _ = convert(initialized(net, (1, 3, 8, 6)), (1, 3, 8, 6))
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
    net = sequence(nn.Conv2D(8, 3, padding=1), nn.HybridLambda(function))
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
    assert len(listed) == len(set(listed)) and {*listed} >= {*REASONS}
    assert all(row['text'] for row in json.loads(printed(json=True)))
    assert all(function.__doc__ for function in [*RULES.values(), *MARKED_RULES.values()])


def test_every_operator_that_is_read_is_listed_but_those_without_a_rule_or_reason():
    listed = [name for row in json.loads(printed(json=True)) for name in row['operators']]
    deformable = {'_contrib_DeformableConvolution', '_contrib_ModulatedDeformableConvolution'}
    assert {*READ_AS} - {*listed} == {*deformable, 'Convolution_v1', 'softsign'}


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
    assert run_python(SCRIPT, cwd=tmp_path).stdout.endswith('packed\n')
