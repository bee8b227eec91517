"""Networks that Larq trained: the logits of Larq Zoo's own code, files of every layout, and what is no such file.

``tests/make_larq_data.py`` made the small networks and their logits; it says how.
"""

import dataclasses
import gzip
import http.server
import json
import pathlib
import shutil
import struct
import threading

import mxnet as mx
import numpy as np
import pytest
from images import make_folders
from keras_files import LARQ_FILE, meliusnet22_layers, write_keras

import bmx_melius as bmx
import model_zoo
import train_imagenet
from bmx_melius import InputSpec, UserError
from bmx_melius.__main__ import main
from bmx_melius.importers import keras
from bmx_melius.importers.keras import read_keras_layers
from bmx_melius.training.flags import parse_flags
from bmx_melius.training.initial_weights import load_initial_weights
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.teacher import load_teacher
from model_zoo import larq, store
from model_zoo.layer_options import NetworkOptions
from model_zoo.registry import get_pretrained_options
from model_zoo.resnet import BIREALNET, RESNET_E, Architecture, BinaryResNet

h5py = pytest.importorskip('h5py')

DATA = pathlib.Path(__file__).parent / 'data'
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


def test_converted_network_is_one_packed_operator_with_the_logits_of_larq(small, tmp_path):
    name, net = small
    net.hybridize()
    net(image(name))
    net.export(str(tmp_path / 'net'))
    report = bmx.convert(
        str(tmp_path / 'net-symbol.json'), str(tmp_path / 'net-0000.params'), str(tmp_path / 'packed'), image(name).shape, verify=True
    )
    operators = [node for node in json.loads((tmp_path / 'packed-symbol.json').read_text())['nodes'] if node['op'] != 'null']
    assert len(operators) == 1, report
    logits = bmx.Session(str(tmp_path / 'packed'))(image(name).asnumpy())
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


@pytest.fixture
def exported_small(small, tmp_path):
    name, net = small
    net.hybridize()
    net(image(name))
    net.export(str(tmp_path / 'net'))
    return str(tmp_path / 'net')


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


