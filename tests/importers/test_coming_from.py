"""Tables of docs/coming-from.md for users of BMXNet-v2 and GluonCV: their flags, commands and networks exist here, or are refused by name.

tests/data has the flags of their scripts: names, whether they take a value, default and choices, with the commit.
"""

import json
import pathlib
import re

import mxnet as mx
import numpy as np
import pytest
from support.images import encode, make_folders, pack_folders, write_records
from support.long_runs import mostly_long
from support.paths import ROOT
from support.training_runs import TINY, train

import model_zoo
from bmx_melius import UserError
from bmx_melius.data.opening import DataOptions, InputOptions, open_source
from bmx_melius.data.source import Batching
from bmx_melius.training.network import INITIALIZERS
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions, make_trainer
from bmx_melius.training.options.flags import ALIASES, MODEL_FLAGS, REFUSED, make_parser
from bmx_melius.training.options.parsing import parse_arguments, parse_options
from bmx_melius.training.teacher import TeacherOptions, load_teacher

TEXT = (ROOT / 'docs' / 'coming-from.md').read_text()
PARSER = make_parser(model_zoo)
DATA = pathlib.Path(__file__).parents[1] / 'data'
GLUONCV, BMXNET = (json.loads((DATA / f'{name}_flags.json').read_text()) for name in ('gluoncv', 'bmxnet_v2'))
TABLES = {"flag of GluonCV's": GLUONCV['flags'], 'flag of `image_classification.py`': BMXNET['flags']}
FLAGS = [(title, flag) for title, flags in TABLES.items() for flag in flags]
# Values for flags without a default, and of other forms or meanings here.
VALUES = {
    '--model': 'meliusnet22', '--teacher': 'resnet18_v1', '--mode': 'hybrid', '--downsample-structure': 'bn,max_pool,relu,fp_conv',
    '--reduction': '2,2,2', '--growth-rate': '64', '--init-features': '64', '--block-config': '4,5,4,4', '--interrupt-at': '3',
    '--save-frequency': '3', '--write-summary': 'logs', '--resume': 'x.params',
}  # fmt: skip
# Choices of theirs that are refused here; BMXNet-v2 itself fails with the approximation abc.
REFUSED_CHOICES = {('--data-backend', 'dali-gpu'), ('--data-backend', 'dali-cpu'), ('--approximation', 'abc')}


def value_of(flag):
    default = VALUES.get(flag['names'][-1], VALUES.get(flag['names'][0], flag['default']))
    return ','.join(map(str, default)) if isinstance(default, list) else str(default)


def given(*arguments):
    """The values that the arguments give to flags, by attribute."""
    return parse_arguments(['--model', 'meliusnet22', *arguments], model_zoo).given


def rows(title):
    """Rows of the table whose head begins with `title`, as pairs of the names in backquotes in both columns."""
    table = TEXT[TEXT.index(f'| {title}') :].partition('\n\n')[0].splitlines()[2:]
    return [tuple(re.findall('`([^`]+)`', column) for column in row.strip('|').split(' | ')) for row in table]


@pytest.mark.parametrize('title, flag', FLAGS, ids=lambda value: value['names'][-1] if isinstance(value, dict) else value.split()[-1])
def test_each_flag_is_in_the_table_and_takes_a_value_as_there_or_is_refused_by_name(title, flag):
    named = {name.split()[0] for row in rows(title) for column in row for name in column}
    for name in flag['names']:
        assert name in named
        dashes = name.replace('_', '-')[2:]
        for spelling in {name, f'--{dashes}', f'--{dashes.replace("-", "_")}'} if name.startswith('--') else {name}:
            arguments = [spelling, value_of(flag)] if flag['value'] else [spelling]
            if name in REFUSED:
                with pytest.raises(UserError, match=f'^{spelling}: '):
                    given(*arguments)
                for replacement in re.findall('--[a-z][a-z-]+', REFUSED[name]):
                    assert replacement in PARSER._option_string_actions and replacement not in REFUSED
                continue
            assert given(*arguments, '--seed', '3')['seed'] == 3  # it leaves the next flag alone
            if flag['value'] and name != '--resume':
                with pytest.raises(UserError, match='expected one argument') if name not in MODEL_FLAGS else pytest.raises(UserError):
                    given(spelling)


@pytest.mark.parametrize('flag, choice', [(flag['names'][0], str(choice)) for _, flag in FLAGS for choice in flag.get('choices', ())])
def test_each_choice_is_accepted_or_refused_with_the_name_of_the_flag(flag, choice):
    if flag in REFUSED or (flag, choice) in REFUSED_CHOICES:
        with pytest.raises(UserError, match=f'{flag}: .*') as error:
            given(flag, choice)
        assert flag in REFUSED or choice in str(error.value)
    else:
        given(flag, choice)


