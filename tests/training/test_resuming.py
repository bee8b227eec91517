"""Runs that are killed, interrupted, or find damaged files: resumed, they end like uninterrupted runs, bit for bit."""

import os
import shutil
import signal
import time

import numpy as np
import pytest
from support.forked_program import ForkedProgram
from support.images import damage_file, damage_record, overwrite, pack_list
from support.training_runs import (
    assert_same_end,
    error_of,
    evaluated,
    history_of,
    printed_by,
    refused,
    start_command,
    state_of,
    train,
    train_apart,
    train_until,
    weights_of,
)

from bmx_melius.files.npz import read_npz
from bmx_melius.training.saving.stored_checkpoints import read_state, write_state

pytest_plugins = ['support.training_runs']  # its fixtures


@pytest.mark.parametrize(
    'kind, update, start',
    [
        ('records', 'epoch 2, update 1', ForkedProgram),
        ('folders', 'epoch 2, update 1', ForkedProgram),
        pytest.param('digits', 'epoch 2, update 1', start_command, marks=pytest.mark.long),
        ('records', 'epoch 1, update 1', ForkedProgram),  # before the first checkpoint of an epoch
    ],
)
def test_a_run_killed_in_an_epoch_and_resumed_ends_like_the_uninterrupted_one(data_flags, finished, tmp_path, kind, update, start):
    status, output = train_until(update, signal.SIGKILL, *data_flags[kind], '--save-dir', tmp_path / 'run', start=start)
    assert status == -signal.SIGKILL and 'epoch 2:' not in output
    train_apart('--resume', '--save-dir', tmp_path / 'run', start=start)
    assert_same_end(tmp_path / 'run', finished[kind])


@pytest.mark.parametrize('tries', [3, pytest.param(20, marks=pytest.mark.long)])
def test_a_run_killed_at_random_moments_and_while_it_writes_checkpoints_ends_like_the_uninterrupted_one(
    data_flags, finished, tmp_path, tries
):
    random, killed, finishes, run = np.random.RandomState(tries), 0, 0, tmp_path / 'run0'
    for number in range(tries):
        going_on = (run / 'checkpoint.json').exists()
        flags = ['--resume'] if going_on else [*data_flags['folders'], '--save-interval', '1']
        log = run / 'experiment.log'
        before = log.stat().st_size if log.exists() else 0
        process = ForkedProgram(*flags, '--save-dir', run)
        while process.poll() is None and not (log.exists() and log.stat().st_size > before):
            time.sleep(0.01)
        if number % 2:
            time.sleep(random.uniform(0, 2))
        else:  # its half written file is there
            while process.poll() is None and not any(name.startswith('.') for name in os.listdir(run)):
                pass
        process.kill()
        killed += process.wait() == -signal.SIGKILL
        if process.returncode == 0:
            assert_same_end(run, finished['folders'])
            finishes += 1
            run = tmp_path / f'run{finishes}'
    assert killed >= tries / 2
    if (run / 'checkpoint.json').exists():
        train_apart('--resume', '--save-dir', run)
        assert_same_end(run, finished['folders'])
        assert not [path for path in run.iterdir() if path.name.startswith('.')], 'what the kills left is removed'


@pytest.mark.parametrize('kind,number,start', [('records', signal.SIGINT, start_command), ('folders', signal.SIGTERM, ForkedProgram)])
def test_an_interrupted_run_keeps_its_updates_and_ends_like_the_uninterrupted_one(data_flags, finished, tmp_path, kind, number, start):
    status, output = train_until('epoch 2, update 1', number, *data_flags[kind], '--save-dir', tmp_path / 'run', start=start)
    assert status == 128 + number and '--resume' in output
    position = state_of(tmp_path / 'run')['progress']
    assert position['epoch'] == 1 and position['batch'] >= 1
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_same_end(tmp_path / 'run', finished[kind])


@pytest.fixture
def run(finished, tmp_path):
    """A copy of the folder of a finished run, in another place."""
    return shutil.copytree(finished['records'], tmp_path / 'run')


def test_a_finished_run_that_is_resumed_exports_again_and_trains_nothing(finished, run, capsys):
    for file in [*run.glob('meliusnet_flex*'), run / 'experiment.log']:
        file.unlink()
    assert 'update 1 of' not in printed_by(capsys, '--resume', '--save-dir', run)
    assert 'exported to' in (run / 'experiment.log').read_text(), 'the folder was moved, and the log is there'
    assert_same_end(run, finished['records'])


