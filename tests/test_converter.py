"""Conversion: every network of the zoo, single layers, foreign operators, verification, the command.

Whole networks are compared layer by layer on equal inputs, by the interpreter and by the engine, because a value close to a
threshold may fall on either side of it by the order of a sum; only the reference network has no such value.
"""

import dataclasses
import json
import os

import cv2
import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from networks import OF_ONE_DEPTH, of_size
from reference_network import read_reference_network
from small_networks import initialized, sequence, small_network

import bmx_melius as bmx
from bmx_melius import UserError, marks
from bmx_melius.analysis.graph import load_symbol
from bmx_melius.container import read_arrays, read_parameters
from bmx_melius.deployment.convert import thresholds
from bmx_melius.deployment.convert.batch_norms import FoldedBatchNorms
from bmx_melius.deployment.convert.lowering import lower
from bmx_melius.deployment.convert.partition import divide
from bmx_melius.deployment.convert.traced_network import Network
from bmx_melius.deployment.convert.verification import verify
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Value
from bmx_melius.deployment.program.packed_operator import NAME
from bmx_melius.deployment.program.program import Program
from model_zoo import get_model
from model_zoo.method_resnets import MethodResNet
from model_zoo.quicknet import QuickNet
from model_zoo.resnet import BinaryResNet

DENORMAL = 1e-40
FLOAT_ACTIVATIONS = ('resnet18_bwn', 'resnet18_ttq')  # networks with weights of one or two bits, but no binary layers in the engine
TWO_BITS = ('resnet18_dorefa_w2a2', 'resnet18_hwgq', 'resnet18_lqnet_w1a2', 'resnet18_syq_w1a2')  # of activations
LOW_BIT = FLOAT_ACTIVATIONS + TWO_BITS
BASES = {'resnet18_abcnet': 5 * 19, 'groupnet18': 5 * 16, 'resnet18_cbcn': 16, 'resnet18_benn': 6 * 16}  # and their binary layers


@pytest.fixture
def convert(export, tmp_path):
    """Export and convert a block that has run: the report and the prefix of the new files."""

    def call(net, input_shape, **options):
        prefix = tmp_path / 'packed'
        return bmx.convert(*export(net), prefix, input_shape, **options), prefix

    return call


@pytest.fixture
def small(export):
    """Files of a small network."""
    return export(small_network())


def imported(prefix, inputs=('data',)):
    return mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', list(inputs), f'{prefix}-0000.params')


def operators(prefix):
    return [node for node in json.loads((prefix.parent / f'{prefix.name}-symbol.json').read_text())['nodes'] if node['op'] != 'null']


def programs(prefix):
    arrays = read_parameters(f'{prefix}-0000.params')
    return [Program.from_words(words) for name, words in arrays.items() if name.endswith('_program')]


def signs(*shape):
    return np.where(np.random.randn(*shape) >= 0, 1, -1).astype(np.float32)


# --- every network of the zoo ---------------------------------------------------------------------------------------------------------


def make_statistics_hostile(net):
    """Usual statistics for all batch normalizations, and for every third channel of those before a sign one unusual number.

    Residual networks have none before a sign, or others on the way of a sum to the end of the network, where infinities would spread.
    """
    unusual = {
        'gamma': [0, -0.0, DENORMAL, -DENORMAL, 1e20, -1e20, -1, 1e-20],
        'running_var': [0, 1e-38, 1e30, DENORMAL],
        'beta': [0, -0.0, DENORMAL],
        'running_mean': [0, -0.0, 1e6],
    }
    usual = {'gamma': (0.5, 1.5), 'beta': (-0.5, 0.5), 'running_mean': (-0.5, 0.5), 'running_var': (0.5, 2)}
    for name, parameter in net.collect_params().items():
        kind = next((kind for kind in usual if name.endswith(kind)), None)
        if kind is None:
            continue
        values = np.random.uniform(*usual[kind], size=parameter.shape).astype(np.float32)
        if '_stage' in name and not isinstance(net, (BinaryResNet, MethodResNet, QuickNet)):
            values *= np.random.choice([-1, 1], size=parameter.shape) if kind == 'gamma' else 1
            places = np.arange(np.random.randint(3), len(values), 3)
            values[places] = np.resize(np.random.permutation(unusual[kind]), len(places))
        parameter.set_data(nd.array(values))