@pytest.mark.parametrize('flag', GLUONCV['flags'], ids=lambda flag: flag['names'][-1])
def test_the_table_has_the_defaults_of_gluoncv(flag):
    if flag.get('group') != 'dali':
        line = next(line for line in TEXT.splitlines() if line.startswith(f'| {", ".join(f"`{name}`" for name in flag["names"])} |'))
        default = flag['default']
        shown = ','.join(map(str, default)) if isinstance(default, list) else default
        assert line.split('|')[2].strip() == str('none' if shown is None or shown is False or shown == '' else shown)


def test_flags_named_as_replacements_exist():
    for *_, replacements in [row for title in TABLES for row in rows(title)]:
        for name in replacements:
            for flag in re.findall('(?<![a-z])--?[a-z][a-z-]*', name):
                assert flag in PARSER._option_string_actions, flag


def test_networks_of_the_table_exist():
    for theirs, ours in rows('network of its zoo'):
        names = [name for name in ours if name not in ('batch_norm', 'binary_shortcut', 'strided_shortcut')]
        for name in names or theirs:
            assert model_zoo.listed_name(name) in model_zoo.get_model_list(), name


def test_flags_become_options_of_the_network_as_in_bmxnet():
    given = '--bits 2 --bits-a 1 --activation-method det_sign --approximation xnor --slices 2 --downsample-sc-groups 4 --strided-shortcut'
    network = parse_options(['--model', 'resnet18_e1', '--dataset', 'dummy', *given.split()], model_zoo)
    assert (network.model, network.bits, network.activation_bits, network.activation_method) == ('resnet_e18', 2, 1, 'sign')
    assert (network.approximation, network.slices, network.shortcut_groups, network.strided_shortcut) == ('xnor', 2, 4, True)
    assert network.binary_shortcut is None
    same = parse_options(['--model', 'resnet18_e1', '--dataset', 'dummy', '--fp-downsample-sc', '--pool-downsample-sc'], model_zoo)
    assert (same.binary_shortcut, same.strided_shortcut) == (False, False)
    with pytest.raises(UserError, match='--slices 2: the network meliusnet22 has no such option'):
        parse_options(['--model', 'meliusnet22', '--slices', '2'], model_zoo)
    with pytest.raises(UserError, match='--gpus.*such as 0,2'):
        parse_options(['--model', 'meliusnet22', '--gpus', '0,x'], model_zoo)
    assert parse_options(['--model', 'meliusnet22', '--dataset', 'dummy', '--gpus', ''], model_zoo).num_gpus == 0
    with pytest.raises(UserError, match='--num-gpus and --gpus contradict'):
        parse_options(['--model', 'meliusnet22', '--dataset', 'dummy', '--gpus', '0,2', '--num-gpus', '1'], model_zoo)


def test_names_of_bmxnet_set_what_they_set_there():
    flags = '--epochs 7 --cpu --data-path c --num-worker 3 --prefix run --log x.log --lr-steps 3,5 --mode symbolic --dataset cifar10'
    options = parse_options(['--model', 'resnet18_e1', *flags.split()], model_zoo)
    assert (options.num_epochs, options.gpus, options.num_gpus, options.data_dir, options.num_workers) == (7, [], 0, 'c', 3)
    assert (options.save_dir, options.logging_file, options.lr_decay_epoch, options.mode) == ('run', 'x.log', [3, 5], 'hybrid')
    assert options.lr_mode == 'step'  # the default there
    assert (
        given('--resume', 'x.params', '--start-epoch', '4', '--seed', '1').items()
        >= {'resume_params': 'x.params', 'resume_epoch': 4}.items()
    )
    assert given('--resume')['resume'] is True
    for alias, flag in ALIASES.items():
        assert f'{flag}, ' in (text := PARSER.format_help()) and alias in text, alias


def test_networks_of_flags_are_those_of_bmxnet():
    flags = '--block-config 6,6,6,5 --reduction 2.7,2.7,2.2 --growth-rate 64 --init-features 64'
    options = parse_options(['--model', 'densenet_flex', '--dataset', 'dummy', *flags.split()], model_zoo)
    flexible, named = (
        model_zoo.get_model(name, classes=10, prefix='net_', **arguments)
        for name, arguments in (('densenet_flex', options.model_options), ('densenet28', {}))
    )
    shapes = []
    for net in (flexible, named):
        net.infer_shape(mx.nd.zeros((1, 3, 64, 64)))
        shapes.append({name: parameter.shape for name, parameter in net.collect_params().items()})
    assert shapes[0] == shapes[1]
    further = ['--dilated', '--model-options', '{"growth_rate": 32, "stem_pool": 2}', '--init-features', '32']
    assert given(*further)['model_options'] == {'dilations': [1, 1, 2, 4], 'growth_rate': 32, 'stem_pool': 2, 'init_features': 32}
    assert given('--model-options', '{"stem_pool": 2}', '--model-options', '{}', '--dilated')['model_options'] == {
        'dilations': [1, 1, 2, 4]
    }
    for model, flag in (('resnext50_32x4d', '--use_se'), ('vgg11', '--batch-norm'), ('binary_vgg11', '--batch-norm')):
        assert True in parse_options(['--model', model, '--dataset', 'dummy', flag], model_zoo).model_options.values()
    for flag in ('--use_se', '--batch-norm', '--growth-rate=3'):
        with pytest.raises(UserError, match=f'^{flag.partition("=")[0]} .*resnet_e18 has no such option'):
            parse_options(['--model', 'resnet_e18', flag], model_zoo)


