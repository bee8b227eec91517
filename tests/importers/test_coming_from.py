"""Tables of docs/coming-from.md for users of BMXNet-v2: flags and networks exist, and refused flags name a replacement."""

import re

import pytest
from support.paths import ROOT

import model_zoo
from bmx_melius import UserError
from bmx_melius.training.options.flags import REFUSED, make_parser
from bmx_melius.training.options.parsing import parse_options

TEXT = (ROOT / 'docs' / 'coming-from.md').read_text()
PARSER = make_parser(model_zoo)
# Flags of the script and names of the zoo of github.com/hpi-xnor/BMXNet-v2-examples (util/arg_parser.py, binary_models).
FLAGS = [
    'bits',
    'bits-a',
    'activation-method',
    'weight-quantization',
    'clip-threshold',
    'model',
    'use-pretrained',
    'approximation',
    'initial-layers',
    'prefix',
    'batch-size',
    'data-dir',
    'data-path',
    'dataset',
    'dtype',
    'num-worker',
    'augmentation',
    'builtin-profiler',
    'gpus',
    'cpu',
    'mode',
    'lr-mode',
    'lr',
    'lr-factor',
    'lr-steps',
    'momentum',
    'optimizer',
    'wd',
    'warmup-lr',
    'warmup-epochs',
    'dry-run',
    'test-run',
    'interrupt-at',
    'epochs',
    'initialization',
    'kvstore',
    'log',
    'log-interval',
    'plot-network',
    'profile',
    'progress',
    'resume',
    'resume-states',
    'save-frequency',
    'seed',
    'start-epoch',
    'write-summary',
    'fp-downsample-sc',
    'pool-downsample-sc',
    'downsample-sc-groups',
    'slices',
    'reduction',
    'growth-rate',
    'init-features',
    'downsample-structure',
    'block-config',
    'dilated',
    'batch-norm',
]


def rows(title):
    """Rows of the table whose head begins with `title`, as pairs of the names in backquotes in both columns."""
    table = TEXT[TEXT.index(f'| {title}') :].partition('\n\n')[0].splitlines()[2:]
    return [tuple(re.findall('`([^`]+)`', column) for column in row.strip('|').split(' | ')) for row in table]


@pytest.mark.parametrize('flag', FLAGS)
def test_each_flag_is_in_the_table_and_is_accepted_or_refused_with_what_to_use(flag):
    named = {name.split()[0] for row in rows('flag of') for column in row for name in column}
    assert f'--{flag}' in named
    actions = PARSER._option_string_actions
    assert f'--{flag}' in actions
    if f'--{flag}' in REFUSED:
        with pytest.raises(UserError, match=f'--{flag}: ') as error:
            parse_options(['--model', 'meliusnet22', f'--{flag}', '3'], model_zoo)
        for replacement in re.findall('--[a-z][a-z-]+', REFUSED[f'--{flag}']):
            assert replacement in actions and replacement not in REFUSED, str(error.value)


def test_flags_named_as_replacements_exist():
    for _, replacements in rows('flag of'):
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