def test_sizes_that_tensorflow_pads_in_another_way_are_refused_wherever_the_exported_network_goes(exported_small, tmp_path, capsys):
    prefix = exported_small
    files, wrong = [f'{prefix}-symbol.json', f'{prefix}-0000.params', str(tmp_path / 'packed')], f'1,3,64,{64 + STRIDE // 2}'
    assert main(['convert', *files, '--input-shape', wrong]) == 2
    assert f'must_be_multiples_of_{STRIDE}' in capsys.readouterr().err
    block = mx.gluon.SymbolBlock.imports(files[0], ['data'], files[1])
    with pytest.raises(mx.MXNetError, match=f'must_be_multiples_of_{STRIDE}'):
        block(mx.nd.zeros((1, 3, 64 + STRIDE - 1, 64))).wait_to_read()

    assert main(['convert', *files, '--input-shape', '1,3,64,64', '--no-verify']) == 0
    session = bmx.Session(files[2])
    for height in (64 + 1, 64 + STRIDE // 2, 64 + STRIDE - 1):
        with pytest.raises(
            UserError,
            match=rf'concat of .*; the network was converted with inputs of \(3, 64, 64\) and does not accept \(3, {height}, 64\)',
        ):
            session(np.zeros((1, 3, height, 64), np.float32))
    x = np.random.default_rng(0).normal(size=(2, 3, 64, 64 + STRIDE)).astype(np.float32)
    assert np.abs(session(x) - block(mx.nd.array(x)).asnumpy()).max() < 0.1  # signs may turn


# --- files ----------------------------------------------------------------------------------------------------------------------------


def test_every_array_of_a_file_goes_to_one_parameter(meliusnet22_file):
    net = model_zoo.from_larq('MeliusNet_22', meliusnet22_file)
    theirs = np.sort(np.concatenate([array.ravel() for _, weights in meliusnet22_layers() for array in weights.values()]))
    ours = np.sort(np.concatenate([parameter.data().asnumpy().ravel() for parameter in net.collect_params().values()]))
    np.testing.assert_array_equal(ours, theirs)


def test_loading_returns_the_source_of_each_parameter(meliusnet22_file):
    net = model_zoo.get_model('meliusnet22', **larq.NETWORKS['meliusnet22'])
    matched = model_zoo.load_larq_parameters(net, meliusnet22_file)
    layers = dict(meliusnet22_layers())
    assert set(matched) == set(net.collect_params())
    sources = [source for sources in matched.values() for source in sources.split(' + ')]
    assert sorted(sources) == sorted(f'{name}/{weight}' for name, weights in layers.items() for weight in weights)
    for name, source in matched.items():
        ours = net.collect_params()[name].data().asnumpy()
        theirs = [layers[layer][weight] for layer, _, weight in (part.partition('/') for part in source.split(' + '))]
        np.testing.assert_array_equal(np.sort(ours.ravel()), np.sort(np.concatenate([array.ravel() for array in theirs])))


def test_attributes_in_several_pieces_are_read_as_one(tmp_path):
    layers = [('a', {'kernel': np.ones((2, 3), np.float32)}), ('b', {'kernel': np.zeros((3, 4), np.float32)})]
    write_keras(tmp_path / 'one.h5', layers, root='model_weights')
    write_keras(tmp_path / 'pieces.h5', layers)
    with h5py.File(tmp_path / 'pieces.h5', 'a') as file:
        del file.attrs['layer_names']
        file.attrs['layer_names0'], file.attrs['layer_names1'] = ['a'], ['b']
    for path in ('one.h5', 'pieces.h5'):
        read = read_keras_layers(tmp_path / path)
        assert [layer.name for layer in read] == ['a', 'b'] and [layer.weights['kernel'].shape for layer in read] == [(2, 3), (3, 4)]


def without_dense(layers):
    return layers[:-1]


def without_a_norm(layers):
    return [layer for layer in layers if layer[0] != 'stem_s1_bn']


def with_a_wide_kernel(layers):
    wide = {'section_0_block_0_dense_binconv': {'kernel': np.zeros((3, 3, 65, 64))}}
    return [(name, wide.get(name, weights)) for name, weights in layers]


def with_one_layer_more(layers):
    return [*layers, ('again', layers[-1][1])]


@pytest.mark.parametrize(
    'change, words',
    [
        (without_dense, 'does not end in a dense layer.*notop'),
        (without_a_norm, r'its stem_s2_groupconv_conv0 holds kernel, but .*batchnorm1 needs gamma, beta, moving_mean, moving_variance'),
        (with_a_wide_kernel, r'kernel of its section_0_block_0_dense_binconv has the shape \(64, 65, 3, 3\) .* \(64, 64, 3, 3\)'),
        (with_one_layer_more, 'after the last layer of the network it has again'),
    ],
)
def test_weights_of_another_network_are_refused_naming_the_first_difference(change, words, tmp_path):
    write_keras(tmp_path / 'other.h5', change(list(meliusnet22_layers())))
    with pytest.raises(UserError, match=words):
        model_zoo.from_larq('meliusnet22', tmp_path / 'other.h5')


def damage_links(path):
    content = bytearray(path.read_bytes())
    content[content.index(b'TREE') + 16] ^= 255  # of the sibling's address in the first B-tree (HDF5 file format, III.A.1)
    path.write_bytes(content)


def announce_more_than_there_is_memory_for(path):
    with h5py.File(path, 'a') as file:
        del file['a/a/kernel:0']
        file['a'].create_dataset('a/kernel:0', shape=(1 << 50,), dtype='f4')


def crash_the_library(path):
    """HDF5 1.14.2 multiplies the axes of an attribute without a check, and reads beyond its memory."""
    content, one = path.read_bytes(), struct.pack('<QQ', 1, 1)
    assert one in content
    path.write_bytes(content.replace(one, struct.pack('<QQ', 1 | 0x40 << 56, 1), 1))


@pytest.mark.parametrize('damage', [damage_links, announce_more_than_there_is_memory_for, crash_the_library])
def test_damaged_files_are_refused(damage, tmp_path):
    write_keras(tmp_path / 'damaged.h5', [('a', {'kernel': np.ones((2, 3), np.float32)})])
    assert len(read_keras_layers(tmp_path / 'damaged.h5')) == 1
    damage(tmp_path / 'damaged.h5')
    with pytest.raises(UserError, match='damaged.h5 is not an HDF5 file of Keras weights, or is damaged'):
        read_keras_layers(tmp_path / 'damaged.h5')


def test_arrays_beyond_the_limit_are_refused_before_they_are_read(tmp_path, monkeypatch):
    write_keras(tmp_path / 'a.h5', [('a', {'kernel': np.ones((2, 3), np.float32)}), ('b', {'kernel': np.ones(4, np.float32)})])
    monkeypatch.setattr(keras, 'MAX_BYTES', 40)
    assert len(read_keras_layers(tmp_path / 'a.h5')) == 2
    monkeypatch.setattr(keras, 'MAX_BYTES', 39)
    with pytest.raises(UserError, match='a.h5 is not an HDF5 file of Keras weights, or is damaged: its arrays take too much memory'):
        read_keras_layers(tmp_path / 'a.h5')


@pytest.mark.parametrize('value', [np.array([b'text']), np.array('text', h5py.string_dtype()), np.zeros(2, [('x', 'f4')]), np.ones(2, '?')])
def test_weights_that_are_no_numbers_are_refused(value, tmp_path):
    write_keras(tmp_path / 'a.h5', [('a', {'kernel': value})])
    with pytest.raises(UserError, match='a.h5: /a/a/kernel:0 has elements of type .*; weights are numbers'):
        read_keras_layers(tmp_path / 'a.h5')


def test_a_file_that_takes_too_long_is_refused(tmp_path, monkeypatch):
    write_keras(tmp_path / 'a.h5', [])
    monkeypatch.setattr(keras, '_SECONDS', 0)
    with pytest.raises(UserError, match='a.h5 .* reading it takes too long'):
        read_keras_layers(tmp_path / 'a.h5')


def link(file, other):
    file['a/a'] = h5py.ExternalLink(other, '/a')


def link_the_layers(file, other):
    del file['a']
    file['a'] = h5py.ExternalLink(other, '/a')


def store_outside(file, other):
    file.create_dataset('a/a/kernel:0', (2, 3), 'f4', external=[(other, 0, h5py.h5f.UNLIMITED)])


def compose(file, other):
    layout = h5py.VirtualLayout((2, 3), 'f4')
    layout[:] = h5py.VirtualSource(other, 'a/a/kernel:0', (2, 3), 'f4')
    file.create_virtual_dataset('a/a/kernel:0', layout)


@pytest.mark.parametrize('refer', [link, link_the_layers, store_outside, compose])
def test_weights_that_lie_in_another_file_are_refused(refer, tmp_path):
    layers = [('a', {'kernel': np.ones((2, 3), np.float32)})]
    for name in ('a.h5', 'other.h5'):
        write_keras(tmp_path / name, layers)
    with h5py.File(tmp_path / 'a.h5', 'a') as file:
        del file['a/a']
        refer(file, str(tmp_path / 'other.h5'))
    with pytest.raises(UserError, match='a.h5 is refused: its a.* lies in another file'):
        read_keras_layers(tmp_path / 'a.h5')


def test_links_within_a_file_are_followed(tmp_path):
    write_keras(tmp_path / 'a.h5', [('a', {'kernel': np.ones((2, 3), np.float32)})])
    with h5py.File(tmp_path / 'a.h5', 'a') as file:
        file.move('a', 'elsewhere')
        file['a'] = h5py.SoftLink('/elsewhere')
        file['elsewhere/itself'] = file['elsewhere']
    (layer,) = read_keras_layers(tmp_path / 'a.h5')
    np.testing.assert_array_equal(layer.weights['kernel'], np.ones((2, 3)))


def test_files_of_other_kinds_are_refused(tmp_path, meliusnet22_file):
    (tmp_path / 'text.h5').write_text('no HDF5')
    with pytest.raises(UserError, match='text.h5 is not an HDF5 file of Keras weights'):
        model_zoo.from_larq('meliusnet22', tmp_path / 'text.h5')
    with h5py.File(tmp_path / 'keras3.weights.h5', 'w') as file:
        file['layers/conv/vars/0'] = np.zeros(3)
    with pytest.raises(UserError, match='has no attribute layer_names.*Keras 3'):
        model_zoo.from_larq('meliusnet22', tmp_path / 'keras3.weights.h5')
    write_keras(tmp_path / 'more.h5', list(meliusnet22_layers()))
    with h5py.File(tmp_path / 'more.h5', 'a') as file:
        file['stray'] = np.zeros(3)
    with pytest.raises(UserError, match='holds 217 arrays, but its lists of layers and weights name 216'):
        model_zoo.from_larq('meliusnet22', tmp_path / 'more.h5')
    with pytest.raises(FileNotFoundError):
        model_zoo.from_larq('meliusnet22', tmp_path / 'none.h5')
    with pytest.raises(UserError, match='Larq Zoo has no meliusnet29 .*known: meliusnet22'):
        model_zoo.from_larq('meliusnet29', meliusnet22_file)


# --- the store ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def published(monkeypatch, meliusnet22_file):
    """A store with one row, of a file on this machine; call it to change the row."""

    def publish(**fields):
        row = dict(url=meliusnet22_file.as_uri(), sha256=store.hashlib.sha256(meliusnet22_file.read_bytes()).hexdigest())
        row = store.Weights('meliusnet22', 'larq', source='', licence='', top1=1, top5=2, **{**row, **fields})
        monkeypatch.setattr(store, 'WEIGHTS', [row])
        return row

    publish()
    return publish


def test_pretrained_network_is_downloaded_once_and_then_needs_no_network(published, tmp_path):
    root = tmp_path / 'new' / 'models'
    first = model_zoo.get_model('meliusnet22', pretrained='larq', root=str(root))
    assert [file.name for file in root.iterdir()] == [LARQ_FILE]
    published(url='file:///nowhere/meliusnet22_weights.h5')
    second = model_zoo.get_model('MeliusNet_22', pretrained='larq', root=str(root))
    x = mx.nd.random.normal(shape=(1, 3, 64, 64))
    np.testing.assert_array_equal(first(x).asnumpy(), second(x).asnumpy())


def test_a_file_with_another_checksum_is_never_used(published, tmp_path):
    row = published(sha256='0' * 64)
    with pytest.raises(UserError, match='has changed or is incomplete: its SHA-256 is .*, not 0000'):
        store.fetch(row, str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    (tmp_path / row.filename).write_text('something else')
    with pytest.raises(UserError, match='meliusnet22_weights.h5 is not file:.*remove it'):
        store.fetch(row, str(tmp_path))


@pytest.mark.parametrize('url', ['file:///nowhere/w.h5', 'http://127.0.0.1:9/w.h5'])
def test_without_network_one_error_says_where_to_put_the_file(url, published, tmp_path):
    with pytest.raises(UserError, match=f'cannot download {url} .*put it at {tmp_path}/w.h5'):
        store.fetch(published(url=url), str(tmp_path))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize('length', ['abc', '-1', None])
def test_a_response_without_a_valid_length_is_read_to_the_end(length, published, tmp_path):
    content = b'weights'

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):  # noqa: N802
            self.send_response(200)
            if length:
                self.send_header('Content-Length', length)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_):
            """Print nothing."""

    with http.server.HTTPServer(('127.0.0.1', 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        row = published(url=f'http://127.0.0.1:{server.server_port}/w.h5', sha256=store.hashlib.sha256(content).hexdigest())
        assert pathlib.Path(store.fetch(row, str(tmp_path))).read_bytes() == content


def test_a_folder_in_the_place_of_a_download_is_named(published, tmp_path):
    (tmp_path / 'w.h5').mkdir()
    with pytest.raises(UserError, match='w.h5 is a folder: remove it to download'):
        store.fetch(published(url='file:///nowhere/w.h5'), str(tmp_path))


def test_pretrained_networks_that_do_not_exist_are_named(published, tmp_path):
    for name in ('meliusnet59', 'mobilenet1.0', 'nonet'):
        with pytest.raises(UserError, match=f'Larq Zoo has no {name} '):
            model_zoo.get_model(name, pretrained='larq', root=str(tmp_path))
    assert list(tmp_path.iterdir()) == [], 'nothing was downloaded'
    with pytest.raises(UserError, match="pretrained='larq'"):
        model_zoo.get_model('meliusnet22', pretrained=True)


@pytest.mark.parametrize('options', [{'initial_layers': 'imagenet'}, {'stem_pool': 3}, {'conv_kwargs': {'pad_value': -1}}])
def test_an_argument_with_which_the_weights_were_not_trained_is_refused_before_they_are_fetched(published, options, tmp_path):
    (name,) = options
    with pytest.raises(UserError, match=f"the weights 'larq' of meliusnet22 need {name}="):
        model_zoo.get_model('meliusnet22', pretrained='larq', root=str(tmp_path), **options)
    assert list(tmp_path.iterdir()) == []


# --- training -------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope='module')
def file_of_three_classes(make_once):
    return (
        make_once('larq-of-three-classes', lambda folder: write_keras(folder / LARQ_FILE, list(meliusnet22_layers(classes=3)))) / LARQ_FILE
    )


@pytest.fixture
def of_three_classes(file_of_three_classes, published, monkeypatch, tmp_path):
    """Flags of a run that starts from published weights of a network of three classes; the folder of weights is new."""
    path = tmp_path / LARQ_FILE
    shutil.copy(file_of_three_classes, path)
    published(url=path.as_uri(), sha256=store.hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setenv('HOME', str(tmp_path))
    make_folders(tmp_path / 'images')
    return [
        '--model',
        'meliusnet22',
        '--data-dir',
        f'{tmp_path}/images',
        '--save-dir',
        f'{tmp_path}/run',
        '--input-size',
        '32',
        '--batch-size',
        '10',
        '--num-epochs',
        '1',
        '-j',
        '1',
        '--lr',
        '0',
    ]


def make(arguments):
    """The network of the program's flags."""
    config = parse_flags(arguments, model_zoo)
    network = config.network
    model = model_arguments(network, 3, get_pretrained_options(network.model, network.use_pretrained))
    net = make_network(config, model_zoo.get_model, model, InputSpec(size=32, resize=32), [mx.cpu()])
    load_initial_weights(config, model_zoo.get_model, net, model)
    return net


def test_training_starts_from_published_weights(of_three_classes, tmp_path):
    net = make([*of_three_classes, '--use-pretrained', 'larq'])
    expected = model_zoo.from_larq('meliusnet22', tmp_path / LARQ_FILE)
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_array_equal(net(x).asnumpy(), expected(x).asnumpy())


def test_a_run_from_published_weights_ends_in_a_network_that_its_description_builds_and_resumes_without_them(of_three_classes, tmp_path):
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'larq']) == 0
    description = json.loads((tmp_path / 'run' / 'meliusnet22-summary.json').read_text())
    assert description['model'] == {'name': 'meliusnet22', 'classes': 3, **larq.NETWORKS['meliusnet22']}
    net = model_zoo.get_model(**description['model'])
    net.load_parameters(str(tmp_path / 'run' / 'epoch-0001.params'))
    prefix = f'{tmp_path}/run/meliusnet22'
    exported = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_array_equal(net(x).asnumpy(), exported(x).asnumpy())
    (tmp_path / '.mxnet' / 'models' / LARQ_FILE).unlink()
    (tmp_path / LARQ_FILE).unlink()
    assert train_imagenet.main(['--resume', '--save-dir', f'{tmp_path}/run']) == 0


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--initial-layers', 'imagenet'], "need initial_layers='grouped_stem', not 'imagenet'"),
        (['--model-options', '{"stem_pool": 3}'], 'need stem_pool=2, not 3'),
        (['--model', 'meliusnet29'], 'Larq Zoo has no meliusnet29'),
        (['--resume-params', 'x.params'], '--resume-params'),
    ],
)
def test_flags_that_contradict_published_weights_are_one_error(of_three_classes, flags, words, capsys):
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'larq', *flags]) == 2
    assert words in capsys.readouterr().err
    assert train_imagenet.main([*of_three_classes, '--use-pretrained', 'lark']) == 2
    assert "'lark' (choose from 'larq')" in capsys.readouterr().err