def binary_layers_of(symbol):
    """For each binary layer, the value before its sign and before normalizations and learned shifts there, and its sums: two symbols."""
    internals = symbol.get_internals()
    nodes = json.loads(internals.tojson())['nodes']
    value = {name: internals[position] for position, name in enumerate(internals.list_outputs())}

    def role(node):
        return marks.read_marks(node.get('attrs', {})).get('role')

    def first_input(node):
        return nodes[node['inputs'][0][0]]

    for node in nodes:
        if role(node) == marks.CONVOLUTION:
            before = first_input(node)
            while role(before) != marks.ACTIVATION_INPUT:
                before = first_input(before)
            before = first_input(before)
            while before['op'] in ('BatchNorm', 'broadcast_add'):
                before = first_input(before)
            yield value[before['name'] + '_output'], value[node['name'] + '_output']


def in_the_engine(threshold, convolution, x):
    """The result of a single binary layer in the engine, or without a compiler in the interpreter."""
    layer = [dataclasses.replace(threshold, inputs=(0,)), dataclasses.replace(convolution, inputs=(1,))]
    return bmx.Session(Program([Value(REAL_KIND, *x.shape[1:], False)], layer, [2]))(x)


@pytest.mark.parametrize(
    'name, initial_layers',
    [
        *((name, None) for name in OF_ONE_DEPTH if not name.endswith('_32bit') and name not in (*LOW_BIT, *BASES)),
        ('meliusneta', 'imagenet'),
        ('meliusnetb', 'thumbnail'),
    ],
)
def test_every_binary_layer_of_the_zoo_equals_mxnets(name, initial_layers, convert, tmp_path, long_run):
    shape = (1, 3, 64, 64) if initial_layers != 'thumbnail' else (1, 3, 16, 16)
    stem = {'initial_layers': initial_layers} if initial_layers else {}
    net = initialized(get_model(name, classes=10, **stem, **of_size(name, 64, full=long_run)), shape)
    make_statistics_hostile(net)
    report, prefix = convert(net, shape, verify=False)
    assert [node['op'] for node in operators(prefix)] == [NAME] and not report.left and not report.unclear_thresholds
    operations = programs(prefix)[0].operations

    symbol = load_symbol(tmp_path / 'net-symbol.json')
    layers = list(binary_layers_of(symbol))
    pairs = mx.gluon.SymbolBlock(mx.sym.Group([s for pair in layers for s in pair]), [mx.sym.var('data')])
    pairs.collect_params().load(str(tmp_path / 'net-0000.params'), ignore_extra=True)
    pairs.hybridize()
    values = [value.asnumpy() for value in pairs(nd.random.normal(shape=shape))]
    folded = [operation for operation in operations if operation.name == 'threshold']
    convolutions = [operation for operation in operations if operation.name == 'binary_conv']
    assert len(layers) == len(folded) == len(convolutions) == report.binary_layers
    for x, y, threshold, convolution in zip(values[::2], values[1::2], folded, convolutions):
        # an activation of an infinite value is not a number in MXNet, and spreads
        compared = np.isfinite(y)
        result = reference.apply(convolution, [reference.apply(threshold, [x])])
        np.testing.assert_array_equal(result[compared], y[compared])
        np.testing.assert_array_equal(in_the_engine(threshold, convolution, x)[compared], y[compared])
        assert compared.mean() > 0.5


@pytest.mark.parametrize('name', BASES)
def test_every_convolution_of_several_binary_bases_is_packed(name, convert):
    net = initialized(get_model(name, classes=10, initial_layers='thumbnail', **of_size(name, 16)), (1, 3, 16, 16), mx.init.Xavier())
    report, prefix = convert(net, (1, 3, 16, 16))
    assert report.binary_layers == BASES[name]
    assert [node['op'] for node in operators(prefix)] == [NAME] and not report.left


