"""Flags of train_imagenet.py: every wrong one is reported in one line before any work, and dry runs show the plan."""

import dataclasses
import os
import pathlib
import re
import shutil
import sys

import pytest
from support.forked_program import SCRIPT
from support.images import damage_file, damage_record, overwrite
from support.training_runs import TINY, error_of, printed_by, refused, train

import model_zoo
import train_imagenet
from bmx_melius.arguments import fraction, number, positive_int, whole_number
from bmx_melius.data.opening import AugmentationOptions, DataOptions, InputOptions
from bmx_melius.training.network import model_arguments
from bmx_melius.training.optimization import OptimizerOptions, ScheduleOptions
from bmx_melius.training.options.flags import make_parser
from bmx_melius.training.options.parsing import parse_options
from bmx_melius.training.teacher import TeacherOptions
from model_zoo import get_model_list
from model_zoo.registry import find

pytest_plugins = ['support.training_runs']  # its fixtures


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
    assert parse_options(['--model', spelling, '--save-dir', '/nowhere'], model_zoo).model == name


@pytest.mark.parametrize('kind', [DataOptions, InputOptions, AugmentationOptions, OptimizerOptions, ScheduleOptions, TeacherOptions])
def test_options_of_a_part_have_the_names_of_flags(kind):
    assert {field.name for field in dataclasses.fields(kind)} <= {action.dest for action in make_parser(model_zoo)._actions}


