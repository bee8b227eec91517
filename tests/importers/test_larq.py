"""Networks that Larq trained: the logits of Larq Zoo's own code, packed or not, the padding of TensorFlow, and sizes that are refused.

``tests/data/make_larq_data.py`` made the small networks and their logits; it says how.
"""

import dataclasses
import gzip
import json
import math

import mxnet as mx
import numpy as np
import pytest
from support.conversions import imported, operators
from support.keras_files import write_keras
from support.long_runs import mostly_long, some_long
from support.paths import DATA

import bmx_melius as bmx
import model_zoo
from bmx_melius import InputSpec, UserError
from bmx_melius.importers.keras import KerasLayer
from bmx_melius.training.initial_weights import load_initial_weights
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.options.parsing import parse_options
from model_zoo import alexnet, larq, quicknet, store
from model_zoo.layer_options import NetworkOptions
from model_zoo.residual import NETWORKS, ResidualArchitecture, ResidualNetwork

pytest.importorskip('h5py')
pytest_plugins = ['support.conversions']  # its fixtures

TRUTH = np.load(DATA / 'larq.npz')
SAVED_LAYERS = json.loads(gzip.decompress((DATA / 'larq-layers.json.gz').read_bytes()))  # {network: [[layer, {array: shape}], ...]}
DENSENET = {
    'block': 'dense',
    'block_numbers': (1, 2, 1),
    'transitions': (32, 32),
    'dilations': (1, 1, 2),
    'init_features': 16,
    'growth_rate': 16,
}

# The networks of make_larq_data.py: no names of the zoo, but with the options of one.
SMALL = {
    'meliusnet': lambda: model_zoo.get_model(
        'meliusnet_flex', block_numbers=(1, 1), transitions=(32,), classes=5, **larq.NETWORKS['meliusnet22']
    ),
    'densenet': lambda: model_zoo.get_model('meliusnet_flex', classes=5, **DENSENET, **larq.NETWORKS['binary_densenet37_dilated']),
    'resnet_e': lambda: residual_network((2, 2), 'resnet_e{}'),
    'birealnet': lambda: residual_network((1, 1), 'birealnet{}'),
    'real_to_binary': lambda: residual_network((2, 2), 'real_to_binary{}', init_features=32),
    'xnornet': lambda: xnor_net(),
    'quicknet': lambda: quicknet.QuickNet(
        quicknet.QuickNetArchitecture((1, 2), (32, 64)), quicknet.QuickNetOptions(init_features=32, **larq.NETWORKS['quicknet']), classes=5
    ),
}


def residual_network(layers, name, **changes):
    options = dataclasses.replace(NETWORKS[name].options, **larq.NETWORKS[name.format(18)], **changes)
    return ResidualNetwork(ResidualArchitecture(layers, NETWORKS[name]), options, classes=5)