def test_a_finished_run_is_extended_on_a_schedule_that_is_recomputed_and_resumes_bit_for_bit(finished, tmp_path, capsys):
    for name in ('whole', 'killed'):
        shutil.copytree(finished['records'], tmp_path / name)
    output = train_apart('--resume', '--num-epochs', '5', '--save-dir', tmp_path / 'whole')
    assert 'extended from 3 to 5 epochs: the cosine schedule is recomputed over 5 epochs' in output and 'epoch 3, update' not in output
    rates = [row['learning_rate'] for row in history_of(tmp_path / 'whole')]
    expected = [0.001 * (1 + np.cos(np.pi * update / (7 * epochs))) for update, epochs in ((6, 3), (13, 3), (20, 3), (27, 5), (34, 5))]
    assert rates == pytest.approx(expected)
    train_until('epoch 4, update 1', signal.SIGKILL, '--resume', '--num-epochs', '5', '--save-dir', tmp_path / 'killed')
    output = train_apart('--resume', '--save-dir', tmp_path / 'killed')  # it still knows the number of epochs
    assert 'extended' not in output and 'epoch 5, update 7 of 7' in output
    assert_same_end(tmp_path / 'killed', tmp_path / 'whole')
    assert '--num-epochs 4: the run in' in refused(capsys, '--resume', '--num-epochs', '4', '--save-dir', tmp_path / 'whole')


def test_a_run_stops_early_after_epochs_that_are_not_better_and_continues_only_when_told(data_flags, tmp_path, capsys):
    run = ['--save-dir', tmp_path / 'run']
    train(*data_flags['digits'], '--num-epochs', '9', '--lr', '1e-12', '--early-stop', '2', *run)
    printed, top1 = capsys.readouterr().out, [row['top1'] for row in history_of(tmp_path / 'run')]
    ends = [n for n in range(3, len(top1) + 1) if max(top1[: n - 2]) >= max(top1[n - 2 : n])]
    assert len(top1) == ends[0] < 9 and 'stopped early' in printed and 'exported to' in printed
    assert f'the best network is that of epoch {1 + np.argmax(top1)}' in printed
    printed = printed_by(capsys, '--resume', *run)
    assert 'stopped early' in printed and 'update 1 of' not in printed
    train('--resume', '--early-stop', '0', *run)
    assert len(history_of(tmp_path / 'run')) == 9


def test_a_run_interrupted_after_an_epoch_resumes_bit_for_bit(data_flags, finished, tmp_path):
    output = train_apart(*data_flags['digits'], '--interrupt-at', '1', '--save-dir', tmp_path, status=3)
    assert 'stopped after epoch 1 (--interrupt-at)' in output and len(history_of(tmp_path)) == 1
    train_apart('--resume', '--interrupt-at', '2', '--save-dir', tmp_path)  # the last epoch ends the run as it always does
    assert_same_end(tmp_path, finished['digits'])


AVERAGED = ['--ema', '0.8', '--class-weights', 'WEIGHTS', '--save-frequency', '1', '--track-flips']
CHANGED_IMAGES = ['--no-mirror', '--randaugment', '2,9', '--random-erasing', '0.5', '--cutmix']
IN_PLAN = ('without mirroring, 2 operations of RandAugment of magnitude 9, random erasing with probability 0.5', '(cutmix)')


@pytest.mark.parametrize(
    'kind, flags, words',
    [
        ('folders', AVERAGED, ('average of the weights is evaluated and exported (ema 0.8)', 'weights.json: 0.5 to 3')),
        (
            'records',
            ['--preset', 'meliusnet59', '--mixup', '--mixup-off-epoch', '1', '--label-smoothing'],
            ('preset     meliusnet59', 'mixup-alpha 0.2'),
        ),
        ('records', CHANGED_IMAGES, IN_PLAN),
        pytest.param('folders', CHANGED_IMAGES, IN_PLAN, marks=pytest.mark.long),
    ],
)
def test_runs_with_further_flags_resume_bit_for_bit_without_naming_them_again(data_flags, images, tmp_path, capsys, kind, flags, words):
    weights, run, whole = tmp_path / 'weights.json', tmp_path / 'run', tmp_path / 'whole'
    weights.write_text('{"class1": 3, "class2": 0.5}')
    flags = [*data_flags[kind], *(weights if flag == 'WEIGHTS' else flag for flag in flags)]
    train_apart(*flags, '--save-dir', whole)
    assert train_until('epoch 2, update 3', signal.SIGINT, *flags, '--save-dir', run)[0] == 128 + signal.SIGINT
    weights.unlink()
    plan = train_apart('--resume', '--save-dir', run)
    assert all(word in plan for word in words)
    assert_same_end(run, whole)
    if '--mixup' in flags:
        rates = [row['learning_rate'] for row in history_of(whole)]
        assert rates == pytest.approx([0.0015 * (1 + np.cos(np.pi * update / 21)) for update in (6, 13, 20)])
    if '--ema' in flags:
        arrays = [read_npz(str(path / 'epoch-0003.npz')) for path in (run, whole)]
        assert arrays[0].keys() == arrays[1].keys() and all(np.array_equal(arrays[0][name], arrays[1][name]) for name in arrays[0])
        averages = weights_of(whole, 3)
        assert any(not np.array_equal(averages[name], arrays[0][f'trained.{name}']) for name in averages)
        for epoch, row in enumerate(history_of(whole), start=1):  # the history describes the averages
            assert evaluated('meliusnet_flex', images, whole, epoch, capsys)['top1'] == pytest.approx(row['top1'])


