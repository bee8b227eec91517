"""The recipes of CONTRIBUTING.md, followed in a copy of the project: its code is put where the text says, and the result is used."""

import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parent.parent
COMPILED = ('bmx_melius', 'model_zoo', 'tools', 'tests', 'setup.py', 'README.md')
COPIED = ('bmx_melius', 'model_zoo', 'experiments', 'docs', 'tests', 'tools', 'pyproject.toml', 'train_imagenet.py')
SECTIONS = dict(re.findall(r'^## (.*)\n((?:(?!## ).*\n)*)', (ROOT / 'CONTRIBUTING.md').read_text(), re.MULTILINE))


class Project:
    """A copy of the project, in which a contributor works."""

    def __init__(self, folder, names, unneeded):
        self.folder = folder
        for name in names:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.png', *unneeded))
            else:
                shutil.copy(ROOT / name, folder)

    def add_rows(self, path, code):
        """Add rows to a table, and what stands before the table in `code` before it in the file."""
        before, table, rows = re.fullmatch(r'((?:.*\n)*?)(\w+) = \{\n    \.\.\.\n((?:.*\n)*)\}\n', code).groups()
        text = (self.folder / path).read_text()
        found = re.search(rf'^{table}(?:: .*)? = \{{\n(?:.*\n)*?(?=\}})', text, re.MULTILINE)
        (self.folder / path).write_text(text[: found.start()] + before + found.group() + rows + text[found.end() :])

    def append(self, path, code):
        """Add code to the end of a file, which may be a new one."""
        with open(self.folder / path, 'a') as file:
            file.write(code)

    def file(self, name):
        """The path of the only file of this name."""
        (path,) = self.folder.rglob(name)
        return path

    def replace(self, name, old, new):
        """Replace the only occurrence of `old`, a regular expression, in the only file of this name."""
        text, found = re.subn(old, new, self.file(name).read_text(), flags=re.MULTILINE)
        assert found == 1, f'{name} has {found} places like {old}'
        self.file(name).write_text(text)

    def run(self, program, *arguments, **environment):
        """Run a program in Python in the copy, in a new process; return what it printed."""
        path = os.pathsep.join(str(self.folder / name) for name in ('', 'tests', 'experiments'))
        command = [sys.executable, '-W', 'ignore', '-c', program, *map(str, arguments)]
        environment = {**os.environ, 'PYTHONPATH': path, **environment}
        done = subprocess.run(command, cwd=self.folder, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture()
def project(tmp_path):
    return Project(tmp_path, COPIED, unneeded=['csrc'])


def code_of(section, language='python'):
    """The blocks of code of a section."""
    return re.findall(rf'^```{language}\n((?:.*\n)*?)```$', SECTIONS[section], re.MULTILINE)


def file_of(section, code):
    """The last file that the section names before a block of code."""
    return re.findall(r'`([\w/]+\.\w+)`', SECTIONS[section].partition(code)[0])[-1]


# Programs that use what a recipe has made; `passed` runs tests of the copy and says how many there were.
BEGIN = """
import os, sys
import mxnet as mx, numpy as np, pytest
import bmx_melius as bmx

assert bmx.__file__.startswith(os.getcwd())

class Counter:
    passed = 0

    def pytest_runtest_logreport(self, report):
        self.passed += report.when == 'call' and report.passed

def passed(selected, *paths):
    counter = Counter()
    assert pytest.main(['-q', '-p', 'no:cacheprovider', *paths, '-k', selected], plugins=[counter]) == 0
    return counter.passed
"""

USE_NETWORK = (
    BEGIN
    + """
import gluoncv
from bmx_melius.__main__ import main
import model_zoo
from bmx_melius.training.flags import parse_flags
from model_zoo import get_model, get_model_list

(name,) = sys.argv[1:]
assert name in get_model_list()
assert type(gluoncv.model_zoo.get_model(name)) is type(get_model(name))
assert main(['summary', name]) == 0
assert parse_flags(['--model', name, '--dataset', 'digits', '--save-dir', 'new'], model_zoo).network.model == name

net = get_model(name, classes=5, clip_threshold=1)
net.initialize(mx.init.Xavier())
x = mx.nd.random.normal(shape=(4, 3, 64, 64))
assert net(x).shape == (4, 5)
assert bmx.summary(net, x.shape).bops > 0
assert bmx.check(net, x).problems == []
net.hybridize()
net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(1, 3, 64, 64), verify=True)
assert bmx.Session('packed')(x.asnumpy()).shape == (4, 5)
assert passed(name + ' and same_logits', 'tests/test_zoo.py') == 1
"""
)


def test_a_row_as_in_the_recipe_adds_a_network(project):
    row, *_ = code_of('Adding a network')
    project.add_rows(file_of('Adding a network', row), row)
    project.run(USE_NETWORK, 'meliusnet25')


def test_a_file_as_in_the_recipe_adds_a_family_of_networks(project):
    _, family, line = code_of('Adding a network')
    project.append(file_of('Adding a network', family), family)
    project.append(file_of('Adding a network', line), line)
    project.run(USE_NETWORK, 'plainnet3')


USE_STUDY = (
    BEGIN
    + """
import run

(name,) = sys.argv[1:]
assert run.main(['--list']) == 0
assert run.main([name, '--dry-run']) == 0
assert passed('every_command_of_a_study and ' + name, 'tests/test_experiments.py') == 2
"""
)


def test_a_file_as_in_the_recipe_adds_a_study(project):
    (study,) = code_of('Adding a study', 'yaml')
    path = file_of('Adding a study', study)
    project.append(path, study)
    project.run(USE_STUDY, pathlib.Path(path).stem)


USE_PROTOCOL = (
    BEGIN
    + """

import model_zoo
from bmx_melius.training.flags import parse_flags

(name,) = sys.argv[1:]
parsed = parse_flags(['--preset', name, '--model', 'meliusnet22', '--save-dir', 'new'], model_zoo).optimizer
assert parsed.num_epochs == 240 and parsed.lr == 0.002
assert passed(f'values_of_the_paper and {name} or table_of_the_documentation or every_preset_is_checked', 'tests/test_presets.py') == 3
"""
)


def test_a_row_as_in_the_recipe_adds_a_protocol(project):
    section = 'Adding a protocol'
    preset, paper = code_of(section)
    (line,) = code_of(section, 'markdown')
    project.add_rows(file_of(section, preset), preset)
    project.add_rows('tests/test_presets.py', paper)
    table = project.folder / 'docs' / 'training.md'
    assert all(f'`{path}`' in SECTIONS[section] for path in ('tests/test_presets.py', 'docs/training.md'))
    table.write_text(re.sub(r'(\n\| `real-to-binary` .*\n)', lambda last: last.group() + line, table.read_text()))
    project.run(USE_PROTOCOL, 'long')


USE_QUANTIZER = (
    BEGIN
    + """
from mxnet.gluon import nn

(method,) = sys.argv[1:]
beyond = np.nextafter(np.float32(1.3), np.float32(2))
x = np.array([0, -0.0, 0.5, -0.25, 1.3, -1.3, beyond, -beyond, 5, np.inf, -np.inf], np.float32)
data = mx.nd.array(x)
data.attach_grad()
with mx.autograd.record():
    y = bmx.QActivation(method=method)(data)
y.backward()
assert np.array_equal(y.asnumpy(), np.where(x >= 0, 1, -1))
expected = np.where(np.abs(x) <= np.float32(1.3), 2 * (1 - np.tanh(2 * x.astype(float)) ** 2), 0)
np.testing.assert_allclose(data.grad.asnumpy(), expected, rtol=1e-5, atol=1e-6)

net = nn.HybridSequential()
net.add(nn.BatchNorm(), bmx.BinaryConv2D(40, 3, padding=1, activation_method=method, quantization=method))
net.add(nn.BatchNorm(), bmx.BinaryConv2D(8, 3, padding=1, pad_value=0, activation_method=method, quantization=method), nn.Flatten())
net.add(nn.BatchNorm(), bmx.QActivation(method=method), bmx.QDense(3, quantization=method))
net.initialize(mx.init.Normal(1))
x = mx.nd.random.normal(shape=(2, 33, 7, 9))
assert bmx.check(net, x).problems == []
net.hybridize()
y = net(x)
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(2, 33, 7, 9), verify=True)
assert np.array_equal(bmx.Session('packed')(x.asnumpy()), y.asnumpy())
assert passed(method, 'tests/test_quantizers.py') == 7
"""
)


def test_a_row_as_in_the_recipe_adds_a_quantizer_that_is_trained_and_packed(project):
    (row,) = code_of('Adding a quantizer')
    project.add_rows(file_of('Adding a quantizer', row), row)
    project.run(USE_QUANTIZER, 'tanh_sign')


# --- an operation of the packed format ------------------------------------------------------------------------------------------------

USE_OPERATION = (
    BEGIN
    + """
import json
from mxnet.gluon import nn
from bmx_melius.container import read_parameters
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

net = nn.HybridSequential()
net.add(nn.Conv2D(40, 3), nn.HybridLambda(lambda F, x: F.flip(x, axis=1)), nn.BatchNorm(), bmx.BinaryConv2D(8, 3))
net.add(nn.Flatten(), nn.Dense(5), nn.HybridLambda(lambda F, x: F.flip(x, axis=1)))
net.initialize(mx.init.Normal(1))
net.hybridize()
x = mx.nd.random.normal(shape=(2, 3, 9, 9))
y = net(x).asnumpy()
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(2, 3, 9, 9), verify=True)
assert (report.packed_operators, report.binary_layers) == (1, 1) and report.verification, report
(words,) = (array for name, array in read_parameters('packed-0000.params').items() if name.endswith('_program'))
assert [operation.name for operation in Program.from_words(words).operations].count('reverse') == 2
packed = mx.gluon.SymbolBlock.imports('packed-symbol.json', ['data'], 'packed-0000.params')
np.testing.assert_allclose(packed(x).asnumpy(), y, rtol=1e-4, atol=1e-4)
compiled = not engine.missing()
if compiled:
    np.testing.assert_allclose(bmx.Session('packed')(x.asnumpy()), y, rtol=1e-4, atol=1e-4)
    assert passed('equals_the_interpreter or both_validators', 'tests/test_engine.py', 'tests/test_validators.py') > 2
print('compiled' if compiled else 'in NumPy')
"""
)


def add_operation(project):
    """Follow the recipe in Python. The number of the operation is the next one."""
    section = 'Adding an operation to the packed format'
    row, function, rule = code_of(section)
    paths = [file_of(section, code) for code in (row, function, rule)]
    numbers = [int(number) for number in re.findall(r"^    '\w+': Rule\((\d+)", (project.folder / paths[0]).read_text(), re.MULTILINE)]
    project.add_rows(paths[0], re.sub(r'Rule\(\d+', f'Rule({max(numbers) + 1}', row))
    project.add_rows(paths[1], function)
    project.append(paths[2], f'\n\n{rule}')


def test_an_operation_as_in_the_recipe_is_converted_and_run_in_numpy(tmp_path):
    project = Project(tmp_path, COPIED, unneeded=['csrc', '*.so'])
    add_operation(project)
    assert 'in NumPy' in project.run(USE_OPERATION)


REVERSE_STEP = r"""class ReverseStep : public RowStep {
  public:
    using RowStep::RowStep;

  protected:
    void change(float* x, float*, int pixels, int channels) const override {
        for (int pixel = 0; pixel < pixels; pixel++) {
            std::reverse(x + pixel * channels, x + (pixel + 1) * channels);
        }
    }
};

"""


def add_operation_to_the_engine(project):
    """Follow the recipe in C++: row, shape, and a step with its place in the plan, as `expand` has them."""
    steps = SECTIONS['Adding an operation to the packed format']
    assert [name for name in ('operations.cc', 'map_steps.h', 'fusion.cc', 'lowering.cc') if f'{name}`' not in steps] == []
    project.replace('operations.h', r'^enum class Op \{[^}]*', r'\g<0>    reverse,\n')
    project.replace('operations.cc', r'^    \};\n    return table;', r'        {"reverse", 1, 1, true, false, Rule::real, {}},\n\g<0>')
    project.replace('operations.cc', r'^        case Op::expand:\n', r'        case Op::reverse:\n\g<0>')
    project.replace('map_steps.h', r'^#pragma once\n', r'\g<0>#include <algorithm>\n')
    project.replace('map_steps.h', r'^class ExpandStep ', REVERSE_STEP + r'\g<0>')
    project.replace('fusion.h', r'^    expand,\n', r'\g<0>    reverse,\n')
    project.replace(
        'fusion.cc',
        r'^            case Op::expand:\n',
        r'            case Op::reverse:\n                add_single(StepKind::reverse, i, Number::f32);\n                break;\n\g<0>',
    )
    project.replace(
        'lowering.cc',
        r'^            case StepKind::expand:\n',
        r'            case StepKind::reverse:\n'
        r'                return std::make_unique<ReverseStep>(std::vector<Source>{source(group)}, output(group));\n\g<0>',
    )


@pytest.mark.long
def test_an_operation_as_in_the_recipe_is_run_by_the_engine(tmp_path):
    if not shutil.which('g++'):
        pytest.skip('there is no g++')
    project = Project(tmp_path, (*COMPILED, 'pyproject.toml'), unneeded=['*.so'])
    add_operation(project)
    add_operation_to_the_engine(project)
    compile_without_optimization(project)
    assert 'compiled' in project.run(USE_OPERATION, BMX_MELIUS_TEST_LONG='')


def compile_without_optimization(project):
    """Compile the engine in the copy in a third of the time."""
    compiler = project.folder / 'bin' / 'g++'
    compiler.parent.mkdir()
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("g++")} "$@" -O0\n')
    compiler.chmod(0o755)
    command = [sys.executable, '-W', 'ignore', 'setup.py', '--quiet', 'build_ext', '--inplace']
    subprocess.run(command, cwd=project.folder, env={**os.environ, 'CXX': str(compiler)}, check=True)