@pytest.mark.parametrize('name', TWO_BITS)
def test_networks_with_two_bits_become_one_operator_that_gives_mxnets_logits(name, convert):
    net = initialized(get_model(name, classes=10, initial_layers='thumbnail', init_features=16), (1, 3, 16, 16), mx.init.Xavier())
    for key, parameter in net.collect_params().items():
        if key.endswith(('running_mean', 'beta')):  # otherwise thresholds are 0, and so are exact sums before them
            parameter.set_data(nd.random.normal(scale=0.3, shape=parameter.shape))
        elif key.endswith('_scale'):  # of SYQ
            parameter.set_data(nd.random.uniform(0.5, 2, parameter.shape))
        elif key.endswith('_basis') and parameter.shape == (2,):  # of the activations of LQ-Net
            parameter.set_data(nd.array([0.5, 0.8]))
    report, prefix = convert(net, (1, 3, 16, 16))
    assert [node['op'] for node in operators(prefix)] == [NAME] and not report.left and report.binary_layers == 16
    x = nd.random.normal(shape=(2, 3, 16, 16))
    expected = net(x).asnumpy()
    np.testing.assert_allclose(bmx.Session(prefix)(x.asnumpy()), expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())


@pytest.mark.parametrize('name', FLOAT_ACTIVATIONS)
def test_networks_with_more_bits_have_nothing_to_convert_except_float_layers(name, convert):
    net = initialized(get_model(name, classes=10, initial_layers='thumbnail', **of_size(name, 16)), (1, 3, 16, 16), mx.init.Xavier())
    if name == 'resnet18_bwn':  # its activations are float, and its signs part of float weights
        report, prefix = convert(net, (1, 3, 16, 16))
        assert report.binary_layers == 0
        assert [operation.name for operation in programs(prefix)[0].operations].count('binary_conv') == 0
        return
    with pytest.raises(UserError, match='nothing to convert: .* cannot be packed'):
        convert(net, (1, 3, 16, 16))


@pytest.mark.parametrize('name', [name for name in OF_ONE_DEPTH if name != 'alexnet_xnor'])  # it would have 58 million float weights
def test_every_network_of_the_zoo_with_32_bits_becomes_one_operator_that_gives_mxnets_logits(name, convert, long_run):
    bits = {} if name.endswith('_32bit') else {'bits': 32}
    net = get_model(name, classes=10, initial_layers='thumbnail', **bits, **of_size(name, 16, full=long_run))
    net = initialized(net, (1, 3, 16, 16), mx.init.Xavier())
    report, prefix = convert(net, (1, 3, 16, 16))
    assert report.binary_layers == 0 and [node['op'] for node in operators(prefix)] == [NAME]
    x = nd.random.normal(shape=(2, 3, 16, 16))
    expected = net(x).asnumpy()
    np.testing.assert_allclose(bmx.Session(prefix)(x.asnumpy()), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_reference_network_gives_its_logits(convert, tmp_path):
    known = read_reference_network()
    mx.nd.save(str(tmp_path / 'reference.params'), known['exported'])
    net = get_model('meliusnet22', classes=40)
    bmx.load_reference_parameters(net, str(tmp_path / 'reference.params'))
    net.hybridize()
    net(known['x'])
    _, prefix = convert(net, (1, 3, 224, 224), verify=False)
    np.testing.assert_allclose(reference.run(programs(prefix)[0], [known['x'].asnumpy()])[0], known['logits'], atol=1e-3)
    np.testing.assert_allclose(imported(prefix)(known['x']).asnumpy(), known['logits'], atol=1e-3)
    np.testing.assert_allclose(bmx.Session(prefix)(known['x'].asnumpy()), known['logits'], atol=1e-3)


def test_packed_meliusnet22_is_smaller_than_the_paper_says(convert):
    net = initialized(get_model('meliusnet22'), (1, 3, 32, 32))
    report, prefix = convert(net, (1, 3, 32, 32), verify=False)
    assert report.size_after == os.path.getsize(f'{prefix}-0000.params') <= 4_065_568
    halved, _ = convert(net, (1, 3, 32, 32), half=True)
    assert halved.size_after < report.size_after - 1_500_000 and 0 < halved.verification.largest_deviation < 2e-3


@pytest.mark.parametrize('layout', [thresholds.PLAIN, thresholds.BLOCKED])
def test_inputs_at_the_tie_fall_on_the_side_of_mxnets_layer(layout, convert):
    shape = (1, 64, 16, 16)
    identity = [nn.Conv2D(64, 1, use_bias=False)] if layout == thresholds.BLOCKED else []
    net = initialized(sequence(*identity, nn.BatchNorm(), bmx.BinaryConv2D(32, 3, padding=1)), shape)
    if identity:
        net[0].weight.set_data(nd.array(np.eye(64)[:, :, None, None]))
    parameters = {kind: getattr(net[-2], kind) for kind in ('gamma', 'beta', 'running_mean', 'running_var')}
    for kind, parameter in parameters.items():
        parameter.set_data(nd.random.uniform(0.5, 2, shape=64) if kind == 'running_var' else nd.random.normal(shape=64))
    report, prefix = convert(net, shape)
    threshold = next(operation for operation in programs(prefix)[0].operations if operation.name == 'threshold').arrays['threshold']
    steps = np.arange(-128, 128, dtype=np.float32).reshape(1, 1, 16, 16)
    x = (threshold[None, :, None, None] + steps * np.spacing(np.abs(threshold))[None, :, None, None]).astype(np.float32)
    np.testing.assert_array_equal(imported(prefix)(nd.array(x)).asnumpy(), net(nd.array(x)).asnumpy())


# --- single layers -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    'layer, shape',
    [
        (lambda: bmx.QConv2D(64, 3, padding=1), (2, 64, 7, 7)),
        (lambda: bmx.QConv2D(8, 3, padding=1), (1, 3, 1, 1)),
        (lambda: bmx.QConv2D(8, 5, padding=2, pad_value=0), (1, 3, 4, 4)),
        (lambda: bmx.QConv2D(8, 3, strides=2, padding=1, pad_value=1, no_offset=True), (1, 33, 6, 7)),
        (lambda: bmx.QConv2D(20, (3, 2), strides=(1, 2), padding=(1, 0), dilation=2, groups=4), (2, 20, 9, 8)),
        (lambda: bmx.QConv2D(8, 3, apply_scaling=True, use_bias=True, activation='relu'), (1, 16, 5, 5)),
        (lambda: bmx.QConv1D(40, 5, strides=2, padding=3, dilation=2, groups=2), (2, 36, 30)),
        (lambda: bmx.QConv1D(8, 3, padding=1, pad_value=0, no_offset=True, use_bias=True), (1, 64, 5)),
        (lambda: bmx.QDense(10), (3, 50)),
        (lambda: bmx.QDense(10, no_offset=True, use_bias=True), (2, 5, 3, 3)),
        (lambda: bmx.BinaryConv2D(16, 3, padding=1), (2, 8, 5, 5)),
    ],
)
def test_single_layers_become_packed_blocks(layer, shape):
    layer = layer()
    layer.initialize(mx.init.Normal())
    packed = bmx.deploy(layer, shape)
    for batch in (shape[0], 4):
        x = nd.array(signs(batch, *shape[1:]))
        np.testing.assert_allclose(packed(x).asnumpy(), layer(x).asnumpy(), rtol=1e-6)


