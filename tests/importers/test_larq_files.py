"""Files of weights that Larq trained: what is read of them, which are refused, and the command that imports them."""

import json
import struct

import mxnet as mx
import numpy as np
import pytest
from support.keras_files import meliusnet22_layers, write_keras

import model_zoo
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.files.parameters import read_parameters
from bmx_melius.importers import keras
from bmx_melius.importers.keras import read_keras_layers
from model_zoo import larq

h5py = pytest.importorskip('h5py')


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
    assert len(found['matched']) == len(read_parameters(f'{prefix}-0000.params'))


def test_command_reports_mistakes_in_one_line(meliusnet22_file, tmp_path, capsys):
    assert main(['import-larq', str(meliusnet22_file), str(tmp_path / 'net'), '--model', 'resnet_e18']) == 2
    assert 'error: ' in capsys.readouterr().err and list(tmp_path.iterdir()) == []
    assert main(['import-larq', str(meliusnet22_file), str(tmp_path / 'none' / 'net'), '--model', 'meliusnet22']) == 2
    assert 'there is no folder' in capsys.readouterr().err
