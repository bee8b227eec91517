"""Studies: their files say what train_imagenet.py understands; runs are resumed, skipped, and their results put together correctly."""

import contextlib
import fcntl
import io
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import fine_tuning
import jobs
import measurements
import numpy as np
import pytest
import run as runner
import yaml
from results import draw_flips, is_finished, summarize
from study import HERE, SCALES, known_studies, read_study
from support.conversions import imported
from support.training_runs import accuracy_on_test_digits, description_of, error_of, read_csv

import model_zoo
import train_imagenet
from bmx_melius import UserError, summary
from bmx_melius.nn.layers import binary_weights
from bmx_melius.training.network import model_arguments
from bmx_melius.training.options.parsing import parse_options

SCRIPT = HERE / 'run.py'
NETWORK = {'model': 'meliusnet_flex', 'model-options': {'block_numbers': [1], 'transitions': [], 'growth_rate': 8, 'init_features': 8}}
TINY = {
    'title': 'Rates',
    'compare': 'rate',
    'latency': True,
    'flags': {'dataset': 'digits', 'num-epochs': 2, 'batch-size': 128, 'save-frequency': 0, 'track-flips': True, **NETWORK},
    'axes': {'rate': {'low': {'lr': 0.001}, 'high': {'lr': 0.03}, 'broken': {'model-options': {'block': 'brick'}}}},
    'seeds': [3, 4],
}


TUNE = {'flag': 'lr-factor', 'values': [0.001, 1], 'seed': 7, 'flags': {'num-epochs': 1}}


def write_study(folder, content, name='tiny'):
    path = folder / f'{name}.yaml'
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    return path


def printed_by(*arguments, status=0):
    """Run the program in this process; return what it printed."""
    handler = signal.getsignal(signal.SIGTERM)  # which the program sets
    try:
        with contextlib.redirect_stdout(io.StringIO()) as output:
            assert runner.main([*map(str, arguments)]) == status
    finally:
        signal.signal(signal.SIGTERM, handler)
    return output.getvalue()


# --- files ----------------------------------------------------------------------------------------------------------------------------


DATASETS = {None: 'imagenet', 'quick': 'digits', 'fashion': 'fashion-mnist'}


@pytest.mark.parametrize('name, scale', [(name, scale) for scale in (None, *SCALES) for name in known_studies(scale)])
def test_every_command_of_a_study_is_one_that_can_be_trained(name, scale, tmp_path, capsys):
    arguments = [name, '--dry-run', '--out', str(tmp_path), *([f'--{scale}'] if scale else [])]
    assert runner.main(arguments) == 0
    commands = [shlex.split(line) for line in capsys.readouterr().out.splitlines() if not line.startswith('# ')]
    study = read_study(name, scale)
    assert len(commands) == len(study.runs()) + len(study.rows) * len(study.tuning.values if study.tuning else ()) > 1
    folders, networks = set(), []
    for _, script, *words in commands:
        assert script == train_imagenet.__file__
        config = parse_options(words, model_zoo)
        dataset = 'glyphs' if (name, scale) == ('methods', 'quick') else DATASETS[scale]
        assert (config.dataset, config.use_rec) == (dataset, scale is None)
        networks.append(model_arguments(config, classes=10))
        folders.add(config.save_dir)
    assert len(folders) == len(commands)
    for number, network in enumerate(networks):
        if network not in networks[:number]:  # for several seeds networks are made once
            model_zoo.get_model(**network)
    names = [row.name for row in study.rows]
    assert len({row.folder for row in study.rows}) == len(names)
    assert all(row.baseline is None or row.baseline in names for row in study.rows) and any(row.baseline for row in study.rows)
    assert study.seeds == ((1, 2, 3) if scale else (1,))
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


def test_rows_may_have_flags_that_belong_to_no_axis_or_be_left_out(tmp_path):
    study = read_study(str(write_study(tmp_path, {**TINY, 'rows': {'high': {'lr': 3, 'model-options': {'bits': 32}}, 'broken': False}})))
    assert [(row.name, row.baseline) for row in study.rows] == [('low', None), ('high', 'low')]
    assert study.rows[1].flags['lr'] == 3 and study.rows[1].flags['model-options'] == {**NETWORK['model-options'], 'bits': 32}


