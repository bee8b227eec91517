"""What the user sees of a program: a log, on the screen and in a file, and progress bars."""

import contextlib
import logging
import os
import sys

from tqdm import tqdm

LOG = logging.getLogger('bmx_melius')


@contextlib.contextmanager
def logging_to_screen():
    """Within the block, messages of the level INFO and above go to standard output."""
    with _handling(logging.StreamHandler(sys.stdout), logging.INFO):
        yield


def keep_screen_for_warnings():
    """From now on only warnings and errors go to the screen, until `logging_to_screen` ends."""
    for handler in LOG.handlers:
        if not isinstance(handler, logging.FileHandler):
            handler.setLevel(logging.WARNING)


@contextlib.contextmanager
def logging_to_file(path):
    """Within the block, all messages go to the end of the file `path`, with the time; and so does the error that ends the block."""
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    handler = _LogFile(path, encoding='utf-8')
    handler.setFormatter(logging.Formatter('%(asctime)s %(message)s'))
    with _handling(handler, logging.DEBUG):
        try:
            yield
        except BaseException as error:
            LOG.debug('%s: %s', type(error).__name__, error)
            raise


class _LogFile(logging.FileHandler):
    """A log that may fail, once with a message: it is no reason to end a run, and on a full disk the checkpoint will be one."""

    _failed = False

    def handleError(self, record):  # noqa: N802  logging's name
        if not self._failed:
            print(f'the log {self.baseFilename} cannot be written: {sys.exc_info()[1]}', file=sys.stderr)
        self._failed = True

    def close(self):
        with contextlib.suppress(OSError):  # as told
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
    """Return a bar of `tqdm` with the time left, over an iterable or moved by `update`; drawn only where standard error is a terminal."""
    return tqdm(iterable, total=total, desc=description, unit=f' {unit}', leave=False, disable=None, dynamic_ncols=True)
