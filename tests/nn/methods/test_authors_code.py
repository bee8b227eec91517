"""Layers, blocks and small networks of all methods against arrays of the authors' code, whose padding is 0: values and gradients."""

import dataclasses
import functools
import re

import numpy as np
import pytest
from mxnet.gluon import nn
from support.authors_arrays import assert_same, learned, read_cases
from support.equations import conv
from support.small_networks import sequence

from bmx_melius.nn.layers import QConv2D
from bmx_melius.nn.methods.adabin import AdaBinConv2D
from bmx_melius.nn.methods.bnn import clip_latent_weights
from bmx_melius.nn.methods.cbcn import CirculantConv2D
from bmx_melius.nn.methods.dorefa import DoReFaConv2D
from bmx_melius.nn.methods.group_net import BASES
from bmx_melius.nn.methods.ir_net import IRNetConv2D
from bmx_melius.nn.methods.pokebnn import LEVELS, DPReLU, PokeConv2D
from bmx_melius.nn.methods.recu import ReCUConv2D
from bmx_melius.nn.methods.syq import SYQConv2D
from bmx_melius.nn.methods.ttq import TTQConv2D
from bmx_melius.nn.methods.xnor_net import XNORConv2D
from model_zoo import get_model, pokebnn, quicknet
from model_zoo.padding import padded
from model_zoo.registry import find
from model_zoo.residual import NETWORKS, Residual, ResidualArchitecture, ResidualNetwork
from model_zoo.units import UnitPlace

UNPADDED = {'pad_value': 0}
WARM = {**UNPADDED, 'temperature': 0.25}
LARQ = {'conv_kwargs': UNPADDED, 'norm_kwargs': {'epsilon': 1e-3}, 'same_padding': True}
RESNET = {'initial_layers': 'imagenet', 'init_features': 4, 'conv_kwargs': UNPADDED}
REAL_TO_BINARY = {**LARQ, 'conv_kwargs': {**UNPADDED, 'factor': 1}}


def options_of(name, **changes):
    return dataclasses.replace(NETWORKS[name].options, **changes)


def residual(name, channels, in_channels, stride, total_stride, **changes):
    return Residual((UnitPlace(channels, in_channels, stride, total_stride),), NETWORKS[name], options_of(name, **changes))


def network(name, *layers, classes=5, **changes):
    return ResidualNetwork(ResidualArchitecture(layers, NETWORKS[name]), options_of(name, **changes), classes=classes)


def at(number):
    """The arguments of convolutions of IR-Net, ReCU and AdaBin whose scheduled number, t or tau, is this one from the start."""
    return {**UNPADDED, ('tau_at_start' if number in (0.85, 0.98) else 'slope_at_start'): number}


def mobile_block(name, channels, in_channels, stride, index, **changes):
    network = find(name)
    options = dataclasses.replace(network.options, **changes)
    return network.architecture.block(UnitPlace(channels, in_channels, stride, 2 * stride), options, index)


def small_mobile(name, *widths, **changes):
    network = find(name)
    architecture = dataclasses.replace(network.architecture, widths=widths)
    return network.build(architecture, dataclasses.replace(network.options, conv_kwargs=UNPADDED, **changes), classes=5)


def poke_stem():
    layers = nn.HybridSequential()
    pokebnn.add_stem(layers, pokebnn.PokeBNNOptions(same_padding=True))
    return layers


def poke_block(channels, in_channels, stride=1, **changes):
    options = pokebnn.PokeBNNOptions(conv_kwargs=UNPADDED, same_padding=True, **changes)
    return pokebnn.PokeBlock(UnitPlace(channels, in_channels, stride, 4 * stride), options)


def without_dropout():
    network = find('ds_cnn')
    return network.build(dataclasses.replace(network.architecture, dropout=(0, 0)), network.options, classes=network.classes)


def small_vgg(name, number):
    network = find(name)
    arguments = {key: value for key, value in network.architecture.arguments.items() if key != 'slope_at_start'}
    architecture = dataclasses.replace(network.architecture, arguments=arguments)
    options = dataclasses.replace(network.options, init_features=4, input_size=16, conv_kwargs=at(number))
    return network.build(architecture, options, classes=5)