def full_size(study):
    """The operations and the size of the network of each row on images of 224x224, and its configuration, by the name of the row."""
    found = {}
    for row in read_study(study).rows:
        config = parse_options([*row.arguments(1), '--save-dir', '/nowhere'], model_zoo)
        counts = summary(model_zoo.get_model(**model_arguments(config, classes=1000))).counts
        found[row.name] = counts['ops'], counts['size_bytes'] / 2**20, config
    return found


# Operations in the paper's table 2 with the 7x7 and with the grouped stem, in units of 10^8. It prints 1.93, 2.57, 2.71 and 2.63 where
# counting gives 1.92, 2.575, 2.695 and 2.635.
TABLE_2 = {
    'resnet_e18': (1.63, 1.14),
    'binary_densenet28': (2.58, 2.09),
    'meliusnet22': (2.57, 2.08),
    'resnet_e34': (1.93, 1.43),
    'binary_densenet37': (2.71, 2.20),
    'meliusnet29': (2.63, 2.14),
}


def test_rows_may_have_fewer_seeds(tmp_path):
    study = read_study(str(write_study(tmp_path, {**TINY, 'row_seeds': {'high': 1}})))
    assert [(row.name, seed) for row, seed in study.runs()] == [('low', 3), ('high', 3), ('broken', 3), ('low', 4), ('broken', 4)]
    assert [(row.name, seed) for row, seed in study.runs([7])] == [('low', 7), ('high', 7), ('broken', 7)]


def test_the_study_of_stems_has_the_rows_of_table_2():
    rows = full_size('stems')
    for network, (imagenet, grouped) in TABLE_2.items():
        assert rows[f'{network}, 7x7'][0] == pytest.approx(imagenet * 1e8, abs=0.016e8)
        assert rows[f'{network}, grouped'][0] == pytest.approx(grouped * 1e8, abs=0.016e8)
        assert {rows[f'{network}, {method}'][2].preset for method in ('7x7', 'grouped')} == {'meliusnet'}
    original = {name: row for name, row in rows.items() if name.endswith('original')}
    presets = {name.split(',')[0]: row[2].preset for name, row in original.items()}
    assert presets == {
        'resnet_e18': 'resnet-e',
        'resnet_e34': 'birealnet',
        'binary_densenet28': 'binary-densenet',
        'binary_densenet37': 'binary-densenet',
    }
    for name, (ops, _, config) in original.items():
        assert config.initial_layers == 'imagenet'
        assert ops == pytest.approx(TABLE_2[name.split(',')[0]][0] * 1e8, abs=0.016e8)
    assert len(rows) == 16


def test_the_study_of_bits_has_the_float_networks_of_section_4_2():
    rows = full_size('bits')
    for name, ops, size in (('meliusnet', 4.5e9, 20.87), ('densenet', 4.0e9, 19.58)):
        counted_ops, counted_size, config = rows[f'{name}, 32 bit']
        assert counted_ops == pytest.approx(ops, abs=0.05e9) and counted_size == pytest.approx(size, abs=0.005)
        assert (config.optimizer, config.lr, config.num_epochs, config.warmup_epochs) == ('sgd', 0.1, 90, 5)
        assert config.momentum and config.lr_mode == 'cosine' and config.augmentation == 'high'
        assert rows[f'{name}, binary'][2].bits == 1


def test_the_study_of_blocks_has_the_networks_of_supplement_b():
    rows = full_size('blocks')
    for name, size in (('none', 4.0), ('naive', 3.3), ('improvement', 3.9)):
        ops, counted_size, config = rows[name]
        assert ops == pytest.approx(2.58e8, abs=0.01e8) and counted_size == pytest.approx(size, abs=0.05)
        assert (config.num_epochs, config.lr, config.lr_decay, config.lr_decay_epoch) == (40, 0.001, 0.1, [35, 37])


