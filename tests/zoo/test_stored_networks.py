"""Weights that ship with the project: stored from a run, checked, loaded for training, and found by the commands by name."""

import importlib.util
import json
import pathlib
import re
import shutil

import gluoncv
import mxnet as mx
import numpy as np
import pytest
from support.images import make_folders
from support.paths import ROOT
from support.training_runs import TINY, refused, train

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.cli import options
from bmx_melius.files.parameters import read_arrays
from bmx_melius.files.stored_networks import TABLE, find_stored, read_table
from bmx_melius.serving.network import load_networks
from model_zoo import get_model, get_model_list, list_models, packed, registry, shipped

NAME = 'tiny_digits'


@pytest.fixture(scope='module')
def tool():
    spec = importlib.util.spec_from_file_location('store_weights', ROOT / 'tools' / 'store_weights.py')
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope='module')
def stored(tool, make_once):
    """A folder like ``model_zoo/weights`` with a network trained for an epoch, and the run."""

    def make(folder):
        flags = ['--dataset', 'digits', '--num-epochs', '1', '--batch-size', '128', '--save-dir', folder / 'run']
        train(*TINY, *flags)
        (folder / 'weights').mkdir()
        (folder / 'weights' / TABLE).write_text('[]')
        tool.store(NAME, folder / 'run', 'digits', folder=folder / 'weights')

    return make_once('stored-network', make)


@pytest.fixture
def folder(stored, tmp_path, monkeypatch):
    """A copy of the folder, in the place of the project's, with its network registered."""
    folder = shutil.copytree(stored / 'weights', tmp_path / 'weights')
    monkeypatch.setattr(shipped, 'FOLDER', folder)
    monkeypatch.setattr(options, 'weights_folder', lambda: folder)
    monkeypatch.setattr(registry, '_NETWORKS', dict(registry._NETWORKS))
    monkeypatch.setattr(gluoncv.model_zoo.model_zoo, '_models', dict(gluoncv.model_zoo.model_zoo._models))
    shipped.add(find_stored(folder, NAME))
    return folder


@pytest.mark.parametrize('row', read_table(shipped.FOLDER), ids=lambda row: row.name)
def test_files_of_the_project_are_complete(row):
    assert bmx.Session(row.packed()).input_shapes[0][1:] == (row.input['channels'], row.input['size'], row.input['size'])
    assert len(get_model(row.name, pretrained=True).output.bias.shape) == 1 and len(row.class_names) == row.model['classes']
    assert (shipped.FOLDER / f'{row.name}.md').exists() and row.interval[0] < row.top1 < row.interval[1]


def test_packed_network_and_training_weights_agree_with_the_weights_of_the_run(folder, stored):
    x = np.random.default_rng(0).standard_normal((64, 1, 8, 8), dtype=np.float32)
    trained = get_model(NAME, pretrained=True)
    expected = get_model('meliusnet_flex', **{key: value for key, value in find_stored(folder, NAME).model.items() if key != 'name'})
    expected.load_parameters(str(stored / 'run' / 'epoch-0001.params'))
    np.testing.assert_array_equal(trained(mx.nd.array(x)).asnumpy(), expected(mx.nd.array(x)).asnumpy())
    np.testing.assert_allclose(bmx.Session(packed(NAME))(x), expected(mx.nd.array(x)).asnumpy(), rtol=1e-3, atol=1e-3)
    arrays = read_arrays(folder / f'{NAME}.params')
    kinds = {name: array.dtype for name, array in arrays.items()}
    assert {kind for name, kind in kinds.items() if 'qconv' in name} == {np.dtype('float16')}
    assert {kind for name, kind in kinds.items() if 'qconv' not in name} == {np.dtype('float32')}


def test_fine_tuning_begins_with_the_weights_that_ship(folder, tmp_path, capsys):
    train('--model', NAME, '--dataset', 'digits', '--use-pretrained', '--dry-run', '--save-dir', str(tmp_path / 'run'))
    assert re.search(rf'weights +the pretrained {NAME}: all parameters are loaded', capsys.readouterr().out)


def test_folders_of_gray_images_need_a_flag_which_the_error_names(folder, tmp_path, capsys):
    make_folders(tmp_path / 'photos')
    flags = ['--model', NAME, '--use-pretrained', '--data-dir', tmp_path / 'photos', '--input-size', '8', '--save-dir', tmp_path / 'run']
    assert '--channels (1 for gray images)' in refused(capsys, *flags)
    train(*flags, '--channels', '1', '--num-epochs', '1', '--batch-size', '4', '-j', '0')
    # The stem is that of the weights, not the usual one of folders.
    evaluation = ['evaluate', NAME, str(tmp_path / 'photos'), '--params', str(tmp_path / 'run' / 'epoch-0001.params'), '--json']
    capsys.readouterr()
    assert main(evaluation) == 0
    assert json.loads(capsys.readouterr().out)['input']['channels'] == 1


