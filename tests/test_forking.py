"""Children of fork(): none waits for ever for what another thread of its parent was doing at that time."""

import functools
import importlib.machinery
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback

import numpy as np
import PIL.Image
import pytest
from support.classifiers import write_classifier
from support.engines import needs_engine
from support.images import encode
from support.python_programs import run_python

import bmx_melius as bmx
from bmx_melius import forking
from bmx_melius.deployment.runtime import engine, mxnet_operator, session
from bmx_melius.files import exported, io
from bmx_melius.vision import pixels

PAUSE_SECONDS = 0.4  # in which a fork that does not wait has happened
CHILD_SECONDS = 60


class Pause:
    """Stops the thread that comes to it first."""

    def __init__(self):
        self._pid, self.begun, self.ended = os.getpid(), threading.Event(), threading.Event()

    def __call__(self):
        if os.getpid() == self._pid and not self.begun.is_set():
            self.begun.set()
            self.ended.wait(CHILD_SECONDS)

    def before(self, function):
        """Return a function that comes to this pause, and then does the same as another one."""

        def paused(*arguments, **options):
            self()
            return function(*arguments, **options)

        return paused


def child_status(use, pause):
    """Fork while another thread uses something and has come to a pause; return the status of the child, which uses it, too."""
    thread = threading.Thread(target=use)
    thread.start()
    assert pause.begun.wait(CHILD_SECONDS)
    threading.Timer(PAUSE_SECONDS, pause.ended.set).start()  # a fork may wait for the thread
    child = os.fork()
    if not child:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(CHILD_SECONDS)
        try:
            use()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    thread.join()
    return os.waitpid(child, 0)[1]


@pytest.fixture
def pause_before(monkeypatch):
    """The function (object, name of its attribute, a function) -> a `Pause` to which all callers of that function come during the test."""

    def call(place, name):
        pause = Pause()
        monkeypatch.setattr(place, name, pause.before(getattr(place, name)))
        return pause

    return call


@pytest.fixture
def pause_in_import(monkeypatch):
    """The function (name of an imported module) -> a `Pause` in its next import, which this makes the first one."""

    def call(name):
        pause = Pause()

        class Finder:
            @staticmethod
            def find_spec(wanted, path=None, target=None):
                if wanted != name:
                    return None
                spec = importlib.machinery.PathFinder.find_spec(name, path)
                spec.loader.exec_module = pause.before(spec.loader.exec_module)  # forks wait for finders anyway
                return spec

        package, _, last = name.rpartition('.')
        monkeypatch.setattr(sys.modules[package], last, importlib.import_module(name))  # to be restored
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.setattr(sys, 'meta_path', [Finder, *sys.meta_path])
        return pause

    return call


@pytest.fixture(scope='module')
def packed(tmp_path_factory):
    return write_classifier(tmp_path_factory.mktemp('classifier') / 'files')


@pytest.fixture
def unloaded(monkeypatch):
    """The engine as before its first use."""
    for name in ('_load', '_missing'):
        monkeypatch.setattr(engine, name, functools.lru_cache(maxsize=None)(getattr(engine, name).__wrapped__))


def test_a_child_opens_a_session_while_a_thread_opens_one(packed, pause_before):
    assert child_status(lambda: bmx.Session(packed, threads=1), pause_before(exported, 'read_text')) == 0


def test_a_child_classifies_while_a_thread_classifies_for_the_first_time(packed, pause_before):
    def classify():
        bmx.Session(packed, threads=1).classify(np.zeros((30, 30, 3), np.uint8))

    assert child_status(classify, pause_before(session, 'classifier_of')) == 0


@needs_engine
def test_a_child_opens_a_session_while_a_thread_loads_the_engine(packed, pause_before, unloaded):
    assert child_status(lambda: bmx.Session(packed, threads=1), pause_before(engine.ctypes, 'CDLL')) == 0


