"""Global means of sums from the means of their summands: the same numbers, and never another map than the network needs anyway."""

import numpy as np
import pytest
from support.conversions import names_of
from support.packed import chain, conv, operation, window

from bmx_melius.deployment.convert.global_means import with_means_of_summands
from bmx_melius.deployment.program import reference

RANDOM = np.random.RandomState(0)
CHANNELS, SIZE = 8, 7


def numbers(*shape):
    return RANDOM.normal(size=shape).astype('f')


def affine(*inputs):
    return operation('affine', *inputs, arrays={'scale': numbers(CHANNELS), 'shift': numbers(CHANNELS)})


def prelu(number):
    return operation('prelu', number, arrays={'slope': numbers(CHANNELS)})


def block(x, number):
    """Return the operations of a block like BNext's on map `x`, the first of which has the given number; the last one is its result."""
    features, gate = number + 1, number + 9
    return [
        affine(x), prelu(number),
        affine(features), operation('add', x, number + 2), affine(number + 3), operation('add', features, number + 4),
        operation('global_avg_pool', number + 5), conv(numbers(CHANNELS, CHANNELS, 1, 1), number + 6), operation('relu', number + 7),
        operation('sigmoid', number + 8), operation('multiply', features, gate), affine(number + 10), operation('add', x, number + 11),
    ]  # fmt: skip


BLOCK = len(block(0, 1))


def checked(program):
    """Return the rewritten program, after a comparison of its outputs with those of `program`, and of its numbers of values."""
    made, number_of = with_means_of_summands(program)
    x = numbers(3, CHANNELS, SIZE, SIZE)
    for found, expected in zip(reference.run(made, [x]), reference.run(program, [x])):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
    assert made.outputs == [number_of[number] for number in program.outputs]
    for old, new in number_of.items():
        assert reference.run(with_outputs(made, new), [x])[0] == pytest.approx(reference.run(with_outputs(program, old), [x])[0], abs=1e-4)
    return made


def with_outputs(program, *outputs):
    return type(program)(program.inputs, program.operations, list(outputs))


def maps(program):
    """How many maps a program makes."""
    return sum(value.height > 1 for value in program.values()) - len(program.inputs)


def test_the_gates_of_two_blocks_are_computed_from_one_mean_for_each_map_that_exists_anyway():
    program = chain((CHANNELS, SIZE, SIZE), *block(0, 1), *block(BLOCK, BLOCK + 1))
    made = checked(program)
    assert maps(program) - maps(made) == 2 * 4  # the two affine maps and sums of each block
    assert names_of(made).count('global_avg_pool') == 3  # of the input and of the features; that of the first block follows from these


@pytest.mark.parametrize(
    'operations, outputs',
    [
        ([affine(0), operation('add', 0, 1), operation('global_avg_pool', 2)], [2, 3]),  # the sum is an output
        ([prelu(0), operation('add', 0, 1), operation('global_avg_pool', 2)], [3]),  # nothing else reads the first summand
        ([prelu(0), operation('sigmoid', 1), operation('multiply', 0, 2), operation('global_avg_pool', 3)], [4]),  # factors of pixels
        ([affine(0), operation('add', 0, 1), operation('global_avg_pool', 2), prelu(2)], [3, 4]),  # something else reads the sum
        (
            [operation('global_max_pool', 0), conv(numbers(1, CHANNELS, 1, 1), 1, **window(1, pad=3)), operation('multiply', 0, 2)]
            + [operation('global_avg_pool', 3)],
            [4],
        ),  # factors of positions: padding makes a map of a pixel
    ],
)
def test_other_means_stay_as_they_are(operations, outputs):
    program = chain((CHANNELS, SIZE, SIZE), *operations, outputs=outputs)
    assert names_of(checked(program)) == names_of(program)


def test_the_mean_of_a_sum_of_an_input_is_computed_from_that_of_the_input():
    made = checked(chain((CHANNELS, SIZE, SIZE), affine(0), operation('add', 0, 1), operation('global_avg_pool', 2)))
    assert names_of(made) == ['global_avg_pool', 'affine', 'add'] and maps(made) == 0


def test_a_map_of_which_two_means_are_taken_has_one():
    made = checked(chain((CHANNELS, SIZE, SIZE), prelu(0), *(operation('global_avg_pool', 1) for _ in range(2)), outputs=[2, 3]))
    assert names_of(made) == ['prelu', 'global_avg_pool'] and made.outputs == [2, 2]


@pytest.mark.parametrize('links', [lambda number: [affine(number)], lambda number: [operation('add', number, number)]])
def test_long_sums_take_no_recursion_and_no_more_time_than_operations(links):
    operations = [operation('global_avg_pool', 0)]
    for number in [0, *range(2, 3000)]:
        operations += links(number)
    program = chain((CHANNELS, SIZE, SIZE), *operations, operation('global_avg_pool', len(operations)), outputs=[1, len(operations) + 1])
    assert names_of(with_means_of_summands(program)[0])[0] == 'global_avg_pool'
    assert names_of(with_means_of_summands(program)[0]).count('global_avg_pool') == 1


def test_factors_of_a_dense_layer_multiply_the_mean():
    layer = conv(numbers(CHANNELS, CHANNELS, 1, 1), 2)
    gate = [operation('global_max_pool', 0), operation('flatten', 1), layer, operation('unflatten', 3)]
    made = checked(
        chain((CHANNELS, SIZE, SIZE), *gate, operation('multiply', 0, 4), operation('global_avg_pool', 5), prelu(0), outputs=[6, 7])
    )
    assert names_of(made)[-3:] == ['global_avg_pool', 'multiply', 'prelu']


def test_factors_of_channels_multiply_the_mean():
    operations = [operation('global_max_pool', 0), operation('multiply', 0, 1), operation('global_avg_pool', 2), prelu(0)]
    made = checked(chain((CHANNELS, SIZE, SIZE), *operations, outputs=[3, 4]))
    assert names_of(made) == ['global_max_pool', 'global_avg_pool', 'multiply', 'prelu']
