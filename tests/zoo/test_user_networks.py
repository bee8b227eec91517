"""Networks that a function of the user builds, and training as a command of bmx-melius."""

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
from mxnet import nd

import model_zoo
from bmx_melius import UserError
from bmx_melius.__main__ import main
from bmx_melius.training.saving.stored_checkpoints import read_last, write_state
from bmx_melius.training.series import run_series
from model_zoo import get_model

MODULE = """
from mxnet.gluon import nn
import bmx_melius as bmx


def make_net(classes, width=8):
    net = nn.HybridSequential()
    net.add(nn.Conv2D(width, 3, padding=1), nn.BatchNorm(), bmx.BinaryConv2D(width, kernel_size=3, padding=1))
    net.add(nn.BatchNorm(), nn.GlobalAvgPool2D(), nn.Flatten(), nn.Dense(classes))
    return net


def unnormalized(classes):
    net = nn.HybridSequential()
    net.add(bmx.BinaryConv2D(8, 3, padding=1), nn.PReLU(), bmx.BinaryConv2D(8, 3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(classes))
    return net


def layers(classes):
    return [nn.Dense(classes)]


def raises(classes):
    raise KeyError('stem')


def needs(classes):
    import no_such_package


def maps(classes):
    return nn.Conv2D(classes, 3)


number = 3
"""
NAME = 'nets.small:make_net'


def line_of(text):
    """Return the number of the line of `MODULE` that contains a text."""
    return MODULE[: MODULE.index(text)].count('\n') + 1


DIGITS = ['--dataset', 'digits', '--batch-size', '256', '--num-epochs', '1']


