"""The recipes of CONTRIBUTING.md for the engine: an operation and an instruction set are added as the text says, and used."""

import shutil
import subprocess

import pytest
from support.recipes import BEGIN, COMPILED, COPIED, SECTIONS, Project, code_of, compile_without_optimization, file_of

from bmx_melius.deployment.program.operation_table import OPERATIONS

# --- an operation of the packed format ------------------------------------------------------------------------------------------------

SECTION = 'Adding an operation to the packed format'

USE_OPERATIONS = (
    BEGIN
    + """
from mxnet.gluon import nn
from bmx_melius.files.parameters import read_parameters
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import engine

net = nn.HybridSequential()
for name in sys.argv[1:]:
    net.add(nn.Conv2D(40, 3, padding=1))
    net.add(nn.HybridLambda(lambda F, x, name=name: F.softsign(x) if name == 'softsign' else F.flip(x, axis=1)))
net.add(nn.BatchNorm(), bmx.BinaryConv2D(8, 3), nn.Flatten(), nn.Dense(5), nn.HybridLambda(lambda F, x: F.softsign(x)))
net.initialize(mx.init.Normal(1))
net.hybridize()
x = mx.nd.random.normal(shape=(2, 3, 9, 9))
y = net(x).asnumpy()
net.export('net')
report = bmx.convert('net-symbol.json', 'net-0000.params', 'packed', input_shape=(2, 3, 9, 9), verify=True)
assert (report.packed_operators, report.binary_layers) == (1, 1) and report.verification, report
(words,) = (array for name, array in read_parameters('packed-0000.params').items() if name.endswith('_program'))
program = Program.from_words(words)
names = [operation.name for operation in program.operations]
assert names.count('softsign') == 2 and words[1] == 3, names
packed = mx.gluon.SymbolBlock.imports('packed-symbol.json', ['data'], 'packed-0000.params')
np.testing.assert_allclose(packed(x).asnumpy(), y, rtol=1e-4, atol=1e-4)
assert passed('softsign', 'tests/deployment/program') > 1
assert passed('up_to_date or estimate_of_the_code', 'tests/deployment/program', 'tests/deployment/export/test_c_export_code.py') == 2
assert passed('gives_the_results_of_its_program', 'tests/deployment/export/test_onnx.py') > 0
compiled = not engine.missing()
if compiled:
    np.testing.assert_allclose(bmx.Session('packed')(x.asnumpy()), y, rtol=1e-4, atol=1e-4)
    tests = 'tests/native/test_engine.py', 'tests/deployment/program/test_validators.py'
    assert passed('equals_the_interpreter or both_validators', *tests) > 2
    assert passed('random_programs_have_the_bits and 8', 'tests/deployment/export/test_c_export.py') == 1
print('compiled' if compiled else 'in NumPy')
"""
)


def test_the_recipe_for_an_elementwise_operation_names_at_most_seven_files():
    assert len({file_of(SECTION, code) for code in blocks()}) <= 7


def blocks():
    """The blocks of code of the recipe, in order."""
    return code_of(SECTION, r'\w+')


def add_operation(project):
    """Follow the recipe. The number of the operation is the next one."""
    row, function, rule, loop, kernel, method, test = blocks()
    assert 'OperationType(30, ' in row
    number = max(row.opcode for row in OPERATIONS.values()) + 1
    project.add_rows(file_of(SECTION, row), row.replace('OperationType(30, ', f'OperationType({number}, '))
    project.add_rows(file_of(SECTION, function), function)
    project.append(file_of(SECTION, rule), f'\n\n{rule}')
    project.append(file_of(SECTION, kernel), f'\n{kernel}')
    project.replace('onnx_export.py', r'^    def maximum\(self', method.replace('\\', r'\\') + r'\n\g<0>')
    project.add_rows(file_of(SECTION, test), test)
    project.replace('elementwise_loops.h', r'^        case Elementwise::none:\n', loop + r'\g<0>')


def test_an_operation_as_in_the_recipe_is_converted_and_run_in_numpy(tmp_path):
    project = Project(tmp_path, COPIED, unneeded=['*.so'])
    add_operation(project)
    project.make_operations()
    assert 'in NumPy' in project.run(USE_OPERATIONS, 'softsign')


REVERSE_STEP = r"""StepPtr reverse_step(Source source, Slab output) {
    return row_step({std::move(source)}, output, [](float* x, float*, int pixels, int channels) {
        for (int pixel = 0; pixel < pixels; pixel++) {
            std::reverse(x + pixel * channels, x + (pixel + 1) * channels);
        }
    });
}

"""

REVERSE_IN_ONNX = r"""    def reverse(self, value, x):
        return self._add('Gather', x, self._constant('order', np.arange(value.channels)[::-1]), axis=1)

"""

REVERSE_RULE = """

@rule('reverse')
def _reverse(builder, node):
    \"\"\"Convert the reversed order of the channels.\"\"\"
    if integers(node.attributes['axis']) != (1,):
        raise UnsupportedError('it reverses another axis than the channels')
    (source,) = builder.network.sources(node)
    builder.set(node, builder.add('reverse', [builder.real(source)]))
"""


def add_operation_with_a_step(project):
    """Add the reversed order of the channels: a row, a definition, a rule, and a step with its case, as `expand` has them."""
    number = max(row.opcode for row in OPERATIONS.values()) + 2
    program = 'bmx_melius/deployment/program/'
    project.add_rows(
        f'{program}operation_table.py', f"OPERATIONS = {{\n    ...\n    'reverse': OperationType({number}, 'Channels.'),\n}}\n"
    )
    project.add_rows(f'{program}reference.py', "_FUNCTIONS = {\n    ...\n    'reverse': lambda x: x[:, ::-1],\n}\n")
    project.append('bmx_melius/deployment/convert/rules/moves.py', REVERSE_RULE)
    project.replace('onnx_export.py', r'^    def maximum\(self', REVERSE_IN_ONNX + r'\g<0>')
    project.replace('map_steps.h', r'^StepPtr expand_step', r'StepPtr reverse_step(Source source, Slab output);\n\g<0>')
    project.replace('map_steps.cc', r'^StepPtr expand_step', REVERSE_STEP + r'\g<0>')
    project.replace(
        'lowering.cc',
        r'^            case Op::expand:\n',
        r'            case Op::reverse:\n                return reverse_step(source(group), output(group));\n\g<0>',
    )
    assert [name for name in ('map_steps.cc', 'lowering.cc') if f'{name}`' not in SECTIONS[SECTION]] == []


@pytest.mark.long
def test_operations_as_in_the_recipe_are_run_by_the_engine(tmp_path):
    if not shutil.which('g++'):
        pytest.skip('there is no g++')
    project = Project(tmp_path, (*COMPILED, 'docs', 'pyproject.toml'), unneeded=['*.so'])
    add_operation(project)
    add_operation_with_a_step(project)
    project.make_operations()
    compile_without_optimization(project)
    assert 'compiled' in project.run(USE_OPERATIONS, 'softsign', 'reverse', BMX_MELIUS_TEST_LONG='')


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
