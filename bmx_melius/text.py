"""Text output: tables, and file names that are not valid UTF-8."""

from typing import Sequence


def table(headings: Sequence[str], rows: Sequence[Sequence[object]], align: str) -> str:
    """Return a text table with headings.

    Parameters
    ----------
    headings : sequence of str
    rows : sequence of sequences
        Strings; integers get thousands separators, None is shown as a dash.
    align : str
        One character per column: ``<`` aligns left, ``>`` right.
    """
    cells = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    lines = ['  '.join(f'{cell:{side}{width}}' for cell, side, width in zip(line, align, widths)).rstrip() for line in cells]
    return '\n'.join([lines[0], '  '.join('-' * width for width in widths), *lines[1:]])


def _cell(value):
    if value is None:
        return '-'
    return f'{value:,}' if isinstance(value, int) else str(value)


def printable(text: str) -> str:
    """Return a text, which may contain file names, with characters that UTF-8 cannot encode replaced by escapes."""
    return text.encode(errors='backslashreplace').decode()
