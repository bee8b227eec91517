"""Plugin of pytest: the end of a process whose test hangs in C code, where the signal of pytest-timeout has no effect.

Python runs the handler of a signal between two of its own instructions, which such a test never reaches. `tests/conftest.py` loads this.
"""

import faulthandler
import os
import sys

import pytest

_STANDARD_ERROR = pytest.StashKey()


def pytest_addoption(parser):
    parser.addini('timeout_backstop', 'seconds after the limit of a test when its process is ended', default='60')


def pytest_configure(config):
    config.stash[_STANDARD_ERROR] = os.dup(sys.__stderr__.fileno())  # not yet a test's


def pytest_unconfigure(config):
    faulthandler.cancel_dump_traceback_later()
    os.close(config.stash[_STANDARD_ERROR])


def pytest_timeout_set_timer(item, settings):
    """Start a thread that needs nothing of the interpreter; pytest-timeout sets its own timer as well."""
    seconds = settings.timeout + float(item.config.getini('timeout_backstop'))
    faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_STANDARD_ERROR])


def pytest_timeout_cancel_timer():
    """Stop the thread; pytest-timeout stops its own timer as well."""
    faulthandler.cancel_dump_traceback_later()