def test_dense_layers_that_read_bits_are_packed():
    layer = bmx.QDense(7, encoding='bit')
    layer.initialize(mx.init.Normal())
    x = nd.array(signs(4, 40) > 0)
    np.testing.assert_array_equal(bmx.deploy(layer, (4, 40))(x).asnumpy(), layer(x).asnumpy())


def test_weights_of_zero_count_as_positive():
    layer = bmx.QConv2D(4, 1)
    layer.initialize(mx.init.Zero())
    x = nd.array(signs(1, 8, 2, 2))
    np.testing.assert_array_equal(bmx.deploy(layer, x.shape)(x).asnumpy(), layer(x).asnumpy())


@pytest.mark.parametrize(
    'layer, shape, words',
    [
        (lambda: bmx.QConv3D(4, 3, bits=2, quantization='dorefa'), (1, 3, 8, 8, 8), 'it has three axes and numbers of several bits'),
        (lambda: bmx.QConv2D(4, 3, bits=2, quantization='dorefa'), (1, 3, 8, 8), 'its weights have 2 bits'),
        (lambda: bmx.BinaryConv2D(4, 3, padding=1, in_channels=3, weight_bits=32), (1, 3, 8, 8), 'its weights have 32 bits'),
        (lambda: bmx.QConv2D(4, 3, padding=1, pad_value=0.5), (1, 3, 8, 8), 'it pads with 0.5'),
        (
            lambda: sequence(nn.Dense(3), nn.HybridLambda('softsign')),
            (1, 8),
            'no binary layers, and .* cannot be packed, the operator softsign has',
        ),
        (lambda: nn.Dropout(0.5), (1, 8), 'the network does nothing with its input'),
    ],
)
def test_layers_that_cannot_be_packed_say_why(layer, shape, words):
    layer = layer()
    layer.initialize()
    with pytest.raises(UserError, match=f'nothing to convert: .*{words}'):
        bmx.deploy(layer, shape)


