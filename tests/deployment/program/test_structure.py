"""Shape inference from the structure of a program: the same shapes and refusals at the same place in Python, in C++ and in MXNet."""

import random as randoms
import re
import subprocess

import mxnet as mx
import pytest
from fuzz.mutators import change_bytes, mutate_structure
from support.engines import needs_operator
from support.packed import chain, operation, window
from support.random_programs import Maker, describe
from support.refusals import place_of

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, ProgramError
from bmx_melius.deployment.program.packed_operator import operator_attributes, read_structure
from bmx_melius.deployment.program.program import Program

BATCH = 2
PARTS = ['program', 'operations', 'structure', 'shapes']


def random_programs(count):
    for seed in range(count):
        random = randoms.Random(seed)
        yield random, Maker(random, seed % 2).program(random.randint(1, 12))


def random_sizes(random, program):
    """Yield several sizes of the inputs: those at conversion, others, and one that is too small or too large for most programs."""
    yield [(value.height, value.width) for value in program.inputs]
    for high in (14, 40, 200, 1 << 17):
        yield [(1, 1) if value.flat else (random.randint(1, high), random.randint(1, high)) for value in program.inputs]


def shapes_of(program, sizes):
    return [(BATCH, value.channels, *(() if value.flat else size)) for value, size in zip(program.inputs, sizes)]


def inferred(attributes, sizes=None):
    """What the C++ test prints for a structure, computed in Python; `sizes` are those at conversion if None."""
    try:
        program, length = read_structure(attributes)
        sizes = sizes or [(value.height, value.width) for value in program.inputs]
        shapes = reference.infer_shapes(program, shapes_of(program, sizes))
    except ProgramError as error:
        return str(error).replace('bmx_melius_packed: ', '')
    return ' '.join(map(str, [length, *shapes]))


@pytest.fixture(scope='session')
def infer_natively(build_native):
    """The function (list of pairs of attributes and sizes or None) -> list of what the C++ code prints, under sanitizers."""

    def call(cases):
        program = build_native('tests/csrc/structure_test.cc', PARTS, 'sanitized')
        lines = []
        for attributes, sizes in cases:
            lines += [' '.join(str(number) for size in sizes or () for number in size), attributes['structure']]
        done = subprocess.run([program], input='\n'.join(lines) + '\n', text=True, capture_output=True)
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout.splitlines()

    return call


def test_the_structure_of_a_program_has_its_shapes_and_no_arrays():
    for _, program in random_programs(100):
        structure, length = read_structure(operator_attributes(program))
        assert (structure.inputs, structure.outputs, structure.values()) == (program.inputs, program.outputs, program.values())
        assert length == len(program.to_words())
        assert not any(operation.arrays for operation in structure.operations)
        assert operator_attributes(structure) == operator_attributes(program)


def test_python_and_cpp_infer_the_same_shapes_for_all_operations_and_several_sizes(infer_natively):
    cases, expected, names, programs = [], [], set(), []
    for random, program in random_programs(220):
        names |= {operation.name for operation in program.operations}
        for sizes in random_sizes(random, program):
            cases.append((operator_attributes(program), sizes))
            try:
                outputs = reference.infer_shapes(program, shapes_of(program, sizes))
                expected.append(' '.join(map(str, [len(program.to_words()), *outputs])))
            except ProgramError as error:
                expected.append(str(error))
            assert inferred(*cases[-1]) == expected[-1]
            programs.append(program)
    assert names == set(OPERATIONS)
    assert sum(text[0].isdigit() for text in expected) > 300 and sum('operation' in text for text in expected) > 100
    for program, found, wanted in zip(programs, infer_natively(cases), expected):
        assert place_of(found) == place_of(wanted), describe(program)


@needs_operator
def test_mxnet_infers_the_shapes_of_the_program_for_all_operations_and_several_sizes():
    names = set()
    for random, program in random_programs(80):
        names |= {operation.name for operation in program.operations}
        variables = [mx.sym.var(f'x{number}') for number in range(len(program.inputs))]
        symbol = mx.sym.bmx_melius_packed(*variables, mx.sym.var('program'), **operator_attributes(program))
        for sizes in random_sizes(random, program):
            shapes = shapes_of(program, sizes)
            given = {f'x{number}': shape for number, shape in enumerate(shapes)}
            try:
                expected = reference.infer_shapes(program, shapes)
            except ProgramError as error:
                with pytest.raises(mx.MXNetError, match=re.escape(f'bmx_melius_packed: {place_of(str(error))}')):
                    symbol.infer_shape(**given)
                continue
            arguments, outputs, _ = symbol.infer_shape(**given)
            assert outputs == expected and arguments[-1] == (len(program.to_words()),)
    assert names == set(OPERATIONS)


@needs_operator
def test_mxnet_infers_the_shapes_of_more_programs_in_turn_than_the_operator_keeps():
    symbols = {}
    for channels in range(1, 101):
        program = chain((channels, 4, 4), operation('max_pool', **window(3, 2, 1)))
        symbols[channels] = mx.sym.bmx_melius_packed(mx.sym.var('x'), mx.sym.var('program'), **operator_attributes(program))
    for _ in range(2):
        for channels, symbol in symbols.items():
            assert symbol.infer_shape(x=(2, channels, 7, 5))[1] == [(2, channels, 4, 3)]


def test_python_and_cpp_refuse_damaged_structures_at_the_same_place_in_one_line(infer_natively, long_run):
    cases = []
    for random, program in random_programs(1000 if long_run else 100):
        text = operator_attributes(program)['structure']
        for _ in range(10):
            changed = mutate_structure(text.encode(), random, change_bytes).decode('latin-1')
            cases.append(({'structure': changed.replace('\n', ' ')}, None))
    cases += [
        ({'structure': text}, None)
        for text in ('', ' ', '1', '-', '1 ', ' 1', '1  1', '+1', '1\r', '2147483648', '-2147483649', '9' * 5000)
    ]
    expected = [inferred(*case) for case in cases]
    assert sum('structure is damaged' in text for text in expected) > 500
    assert sum('not a list of numbers' in text for text in expected) > 50
    assert sum(text[0].isdigit() for text in expected) > 10  # a change that gives another valid structure
    assert list(map(place_of, infer_natively(cases))) == list(map(place_of, expected))


def test_the_length_in_the_header_of_a_structure_must_be_that_of_the_program():
    _, program = next(item for item in random_programs(100) if any(operation.arrays for operation in item[1].operations))
    structure = program.to_structure()
    structure[2] = len(structure)
    with pytest.raises(ProgramError, match=f'the header says {len(structure)} words, there are {len(program.to_words())}'):
        Program.from_structure(structure)


def test_the_cache_of_operators_is_bounded(build_native):
    program = build_native('tests/csrc/lru_cache_test.cc', [], 'sanitized')
    done = subprocess.run([program], text=True, capture_output=True)
    assert (done.returncode, done.stdout) == (0, ''), done.stderr