def stem(name, **changes):
    layers = nn.HybridSequential()
    NETWORKS[name].stem(layers, options_of(name, **changes))
    return layers


def poke_conv(strides=1, **arguments):
    return padded(functools.partial(PokeConv2D, 6, 3, strides, pad_value=0, **arguments), 3, strides, same_padding=True)


def small_quicknet():
    options = quicknet.QuickNetOptions(init_features=8, same_padding=True)
    return quicknet.QuickNet(quicknet.QuickNetArchitecture((1, 1), (8, 16)), options, classes=5)


def xnor_net_plus_unit():
    """A unit whose scales of rows and columns are 1: the authors' library has learned scales of channels only."""
    options = options_of('resnet{}_xnorpp', input_size=20, conv_kwargs=UNPADDED)
    unit = NETWORKS['resnet{}_xnorpp'].unit(UnitPlace(6, 4, 1, 4), options)
    for name in ('beta', 'gamma'):
        getattr(unit[2], name).grad_req = 'null'
    assert len(learned(unit)) == 4
    return unit


# Orders of the authors' parameters as in our blocks.


def of_bnn(names):
    """With the shortcut of a block before the normalization that follows the addition."""
    ordered = [name for name in names if 'downsample' not in name]
    place = ordered.index('layer2.0.bn2.weight')
    return ordered[:place] + [name for name in names if 'downsample' in name] + ordered[place:]


def of_cbcn(names):
    """With the slopes of a block after its shortcut."""
    return sorted(names, key=lambda name: name.startswith('prelu'))


def of_group_net(names):
    """With the parameters of a block by base, and its scales as one array."""
    blocks = list(dict.fromkeys(re.match(r'layer\d+\.\d+\.|', name).group() for name in names))
    ordered = []
    for block in blocks[1:]:
        own = [name for name in names if name.startswith(block)]
        bases = [
            [name for name in own if re.match(rf'{re.escape(block)}(conv|bn){unit}\.{base}\.', name)]
            for base in range(BASES)
            for unit in (1, 2)
        ]
        ordered += [name for name in own if 'gate' in name] + [name for name in own if 'downsample' in name] + sum(bases, [])
        ordered.append(tuple(name for name in own if 'scales' in name))
    outside = [name for name in names if not name.startswith('layer')]
    return [name for name in outside if not name.startswith('fc')] + ordered + [name for name in outside if name.startswith('fc')]


def by_modules(block, *modules):
    """The function that orders names by `modules` in each block of a network, or of the only block; its names begin with the pattern.

    Names of a network of other modules, without blocks, keep their order.
    """

    def order(names):
        def parts(name):
            start = re.match(block, name).group()
            return start, name[len(start) :].partition('.')[0]

        is_network = any(start or module not in modules for start, module in map(parts, names))

        def place(name):
            start, module = parts(name)
            if is_network and not start:
                return names.index(name), 0
            first = next(index for index, other in enumerate(names) if other.startswith(start))
            return first, modules.index(module) if module in modules else 0

        return sorted(names, key=place)

    return order


STAGES = r'(layer\d+\.\d+\.)?'
of_reactnet = by_modules(STAGES, 'move0', 'binary_conv', 'bn1', 'downsample', 'move1', 'prelu', 'move2')
of_ir_net = by_modules(STAGES, 'conv1', 'bn1', 'downsample', 'nonlinear1', 'conv2', 'bn2', 'nonlinear2')
of_reactnet_a = by_modules(
    r'(feature\.\d+\.)?',
    *('move11', 'binary_3x3', 'bn1', 'move12', 'prelu1', 'move13', 'move21', 'binary_pw', 'bn2'),
    *('binary_pw_down1', 'bn2_1', 'binary_pw_down2', 'bn2_2', 'move22', 'prelu2', 'move23'),
)
of_bnext = by_modules(
    r'((?:feature|layer)\d?\.\d+\.)?((Attention|FFN(_\d)?)\.)?',
    *('move', 'binary_conv', 'norm1', 'activation2', 'scale', 'se', 'norm2', 'activation1', 'downsample'),
)


