"""train_imagenet.py as its users run it: training, kills and resuming, broken data, wrong flags, the exported network."""

import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import mxnet as mx
import numpy as np
import pytest
from images import make_folders, overwrite, pack_folders, pack_list, record_span

import bmx_melius.__main__
import model_zoo
import train_imagenet
from bmx_melius.data.datasets import DATASETS
from bmx_melius.data.small_images import open_digits
from bmx_melius.distributed.workers import Workers
from bmx_melius.exported import description_fields
from bmx_melius.preprocessing import InputSpec
from bmx_melius.training.flags import parse_flags
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.optimization import make_trainer
from bmx_melius.training.progress import TIMINGS
from bmx_melius.training.saving.checkpoint_state import read_state, write_state
from bmx_melius.training.saving.export import export_network
from model_zoo import get_model, get_model_list

SCRIPT = train_imagenet.__file__
EXAMPLES = pathlib.Path(SCRIPT).resolve().parent / 'examples'
TINY = [
    '--model',
    'meliusnet_flex',
    '--model-options',
    '{"block_numbers": [1, 1], "transitions": [0.5]}',
    '--initial-layers',
    'thumbnail',
    '--log-interval',
    '1',
]
SMALL = [*TINY, '--input-size', '16', '--batch-size', '4', '--num-epochs', '3']  # 30 images: 7 updates an epoch


@pytest.fixture(scope='module')
def images(make_once):
    """A folder with images of three classes, in folders and in record files packed by MXNet's im2rec."""

    def make(folder):
        make_folders(folder)
        pack_folders(folder)

    return make_once('images-and-records', make)


@pytest.fixture(scope='module')
def data_flags(images):
    """The flags that name each kind of data."""
    return {
        'records': [*SMALL, '--use-rec', '--rec-train', f'{images}/rec/train.rec', '--rec-val', f'{images}/rec/val.rec', '-j', '1'],
        'folders': [*SMALL, '--data-dir', str(images), '-j', '2', '--augmentation', 'high'],
        'digits': [*TINY, '--dataset', 'digits', '--num-epochs', '2', '--batch-size', '128'],
    }


def train(*arguments, status=0):
    """Run the program in this process and check its exit status."""
    assert train_imagenet.main([str(argument) for argument in arguments]) == status


