"""Networks that Larq trained: the logits of Larq Zoo's own code, packed or not, the padding of TensorFlow, and sizes that are refused.

``tests/data/make_larq_data.py`` made the small networks and their logits; it says how.
"""

import dataclasses
import gzip

import mxnet as mx
import numpy as np
import pytest
from support.conversions import imported, operators
from support.paths import DATA

import bmx_melius as bmx
import model_zoo
from bmx_melius import UserError
from model_zoo import larq, store
from model_zoo.layer_options import NetworkOptions
from model_zoo.resnet import BIREALNET, RESNET_E, Architecture, BinaryResNet

pytest.importorskip('h5py')
pytest_plugins = ['support.conversions']  # its fixtures

TRUTH = np.load(DATA / 'larq.npz')
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
    'resnet_e': lambda: residual_network((2, 2), RESNET_E, 'resnet_e18'),
    'birealnet': lambda: residual_network((1, 1), BIREALNET, 'birealnet18'),
}


def residual_network(layers, variant, options_of):
    options = dataclasses.replace(variant.options, **larq.NETWORKS[options_of])
    return BinaryResNet(Architecture(layers, variant), options, classes=5)


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


@pytest.mark.parametrize(
    'name, count',
    [
        ('meliusnet22', 6944584),
        ('binary_densenet28', 5150504),
        ('binary_densenet37', 8734120),
        ('binary_densenet37_dilated', 8734120),
        ('binary_densenet45', 13939240),
        ('resnet_e18', 11699368),
        ('birealnet18', 11699112),
    ],
)
def test_networks_have_the_published_number_of_parameters(name, count):
    net = model_zoo.get_model(name, **larq.NETWORKS[name])
    net.infer_shape(mx.nd.zeros((1, 3, 224, 224)))
    statistics = () if name != 'meliusnet22' else ('running_mean', 'running_var')  # of this one Larq Zoo counts what is trained
    assert count == sum(int(np.prod(p.shape)) for key, p in net.collect_params().items() if not key.endswith(statistics or '-'))


def test_the_store_has_the_networks_that_can_be_read_once_each():
    assert sorted(weights.network for weights in store.WEIGHTS) == sorted(larq.NETWORKS)
    assert all(len(weights.sha256) == 64 and 0 < weights.top1 < weights.top5 < 100 for weights in store.WEIGHTS)


# --- padding --------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('kernel', [3, 5, 7])
def test_same_padding_of_an_even_map_puts_one_zero_less_before_than_behind(kernel):
    x, weight = mx.nd.random.normal(shape=(2, 3, 10, 14)), mx.nd.random.normal(shape=(4, 3, kernel, kernel))
    layer = model_zoo.padding.padded(
        lambda padding: mx.gluon.nn.Conv2D(4, kernel, 2, padding, use_bias=False, in_channels=3), kernel, 2, same_padding=True
    )
    layer.initialize()
    layer[0].weight.set_data(weight)
    before, behind = (kernel - 2) // 2, (kernel - 1) // 2
    by_hand = mx.nd.pad(x, mode='constant', pad_width=(0, 0, 0, 0, before, behind, before, behind))
    expected = mx.nd.Convolution(by_hand, weight, kernel=(kernel, kernel), stride=(2, 2), num_filter=4, no_bias=True)
    np.testing.assert_allclose(layer(x).asnumpy(), expected.asnumpy(), rtol=1e-5, atol=1e-5)


def test_same_padding_of_a_maximum_ignores_what_is_outside_the_map():
    x = -mx.nd.random.uniform(1, 2, shape=(1, 2, 6, 6))
    layers = mx.gluon.nn.HybridSequential()
    model_zoo.stems.add_stem(layers, NetworkOptions(initial_layers='imagenet', init_features=8, same_padding=True))
    layer = layers[-1]
    expected = [[x[0, c, i : i + 3, j : j + 3].max().asscalar() for i in (0, 2, 4) for j in (0, 2, 4)] for c in (0, 1)]
    np.testing.assert_array_equal(layer(x).asnumpy().reshape(2, 9), np.array(expected, np.float32))


# --- sizes ----------------------------------------------------------------------------------------------------------------------------


STRIDE = 8  # of the layers of each of the small networks


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