# --- other networks -------------------------------------------------------------------------------------------------------------------


def check_whole(net, shape, convert, left=(), packed=1, atol=1e-4, x=None):
    """Convert with verification; compare outputs; the operators that stay are those of `left`."""
    report, prefix = convert(net, shape)
    assert report.packed_operators == packed and sum(node['op'] in (NAME, 'Custom') for node in operators(prefix)) == packed
    assert [node['op'] for node in operators(prefix) if node['op'] != NAME] == list(left)
    assert report.verification.binary_layers == report.binary_layers
    x = nd.random.normal(shape=shape) if x is None else x
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), atol=atol, rtol=1e-4)
    return report


class Everything(nn.HybridBlock):
    """All that can be packed, in ways in which the zoo does not use it."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.stem = sequence(nn.Conv2D(12, 3, padding=1), nn.BatchNorm(scale=False), nn.Activation('relu'))
            self.act = bmx.QActivation()
            self.conv = bmx.QConv2D(12, 3, padding=1, apply_scaling=True, use_bias=True)
            self.dense = bmx.QDense(12, no_offset=True)
            self.pools = nn.HybridSequential()
            self.pools.add(nn.MaxPool2D(3, 2, 1), nn.AvgPool2D(3, 2, 1, ceil_mode=True), nn.AvgPool2D(2, 2, count_include_pad=False))
            self.output = nn.Dense(5)

    def hybrid_forward(self, F, x):
        x = self.stem(x)
        a = self.act(x - 0.25)
        pooled = self.act.forward(F.Pooling(a, kernel=(2, 2), stride=(1, 1), pool_type='max'))  # a sign of signs
        y = self.conv(F.Dropout(F.concat(F.slice_axis(a, axis=1, begin=4, end=12), F.slice_axis(a, axis=-3, begin=0, end=-8), dim=1)))
        parts = F.SliceChannel(y, num_outputs=3, axis=1)
        y = F.concat(parts[2], parts[0], parts[1], dim=-3)
        y = F.reshape(F.transpose(F.reshape(y, shape=(0, -4, 3, -1, -2)), axes=(0, 2, 1, 3, 4)), shape=(0, -3, -2))
        y = F.add_n(y, x, a) * 0.5 + 1 - 0.25
        y = 2 - y / 4
        vectors = [F.flatten(pool(y)) for pool in self.pools] + [F.reshape(pooled, shape=(0, -1))]
        vectors = [self.dense(self.act(F.slice_axis(vector, axis=1, begin=0, end=48))) for vector in vectors]
        return self.output(F.identity(F.concat(*vectors, dim=1)))


def test_everything_that_can_be_packed_becomes_one_operator(convert):
    check_whole(initialized(Everything(), (2, 3, 6, 6)), (2, 3, 6, 6), convert, x=nd.random.normal(shape=(2, 3, 6, 6)))


def test_float_layer_with_binary_weights_keeps_its_input(convert):
    net = initialized(sequence(nn.Conv2D(8, 3), bmx.QConv2D(8, 3, padding=1), bmx.BinaryConv2D(8, 3)), (1, 3, 9, 9))
    report, prefix = convert(net, (1, 3, 9, 9))
    assert [operation.name for operation in programs(prefix)[0].operations] == ['conv', 'conv', 'threshold', 'binary_conv']


class Cut(nn.HybridBlock):
    """A part of a map, as ``begin`` and ``end`` of the operator slice, between two binary convolutions."""

    def __init__(self, begin, end):
        super().__init__()
        self.first, self.second = bmx.BinaryConv2D(8, 3, strides=2, padding=2), bmx.BinaryConv2D(8, 3, padding=1)
        self.limits = dict(begin=begin, end=end)

    def hybrid_forward(self, F, x):
        return self.second(F.slice(self.first(x), **self.limits))


@pytest.mark.parametrize('begin', [(None, None, 1, 1), (0, 0, 2, 0)])
def test_a_map_without_its_first_rows_and_columns_is_packed_for_every_size(begin, convert):
    net = initialized(Cut(begin, (None,) * 4), (1, 3, 10, 10))
    check_whole(net, (1, 3, 10, 10), convert, x=nd.random.normal(shape=(2, 3, 9, 14)), atol=0)


@pytest.mark.parametrize('begin, end', [((None, None, 1, 1), (None, None, 3, None)), ((None, None, -4, 1), (None,) * 4)])
def test_other_parts_of_a_map_stay_between_packed_operators(begin, end, convert):
    check_whole(initialized(Cut(begin, end), (1, 3, 10, 10)), (1, 3, 10, 10), convert, left=['slice'], packed=2)


def test_foreign_operators_stay_between_packed_ones(convert):
    binary = lambda: bmx.BinaryConv2D(8, 3, padding=1)  # noqa: E731
    layers = nn.Conv2D(8, 3), binary(), nn.Activation('softsign'), nn.BatchNorm(), binary(), nn.Flatten(), nn.Dense(3)
    net = initialized(sequence(*layers), (1, 3, 8, 8))
    report = check_whole(net, (1, 3, 8, 8), convert, left=['Activation'], packed=2)
    reason = 'the activation softsign has no packed form; relu, sigmoid, tanh have one'
    assert [(left.operator, left.reason) for left in report.left] == [('Activation', reason)]
    assert 'softsign' in str(report) and json.dumps(report.to_json())


def test_a_value_that_leaves_a_region_and_returns_to_it_makes_two_regions(convert):
    class Net(nn.HybridBlock):
        def __init__(self):
            super().__init__()
            self.first, self.second = bmx.BinaryConv2D(8, 3, padding=1), bmx.BinaryConv2D(8, 3, padding=1)

        def hybrid_forward(self, F, x):
            y = self.first(x)
            return self.second(y + F.softsign(y) - 30) + y

    check_whole(initialized(Net(), (1, 8, 6, 6)), (1, 8, 6, 6), convert, left=['softsign'], packed=2)


def test_k_bit_layers_stay_beside_packed_ones(convert):
    net = sequence(
        nn.Conv2D(8, 3),
        bmx.ScaledBinaryConv2D(8, 3, padding=1),
        nn.BatchNorm(),
        bmx.BinaryConv2D(8, 3),
        bmx.QActivation(2, 'dorefa'),
        bmx.QConv2D(8, 3, bits=2, quantization='dorefa'),
        nn.Dense(3),
    )
    report, prefix = convert(initialized(net, (2, 3, 12, 12)), (2, 3, 12, 12))
    assert report.packed_operators == 1 and report.binary_layers == report.verification.binary_layers == 2
    assert {'2 bits' in left.reason for left in report.left} == {True, False}
    x = nd.random.normal(shape=(2, 3, 12, 12))
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)


class TwoInputs(nn.HybridBlock):
    def __init__(self):
        super().__init__()
        self.left, self.right = bmx.BinaryConv2D(8, 3), bmx.BinaryConv2D(8, 3)

    def hybrid_forward(self, F, x, y):
        return F.concat(self.left(x), self.right(y), dim=1), self.left(x)


def test_networks_with_several_inputs_and_outputs(export, tmp_path):
    x, y = nd.random.normal(shape=(1, 4, 6, 6)), nd.random.normal(shape=(1, 5, 6, 6))
    net = TwoInputs()
    net.initialize()
    net.hybridize()
    expected = net(x, y)
    files, prefix = export(net), tmp_path / 'packed'
    shapes = {'data0': x.shape, 'data1': y.shape}
    report = bmx.convert(*files, prefix, shapes)
    assert report.packed_operators == 1
    for results in (imported(prefix, shapes)(x, y), bmx.deploy(net, shapes)(x, y), bmx.Session(prefix)(x.asnumpy(), y.asnumpy())):
        for result, wanted in zip(results, expected):
            np.testing.assert_array_equal(np.asarray(result.asnumpy() if isinstance(result, nd.NDArray) else result), wanted.asnumpy())
    with pytest.raises(UserError, match='lacks data0, data1.*shape of each input'):
        bmx.convert(*files, prefix, x.shape)
    with pytest.raises(UserError, match='unknown there: data1'):
        bmx.convert(*files, prefix, {'data0': x.shape})


def test_packed_networks_take_other_batches_and_sizes(convert):
    layers = nn.Conv2D(16, 3, 2), nn.BatchNorm(), bmx.BinaryConv2D(16, 3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(4)
    net = initialized(sequence(*layers), (1, 3, 9, 9))
    _, prefix = convert(net, (1, 3, 9, 9))
    x = nd.random.normal(shape=(3, 3, 21, 14))
    np.testing.assert_allclose(imported(prefix)(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(bmx.Session(prefix)(x.asnumpy()), net(x).asnumpy(), rtol=1e-4, atol=1e-4)


def test_module_trains_exports_and_loads(tmp_path):
    data = mx.sym.var('data')
    symbol = mx.sym.SoftmaxOutput(sequence(bmx.BinaryConv2D(8, 3), nn.Flatten(), nn.Dense(3))(data), name='softmax')
    module = mx.mod.Module(symbol)
    module.bind([('data', (2, 3, 6, 6))], [('softmax_label', (2,))])
    module.init_params(mx.init.Normal(1))
    module.save_checkpoint(str(tmp_path / 'net'), 0)
    files = tmp_path / 'net-symbol.json', tmp_path / 'net-0000.params'
    report = bmx.convert(*files, tmp_path / 'packed', (2, 3, 6, 6))
    assert [left.operator for left in report.left] == ['SoftmaxOutput']
    packed = mx.mod.Module(*[mx.sym.load(str(tmp_path / 'packed-symbol.json'))], label_names=['softmax_label'])
    packed.bind([('data', (2, 3, 6, 6))], [('softmax_label', (2,))], for_training=False)
    packed.set_params(*mx.model.load_checkpoint(str(tmp_path / 'packed'), 0)[1:])
    batch = mx.io.DataBatch([nd.random.normal(shape=(2, 3, 6, 6))], [nd.zeros(2)])
    outputs = []
    for each in (module, packed):
        each.forward(batch, is_train=False)
        outputs.append(each.get_outputs()[0].asnumpy())
    np.testing.assert_allclose(*outputs, rtol=1e-4, atol=1e-6)


@pytest.fixture
def traced_and_lowered(export):
    """A network of a binary convolution and a dense layer, its one program, and inputs."""
    shape = (1, 3, 8, 8)
    symbol, params = export(initialized(sequence(bmx.BinaryConv2D(8, 3), nn.Dense(3)), shape))
    network, inputs = Network(load_symbol(symbol), read_arrays(params), {'data': shape}), {'data': np.random.randn(*shape).astype('f')}
    folded = FoldedBatchNorms(network, inputs)
    (lowered,) = (lower(network, region.nodes, region.outputs, folded) for region in divide(network, folded).regions)
    assert verify(network, [lowered], inputs).binary_layers == 1
    return network, lowered, inputs


def with_weight(lowered, name, change):
    """The same with other weights of the operations of a name."""
    operations = [
        dataclasses.replace(operation, arrays={**operation.arrays, 'weight': change(operation.arrays['weight'])})
        if operation.name == name
        else operation
        for operation in lowered.program.operations
    ]
    return dataclasses.replace(lowered, program=dataclasses.replace(lowered.program, operations=operations))


def test_verification_names_the_layer_that_differs(traced_and_lowered):
    network, lowered, inputs = traced_and_lowered

    def flip_one_of_each_filter(weight):
        weight = weight.copy()
        weight[:, 1, 1, 0] = ~weight[:, 1, 1, 0]
        return weight

    wrong = with_weight(lowered, 'binary_conv', flip_one_of_each_filter)
    with pytest.raises(UserError, match=r'node .*qconv\d+_fwd: 288 of 288 values differ'):
        verify(network, [wrong], inputs)


@pytest.mark.parametrize('wrong', [np.nan, np.inf])
def test_verification_refuses_a_program_that_gives_no_finite_numbers(wrong, traced_and_lowered):
    network, lowered, inputs = traced_and_lowered
    wrong = with_weight(lowered, 'conv', lambda weight: np.full_like(weight, wrong))
    with pytest.raises(UserError, match=r'node .*dense\d+_fwd: values differ from those of MXNet'):
        verify(network, [wrong], inputs)


def test_networks_exported_without_the_sign_mark_are_packed_identically(small, tmp_path):
    symbol, params = small
    bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))
    old = symbol.read_text().replace('"__bmx_sign__": "1"', '"__other__": "1"')
    assert old.count('"__other__"') == 2
    symbol.write_text(old)
    bmx.convert(symbol, params, tmp_path / 'old', (1, 3, 8, 8))
    for suffix in ('-symbol.json', '-0000.params'):
        assert (tmp_path / f'old{suffix}').read_bytes() == (tmp_path / f'packed{suffix}').read_bytes()


def test_one_bit_that_is_not_the_sign_is_not_packed(convert):
    layers = bmx.BinaryConv2D(8, 3), bmx.QActivation(1, 'dorefa'), bmx.QConv2D(8, 3, no_offset=True)
    report, _ = convert(initialized(sequence(*layers), (1, 3, 8, 8)), (1, 3, 8, 8))
    assert 'quantizes to 1 bits by dorefa; the sign can be packed, and one or two bits by round' in str(report)


def test_activation_without_a_marked_start_is_not_packed(small, tmp_path):
    symbol, params = small
    symbol.write_text(symbol.read_text().replace('"activation_input"', '"other"'))
    report = bmx.convert(symbol, params, tmp_path / 'packed', (1, 3, 8, 8))
    assert 'the start of the activation is not marked' in str(report) and report.binary_layers == 0


# --- the command ----------------------------------------------------------------------------------------------------------------------


def test_command_prints_the_report_as_text_or_json(small, run, tmp_path):
    arguments = ['convert', *small, tmp_path / 'packed', '--input-shape', '1,3,8,8']
    status, output, _ = run(*arguments)
    assert status == 0 and '1 binary layers became 1 packed' in output and 'verified on a sample' in output
    status, output, _ = run(*arguments, '--no-verify', '--half', '--json')
    report = json.loads(output)
    assert status == 0 and report['packed_operators'] == 1 and report['verification'] is None and report['half']
    status, output, _ = run('convert', *small, tmp_path / 'packed-symbol.json', '--input-shape', 'data=1,3,8,8')
    assert status == 0 and sorted(path.name for path in tmp_path.glob('packed*')) == ['packed-0000.params', 'packed-symbol.json']


def test_command_takes_the_prefix_of_both_files_or_their_names(small, run, tmp_path):
    symbol, params = small
    for names in (['net'], ['net-symbol.json'], [symbol, params]):
        source = [tmp_path / name for name in names]
        assert run('convert', *source, tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0
        assert bmx.Session(tmp_path / 'packed').input_shapes == [(None, 3, 8, 8)]
        for written in tmp_path.glob('packed*'):
            written.unlink()
    params.rename(tmp_path / 'net-0007.params')
    assert run('convert', symbol, tmp_path / 'net-0007.params', tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0


def test_command_takes_the_shape_from_the_summary_and_stores_it_in_the_symbol(small, run, tmp_path):
    assert 'give the shape of the input with --input-shape' in run('convert', *small, tmp_path / 'packed')[2]
    assert 'there is no folder' in run('convert', *small, tmp_path / 'none' / 'packed', '--input-shape', '1,3,8,8')[2]
    spec = {'size': 8, 'resize': 9, 'channels': 3, 'mean': [0, 0, 0], 'std': [1, 1, 1]}
    (tmp_path / 'net-summary.json').write_text(json.dumps({'input': spec, 'class_names': ['a']}))
    assert run('convert', *small, tmp_path / 'packed')[0] == 0
    assert bmx.Session(tmp_path / 'packed').class_names == ['a']
    assert not (tmp_path / 'packed-summary.json').exists()
    (tmp_path / 'net-summary.json').rename(tmp_path / 'packed-summary.json')
    assert run('convert', *small, tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0
    assert not (tmp_path / 'packed-summary.json').exists(), 'that of another network'
    assert bmx.Session(tmp_path / 'packed').class_names is None


def test_predict_gives_the_same_probabilities_for_a_packed_network(export, run, tmp_path):
    files = export(initialized(sequence(bmx.BinaryConv2D(8, 3), nn.GlobalAvgPool2D(), nn.Dense(3)), (1, 3, 8, 8)))
    assert run('convert', *files, tmp_path / 'packed', '--input-shape', '1,3,8,8')[0] == 0
    cv2.imwrite(str(tmp_path / 'image.png'), np.random.randint(0, 255, size=(9, 9, 3)))
    results = [run('predict', tmp_path / name, tmp_path / 'image.png', '--input-size', 8, '--json') for name in ('net', 'packed')]
    expected, predicted = ([row['probability'] for row in json.loads(result[1])['predictions'][0]['top']] for result in results)
    np.testing.assert_allclose(predicted, expected, rtol=1e-4)