def of_pokebnn(names):
    """With the slopes of each activation between its shifts, and without the code's order of layers beside blocks."""
    ordered = [name for name in names if 'slope' not in name and 'bias_y' not in name]
    for name in names:
        if name.endswith('bias_x'):
            start, place = name[: -len('bias_x')], ordered.index(name)
            ordered[place + 1 : place + 1] = [f'{start}neg_slope', f'{start}pos_slope', f'{start}bias_y']
    return ordered


def of_caffe(layers):
    """The parameters of HWGQ's layers, a shortcut's before the units' beside it."""
    ordered = []
    for layer in layers:
        if isinstance(layer, Residual):
            ordered += [*(learned(layer.shortcut) if layer.shortcut else []), *learned(layer.units)]
        else:
            ordered += of_caffe(layer) if len(layer._children) else learned(layer)
    return ordered


BINARY_WEIGHTS_OF_BNN = re.compile(r'layer\d\.\d\.(conv\d|downsample\.0)\.weight')
ORDERS = dict.fromkeys(('adabin', 'ir_net', 'recu'), of_ir_net)
ORDERS.update(
    {'bnn': of_bnn, 'cbcn': of_cbcn, 'group_net': of_group_net, 'reactnet': of_reactnet, 'reactnet_a': of_reactnet_a, 'bnext': of_bnext}
)
ORDERS['pokebnn'] = of_pokebnn
PARAMETERS = {'hwgq': of_caffe}
CHANGED_WEIGHTS = {  # as after each update
    'bnext': lambda case: {name: np.clip(value, 0, 1) for name, value in case.weights.items() if name.endswith('scale')},
    'bnn': lambda case: {name: np.clip(value, -1, 1) for name, value in case.weights.items() if BINARY_WEIGHTS_OF_BNN.match(name)},
    'xnor_net': lambda case: {'conv.weight': case.arrays['latent']},
}


