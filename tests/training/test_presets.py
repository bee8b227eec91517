"""The protocols: their numbers, how flags and datasets change them, and the learning rate of every update they lead to."""

import fractions
import itertools
import json
import math
import shlex

import mxnet as mx
import numpy as np
import pytest
from mxnet import gluon
from support.gradients import descend
from support.paths import ROOT
from support.small_networks import sequence
from support.training_runs import series_of

import model_zoo
import train_imagenet
from bmx_melius.data.datasets import DATASETS
from bmx_melius.distributed.workers import Workers
from bmx_melius.nn.layers import QDense
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions, make_trainer
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.options.presets import PRESETS, STAGES, describe_preset
from bmx_melius.training.run import measure
from bmx_melius.training.saving.optimizer_state import load_optimizer

UPDATES = 1281167 // 64  # an epoch of ImageNet


def value_of(flag, text):
    """The value of a flag as the documentation writes it: a word, a number, several numbers, a JSON object, or nothing."""
    try:
        values = json.loads(f'[{text}]') or [None]
    except ValueError:
        return True if text == 'on' else text
    return values if flag == '--lr-decay-epoch' and text or len(values) > 1 else values[0]


def documented_presets():
    """The table of docs/training-reference.md, which has the sources of its numbers: preset -> name of a flag -> value."""
    lines = (ROOT / 'docs' / 'training-reference.md').read_text().splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith('| preset |'))
    table = itertools.takewhile(lambda line: line.startswith('|'), lines[start:])
    (_, *columns, _), _, *rows = [[cell.strip(' `') for cell in line.strip('|').split('|')] for line in table]
    presets = {}
    for preset, *cells, others in rows:
        words = shlex.split(others)
        flags = [*zip(columns, cells), *zip(words[::2], words[1::2])]
        presets[preset] = {flag[2:].replace('-', '_'): value_of(flag, text) for flag, text in flags}
    return presets


DOCUMENTED = documented_presets()
FLAGS = set().union(*DOCUMENTED.values())


def parsed(folder, *arguments):
    """The configuration of a new run."""
    return parse_options(['--model', 'meliusnet22', '--save-dir', str(folder / 'new'), *map(str, arguments)], model_zoo)


def test_the_presets_are_those_of_the_documentation():
    assert list(DOCUMENTED) == list(PRESETS) and len(FLAGS) == 19


@pytest.mark.parametrize('preset', DOCUMENTED)
def test_a_preset_has_the_values_of_the_documentation(preset, tmp_path):
    options, default = parsed(tmp_path, '--preset', preset), parsed(tmp_path)
    values = {name: getattr(options, name) for name in FLAGS}
    ineffective = {'step': ['lr_power'], 'poly': ['lr_decay', 'lr_decay_epoch'], 'cosine': ['lr_power', 'lr_decay', 'lr_decay_epoch']}
    values.update(dict.fromkeys(ineffective[options.lr_mode]))
    assert values == {**{name: getattr(default, name) for name in FLAGS}, **DOCUMENTED[preset]}
    assert (options.weight_bits, options.initialization, options.warmup_lr) == (options.bits, 'gaussian', 0)


def test_without_a_preset_the_protocol_is_meliusnets(tmp_path):
    assert vars(parsed(tmp_path)) == vars(parsed(tmp_path, '--preset', 'meliusnet'))


OVERRIDES = [
    ('--optimizer', 'sgd'),
    ('--lr', '0.5'),
    ('--wd', '0.25'),
    ('--lr-mode', 'poly'),
    ('--num-epochs', '7'),
    ('--batch-size', '3'),
    ('--augmentation', 'low'),
    ('--bits', '32'),
    ('--initialization', 'xavier'),
    ('--warmup-lr', '0.125'),
    ('--warmup-epochs', '2'),
    ('--lr-decay', '0.75'),
    ('--lr-decay-epoch', '1,2,3,4'),
    ('--lr-power', '3'),
    ('--no-wd', 'on'),
    ('--no-wd', 'off'),
    ('--optimizer-params', '{"clip_gradient": 2}'),
    ('--binary-optimizer', 'nag'),
]
VALUES = {'--lr-decay-epoch': [1, 2, 3, 4], '--no-wd': {'on': True, 'off': False}, '--optimizer-params': {'clip_gradient': 2}}
OPTIMIZER_FLAGS = {'optimizer_params', 'binary_optimizer', 'binary_lr', 'binary_optimizer_params'}