def test_a_child_uses_a_public_name_while_a_thread_imports_it(pause_in_import):
    assert child_status(lambda: bmx.convert, pause_in_import('bmx_melius.with_mxnet')) == 0


def test_a_child_decodes_an_image_while_a_thread_imports_the_readers_of_pillow(monkeypatch, pause_in_import):
    content = encode(np.zeros((8, 8, 3), np.uint8))
    PIL.Image.init()
    monkeypatch.setattr(PIL.Image, '_initialized', 0)
    assert child_status(lambda: pixels.decode(content, 'image', 3), pause_in_import('PIL.WebPImagePlugin')) == 0


def test_a_child_writes_a_file_with_the_usual_permissions_while_a_thread_reads_the_umask(tmp_path, monkeypatch):
    pause, set_umask = Pause(), os.umask

    def umask(value):
        previous = set_umask(value)
        pause()
        return previous

    monkeypatch.setattr(os, 'umask', umask)
    assert child_status(lambda: io.write_json(tmp_path / f'{os.getpid()}.json', []), pause) == 0
    monkeypatch.undo()
    usual = tmp_path / 'usual'
    usual.touch()
    assert [file.stat().st_mode for file in tmp_path.iterdir()] == [usual.stat().st_mode] * 3


@pytest.mark.parametrize(
    'write', [lambda folder: io.write_json(folder / 'file.json', []), lambda folder: io.scratch_folder(folder).cleanup()]
)
def test_a_child_writes_a_file_while_a_thread_makes_the_first_temporary_name(tmp_path, monkeypatch, pause_before, write):
    monkeypatch.setattr(tempfile, '_name_sequence', None)
    assert child_status(lambda: write(tmp_path), pause_before(tempfile, '_RandomNameSequence')) == 0


@pytest.mark.skipif(not mxnet_operator.compiled(), reason='the engine and the operator have not been compiled')
def test_functions_of_the_engine_initialize_no_static_variables_but_tables_that_are_made_when_it_is_loaded():
    for library in (engine.ENGINE_LIBRARY, engine.OPERATOR_LIBRARY):
        symbols = subprocess.run(['nm', '-C', library], check=True, stdout=subprocess.PIPE, text=True).stdout
        guarded = [line.partition('guard variable for ')[2] for line in symbols.splitlines() if ' guard variable for bmx' in line]
        assert [name for name in guarded if not name.endswith('()::kernels')] == []


def test_sessions_import_modules_only_while_forks_wait(packed, tmp_path):
    for suffix in ('.png', '.jpg', '.bmp', '.tiff', '.webp', '.ppm'):
        (tmp_path / f'image{suffix}').write_bytes(encode(np.zeros((30, 30, 3), np.uint8), suffix))
    PIL.Image.new('RGB', (30, 30)).save(tmp_path / 'image.gif')
    done = run_python(
        'import pathlib, sys\n'
        'import bmx_melius as bmx\n'
        'from bmx_melius import forking\n'
        'class Finder:\n'
        '    @staticmethod\n'
        '    def find_spec(name, path=None, target=None):\n'
        '        if not forking.importing._is_owned(): print(name)\n'
        'sys.meta_path.insert(0, Finder)\n'
        'session = bmx.Session(sys.argv[1])\n'
        'for path in sorted(pathlib.Path(sys.argv[2]).iterdir()): session.classify(path)\n'
        'sys.meta_path.remove(Finder)\n',
        packed,
        tmp_path,
    )
    assert done.stdout == ''


def test_a_lazy_attribute_is_computed_once_and_after_an_error_again():
    class Computed:
        count = 0

        @forking.lazy_attribute
        def value(self):
            """Return a number."""
            self.count += 1
            return 1 // (self.count - 1)

    computed = Computed()
    with pytest.raises(ZeroDivisionError):
        computed.value  # noqa: B018
    assert [computed.value, computed.value, computed.count] == [1, 1, 2]
    assert Computed.value.__doc__ == 'Return a number.'