def test_the_study_of_optimizers_trains_resnet_e18_by_three_optimizers_and_counts_flips():
    configs = {name: config for name, (_, _, config) in full_size('optimizers').items()}
    assert {(name, config.optimizer, config.warmup_epochs) for name, config in configs.items()} == {
        ('radam', 'radam', 0),
        ('adam', 'adam', 5),
        ('sgd', 'sgd', 5),
    }
    for config in configs.values():
        assert config.model == 'resnet_e18' and config.track_flips and config.num_epochs == 120
    weights = list(binary_weights(model_zoo.get_model('resnet_e18')).values())
    assert 'stage1' in weights[0].name and 'stage4' in weights[-1].name, 'the plot shows the first and the last layer'


@pytest.mark.parametrize(
    'change, words',
    [
        ({'title': 3}, 'title must be a str'),
        ({'axis': {}}, 'unknown key axis; known: title'),
        ({'compare': 'lr'}, '`compare` must be one of the axes rate, not lr'),
        ({'axes': {'rate': {'low': 0.1}}}, 'rate low must be a mapping'),
        ({'axes': {'rate': None}}, 'the axis rate must be a mapping of its values to flags, not None'),
        ({'rows': {'lower': {}}}, 'there is no row lower; known: low; high; broken'),
        ({'rows': {'high': 0.1}}, 'rows: high must be a mapping of flags, or false'),
        ({'rows': {'low': False}}, 'low is left out, but high is compared with it'),
        ({'row_seeds': {'lower': 1}}, 'row_seeds: lower: 1 is not a row with a positive number of seeds'),
        ({'row_seeds': {'low': 0}}, 'row_seeds: low: 0 is not a row with a positive number of seeds'),
        ({'tune': {**TUNE, 'values': [1]}}, 'tune needs two or more values, and a seed that the study does not use'),
        ({'tune': {**TUNE, 'seed': 3}}, 'a seed that the study does not use, not one of [3, 4]'),
        ({'tune': {**TUNE, 'flags': 3}}, 'tune: flags must be a dict, not 3'),
        ({'tune': {**TUNE, 'rate': 3}}, 'tune: unknown key rate'),
    ],
)
def test_mistakes_in_a_study_are_named(change, words, tmp_path, capsys):
    path = write_study(tmp_path, {**TINY, **change})
    assert runner.main([str(path), '--dry-run']) == 2
    error = error_of(capsys)
    assert error.startswith(f'error: {path}') and words in error


@pytest.mark.parametrize(
    'arguments, words',
    [
        ([], 'no study is given: choose from bits, blocks'),
        (['blocs'], 'there is no study blocs; known: bits, blocks'),
        (['blocks', '--seeds', '1,1'], 'different non-negative numbers'),
        (['TINY', '--quick'], 'has no key `quick`'),
        (['TINY', '--rows', 'lower', '--dry-run'], 'the study tiny has no row lower; its rows: low; high; broken'),
        (['BROKEN'], 'is not a valid YAML file'),
    ],
)
def test_mistakes_in_the_arguments_are_named(arguments, words, tmp_path, capsys):
    (tmp_path / 'broken.yaml').write_text('a: [')
    paths = {'TINY': write_study(tmp_path, TINY), 'BROKEN': tmp_path / 'broken.yaml'}
    assert runner.main([str(paths.get(word, word)) for word in arguments]) == 2
    assert words in error_of(capsys)


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
    (folder / PRINTED).write_text(printed_by(folder / 'tiny.yaml', '--out', folder, '--jobs', 2, status=1))


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
            epochs = read_csv(folder / 'tiny' / row / f'seed{seed}' / 'metrics.csv')
            assert len(epochs) == 2
            metrics[row, seed] = {key: np.array([float(epoch[key]) for epoch in epochs]) for key in ('top1', 'train_top1', 'seconds')}
            flips = [epoch for epoch in read_csv(folder / 'tiny' / row / f'seed{seed}' / 'flips.csv') if epoch['layer'] == 'all']
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
        expected[row]['test_top1'] = [
            accuracy_on_test_digits(imported(folder / 'tiny' / row / f'seed{seed}' / 'meliusnet_flex')) for seed in (3, 4)
        ]
    expected['high']['difference'] = np.subtract(expected['high']['test_top1'], expected['low']['test_top1'])

    rows = {row['name']: row for row in json.loads((folder / 'tiny' / 'summary.json').read_text())['rows']}
    flat = {row['row']: row for row in read_csv(folder / 'tiny' / 'summary.csv')}
    counts = description_of(folder / 'tiny' / 'low' / 'seed3')['counts']
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
    assert (folder / 'tiny' / 'flips.png').stat().st_size > 5000