OF_DIGITS = [  # flags of a training on digits
    (['--val-fraction', '0.5'], '--val-fraction 0.5 divides a folder of images'),
    *(
        (['--val-fraction', value], f'argument --val-fraction: expected a number above 0 and below 1, not {value!r}')
        for value in ('0', '1', 'nan', 'x', '0.1,0.2')
    ),
    (['--num-gpus', '2'], 'CUDA'),
    (['--dtype', 'float16'], 'cannot train with it on cpu(0)'),
    (['--teacher', 'meliusnet22'], '--teacher-params'),
    (['--clip-threshold', '0'], 'threshold'),
    (['--preset', 'naif'], 'full-precision'),
    (['--use-rec'], '--use-rec'),
    (['--input-size', '32', '--use-pretrained'], 'no weights'),
    (['--initial-layers', 'tiny'], 'thumbnail'),
    (['--model-options', '[1]'], '--model-options'),
    (['--model-options', '{"depth": 3}'], 'depth'),
    (['--batch-size', '2000'], '--batch-size'),
    (['--batch-size', '0'], '--batch-size'),
    (['--num-epochs', '5', '--warmup-epochs', '5'], '--warmup-epochs'),
    (['--momentum', '0.9'], '--momentum'),
    (['--lr', '-1'], '--lr'),
    (['--crop-ratio', '1.5'], '--crop-ratio'),
    (['--kvstore', 'nccl'], 'NCCL'),
    (['--kvstore', 'dist_sync'], 'bmx_melius.distributed.launcher'),
    (['--kvstore', 'dist_async'], '--kvstore'),
    (['--mode', 'compiled'], '--mode'),
    (['--data-backend', 'dali-gpu'], '--data-backend: dali-gpu: NVIDIA DALI'),
    (['--use-gn'], "--use-gn: GluonCV's group normalization fails"),
    (['--reduction', '0.5'], '--reduction: expected numbers of at least 1'),
    (['--num-training-samples', '3'], '--num-training-samples 3: one update needs'),
    (['--resume'], 'no run'),
    (['--resume-epoch', '3'], '--resume-params'),
    (['--resume-params', 'nothing.params'], 'nothing.params'),
    (['--input-size', '4'], '--input-size 4'),
    (['--seed', '-1'], '--seed'),
    (['--mixup-alpha', '1'], '--mixup-alpha has no effect without --mixup'),
    (['--mixup-off-epoch', '0'], '--mixup-off-epoch has no effect without --mixup'),
    (['--mixup', '--mixup-alpha', '0'], '--mixup-alpha must be positive'),
    (['--mixup', '--mixup-off-epoch', '120'], '--mixup-off-epoch 120'),
    (['--mixup', '--batch-size', '1'], '--batch-size'),
    (['--temperature', '3'], '--temperature has no effect without --teacher'),
    (['--hard-weight', '0'], '--hard-weight has no effect without --teacher'),
    (['--attention-weight', '1'], '--attention-weight has no effect without --teacher'),
    (['--teacher', 'resnet18_v1', '--attention-weight', '-1'], '--attention-weight must not be negative'),
    (['--teacher', 'resnet18_v1', '--attention-weight', '1', '--dtype', 'float16'], '--attention-weight requires --dtype float32'),
    (['--teacher-params', 'x'], '--teacher-params has no effect without --teacher'),
    (['--teacher', 'resnet18_v1', '--hard-weight', '1'], '--hard-weight'),
    (['--teacher', 'resnet18_v1', '--temperature', '0'], '--temperature'),
    (['--teacher', 'resnet18_v1', '--teacher-params', 'nothing.params'], 'no file nothing.params'),
    (['--bits', '32', '--weight-bits', '1'], '--weight-bits 1 with --bits 32'),
    (['--randaugment', '2,31'], 'a magnitude of 0 to 30'),
    (['--randaugment', '0,9'], 'at least 1 operation'),
    (['--random-erasing', '1.5'], 'must be a probability'),
    (['--random-erasing', '0.5', '--dataset', 'dummy'], 'dummy has no images'),
    (['--cutmix', '--mixup'], 'give only one of them'),
    (['--cutmix', '--batch-size', '1'], '--cutmix mixes the images of a batch'),
    (['--dataset', 'cifar10', '--use-rec'], 'error: --use-rec: cifar10 '),
    (['--dataset', 'dummy', '--data-dir', 'x'], 'error: --data-dir: dummy '),
    (['--data-dir', 'x'], 'error: --data-dir: digits '),
    (['--optimizer', 'adamm'], "unknown optimizer 'adamm'; did you mean adam or"),
    (['--optimizer', 'adamw'], 'did you mean adam'),  # MXNet 1.9.1 registers none
    (['--optimizer', 'xyz'], 'known: adadelta, adagrad'),
    (['--optimizer', 'radm'], "unknown optimizer 'radm'; did you mean radam or "),
    (['--optimizer', 'lbsgd'], "'lbsgd' cannot be used here: its own warm-up"),
    (['--optimizer', 'BinarySplit'], 'made by --binary-optimizer'),
    (['--optimizer', 'rmsprop', '--optimizer-params', '{"gama1": 0.5}'], "rmsprop has no argument 'gama1'; did you mean gamma1"),
    (['--optimizer', 'lamb', '--optimizer-params', '{"wd": 1}'], '--optimizer-params: wd of lamb is set by --wd'),
    (['--optimizer', 'sgd', '--optimizer-params', '{"momentum": 1}'], '--optimizer-params: momentum of sgd is set by --momentum'),
    (['--optimizer', 'adam', '--optimizer-params', '{"beta1": "x"}'], '--optimizer-params {"beta1": "x"}: adam refuses this'),
    (['--optimizer-params', '{"beta1": 2}'], 'radam refuses this: RAdam: beta1 must be at least 0 and below 1'),
    (['--optimizer-params', '{"param_dict": {}}'], "radam has no argument 'param_dict'"),
    (['--optimizer-params', '[1]'], '--optimizer-params'),
    (['--optimizer', 'signum', '--momentum', '0.5'], '--momentum 0.5: signum has no such argument'),
    (['--binary-lr', '1'], '--binary-lr has no effect without --binary-optimizer'),
    (['--binary-optimizer-params', '{}'], '--binary-optimizer-params has no effect without --binary-optimizer'),
    (['--binary-optimizer', 'adam', '--binary-lr', '-1'], '--binary-lr must not be negative'),
    (['--binary-optimizer', 'adam', '--binary-optimizer-params', '{"b": 1}'], "--binary-optimizer-params: adam has no argument 'b'"),
    (['--lr-decay', '0.5,0.2,0.1', '--lr-mode', 'step'], '--lr-decay has 3 factors, 0.5,0.2,0.1: give one for all'),
    (['--lr-decay', '0.5,-0.2'], '--lr-decay must not be negative'),
    (['--lr-power', '0'], '--lr-power must be positive'),
    (['--no-wd', 'maybe'], "expected on or off, not 'maybe'"),
]