@pytest.mark.parametrize('preset', DOCUMENTED)
@pytest.mark.parametrize('flag,text', OVERRIDES)
def test_every_value_of_a_preset_is_overridden_by_its_flag_and_the_plan_names_the_change(preset, flag, text, tmp_path):
    if flag == '--lr-decay-epoch' and not isinstance(DOCUMENTED[preset]['lr_decay'], list):
        text = text[:3]
    plain, options = parsed(tmp_path, '--preset', preset), parsed(tmp_path, '--preset', preset, flag, text)
    name = flag[2:].replace('-', '_')
    expected = VALUES.get(flag, text)
    if isinstance(expected, list):
        expected = expected[: len(text.split(','))]
    elif flag == '--no-wd':
        expected = expected[text]
    elif flag not in VALUES:
        kind = type(getattr(plain, name))
        expected = float(text) if kind is list else text if getattr(plain, name) is None else kind(text)
    assert getattr(options, name) == expected
    kept, _, overridden = describe_preset(options).partition('; overridden: ')
    ineffective = {'step': 'lr_power', 'poly': 'lr_decay', 'cosine': 'lr_'}[plain.lr_mode]
    if getattr(plain, name) != expected and (name == 'lr_mode' or not name.startswith(ineffective)):
        shown = str(expected) if isinstance(expected, dict) else text
        assert f'{flag} {shown} (not ' in overridden and flag + ' ' not in kept
    described = describe_preset(plain)
    assert described.startswith(f'{preset}: ') and 'overridden' not in described


def test_all_that_a_preset_sets_can_be_overridden_here():
    tested = {flag[2:].replace('-', '_') for flag, _ in OVERRIDES} | OPTIMIZER_FLAGS | {'input_size'}  # in tests of these flags
    assert tested >= set.union(*map(set, PRESETS.values()))


@pytest.mark.parametrize('preset', DOCUMENTED)
def test_another_optimizer_has_its_default_rate_decay_and_warm_up(preset, tmp_path):
    other = 'nag' if DOCUMENTED[preset]['optimizer'] == 'sgd' else 'sgd'
    options = parsed(tmp_path, '--preset', preset, '--optimizer', other, '--num-epochs', DOCUMENTED[preset]['num_epochs'])
    assert (options.lr, options.wd, options.momentum, options.warmup_epochs) == (0.1, 1e-4, 0.9, 5)


@pytest.mark.parametrize('preset', DOCUMENTED)
@pytest.mark.parametrize('dataset', DATASETS)
def test_a_dataset_scales_rate_and_epochs_and_events_keep_their_share_of_the_run(preset, dataset, tmp_path):
    row, documented, options = DATASETS[dataset], DOCUMENTED[preset], parsed(tmp_path, '--preset', preset, '--dataset', dataset)
    batch = documented['batch_size']
    assert options.batch_size == (min(64, batch) if dataset in ('digits', 'glyphs') else batch)
    ratio = options.batch_size / batch
    linear = documented['optimizer'] in ('sgd', 'nag')
    assert options.lr == pytest.approx(documented['lr'] * row.lr_factor * (ratio if linear else math.sqrt(ratio)))
    if 'binary_lr' in documented:
        assert options.binary_lr == pytest.approx(documented['binary_lr'] * row.lr_factor * math.sqrt(ratio))
    assert parsed(tmp_path, '--preset', preset, '--dataset', dataset, '--batch-size', 48).lr == options.lr
    assert options.num_epochs == max(1, round(documented['num_epochs'] * row.num_epochs / 120))
    share = fractions.Fraction(options.num_epochs, documented['num_epochs'])
    assert options.warmup_epochs == min(math.ceil(documented['warmup_epochs'] * share), options.num_epochs - 1)
    assert options.lr_decay_epoch == [math.floor(epoch * share) for epoch in documented['lr_decay_epoch'] or [40, 60]]


@pytest.mark.parametrize(
    'network, preset',
    [
        ('meliusnet22', 'meliusnet'),
        ('resnet34_xnor', 'xnor-net'),
        ('resnet18_xnorpp', 'meliusnet'),
        ('resnet18_lqnet_w1a2', 'lq-net'),
        ('groupnet18', 'groupnet'),
        ('mobilenet0.5', 'meliusnet'),
        ('ResNet18_E1', 'resnet-e'),  # another name and spelling of resnet_e18
        ('binary_densenet_flex', 'binary-densenet'),
        ('resnet18_bwn', 'xnor-net'),
        ('resnet18_benn', 'xnor-net'),
    ],
)
def test_the_preset_auto_is_that_of_the_network(network, preset, tmp_path):
    assert parsed(tmp_path, '--model', network, '--preset', 'auto').preset == preset


