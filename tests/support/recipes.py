"""A copy of the project, in which the recipes of CONTRIBUTING.md are followed: their code is put where the text says."""

import os
import pathlib
import re
import shutil

from bmx_melius.deployment.program.operation_table import OPERATIONS
from support.paths import ROOT
from support.python_programs import run_python

COPIED = ('bmx_melius', 'model_zoo', 'experiments', 'docs', 'tests', 'tools')
COPIED += ('pyproject.toml', 'setup.py', 'README.md', 'train_imagenet.py')
SECTIONS = dict(re.findall(r'^## (.*)\n((?:(?!## ).*\n)*)', (ROOT / 'CONTRIBUTING.md').read_text(), re.MULTILINE))


class Project:
    """A copy of the project, in which a contributor works."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def copy(self):
        """Copy the project without what is compiled."""
        for name in COPIED:
            if (ROOT / name).is_dir():
                shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns('__pycache__', '*.png', '*.so'))
            else:
                shutil.copy(ROOT / name, self.folder)

    def add_rows(self, path, code):
        """Add rows to a table, and what stands before the table in `code` before it in the file."""
        before, table, rows = re.fullmatch(r'((?:.*\n)*?)(\w+) = [{\[]\n    \.\.\.,?\n((?:.*\n)*)[}\]]\n', code).groups()
        text = (self.folder / path).read_text()
        found = re.search(rf'^{table}(?:: .*)? = [{{[].*\n(?:.*\n)*?(?=^[}}\]])', text, re.MULTILINE)
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
        path = os.pathsep.join(str(self.folder / name) for name in ('', 'tests', 'tools', 'experiments'))
        return run_python(program, *arguments, cwd=self.folder, path=path, **environment).stdout


def code_of(section, language='python'):
    """The blocks of code of a section."""
    return re.findall(rf'^```{language}\n((?:.*\n)*?)```$', SECTIONS[section], re.MULTILINE)


def file_of(section, code):
    """The last file that the section names before a block of code."""
    return re.findall(r'`([\w/-]+\.\w+)`', SECTIONS[section].partition(code)[0])[-1]


def follow_all(folder):
    """Copy the project and follow every recipe."""
    project = Project(folder)
    project.copy()
    add_networks(project)
    add_study(project)
    add_protocol(project)
    add_quantizer(project)
    add_operation(project)
    add_operation_with_a_step(project)
    project.run('import make_operations; make_operations.main()')
    add_instruction_set(project)
    add_onnx_operator(project)


def add_networks(project):
    """Add two of families that exist, one of them with a unit of its own, and a new family."""
    section = 'Adding a network'
    row, unit, residual, family, line = code_of(section)
    project.add_rows(file_of(section, row), row)
    project.append(file_of(section, unit), f'\n\n{unit}')
    project.add_rows(file_of(section, residual), residual)
    project.append(file_of(section, family), family)
    project.append(file_of(section, line), line)


def add_study(project):
    section = 'Adding a study'
    (study,) = code_of(section, 'yaml')
    project.append(file_of(section, study), study)


def add_protocol(project):
    section = 'Adding a protocol'
    (preset,) = code_of(section)
    (line,) = code_of(section, 'markdown')
    project.add_rows(file_of(section, preset), preset)
    table = project.folder / file_of(section, line)
    table.write_text(re.sub(r'(\n\| `photos` .*\n)', lambda last: last.group() + line, table.read_text(), count=1))


def add_quantizer(project):
    section = 'Adding a quantizer'
    (row,) = code_of(section)
    project.add_rows(file_of(section, row), row)


# --- an operation of the packed format ------------------------------------------------------------------------------------------------

OPERATION = 'Adding an operation to the packed format'
FIRST_NUMBER = 37  # in the recipes


def add_operation(project):
    """Add the operation of the first recipe. Its number is the next one."""
    row, function, rule, loop, kernel, method, test = code_of(OPERATION, r'\w+')[:7]
    add_row(project, row, 37)
    project.add_rows('bmx_melius/deployment/program/reference.py', function)
    project.append(file_of(OPERATION, rule), f'\n\n{rule}')
    project.append(file_of(OPERATION, kernel), f'\n{kernel}')
    project.replace('onnx/export.py', r"^    @_FORMS.of\('maximum'\)\n", method.replace('\\', r'\\') + r'\n\g<0>')
    project.add_rows(file_of(OPERATION, test), test)
    project.replace('elementwise_loops.h', r'^        case Elementwise::none:\n', loop + r'\g<0>')


def add_row(project, row, number):
    """Add a row of the table of operations with the next number in place of that in the recipe."""
    table = project.folder / 'bmx_melius' / 'deployment' / 'program' / 'operation_table.py'
    assert f'in place of {FIRST_NUMBER},' in SECTIONS[OPERATION] and row.count(str(number)) == 1
    next_number = max(row.opcode for row in OPERATIONS.values()) + 1 + number - FIRST_NUMBER
    project.add_rows(table.relative_to(project.folder), row.replace(str(number), str(next_number)))


def add_operation_with_a_step(project):
    """Add the operation of the second recipe, before others of its kind."""
    blocks = code_of(OPERATION, r'\w+')[7:]
    row, function, operation_class, reader, reading, rule, declaration, step, case, kernel, lowering, method, test = blocks
    add_row(project, row, 38)
    project.add_rows('bmx_melius/deployment/program/reference.py', function)
    project.append(file_of(OPERATION, operation_class), f'\n\n{operation_class}')
    project.append(file_of(OPERATION, reader), f'\n\n{reader}')
    for name in ('bmx_melius/graph/mxnet_operators.py', 'graph/test_mxnet_operators.py', 'rules/moves.py'):
        project.replace(name, r'^    Transpose,$', r'    Take,\n\g<0>')
    project.add_rows(file_of(OPERATION, reading), reading)
    project.append(file_of(OPERATION, rule), f'\n\n{rule}')
    project.replace('map_steps.h', r'^StepPtr expand_step', f'{declaration}\\g<0>')
    project.replace('map_steps.cc', r'^StepPtr expand_step', f'{step}\n\\g<0>')
    project.replace('lowering.cc', r'^            case Op::expand:\n', f'{case}\\g<0>')
    project.append(file_of(OPERATION, kernel), f'\n{kernel}')
    project.replace('layer_calls.py', r"^    @FORMS.of\('upsample'\)\n", f'{lowering}\n\\g<0>')
    project.replace('onnx/export.py', r"^    @_FORMS.of\('maximum'\)\n", f'{method}\n\\g<0>')
    project.add_rows('tests/deployment/program/test_reference.py', test)
    named = [file_of(OPERATION, code).rsplit('/')[-1] for code in (declaration, step, case, lowering)]
    assert named == ['map_steps.h', 'map_steps.cc', 'lowering.cc', 'layer_calls.py']


def add_onnx_operator(project):
    """Add an operator to the import of ONNX models, with its test."""
    section = 'Adding an operator to the import of ONNX models'
    for code in code_of(section):
        project.append(file_of(section, code), f'\n\n{code}')
    project.replace('onnx/evaluation.py', r"'Ceil', ", r"\g<0>'Celu', ")


# --- an instruction set: the plain kernels with the processor's instruction for counting bits --------------------------------

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


def add_instruction_set(project):
    """Add another instruction set as the steps say."""
    steps = SECTIONS['Adding a kernel or an instruction set']
    edited = ('compile_flags.txt', 'binary_kernels.h', 'dispatch.cc', 'peak_loop.h', 'peak.cc')
    assert [name for name in (*edited, 'binary_NAME.cc', 'peak_NAME.cc') if f'{name}`' not in steps] == []
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
        r'^ *add\(binary_kernels_reference\(\), float_kernels_reference\(\), int8_kernels_reference\(\)\);',
        r'\g<0>\n#ifdef BMX_HAVE_POPCNT\n    add(binary_kernels_popcnt(), float_kernels_reference(), int8_kernels_reference());\n#endif',
    )
    project.replace('peak_loop.h', r'^double popcount_reference.*', r'\g<0>\ndouble popcount_popcnt(Operands operands, double seconds);')
    project.replace(
        'peak.cc',
        r'^constexpr Method kMethods\[\] = \{',
        r'\g<0>\n    {"popcnt", "popcount", MacKind::binary, popcount_popcnt},'
        r'\n    {"popcnt", "multiply-add", MacKind::floats, float_reference},',
    )