@pytest.mark.parametrize(
    'flags,words',
    [
        ([], '--model'),
        (['--model', 'meliusnet23'], 'meliusnet22'),
        (['--model', 'mobilenet0.3'], 'did you mean mobilenet0.5 or mobilenet0.75 or mobilenet0.25?'),
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
        (['--model', 'meliusnetA', '--use-dali'], 'DALI'),
        (['--model', 'meliusnetA', '--use_se'], '--use_se (use_se in --model-options): the network meliusneta has no such option'),
        (['--model', 'meliusnetA', '--mixup-alpha', '1'], '--mixup'),
        (['--model', 'meliusnetA', '--learning-rate', '3'], '--learning-rate'),
        *((['--model', 'meliusnetA', '--dataset', 'digits', *flags], words) for flags, words in OF_DIGITS),
    ],
)
def test_an_unusable_flag_is_reported_in_one_line_before_any_work(flags, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('HOME', str(tmp_path))  # no images there
    assert words in refused(capsys, *flags)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize('place', ['file', 'file/run', '/proc/run'])
def test_a_folder_that_cannot_be_written_is_named_before_the_data_is_read(tmp_path, place, capsys):
    (tmp_path / 'file').write_text('')
    train('--model', 'meliusnetA', '--data-dir', 'nowhere', '--save-dir', tmp_path / place, status=2)
    assert f'no files can be written to {tmp_path / place}' in error_of(capsys)


def test_digits_without_scikit_learn_say_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, 'sklearn.datasets', None)
    assert 'pip install scikit-learn' in refused(capsys, '--model', 'meliusnet22', '--dataset', 'digits', '--dry-run')


