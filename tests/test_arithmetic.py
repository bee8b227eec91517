"""Division rounded up, fused multiply-adds, and seeds of positions in a run."""

import fractions
import itertools

import numpy as np
import pytest

from bmx_melius.arithmetic import ceil_div, multiply_add, seed_for


@pytest.mark.parametrize('a, b, expected', [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (-1, 3, 0), (2**70 + 1, 2, 2**69 + 1)])
def test_divisions_are_rounded_up_exactly(a, b, expected):
    assert ceil_div(a, b) == expected


def test_arrays_are_divided_element_by_element():
    np.testing.assert_array_equal(ceil_div(np.arange(5), 2), [0, 1, 1, 2, 2])


def nearest(exact):
    """Return the float32 number nearest to a fraction, of two the one whose last bit is 0."""
    guess = np.float32(exact.numerator / exact.denominator)
    candidates = [guess, np.nextafter(guess, np.float32(-np.inf)), np.nextafter(guess, np.float32(np.inf))]
    return min(candidates, key=lambda x: (abs(fractions.Fraction(float(x)) - exact), x.view(np.int32) & 1))


def test_multiply_adds_are_rounded_once_also_beside_midpoints_of_float32_numbers():
    random = np.random.RandomState(0)
    a, b, c = random.normal(size=(3, 500)).astype('f')
    # products slightly below half a unit in the last place of c: in float64 the sums are midpoints
    half_unit = np.spacing(c) / 2
    beside = 1 + random.randint(1, 60, 500) * 2.0**-23
    a, b = np.concatenate([a, beside]).astype('f'), np.concatenate([b, (2 - beside) * half_unit]).astype('f')
    c = np.concatenate([c, c])
    found = multiply_add(a, b, c)
    exact = [fractions.Fraction(float(x)) * fractions.Fraction(float(y)) + fractions.Fraction(float(z)) for x, y, z in zip(a, b, c)]
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, [nearest(each) for each in exact])
    twice = a.astype('d') * b + c  # rounded to float64 and then to float32
    assert (found != twice.astype('f')).sum() > 100


def test_multiply_adds_of_infinite_numbers_are_infinite_or_nan():
    a, b, c = np.array([[np.inf, 2, 1], [-np.inf, 2, 1], [np.inf, 2, -np.inf], [np.nan, 1, 1], [3e38, 2, 1]], 'f').T
    np.testing.assert_array_equal(multiply_add(a, b, c), [np.inf, -np.inf, np.nan, np.nan, np.inf])


def test_different_positions_of_a_run_have_different_seeds_that_mxnet_accepts():
    seeds = [seed_for(*place) for place in itertools.product(range(3), range(1, 8), range(1, 8))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_for(1, 2, 3) == seed_for(1, 2, 3)