OF_NETWORKS = {model_zoo.preset_of(name) for name in model_zoo.get_model_list()} - {None}


def test_the_preset_of_every_network_exists():
    assert set(PRESETS) > OF_NETWORKS


def test_the_preset_for_photos_has_smaller_images_except_where_they_are_small_already(tmp_path):
    options = ['--preset', 'photos', '--dataset']
    assert parsed(tmp_path, *options, 'imagenet', '--input-size', '96').input_size == 96
    assert parsed(tmp_path, *options, 'cifar10').input_size == 32
    assert parsed(tmp_path, '--preset', 'meliusnet').input_size == 224
    assert '--input-size 96 (not 128)' in describe_preset(parsed(tmp_path, '--preset', 'photos', '--input-size', '96'))


def test_a_longer_run_stretches_its_preset(tmp_path):
    for factor in range(1, 60):
        options = parsed(tmp_path, '--preset', 'naive', '--num-epochs', 40 * factor)
        assert (options.lr, options.num_epochs, options.lr_decay_epoch) == (0.001, 40 * factor, [35 * factor, 37 * factor])


# ---- the learning rate of whole runs ----


def formula(options, update):
    """The rate of update 0, 1 ... of a run over ImageNet, written down anew."""
    warmup, total = options['warmup_epochs'] * UPDATES, options['num_epochs'] * UPDATES
    if update < warmup:
        return options['lr'] * (update + 1) / warmup
    if options['lr_mode'] == 'step':
        begun = sum(update >= epoch * UPDATES for epoch in options['lr_decay_epoch'])
        factors = options['lr_decay'] if isinstance(options['lr_decay'], list) else [options['lr_decay']] * begun
        return options['lr'] * math.prod(factors[:begun])
    if options['lr_mode'] == 'poly':
        return options['lr'] * (1 - (update - warmup) / (total - warmup)) ** options['lr_power']
    return options['lr'] * (1 + math.cos(math.pi * (update - warmup) / (total - warmup))) / 2


def trainer_for(folder, *arguments):
    """The trainer of a run over ImageNet, as train_imagenet.py makes it, of a binary and a real weight."""
    net = sequence(QDense(1, in_units=1), gluon.nn.Dense(1, use_bias=False, in_units=1))
    net.initialize()
    config = parsed(folder, *arguments)
    return make_trainer(net, UPDATES, 64, Workers('device'), *map(config.make, (OptimizerOptions, ScheduleOptions))), net


def test_every_update_of_epochs_of_imagenet_has_the_rate_of_the_formula_and_the_last_one_ends_the_schedule(tmp_path):
    trainer, _ = trainer_for(tmp_path, '--num-epochs', 6)
    optimizer, total = trainer.optimizer, 6 * UPDATES
    rates = np.empty(total)
    for update in range(total):
        optimizer._update_count(0)  # what an update begins with
        rates[update] = optimizer.learning_rate
    np.testing.assert_allclose(rates, 0.001 * (1 + np.cos(np.pi * np.arange(total) / total)), rtol=1e-9, atol=1e-18)
    assert (rates > 0).all() and (np.diff(rates) <= 0).all()
    assert optimizer.num_update == total and optimizer.lr_scheduler(total + 1) == pytest.approx(0, abs=1e-18)


@pytest.mark.parametrize('preset', DOCUMENTED)
@pytest.mark.parametrize('resumed_at', [0, 3, 36])
def test_every_preset_follows_its_formula_resumed_or_not(preset, resumed_at, tmp_path):
    (tmp_path / 'weights').write_bytes(b'')
    resume = ['--resume-params', tmp_path / 'weights', '--resume-epoch', resumed_at] if resumed_at else []
    optimizer = trainer_for(tmp_path, '--preset', preset, *resume)[0].optimizer
    documented, total = DOCUMENTED[preset], DOCUMENTED[preset]['num_epochs'] * UPDATES
    edges = [epoch * UPDATES for epoch in range(documented['num_epochs'] + 1)]
    places = sorted(
        {
            place
            for place in [*range(0, total, 1009), *(edge + near for edge in edges for near in range(-2, 3))]
            if resumed_at * UPDATES <= place < total
        }
    )
    optimizer._update_count(0)
    assert optimizer.num_update == places[0] + 1, 'the first update after resuming'
    rates = []
    for place in places:
        optimizer.num_update = place + 1
        rates.append(optimizer.learning_rate)
    np.testing.assert_allclose(rates, [formula(documented, place) for place in places], rtol=1e-9, atol=1e-18)
    assert min(rates) > 0
    if 'binary_lr' in documented:
        schedule = optimizer.parts['binary'].lr_scheduler
        of_binary = [formula({**documented, 'lr': documented['binary_lr']}, place) for place in places]
        np.testing.assert_allclose([schedule(place + 1) for place in places], of_binary, rtol=1e-9, atol=1e-18)