@pytest.mark.parametrize('part', ['train', 'val'])
def test_a_truncated_record_file_is_named_before_any_work(data_flags, images, tmp_path, part, capsys):
    shutil.copytree(images / 'rec', tmp_path / 'rec')
    file = tmp_path / 'rec' / f'{part}.rec'
    os.truncate(file, file.stat().st_size * 3 // 4)
    flags = [flag.replace(str(images), str(tmp_path)) for flag in data_flags['records']]
    message = refused(capsys, *flags, '--save-dir', tmp_path / 'run')
    assert f'{part}.rec: record ' in message and 'truncated' in message
    assert not (tmp_path / 'run').exists()


def test_a_run_is_not_overwritten_and_not_resumed_with_other_flags(data_flags, finished, capsys):
    folder = finished['records']
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert '--resume' in refused(capsys, *data_flags['records'], '--save-dir', folder)
    assert '--lr 0.002' in refused(capsys, '--resume', '--save-dir', folder, '--lr', '0.1')
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize('flag', ['--resume-params', '--resume-states'])
def test_damaged_files_of_a_checkpoint_do_not_start_another_run(data_flags, finished, tmp_path, flag, capsys):
    for name in ('checkpoint.json', 'epoch-0003.params', 'epoch-0003.states'):
        shutil.copy(finished['records'] / name, tmp_path)
    files = {'--resume-params': tmp_path / 'epoch-0003.params', '--resume-states': tmp_path / 'epoch-0003.states'}
    overwrite(files[flag], files[flag].stat().st_size // 2, b'damage')
    message = refused(capsys, *data_flags['records'], '--save-dir', tmp_path / 'run', *(word for pair in files.items() for word in pair))
    assert flag in message and f'{files[flag]} is damaged' in message


@pytest.mark.parametrize('flag', ['--resume-params', '--resume-states'])
def test_files_of_another_network_are_refused(data_flags, finished, tmp_path, flag, capsys):
    capsys.readouterr()
    (tmp_path / 'file').write_bytes(b'nonsense')
    flags = ['--resume-params', finished['records'] / 'epoch-0003.params', flag, tmp_path / 'file']
    assert flag in refused(capsys, *data_flags['records'], '--save-dir', tmp_path / 'run', *flags)


def test_weights_of_another_network_are_refused_by_a_dry_run_too_with_both_shapes(data_flags, finished, tmp_path, capsys):
    weights = finished['digits'] / 'epoch-0002.params'  # of ten classes
    capsys.readouterr()
    for dry in ([], ['--dry-run']):
        run = ['--resume-params', weights, '--save-dir', tmp_path / 'run', *dry]
        message = refused(capsys, *data_flags['records'], *run)
        assert message.startswith(f'error: --resume-params: {weights} does not fit meliusnet_flex: ')
        assert '.weight is (' in message and ', 1, 3, 3) in the file, but ' in message and '--model-options' in message
        assert not (tmp_path / 'run' / 'checkpoint.json').exists()


@pytest.mark.parametrize('kind', ['records', 'folders', 'digits'])
def test_a_dry_run_shows_the_plan_and_writes_nothing(data_flags, tmp_path, kind, capsys):
    plan = printed_by(capsys, *data_flags[kind], '--save-dir', tmp_path / 'run', '--dry-run')
    assert 'OPs' in plan and 'nothing was trained' in plan
    assert ('1,071 training and 362 validation' if kind == 'digits' else '30 training and 12 validation') in plan
    assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('part', ['train', 'val'])
@pytest.mark.parametrize('kind', ['records', 'folders'])
def test_a_dry_run_names_images_that_cannot_be_decoded(data_flags, images, tmp_path, kind, part, capsys):
    shutil.copytree(images, tmp_path / 'images')
    if kind == 'records':
        damage_record(f'{tmp_path}/images/rec/{part}', 7)
        name = f'{part}.rec: no image can be decoded from record 7;'
    else:
        damage_file(tmp_path / 'images' / part / 'class1' / '2.jpg')
        name = f'images/{part}: no image can be decoded from class1/2.jpg;'
    flags = [flag.replace(str(images), str(tmp_path / 'images')) for flag in data_flags[kind]]
    assert name in refused(capsys, *flags, '--save-dir', tmp_path / 'run', '--dry-run')
    assert not (tmp_path / 'run').exists()


def test_a_dry_run_loads_the_optimizer_or_the_checkpoint_and_writes_nothing(data_flags, finished, tmp_path, capsys):
    (tmp_path / 'nonsense').write_bytes(b'nonsense')
    weights = ['--resume-params', finished['records'] / 'epoch-0003.params', '--resume-states', tmp_path / 'nonsense']
    assert '--resume-states' in refused(capsys, *data_flags['records'], '--save-dir', tmp_path / 'run', *weights, '--dry-run')
    shutil.copytree(finished['records'], tmp_path / 'run')
    assert 'continuing at epoch 4' in printed_by(capsys, '--resume', '--save-dir', tmp_path / 'run', '--dry-run')
    (tmp_path / 'run' / 'epoch-0003.states').write_bytes(b'nonsense')
    before = {path: path.read_bytes() for path in (tmp_path / 'run').iterdir()}
    output = printed_by(capsys, '--resume', '--save-dir', tmp_path / 'run', '--dry-run')
    assert 'epoch-0003.states is damaged' in output and 'continuing at epoch 3' in output
    assert before == {path: path.read_bytes() for path in (tmp_path / 'run').iterdir()}


def test_the_help_shows_every_flag_with_its_default_and_examples(capsys):
    with pytest.raises(SystemExit) as ended:
        train_imagenet.main(['--help'])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for word in ('--rec-train', '--augmentation', '--resume', 'examples:', 'default: 64', '--dataset digits'):
        assert word in text
    assert '--use-dali' not in text and pathlib.Path(SCRIPT).name in text


@pytest.mark.parametrize('name', ['binary_resnet18_v1', 'binary_vgg11', 'binary_alexnet', 'quicknet', 'alexnet_xnor'])
def test_flags_that_a_network_does_not_take_are_not_given_to_it(name):
    config = parse_options(['--model', name, '--save-dir', '/nowhere'], model_zoo)
    assert model_zoo.get_model(**model_arguments(config, classes=10)) is not None


@pytest.mark.parametrize('name', get_model_list())
def test_photos_are_trained_with_the_stem_of_the_network(name):
    config = parse_options(['--model', name, '--save-dir', '/nowhere'], model_zoo)
    expected = find(name).options
    assert config.dataset == 'imagenet' and config.initial_layers == getattr(expected, 'initial_layers', None)


@pytest.mark.parametrize('name, stem', [('resnet_e_fashion', 'thumbnail'), ('bnext_t', 'mobilenet'), ('birealnet18', 'grouped_stem')])
def test_small_images_have_their_own_stem_and_a_given_one_counts(name, stem):
    flags = ['--model', name, '--save-dir', '/nowhere']
    assert parse_options([*flags, '--dataset', 'cifar10'], model_zoo).initial_layers == 'thumbnail'
    assert parse_options([*flags, '--dataset', 'cifar10', '--initial-layers', 'imagenet'], model_zoo).initial_layers == 'imagenet'
    assert parse_options([*flags, '--dataset', 'dummy'], model_zoo).initial_layers == stem


NUMERIC = [action for action in make_parser(model_zoo)._actions if action.type in (number, whole_number, positive_int, fraction)]


def test_no_flag_takes_numbers_that_are_not_checked():
    assert len(NUMERIC) > 30
    assert not [action.dest for action in make_parser(model_zoo)._actions if action.type in (int, float)]


@pytest.mark.parametrize('value', ['nan', 'inf', '-inf', '3e38', '1e999', '9' * 5000, '\u0663', '', '1_0'])
def test_numbers_that_are_not_finite_or_absurd_are_refused_by_each_flag_in_one_line(value, capsys):
    for action in NUMERIC:
        if action.type is number and value in ('\u0663', '1_0'):
            continue  # Python reads these
        flag = action.option_strings[-1]
        line = refused(capsys, *TINY, f'{flag}={value}')
        assert f'argument {"/".join(action.option_strings)}: expected a ' in line and len(line) < 300


@pytest.mark.parametrize('flag', ['--lr-decay=nan', '--lr-decay=0.1,inf', '--lr-decay-epoch=99999999999', '--mean=1,nan,3', '--std=1,3e38'])
def test_lists_of_numbers_that_are_not_finite_are_refused(flag, capsys):
    assert re.search(rf'argument {flag.partition("=")[0]}(/--[a-z-]+)?: expected ', refused(capsys, *TINY, flag))


@pytest.mark.parametrize('text', ['{"epsilon": NaN}', '{"epsilon": 1e999}', '{"epsilon": -Infinity}', '[' * 100000])
def test_json_of_flags_with_numbers_that_are_not_finite_or_too_deep_is_refused(text, capsys):
    assert 'argument --optimizer-params: expected a JSON object' in refused(capsys, *TINY, '--optimizer-params', text)


@pytest.mark.parametrize(
    'text',
    [
        'lr_decay_epoch: &a [1, *a]\n',
        'optimizer_params: &a {epsilon: *a}\n',
        '&a {lr: *a}\n',
        '&a [*a]\n',
        'a: &a [1, 1, 1, 1, 1, 1, 1, 1]\n' + ''.join(f'{b}: &{b} [{", ".join([f"*{a}"] * 8)}]\n' for a, b in zip('abcdefgh', 'bcdefghi')),
    ],
)
def test_a_config_file_with_an_alias_that_contains_itself_or_stands_for_too_much_is_refused(text, tmp_path, capsys):
    (tmp_path / 'a.yaml').write_text(text)
    assert 'a.yaml has more than 100,000 values, or an alias that contains itself' in refused(capsys, '--config', tmp_path / 'a.yaml')
