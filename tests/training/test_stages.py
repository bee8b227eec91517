"""Training in stages: weights are handed on exactly, and interrupted trainings end like uninterrupted trainings."""

import json
import shutil

import numpy as np
import pytest
from support.long_runs import mostly_long
from support.training_runs import (
    assert_equal_files,
    contents_of,
    description_of,
    interrupt_series,
    printed_by,
    refused,
    series_of,
    state_of,
    train,
    weights_of,
)

from bmx_melius.training.options.presets import STAGES

TINY = [
    *('--model', 'meliusnet_flex', '--dataset', 'digits', '--num-epochs', '1', '--batch-size', '256'),
    *('--model-options', '{"block_numbers": [1, 1], "transitions": [8], "growth_rate": 8, "init_features": 8}'),
    *('--preset', 'real-to-binary', '--log-interval', '0', '--save-frequency', '0'),
]
UPDATES = 5  # of an epoch
FOLDERS = [f'{number}-{stage.name}' for number, stage in enumerate(STAGES['real-to-binary'], start=1)]
LAST = FOLDERS[-1]


@pytest.fixture(scope='module')
def whole(make_once):
    """The folder of an uninterrupted training."""
    return make_once('stages', lambda folder: train(*TINY, '--save-dir', folder / 'run')) / 'run'


@pytest.fixture
def copy(whole, tmp_path):
    """A copy of it, which a test may change."""
    return shutil.copytree(whole, tmp_path / 'run')


def test_three_networks_are_trained_and_each_starts_with_the_weights_of_the_one_before(whole):
    described = [description_of(whole / folder) for folder in FOLDERS]
    assert [(item['model'].get('bits', 1), item['model'].get('weight_bits')) for item in described] == [(32, None), (1, 32), (1, None)]
    assert [item['counts']['bops'] > 0 for item in described] == [False, False, True]
    for before, after in zip(FOLDERS, FOLDERS[1:]):
        best = weights_of(whole / before, 1)
        np.testing.assert_equal(weights_of(whole / after, 0), best)
        moved = {name for name, array in weights_of(whole / after, 1).items() if np.any(array != best[name])}
        assert any('running_mean' in name for name in moved) and sum(name.endswith('weight') for name in moved) > 4
        options = state_of(whole / after)['options']
        assert options['teacher'] == str(whole / before / 'meliusnet_flex') and options['attention_weight'] == 1
        log = (whole / after / 'experiment.log').read_text()
        assert f'answers of {whole / before / "meliusnet_flex"} (temperature 1, hard-weight 0.5) and its attention maps of 8x8, 4x4' in log
    rates = [state_of(whole / folder)['options']['lr'] for folder in FOLDERS]
    assert rates == pytest.approx([0.002, 0.002, 0.0004]), 'digits have four times the rate of ImageNet, for a quarter of its batch'


@pytest.mark.parametrize('update', mostly_long([2, UPDATES + 3, 2 * UPDATES + 1], UPDATES + 3))
def test_training_interrupted_in_any_stage_and_resumed_ends_like_the_uninterrupted_one(whole, tmp_path, capsys, update):
    stage = interrupt_series(update, UPDATES, TINY, whole, tmp_path / 'run', FOLDERS)
    printed = capsys.readouterr().out
    assert f'stopped in stage {stage} of 3; continue with --resume --save-dir {tmp_path / "run"}' in printed
    position = state_of(tmp_path / 'run' / FOLDERS[stage - 1])['progress']
    assert position['epoch'] == 0 and 0 < position['batch'] < UPDATES
    printed = printed_by(capsys, '--resume', '--save-dir', tmp_path / 'run')
    assert printed.count('is finished') == stage - 1 and f'continuing at epoch 1, update {position["batch"] + 1}' in printed
    assert_equal_files(tmp_path / 'run' / LAST, whole / LAST, 'epoch-0001.params', 'epoch-0001.states', 'meliusnet_flex-0000.params')


def test_finished_training_that_is_resumed_trains_nothing(copy, capsys):
    before = contents_of(copy)
    capsys.readouterr()
    train('--resume', '--save-dir', copy)
    assert capsys.readouterr().out.count('is finished') == 3 and contents_of(copy) == before


@pytest.mark.parametrize(
    'flags, words',
    [
        (TINY, 'holds a run already: continue it with --resume'),
        (['--resume', '--lr', '0.5'], 'was started with --lr None; leave these unchanged'),
    ],
)
def test_training_is_not_overwritten_and_not_resumed_with_other_flags(copy, capsys, flags, words):
    assert words in refused(capsys, *flags, '--save-dir', copy)


