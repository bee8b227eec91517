"""Every registered network: it builds, runs in both modes, exports to stock operators and loads back; names, stems, errors."""

import subprocess
import sys

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from mxnet import nd
from mxnet.gluon import nn
from support.conversions import imported
from support.networks import cases, layers_of, of_size
from support.paths import ROOT

from bmx_melius import BinaryConv2D, ScaledBinaryConv2D, UserError
from model_zoo import get_model, get_model_list
from model_zoo.blocks import BLOCKS
from model_zoo.layer_options import LayerOptions
from model_zoo.stems import STEMS

SMALL = (1, 3, 64, 64)


@pytest.mark.parametrize(
    'name, initial_layers',
    [
        *cases(get_model_list(), None),  # None: the default of the network
        *(('resnet_e18', stem) for stem in STEMS),
        ('meliusneta', 'imagenet'),
        ('meliusneta', 'thumbnail'),
    ],
)
def test_network_gives_the_same_logits_imperatively_hybridized_and_imported(name, initial_layers, tmp_path, long_run):
    size = 16 if initial_layers == 'thumbnail' else 64
    x = nd.random.normal(shape=(1, 3, size, size))
    stem = {'initial_layers': initial_layers} if initial_layers else {}
    net = get_model(name, classes=7, **stem, **of_size(name, size, full=long_run))
    net.initialize()
    imperative = net(x).asnumpy()
    assert imperative.shape == (1, 7)
    net.hybridize()
    np.testing.assert_array_equal(net(x).asnumpy(), imperative)
    net.export(str(tmp_path / 'net'))
    np.testing.assert_array_equal(imported(tmp_path / 'net')(x).asnumpy(), imperative)


def test_exported_network_runs_where_this_project_is_not_imported(tmp_path):
    net = get_model('meliusneta', classes=5)
    net.initialize()
    net.hybridize()
    x = nd.random.normal(shape=SMALL)
    y = net(x).asnumpy()
    net.export(str(tmp_path / 'net'))
    np.save(tmp_path / 'x.npy', x.asnumpy())
    program = ROOT / 'examples' / 'classify_with_stock_mxnet.py'  # it fails if it imported this project
    subprocess.run([sys.executable, '-W', 'ignore', program, 'net', 'x.npy', 'y.npy'], check=True, cwd=tmp_path)
    np.testing.assert_array_equal(np.load(tmp_path / 'y.npy'), y)


def test_hybridizing_before_the_first_forward_changes_nothing():
    x = nd.random.normal(shape=SMALL)
    logits = []
    for first in (False, True):
        mx.random.seed(3)
        net = get_model('meliusnet_flex', block_numbers=(1, 1), transitions=(1 / 2,), classes=3)
        net.initialize()
        net.hybridize(first)
        logits.append(net(x).asnumpy())
    np.testing.assert_array_equal(*logits)


@pytest.mark.parametrize('name', ['meliusnetA', 'meliusneta', 'meliusnet_a', 'MeliusNet_A'])
def test_case_and_underscores_do_not_matter_in_names(name):
    net = get_model(name)
    assert net.output.weight.shape == (1000, 288 + 6 * 64)


def test_gluoncv_knows_the_networks():
    for name in ['meliusnet_a', 'densenet28', 'resnet18_e1', *get_model_list()]:  # the first are names in BMXNet-v2
        assert type(gluoncv.model_zoo.get_model(name, classes=10)) is type(get_model(name))
    assert gluoncv.model_zoo.get_model('meliusnet22', classes=10).output.weight.shape[0] == 10


def test_get_model_builds_networks_of_gluoncv():
    net = get_model('MobileNet0.5', classes=3)
    assert type(net) is type(gluoncv.model_zoo.get_model('mobilenet0.5')) and net.output.weight.shape[0] == 3


