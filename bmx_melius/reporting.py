"""Output for people: logging to the screen and to a file, progress bars, text tables."""

import contextlib
import logging
import os
import sys
from typing import Sequence

LOG = logging.getLogger('bmx_melius')


@contextlib.contextmanager
def logging_to_screen():
    """Log messages of level INFO and above to standard output within the block."""
    with _handling(_Screen(sys.stdout), logging.INFO):
        yield


def keep_screen_for_warnings():
    """Show only warnings and errors on the screen until the block of `logging_to_screen` ends."""
    for handler in LOG.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.WARNING)


@contextlib.contextmanager
def logging_to_file(path):
    """Append all messages, with the time, to the file `path` within the block, and also the exception that ends the block."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    handler = _LogFile(path, encoding='utf-8')
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
    with _handling(handler, logging.DEBUG):
        try:
            yield
        except BaseException as error:
            LOG.debug('%s: %s', type(error).__name__, error)
            raise


class _Tolerant:
    """A handler whose write errors are reported once and do not end the run; on a full disk writing the checkpoint raises the error."""

    _failed = False

    def handleError(self, record):  # noqa: N802  logging's name
        if not self._failed:
            print(f'{self.title} cannot be written: {sys.exc_info()[1]}', file=sys.stderr)
        self._failed = True


class _Screen(_Tolerant, logging.StreamHandler):
    title = 'the messages on standard output'


class _LogFile(_Tolerant, logging.FileHandler):
    @property
    def title(self):
        return f'the log {self.baseFilename}'

    def close(self):
        with contextlib.suppress(OSError):  # `handleError` has reported it
            super().close()


@contextlib.contextmanager
def _handling(handler, level):
    handler.setLevel(level)
    LOG.addHandler(handler)
    before = LOG.level
    LOG.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        LOG.setLevel(before)
        LOG.removeHandler(handler)
        handler.close()


def progress_bar(iterable=None, *, total, description, unit):
    """Return a `tqdm` bar over an iterable, or advanced by `update`; shown only if standard error is a terminal."""
    from tqdm import tqdm  # not imported for logging and tables, because the command line imports this module for its help

    return tqdm(iterable, total=total, desc=description, unit=f' {unit}', leave=False, disable=None, dynamic_ncols=True)


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