def train_apart(*arguments, status=0):
    """Run the program in a separate process, as runs that are compared bit for bit must be: it decides on the number of threads.

    Return what it printed.
    """
    result = subprocess.run([sys.executable, SCRIPT, *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert result.returncode == status, result.stdout
    return result.stdout


def train_until(line, number, *arguments):
    """Run the program in a separate process; when it prints a line that begins so, send it a signal. Return (status, output)."""
    command = [sys.executable, SCRIPT, *map(str, arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        output = []
        for printed in process.stdout:
            output.append(printed)
            if printed.startswith(line):
                process.send_signal(number)
                line = 'never again'
    assert line == 'never again', ''.join(output)
    return process.returncode, ''.join(output)


def error_of(capsys):
    """The one line that was printed to standard error, as a user sees it."""
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith('error: '), lines
    return lines[0]


def assert_same_end(folder, other):
    """Two finished runs have the same weights, optimizer and history, bit for bit, and exported the same network."""
    states = [json.loads((path / 'checkpoint.json').read_text()) for path in (folder, other)]
    for state in states:
        for row in state['progress']['history']:
            for name in TIMINGS:
                row.pop(name)
        state['options'] = state['checksum'] = None
    assert states[0] == states[1]
    for name in (states[0]['weights'], states[0]['states'], 'meliusnet_flex-0000.params'):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    assert (folder / 'meliusnet_flex-symbol.json').exists()


@pytest.fixture(scope='module')
def finished(data_flags, make_once):
    """The folders of uninterrupted runs, by kind of data, made when first asked for."""

    class Finished(dict):
        def __missing__(self, kind):
            folder = make_once(f'finished-{kind}', lambda folder: train_apart(*data_flags[kind], '--save-dir', folder / 'run'))
            self[kind] = folder / 'run'
            return self[kind]

    return Finished()


@pytest.mark.parametrize('kind', ['records', 'folders', 'digits'])
def test_a_run_killed_in_its_second_epoch_and_resumed_ends_like_the_uninterrupted_one(data_flags, finished, tmp_path, kind):
    status, output = train_until('epoch 2, update 1', signal.SIGKILL, *data_flags[kind], '--save-dir', tmp_path / 'run')
    assert status == -signal.SIGKILL and 'epoch 2:' not in output
    train_apart('--resume', '--save-dir', tmp_path / 'run')
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
        process = subprocess.Popen([sys.executable, SCRIPT, *flags, '--save-dir', run], stdout=subprocess.DEVNULL)
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


@pytest.mark.parametrize('kind,number', [('records', signal.SIGINT), ('folders', signal.SIGTERM)])
def test_an_interrupted_run_keeps_its_updates_and_ends_like_the_uninterrupted_one(data_flags, finished, tmp_path, kind, number):
    status, output = train_until('epoch 2, update 1', number, *data_flags[kind], '--save-dir', tmp_path / 'run')
    assert status == 128 + number and '--resume' in output
    position = json.loads((tmp_path / 'run' / 'checkpoint.json').read_text())['progress']
    assert position['epoch'] == 1 and position['batch'] >= 1
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_same_end(tmp_path / 'run', finished[kind])


def test_a_run_killed_before_its_first_checkpoint_of_an_epoch_can_be_resumed(data_flags, finished, tmp_path):
    train_until('epoch 1, update 1', signal.SIGKILL, *data_flags['records'], '--save-dir', tmp_path / 'run')
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_same_end(tmp_path / 'run', finished['records'])


def test_a_finished_run_that_is_resumed_exports_again_and_trains_nothing(finished, tmp_path, capsys):
    shutil.copytree(finished['records'], tmp_path / 'run')
    for file in [*(tmp_path / 'run').glob('meliusnet_flex*'), tmp_path / 'run' / 'experiment.log']:
        file.unlink()
    train('--resume', '--save-dir', tmp_path / 'run')
    assert 'update 1 of' not in capsys.readouterr().out
    assert 'exported to' in (tmp_path / 'run' / 'experiment.log').read_text(), 'the folder was moved, and the log is there'
    assert_same_end(tmp_path / 'run', finished['records'])


@pytest.mark.parametrize('suffix', ['params', 'states'])
def test_a_run_whose_last_checkpoint_is_damaged_continues_from_the_previous_one_and_ends_the_same(finished, tmp_path, suffix):
    shutil.copytree(finished['records'], tmp_path / 'run')
    damaged = tmp_path / 'run' / f'epoch-0003.{suffix}'
    overwrite(damaged, damaged.stat().st_size // 2, b'damage')
    output = train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert f'{damaged} is damaged' in output and 'continuing at epoch 3, update 1' in output
    assert_same_end(tmp_path / 'run', finished['records'])


def test_damaged_weights_of_the_best_epoch_are_not_exported(finished, tmp_path, capsys):
    run = tmp_path / 'run'
    shutil.copytree(finished['records'], run)
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
    train('--resume', '--save-dir', run)
    assert 'the best network is that of epoch 2' in capsys.readouterr().out and exported.exists()


@pytest.mark.parametrize('flag', ['--resume-params', '--resume-states'])
def test_damaged_files_of_a_checkpoint_do_not_start_another_run(data_flags, finished, tmp_path, flag, capsys):
    for name in ('checkpoint.json', 'epoch-0003.params', 'epoch-0003.states'):
        shutil.copy(finished['records'] / name, tmp_path)
    files = {'--resume-params': tmp_path / 'epoch-0003.params', '--resume-states': tmp_path / 'epoch-0003.states'}
    overwrite(files[flag], files[flag].stat().st_size // 2, b'damage')
    capsys.readouterr()
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', *(word for pair in files.items() for word in pair), status=2)
    message = error_of(capsys)
    assert flag in message and f'{files[flag]} is damaged' in message


def test_a_run_is_resumed_whatever_the_spelling_of_its_network_in_the_checkpoint(finished, tmp_path, capsys):
    shutil.copytree(finished['records'], tmp_path / 'run')
    state = read_state(str(tmp_path / 'run' / 'checkpoint.json'))
    state['options']['model'] = 'meliusnetflex'
    write_state(str(tmp_path / 'run' / 'checkpoint.json'), state)
    train('--resume', '--save-dir', tmp_path / 'run')
    train('--resume', '--save-dir', tmp_path / 'run', '--model', 'MeliusNet_Flex')
    assert_same_end(tmp_path / 'run', finished['records'])
    capsys.readouterr()
    train('--resume', '--save-dir', tmp_path / 'run', '--model', 'meliusnet22', status=2)
    assert 'was started with --model meliusnet_flex;' in error_of(capsys)


@pytest.mark.parametrize(
    'spelling, name',
    [
        ('MeliusNet_A', 'meliusneta'),
        ('resnet18_e1', 'resnet_e18'),
        ('ResNetE18', 'resnet_e18'),
        ('densenet28', 'binary_densenet28'),
        *((name, name) for name in get_model_list()),
    ],
)
def test_a_network_goes_by_the_name_under_which_it_is_listed(spelling, name):
    assert parse_flags(['--model', spelling, '--save-dir', '/nowhere'], model_zoo).network.model == name


def test_the_seed_determines_the_loss_and_imperative_mode_gives_the_same(data_flags, tmp_path):
    losses = {}
    for name, flags in (('first', []), ('second', []), ('seed', ['--seed', '1']), ('imperative', ['--mode', 'imperative'])):
        train(*data_flags['records'], '--num-epochs', '1', '--save-dir', tmp_path / name, *flags)
        losses[name] = json.loads((tmp_path / name / 'checkpoint.json').read_text())['progress']['history'][0]['loss']
    assert losses['first'] == losses['second']
    assert abs(losses['first'] - losses['seed']) > 1e-3
    assert losses['first'] == pytest.approx(losses['imperative'], rel=1e-3)


def test_the_exported_network_is_the_best_one_and_runs_without_this_project(finished, tmp_path):
    prefix = finished['digits'] / 'meliusnet_flex'
    description = json.loads((finished['digits'] / 'meliusnet_flex-summary.json').read_text())
    spec = InputSpec.from_json(description['input'])
    validation = open_digits().validation
    inputs = mx.nd.concat(*(spec.normalize(spec.crop(image)).expand_dims(0) for image, _ in validation), dim=0)
    np.save(tmp_path / 'inputs.npy', inputs.asnumpy())
    command = [sys.executable, EXAMPLES / 'classify_with_stock_mxnet.py', prefix, 'inputs.npy', 'outputs.npy']
    subprocess.run(command, check=True, cwd=tmp_path)  # it fails if it imported this project
    logits = np.load(tmp_path / 'outputs.npy')
    top1 = np.mean(logits.argmax(axis=1) == [label for _, label in validation])
    assert top1 == pytest.approx(description['metrics']['top1'])
    history = json.loads((finished['digits'] / 'checkpoint.json').read_text())['progress']['history']
    assert description['metrics']['top1'] == max(row['top1'] for row in history)

    net = get_model(**description['model'])
    net.load_parameters(str(finished['digits'] / f'epoch-{description["metrics"]["epoch"]:04d}.params'))
    np.testing.assert_allclose(net(inputs).asnumpy(), logits, atol=1e-4)
    counts = bmx_melius.summary(net, (1, *spec.shape)).counts
    assert description['counts'] == counts and description['class_names'] == list('0123456789')


# ---- broken data ----


def damage(path, number):
    """Overwrite the image of a record behind its first bytes; return what was there."""
    offset, length = record_span(path[: -len('.rec')], number)
    with open(path, 'rb') as file:
        file.seek(offset + 8)
        before = file.read(length - 10)
    overwrite(path, offset + 8, b'\0' * (length - 10))
    return offset + 8, before


@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_an_undecodable_image_is_named_and_the_run_continues_once_it_is_repaired(data_flags, images, finished, tmp_path, kind):
    shutil.copytree(images, tmp_path / 'images')
    flags = [flag.replace(str(images), str(tmp_path / 'images')) for flag in data_flags[kind]]
    if kind == 'records':
        file, name = str(tmp_path / 'images' / 'rec' / 'train.rec'), 'train.rec: no image can be decoded from record 17;'
        offset, content = damage(file, 17)
    else:
        file, offset, name = tmp_path / 'images' / 'train' / 'class2' / '7.jpg', 8, 'class2/7.jpg'
        content = file.read_bytes()[8:-2]
        overwrite(file, 8, b'\0' * len(content))
    message = train_apart(*flags, '--save-dir', tmp_path / 'run', status=2).strip().splitlines()[-1]
    assert message.startswith('error: ') and name in message and '--resume' in message
    assert name in (tmp_path / 'run' / 'experiment.log').read_text()
    overwrite(file, offset, content)
    train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert_same_end(tmp_path / 'run', finished[kind])


def test_a_run_continues_with_a_record_file_packed_without_the_broken_image(data_flags, images, tmp_path, capsys):
    shutil.copytree(images / 'rec', tmp_path / 'rec')
    damage(str(tmp_path / 'rec' / 'train.rec'), 17)
    flags = [flag.replace(str(images), str(tmp_path)) for flag in data_flags['records']]
    train(*flags, '--save-dir', tmp_path / 'run', status=2)
    assert 'record 17;' in error_of(capsys)
    listed = (images / 'rec' / 'train.lst').read_text().splitlines(keepends=True)
    pack_list(images, tmp_path / 'rec' / 'train', [line for line in listed if not line.startswith('17\t')])
    train('--resume', '--save-dir', tmp_path / 'run')
    assert '29 training' in capsys.readouterr().out


@pytest.mark.parametrize('part', ['train', 'val'])
def test_a_truncated_record_file_is_named_before_any_work(data_flags, images, tmp_path, part, capsys):
    shutil.copytree(images / 'rec', tmp_path / 'rec')
    file = tmp_path / 'rec' / f'{part}.rec'
    os.truncate(file, file.stat().st_size * 3 // 4)
    flags = [flag.replace(str(images), str(tmp_path)) for flag in data_flags['records']]
    train(*flags, '--save-dir', tmp_path / 'run', status=2)
    message = error_of(capsys)
    assert f'{part}.rec: record ' in message and 'truncated' in message
    assert not (tmp_path / 'run').exists()


# ---- flags ----


@pytest.mark.parametrize(
    'flags,words',
    [
        ([], '--model'),
        (['--model', 'meliusnet23'], 'meliusnet22'),
        (['--model', 'mobilenet0.3'], 'mobilenet0.25, mobilenet0.5'),
        (['--model', 'ssd_512_resnet50_v1_voc'], 'unknown network'),  # of GluonCV, but no classifier
        (['--model', 'mobilenet0.5', '--dataset', 'digits', '--initial-layers', 'thumbnail'], '--initial-layers thumbnail: the network'),
        (['--model', 'mobilenet0.5', '--dataset', 'digits', '--bits', '32'], 'mobilenet0.5 has no such option'),
        (['--model', 'mobilenet0.5', '--dataset', 'digits', '--weight-bits', '1'], '--weight-bits 1'),
        (['--model', 'mobilenet0.5', '--dataset', 'digits', '--clip-threshold', '1'], '--clip-threshold 1.0'),
        (['--model', 'mobilenet0.5', '--dataset', 'digits', '--last-gamma'], 'last_gamma'),
        (['--model', 'mobilenet0.25', '--dataset', 'digits', '--track-flips'], 'no binary weights'),
        (['--model', 'alexnet', '--dataset', 'digits'], 'images of 1 x 8 x 8 (--input-size 8) do not fit alexnet'),
        (['--model', 'meliusnetA'], '--data-dir'),
        (['--model', 'resnet18_e1'], '--data-dir'),  # an alias is known
        (['--model', 'meliusnetA', '--use-rec'], 'pack-images'),
        (['--model', 'meliusnetA', '--rec-train', 'nothing.rec'], 'nothing.rec'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--num-gpus', '2'], 'CUDA'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--dtype', 'float16'], 'cannot train with it on cpu(0)'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--last-gamma'], 'meliusneta takes no argument last_gamma'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--teacher', 'meliusnet22'], '--teacher-params'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--clip-threshold', '0'], 'threshold'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--preset', 'naif'], 'full-precision'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--use-rec'], '--use-rec'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--use-pretrained'], 'no weights'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--initial-layers', 'tiny'], 'thumbnail'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--model-options', '[1]'], '--model-options'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--model-options', '{"depth": 3}'], 'depth'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--batch-size', '2000'], '--batch-size'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--batch-size', '0'], '--batch-size'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--num-epochs', '5', '--warmup-epochs', '5'], '--warmup-epochs'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--momentum', '0.9'], '--momentum'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--lr', '-1'], '--lr'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--crop-ratio', '1.5'], '--crop-ratio'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--kvstore', 'nccl'], 'NCCL'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--kvstore', 'dist_sync'], 'bmx_melius.distributed.launcher'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--kvstore', 'dist_async'], '--kvstore'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--mode', 'symbolic'], '--mode'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--resume'], 'no run'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--resume-epoch', '3'], '--resume-params'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--resume-params', 'nothing.params'], 'nothing.params'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--input-size', '4'], '--input-size 4'),
        (['--model', 'meliusnetA', '--dataset', 'digits', '--seed', '-1'], '--seed'),
        (['--model', 'meliusnetA', '--use-dali'], 'DALI'),
        (['--model', 'meliusnetA', '--use_se'], 'squeeze'),
        (['--model', 'meliusnetA', '--mixup-alpha', '1'], '--mixup'),
        (['--model', 'meliusnetA', '--learning-rate', '3'], '--learning-rate'),
    ],
)
def test_an_unusable_flag_is_reported_in_one_line_before_any_work(flags, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))  # no images there
    train(*flags, status=2)
    assert words in error_of(capsys)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize('place', ['file', 'file/run', '/proc/run'])