def test_the_row_has_the_accuracy_of_the_packed_network_and_its_interval(folder):
    row = find_stored(folder, NAME)
    assert main(['evaluate', NAME, 'digits', '--output', str(folder / 'predictions.csv')]) == 0
    lines = (folder / 'predictions.csv').read_text().splitlines()[1:]
    correct = sum(label == found for _, label, found, _ in (line.split(',') for line in lines))
    assert (row.correct, row.images, row.epochs) == (correct, len(lines), 1)
    share = row.correct / row.images
    for bound in row.interval:  # at which the share is 1.96 standard errors away
        assert abs(share - bound / 100) == pytest.approx(1.96 * np.sqrt(bound / 100 * (1 - bound / 100) / row.images), rel=0.01)
    assert f'{row.top1} %' in (folder / f'{NAME}.md').read_text()
    assert len((folder / f'{NAME}-metrics.csv').read_text().splitlines()) == 1 + row.epochs


def test_names_without_weights_build_the_network_and_lists_have_it(folder, capsys):
    assert get_model('TinyDigits').output.bias.shape == (10,) and get_model(NAME, classes=3).output.bias.shape == (3,)
    assert get_model(NAME, classes=3, pretrained=True).output.bias.shape == (3,)
    assert gluoncv.model_zoo.get_model(NAME).output.bias.shape == (10,)
    assert NAME in get_model_list() and list_models('tiny*', pretrained=True) == list_models('tiny*', pretrained='bmx-melius') == [NAME]
    assert main(['models', 'tiny_digits']) == 0
    printed = capsys.readouterr().out
    assert 'ships with it, Apache-2.0' in printed and '8 x 8' in printed and f'{find_stored(folder, NAME).top1:.2f}' in printed
    assert main(['models', NAME, '--json']) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row['weights'][0]['pretrained'] is True and row['input_shape'] == [1, 1, 8, 8] and row['ops'] > 0


def test_commands_take_the_name_in_the_place_of_a_prefix(folder, tmp_path, capsys):
    pixels = np.random.default_rng(1).integers(0, 256, (10, 10, 1), np.uint8)
    np.save(tmp_path / 'image.npy', pixels)
    assert main(['predict', NAME, str(tmp_path / 'image.npy'), '--json']) == 0
    assert len(json.loads(capsys.readouterr().out)['predictions'][0]['top']) == 5
    assert main(['bench', 'TinyDigits', '--repetitions', '1', '--json']) == 0
    assert json.loads(capsys.readouterr().out)['input_shape'] == [1, 1, 8, 8]
    assert main(['export-c', NAME, str(tmp_path / 'c')]) == 0 and (tmp_path / 'c' / f'{NAME}.h').exists()
    assert list(load_networks([NAME, f'other={NAME}'], find=options.exported_network)) == [NAME, 'other']


def test_files_of_this_name_in_the_current_folder_come_first(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / f'{NAME}-symbol.json').write_text('{}')
    assert options.exported_network(NAME).prefix == NAME


@pytest.mark.parametrize('ending', ['-symbol.json', '-0000.params', '.params'])
def test_damaged_and_missing_files_are_named(folder, ending, capsys):
    path = pathlib.Path(folder, NAME + ending)
    path.write_bytes(path.read_bytes()[:-1] + b'x')

    def use():
        return get_model(NAME, pretrained=True) if ending == '.params' else packed(NAME)

    with pytest.raises(bmx.UserError, match=f'{NAME}{ending} is damaged: its SHA-256 is .*, not .*: install bmx-melius again'):
        use()
    path.unlink()
    with pytest.raises(bmx.UserError, match=f'{NAME}{ending} is missing'):
        use()
    if ending != '.params':
        assert main(['predict', NAME, 'image.png']) == 2 and f'{NAME}{ending} is missing' in capsys.readouterr().err


def test_networks_without_weights_of_the_project_are_named():
    with pytest.raises(bmx.UserError, match='no packed files of meliusnet22; networks with weights of this project'):
        packed('meliusnet22')
    with pytest.raises(bmx.UserError, match='no weights of meliusnet22'):
        get_model('meliusnet22', pretrained=True)


def test_arguments_that_do_not_fit_the_weights_are_refused(folder):
    with pytest.raises(bmx.UserError, match='do not fit the network: .*omit growth_rate'):
        get_model(NAME, pretrained=True, growth_rate=64)


def test_weights_in_half_precision_keep_their_signs(tool):
    weights = np.array([-1e-30, 1e-30, -0.0, 0.0, -1.5, 3e-8, -3e-8, 60000], np.float32)
    half = tool.with_signs(weights)
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half >= 0, weights >= 0)
    with pytest.raises(ValueError, match='float16'):
        tool.with_signs(np.array([70000], np.float32))


def test_an_unfinished_run_is_refused(tool, stored, tmp_path):
    from bmx_melius.training.saving.stored_checkpoints import read_state, write_state

    run = shutil.copytree(stored / 'run', tmp_path / 'run')
    state = read_state(str(run / 'checkpoint.json'))
    state['options']['num_epochs'] = 2
    write_state(str(run / 'checkpoint.json'), {key: value for key, value in state.items() if key != 'checksum'})
    with pytest.raises(bmx.UserError, match='is not finished: 1 of 2 epochs'):
        tool.store(NAME, run, 'digits', folder=tmp_path)