@pytest.mark.parametrize('name, binary', [('resnet18_v1', 'binary_resnet18_v1'), ('alexnet', 'binary_alexnet'), ('vgg16', 'binary_vgg16')])
def test_names_of_float_networks_are_those_of_bmxnet_with_a_flag_of_binary_layers(name, binary):
    assert given('--model', name)['model'] == name
    assert given('--model', name, '--clip-threshold', '1.3')['model'] == binary


@pytest.mark.parametrize('name', ['default', 'gaussian', 'msraprelu_avg', 'msraprelu_in'])
def test_initializations_of_bmxnet_have_their_distributions(name):
    weight = mx.nd.zeros((4000, 12))
    INITIALIZERS[name](mx.init.InitDesc('a_weight'), weight)
    values, slope, fan = weight.asnumpy(), 0.25, {'msraprelu_avg': (4000 + 12) / 2}.get(name, 12)
    if name == 'default':
        bound = (2 / ((4000 + 12) / 2)) ** 0.5
        assert abs(values).max() <= bound * 1.0001 and np.isclose(values.std(), bound / 3**0.5, rtol=0.02)
    else:
        magnitude = 2 / (1 + slope**2) if 'msra' in name else 2
        assert np.isclose(values.std(), (magnitude / fan) ** 0.5, rtol=0.02)


@pytest.mark.parametrize('flags, warns', [(['--lr-steps', '1'], True), (['--lr-mode', 'step'], True), ([], False)])
def test_lr_factor_multiplies_rates_and_warns_where_that_of_bmxnet_may_be_meant(flags, warns, caplog):
    options = parse_options(['--model', 'meliusnet22', '--dataset', 'dummy', '--lr-factor', '0.1', *flags], model_zoo)
    assert (options.lr_factor, options.lr_decay) == (0.1, 0.1) and ('--lr-decay' in caplog.text) == warns


def test_last_gamma_has_no_effect_where_no_normalization_ends_a_block_and_says_so(caplog):
    assert not parse_options(['--model', 'meliusnet22', '--dataset', 'dummy', '--last-gamma'], model_zoo).last_gamma
    assert '--last-gamma has no effect: in meliusnet22' in caplog.text
    assert parse_options(['--model', 'resnet_e18', '--dataset', 'dummy', '--last-gamma'], model_zoo).last_gamma


def source(kind, folder, batching=None, **arguments):
    options = DataOptions('digits' if kind == 'digits' else 'imagenet', str(folder), use_rec=kind == 'records')
    return open_source(batching or Batching(4), options, InputOptions(8, **arguments))


@pytest.fixture(scope='module')
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp('photos')
    make_folders(folder)
    pack_folders(folder)
    return folder


@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_rgb_mean_and_std_normalize_training_and_validation(photos, kind):
    given = parse_options(['--model', 'meliusnet22', '--data-dir', 'x', '--rgb-mean', '1,2,3', '--rgb_std', '4,5,6'], model_zoo)
    plain, own = source(kind, photos), source(kind, photos, mean=given.mean, std=given.std)
    only_mean = source(kind, photos, mean=given.mean)
    shape = (1, 3, 1, 1)
    for ours, expected in ((own, (given.mean, given.std)), (only_mean, (given.mean, plain.spec.std))):
        for (images, _), (others, _) in (
            (next(iter(a)), next(iter(b))) for a, b in ((ours.validation(), plain.validation()), (ours.train(0), plain.train(0)))
        ):
            pixels = others.asnumpy() * np.reshape(plain.spec.std, shape) + np.reshape(plain.spec.mean, shape)
            np.testing.assert_allclose(
                images.asnumpy(), (pixels - np.reshape(expected[0], shape)) / np.reshape(expected[1], shape), atol=1e-3
            )


