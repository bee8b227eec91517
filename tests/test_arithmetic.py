"""Division rounded up, and seeds of positions in a run."""

import itertools

import numpy as np
import pytest

from bmx_melius.arithmetic import ceil_div, seed_for


@pytest.mark.parametrize('a, b, expected', [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (-1, 3, 0), (2**70 + 1, 2, 2**69 + 1)])
def test_divisions_are_rounded_up_exactly(a, b, expected):
    assert ceil_div(a, b) == expected


def test_arrays_are_divided_element_by_element():
    np.testing.assert_array_equal(ceil_div(np.arange(5), 2), [0, 1, 1, 2, 2])


def test_different_positions_of_a_run_have_different_seeds_that_mxnet_accepts():
    seeds = [seed_for(*place) for place in itertools.product(range(3), range(1, 8), range(1, 8))]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seed_for(1, 2, 3) == seed_for(1, 2, 3)
