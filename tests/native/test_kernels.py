"""The kernels of each instruction set against plain loops: what they compute, and what they touch in memory.

Binary and 8-bit kernels must agree with them bit for bit, kernels of floats and of gradients up to rounding, and those of floats with those
of other instruction sets bit for bit.
"""

import re
import subprocess

import pytest
from support.engines import INSTRUCTION_SETS
from support.native_program import KERNEL_PARTS, SOURCES
from support.paths import ROOT

NOT_AVAILABLE = 77  # exit status where the build or the CPU lacks an instruction set: kNotAvailable of csrc/kernel_tables.h
CASES = {  # short, long
    'binary': (200, 10000),
    'float_product': (150, 20000),
    'float_map': (150, 20000),
    'int8': (150, 10000),
    'training': (60, 3000),
}
SANITIZED_BINARY = (100, 10000)  # each takes long there, and ends at guarded pages in the optimized build, too


@pytest.mark.parametrize('instruction_set', INSTRUCTION_SETS)
@pytest.mark.parametrize('build', ['optimized', 'sanitized'])
@pytest.mark.parametrize('kernels', CASES)
def test_kernels_equal_plain_loops_and_write_only_their_output(kernels, build, instruction_set, build_native, long_run):
    parts = [*KERNEL_PARTS, 'training', 'normalization'] if kernels == 'training' else KERNEL_PARTS
    program = build_native(f'tests/csrc/{kernels}_kernels_test.cc', parts, build)
    cases = SANITIZED_BINARY if (kernels, build) == ('binary', 'sanitized') else CASES[kernels]
    command = [program, instruction_set, str(cases[long_run])]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode == NOT_AVAILABLE:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize('kernels', [name for name in CASES if name.startswith('float')])
def test_float_kernels_of_all_instruction_sets_give_the_same_bits(kernels, build_native, long_run):
    program = build_native(f'tests/csrc/{kernels}_kernels_test.cc', KERNEL_PARTS, 'optimized')
    digests = {}
    for instruction_set in INSTRUCTION_SETS:
        command = [program, instruction_set, str(CASES[kernels][long_run])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode != NOT_AVAILABLE:
            digests[instruction_set] = re.search('digest (.*)', done.stdout)[1]  # of the exact kernels, which come first
    assert len(set(digests.values())) == 1, digests


def test_kernels_are_reached_only_through_their_selection():
    """It asks the processor, and the operating system for the permission to use tiles, before it returns a table."""
    folders = SOURCES, ROOT / 'tests', ROOT / 'benchmarks', ROOT / 'examples', ROOT / 'tools'
    paths = [
        path
        for folder in folders
        for pattern in ('*.cc', '*.h')
        for path in folder.rglob(pattern)
        if SOURCES / 'kernels' not in path.parents
    ]
    tables = re.compile(r'\b(?:binary|float|int8)_kernels_\w+\(')
    assert len(paths) > 100
    assert [path for path in paths if tables.search(path.read_text())] == []
