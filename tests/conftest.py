"""Configuration of all tests: short or long runs, fixed seeds, and MXNet's asynchronous errors raised in the test that causes them.

`make test-long` sets BMX_MELIUS_TEST_LONG=1: tests marked `long` are run, and hypothesis tries more and other examples. Tests with a
short and a long form use the fixture `long_run`.
"""

import os
import random
import signal

os.environ.setdefault('MPLBACKEND', 'Agg')  # plots are written to files; no display is needed

import mxnet as mx
import numpy as np
import pytest
from hypothesis import settings
from native_program import BuildError, build_program

# A process started in the background by a shell without job control ignores Ctrl-C, and so do its children: restore the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

LONG_RUN = bool(os.environ.get('BMX_MELIUS_TEST_LONG'))

settings.register_profile('short', deadline=None, derandomize=True, max_examples=30)
settings.register_profile('long', deadline=None, max_examples=500, print_blob=True)
settings.load_profile('long' if LONG_RUN else 'short')


def pytest_collection_modifyitems(items):
    if not LONG_RUN:
        for item in items:
            if item.get_closest_marker('long'):
                item.add_marker(pytest.mark.skip(reason='a long check: make test-long'))


@pytest.fixture(scope='session')
def long_run():
    """Whether this is a long run."""
    return LONG_RUN


@pytest.fixture(scope='session')
def sanitized_engine(tmp_path_factory):
    """Function that builds a C++ program with the whole engine and the sanitizers: path of the source -> path of the program."""
    folder, flags = tmp_path_factory.mktemp('sanitized'), ['-O1', '-g1', '-fsanitize=address,undefined', '-fno-sanitize-recover=all']

    def build(source):
        try:
            return build_program(folder, source, None, flags)
        except BuildError as error:
            pytest.skip(str(error))

    return build


@pytest.fixture(autouse=True)
def _seeds_and_delayed_errors():
    """Start each test with the same random state, and wait for MXNet at its end, so that asynchronous errors are raised there."""
    random.seed(0)
    np.random.seed(0)
    mx.random.seed(0)
    yield
    mx.nd.waitall()