def test_a_folder_that_cannot_be_written_is_named_before_the_data_is_read(tmp_path, place, capsys):
    (tmp_path / 'file').write_text('')
    train('--model', 'meliusnetA', '--data-dir', 'nowhere', '--save-dir', tmp_path / place, status=2)
    assert f'no files can be written to {tmp_path / place}' in error_of(capsys)


def test_too_little_disk_space_for_checkpoints_is_reported_before_training(data_flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('bmx_melius.training.start.check_folder', lambda folder: 100_000)
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-epochs', '1')
    assert 'has 0.1 MB free, and the checkpoints will take about ' in capsys.readouterr().out


def test_a_log_that_cannot_be_written_is_reported_once_and_training_continues(data_flags, tmp_path, capsys):
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-epochs', '1', '--logging-file', '/dev/full')
    assert capsys.readouterr().err.splitlines() == ['the log /dev/full cannot be written: [Errno 28] No space left on device']
    assert (tmp_path / 'run' / 'meliusnet_flex-0000.params').exists()


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'sklearn.datasets', None)
    train('--model', 'meliusnet22', '--dataset', 'digits', '--dry-run', status=2)
    assert 'pip install scikit-learn' in error_of(capsys)


def test_a_run_is_not_overwritten_and_not_resumed_with_other_flags(data_flags, finished, capsys):
    folder = finished['records']
    before = {path: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    train(*data_flags['records'], '--save-dir', folder, status=2)
    assert '--resume' in error_of(capsys)
    train('--resume', '--save-dir', folder, '--lr', '0.1', status=2)
    assert '--lr 0.002' in error_of(capsys)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize('kind', ['records', 'folders', 'digits'])
def test_a_dry_run_shows_the_plan_and_writes_nothing(data_flags, tmp_path, kind, capsys):
    train(*data_flags[kind], '--save-dir', tmp_path / 'run', '--dry-run')
    plan = capsys.readouterr().out
    assert 'OPs' in plan and 'nothing was trained' in plan
    assert ('1,071 training and 362 validation' if kind == 'digits' else '30 training and 12 validation') in plan
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('part', ['train', 'val'])
@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_a_dry_run_names_images_that_cannot_be_decoded(data_flags, images, tmp_path, kind, part, capsys):
    shutil.copytree(images, tmp_path / 'images')
    if kind == 'records':
        damage(f'{tmp_path}/images/rec/{part}.rec', 7)
        name = f'{part}.rec: no image can be decoded from record 7;'
    else:
        file = tmp_path / 'images' / part / 'class1' / '2.jpg'
        overwrite(file, 8, b'\0' * (file.stat().st_size - 10))
        name = f'images/{part}: no image can be decoded from class1/2.jpg;'
    flags = [flag.replace(str(images), str(tmp_path / 'images')) for flag in data_flags[kind]]
    train(*flags, '--save-dir', tmp_path / 'run', '--dry-run', status=2)
    assert name in error_of(capsys)
    assert not (tmp_path / 'run').exists()


def test_weights_and_optimizer_of_another_run_can_be_started_from(data_flags, finished, tmp_path, capsys):
    weights, states = finished['records'] / 'epoch-0003.params', finished['records'] / 'epoch-0003.states'
    train(
        *data_flags['records'],
        '--save-dir',
        tmp_path / 'run',
        '--num-epochs',
        '5',
        '--resume-epoch',
        '3',
        '--resume-params',
        weights,
        '--resume-states',
        states,
    )
    printed = capsys.readouterr().out
    assert 'epoch 4, update 1 of 7' in printed and 'epoch 3, update' not in printed
    rates = [float(line.rsplit(' ', 1)[1]) for line in printed.splitlines() if line.startswith('epoch 4, update')]
    expected = [0.002 * (1 + np.cos(np.pi * update / 35)) / 2 for update in range(21, 28)]
    np.testing.assert_allclose(rates, expected, rtol=0.01)


@pytest.mark.parametrize('flag', ['--resume-params', '--resume-states'])
def test_files_of_another_network_are_refused(data_flags, finished, tmp_path, flag, capsys):
    capsys.readouterr()
    (tmp_path / 'file').write_bytes(b'nonsense')
    flags = ['--resume-params', finished['records'] / 'epoch-0003.params', flag, tmp_path / 'file']
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', *flags, status=2)
    assert flag in error_of(capsys)


def test_weights_of_another_network_are_refused_by_a_dry_run_too_with_both_shapes(data_flags, finished, tmp_path, capsys):
    weights = finished['digits'] / 'epoch-0002.params'  # of ten classes
    capsys.readouterr()
    for dry in ([], ['--dry-run']):
        run = ['--resume-params', weights, '--save-dir', tmp_path / 'run', *dry]
        train(*data_flags['records'], *run, status=2)
        message = error_of(capsys)
        assert message.startswith(f'error: --resume-params: {weights} does not fit meliusnet_flex: ')
        assert '.weight is (' in message and ', 1, 3, 3) in the file, but ' in message and '--model-options' in message
        assert not (tmp_path / 'run' / 'checkpoint.json').exists()


def test_a_dry_run_loads_the_optimizer_or_the_checkpoint_and_writes_nothing(data_flags, finished, tmp_path, capsys):
    (tmp_path / 'nonsense').write_bytes(b'nonsense')
    weights = ['--resume-params', finished['records'] / 'epoch-0003.params', '--resume-states', tmp_path / 'nonsense']
    capsys.readouterr()
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', *weights, '--dry-run', status=2)
    assert '--resume-states' in error_of(capsys)
    shutil.copytree(finished['records'], tmp_path / 'run')
    train('--resume', '--save-dir', tmp_path / 'run', '--dry-run')
    assert 'continuing at epoch 4' in capsys.readouterr().out
    (tmp_path / 'run' / 'epoch-0003.states').write_bytes(b'nonsense')
    before = {path: path.read_bytes() for path in (tmp_path / 'run').iterdir()}
    train('--resume', '--save-dir', tmp_path / 'run', '--dry-run')
    output = capsys.readouterr().out
    assert 'epoch-0003.states is damaged' in output and 'continuing at epoch 3' in output
    assert before == {path: path.read_bytes() for path in (tmp_path / 'run').iterdir()}


@pytest.mark.parametrize(
    'flags',
    [
        ['--optimizer', 'sgd', '--no-wd', '--lr-mode', 'step', '--lr-decay-epoch', '1,2'],
        ['--optimizer', 'adam', '--lr-mode', 'poly', '--warmup-epochs', '1', '--initialization', 'msraprelu'],
        ['--optimizer', 'nag', '--lr-decay-period', '1', '--lr-mode', 'step', '--augmentation', 'low', '--save-frequency', '1'],
    ],
)
def test_other_optimizers_schedules_and_augmentations_train(data_flags, tmp_path, flags):
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', *flags)
    history = json.loads((tmp_path / 'run' / 'checkpoint.json').read_text())['progress']['history']
    assert len(history) == 3 and all(np.isfinite(row['loss']) and row['learning_rate'] > 0 for row in history)
    assert len(list((tmp_path / 'run').glob('epoch-*.params'))) == 3 or '--save-frequency' not in flags


def history_of(folder):
    return json.loads((folder / 'checkpoint.json').read_text())['progress']['history']


def test_mixtures_of_smoothed_labels_under_a_preset_resume_bit_for_bit_without_naming_them_again(data_flags, tmp_path):
    flags = [*data_flags['records'], '--preset', 'meliusnet59', '--mixup', '--mixup-off-epoch', '1', '--label-smoothing']
    train_apart(*flags, '--save-dir', tmp_path / 'whole')
    status, _ = train_until('epoch 2, update 1', signal.SIGINT, *flags, '--save-dir', tmp_path / 'run')
    assert status == 128 + signal.SIGINT
    plan = train_apart('--resume', '--save-dir', tmp_path / 'run')
    assert 'preset     meliusnet59' in plan and 'mixup-alpha 0.2' in plan
    assert_same_end(tmp_path / 'run', tmp_path / 'whole')
    rates = [row['learning_rate'] for row in history_of(tmp_path / 'whole')]
    assert rates == pytest.approx([0.0015 * (1 + np.cos(np.pi * update / 21)) for update in (6, 13, 20)])


def test_float_network_teaches_the_first_stage_and_this_one_starts_the_second(data_flags, tmp_path, capsys):
    digits = [*data_flags['digits'], '--num-epochs', '1']
    train(*digits, '--bits', '32', '--save-dir', tmp_path / 'float')
    train(*digits, '--weight-bits', '32', '--teacher', tmp_path / 'float' / 'meliusnet_flex', '--save-dir', tmp_path / 'first')
    train(*digits, '--resume-params', tmp_path / 'first' / 'epoch-0001.params', '--save-dir', tmp_path / 'second')
    described = {name: json.loads((tmp_path / name / 'meliusnet_flex-summary.json').read_text()) for name in ('float', 'first', 'second')}
    assert [described[name]['model'].get('bits') for name in described] == [32, None, None]
    assert [described[name]['model'].get('weight_bits') for name in described] == [None, 32, None]
    assert [described[name]['counts']['bops'] > 0 for name in described] == [False, False, True]
    printed = capsys.readouterr().out
    assert 'temperature 20' in printed and all(np.isfinite(history_of(tmp_path / name)[0]['loss']) for name in described)
    net = get_model(**described['first']['model'])
    net.load_parameters(str(tmp_path / 'first' / 'epoch-0001.params'))
    exported = mx.gluon.SymbolBlock.imports(
        str(tmp_path / 'first' / 'meliusnet_flex-symbol.json'), ['data'], str(tmp_path / 'first' / 'meliusnet_flex-0000.params')
    )
    x = mx.nd.random.normal(shape=(2, 1, 8, 8))
    np.testing.assert_allclose(exported(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)
    for name in described:  # whose parameters have the same names and shapes
        found = evaluated('meliusnet_flex', 'digits', tmp_path / name, 1, capsys)
        assert found['top1'] == pytest.approx(accuracy_on_test_digits(described[name]['model'], tmp_path / name, 1))


def test_a_float_network_of_gluoncv_is_trained_resumed_exported_evaluated_and_packed(tmp_path, capsys):
    run = tmp_path / 'run'
    train(
        '--model',
        'MobileNet0.25',
        '--dataset',
        'digits',
        '--num-epochs',
        '1',
        '--batch-size',
        '256',
        '--save-dir',
        run,
        '--optimizer',
        'sgd',
    )
    printed = capsys.readouterr().out
    assert 'mobilenet0.25, 10 classes: ' in printed and 'float network of GluonCV' in printed and '--bits' not in printed
    train('--resume', '--save-dir', run)
    assert 'continuing at epoch 2' in capsys.readouterr().out
    description = json.loads((run / 'mobilenet0.25-summary.json').read_text())
    assert description['model'] == {'name': 'mobilenet0.25', 'classes': 10} and description['counts']['bops'] == 0
    prefix = str(run / 'mobilenet0.25')
    assert bmx_melius.__main__.main(['convert', prefix, str(tmp_path / 'packed')]) == 0
    capsys.readouterr()
    accuracies = [evaluated('mobilenet0.25', 'digits', run, 1, capsys)['top1']]
    for name in (prefix, str(tmp_path / 'packed')):
        assert bmx_melius.__main__.main(['evaluate', name, 'digits', '--json']) == 0
        accuracies.append(json.loads(capsys.readouterr().out)['top1'])
    assert accuracies == pytest.approx([accuracy_on_test_digits(description['model'], run, 1)] * 3)
    start = ['--resume-params', run / 'epoch-0001.params', '--dry-run', '--save-dir', tmp_path / 'other']
    train('--model', 'mobilenet0.25', '--dataset', 'digits', *start)


@pytest.mark.parametrize('name', ['mobilenet0.5', 'mobilenet0.75', 'mobilenet1.0', 'resnet18_v1', 'resnet34_v1'])
def test_the_float_baselines_of_the_paper_are_trained_by_any_preset(name, tmp_path):
    for preset in ('meliusnet', 'full-precision'):
        config = parse_flags(['--model', name, '--preset', preset, '--save-dir', str(tmp_path)], model_zoo)
        assert model_arguments(config.network, 1000) == {'name': name, 'classes': 1000}


def evaluated(network, data, run, epoch, capsys):
    """What `bmx-melius evaluate` says of the weights of a run after an epoch."""
    assert bmx_melius.__main__.main(['evaluate', network, str(data), '--params', f'{run}/epoch-{epoch:04d}.params', '--json']) == 0
    return json.loads(capsys.readouterr().out)


def accuracy_on_test_digits(model, run, epoch):
    """Top-1 accuracy of the weights of a run after an epoch, computed from the logits of the network in MXNet."""
    net = get_model(**model)
    net.load_parameters(f'{run}/epoch-{epoch:04d}.params')
    spec, test = DATASETS['digits'].input_spec(), open_digits().test
    logits = net(mx.nd.stack(*(spec.normalize(spec.crop(image)) for image, _ in test))).asnumpy()
    return np.mean(logits.argmax(axis=1) == [label for _, label in test])


@pytest.mark.parametrize('kind', ['folders', 'digits'])
def test_evaluate_reads_network_and_input_from_the_checkpoint(finished, images, kind, capsys):
    best = json.loads((finished[kind] / 'meliusnet_flex-summary.json').read_text())
    data = images if kind == 'folders' else 'digits'
    found = evaluated('MeliusNet_Flex', data, finished[kind], best['metrics']['epoch'], capsys)
    expected = best['metrics']['top1']
    if kind == 'digits':  # which have test images beside the validation images
        expected = accuracy_on_test_digits(best['model'], finished[kind], best['metrics']['epoch'])
    assert found['top1'] == pytest.approx(expected) and found['input'] == best['input']


def test_a_network_in_half_precision_takes_and_gives_float32_and_its_optimizer_keeps_it(tmp_path):
    """Only the parts that a CPU can compute: the cast, the master weights, and the way back to an exported network."""
    config = parse_flags([*TINY, '--dtype', 'float16', '--save-dir', str(tmp_path / 'run')], model_zoo)
    spec = InputSpec(channels=1, size=8, resize=10, mean=(0,), std=(1,))
    model = model_arguments(config.network, 10)
    net = make_network(config, get_model, model, spec, [mx.cpu()])
    types = {name.rsplit('_', 1)[1]: parameter.dtype for name, parameter in net.collect_params().items()}
    assert types['weight'] == 'float16' and types['gamma'] == 'float32'
    assert make_trainer(config, net, 10, 64, Workers('device')).optimizer.multi_precision
    (tmp_path / 'run').mkdir()
    counts = bmx_melius.summary(net, (1, 1, 8, 8)).counts
    export_network(config.output.save_dir, net, spec.shape, description_fields(model, spec, counts), {'epoch': 1, 'top1': 0.0, 'top5': 0.0})
    parameters = mx.nd.load(str(tmp_path / 'run' / 'meliusnet_flex-0000.params'))
    assert {array.dtype for array in parameters.values()} == {np.float32}


def test_blocks_start_as_their_shortcuts_with_last_gamma(tmp_path):
    config = parse_flags(['--model', 'resnet_e18', '--last-gamma', '--save-dir', str(tmp_path)], model_zoo)
    net = make_network(config, get_model, model_arguments(config.network, 10), InputSpec(), [mx.cpu()])
    blocks = []
    net.apply(lambda block: blocks.append(block) if hasattr(block, 'shortcut') else None)
    assert len(blocks) == 16 and all(np.all(block.norm.gamma.data().asnumpy() == 0) for block in blocks)


def test_no_wd_excludes_the_parameters_that_gluoncv_excludes(tmp_path):
    config = parse_flags([*TINY, '--no-wd', '--save-dir', str(tmp_path)], model_zoo)
    net = make_network(config, get_model, model_arguments(config.network, 10), InputSpec(), [mx.cpu()])
    make_trainer(config, net, 10, 64, Workers('device'))
    decayed = {name for name, parameter in net.collect_params().items() if parameter.wd_mult and parameter.grad_req != 'null'}
    assert decayed and all(name.endswith('weight') and 'qconv' not in name for name in decayed)


def test_a_diverging_run_ends_with_its_reason(data_flags, tmp_path, capsys):
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--optimizer', 'sgd', '--warmup-epochs', '0', '--lr', '1e30', status=2)
    assert 'diverged in epoch 1' in error_of(capsys)


def test_several_devices_of_a_machine_train_one_network(data_flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mx.context, 'num_gpus', lambda: 2)
    monkeypatch.setattr(mx, 'gpu', mx.cpu)  # two contexts of the CPU stand for two GPUs
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-gpus', '2')
    assert 'updates of 8 images' in capsys.readouterr().out
    assert (tmp_path / 'run' / 'meliusnet_flex-0000.params').exists()


def test_the_help_shows_every_flag_with_its_default_and_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        train_imagenet.main(['--help'])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ('--rec-train', '--augmentation', '--resume', 'examples:', 'default: 64', '--dataset digits'):
        assert word in text
    assert '--use-dali' not in text and pathlib.Path(SCRIPT).name in text


@pytest.mark.long
def test_the_demo_reaches_its_accuracy_packed_too_and_ends_with_it():
    result = subprocess.run(
        [sys.executable, EXAMPLES / 'demo.py'],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        env={**os.environ, 'PYTHONPATH': str(EXAMPLES.parent)},
    )
    last = result.stdout.strip().splitlines()[-1]
    assert float(re.fullmatch(r'top-1 (\d\d\.\d) %', last).group(1)) >= 95
    different, count = re.search(r'different predictions: (\d+) of (\d+)', result.stdout).groups()
    assert int(different) <= 0.01 * int(count), 'sums in another order may turn a sign, and that a close decision'
