"""The table of operations: what is made from it is up to date, and its rows have what the readers and the engine rely on."""

import ast
import importlib
import re
import sys
import typing

import numpy as np
import pytest
from fuzz.seeds import smallest_program
from support.paths import ROOT

from bmx_melius.deployment.program import operations, reference
from bmx_melius.deployment.program.operation_table import EPILOGUE, FIRST_VERSION, OPERATIONS, OperationType
from bmx_melius.deployment.program.operations import SHAPES, Operation, ProgramError, array_shapes
from bmx_melius.deployment.program.program import Program
from bmx_melius.deployment.program.words import VERSION
from bmx_melius.deployment.runtime import engine
from bmx_melius.deployment.runtime.engine import Runner


@pytest.fixture()
def generator(monkeypatch):
    monkeypatch.setattr(sys, 'path', [str(ROOT / 'tools'), *sys.path])
    return importlib.import_module('make_operations')


def test_what_is_made_from_the_table_is_up_to_date(generator):
    stale = [path.name for path, text in generator.FILES.items() if path.read_text(encoding='utf-8') != text()]
    assert stale == [], 'run make operations'


def values_of(type, value):
    """Return the values that a type allows: the values of a Literal, also if it is optional; otherwise `value`."""
    allowed = [one for part in (type, *typing.get_args(type)) if typing.get_origin(part) is typing.Literal for one in typing.get_args(part)]
    return [*allowed, None] if allowed and None.__class__ in typing.get_args(type) else allowed or [value]


def test_opcodes_differ_and_names_have_a_rule_a_form_and_a_line_of_documentation():
    codes = [row.opcode for row in OPERATIONS.values()]
    assert codes == sorted(set(codes)) and codes[0] == 1
    for name, row in OPERATIONS.items():
        assert row.shape in SHAPES and row.doc.endswith('.') and '\n' not in row.doc, name
        for trait, type in typing.get_type_hints(OperationType).items():
            assert getattr(row, trait) in values_of(type, getattr(row, trait)), (name, trait)
        assert row.elementwise != 'channels' or row.range is None, f'{name}: the engine computes such operations in float32'
        assert (row.like is not None) == (row.elementwise == 'positions'), name
        assert row.elementwise != 'channels' or len(row.arrays) <= 2 and all(array.shape == ('C',) for array in row.arrays.values()), name
    assert {row.shape for row in OPERATIONS.values()} == set(SHAPES)
    assert all(OPERATIONS[name].elementwise == 'channels' for name in EPILOGUE)


@pytest.mark.parametrize('name', OPERATIONS)
def test_the_smallest_program_of_each_operation_is_computed_alike_in_numpy_and_by_the_engine(name):
    program = smallest_program(name)
    words = program.to_words()
    assert name in [operation.name for operation in Program.from_words(words).operations]
    inputs = [np.linspace(-3, 4, 2 * np.prod(value.shape), dtype='f').reshape(2, *value.shape) for value in program.inputs]
    (expected,) = reference.run(program, inputs)
    assert expected.shape == (2, *program.values()[program.outputs[0]].shape)
    if not engine.missing():
        np.testing.assert_allclose(Runner(program, words).run(inputs)[0], expected, rtol=1e-5, atol=1e-6)


def test_sizes_and_dtypes_of_arrays_follow_the_attributes():
    attributes = {'out_channels': 6, 'kernel_h': 2, 'kernel_w': 3, 'groups': 2, 'half': 1, 'has_bias': 0, 'planes': 3}
    assert array_shapes(Operation('conv', (), attributes), 8) == {'weight': (np.float16, (6, 4, 2, 3))}
    assert array_shapes(Operation('conv', (), {**attributes, 'half': 0, 'has_bias': 1}), 8) == {
        'weight': (np.float32, (6, 4, 2, 3)),
        'bias': (np.float32, (6,)),
    }
    of_levels = {**attributes, 'bits': 3, 'by_position': 1}
    expected = {'codes': (np.bool_, (3, 144)), 'levels': (np.float32, (6, 8)), 'scale': (np.float32, (6,))}
    assert array_shapes(Operation('level_conv', (), of_levels), 8) == expected
    assert array_shapes(Operation('level_conv', (), {**of_levels, 'by_position': 0}), 8)['levels'] == (np.float32, (1, 8))
    assert array_shapes(Operation('binary_conv', (), attributes), 12) == {'weight': (np.bool_, (6, 2, 3, 2))}
    positions = {'by_channel': 0, 'height': 5, 'width': 1}
    assert array_shapes(Operation('scale_map', (), positions), 4) == {'factor': (np.float32, (1, 5, 1))}
    assert array_shapes(Operation('scale_map', (), {**positions, 'by_channel': 1}), 4) == {'factor': (np.float32, (4, 5, 1))}


def test_a_program_is_of_the_latest_version_that_one_of_its_operations_needs(monkeypatch):
    program = smallest_program('relu')
    assert program.to_words()[1] == FIRST_VERSION
    row = OperationType(**{**vars(OPERATIONS['relu']), 'since': VERSION + 1})
    monkeypatch.setitem(operations.OPERATIONS, 'relu', row)
    assert program.to_structure()[1] == VERSION + 1
    with pytest.raises(ProgramError, match=f'word 1, version: format version {VERSION + 1}; this release reads'):
        program.to_words()  # reads what it has written


# Where C++ says what operations mean: their shapes in the generated table, and which steps compute them.
STEPS = {'operation_table.h', 'fusion.cc', 'patterns.cc', 'fused_operations.cc', 'lowering.cc'}


def compared_names(source):
    """Return the lines of Python code that compare an attribute `name` with names of operations, or look for a function of that name."""
    tree, names = ast.parse(source), set(OPERATIONS)
    strings = {  # constant -> the strings in what it is assigned
        node.targets[0].id: {one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)}
        for node in tree.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }

    def names_operations(node):
        constants = {one.value for one in ast.walk(node) if isinstance(one, ast.Constant)}
        return bool(names & constants) or isinstance(node, ast.Name) and bool(names & strings.get(node.id, set()))

    def is_name(node):
        return isinstance(node, ast.Attribute) and node.attr == 'name'

    found = []
    for node in ast.walk(tree):
        sides = [node.left, *node.comparators] if isinstance(node, ast.Compare) else []
        is_lookup = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == 'getattr'
        if any(map(is_name, sides)) and any(map(names_operations, sides)) or is_lookup and any(map(is_name, ast.walk(node.args[1]))):
            found.append(ast.get_source_segment(source, node))
    return found


def test_only_the_table_and_what_says_what_operations_mean_know_their_names():
    """Other code asks the row of an operation, so that it needs no change when one is added."""
    examples = "x.name == 'conv'", "x.name in ('conv', 'y')", "N = ('relu',)\nx.name in N", "getattr(y, f'_{x.name}')"
    assert [compared_names(example) for example in examples] == [[example.split('\n')[-1]] for example in examples]
    package = ROOT / 'bmx_melius'
    found = {path: compared_names(path.read_text(encoding='utf-8')) for path in (package / 'deployment').rglob('*.py')}
    assert {path: lines for path, lines in found.items() if lines} == {}
    sources = [path for path in (package / 'csrc').rglob('*.*') if path.name not in STEPS]
    assert len(sources) > 90 and [path.name for path in sources if re.search(r'\bOp::\w', path.read_text())] == []