def test_the_plot_of_flips_shows_the_percentiles_of_the_first_and_the_last_binary_layer(finished):
    folder, _ = finished
    study = read_study(str(folder / 'tiny.yaml'))
    runs = [jobs.Run(row, seed, folder / 'tiny' / row.folder / f'seed{seed}', []) for row in study.rows for seed in study.seeds]
    figure = draw_flips(study, summarize(study, runs))
    axes = np.array(figure.axes).reshape(2, 2)  # layers, rows with results
    for name, column in zip(('low', 'high'), axes.T):
        files = [read_csv(folder / 'tiny' / name / f'seed{seed}' / 'flips.csv') for seed in study.seeds]
        tables = [[row for row in rows if row['layer'] != 'all'] for rows in files]
        layers = list(dict.fromkeys(row['layer'] for row in tables[0]))
        for layer, part in zip((layers[0], layers[-1]), column):
            assert name in part.get_title() and layer in part.get_title()
            lines = {line.get_label(): list(line.get_ydata()) for line in part.lines}
            for label, percentile in (('95 %', 'p95'), ('50 %', 'p50'), ('maximum', 'p100')):
                values = [[float(row[percentile]) for row in table if row['layer'] == layer] for table in tables]
                assert lines[label] == pytest.approx(np.mean(values, axis=0))


def test_packed_networks_are_timed_and_the_processor_is_named(finished):
    folder, printed = finished
    latency = json.loads((folder / 'tiny' / 'latency.json').read_text())
    rows = {row['name']: row for row in json.loads((folder / 'tiny' / 'summary.json').read_text())['rows']}
    assert set(latency['rows']) == {'low', 'high'} and all(0 < row['seconds'] < 1 for row in latency['rows'].values())
    assert {name: row['latency'] for name, row in rows.items() if row['latency']} == {
        name: row['seconds'] for name, row in latency['rows'].items()
    }
    assert latency['processor'] in printed


def test_the_test_images_in_a_given_folder_are_evaluated(monkeypatch, copied_study):
    study, commands = read_study(str(copied_study / 'tiny.yaml')), []
    run = jobs.Run(study.rows[0], 3, copied_study / 'tiny' / 'low' / 'seed3', [])
    (run.folder / 'test.json').unlink()
    monkeypatch.setattr(measurements, '_bmx_melius', lambda *command: commands.append(command) or '{"top1": 0.5}')
    measurements.measure_accuracy([run], '/images')
    ((_, prefix, *words),) = commands
    assert prefix.startswith(str(run.folder)) and words == ['digits', '--data-dir', '/images', '--json']
    assert json.loads((run.folder / 'test.json').read_text()) == {'top1': 0.5}
    assert '--test-dir' in runner.make_parser().format_help()