def test_a_published_network_teaches(of_three_classes, tmp_path):
    teacher = load_teacher(model_zoo.get_model, 'meliusnet22', 3, (3, 32, 32), [mx.cpu()], pretrained='larq')
    expected = model_zoo.from_larq('meliusnet22', tmp_path / LARQ_FILE)
    x = mx.nd.random.normal(shape=(2, 3, 32, 32))
    np.testing.assert_allclose(teacher(x).asnumpy(), expected(x).asnumpy(), rtol=1e-5, atol=1e-5)


# --- the command ----------------------------------------------------------------------------------------------------------------------


def test_command_writes_an_exported_network_with_a_description_of_its_input(meliusnet22_file, tmp_path, capsys):
    prefix = str(tmp_path / 'net')
    assert main(['import-larq', str(meliusnet22_file), prefix, '--model', 'meliusnet22']) == 0
    assert 'meliusnet22 of 1000 classes' in capsys.readouterr().out
    description = json.loads((tmp_path / 'net-summary.json').read_text())
    assert description['input']['size'] == 224 and description['input']['mean'] == pytest.approx([123.675, 116.28, 103.53])
    assert type(model_zoo.get_model(**description['model'])) is type(model_zoo.get_model('meliusnet22'))
    imported = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    x = mx.nd.random.normal(shape=(1, 3, 64, 64))
    expected = model_zoo.from_larq('meliusnet22', meliusnet22_file)(x)
    np.testing.assert_array_equal(imported(x).asnumpy(), expected.asnumpy())


def test_command_prints_one_json_object(meliusnet22_file, tmp_path, capsys):
    prefix = str(tmp_path / 'net')
    assert main(['import-larq', str(meliusnet22_file), prefix, '--model', 'MeliusNet_22', '--json']) == 0
    found = json.loads(capsys.readouterr().out)
    description = json.loads((tmp_path / 'net-summary.json').read_text())
    assert found['model'] == description['model'] and found['counts'] == description['counts']
    assert found['written'] == [f'{prefix}-{end}' for end in ('symbol.json', '0000.params', 'summary.json')]
    assert len(found['matched']) == len(bmx.container.read_parameters(f'{prefix}-0000.params'))


def test_command_reports_mistakes_in_one_line(meliusnet22_file, tmp_path, capsys):
    assert main(['import-larq', str(meliusnet22_file), str(tmp_path / 'net'), '--model', 'resnet_e18']) == 2
    assert 'error: ' in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    assert main(['import-larq', str(meliusnet22_file), str(tmp_path / 'none' / 'net'), '--model', 'meliusnet22']) == 2
    assert 'there is no folder' in capsys.readouterr().err