@pytest.mark.parametrize('suffix', ['params', 'states'])
def test_a_run_whose_last_checkpoint_is_damaged_continues_from_the_previous_one_and_ends_the_same(finished, run, suffix):
    damaged = run / f'epoch-0003.{suffix}'
    overwrite(damaged, damaged.stat().st_size // 2, b'damage')
    output = train_apart('--resume', '--save-dir', run)
    assert f'{damaged} is damaged' in output and 'continuing at epoch 3, update 1' in output
    assert_same_end(run, finished['records'])


def test_damaged_weights_of_the_best_epoch_are_not_exported(run, capsys):
    state, before = (read_state(str(run / name)) for name in ('checkpoint.json', 'checkpoint-previous.json'))
    best = before['weights']
    state['progress']['history'][1]['top1'] = 1.0
    write_state(str(run / 'checkpoint.json'), {**state, 'kept': [best], 'sha256': {**state['sha256'], best: before['sha256'][best]}})
    exported = run / 'meliusnet_flex-0000.params'
    exported.unlink()
    content = (run / best).read_bytes()
    overwrite(run / best, len(content) // 2, b'damage')
    train('--resume', '--save-dir', run, status=2)
    assert f'{run / best} is damaged' in error_of(capsys) and not exported.exists()
    (run / best).write_bytes(content)
    assert 'the best network is that of epoch 2' in printed_by(capsys, '--resume', '--save-dir', run) and exported.exists()


def test_a_run_is_resumed_whatever_the_spelling_of_its_network_in_the_checkpoint(finished, run, capsys):
    state = read_state(str(run / 'checkpoint.json'))
    state['options']['model'] = 'meliusnetflex'
    write_state(str(run / 'checkpoint.json'), state)
    train('--resume', '--save-dir', run)
    train('--resume', '--save-dir', run, '--model', 'MeliusNet_Flex')
    assert_same_end(run, finished['records'])
    assert 'was started with --model meliusnet_flex;' in refused(capsys, '--resume', '--save-dir', run, '--model', 'meliusnet22')


@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_an_undecodable_image_is_named_and_the_run_continues_once_it_is_repaired(data_flags, images, finished, tmp_path, kind):
    shutil.copytree(images, tmp_path / 'images')
    flags = [flag.replace(str(images), str(tmp_path / 'images')) for flag in data_flags[kind]]
    if kind == 'records':
        file, name = tmp_path / 'images' / 'rec' / 'train.rec', 'train.rec: no image can be decoded from record 17;'
        offset, content = damage_record(file.with_suffix(''), 17)
    else:
        file, name = tmp_path / 'images' / 'train' / 'class2' / '7.jpg', 'class2/7.jpg'
        offset, content = damage_file(file)
    message = train_apart(*flags, '--save-dir', tmp_path / 'run', status=2).strip().splitlines()[-1]
    assert message.startswith('error: ') and name in message and '--resume' in message
    assert name in (tmp_path / 'run' / 'experiment.log').read_text()
    overwrite(file, offset, content)
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_same_end(tmp_path / 'run', finished[kind])


def test_a_run_continues_with_a_record_file_packed_without_the_broken_image(data_flags, images, tmp_path, capsys):
    shutil.copytree(images / 'rec', tmp_path / 'rec')
    damage_record(tmp_path / 'rec' / 'train', 17)
    flags = [flag.replace(str(images), str(tmp_path)) for flag in data_flags['records']]
    assert 'record 17;' in refused(capsys, *flags, '--save-dir', tmp_path / 'run')
    listed = (images / 'rec' / 'train.lst').read_text().splitlines(keepends=True)
    pack_list(images, tmp_path / 'rec' / 'train', [line for line in listed if not line.startswith('17\t')])
    assert '29 training' in printed_by(capsys, '--resume', '--save-dir', tmp_path / 'run')