@pytest.mark.parametrize(
    'flags, words',
    [
        (['--bits', '32'], '--bits is set by the stages of --preset real-to-binary'),
        (['--teacher', 'resnet18_v1'], '--teacher is set by the stages'),
        (['--resume-params', 'x'], '--resume-params is set by the stages'),
        (['--kvstore', 'horovod'], '--kvstore horovod: the stages of'),
        (
            ['--model', 'mobilenet0.25', '--dry-run'],
            '--model mobilenet0.25: the stages of --preset real-to-binary end with a binary network',
        ),
        (
            ['--model', 'resnet18_abcnet', '--model-options', '{}'],
            'resnet18_abcnet has no network for stage 2 of --preset real-to-binary, binary-activations: ABC-Net approximates real weights',
        ),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_any_work(flags, words, tmp_path, capsys):
    train(*TINY, *flags, '--save-dir', tmp_path / 'run', status=2)
    assert words in capsys.readouterr().err
    assert not (tmp_path / 'run').exists()


def test_another_training_can_begin_where_one_failed_before_its_first_checkpoint(tmp_path, capsys):
    for _ in range(2):
        train(*TINY, '--dataset', 'cifar10', '--data-dir', tmp_path, '--save-dir', tmp_path / 'run', status=2)
        assert 'data_batch_1.bin' in capsys.readouterr().err
    train('--resume', '--save-dir', tmp_path / 'run', status=2)
    assert 'no run to resume' in capsys.readouterr().err


def test_a_stage_starts_from_the_best_epoch_and_is_taught_by_that_network_with_the_flags_of_the_user(copy):
    for folder in FOLDERS[1:]:
        shutil.rmtree(copy / folder)
    (copy / 'stages.json').write_text(json.dumps({**json.loads((copy / 'stages.json').read_text()), 'temperature': 3.0}))
    first = copy / FOLDERS[0]
    description = description_of(first)
    description['metrics']['epoch'] = 0
    (first / 'meliusnet_flex-summary.json').write_text(json.dumps(description))
    configs = []
    series = series_of('--resume', '--save-dir', copy, '-j', '0')
    assert series.run(lambda config, decode: configs.append(config) or 7) == 7
    (config,) = configs
    assert config.resume_params == str(first / 'epoch-0000.params') and not config.resume
    assert config.teacher == str(first / 'meliusnet_flex')
    assert (config.temperature, config.hard_weight, config.attention_weight) == (3.0, 0.5, 1.0)


def test_a_dry_run_shows_all_stages_and_writes_nothing(tmp_path, capsys):
    printed = printed_by(capsys, *TINY, '--save-dir', tmp_path / 'run', '--dry-run', '--temperature', '3')
    for number, folder in enumerate(FOLDERS, start=1):
        assert f'stage {number} of 3' in printed and f'results    {tmp_path / "run" / folder}' in printed
    assert printed.count('--temperature 3.0 --hard-weight 0.5 --attention-weight 1.0; starts from') == 2
    assert '--lr 0.0004 --bits 1 --weight-bits 1 ' in printed, 'the rate for digits'
    assert 'weights of 32 bits' in printed and 'activations of 1, weights of 1 bits' in printed
    assert f'starts from the best weights of {tmp_path / "run" / FOLDERS[1]}, its teacher' in printed
    assert not (tmp_path / 'run').exists()


def test_damaged_flags_are_named(copy, capsys):
    (copy / 'stages.json').write_text('{')
    assert f'{copy / "stages.json"} is damaged' in refused(capsys, '--resume', '--save-dir', copy)


def staged(tmp_path, *flags):
    return series_of('--dataset', 'digits', '--save-dir', tmp_path / 'run', '--model-options', '{"init_features": 8}', *flags)


def test_a_stage_has_the_protocol_of_its_own_scaled_as_that_of_the_preset(tmp_path):
    series = staged(tmp_path, '--model', 'groupnet18', '--preset', 'groupnet', '--num-epochs', '8')
    first, second = (series.config(number) for number in range(2))
    assert (first.bits, second.bits, second.weight_bits) == (32, 1, 1)
    assert (first.optimizer, first.lr, first.wd, first.momentum) == ('sgd', pytest.approx(0.05 * 4 / 4), 1e-4, 0.9)
    assert (first.warmup_epochs, first.lr_decay_epoch, first.batch_size) == (0, [5, 7], 64)
    assert (second.optimizer, second.lr, second.wd, second.momentum) == ('adam', pytest.approx(0.0005 * 4 / 2), 0, None)
    assert (second.lr_decay_epoch, second.batch_size) == ([4, 6], 64)


def test_flags_of_the_user_override_the_protocol_of_a_stage(tmp_path):
    flags = ['--model', 'groupnet18', '--preset', 'groupnet', '--optimizer', 'radam', '--wd', '0.5']
    for number in range(2):
        options = staged(tmp_path, *flags).config(number)
        assert (options.optimizer, options.lr, options.wd, options.momentum) == ('radam', 0.008, 0.5, None)


def test_the_stages_of_reactnet_differ_in_weights_and_decay_and_take_a_teacher_of_the_user(tmp_path):
    flags = ['--model', 'reactnet18', '--preset', 'auto', '--teacher', 'resnet18_v1', '--hard-weight', '0', '--temperature', '1']
    series = staged(tmp_path, *flags)
    first, second = (series.config(number) for number in range(2))
    assert [(one.bits, one.weight_bits, one.wd) for one in (first, second)] == [(1, 32, 1e-5), (1, 1, 0)]
    for one in (first, second):
        assert (one.teacher, one.hard_weight, one.temperature, one.attention_weight) == ('resnet18_v1', 0, 1, 0)
