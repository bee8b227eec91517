"""train_imagenet.py as its users run it: networks, optimizers and teachers, the exported network, and its evaluation."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from support.conversions import imported
from support.forked_program import SCRIPT
from support.networks import layers_of
from support.training_runs import TINY, accuracy_after, description_of, error_of, evaluated, history_of, printed_by, train

import bmx_melius.__main__
import model_zoo
from bmx_melius import UserError
from bmx_melius.data.small_images import open_digits
from bmx_melius.distributed.workers import Workers
from bmx_melius.files.exported import description_fields
from bmx_melius.files.io import sha256
from bmx_melius.training.network import make_network, model_arguments
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions, make_trainer
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.progress import Progress
from bmx_melius.training.saving.checkpoints import Checkpoints
from bmx_melius.training.saving.export import export_network
from bmx_melius.training.saving.stored_checkpoints import read_state, write_state
from bmx_melius.vision.preprocessing import InputSpec
from model_zoo import get_model
from model_zoo.residual import Residual

EXAMPLES = pathlib.Path(SCRIPT).parent / 'examples'
pytest_plugins = ['support.training_runs']  # its fixtures


def test_the_seed_determines_the_loss_and_imperative_mode_gives_the_same(data_flags, tmp_path):
    losses = {}
    for name, flags in (('first', []), ('second', []), ('seed', ['--seed', '1']), ('imperative', ['--mode', 'imperative'])):
        train(*data_flags['records'], '--num-epochs', '1', '--save-dir', tmp_path / name, *flags)
        losses[name] = history_of(tmp_path / name)[0]['loss']
    assert losses['first'] == losses['second']
    assert abs(losses['first'] - losses['seed']) > 1e-3
    assert losses['first'] == pytest.approx(losses['imperative'], rel=1e-3)


def test_the_exported_network_is_the_best_one_and_runs_without_this_project(finished, tmp_path):
    prefix = finished['digits'] / 'meliusnet_flex'
    description = description_of(finished['digits'])
    spec = InputSpec.from_json(description['input'])
    validation = open_digits().validation
    inputs = mx.nd.concat(*(spec.normalize(spec.crop(image)).expand_dims(0) for image, _ in validation), dim=0)
    np.save(tmp_path / 'inputs.npy', inputs.asnumpy())
    command = [sys.executable, EXAMPLES / 'classify_with_stock_mxnet.py', prefix, 'inputs.npy', 'outputs.npy']
    subprocess.run(command, check=True, cwd=tmp_path)  # it fails if it imported this project
    logits = np.load(tmp_path / 'outputs.npy')
    top1 = np.mean(logits.argmax(axis=1) == [label for _, label in validation])
    assert top1 == pytest.approx(description['metrics']['top1'])
    assert description['metrics']['top1'] == max(row['top1'] for row in history_of(finished['digits']))

    net = get_model(**description['model'])
    net.load_parameters(str(finished['digits'] / f'epoch-{description["metrics"]["epoch"]:04d}.params'))
    np.testing.assert_allclose(net(inputs).asnumpy(), logits, atol=1e-4)
    counts = bmx_melius.summary(net, (1, *spec.shape)).counts
    assert description['counts'] == counts and description['class_names'] == list('0123456789')


def test_too_little_disk_space_for_checkpoints_is_reported_before_training(data_flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr('bmx_melius.training.run.check_folder', lambda folder: 100_000)
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-epochs', '1')
    assert 'has 0.1 MB free, and the checkpoints will take about ' in capsys.readouterr().out


def test_the_space_for_checkpoints_is_that_of_three_with_two_moments_of_the_best_and_of_the_kept_ones(
    data_flags, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr('bmx_melius.training.run.check_folder', lambda folder: 0)
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-epochs', '2', '--save-frequency', '1')
    megabytes = float(re.search(r'will take about ([0-9.]+) MB', capsys.readouterr().out).group(1))
    assert megabytes == pytest.approx((3 * 3 + 1 + 2) * (tmp_path / 'run' / 'epoch-0002.params').stat().st_size / 1e6, rel=0.1)


def test_a_log_that_cannot_be_written_is_reported_once_and_training_continues(data_flags, tmp_path, capsys):
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--num-epochs', '1', '--logging-file', '/dev/full')
    assert capsys.readouterr().err.splitlines() == ['the log /dev/full cannot be written: [Errno 28] No space left on device']
    assert (tmp_path / 'run' / 'meliusnet_flex-0000.params').exists()


def test_weights_and_optimizer_of_another_run_can_be_started_from(data_flags, finished, tmp_path, capsys):
    start = [word for kind in ('params', 'states') for word in (f'--resume-{kind}', finished['records'] / f'epoch-0003.{kind}')]
    printed = printed_by(capsys, *data_flags['records'], '--num-epochs', '5', '--resume-epoch', '3', *start, '--save-dir', tmp_path / 'run')
    assert 'epoch 4, update 1 of 7' in printed and 'epoch 3, update' not in printed
    rates = [float(line.rsplit(' ', 1)[1]) for line in printed.splitlines() if line.startswith('epoch 4, update')]
    expected = [0.002 * (1 + np.cos(np.pi * update / 35)) / 2 for update in range(21, 28)]
    np.testing.assert_allclose(rates, expected, rtol=0.01)


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
    history = history_of(tmp_path / 'run')
    assert len(history) == 3 and all(np.isfinite(row['loss']) and row['learning_rate'] > 0 for row in history)
    assert len(list((tmp_path / 'run').glob('epoch-*.params'))) == 3 or '--save-frequency' not in flags


def test_float_network_teaches_the_first_stage_and_this_one_starts_the_second(data_flags, tmp_path, capsys):
    digits = [*data_flags['digits'], '--num-epochs', '1']
    train(*digits, '--bits', '32', '--save-dir', tmp_path / 'float')
    train(*digits, '--weight-bits', '32', '--teacher', tmp_path / 'float' / 'meliusnet_flex', '--save-dir', tmp_path / 'first')
    train(*digits, '--resume-params', tmp_path / 'first' / 'epoch-0001.params', '--save-dir', tmp_path / 'second')
    described = {name: description_of(tmp_path / name) for name in ('float', 'first', 'second')}
    assert [described[name]['model'].get('bits') for name in described] == [32, None, None]
    assert [described[name]['model'].get('weight_bits') for name in described] == [None, 32, None]
    assert [described[name]['counts']['bops'] > 0 for name in described] == [False, False, True]
    printed = capsys.readouterr().out
    assert 'temperature 20' in printed and all(np.isfinite(history_of(tmp_path / name)[0]['loss']) for name in described)
    net = get_model(**described['first']['model'])
    net.load_parameters(str(tmp_path / 'first' / 'epoch-0001.params'))
    x = mx.nd.random.normal(shape=(2, 1, 8, 8))
    np.testing.assert_allclose(imported(tmp_path / 'first' / 'meliusnet_flex')(x).asnumpy(), net(x).asnumpy(), rtol=1e-4, atol=1e-4)
    for name in described:  # whose parameters have the same names and shapes
        found = evaluated('meliusnet_flex', 'digits', tmp_path / name, 1, capsys)
        assert found['top1'] == pytest.approx(accuracy_after(described[name]['model'], tmp_path / name, 1))


def test_a_float_network_of_gluoncv_is_trained_resumed_exported_evaluated_and_packed(tmp_path, capsys):
    run, digits = tmp_path / 'run', ['--dataset', 'digits', '--num-epochs', '1', '--batch-size', '256']
    printed = printed_by(capsys, '--model', 'MobileNet0.25', *digits, '--optimizer', 'sgd', '--save-dir', run)
    assert 'mobilenet0.25, 10 classes: ' in printed and 'float network of GluonCV' in printed and '--bits' not in printed
    assert 'continuing at epoch 2' in printed_by(capsys, '--resume', '--save-dir', run)
    description = description_of(run, 'mobilenet0.25')
    assert description['model'] == {'name': 'mobilenet0.25', 'classes': 10} and description['counts']['bops'] == 0
    prefix = str(run / 'mobilenet0.25')
    assert bmx_melius.__main__.main(['convert', prefix, str(tmp_path / 'packed')]) == 0
    capsys.readouterr()
    accuracies = [evaluated('mobilenet0.25', 'digits', run, 1, capsys)['top1']]
    for name in (prefix, str(tmp_path / 'packed')):
        assert bmx_melius.__main__.main(['evaluate', name, 'digits', '--json']) == 0
        accuracies.append(json.loads(capsys.readouterr().out)['top1'])
    assert accuracies == pytest.approx([accuracy_after(description['model'], run, 1)] * 3)
    train('--model', 'mobilenet0.25', *digits, '--resume-params', run / 'epoch-0001.params', '--dry-run', '--save-dir', tmp_path / 'other')


@pytest.mark.parametrize('name', ['mobilenet0.5', 'mobilenet0.75', 'mobilenet1.0', 'resnet18_v1', 'resnet34_v1'])
def test_the_float_baselines_of_the_paper_are_trained_by_any_preset(name, tmp_path):
    for preset in ('meliusnet', 'full-precision'):
        config = parse_options(['--model', name, '--preset', preset, '--save-dir', str(tmp_path)], model_zoo)
        assert model_arguments(config, 1000) == {'name': name, 'classes': 1000}


@pytest.mark.parametrize('kind', ['folders', 'digits'])
def test_evaluate_reads_network_and_input_from_the_checkpoint(finished, images, kind, capsys):
    best = description_of(finished[kind])
    data = images if kind == 'folders' else 'digits'
    found = evaluated('MeliusNet_Flex', data, finished[kind], best['metrics']['epoch'], capsys)
    expected = best['metrics']['top1']
    if kind == 'digits':  # which have test images beside the validation images
        expected = accuracy_after(best['model'], finished[kind], best['metrics']['epoch'])
    assert found['top1'] == pytest.approx(expected) and found['input'] == best['input']


def made_network(folder, spec, *flags):
    """The configuration of a run, and its network of ten classes."""
    config = parse_options([*flags, '--save-dir', str(folder)], model_zoo)
    return config, make_network(config, get_model, model_arguments(config, 10), spec, [mx.cpu()])


def test_a_network_in_half_precision_takes_and_gives_float32_and_its_optimizer_keeps_it(tmp_path):
    """Only the parts that a CPU can compute: the cast, the master weights, and the way back to an exported network."""
    spec = InputSpec(channels=1, size=8, resize=10, mean=(0,), std=(1,))
    config, net = made_network(tmp_path / 'run', spec, *TINY, '--dtype', 'float16')
    types = {name.rsplit('_', 1)[1]: parameter.dtype for name, parameter in net.collect_params().items()}
    assert types['weight'] == 'float16' and types['gamma'] == 'float32'
    assert make_trainer(net, 10, 64, Workers('device'), *map(config.make, (OptimizerOptions, ScheduleOptions))).optimizer.multi_precision
    (tmp_path / 'run').mkdir()
    counts = bmx_melius.summary(net, (1, 1, 8, 8)).counts
    fields = description_fields(model_arguments(config, 10), spec, counts)
    export_network(config.save_dir, net, spec.shape, fields, {'epoch': 1, 'top1': 0.0, 'top5': 0.0})
    parameters = mx.nd.load(str(tmp_path / 'run' / 'meliusnet_flex-0000.params'))
    assert {array.dtype for array in parameters.values()} == {np.float32}


def test_blocks_start_as_their_shortcuts_with_last_gamma(tmp_path):
    _, net = made_network(tmp_path, InputSpec(), '--model', 'resnet_e18', '--last-gamma')
    blocks = layers_of(net, Residual)
    assert len(blocks) == 16 and all(np.all(block.norm.gamma.data().asnumpy() == 0) for block in blocks)


def test_no_wd_excludes_the_parameters_that_gluoncv_excludes(tmp_path):
    config, net = made_network(tmp_path, InputSpec(), *TINY, '--no-wd')
    make_trainer(net, 10, 64, Workers('device'), *map(config.make, (OptimizerOptions, ScheduleOptions)))
    decayed = {name for name, parameter in net.collect_params().items() if parameter.wd_mult and parameter.grad_req != 'null'}
    assert decayed and all(name.endswith('weight') and 'qconv' not in name for name in decayed)


def test_a_diverging_run_ends_with_its_reason(data_flags, tmp_path, capsys):
    train(*data_flags['records'], '--save-dir', tmp_path / 'run', '--optimizer', 'sgd', '--warmup-epochs', '0', '--lr', '1e9', status=2)
    assert 'diverged in update ' in error_of(capsys)


@pytest.mark.parametrize('flags', [['--optimizer', 'adam', '--lr', '1e9'], ['--optimizer', 'radam', '--lr', '1e9', '--wd', '1e9']])
def test_divergence_that_signs_and_relu_hide_from_the_loss_is_found_at_its_update_and_nothing_is_exported(tmp_path, capsys, flags):
    run = tmp_path / 'run'
    train(*TINY, '--dataset', 'digits', '--batch-size', '128', '--num-epochs', '2', *flags, '--save-dir', run, status=2)
    place, name = re.match(r'error: training diverged in update (\d+) of epoch 1: (\S+) has values', error_of(capsys)).groups()
    assert 1 <= int(place) <= 8 and name in mx.nd.load(str(run / 'epoch-0000.params'))
    assert not list(run.glob('meliusnet_flex*')) and [path.name for path in run.glob('*.params')] == ['epoch-0000.params']
    assert all(np.isfinite(array.asnumpy()).all() for array in mx.nd.load(str(run / 'epoch-0000.params')).values())
    assert f'update {int(place) - 1} of' in (run / 'experiment.log').read_text() or int(place) == 1


def test_weights_with_nan_are_not_saved_not_resumed_and_not_started_from(data_flags, finished, tmp_path, capsys):
    shutil.copytree(finished['records'], tmp_path / 'run')
    file = tmp_path / 'run' / 'epoch-0003.params'
    arrays = mx.nd.load(str(file))
    name = next(name for name in arrays if name.endswith('running_var'))
    arrays[name][0] = np.nan
    mx.nd.save(str(file), arrays)
    state = read_state(str(tmp_path / 'run' / 'checkpoint.json'))
    write_state(str(tmp_path / 'run' / 'checkpoint.json'), {**state, 'sha256': {**state['sha256'], file.name: sha256(str(file))}})
    for flags in (['--resume'], [*data_flags['records'], '--resume-params', file]):
        train(*flags, '--save-dir', tmp_path / ('run' if len(flags) == 1 else 'new'), status=2)
        assert f'{file}: {name} has values that are NaN or infinite' in error_of(capsys)
    net = gluon.nn.BatchNorm(in_channels=1)
    net.initialize()
    net.running_mean.set_data(mx.nd.array([np.inf]))
    with pytest.raises(UserError, match='update 7 of epoch 3: running_mean has values'):
        Checkpoints(str(tmp_path / 'never'), {}).save(net, None, Progress(1, epoch=2, batch=7))
    assert not (tmp_path / 'never').exists()


def test_several_devices_of_a_machine_train_one_network(data_flags, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(mx.context, 'num_gpus', lambda: 2)
    monkeypatch.setattr(mx, 'gpu', mx.cpu)  # two contexts of the CPU stand for two GPUs
    assert 'updates of 8 images' in printed_by(capsys, *data_flags['records'], '--save-dir', tmp_path / 'run', '--num-gpus', '2')
    assert (tmp_path / 'run' / 'meliusnet_flex-0000.params').exists()


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