@pytest.mark.parametrize(
    'file, case, make',
    [
        ('bireal_net', 'block', lambda: residual('birealnet{}', 4, 4, 1, 4, conv_kwargs=UNPADDED)),
        ('bireal_net', 'halving block', lambda: residual('birealnet{}', 8, 4, 2, 8, conv_kwargs=UNPADDED)),
        ('bireal_net', 'network', lambda: network('birealnet{}', 2, 1, 1, 1, **RESNET)),
        ('bnn', 'network', lambda: network('resnet{}_bnn', 4, 4, initial_layers='thumbnail', init_features=4, conv_kwargs=UNPADDED)),
        ('cbcn', 'convolution 1', lambda: CirculantConv2D(12, 3, 1, 1, **UNPADDED)),
        ('cbcn', 'convolution 2', lambda: CirculantConv2D(12, 3, 2, 1, **UNPADDED)),
        ('cbcn', 'block', lambda: residual('resnet{}_cbcn', 8, 8, 1, 4, conv_kwargs=UNPADDED)),
        ('cbcn', 'halving block', lambda: residual('resnet{}_cbcn', 16, 8, 2, 8, conv_kwargs=UNPADDED)),
        ('dorefa', '2 bits', lambda: DoReFaConv2D(6, 3, padding=1, bits=2)),
        ('dorefa', '4 bits', lambda: DoReFaConv2D(6, 3, padding=1, bits=4)),
        ('group_net', 'network', lambda: network('groupnet{}', 4, 2, 2, 2, init_features=4, bits=1)),
        ('group_net', 'first stage', lambda: network('groupnet{}', 4, 2, 2, 2, init_features=4, bits=32)),
        # without the ReLU, the pooling and the classifier after the last stage
        ('hwgq', 'stages', lambda: sequence(*network('resnet{}_hwgq', 4, 4, init_features=8).features[:5])),
        ('ir_net', 'early layer', lambda: IRNetConv2D(6, 3, 1, 1, **at(0.1))),
        ('ir_net', 'late layer', lambda: IRNetConv2D(6, 3, 1, 1, **at(3.0))),
        ('ir_net', 'cifar network', lambda: network('resnet20_irnet', 2, 2, 2, classes=10, conv_kwargs=at(0.1))),
        ('ir_net', 'network', lambda: network('resnet{}_irnet', 2, 2, 2, 2, **{**RESNET, 'conv_kwargs': at(3.0)})),
        ('ir_net', 'vgg', lambda: small_vgg('vgg_small_irnet', 3.0)),
        ('recu', 'early layer', lambda: ReCUConv2D(6, 3, 1, 1, **at(0.85))),
        ('recu', 'late layer', lambda: ReCUConv2D(6, 3, 1, 1, **at(0.98))),
        ('recu', 'cifar network', lambda: network('resnet20_recu', 2, 2, 2, classes=10, conv_kwargs=at(0.85))),
        ('recu', 'network', lambda: network('resnet{}_recu', 2, 2, 2, 2, **{**RESNET, 'conv_kwargs': at(0.98)})),
        ('recu', 'vgg', lambda: small_vgg('vgg_small_recu', 0.98)),
        ('adabin', 'early layer', lambda: AdaBinConv2D(6, 3, 1, 1, **at(0.1))),
        ('adabin', 'late layer', lambda: AdaBinConv2D(6, 3, 1, 1, **at(3.0))),
        ('adabin', 'cifar network', lambda: network('resnet20_adabin', 2, 2, 2, classes=10, conv_kwargs=at(0.1))),
        ('adabin', 'network', lambda: network('resnet{}_adabin', 2, 2, 2, 2, **{**RESNET, 'conv_kwargs': at(3.0)})),
        ('bnext', 'warm block', lambda: mobile_block('bnext_t', 8, 8, 1, 1, conv_kwargs=WARM)),
        ('bnext', 'warm doubling block', lambda: mobile_block('bnext_t', 16, 8, 2, 2, conv_kwargs=WARM)),
        ('bnext', 'cold block', lambda: mobile_block('bnext_t', 8, 8, 1, 1, conv_kwargs=UNPADDED)),
        ('bnext', 'cold doubling block', lambda: mobile_block('bnext_t', 16, 8, 2, 2, conv_kwargs=UNPADDED)),
        ('bnext', 'network', lambda: small_mobile('bnext_t', 2, 4, 4, init_features=8, initial_layers='thumbnail')),
        (
            'bnext',
            'network of 18 layers',
            lambda: network('bnext{}', 2, 2, 2, 2, init_features=8, initial_layers='thumbnail', conv_kwargs=UNPADDED),
        ),
        ('pokebnn', 'layer', poke_conv),
        ('pokebnn', 'halving layer', lambda: poke_conv(2)),
        ('pokebnn', 'layer with real weights', lambda: poke_conv(weight_bits=32)),
        ('pokebnn', 'layer of 4 bits', lambda: QConv2D(6, 1, bits=4, **LEVELS)),
        ('pokebnn', 'activation', lambda: DPReLU(4)),
        ('pokebnn', 'stem', poke_stem),
        ('pokebnn', 'block', lambda: poke_block(32, 32)),
        ('pokebnn', 'widening block', lambda: poke_block(48, 8)),
        ('pokebnn', 'slicing block', lambda: poke_block(36, 12)),
        ('pokebnn', 'halving block', lambda: poke_block(64, 32, 2)),
        ('pokebnn', 'block with real weights', lambda: poke_block(32, 32, weight_bits=32)),
        (
            'pokebnn',
            'network',
            lambda: get_model('pokebnn_0_5', classes=5, init_features=8, conv_kwargs=UNPADDED, same_padding=True),
        ),
        ('quicknet', 'network', small_quicknet),
        ('reactnet', 'block', lambda: residual('reactnet{}', 4, 4, 1, 4, conv_kwargs=UNPADDED)),
        ('reactnet', 'halving block', lambda: residual('reactnet{}', 8, 4, 2, 8, conv_kwargs=UNPADDED)),
        ('reactnet', 'network', lambda: network('reactnet{}', 2, 2, 2, 2, **RESNET)),
        ('reactnet_a', 'block', lambda: mobile_block('reactnet_a', 4, 4, 1, 1, conv_kwargs=UNPADDED)),
        ('reactnet_a', 'doubling block', lambda: mobile_block('reactnet_a', 8, 4, 2, 2, conv_kwargs=UNPADDED)),
        (
            'reactnet_a',
            'doubling block, first step',
            lambda: mobile_block('reactnet_a', 8, 4, 2, 2, conv_kwargs=UNPADDED, weight_bits=32),
        ),
        ('reactnet_a', 'network', lambda: small_mobile('reactnet_a', 2, 4, 4)),
        ('real_to_binary', 'binary', lambda: residual('real_to_binary{}', 16, 16, 1, 1, **REAL_TO_BINARY)),
        ('real_to_binary', 'binary, stride 2', lambda: residual('real_to_binary{}', 32, 16, 2, 2, **REAL_TO_BINARY)),
        ('real_to_binary', 'float', lambda: residual('real_to_binary{}', 16, 16, 1, 1, **REAL_TO_BINARY, bits=32)),
        ('real_to_binary', 'stem', lambda: stem('real_to_binary{}', **REAL_TO_BINARY)),
        # the scales of rows and columns are 1 in Larq Zoo
        ('strong_baseline', 'binary', lambda: residual('resnet{}_strong_baseline', 16, 16, 1, 1, **LARQ)),
        ('strong_baseline', 'binary, stride 2', lambda: residual('resnet{}_strong_baseline', 32, 16, 2, 2, **LARQ)),
        ('strong_baseline', 'stem', lambda: stem('resnet{}_strong_baseline', **LARQ)),
        ('tiny', 'resnet8', lambda: get_model('resnet8')),
        ('tiny', 'mobilenet_vww', lambda: get_model('mobilenet_vww')),
        ('tiny', 'ds_cnn', without_dropout),
        ('syq', 'eta 0', lambda: SYQConv2D(6, 3, padding=1)),  # with the threshold 0, so that all weights have two values, as in the paper
        ('ttq', 'layer', lambda: TTQConv2D(6, 3, padding=1)),
        ('xnor_net', 'layer', lambda: sequence(nn.BatchNorm(epsilon=1e-4), XNORConv2D(3, 3, 1, 1, use_bias=True, **UNPADDED))),
        ('xnor_net_plus', 'unit', xnor_net_plus_unit),
    ],
    ids=lambda value: value if isinstance(value, str) else 'ours',
)
def test_block_has_the_values_and_gradients_of_the_authors_code(file, case, make):
    case = read_cases(file)[0][case]
    case.weights.update(CHANGED_WEIGHTS.get(file, lambda case: {})(case))
    assert_same(make(), case, ORDERS.get(file, list)(list(case.weights)), PARAMETERS.get(file, learned))


def test_latent_weights_of_birealnet_are_not_clipped_as_in_the_authors_code():
    block = residual('birealnet{}', 4, 4, 1, 4)
    weight = block.conv.qconv.weight
    weight.shape = (4, 4, 3, 3)
    weight.initialize('ones')
    weight.set_data(weight.data() * 2)
    clip_latent_weights(block)
    assert (weight.data().asnumpy() == 2).all()


def test_the_authors_code_of_syq_does_not_scale_weights_below_its_default_threshold():
    """As docs/zoo.md says of the difference; here they are scaled like the others."""
    arrays = read_cases('syq')[0]['eta 0.05'].arrays
    weight = arrays['weight00']
    large = np.abs(weight) > 0.05 * np.abs(weight).max()
    quantized = np.sign(weight) * np.where(large, arrays['weight01'].reshape(1, 1, 3, 3), 1)
    activations = np.floor(np.clip(arrays['x'], 0, 1) * 3 + 0.5) / 3
    np.testing.assert_allclose(conv(activations, quantized, value=0), arrays['y'], atol=1e-5)
    assert 0 < (~large).sum() < large.sum()
