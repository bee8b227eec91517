"""Configuration of all tests: short or full counts, fixed seeds, and MXNet's delayed errors raised where they belong.

`make test-long` sets BMX_MELIUS_TEST_LONG=1: tests marked `long` run, and hypothesis tries many more and other examples.
A test that has cheap and full separate counts uses the fixture `long_run`.

`make test` runs pytest-xdist with a worker process for each core. Any test may run in any worker, so a module's fixture may be made in
several: what takes long is made with `make_once`, whose result all workers share.
"""

import contextlib
import fcntl
import functools
import gc
import os
import random
import shutil
import signal

os.environ.setdefault('MPLBACKEND', 'Agg')  # plots go to files, no display is needed
if 'PYTEST_XDIST_WORKER' in os.environ:  # each worker keeps a core busy; more threads would wait for each other
    os.environ.setdefault('OMP_NUM_THREADS', '1')
if not os.environ.get('BMX_MELIUS_TEST_LONG'):  # in graphs of many nodes the search takes longer than all other preparation
    os.environ.setdefault('MXNET_ELIMINATE_COMMON_EXPR', '0')

import mxnet as mx
import numpy as np
import pytest
from hypothesis import settings
from support.keras_files import LARQ_FILE, meliusnet22_layers, write_keras
from support.native_program import BUILDS, INSTRUCTION_SETS, BuildError, build_program, with_emulated

from bmx_melius.deployment.runtime import engine

# A process started in the background by a shell without job control ignores Ctrl-C, and so do its children: restore the default.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest.register_assert_rewrite(
    *(f'support.{name}' for name in ('conversions', 'engines', 'packed_networks', 'scoring_runs', 'services', 'training_runs'))
)

pytest_plugins = ['support.time_limit']

LONG_RUN = bool(os.environ.get('BMX_MELIUS_TEST_LONG'))

settings.register_profile('short', deadline=None, derandomize=True, max_examples=30)
settings.register_profile('long', deadline=None, max_examples=500, print_blob=True)
settings.load_profile('long' if LONG_RUN else 'short')


COMPILING_SECONDS = 1200  # limit of tests that compile the engine, on busy cores


def pytest_collection_modifyitems(items):
    for item in items:
        if item.get_closest_marker('long') and not LONG_RUN:
            item.add_marker(pytest.mark.skip(reason='a long check: make test-long'))
        if LONG_RUN:
            item.add_marker(pytest.mark.timeout(6 * COMPILING_SECONDS))
        elif 'build_native' in getattr(item, 'fixturenames', ()):
            item.add_marker(pytest.mark.timeout(COMPILING_SECONDS))


def pytest_collection_finish():
    gc.freeze()  # collections need not search the tests and modules: each of MXNet's data loaders begins with one


@pytest.fixture(scope='session')
def long_run():
    """Whether this is a long run."""
    return LONG_RUN


@pytest.fixture(scope='session')
def shared_folder(request, tmp_path_factory):
    """Return the temporary folder that all workers of a test run share."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if hasattr(request.config, 'workerinput') else own


@contextlib.contextmanager
def locked(folder):
    """Make a folder and keep the other workers from it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with open(f'{folder}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        folder.mkdir(exist_ok=True)  # not before: another worker may be about to replace it
        yield


@pytest.fixture(scope='session')
def make_once(shared_folder):
    """Return the function (name, make) -> folder: `make(folder)` fills it in the first worker that asks for the name, and in no other."""

    def call(name, make):
        folder = shared_folder / 'made-once' / name
        complete = folder.with_name(f'{name}.complete')
        with locked(folder):
            if not complete.exists():
                shutil.rmtree(folder)  # what a failed attempt left
                folder.mkdir()
                make(folder)
                complete.touch()
        return folder

    return call


@pytest.fixture(scope='session')
def build_native(shared_folder):
    """Return the function (source, parts, name in BUILDS) -> program, as `build_program`; programs of one build share their objects.

    In a short run, sanitized programs have only the instruction sets that this machine executes or they emulate: all take long to compile.
    """
    runnable = INSTRUCTION_SETS if LONG_RUN or engine.missing() else with_emulated(engine.instruction_sets()[1])

    def call(source, parts, build, instruction_sets=None):
        if instruction_sets is None:
            instruction_sets = runnable if build == 'sanitized' else INSTRUCTION_SETS
        folder = shared_folder / 'native' / '-'.join([build, *sorted(set(INSTRUCTION_SETS) - set(instruction_sets))])
        with locked(folder):
            try:
                return build_program(folder, source, parts, BUILDS[build], instruction_sets=instruction_sets)
            except BuildError as error:
                pytest.skip(str(error))

    return call


@pytest.fixture(scope='session')
def open_engine(tmp_path_factory):
    """The function name of an instruction set -> engine: each a copy of the file, because it reads BMX_MELIUS_ISA only once."""
    folder = tmp_path_factory.mktemp('engines')

    @functools.lru_cache(maxsize=None)
    def call(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv('BMX_MELIUS_ISA', name)
            library = engine.open_library(shutil.copy(engine.ENGINE_LIBRARY, folder / f'{name}.so'))
            library.bmx_isa()
        return library

    return call


@pytest.fixture(scope='module')
def without_trial():
    """Import ONNX models without their trial in a separate process, which takes half a second; tests of sources and of models have it."""
    from bmx_melius.deployment.onnx import conversion, trial

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(conversion, 'tried', trial.computed)
        yield


@pytest.fixture(scope='session')
def meliusnet22_file(make_once):
    """Path of a file as Larq Zoo's with weights of MeliusNet22."""
    pytest.importorskip('h5py')
    return make_once('larq', lambda folder: write_keras(folder / LARQ_FILE, list(meliusnet22_layers()))) / LARQ_FILE


@pytest.fixture
def export(tmp_path):
    """Export a block that has run: path of the symbol, path of the parameters."""

    def call(net, name='net'):
        net.export(str(tmp_path / name))
        return tmp_path / f'{name}-symbol.json', tmp_path / f'{name}-0000.params'

    return call


@pytest.fixture
def run(capsys):
    """Run the command line in this process: (exit status, standard output, standard error)."""
    from bmx_melius.__main__ import main

    def call(*arguments):
        status = main([str(argument) for argument in arguments])
        return (status, *capsys.readouterr())

    return call


@pytest.fixture
def fails(run):
    """Run the command line, which must print nothing but one line of an error with all the words given."""

    def call(arguments, *words):
        status, output, errors = run(*arguments)
        lines = errors.splitlines()
        assert status == 2 and output == '' and len(lines) == 1 and lines[0].startswith('error: '), errors
        assert all(word in lines[0] for word in words), lines[0]

    return call


@pytest.fixture(autouse=True)
def _seeds_and_delayed_errors():
    """Start each test with the same random state, and wait for MXNet at its end, so that asynchronous errors are raised there."""
    random.seed(0)
    np.random.seed(0)
    mx.random.seed(0)
    yield
    mx.nd.waitall()
