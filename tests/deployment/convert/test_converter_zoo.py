"""Conversion of every network of the zoo.

Whole networks are compared layer by layer on equal inputs, by the interpreter and by the engine, because a value close to a
threshold may fall on either side of it by the order of a sum; only the reference network has no such value.
"""

import dataclasses
import json
import os

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from support.conversions import imported, operators, programs
from support.long_runs import some_long
from support.networks import FLOAT, OF_ONE_DEPTH, cases, of_size
from support.reference_network import read_reference_network
from support.small_networks import initialized

import bmx_melius as bmx
from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import REAL_KIND, Value
from bmx_melius.deployment.program.packed_operator import NAME
from bmx_melius.deployment.program.program import Program
from bmx_melius.graph.tracing import load_symbol
from bmx_melius.nn import marks
from model_zoo import get_model, takes_option
from model_zoo.quicknet import QuickNet
from model_zoo.residual import ResidualNetwork

pytest_plugins = ['support.conversions']  # its fixtures

LAYERS_OF_OTHERS = 'alexnet_xnor', 'meliusnetb', 'meliusnetc', 'binary_densenet37_dilated', 'resnet18_recu'  # or large
DENORMAL = 1e-40
SMALL = 1, 3, 16, 16
FLOAT_ACTIVATIONS = ('resnet18_bwn', 'resnet18_ttq')  # networks with weights of one or two bits, but no binary layers in the engine
TWO_BITS = ('resnet18_dorefa_w2a2', 'resnet18_hwgq', 'resnet18_lqnet_w1a2', 'resnet18_syq_w1a2')  # of activations
LOW_BIT = FLOAT_ACTIVATIONS + TWO_BITS
REAL_INPUTS = {'binary_alexnet': 0, 'binary_vgg11': 0, 'binet18': 16}  # of some layers with binary weights, and the binary layers
ADAPTIVE = ('resnet18_adabin', 'resnet20_adabin', 'vgg_small_adabin')  # with sums of windows beside binary convolutions
BASES = {'resnet18_abcnet': 5 * 19, 'groupnet18': 5 * 19, 'resnet18_cbcn': 16, 'resnet18_benn': 2 * 16}  # and their binary layers
FEW_BIT_GATES = {'pokebnn_0_5': 48}  # and the binary layers, scaled by their weights
OF_OTHER_LAYERS = {*LOW_BIT, *ADAPTIVE, *BASES, *REAL_INPUTS, *FEW_BIT_GATES}


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
        if '_stage' in name and not isinstance(net, (ResidualNetwork, QuickNet)):
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
        *cases([name for name in OF_ONE_DEPTH if name not in FLOAT and name not in OF_OTHER_LAYERS], None, long=LAYERS_OF_OTHERS),
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


def check_one_operator(net, shape, convert, binary_layers, **tolerance):
    """Convert a network to one operator with so many binary layers; with a tolerance (`atol` of the largest), compare its logits."""
    report, prefix = convert(net, shape)
    assert report.binary_layers == binary_layers and [node['op'] for node in operators(prefix)] == [NAME] and not report.left
    x = nd.random.normal(shape=(2, *shape[1:]))
    expected = net(x).asnumpy()
    if tolerance:
        atol = tolerance['atol'] * np.abs(expected).max()
        np.testing.assert_allclose(bmx.Session(prefix)(x.asnumpy()), expected, rtol=tolerance['rtol'], atol=atol)


@pytest.mark.parametrize('name', some_long(BASES, 'resnet18_abcnet'))
def test_every_convolution_of_several_binary_bases_is_packed(name, convert):
    members = {'members': 2} if takes_option(name, 'members') else {}
    net = get_model(name, classes=10, initial_layers='thumbnail', **of_size(name, 16), **members)
    check_one_operator(initialized(net, SMALL, mx.init.Xavier()), SMALL, convert, BASES[name])