def test_a_network_of_gluoncv_with_the_name_of_a_binary_one_of_bmxnet_is_noted(caplog):
    for name, binary in (('resnet18_v1', 'binary_resnet18_v1'), ('VGG11_bn', 'binary_vgg11'), ('mobilenet0.5', None)):
        caplog.clear()
        get_model(name, classes=3)
        assert [record.getMessage().rpartition(' is ')[2] for record in caplog.records] == ([binary] if binary else [])


OPTIONS = [  # options as by flags of BMXNet-v2, and facts of the binary layers: activation (bits, method), weights (bits, method), scaling
    ('meliusnet_flex', {}, (1, 'sign'), (1, 'sign'), False),
    ('meliusnet_flex', {'activation_bits': 2}, (2, 'round'), (1, 'sign'), False),
    ('meliusnet_flex', {'activation_bits': 32}, (32, 'relu'), (1, 'sign'), False),
    ('meliusnet_flex', {'bits': 2}, (2, 'round'), (2, 'dorefa'), False),
    ('meliusnet_flex', {'bits': 2, 'activation_bits': 1, 'activation_method': 'approx_sign'}, (1, 'approx_sign'), (2, 'dorefa'), False),
    ('meliusnet_flex', {'weight_quantization': 'approx_sign'}, (1, 'sign'), (1, 'approx_sign'), False),
    ('meliusnet_flex', {'approximation': 'binet'}, (1, 'sign'), (1, 'sign'), True),
    ('meliusnet_flex', {'approximation': 'xnor'}, (1, 'sign'), (1, 'sign'), True),
    ('birealnet18', {'approximation': 'xnor'}, (1, 'approx_sign'), (1, 'sign'), True),
]


@pytest.mark.parametrize('name, options, activation, weights, scaling', OPTIONS)
def test_options_replace_the_quantizers_of_all_binary_layers(name, options, activation, weights, scaling):
    flex = {'block_numbers': (1, 1), 'transitions': (0.5,)} if name == 'meliusnet_flex' else {}
    net = get_model(name, classes=3, init_features=32, initial_layers='thumbnail', **flex, **options)
    layers = layers_of(net, BinaryConv2D)
    assert len(layers) >= 4
    for layer in layers:
        assert (layer.qact.bits, layer.qact.method) == activation
        settings = layer.qconv.binarization
        assert ((settings.bits, settings.quantization), settings.apply_scaling) == (weights, scaling)
        assert isinstance(layer, ScaledBinaryConv2D) == (options.get('approximation') == 'xnor')
    net.initialize()
    assert net(nd.random.normal(shape=(1, 3, 16, 16))).shape == (1, 3)