def xnor_net():
    rows = alexnet.AlexNetArchitecture().layers
    narrow = alexnet.AlexNetArchitecture(tuple(dataclasses.replace(row, channels=row.channels // 16) for row in rows))
    options = alexnet.AlexNetOptions(init_features=6, input_size=96, **larq.NETWORKS['alexnet_xnor'])
    return alexnet.BinaryAlexNet(narrow, options, classes=5)


def unpacked(name, folder):
    path = folder / f'{name}.h5'
    path.write_bytes(gzip.decompress((DATA / f'larq-{name}.h5.gz').read_bytes()))
    return path


def image(name):
    return mx.nd.array(TRUTH[f'{name}_image'][None].astype(np.float32) / 32)


@pytest.fixture(params=SMALL)
def small(request, tmp_path):
    """The name, the network with Larq's weights."""
    net = SMALL[request.param]()
    model_zoo.load_larq_parameters(net, unpacked(request.param, tmp_path))
    return request.param, net


def test_logits_are_those_of_larq(small):
    name, net = small
    np.testing.assert_allclose(net(image(name)).asnumpy()[0], TRUTH[f'{name}_logits'], rtol=0, atol=1e-4)


def test_converted_network_is_one_packed_operator_with_the_logits_of_larq(small, convert):
    name, net = small
    net.hybridize()
    net(image(name))
    report, prefix = convert(net, image(name).shape)
    assert len(operators(prefix)) == 1, report
    logits = bmx.Session(prefix)(image(name).asnumpy())
    np.testing.assert_allclose(np.asarray(logits).reshape(-1), TRUTH[f'{name}_logits'], rtol=0, atol=1e-4)


# --- whole networks -------------------------------------------------------------------------------------------------------------------


PUBLISHED = {
    'meliusnet22': 6944584,
    'binary_densenet28': 5150504,
    'binary_densenet37': 8734120,
    'binary_densenet37_dilated': 8734120,
    'binary_densenet45': 13939240,
    'resnet_e18': 11699368,
    'birealnet18': 11699112,
    'real_to_binary18': 11995624,
    'alexnet_xnor': 62396768,
    'quicknet_small': 12655688,
    'quicknet': 13234088,
    'quicknet_large': 23342248,
}
WITHOUT_STATISTICS = ('meliusnet22', 'quicknet_small', 'quicknet', 'quicknet_large')  # Larq Zoo does not count the statistics of affine BNs


@pytest.mark.parametrize('name', larq.NETWORKS)
def test_recorded_layers_have_the_published_number_of_parameters(name):
    """The recording is complete; the tests that follow compare networks with it."""
    count = sum(
        math.prod(shape)
        for _, arrays in SAVED_LAYERS[name]
        for array, shape in arrays.items()
        if not (name in WITHOUT_STATISTICS and 'gamma' in arrays and array.startswith('moving_'))
    )
    assert count == PUBLISHED[name]


@pytest.fixture
def numbered(monkeypatch):
    """Let files hold the recorded layers of a network, each array filled with a number of its own; returns these numbers by name."""

    def use(name):
        numbers, layers = {}, []
        for layer, arrays in SAVED_LAYERS[name]:
            values = {}
            for array, shape in arrays.items():
                numbers[f'{layer}/{array}'] = number = np.float32(len(numbers) / 1000)  # at most 1: XNOR-Net clips
                is_blur = layer.startswith('depthwise')
                values[array] = np.tile(np.reshape(quicknet.BLUR, (3, 3, 1, 1)), shape[2:]) if is_blur else np.full(shape, number)
            layers.append(KerasLayer(layer, values))
        monkeypatch.setattr(larq, 'read_keras_layers', lambda path: layers)
        return numbers

    return use


@pytest.mark.parametrize('name', some_long(larq.NETWORKS, 'alexnet_xnor'))
def test_every_array_of_the_whole_network_goes_to_one_parameter(name, numbered):
    numbers = numbered(name)
    net, arguments, matched = larq.load(name, 'weights.h5')
    assert arguments == {'name': name, 'classes': 1000, **larq.NETWORKS[name]}
    used = [source for sources in matched.values() for source in sources.split(' + ')]
    blurs = [source for source in numbers if source.startswith('depthwise')]
    assert sorted([*used, *blurs]) == sorted(numbers) and len(blurs) == (3 if 'quicknet' in name else 0)
    parameters = net.collect_params()
    for parameter, sources in matched.items():
        sources = sources.split(' + ')
        for source, part in zip(sources, np.split(parameters[parameter].data().asnumpy(), len(sources))):
            assert part.min() == part.max() == numbers[source]
    for parameter in set(parameters) - set(matched):  # scale and shift of normalizations without them, and zeros of slopes
        assert parameters[parameter].grad_req == 'null'
        assert not parameters[parameter]._differentiable and set(parameters[parameter].data().asnumpy().ravel()) <= {0, 1}


@pytest.mark.parametrize(
    'name', mostly_long(['real_to_binary18', 'alexnet_xnor', 'quicknet_small'], 'quicknet_small')
)  # others in test_larq_files.py
def test_command_imports_networks(name, numbered, run, tmp_path):
    numbered(name)
    assert run('import-larq', 'weights.h5', tmp_path / 'net', '--model', name)[0] == 0
    block = imported(tmp_path / 'net')
    assert block(mx.nd.zeros((1, 3, 224, 224))).shape == (1, 1000)


@pytest.mark.parametrize('name', mostly_long(larq.NETWORKS, 'quicknet_small', 'real_to_binary18', 'meliusnet22', 'resnet_e18'))
def test_training_starts_from_each_of_the_networks(name, numbered, monkeypatch):
    numbers = numbered(name)
    monkeypatch.setattr(store, 'fetch', lambda weights, root: weights.filename)
    config = parse_options(['--model', name, '--dataset', 'cifar10', '--use-pretrained', 'larq', '--input-size', '224'], model_zoo)
    model = model_arguments(config, 10, model_zoo.get_pretrained_options(name, 'larq'))
    net = make_network(config, model_zoo.get_model, model, InputSpec(), [mx.cpu()])
    new, _ = load_initial_weights(config, model_zoo.get_model, net, model)
    assert set(new) == {key for key in ('output.weight', 'output.bias') if key in net._collect_params_with_prefix()}
    last = SAVED_LAYERS[name][-1][0]
    loaded = {float(parameter.data().max().asscalar()) for parameter in net.features.collect_params().values()}
    assert loaded >= {float(number) for source, number in numbers.items() if not source.startswith((last, 'depthwise', 'stem_'))}


def test_the_store_has_the_networks_that_can_be_read_once_each():
    assert sorted(weights.network for weights in store.WEIGHTS) == sorted(larq.NETWORKS)
    assert all(len(weights.sha256) == 64 and 0 < weights.top1 < weights.top5 < 100 for weights in store.WEIGHTS)


def test_blurring_filters_with_other_values_are_refused(tmp_path):
    h5py = pytest.importorskip('h5py')
    path = unpacked('quicknet', tmp_path)
    with h5py.File(path, 'a') as file:
        (name,) = (name for name in file if name.startswith('depthwise'))
        file[name][name]['depthwise_kernel:0'][1, 1, 5, 0] = 0.3
    with pytest.raises(UserError, match=rf'depthwise_kernel of its {name} is not \[\[0.0625, 0.125.* for each channel'):
        model_zoo.load_larq_parameters(SMALL['quicknet'](), path)


def test_layers_with_parameters_that_keras_files_do_not_hold_are_refused(tmp_path):
    norm = {name: np.ones(64, np.float32) for name in ('gamma', 'beta', 'moving_mean', 'moving_variance')}
    write_keras(tmp_path / 'a.h5', [('stem', {'kernel': np.ones((7, 7, 3, 64), np.float32)}), ('first', norm), ('second', norm)])
    with pytest.raises(UserError, match='Keras weights can be loaded into .*Conv2D.*, not into SYQWeights'):
        model_zoo.load_larq_parameters(model_zoo.get_model('resnet18_syq_w1a2', classes=5), tmp_path / 'a.h5')


# --- padding --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kernel, stride', [(3, 2), (4, 2), (5, 2), (7, 2), (8, 4), (11, 4), (3, 4), (1, 4), (2, 1)])
def test_same_padding_of_a_multiple_of_the_stride_puts_at_most_one_zero_less_before_than_behind(kernel, stride):
    x, weight = mx.nd.random.normal(shape=(2, 3, 12, 16)), mx.nd.random.normal(shape=(4, 3, kernel, kernel))
    layer = model_zoo.padding.padded(
        lambda padding: mx.gluon.nn.Conv2D(4, kernel, stride, padding, use_bias=False, in_channels=3), kernel, stride, same_padding=True
    )
    layer.initialize()
    (parameter,) = layer.collect_params().values()
    parameter.set_data(weight)
    zeros = max(kernel - stride, 0)
    before, behind = zeros // 2, (zeros + 1) // 2
    by_hand = mx.nd.pad(x, mode='constant', pad_width=(0, 0, 0, 0, before, behind, before, behind))
    expected = mx.nd.Convolution(by_hand, weight, kernel=(kernel, kernel), stride=(stride, stride), num_filter=4, no_bias=True)
    np.testing.assert_allclose(layer(x).asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-5)


def test_same_padding_of_a_maximum_ignores_what_is_outside_the_map():
    x = -mx.nd.random.uniform(1, 2, shape=(1, 2, 6, 6))
    layers = mx.gluon.nn.HybridSequential()
    model_zoo.stems.add_stem(layers, NetworkOptions(initial_layers='imagenet', init_features=8, same_padding=True))
    layer = layers[-1]
    expected = [[x[0, c, i : i + 3, j : j + 3].max().asscalar() for i in (0, 2, 4) for j in (0, 2, 4)] for c in (0, 1)]
    np.testing.assert_array_equal(layer(x).asnumpy().reshape(2, 9), np.array(expected, np.float32))


# --- sizes ----------------------------------------------------------------------------------------------------------------------------


STRIDE = 8  # of the layers of each of the small networks but XNOR-Net, which accepts one size

of_any_size = pytest.mark.parametrize('small', [name for name in SMALL if name != 'xnornet'], indirect=True)


@of_any_size
def test_sizes_that_tensorflow_pads_in_another_way_are_refused_by_the_block(small):
    _, net = small
    for height, width in ((64, 64 + STRIDE // 2), (64 + STRIDE - 1, 64)):
        x = mx.nd.zeros((1, 3, height, width))
        net.hybridize(active=False)
        with pytest.raises(UserError, match=f'must be multiples of {STRIDE}, not {height} x {width}'):
            net(x)
        net.hybridize()
        with pytest.raises((mx.MXNetError, ValueError), match=f'must_be_multiples_of_{STRIDE}'):
            net(x)
    assert net(mx.nd.zeros((1, 3, 64 + STRIDE, 64))).shape == (1, 5)


@of_any_size
def test_sizes_that_tensorflow_pads_in_another_way_are_refused_wherever_the_exported_network_goes(small, export, run, tmp_path):
    name, net = small
    net.hybridize()
    net(image(name))
    files = [*export(net), tmp_path / 'packed']
    status, _, errors = run('convert', *files, '--input-shape', f'1,3,64,{64 + STRIDE // 2}')
    assert status == 2 and f'must_be_multiples_of_{STRIDE}' in errors
    block = imported(tmp_path / 'net')
    with pytest.raises(mx.MXNetError, match=f'must_be_multiples_of_{STRIDE}'):
        block(mx.nd.zeros((1, 3, 64 + STRIDE - 1, 64))).wait_to_read()

    assert run('convert', *files, '--input-shape', '1,3,64,64', '--no-verify')[0] == 0
    session = bmx.Session(files[2])
    for height in (64 + 1, 64 + STRIDE // 2, 64 + STRIDE - 1):
        with pytest.raises(
            UserError,
            match=rf'concat of .*; the network was converted with inputs of \(3, 64, 64\) and does not accept \(3, {height}, 64\)',
        ):
            session(np.zeros((1, 3, height, 64), np.float32))
    x = np.random.default_rng(0).normal(size=(2, 3, 64, 64 + STRIDE)).astype(np.float32)
    assert np.abs(session(x) - block(mx.nd.array(x)).asnumpy()).max() < 0.1  # signs may turn


@pytest.mark.parametrize('small', ['xnornet'], indirect=True)
def test_xnor_net_accepts_its_size_only_which_is_a_multiple_of_the_stride(small, export, tmp_path):
    _, net = small
    with pytest.raises(UserError, match='built for images of 96 x 96, not 100 x 100'):
        net(mx.nd.zeros((1, 3, 100, 100)))
    net.hybridize()
    net(image('xnornet'))
    export(net)
    with pytest.raises(mx.MXNetError, match='must_be_multiples_of_4'):
        imported(tmp_path / 'net')(mx.nd.zeros((1, 3, 97, 97))).wait_to_read()
    odd = model_zoo.get_model('alexnet_xnor', **larq.NETWORKS['alexnet_xnor'], init_features=6, input_size=98)
    odd.initialize()
    with pytest.raises(UserError, match='must be multiples of 4, not 98 x 98'):
        odd(mx.nd.zeros((1, 3, 98, 98)))