def test_a_measurement_that_fails_is_named_and_an_interrupted_one_stops_the_study(monkeypatch, tmp_path):
    with pytest.raises(UserError, match='evaluate .*none digits: .*none'):
        measurements._bmx_melius('evaluate', tmp_path / 'none', 'digits')
    monkeypatch.setattr(measurements, 'main', lambda arguments: 128 + signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        measurements._bmx_melius('info')


def test_finished_runs_are_not_trained_again_and_the_rest_of_a_study_can_be_chosen_by_seeds(copied_study):
    folder = copied_study
    logs = {path: path.read_bytes() for path in folder.glob('tiny/*/seed*/experiment.log')}
    printed = printed_by(folder / 'tiny.yaml', '--out', folder, '--seeds', '3', status=1)
    assert '| high | 1 |' in printed and '±' not in printed.split('Mean')[0]  # one run has no spread
    assert logs == {path: path.read_bytes() for path in folder.glob('tiny/*/seed*/experiment.log')}


def test_runs_with_other_flags_and_folders_in_use_are_not_changed(copied_study):
    folder = copied_study
    printed = printed_by(folder / 'tiny.yaml', '--out', folder, '--seeds', '4', '--', '--wd', '0.5', status=1)
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


# --- tuning ---------------------------------------------------------------------------------------------------------------------------

TUNED = {
    **{key: TINY[key] for key in ('title', 'compare', 'flags')},
    'axes': {'rate': {'adam': {'optimizer': 'adam'}, 'radam': {}}},
    'seeds': [3],
    'tune': TUNE,
}


@pytest.mark.long
def test_each_row_is_trained_with_the_value_whose_trial_run_was_best_on_validation_images(tmp_path):
    printed = printed_by(write_study(tmp_path, TUNED), '--out', tmp_path, '--rows', 'adam')
    folder = tmp_path / 'tiny' / 'adam'
    accuracy = {}
    for value in TUNED['tune']['values']:
        (epoch,) = read_csv(folder / f'lr-factor-{value}' / 'metrics.csv')
        accuracy[value] = float(epoch['top1'])
        assert json.loads((folder / f'lr-factor-{value}' / 'command.json').read_text())[-4:] == ['--lr-factor', str(value), '--seed', '7']
    best = max(accuracy, key=accuracy.get)
    assert accuracy[1] != accuracy[0.001]
    assert json.loads((folder / 'seed3' / 'command.json').read_text())[-4:] == ['--seed', '3', '--lr-factor', str(best)]
    assert f'| adam | 1 | {best} |' in printed and '--lr-factor' in printed
    assert json.loads((tmp_path / 'tiny' / 'summary.json').read_text())['rows'][0]['tuned'] == best
    assert not (tmp_path / 'tiny' / 'radam').exists()


def test_the_table_has_the_value_that_was_chosen_for_each_row(tmp_path):
    study = read_study(str(write_study(tmp_path, TUNED)))
    runs = runner.final_runs(study, tmp_path, [], None, {'adam': 10, 'radam': 3})
    assert [(row['name'], row['tuned']) for row in summarize(study, runs)] == [('adam', 10), ('radam', 3)]


def test_a_dry_run_shows_the_trial_runs_before_the_others(tmp_path, capsys):
    assert runner.main([str(write_study(tmp_path, TUNED)), '--out', str(tmp_path), '--dry-run']) == 0
    *trials, heading = capsys.readouterr().out.partition('# then, with the best --lr-factor of each row:')[:2]
    assert heading and [line.split('--lr-factor ')[1].split()[0] for line in trials[0].splitlines()] == ['0.001', '1'] * 2


# --- fine-tuning on few images --------------------------------------------------------------------------------------------------------


def test_images_of_a_draw_are_divided_into_training_and_test(tmp_path):
    images = {digit: np.random.RandomState(digit).randint(0, 256, (30, 784)).astype(np.uint8) for digit in (3, 5)}
    fine_tuning.write_images(images, (3, 5), np.random.RandomState(1), tmp_path)
    for digit in (3, 5):
        train, val, test = ({path.name for path in (tmp_path / part / str(digit)).iterdir()} for part in ('train', 'val', 'test'))
        assert len(train) == fine_tuning.IMAGES and len(test) == 10 and val < test and not train & test


def test_the_table_of_fine_tuning_has_differences_draw_by_draw_with_their_interval():
    found = {way: [0.5, 0.6, 0.7] for way in fine_tuning.WAYS}
    found['binary, all layers'] = [0.6, 0.8, 0.8]  # 10, 20 and 10 points more: t of 2 degrees of freedom is 4.303, the error 3.333
    rows = dict(line.strip('| ').split(' | ', 1) for line in fine_tuning.table(dict.fromkeys(found, 0.03), found) if ' | ' in line)
    assert rows['binary, all layers'] == '0.03 | 73.3 ± 11.5 | +13.3 (-1.0 to +27.7)'
    assert rows['binary, random weights'] == '0.03 | 60.0 ± 10.0'
    assert rows['float, all layers'].endswith('+0.0 (+0.0 to +0.0)')