def test_rgb_mean_has_no_effect_on_gray_images_and_says_so(caplog):
    assert source('digits', '', mean=[1.0, 2.0, 3.0]).spec == source('digits', '').spec
    assert '--mean and --std have no effect' in caplog.text
    with pytest.raises(UserError, match='--mean has 2 numbers, and the images have 3 channels'):
        parse_options(['--model', 'meliusnet22', '--rgb-mean', '1,2'], model_zoo)


@pytest.mark.parametrize('kind', ['records', 'folders', 'digits'])
def test_a_test_run_reads_that_many_batches_of_each_kind(photos, kind):
    limited, whole = source(kind, photos, Batching(4, limit=2)), source(kind, photos)
    assert limited.updates_per_epoch == 2 < whole.updates_per_epoch

    def numbers(batches):  # copied, because MXNet reuses the arrays
        return [(images.asnumpy(), labels.asnumpy()) for images, labels in batches]

    for part in (lambda source: source.train(1), lambda source: source.validation()):
        ours, all_batches = numbers(part(limited)), numbers(part(whole))
        assert len(ours) == 2 < len(all_batches)
        for pair in zip(ours, all_batches):
            np.testing.assert_equal(*pair)
    assert len(list(limited.train(0, first=1))) == 1


def test_a_test_run_trains_saves_and_exports(tmp_path):
    train(*TINY, '--dataset', 'digits', '--batch-size', '64', '--num-epochs', '2', '--test-run', '--save-dir', tmp_path)
    log = (tmp_path / 'experiment.log').read_text()
    assert '2 epochs of 1 update of 64 images' in log and 'epoch 2, update 1 of 1' in log
    assert (tmp_path / 'meliusnet_flex-symbol.json').exists()


def test_the_number_of_training_samples_sets_the_length_of_the_schedule(caplog):
    class Workers:
        def make_trainer(self, parameters, name, arguments):
            return arguments['lr_scheduler']

    net = mx.gluon.nn.Dense(1)
    schedule = make_trainer(net, 10, 4, Workers(), OptimizerOptions('sgd', 1.0), ScheduleOptions(3, num_training_samples=83))
    expected = [(1 + np.cos(np.pi * update / (3 * (83 // 4)))) / 2 for update in range(30)]
    np.testing.assert_allclose([schedule(update + 1) for update in range(30)], expected, atol=1e-6)
    assert 'as if epochs had 20 updates, and they have 10' in caplog.text
    with pytest.raises(UserError, match='--num-training-samples 3: one update needs 4 images'):
        make_trainer(net, 10, 4, Workers(), OptimizerOptions('sgd', 1.0), ScheduleOptions(3, num_training_samples=3))


def test_a_teacher_without_weights_has_those_of_gluoncv():
    asked = []

    def get_model(name, pretrained, classes, ctx):
        asked.append((name, pretrained))
        net = mx.gluon.nn.Dense(classes)
        net.initialize(ctx=ctx)
        return net

    load_teacher(get_model, TeacherOptions('resnet18_v1'), 10, (3, 8, 8), [mx.cpu()])
    load_teacher(get_model, TeacherOptions('meliusnet22', teacher_pretrained='larq'), 10, (3, 8, 8), [mx.cpu()])
    assert asked == [('resnet18_v1', True), ('meliusnet22', 'larq')]


def dataset_of(command):
    return re.search('--dataset (.*?) ', command).group(1)


@pytest.mark.parametrize('command', mostly_long(BMXNET['commands'], 'imagenet', key=dataset_of), ids=dataset_of)
def test_commands_of_bmxnet_train_with_another_data_path_device_and_length(command, tmp_path):
    """The commands of github.com/hpi-xnor/BMXNet-v2-wiki, hyperparameters.md."""
    random = np.random.RandomState(0)
    if 'cifar10' in command:
        for name in (*(f'data_batch_{number}' for number in range(1, 6)), 'test_batch'):
            (tmp_path / f'{name}.bin').write_bytes(b''.join(bytes([row % 10]) + random.bytes(3072) for row in range(26)))
    else:  # record files in the folder, as the script wants them
        for part, number in (('train', 32), ('val', 2)):
            images = [encode(random.randint(0, 256, (30, 40, 3)).astype(np.uint8), '.jpg') for _ in range(number)]
            write_records(tmp_path / f'imagenet1k-{part}', images, np.arange(number) % 2)
    command = re.sub('--(data-path|data-dir) [^ ]+', rf'--\1 {tmp_path}', re.sub('--gpus [^ ]+', '--cpu', command))
    command = re.sub('--epochs [^ ]+', '--epochs 6', command)
    train(*command.split(), '--test-run', '--interrupt-at', '1', '--prefix', tmp_path / 'run', status=3)
    log = (tmp_path / 'run' / 'experiment.log').read_text()
    assert 'stopped after epoch 1' in log and ('binary_resnet18_v1' if 'cifar10' in command else 'resnet_e18') in log
