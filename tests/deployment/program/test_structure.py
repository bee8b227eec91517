"""Shape inference from the structure of a program: the same shapes and refusals at the same place in Python, in C++ and in MXNet."""

import random as randoms
import re
import subprocess
import zlib

import mxnet as mx
import numpy as np
import pytest
from support.packed import geometry
from support.random_programs import Maker, describe
from support.refusals import place_of

from bmx_melius.deployment.program import reference
from bmx_melius.deployment.program.operations import OPERATIONS, REAL_KIND, Operation, ProgramError, Value
from bmx_melius.deployment.program.packed_operator import operator_attributes, read_structure
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.runtime import mxnet_operator

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
    for random, program in random_programs(150):
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


@pytest.mark.skipif(not mxnet_operator.compiled(), reason='the operator has not been compiled')
def test_mxnet_infers_the_shapes_of_the_program_for_all_operations_and_several_sizes():
    names = set()
    for random, program in random_programs(60):
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


@pytest.mark.skipif(not mxnet_operator.compiled(), reason='the operator has not been compiled')
def test_mxnet_infers_the_shapes_of_more_programs_in_turn_than_the_operator_keeps():
    symbols = {}
    for channels in range(1, 101):
        pooling = Operation('max_pool', (0,), {**geometry(3, 2, 1), 'ceil': 0})
        program = Program([Value(REAL_KIND, channels, 4, 4, False)], [pooling], [1])
        symbols[channels] = mx.sym.bmx_melius_packed(mx.sym.var('x'), mx.sym.var('program'), **operator_attributes(program))
    for _ in range(2):
        for channels, symbol in symbols.items():
            assert symbol.infer_shape(x=(2, channels, 7, 5))[1] == [(2, channels, 4, 3)]


def damaged(random, text):
    """A copy of a structure with some numbers changed, mostly with the right checksum, or with some characters changed."""
    if random.random() < 0.3:
        begin = random.randrange(len(text))
        return text[:begin] + random.choice(['', ' ', '-', '9', '99999999999', '1.5', 'x', '\t', 'é']) + text[begin + random.randrange(3) :]
    words = np.array(text.split(), dtype=np.int64)
    for _ in range(random.randint(1, 3)):
        position = random.choice((random.randrange(len(words)), random.randrange(min(len(words), 16))))
        change = random.choice((-1, 1, 2, random.choice((255, 1 << 16, 1 << 20, (1 << 31) - 1)) - words[position]))
        words[position] = np.array(words[position] + change).astype(np.int32)
        if random.random() < 0.2 and len(words) > 9:
            words = np.delete(words, random.randrange(4, len(words)))
    if random.random() < 0.9:
        words[3] = np.int64(zlib.crc32(words[4:].astype('<i4').tobytes())).astype(np.int32)
    return ' '.join(map(str, words))


def test_python_and_cpp_refuse_damaged_structures_at_the_same_place_in_one_line(infer_natively, long_run):
    cases = []
    for random, program in random_programs(1000 if long_run else 100):
        text = operator_attributes(program)['structure']
        cases += [({'structure': damaged(random, text)}, None) for _ in range(10)]
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
