"""Flags in a file: the same as on the command line, which overrides them, and flags of a finished run."""

import json
import re

import pytest
import yaml
from support.training_runs import OPTIONS, TINY, assert_equal_files, refused, train

import model_zoo
from bmx_melius.training import run
from bmx_melius.training.loop import Training
from bmx_melius.training.options.parsing import parse_options

FLAGS = {
    'model': 'meliusnet_flex',
    'initial-layers': 'thumbnail',
    'model_options': OPTIONS,
    'dataset': 'digits',
    'lr-mode': 'step',
    'lr-decay-epoch': [1, 2],
    'lr': 1e-3,
    'track-flips': True,
    'mixup': False,
    'teacher': None,
    'early_stop': 3,
}
LINE = ['--model', 'meliusnet_flex', '--initial-layers', 'thumbnail', '--model-options', json.dumps(OPTIONS), '--dataset', 'digits']
LINE += ['--lr-mode', 'step', '--lr-decay-epoch', '1,2', '--lr', '0.001', '--track-flips', '--early-stop', '3']


def config_of(*arguments):
    return parse_options([*map(str, arguments)], model_zoo)


@pytest.mark.parametrize('name,write', [('a.yaml', yaml.safe_dump), ('a.json', json.dumps), ('a.yml', json.dumps)])
def test_a_file_says_the_same_as_the_flags_and_the_command_line_overrides_it(tmp_path, name, write):
    file, folder = tmp_path / name, ['--save-dir', tmp_path / 'run']
    file.write_text(write(FLAGS))
    assert config_of('--config', file, *folder) == config_of(*LINE, *folder)
    changed = config_of('--lr', '1', f'--config={file}', *folder, '--early-stop', '0')
    assert (changed.lr, changed.early_stop, changed.track_flips) == (1, 0, True)


@pytest.mark.parametrize('write', [yaml.safe_dump, json.dumps])
def test_false_turns_off_what_a_preset_or_a_network_turns_on(tmp_path, write):
    file = tmp_path / ('a.json' if write is json.dumps else 'a.yaml')
    flags = {'model': 'resnet_e18', 'preset': 'dorefa', 'dataset': 'digits', 'initial-layers': 'thumbnail'}
    for value in (None, True, False):
        file.write_text(write({**flags, 'no-wd': value, 'binary_shortcut': value, 'mixup': value}))
        config = config_of('--config', file, '--save-dir', tmp_path / 'run')
        assert config.no_wd is (value is not False)  # the preset turns it on
        assert config.binary_shortcut is value
        assert config.mixup is bool(value)
        config = config_of('--config', file, '--no-wd', '--save-dir', tmp_path / 'run')
        assert config.no_wd is True  # the command line overrides the file


def test_the_settings_that_a_run_has_stored_start_the_same_training_elsewhere(tmp_path, capsys):
    flags = [*TINY, '--dataset', 'digits', '--batch-size', '512', '--num-epochs', '1', '--label-smoothing', '--ema', '0.5']
    flags += ['--class-weights', 'balanced', '--wd', '1e-5', '--early-stop', '2']
    train(*flags, '--save-dir', tmp_path / 'first')
    train('--config', tmp_path / 'first' / 'config.json', '--save-dir', tmp_path / 'second')
    assert_equal_files(tmp_path / 'first', tmp_path / 'second', 'epoch-0001.params', 'epoch-0001.states')


@pytest.mark.parametrize(
    'name,content,words',
    [
        ('a.yaml', 'lrr: 1', "has 'lrr', which is not a flag of this program; did you mean lr?"),
        ('a.yaml', 'lr: true', 'lr needs a value, not true'),
        ('a.yaml', 'mixup: 3', 'mixup needs true or false, not 3'),
        ('a.yaml', '- lr', 'must have names of flags and their values'),
        ('a.yaml', 'lr: [', 'is not a YAML file'),
        ('a.json', '{', 'is not a JSON file'),
        ('a.yaml', 'lr: fast', 'argument --lr: expected a number of at most 1e+09'),
        ('a.yaml', 'preset: fast', 'argument --preset: invalid choice'),
        ('none.yaml', None, 'none.yaml'),
    ],
)
def test_a_wrong_file_is_reported_in_one_line(tmp_path, name, content, words, capsys):
    if content is not None:
        (tmp_path / name).write_text(content)
    assert words in refused(capsys, '--config', tmp_path / name, '--save-dir', tmp_path / 'run')


def test_a_dry_run_estimates_the_time_from_measured_updates(tmp_path, capsys):
    train(*TINY, '--dataset', 'digits', '--num-epochs', '400', '--dry-run', '--save-dir', tmp_path / 'run')
    total, unit, epoch, update = re.search(
        r'^time +about (\d+) (h|min) .*: 400 epochs of ([\d.]+) s, measured in 3 updates of ([\d.e-]+) s$',
        capsys.readouterr().out,
        re.MULTILINE,
    ).groups()
    # 16 updates and the validation; the time of an epoch is rounded to seconds
    assert float(epoch) + 0.5 >= 16 * float(update) and int(total) * (3600 if unit == 'h' else 60) >= 0.8 * 400 * float(epoch) - 3600
    assert not (tmp_path / 'run').exists()


def test_the_estimate_of_a_slow_network_is_made_from_the_first_update_and_prediction(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, 'MEASURED_SECONDS', 0)
    performed, step = [], Training.step
    monkeypatch.setattr(Training, 'step', lambda *arguments: performed.append(1) or step(*arguments))
    train(*TINY, '--dataset', 'digits', '--dry-run', '--save-dir', tmp_path / 'run')
    assert re.search(r'^time +about .* epochs of .*, measured in 1 update of [\d.e-]+ s$', capsys.readouterr().out, re.MULTILINE)
    assert len(performed) == 1