@pytest.mark.parametrize(
    'name, options, message',
    [
        ('meliusnet22', {'approximation': 'abc'}, "unknown approximation 'abc'"),
        ('meliusnet22', {'bits': 32, 'activation_bits': 1}, 'use bits=1 and weight_bits=32'),
        ('meliusnet22', {'downsample_structure': 'bn,conv'}, "'conv' is not one of bn, relu"),
        ('meliusnet22', {'downsample_structure': 'bn,relu'}, 'must have one fp_conv or q_conv, not 0'),
        ('meliusnet22', {'downsample_structure': 'fp_conv:0'}, "'fp_conv:0' is not one of"),
        ('meliusnet22', {'downsample_structure': 'fp_conv:7'}, 'cannot have 7 groups in fp_conv'),
        ('resnet_e18', {'slices': 3}, 'slices must be 1, 2, 4 or 8'),
        *(('pokebnn_1_0', {'init_features': number}, 'init_features must be from 8 to 16 or a multiple of 16') for number in (0, 7, 24)),
        ('binet18', {'slices': 2}, 'for networks whose blocks have one convolution'),
        ('resnet_e18', {'binary_shortcut': True, 'shortcut_groups': 2}, 'shortcut_groups=2'),
        ('meliusnet22', {'downsample_structure': 'bn,q_conv,relu,cs:4,fp_conv:2'}, 'must have one fp_conv or q_conv, not 2'),
        ('meliusnet22', {'pretrained': True}, 'load_reference_parameters'),
        ('meliusnet22', {'initial_layers': '7x7'}, 'unknown initial_layers .*grouped_stem, imagenet, mobilenet, thumbnail'),
        ('mobilenet0.5', {'initial_layers': 'imagenet'}, 'mobilenet0.5 is a network of GluonCV, which does not take .*initial_layers'),
        ('alexnet_xnor', {'input_size': 16}, 'input_size=16 is too small'),
        ('alexnet_xnor', {'same_padding': True}, 'cannot pad as TensorFlow does'),
        ('alexnet_xnor', {'same_padding': True, 'initial_layers': 'alexnet_same'}, 'cannot pad as TensorFlow does'),
        # the architecture of a named network is not an argument
        ('meliusnet22', {'block_numbers': (1, 1)}, 'meliusnet22 takes no argument block_numbers'),
        ('resnet_e18', {'variant': (1, 1)}, 'resnet_e18 takes no argument variant'),
        ('resnet_e18', {'stem_pool': (1, 1)}, 'resnet_e18 takes no argument stem_pool'),
        ('meliusnet_flex', dict(transitions=(1 / 2,)), '4 stages need 3 transitions, not 1'),
        ('meliusnet_flex', dict(transitions=(1 / 100, 1 / 2, 1 / 2)), 'leaves none of 320 channels'),
        ('meliusnet_flex', dict(block='dens'), "unknown block 'dens'; known: improvement, dense, naive"),
        ('meliusnet_flex', dict(stem_pool=4), 'windows of 2 or 3, not 4'),
        ('meliusnet_flex', dict(dilations=(1, 2)), '4 stages need 4 dilations, not 2'),
        ('meliusnet_flex', dict(groups=3), 'cannot have 3 groups'),
        ('meliusnet_flex', dict(groups=2, init_features=40, growth_rate=20), '120 to 64 channels cannot have 16 groups'),
        ('resnet18_benn', {'members': 0}, 'members must be a positive number'),
        ('resnet18_benn', {'vote': 'loud'}, "vote must be logits, softmax, hard, not 'loud'"),
        ('resnet18_benn', {'members': 2, 'alphas': [1]}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': 2, 'alphas': [0, 0]}, 'alphas must be 2 finite numbers, at least 0 and not all 0'),
        ('resnet18_benn', {'members': 2, 'alphas': [2, -1]}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': 2, 'alphas': [1, 'a']}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': 2, 'alphas': [1, True]}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': 2, 'alphas': [np.inf, 1]}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': 2, 'alphas': 3}, 'alphas must be 2 finite numbers'),
        ('resnet18_benn', {'members': True}, 'members must be a positive number'),
        ('resnet18_benn', {'vote': [1]}, 'vote must be logits, softmax, hard'),
    ],
)
def test_options_that_make_no_network_are_refused(name, options, message):
    with pytest.raises(UserError, match=message):
        get_model(name, classes=3, **options)


def test_downsample_structure_replaces_the_layers_of_transitions():
    net = get_model(
        'densenet_flex', block_numbers=(1, 1), transitions=(0.5,), downsample_structure='bn,relu,cs:4,fp_conv:2,pool', classes=3
    )
    transition = [type(layer).__name__ for layer in net.features[5]]
    assert transition == ['BatchNorm', 'Activation', 'ChannelShuffle', 'GroupedConv2D', 'AvgPool2D']


def test_unknown_names_are_refused_with_the_known_ones():
    with pytest.raises(ValueError, match='unknown network .*meliusnet23.*meliusnet2[29] or meliusnet2[29] or .*bmx-melius models'):
        get_model('meliusnet23')