# --- an instruction set: that of the plain kernels with the processor's instruction for counting bits --------------------------------

PEAK = """#include <cstdint>

#include "peaks/peak_loop.h"

namespace bmx {

double popcount_popcnt(Operands operands, double seconds) {
    return rate_of_chains<8, 4, 1>(
        operands, seconds, 64, uint64_t(0), uint64_t(0x0123456789abcdef),
        [](uint64_t& word) BMX_INLINED { asm("" : "+r"(word)); },
        [](uint64_t& sum, const uint64_t (&words)[1]) BMX_INLINED { sum += __builtin_popcountll(words[0]); });
}

}  // namespace bmx
"""


@pytest.fixture()
def extended(tmp_path):
    """The sources of the engine with another instruction set, as the steps say."""
    if not shutil.which('g++'):
        pytest.skip('there is no g++')
    steps = SECTIONS['Adding a kernel or an instruction set']
    edited = ('compile_flags.txt', 'binary_kernels.h', 'dispatch.cc', 'peak_loop.h', 'peak.cc')
    assert [name for name in (*edited, 'binary_NAME.cc', 'peak_NAME.cc') if f'{name}`' not in steps] == []
    project = Project(tmp_path, COMPILED, unneeded=['*.so'])
    kernels = project.file('binary_reference.cc')
    text = kernels.read_text().replace('binary_kernels_reference', 'binary_kernels_popcnt').replace('"reference"', '"popcnt"')
    kernels.with_name('binary_popcnt.cc').write_text(text)
    project.file('peak_avx2.cc').with_name('peak_popcnt.cc').write_text(PEAK)
    project.replace('compile_flags.txt', r'^avx2 ', r'popcnt __x86_64__ -mpopcnt\n\g<0>')
    project.replace(
        'binary_kernels.h', r'^const BinaryKernels& binary_kernels_reference\(\);', r'\g<0>\nconst BinaryKernels& binary_kernels_popcnt();'
    )
    project.replace(
        'dispatch.cc',
        r'^ *add\(binary_kernels_reference\(\), float_kernels_reference\(\)\);',
        r'\g<0>\n#ifdef BMX_HAVE_POPCNT\n    add(binary_kernels_popcnt(), float_kernels_reference());\n#endif',
    )
    project.replace('peak_loop.h', r'^double popcount_reference.*', r'\g<0>\ndouble popcount_popcnt(Operands operands, double seconds);')
    project.replace(
        'peak.cc',
        r'^constexpr Method kMethods\[\] = \{',
        r'\g<0>\n    {"popcnt", "popcount", true, popcount_popcnt},\n    {"popcnt", "multiply-add", false, float_reference},',
    )
    return project


