"""The recipes of CONTRIBUTING.md: all are followed as the text says, in one copy of the project, and what they add is used."""

import os
import shutil
import subprocess

import pytest
from support.paths import ROOT
from support.recipes import OPERATION, Project, code_of, file_of, follow_all

needs_gcc = pytest.mark.skipif(not shutil.which('g++'), reason='there is no g++')


@pytest.fixture(scope='module')
def in_numpy(make_once):
    """The copy in which the recipes have been followed, with nothing compiled."""
    return Project(make_once('recipes', follow_all))


@pytest.fixture(scope='module')
def project(make_once, in_numpy):
    """The same copy with the libraries of this project, which know nothing of added operations."""

    def make(folder):
        shutil.copytree(in_numpy.folder, folder, copy_function=os.link, dirs_exist_ok=True)
        for library in (ROOT / 'bmx_melius').glob('*.so'):
            shutil.copy(library, folder / 'bmx_melius')

    return Project(make_once('recipes-with-libraries', make))


# The beginning of programs that use what a recipe has made; `passed` runs tests of the copy and says how many there were.
BEGIN = """
import os, sys, tempfile
import mxnet as mx, numpy as np, pytest
from mxnet.gluon import nn
import bmx_melius as bmx
import model_zoo
from bmx_melius.__main__ import main
from bmx_melius.training.options.parsing import parse_options

assert bmx.__file__.startswith(os.getcwd())
scratch = tempfile.TemporaryDirectory()
prefix = scratch.name + '/net'

class Counter:
    passed = 0

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == 'call' and report.passed

def passed(selected, *paths):
    counter = Counter()
    assert pytest.main(['-q', '-p', 'no:cacheprovider', *paths, '-k', selected], plugins=[counter]) == 0
    return counter.passed

def convert(net, x):
    net.hybridize()
    y = net(x)
    net.export(prefix)
    return y.asnumpy(), bmx.convert(f'{prefix}-symbol.json', f'{prefix}-0000.params', f'{prefix}-packed', x.shape, verify=True)
"""

USE_NETWORK = """
import gluoncv
from model_zoo import get_model, get_model_list

assert name in get_model_list()
assert type(gluoncv.model_zoo.get_model(name)) is type(get_model(name))
assert main(['summary', name]) == 0
assert parse_options(['--model', name, '--dataset', 'digits', '--save-dir', prefix], model_zoo).model == name

net = get_model(name, classes=5, clip_threshold=1)
net.initialize(mx.init.Xavier())
x = mx.nd.random.normal(shape=(4, 3, 64, 64))
assert net(x).shape == (4, 5)
assert bmx.summary(net, x.shape).bops > 0
assert bmx.check(net, x).problems == []
convert(net, x)
assert bmx.Session(f'{prefix}-packed')(x.asnumpy()).shape == (4, 5)
assert passed(name + ' and same_logits', 'tests/zoo/test_zoo.py') == 1
"""

USE_STUDY = """
import run

assert run.main(['--list']) == 0
assert run.main([name, '--dry-run']) == 0
assert passed('every_command_of_a_study and ' + name, 'tests/training/test_experiments.py') == 2
"""

USE_PROTOCOL = """
parsed = parse_options(['--preset', name, '--model', 'meliusnet22', '--save-dir', prefix], model_zoo)
assert parsed.num_epochs == 240 and parsed.lr == 0.002
chosen = f'(values_of_the_documentation or trains_all_layers) and {name} or presets_are_those_of_the_documentation'
assert passed(chosen, 'tests/training/test_presets.py') == 3
"""

USE_QUANTIZER = """
beyond = np.nextafter(np.float32(1.3), np.float32(2))
x = np.array([0, -0.0, 0.5, -0.25, 1.3, -1.3, beyond, -beyond, 5, np.inf, -np.inf], np.float32)
data = mx.nd.array(x)
data.attach_grad()
with mx.autograd.record():
    y = bmx.QActivation(method=name)(data)
y.backward()
assert np.array_equal(y.asnumpy(), np.where(x >= 0, 1, -1))
expected = np.where(np.abs(x) <= np.float32(1.3), 2 * (1 - np.tanh(2 * x.astype(float)) ** 2), 0)
np.testing.assert_allclose(data.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6)

net = nn.HybridSequential()
net.add(nn.BatchNorm(), bmx.BinaryConv2D(40, 3, padding=1, activation_method=name, quantization=name))
net.add(nn.BatchNorm(), bmx.BinaryConv2D(8, 3, padding=1, pad_value=0, activation_method=name, quantization=name), nn.Flatten())
net.add(nn.BatchNorm(), bmx.QActivation(method=name), bmx.QDense(3, quantization=name))
net.initialize(mx.init.Normal(1))
x = mx.nd.random.normal(shape=(2, 33, 7, 9))
assert bmx.check(net, x).problems == []
y, _ = convert(net, x)
assert np.array_equal(bmx.Session(f'{prefix}-packed')(x.asnumpy()), y)
assert passed(name, 'tests/nn/test_quantizers.py') == 7
assert passed(f'weight_decay and {name}', 'tests/nn/test_layers.py') == 4
"""