@pytest.mark.parametrize(
    'name, other, options',
    [
        *((name, name, {'weight_bits': 32}) for name in ('resnet18_strong_baseline', 'real_to_binary18', 'resnet18_xnor', 'quicknet')),
        *(('meliusnetc', 'meliusnetc', {bits: 32}) for bits in ('bits', 'weight_bits')),  # full precision, and the first of two stages
        ('resnet18_e1', 'resnet_e18', {}),  # names of BMXNet-v2
        ('resnet34_e1', 'resnet_e34', {}),
    ],
)
def test_networks_of_real_weights_and_aliases_have_the_same_parameters(name, other, options):
    names = [
        [(own[len(net.prefix) :], parameter.shape) for own, parameter in net.collect_params().items()]
        for net in (get_model(name), get_model(other, **options))
    ]
    assert names[0] == names[1]


@pytest.mark.parametrize('name', get_model_list())
def test_a_wrong_argument_is_named_with_those_that_the_network_takes(name):
    with pytest.raises(UserError, match=f'^{name} takes no argument depth, width.*; known: classes, .*bits.*prefix'):
        get_model(name, depth=3, bits=1, width=2)


def test_flex_network_takes_fractions_widths_groups_and_growth():
    architecture = {'block_numbers': (2, 1, 1), 'transitions': (1 / 2, 96), 'groups': 2, 'growth_rate': 32, 'init_features': 32}
    net = get_model('meliusnet_flex', **architecture, classes=4, initial_layers='thumbnail')
    net.initialize()
    assert net(nd.ones((1, 3, 8, 8))).shape == (1, 4)
    convolutions = [layer for layer in net.features if isinstance(layer, nn.HybridSequential) and isinstance(layer[-1], nn.Conv2D)]
    # 32 + 2 * 32 = 96 channels, a half of which rounds to 64 (48 is halfway and Python rounds to even); then 64 + 32 = 96, kept at 96
    assert [layer[-1].weight.shape for layer in convolutions] == [(64, 48, 1, 1), (96, 48, 1, 1)]
    assert net.output.weight.shape == (4, 128)


@pytest.mark.parametrize('classes', [0, -1, 2.5, '10'])
def test_a_number_of_classes_that_no_network_can_have_is_refused(classes):
    with pytest.raises(UserError, match='classes must be a positive whole number, or None, not'):
        get_model('meliusnet22', classes=classes)


def test_a_name_that_is_not_a_text_is_refused():
    with pytest.raises(UserError, match='name must be the name of a network, a str, not None'):
        get_model(None)


def test_norm_layer_and_its_arguments_are_used_throughout():
    net = get_model('meliusnet22', norm_layer=nn.BatchNorm, norm_kwargs={'momentum': 0.5})
    norms = layers_of(net, nn.BatchNorm)
    assert len(norms) == 41 and all('momentum=0.5' in repr(layer) for layer in norms)


def made_block(name):
    """A block that appends 8 channels to 16, initialized."""
    block = BLOCKS[name](16, 8, LayerOptions())
    block.initialize()
    return block


def test_block_equals_dense_then_improvement_block_of_the_paper():
    block = made_block('improvement')
    x = nd.random.normal(shape=(2, 16, 5, 5))
    dense = nd.concat(x, block.dense_conv(block.dense_norm(x)), dim=1)
    z = block.improvement_conv(block.improvement_norm(dense))
    expected = nd.concat(dense[:, :16], dense[:, 16:] + z, dim=1)
    np.testing.assert_array_equal(block(x).asnumpy(), expected.asnumpy())


def test_dense_block_appends_new_channels_and_naive_block_improves_all_by_a_residual():
    x = nd.random.normal(shape=(2, 16, 5, 5))
    block = made_block('dense')
    np.testing.assert_array_equal(block(x).asnumpy(), nd.concat(x, block.dense_conv(block.dense_norm(x)), dim=1).asnumpy())
    block = made_block('naive')
    dense = nd.concat(x, block.dense_conv(block.dense_norm(x)), dim=1)
    residual = block.residual_conv(block.residual_norm(dense))
    assert residual.shape == dense.shape == (2, 24, 5, 5)
    np.testing.assert_array_equal(block(x).asnumpy(), (dense + residual).asnumpy())