def test_the_files_of_another_instruction_set_compile(extended):
    sources = extended.folder / 'bmx_melius' / 'csrc'
    command = ['g++', '-std=c++17', f'-I{sources}', '-DBMX_HAVE_POPCNT', '-mpopcnt', '-Wall', '-Wextra', '-Werror', '-fsyntax-only']
    names = ('binary_popcnt.cc', 'dispatch.cc', 'peak_popcnt.cc', 'peak.cc')
    done = subprocess.run([*command, *map(extended.file, names)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


COMPARE_KERNELS = """
import os, subprocess
from native_program import build_program

program = build_program(os.getcwd(), 'tests/csrc/binary_kernels_test.cc', ['binary', 'float', 'dispatch'], ['-O0'])
print(subprocess.run([program, 'popcnt', '400'], check=True, capture_output=True, text=True).stdout)
"""

USE_ENGINE = """
import numpy as np
import mxnet as mx
import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.deployment.runtime import engine

assert 'popcnt' in engine.instruction_sets(), engine.instruction_sets()
net = mx.gluon.nn.HybridSequential()
net.add(bmx.BinaryConv2D(40, 3, padding=1))
net.initialize(mx.init.Normal(1))
x = mx.nd.random.normal(shape=(2, 33, 7, 9))
assert np.array_equal(bmx.deploy(net, x.shape)(x).asnumpy(), net(x).asnumpy())
assert main(['info']) == 0
"""


@pytest.mark.long
def test_kernels_and_engine_run_with_another_instruction_set(extended):
    compile_without_optimization(extended)
    assert 'popcnt' in extended.run(USE_ENGINE, BMX_MELIUS_ISA='popcnt')
    assert 'popcnt: ok' in extended.run(COMPARE_KERNELS)