@pytest.fixture(scope='module')
def folder(make_once):
    """A folder with the package `nets`, and the run of a network from it, which the installed command trained in a separate process."""

    def make(path):
        (path / 'nets').mkdir()
        (path / 'nets' / 'small.py').write_text(MODULE)
        flags = [*DIGITS, '--model', NAME, '--model-options', '{"width": 12}', '--save-dir', 'run']
        done = subprocess.run(
            [sys.executable, '-m', 'bmx_melius', 'train', *flags],
            cwd=path,
            env={**os.environ, 'PYTHONPATH': os.pathsep.join(sys.path[1:])},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0 and 'the best network is' in done.stdout, done.stderr

    return make_once('user-network', make)


@pytest.fixture
def elsewhere(monkeypatch, tmp_path):
    """Make an empty folder the current one, and forget modules that were imported from others."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, 'path', list(sys.path))
    for name in ('nets', 'nets.small'):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield
    for name in ('nets', 'nets.small'):
        sys.modules.pop(name, None)


@pytest.fixture
def there(elsewhere, folder, monkeypatch):
    """Make the folder with the package `nets` the current one."""
    monkeypatch.chdir(folder)


def test_the_description_of_a_trained_network_builds_it_and_its_weights_fit(there, folder):
    model = json.loads((folder / 'run' / 'make_net-summary.json').read_text())['model']
    assert model == {'name': NAME, 'classes': 10, 'width': 12}
    net = get_model(**model)
    net.load_parameters(str(folder / 'run' / 'epoch-0001.params'))
    assert net(nd.zeros((2, 1, 8, 8))).shape == (2, 10)


def test_a_checkpoint_is_evaluated_where_the_module_is_and_named_where_it_is_not(there, folder, run, monkeypatch, tmp_path):
    weights = folder / 'run' / 'epoch-0001.params'
    status, output, errors = run('evaluate', NAME, 'digits', '--params', weights, '--json')
    assert status == 0, errors
    assert json.loads(output)['top1'] == json.loads(run('evaluate', 'run/make_net', 'digits', '--json')[1])['top1']
    sys.path.remove(str(folder))
    for name in ('nets', 'nets.small'):
        del sys.modules[name]
    monkeypatch.chdir(tmp_path)
    status, _, errors = run('evaluate', NAME, 'digits', '--params', weights)
    assert status == 2 and f'there is no module nets in the current folder {tmp_path}' in errors


def test_exported_files_need_no_module(elsewhere, folder, run, tmp_path):
    status, output, errors = run('convert', folder / 'run' / 'make_net', 'packed')
    assert status == 0 and '1 binary layer ' in output, errors
    assert run('evaluate', 'packed', 'digits')[0] == 0


def test_a_run_is_resumed_with_the_function(there, folder, tmp_path, capsys):
    shutil.copytree(folder / 'run', tmp_path / 'run')
    assert main(['train', '--resume', '--save-dir', str(tmp_path / 'run'), '--model', NAME]) == 0
    assert 'continuing at epoch 2' in capsys.readouterr().out


@pytest.mark.parametrize('file', ['checkpoint.json', run_series.FILE])
def test_a_function_that_only_the_folder_of_a_run_names_is_not_executed(file, there, folder, tmp_path, monkeypatch, capsys):
    (tmp_path / 'evil.py').write_text('open("was here", "w").close()\n')
    monkeypatch.chdir(tmp_path)
    run_folder = tmp_path / 'run'
    shutil.copytree(folder / 'run', run_folder)
    state = read_last(str(run_folder))
    options = {**state['options'], 'model': 'evil:make_net', 'save_dir': str(run_folder)}
    if file == run_series.FILE:
        (run_folder / file).write_text(json.dumps(options))
    else:
        write_state(str(run_folder / file), {**state, 'options': options})
    assert main(['train', '--resume', '--save-dir', str(run_folder)]) == 2
    assert 'by the Python function evil:make_net: give --model evil:make_net as well, if it may be executed' in capsys.readouterr().err
    assert not (tmp_path / 'was here').exists()


def test_names_of_parameters_do_not_depend_on_other_networks(there):
    first, second = (get_model(NAME, classes=2, prefix='own_') for _ in range(2))
    assert list(first.collect_params()) == list(second.collect_params())
    assert all(name.startswith('own_') for name in first.collect_params())


@pytest.mark.parametrize(
    'name, words',
    [
        ('nowhere:make_net', 'there is no module nowhere in the current folder'),
        ('nets.nowhere:make_net', 'there is no module nets.nowhere'),
        ('nets.small:nothing', 'small.py has no nothing'),
        ('nets:make_net', 'the network nets:make_net cannot be built: nets has no make_net'),
        ('sys:make_net', 'the network sys:make_net cannot be built: sys has no make_net'),
        ('nets.small:number', 'small.py has an uncallable number'),
        ('nets.small:', 'does not name a network'),
        ('nets.broken:make', 'importing nets.broken raises ZeroDivisionError'),
        ('nets.needy:make', 'it imports no_such_package, which is not installed'),
        ('nets.small:layers', 'returned list: it must return a network'),
        ('nets.small:raises', "nets.small:raises raises KeyError: 'stem' ("),
        ('nets.small:raises', f'small.py, line {line_of("raise KeyError")})'),
        ('nets.small:needs', "nets.small:needs raises ModuleNotFoundError: No module named 'no_such_package'"),
        (
            'nets.small:maps',
            'nets.small:maps gives outputs of the shape (1, 10, 6, 6) for an image, but training needs one of the shape (1, 10)',
        ),
    ],
)
def test_a_function_that_cannot_be_used_is_one_clear_error(there, folder, name, words, run):
    (folder / 'nets' / 'broken.py').write_text('1 / 0\n')
    (folder / 'nets' / 'needy.py').write_text('import no_such_package\n')
    status, _, errors = run('train', *DIGITS, '--model', name, '--save-dir', 'new')
    assert status == 2 and len(errors.splitlines()) == 1 and words in errors


def test_arguments_that_a_function_does_not_take_are_refused(there):
    with pytest.raises(UserError, match='nets.small:make_net does not take the arguments classes, widht'):
        get_model(NAME, widht=3)
    with pytest.raises(UserError, match='publishes no weights of nets.small:make_net'):
        get_model(NAME, pretrained=True)


def test_the_train_command_shows_the_help_of_the_training_program(capsys):
    with pytest.raises(SystemExit) as left:
        main(['train', '--help'])
    output = capsys.readouterr().out
    assert left.value.code == 0 and output.startswith('usage: bmx-melius train ') and '--freeze PATTERN' in output


def test_names_without_a_colon_are_no_paths():
    assert model_zoo.listed_name('no.such.network') is None
    assert not model_zoo.takes_option('nets.small:make_net', 'bits')
    np.testing.assert_equal(model_zoo.listed_name('meliusnet_22'), 'meliusnet22')


@pytest.mark.parametrize('flags', [['--dry-run'], []])
def test_the_plan_of_a_run_has_the_problems_that_the_check_of_the_network_finds(there, flags, tmp_path, capsys):
    run = ['--save-dir', str(tmp_path / 'run')]
    assert main(['train', *DIGITS, '--model', 'nets.small:unnormalized', *flags, *run]) == 0
    output = capsys.readouterr().out
    assert re.search(r'^check +bmx.check finds \d problems', output, re.MULTILINE), output
    assert re.search(r'^ +\S*qactivation0: .* of its channels have one value', output, re.MULTILINE), output
    assert main(['train', *DIGITS, '--model', NAME, '--dry-run', '--save-dir', str(tmp_path / 'other')]) == 0
    assert 'check      bmx.check finds no problem' in capsys.readouterr().out
