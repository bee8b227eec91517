"""Text tables, and progress on terminals."""

import re

import pytest
from support.terminals import in_terminal

from bmx_melius.errors import counted
from bmx_melius.reporting import duration_left, table


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


COUNTS = "import time; [time.sleep(0.02) for _ in ProgressLine(range(40), total=40, description='counting', unit='sheep')]"


def test_progress_shows_what_is_done_and_the_time_left_and_removes_it_at_the_end():
    shown, done = in_terminal(COUNTS)
    assert done.returncode == 0 and done.stdout == b''
    assert re.search(r'counting: 0 of 40 sheep \(0%\) ', shown)
    assert re.search(r'counting: 2\d of 40 sheep \(\d+%\), \d+ s left', shown)
    assert shown.endswith('\r\x1b[K'), 'the line is empty'


def test_nothing_is_written_where_standard_error_is_not_a_terminal_or_within_two_seconds():
    shown, done = in_terminal(COUNTS, streams=('stdout',))
    assert shown == '' and done.stderr == b''
    shown, _ = in_terminal('ProgressLine.DELAY = 2; ' + COUNTS)
    assert shown == ''


@pytest.mark.parametrize(
    ('seconds', 'text'), [(0.4, '0 s'), (59, '59 s'), (61, '1 min'), (3000, '50 min'), (5400, '1.5 h'), (100000, '27.8 h')]
)
def test_times_are_rounded(seconds, text):
    assert duration_left(seconds) == text


@pytest.mark.parametrize(
    ('text', 'expected'),
    [
        (counted(1, 'epoch'), '1 epoch'),
        (counted(0, 'epoch'), '0 epochs'),
        (counted(1, 'class'), '1 class'),
        (counted(1000, 'class'), '1000 classes'),
        (counted(2000, 'binary layer', ','), '2,000 binary layers'),
    ],
)
def test_nouns_agree_with_their_number(text, expected):
    assert text == expected