@pytest.mark.parametrize('name', REAL_INPUTS)
def test_networks_with_binary_weights_of_real_inputs_become_one_operator_that_gives_mxnets_logits(name, convert):
    net = initialized(get_model(name, classes=10, **of_size(name, 64)), (1, 3, 64, 64), mx.init.Xavier())
    check_one_operator(net, (1, 3, 64, 64), convert, REAL_INPUTS[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('same_padding', [False, True])
@pytest.mark.parametrize('name', FEW_BIT_GATES)
def test_networks_with_gates_of_few_bits_become_one_operator_that_gives_mxnets_logits(name, same_padding, convert):
    net = initialized(get_model(name, classes=10, same_padding=same_padding, **of_size(name, 64)), (1, 3, 64, 64), mx.init.Xavier())
    for key, parameter in net.collect_params().items():
        if key.endswith(('gamma', 'beta', 'shift', 'positive', 'slope', 'running_mean')):  # at the start of training factors are 0 and 1
            parameter.set_data(nd.random.normal(0.5, 0.3, parameter.shape))
    check_one_operator(net, (1, 3, 64, 64), convert, FEW_BIT_GATES[name], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', some_long(TWO_BITS, 'resnet18_lqnet_w1a2'))
def test_networks_with_two_bits_become_one_operator_that_gives_mxnets_logits(name, convert):
    net = initialized(get_model(name, classes=10, initial_layers='thumbnail', **of_size(name, 16)), SMALL, mx.init.Xavier())
    for key, parameter in net.collect_params().items():
        if key.endswith(('running_mean', 'beta')):  # otherwise thresholds are 0, and so are exact sums before them
            parameter.set_data(nd.random.normal(scale=0.3, shape=parameter.shape))
        elif key.endswith('_scale'):  # of SYQ
            parameter.set_data(nd.random.uniform(0.5, 2, parameter.shape))
        elif key.endswith('_basis') and parameter.shape == (2,):  # of the activations of LQ-Net
            parameter.set_data(nd.array([0.5, 0.8]))
    quantized_shortcuts = 3 if name in ('resnet18_hwgq', 'resnet18_lqnet_w1a2') else 0
    check_one_operator(net, SMALL, convert, 16 + quantized_shortcuts, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', cases(ADAPTIVE))
def test_networks_of_two_values_that_are_not_opposites_become_one_operator_that_gives_mxnets_logits(name, convert):
    net = initialized(get_model(name, classes=10, **{'initial_layers': 'thumbnail', **of_size(name, 16)}), SMALL, mx.init.Xavier())
    for key, parameter in net.collect_params().items():
        if '_twovalues' in key and not key.endswith('zeros'):
            parameter.set_data(parameter.data() + nd.random.uniform(-0.4, 0.4, (1,)))
        elif key.endswith(('running_mean', 'beta')):  # otherwise thresholds are 0, and so are exact sums before them
            parameter.set_data(nd.random.normal(scale=0.3, shape=parameter.shape))
    check_one_operator(net, SMALL, convert, 5 if 'vgg' in name else 18 if '20' in name else 16, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize('name', FLOAT_ACTIVATIONS)
def test_networks_with_float_activations_become_one_operator_of_float_layers(name, convert):
    net = initialized(get_model(name, classes=10, initial_layers='thumbnail', **of_size(name, 16)), SMALL, mx.init.Xavier())
    report, prefix = convert(net, SMALL)
    assert report.binary_layers == 0 and not report.left
    assert [operation.name for operation in programs(prefix)[0].operations].count('binary_conv') == 0


@pytest.mark.parametrize('name', cases(name for name in OF_ONE_DEPTH if name != 'alexnet_xnor'))  # it would have 58 million float weights
def test_every_network_of_the_zoo_with_32_bits_becomes_one_operator_that_gives_mxnets_logits(name, convert, long_run):
    stem, size = ({'initial_layers': 'thumbnail'}, 16) if takes_option(name, 'initial_layers') else ({}, 64)
    net = get_model(name, classes=10, bits=32, **stem, **of_size(name, size, full=long_run))
    check_one_operator(initialized(net, (1, 3, size, size), mx.init.Xavier()), (1, 3, size, size), convert, 0, rtol=1e-4, atol=1e-4)


def test_reference_network_gives_its_logits(packed_reference):
    known, prefix = read_reference_network(), packed_reference
    np.testing.assert_allclose(reference.run(programs(prefix)[0], [known['x'].asnumpy()])[0], known['logits'], atol=1e-3)
    np.testing.assert_allclose(imported(prefix)(known['x']).asnumpy(), known['logits'], atol=1e-3)
    np.testing.assert_allclose(bmx.Session(prefix)(known['x'].asnumpy()), known['logits'], atol=1e-3)


def test_packed_meliusnet22_is_smaller_than_the_paper_says(convert):
    net = initialized(get_model('meliusnet22'), (1, 3, 32, 32))
    report, prefix = convert(net, (1, 3, 32, 32), verify=False)
    assert report.size_after == os.path.getsize(f'{prefix}-0000.params') <= 4_065_568
    halved, _ = convert(net, (1, 3, 32, 32), half=True)
    assert halved.size_after < report.size_after - 1_500_000 and 0 < halved.verification.largest_deviation < 2e-3