USE_ONNX_OPERATOR = """
assert passed(name, 'tests/deployment/onnx/test_translation.py') == 3
"""

USES = [
    (USE_NETWORK, 'meliusnet25'),  # a row
    (USE_NETWORK, 'resnet18_prelu'),  # a unit and a row
    (USE_NETWORK, 'plainnet3'),  # a family of networks, in a file
    (USE_STUDY, 'activation_bits'),  # a file
    (USE_PROTOCOL, 'long'),  # a row
    (USE_QUANTIZER, 'tanh_sign'),  # a row: it is trained and packed
    (USE_ONNX_OPERATOR, 'celu'),  # a function: it is imported
]


def test_what_the_recipes_add_can_be_used(project):
    project.run(BEGIN + ''.join(f'print(name := {name!r}, flush=True)\n{program}' for program, name in USES))


USE_OPERATIONS = """
import contextlib, glob, io, json, subprocess
from bmx_melius.files.parameters import read_parameters
from bmx_melius.deployment.program.program import Program

class Chosen(mx.gluon.HybridBlock):
    def __init__(self, index):
        super().__init__()
        self.index = self.params.get_constant('index', index)

    def hybrid_forward(self, F, x, index):
        return F.take(x, index, axis=1)

def counted(symbol):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        assert main(['summary', symbol, '--input-shape', '2,3,9,9', '--json']) == 0
    summary = json.loads(shown.getvalue())
    return summary['bops'], summary['flops']

net = nn.HybridSequential()
net.add(nn.Conv2D(40, 3, padding=1), nn.HybridLambda(lambda F, x: F.softsign(x)))
net.add(nn.Conv2D(40, 3, padding=1), Chosen(np.arange(40)[::-1] // 2 * 2))
net.add(nn.BatchNorm(), bmx.BinaryConv2D(8, 3), nn.Flatten(), nn.Dense(5), nn.HybridLambda(lambda F, x: F.softsign(x)))
net.initialize(mx.init.Normal(1))
x = mx.nd.random.normal(shape=(2, 3, 9, 9))
y, report = convert(net, x)
assert (report.packed_operators, report.binary_layers) == (1, 1) and report.verification, report
(words,) = (array for name, array in read_parameters(f'{prefix}-packed-0000.params').items() if name.endswith('_program'))
program = Program.from_words(words)
names = [operation.name for operation in program.operations]
assert (names.count('softsign'), names.count('take')) == (2, 1) and words[1] == 5, names
assert counted(f'{prefix}-packed-symbol.json') == counted(f'{prefix}-symbol.json')
assert main(['export-c', prefix + '-packed', scratch.name + '/c']) == 0
subprocess.run(['gcc', '-Wall', '-Werror', '-fsyntax-only', *glob.glob(scratch.name + '/c/*.c')], check=True)
packed = mx.gluon.SymbolBlock.imports(f'{prefix}-packed-symbol.json', ['data'], f'{prefix}-packed-0000.params')
np.testing.assert_allclose(packed(x).asnumpy(), y, rtol=1e-4, atol=1e-4)
assert passed('softsign or take', 'tests/deployment/program') > 3
assert passed('up_to_date or estimate_of_the_code', 'tests/deployment/program', 'tests/deployment/export/test_c_export_code.py') == 2
assert passed('take', 'tests/graph/test_mxnet_operators.py') == 3
assert passed('gives_the_results_of_its_program', 'tests/deployment/export/test_onnx.py') > 0
"""


@needs_gcc
def test_operations_as_in_the_recipe_are_converted_and_run_in_numpy(in_numpy):
    in_numpy.run(BEGIN + USE_OPERATIONS)


def test_the_recipe_for_an_elementwise_operation_names_at_most_seven_files():
    assert len({file_of(OPERATION, code) for code in code_of(OPERATION, r'\w+')[:7]}) <= 7


@needs_gcc
@pytest.mark.parametrize(
    'flags, names',
    [
        ([], ['float_reference.cc', 'map_steps.cc', 'lowering.cc', 'operations.cc']),  # which have the operations
        (['-DBMX_HAVE_POPCNT', '-mpopcnt'], ['binary_popcnt.cc', 'dispatch.cc', 'peak_popcnt.cc', 'peak.cc']),  # and the instruction set
    ],
)
def test_the_changed_files_of_the_engine_compile(flags, names, in_numpy):
    sources = in_numpy.folder / 'bmx_melius' / 'csrc'
    command = ['g++', '-std=c++17', f'-I{sources}', *flags, '-Wall', '-Wextra', '-Werror', '-fsyntax-only']
    done = subprocess.run([*command, *map(in_numpy.file, names)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
