"""Studies: their files say what train_imagenet.py understands; runs are resumed, skipped, and their results put together correctly."""

import csv
import fcntl
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import jobs
import mxnet as mx
import numpy as np
import pytest
import run as runner
import yaml
from results import is_finished
from study import HERE, known_studies, read_study

import model_zoo
import train_imagenet
from bmx_melius.data.small_images import open_digits
from bmx_melius.training.flags import parse_flags
from bmx_melius.training.network import model_arguments

SCRIPT = HERE / 'run.py'
NETWORK = {'model': 'meliusnet_flex', 'model-options': {'block_numbers': [1], 'transitions': [], 'growth_rate': 8, 'init_features': 8}}
TINY = {
    'title': 'Rates',
    'compare': 'rate',
    'latency': True,
    'flags': {'dataset': 'digits', 'num-epochs': 2, 'batch-size': 64, 'save-frequency': 0, 'track-flips': True, **NETWORK},
    'axes': {'rate': {'low': {'lr': 0.001}, 'high': {'lr': 0.03}, 'broken': {'model-options': {'block': 'brick'}}}},
    'seeds': [3, 4],
}


def write_study(folder, content, name='tiny'):
    path = folder / f'{name}.yaml'
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def run_apart(*arguments, status=0):
    """Run the program in a process of its own; return what it printed."""
    done = subprocess.run([sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


# --- files ----------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('quick', [False, True], ids=['imagenet', 'quick'])
@pytest.mark.parametrize('name', known_studies())
def test_every_command_of_a_study_is_one_that_can_be_trained(name, quick, tmp_path, capsys):
    arguments = [name, '--dry-run', '--out', str(tmp_path), *(['--quick'] if quick else [])]
    assert runner.main(arguments) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines()]
    study = read_study(name, quick)
    assert len(commands) == len(study.rows) * len(study.seeds) > 1
    folders = set()
    for _, script, *words in commands:
        assert script == train_imagenet.__file__
        config = parse_flags(words, model_zoo)
        small = 'glyphs' if name == 'methods' else 'digits'
        assert (config.data.dataset, config.data.use_rec) == ((small, False) if quick else ('imagenet', True))
        model_zoo.get_model(**model_arguments(config.network, classes=10))
        folders.add(config.output.save_dir)
    assert len(folders) == len(commands)
    names = [row.name for row in study.rows]
    assert len({row.folder for row in study.rows}) == len(names)
    assert all(row.baseline is None or row.baseline in names for row in study.rows) and any(row.baseline for row in study.rows)
    assert study.seeds == ((1, 2, 3) if quick else (1,))
    assert (HERE / f'{name}.yaml').read_text().startswith('# ')  # what of the paper it is


def test_list_names_every_study_and_its_rows(capsys):
    assert runner.main(['--list']) == 0
    shown = capsys.readouterr().out
    for name in known_studies():
        assert re.search(rf'^{name}: ', shown, re.MULTILINE) and read_study(name).rows[-1].name in shown


def test_rows_are_all_combinations_each_with_a_baseline(tmp_path):
    content = {
        **TINY,
        'flags': {'use-rec': True, 'wd': 0, 'model-options': {'groups': 1, 'bits': 1}},
        'compare': 'b',
        'axes': {'a': {'x': {'wd': 1}, 'y': {'use-rec': False}}, 'b': {'p': {}, 'q': {'model-options': {'bits': 32}}}},
    }
    study = read_study(str(write_study(tmp_path, content)))
    assert [(row.name, row.baseline) for row in study.rows] == [('x, p', None), ('x, q', 'x, p'), ('y, p', None), ('y, q', 'y, p')]
    assert study.rows[1].arguments(7) == ['--use-rec', '--wd', '1', '--model-options', '{"groups": 1, "bits": 32}', '--seed', '7']
    assert study.rows[2].arguments(7) == ['--wd', '0', '--model-options', '{"groups": 1, "bits": 1}', '--seed', '7']


@pytest.mark.parametrize(
    'change, words',
    [
        ({'title': 3}, 'title must be a str'),
        ({'axis': {}}, 'unknown key axis; known: title'),
        ({'compare': 'lr'}, '`compare` must be one of the axes rate, not lr'),
        ({'axes': {'rate': {'low': 0.1}}}, 'rate low must be a mapping'),
    ],
)
def test_mistakes_in_a_study_are_named(change, words, tmp_path, capsys):
    path = write_study(tmp_path, {**TINY, **change})
    assert runner.main([str(path), '--dry-run']) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith(f'error: {path}') and words in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    'arguments, words',
    [
        ([], 'no study is given: choose from bits, blocks'),
        (['blocs'], 'there is no study blocs; known: bits, blocks'),
        (['blocks', '--seeds', '1,1'], 'different non-negative numbers'),
        (['TINY', '--quick'], 'has no key `quick`'),
        (['BROKEN'], 'is not a valid YAML file'),
    ],
)
def test_mistakes_in_the_arguments_are_named(arguments, words, tmp_path, capsys):
    (tmp_path / 'broken.yaml').write_text('a: [')
    paths = {'TINY': write_study(tmp_path, TINY), 'BROKEN': tmp_path / 'broken.yaml'}
    assert runner.main([str(paths.get(word, word)) for word in arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith('error: ') and words in error and len(error.splitlines()) == 1


def accuracy_on_test_digits(folder):
    """Accuracy of the exported network of a run on the test digits, computed with only MXNet."""
    prefix = folder / 'meliusnet_flex'
    net = mx.gluon.SymbolBlock.imports(f'{prefix}-symbol.json', ['data'], f'{prefix}-0000.params')
    pixels, labels = zip(*open_digits().test)
    inputs = (np.stack([image.asnumpy()[1:-1, 1:-1, 0] for image in pixels])[:, None] - 77.9) / 95.9
    return np.mean(net(mx.nd.array(inputs)).asnumpy().argmax(axis=1) == labels)


# --- runs -----------------------------------------------------------------------------------------------------------------------------

PRINTED = 'printed.txt'


@pytest.fixture(scope='module')
def finished(make_once):
    """The folder of a study that was interrupted in its first run and started again, and what it printed the second time."""
    folder = make_once('study', interrupt_and_finish_a_study)
    return folder, (folder / PRINTED).read_text()


@pytest.fixture
def copied_study(finished, tmp_path):
    """A copy of the folder of the study, for tests that change it."""
    return shutil.copytree(finished[0], tmp_path / 'study')


def interrupt_and_finish_a_study(folder):
    command = [sys.executable, str(SCRIPT), str(write_study(folder, TINY)), '--out', str(folder)]
    first = folder / 'tiny' / 'low' / 'seed3'
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        while not (first / 'checkpoint.json').exists():
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1]
    assert process.returncode == 128 + signal.SIGINT and 'the same command continues from here' in errors
    assert not is_finished(first) and len(list(folder.glob('tiny/*/seed*'))) == 1  # the others were not started
    (folder / PRINTED).write_text(run_apart(folder / 'tiny.yaml', '--out', folder, '--jobs', 2, status=1))


def test_interrupted_run_is_resumed_and_failing_runs_are_named_without_stopping_the_others(finished):
    folder, printed = finished
    assert 'continuing at epoch' in (folder / 'tiny' / 'low' / 'seed3' / 'output.log').read_text()
    for row in ('low', 'high'):
        for seed in (3, 4):
            assert is_finished(folder / 'tiny' / row / f'seed{seed}')
    for seed in (3, 4):
        assert f"- failed: broken, seed {seed}: error: unknown block 'brick'" in printed
    assert '| broken | 0 |' in printed


def test_table_holds_the_numbers_of_the_runs(finished):
    folder, printed = finished
    metrics = {}
    for row in ('low', 'high'):
        for seed in (3, 4):
            with open(folder / 'tiny' / row / f'seed{seed}' / 'metrics.csv', newline='') as file:
                epochs = list(csv.DictReader(file))
            assert len(epochs) == 2
            metrics[row, seed] = {key: np.array([float(epoch[key]) for epoch in epochs]) for key in ('top1', 'train_top1', 'seconds')}
            with open(folder / 'tiny' / row / f'seed{seed}' / 'flips.csv', newline='') as file:
                flips = [epoch for epoch in csv.DictReader(file) if epoch['layer'] == 'all']
            metrics[row, seed]['flips'] = np.array([float(epoch['mean']) for epoch in flips])
            metrics[row, seed]['flipped'] = np.array([float(epoch['flipped']) for epoch in flips])
    expected = {
        row: {
            'best_top1': [metrics[row, seed]['top1'].max() for seed in (3, 4)],
            'last_top1': [metrics[row, seed]['top1'][1] for seed in (3, 4)],
            'train_top1': [metrics[row, seed]['train_top1'][1] for seed in (3, 4)],
            'flips': [metrics[row, seed]['flips'].sum() for seed in (3, 4)],
            'flipped_last': [metrics[row, seed]['flipped'][1] for seed in (3, 4)],
            'seconds': [metrics[row, seed]['seconds'].sum() for seed in (3, 4)],
        }
        for row in ('low', 'high')
    }
    for row in expected:
        expected[row]['test_top1'] = [accuracy_on_test_digits(folder / 'tiny' / row / f'seed{seed}') for seed in (3, 4)]
    expected['high']['difference'] = np.subtract(expected['high']['test_top1'], expected['low']['test_top1'])

    rows = {row['name']: row for row in json.loads((folder / 'tiny' / 'summary.json').read_text())['rows']}
    with open(folder / 'tiny' / 'summary.csv', newline='') as file:
        flat = {row['row']: row for row in csv.DictReader(file)}
    counts = json.loads((folder / 'tiny' / 'low' / 'seed3' / 'meliusnet_flex-summary.json').read_text())['counts']
    for name, columns in expected.items():
        assert rows[name]['n'] == int(flat[name]['n']) == 2
        assert rows[name]['ops'] == float(flat[name]['ops']) == counts['ops']
        for key, values in columns.items():
            numbers = np.mean(values), np.std(values, ddof=1)
            assert [rows[name][key]['mean'], rows[name][key]['spread']] == pytest.approx(numbers)
            assert [float(flat[name][f'{key}_mean']), float(flat[name][f'{key}_spread'])] == pytest.approx(numbers)
        mean, spread = 100 * np.mean(columns['test_top1']), 100 * np.std(columns['test_top1'], ddof=1)
        assert f'| {name} | 2 | {mean:.1f} ± {spread:.1f} |' in printed
    assert rows['low']['difference'] is None and rows['high']['baseline'] == 'low'
    assert (folder / 'tiny' / 'summary.md').read_text() in printed
    assert (folder / 'tiny' / 'comparison.png').stat().st_size > 5000 and (folder / 'tiny' / 'tradeoff.png').stat().st_size > 5000
    differences = 100 * expected['high']['difference']
    half = 12.7062 * np.std(differences, ddof=1) / np.sqrt(2)  # the 97.5 % quantile of Student's t with one degree of freedom
    assert f'({np.mean(differences) - half:+.1f} to {np.mean(differences) + half:+.1f})' in printed


def test_packed_networks_are_timed_and_the_processor_is_named(finished):
    folder, printed = finished
    latency = json.loads((folder / 'tiny' / 'latency.json').read_text())
    rows = {row['name']: row for row in json.loads((folder / 'tiny' / 'summary.json').read_text())['rows']}
    assert set(latency['rows']) == {'low', 'high'} and all(0 < row['seconds'] < 1 for row in latency['rows'].values())
    assert {name: row['latency'] for name, row in rows.items() if row['latency']} == {
        name: row['seconds'] for name, row in latency['rows'].items()
    }
    assert latency['processor'] in printed


def test_finished_runs_are_not_trained_again_and_the_rest_of_a_study_can_be_chosen_by_seeds(copied_study):
    folder = copied_study
    logs = {path: path.read_bytes() for path in folder.glob('tiny/*/seed*/experiment.log')}
    printed = run_apart(folder / 'tiny.yaml', '--out', folder, '--seeds', '3', status=1)
    assert '| high | 1 |' in printed and '±' not in printed.split('Mean')[0]  # one run has no spread
    assert logs == {path: path.read_bytes() for path in folder.glob('tiny/*/seed*/experiment.log')}


def test_runs_with_other_flags_and_folders_in_use_are_not_changed(copied_study):
    folder = copied_study
    printed = run_apart(folder / 'tiny.yaml', '--out', folder, '--seeds', '4', '--', '--wd', '0.5', status=1)
    assert printed.count('holds a run of other flags: --dataset digits') == 2  # the third row never got as far as a checkpoint
    unknown = jobs.Run(read_study(str(folder / 'tiny.yaml')).rows[0], 5, folder / 'unknown', [])
    unknown.folder.mkdir()
    (unknown.folder / 'checkpoint.json').write_text('{}')
    unknown.check()
    assert 'holds a run of unknown flags (command.json: ' in unknown.failure
    run = jobs.Run(read_study(str(folder / 'tiny.yaml')).rows[0], 5, folder / 'used', [])
    run.folder.mkdir()
    with open(run.folder / jobs.LOCK, 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert run.start({}) is None and 'another process is still training in' in run.failure
