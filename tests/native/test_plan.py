"""The planner of the engine, pass by pass: what becomes one step, where values lie, in which order steps run."""

import random as randoms
import re
import subprocess

import numpy as np
import pytest
from support.packed import operation, window
from support.random_programs import Maker, describe

from bmx_melius.deployment.c_export.facts import Facts
from bmx_melius.deployment.program.operations import REAL_KIND, Value, array_shapes, range_of_sums
from bmx_melius.deployment.program.program import Program


@pytest.fixture()
def plan(build_native, tmp_path):
    """A function that checks the plans of programs, and returns for each the decisions that ``plan_test`` prints, a list of words."""

    def check(programs):
        paths = [tmp_path / f'program {number}' for number in range(len(programs))]
        for path, program in zip(paths, programs):
            program.to_words().tofile(path)
        done = subprocess.run([build_native('tests/csrc/plan_test.cc', None, 'sanitized'), *paths], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line.split() for line in done.stdout.splitlines()]

    return check


def test_every_pass_of_planning_is_correct_on_small_and_on_random_programs(plan, long_run):
    programs = []
    for seed in range(5000 if long_run else 300):
        maker = Maker(randoms.Random(seed), exact=seed % 2 == 0)
        programs.append(maker.program(randoms.Random(seed).randint(1, 40)))
    assert len(plan(programs)) == len(programs)


def first_layers(random):
    """Return a program of convolutions from inputs on, some of them with what may follow a convolution in its step."""
    sizes = [random.choice((1, 2, 3, 16, 17)) for _ in range(random.choice((1, 1, 2)))]
    inputs = [Value(REAL_KIND, channels, 12, 12, False) for channels in sizes]
    values, operations = list(inputs), []

    def add(name, *sources, **attributes):
        operations.append(operation(name, *sources, **attributes))
        arrays = array_shapes(operations[-1], values[sources[0]].channels)
        operations[-1].arrays.update({array: np.ones(shape, dtype) for array, (dtype, shape) in arrays.items()})
        values.append(Program(inputs, operations, [0]).values()[-1])
        return len(values) - 1

    outputs = []
    for x in range(len(inputs)):
        for _ in range(random.randint(1, 24)):
            channels = values[x].channels
            depthwise = random.random() < 0.2
            groups = channels if depthwise else 1
            filters = channels if depthwise else random.choice((1, 1, 4, 16, 20))
            kernel = random.choice((1, 3, 3, 3))
            bias = random.randint(0, 1)
            x = add('conv', x, out_channels=filters, groups=groups, has_bias=bias, **window(kernel, pad=kernel // 2))
            for name in random.choice(((), (), ('affine',), ('relu',), ('affine', 'relu'), ('relu', 'affine'), ('affine', 'affine'))):
                x = add(name, x)
            if random.random() < 0.05:
                outputs.append(x)
        outputs.append(x)
    return Program(inputs, operations, sorted(set(outputs)))


def around_a_stem(layers):
    """Return a program of layers (name, sources, further attributes) on one input of 3 channels and 8 x 8 pixels."""
    inputs, operations = [Value(REAL_KIND, 3, 8, 8, False)], []
    attributes = {
        'conv': {'out_channels': 3, **window(3, pad=1)},
        'binary_conv': {'out_channels': 3, 'pad_value': -1, **window(3, pad=1)},
    }
    for name, sources in layers:
        operations.append(operation(name, *sources, **attributes.get(name, {})))
        arrays = array_shapes(operations[-1], Program(inputs, operations, [0]).values()[sources[0]].channels)
        operations[-1].arrays.update({array: np.ones(shape, dtype) for array, (dtype, shape) in arrays.items()})
    return Program(inputs, operations, [len(operations)])


READ_BEFORE = [  # the second convolution of the input follows what the engine computes earlier or later than its place in the program
    [('conv', (0,)), ('sigmoid', (1,)), ('conv', (0,)), ('add', (2, 0)), ('add', (3, 4))],
    [('threshold', (0,)), ('conv', (0,)), ('binary_conv', (1,)), ('add', (2, 3))],
    [('concat', (0, 0)), ('conv', (0,)), ('threshold', (1,)), ('binary_conv', (3,)), ('add', (2, 4))],
]


def decisions(program):
    """Return what the export to C decides about a program, as ``print_decisions`` in tests/csrc/plan_test.cc prints it.

    These are all facts that the planner and the export decide separately; others are in the table of operations.
    """
    facts = Facts(program, program.values())
    stem, found = facts.planar_convolutions(), []
    for number, one in enumerate(program.operations):
        text = 's' * (number in stem) + 'b' * facts.is_fused(number) + 'v' * facts.is_view(number)
        if one.name == 'binary_conv':
            sums = range_of_sums(one, facts.values[one.inputs[0]].channels)
            text += 'halves' if sums is None else '{}..{}'.format(*sums)
        found += [f'{number}:{text}'] * bool(text)
    return found


def test_the_export_to_c_decides_as_the_planner_does(plan, long_run):
    """The convolutions of a stem, the biases that are part of a shift, the views, and the ranges of binary sums are the same."""
    count = 1000 if long_run else 150
    programs = [first_layers(randoms.Random(seed)) for seed in range(count)]
    programs += [Maker(randoms.Random(seed), exact=True).program(24) for seed in range(count)]
    programs += map(around_a_stem, READ_BEFORE)
    seen = set()
    for program, found in zip(programs, plan(programs)):
        assert found == decisions(program), describe(program)
        seen |= {re.sub(r'\d+', '1', text.split(':')[1]) for text in found}
    assert seen == {'s', 'b', 'sb', 'v', 'halves', '1..1', '-1..1'}
