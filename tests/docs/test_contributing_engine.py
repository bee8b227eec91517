"""The recipes of CONTRIBUTING.md for the engine: an operation and an instruction set are added as the text says, and used."""

import re
import shutil
import subprocess

import pytest
from support.recipes import BEGIN, COMPILED, COPIED, SECTIONS, Project, code_of, compile_without_optimization, file_of

# --- an operation of the packed format ------------------------------------------------------------------------------------------------

USE_OPERATION = (
    BEGIN
    + """
import json
from mxnet.gluon import nn
from bmx_melius.files.parameters import read_parameters
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
    tests = 'tests/native/test_engine.py', 'tests/deployment/program/test_validators.py'
    assert passed('equals_the_interpreter or both_validators', *tests) > 2
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
from support.native_program import build_program

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
