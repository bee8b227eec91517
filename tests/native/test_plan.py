"""The planner of the engine, pass by pass: what becomes one step, where values lie, in which order steps run."""

import random as randoms
import subprocess

import numpy as np
import pytest
from support.packed import operation, window
from support.random_programs import Maker, describe

from bmx_melius.deployment.c_export.facts import Facts
from bmx_melius.deployment.program.operations import REAL_KIND, Value, array_shapes
from bmx_melius.deployment.program.program import Program


@pytest.fixture()
def plan(build_native, tmp_path):
    """A function that checks the plans of programs, and returns for each its convolutions as ``plan_test`` prints them."""

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


def test_the_export_to_c_adds_in_the_order_of_the_plan(plan, long_run):
    """The same convolutions are those of a stem, and the same biases are part of the shift that follows."""
    programs = [first_layers(randoms.Random(seed)) for seed in range(1000 if long_run else 150)]
    seen = set()
    for program, found in zip(programs, plan(programs)):
        facts = Facts(program, program.values())
        planar = facts.planar_convolutions()
        for text in found:
            number = int(text.rstrip('sb'))
            expected = f'{number}{"s" * (number in planar)}{"b" * facts.is_fused_bias(number)}'
            assert text == expected, describe(program)
            seen.add(text.lstrip('0123456789'))
    assert seen == {'', 's', 'b', 'sb'}