def test_a_trainer_with_the_saved_state_of_another_continues_with_the_next_rate(tmp_path):
    def step(trainer, net):
        descend(trainer, 1, lambda: net(mx.nd.ones((1, 1))))
        return trainer.learning_rate

    flags_of_run = ['--preset', 'full-precision']
    whole, parts = [], []
    run = trainer_for(tmp_path, *flags_of_run)
    for number in range(8):
        whole.append(step(*run))
        if number == 4:
            run[0].save_states(str(tmp_path / 'states'))
    run = trainer_for(tmp_path, *flags_of_run)
    run[0]._init_kvstore()
    load_optimizer(run[0], str(tmp_path / 'states'))
    parts = [step(*run) for _ in range(3)]
    assert parts == whole[5:]
    np.testing.assert_allclose(whole, [formula(DOCUMENTED['full-precision'], update) for update in range(8)], rtol=1e-9)


# ---- training by each preset ----

NARROW = '{"init_features": 8}'
SMALL = '{"block_numbers": [1, 1], "transitions": [8], "growth_rate": 8, "init_features": 8}'
TRAINED = {  # preset -> the smallest network of its method, its options, and further flags
    **{name: ('meliusnet_flex', SMALL) for name in PRESETS if name not in OF_NETWORKS or name == 'meliusnet59'},  # whose network is large
    'resnet-e': ('resnet_e18', NARROW),
    'binary-densenet': ('binary_densenet_flex', SMALL),
    'birealnet': ('birealnet18', NARROW),
    'real-to-binary': ('real_to_binary18', NARROW),
    'reactnet': ('reactnet18', NARROW),
    'quicknet': ('quicknet_small', NARROW),
    'xnor-net': ('resnet18_xnor', NARROW),
    'bnn': ('resnet18_bnn', NARROW),
    'abc-net': ('resnet18_abcnet', NARROW),
    'groupnet': ('groupnet18', NARROW),
    'cbcn': ('resnet18_cbcn', NARROW),
    'hwgq': ('resnet18_hwgq', NARROW),
    'lq-net': ('resnet18_lqnet_w1a2', NARROW),
    'syq': ('resnet18_syq_w1a2', NARROW),
    'dorefa': ('resnet18_dorefa_w2a2', NARROW),
    'ttq': ('resnet18_ttq', NARROW),
    'reactnet-a': ('reactnet_a', NARROW, '--input-size', '16'),
    'bnext': ('bnext18', '{"init_features": 64}'),  # of fewer channels, all that its gates compute may be negative before a ReLU
    'pokebnn': ('pokebnn_0_5', NARROW, '--input-size', '32'),
    'ir-net': ('resnet20_irnet', NARROW),
    'recu': ('resnet20_recu', NARROW),
    'adabin': ('resnet20_adabin', NARROW),
}


def test_every_preset_is_tried_with_a_network_of_its_own_method():
    assert TRAINED.keys() == PRESETS.keys()
    assert {preset for preset, (name, *_) in TRAINED.items() if model_zoo.preset_of(name) == preset} == OF_NETWORKS - {'meliusnet59'}


@pytest.mark.parametrize('preset', TRAINED)
def test_every_preset_trains_all_layers_of_the_network_of_its_method_in_all_its_stages(preset, tmp_path):
    network, options, *others = TRAINED[preset]
    flags = ['--model', network, '--model-options', options, '--preset', preset, '--dataset', 'digits', '--batch-size', '16', '-j', '0']
    flags += ['--save-dir', str(tmp_path / 'run'), *others]
    series = series_of(*flags)
    for options in map(series.config, range(len(STAGES[preset]))) if series else [parse_options(flags, model_zoo)]:
        training, _ = train_imagenet.prepare(options, Workers('device'))
        trained = {name: array for name, array in training.net.collect_params().items() if array.grad_req != 'null'}
        before = {name: array.data().asnumpy() for name, array in trained.items()}
        measure(training)  # four updates
        after = {name: array.data().asnumpy() for name, array in training.net.collect_params().items()}
        assert all(np.isfinite(array).all() for array in after.values())
        assert [name for name, array in before.items() if name.endswith('weight') and (after[name] == array).all()] == []
