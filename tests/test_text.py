"""Tables for people and the rounding up of divisions."""

import numpy as np
import pytest

from bmx_melius.arithmetic import ceil_div
from bmx_melius.text import table


def test_columns_are_as_wide_as_their_widest_cell_and_flush_as_asked():
    rows = [('a', 1234567, 'x'), ('longer', None, 'widest')]
    assert table(('name', 'count', 'of'), rows, align='<><').splitlines() == [
        'name        count  of',
        '------  ---------  ------',
        'a       1,234,567  x',
        'longer          -  widest',
    ]


def test_a_table_without_rows_has_its_headings():
    assert table(('name', 'count'), [], align='<>') == 'name  count\n----  -----'


@pytest.mark.parametrize('a, b, expected', [(0, 3, 0), (1, 3, 1), (3, 3, 1), (4, 3, 2), (-1, 3, 0), (2**70 + 1, 2, 2**69 + 1)])
def test_divisions_are_rounded_up_exactly(a, b, expected):
    assert ceil_div(a, b) == expected


def test_arrays_are_divided_element_by_element():
    np.testing.assert_array_equal(ceil_div(np.arange(5), 2), [0, 1, 1, 2, 2])
