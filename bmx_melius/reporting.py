"""Output for people: logging to the screen and to a file, progress, text tables."""

import contextlib
import logging
import os
import shutil
import sys
import threading
import time
from typing import Sequence

LOG = logging.getLogger('bmx_melius')


@contextlib.contextmanager
def logging_to_screen():
    """Log messages of level INFO and above to standard output within the block."""
    with _handling(_Screen(sys.stdout), logging.INFO):
        yield


@contextlib.contextmanager
def showing_messages():
    """Show messages of level INFO and above within the block: by the logging that the program has configured, else on standard error."""
    if not LOG.hasHandlers():
        with _handling(_Screen(sys.stderr), logging.INFO):
            yield
        return
    before = LOG.level
    LOG.setLevel(min(LOG.getEffectiveLevel(), logging.INFO))
    try:
        yield
    finally:
        LOG.setLevel(before)


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
    @property
    def title(self):
        return f'the messages on standard {"error" if self.stream is sys.stderr else "output"}'


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


class ProgressLine:
    """A line on the terminal with what is done and the time left. It appears after two seconds, and disappears at the end.

    Nothing is written unless standard error is a terminal. A thread writes the line, so that it appears also within a long step; it
    holds no lock that a child process could inherit.

    Parameters
    ----------
    iterable : iterable or None
        Iteration over the line yields its items and counts them.
    total : int
    description, unit : str
        What is done, and what is counted, in plural.
    stream : file or None
        A terminal in place of standard error.

    Attributes
    ----------
    done : int
        What has been counted.
    """

    DELAY, _PAUSE = 2.0, 0.5  # seconds

    def __init__(self, iterable=None, *, total, description, unit, stream=None):
        self._iterable, self._total, self._description, self._unit = iterable, total, description, unit
        self._stream, self.done, self._begin = stream or sys.stderr, 0, time.monotonic()
        self._ended, self._thread, self._process = threading.Event(), None, os.getpid()
        if _is_terminal(self._stream):
            self._thread = threading.Thread(target=self._write_until_end, daemon=True)
            self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __iter__(self):
        with self:
            for item in self._iterable:
                yield item
                self.update()

    def update(self, count=1):
        """Count further items that are done."""
        self.done += count

    def close(self):
        """Remove the line."""
        if self._thread is not None and os.getpid() == self._process:  # a child process has no thread, and may have its lock
            self._ended.set()
            self._thread.join()
            self._thread = None

    def text(self, seconds):
        """Return the line after some seconds."""
        share = min(1.0, self.done / self._total) if self._total else 0.0
        left = f', {duration_left(seconds * (1 - share) / share)} left' if share else ''
        return f'{self._description}: {self.done:,} of {self._total:,} {self._unit} ({share:.0%}){left}'

    def _write_until_end(self):
        descriptor, pause = self._stream.fileno(), self.DELAY
        while not self._ended.wait(pause):
            width = shutil.get_terminal_size().columns
            os.write(descriptor, f'\r{self.text(time.monotonic() - self._begin)[: width - 2]} \x1b[K'.encode())
            pause = self._PAUSE
        if pause != self.DELAY:
            os.write(descriptor, b'\r\x1b[K')


def _is_terminal(stream):
    try:
        return os.isatty(stream.fileno()) and os.environ.get('TERM') != 'dumb'
    except (AttributeError, OSError, ValueError):  # without a file descriptor, as in notebooks, or closed
        return False


def duration_left(seconds):
    """Return a time as text, rounded for estimates: ``8 s``, ``3 min``, ``2.5 h``."""
    return f'{seconds:.0f} s' if seconds < 60 else f'{seconds / 60:.0f} min' if seconds < 5400 else f'{seconds / 3600:.1f} h'


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
