"""Text tables."""

from bmx_melius.reporting import table


def test_columns_are_as_wide_as_their_widest_cell_and_aligned_as_requested():
    rows = [('a', 1234567, 'x'), ('longer', None, 'widest')]
    assert table(('name', 'count', 'of'), rows, align='<><').splitlines() == [
        'name        count  of',
        '------  ---------  ------',
        'a       1,234,567  x',
        'longer          -  widest',
    ]


def test_a_table_without_rows_has_its_headings():
    assert table(('name', 'count'), [], align='<>') == 'name  count\n----  -----'
