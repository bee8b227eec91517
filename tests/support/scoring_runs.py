"""Runs of `bmx-melius score` for tests: a network, images, and workers that wait for the test. Tests name it in `pytest_plugins`."""

import contextlib
import errno
import os
import pathlib
import select
import shutil
import signal
import subprocess
import sys
import time

import pytest
from mxnet.gluon import nn

import bmx_melius as bmx
from bmx_melius.scoring.engines import ENGINES
from bmx_melius.scoring.images import list_images
from bmx_melius.scoring.job import Job
from support.classifiers import NAMES, SPEC, classifier, write_image
from support.paths import ROOT

PATHS = os.pathsep.join([str(ROOT), str(ROOT / 'tests' / 'support' / 'pipes_as_files')])  # of programs and workers that wait for the test
PACKAGES = {'local': 'pyarrow', 'dask': 'distributed', 'ray': 'ray'}
IMAGES = 9
PART = 2
OPTIONS = {'spec': SPEC, 'class_names': NAMES, 'top': 1, 'logits': False, 'batch_size': 4}  # of a `Job`


@pytest.fixture(scope='module')
def packed(make_once):
    def make(folder):
        classifier(nn.Conv2D(8, 3, 2), bmx.BinaryConv2D(16, 3, padding=1)).export(str(folder / 'net'))
        files = f'{folder}/net-symbol.json', f'{folder}/net-0000.params'
        bmx.convert(*files, f'{folder}/packed', (1, *SPEC.shape), input_spec=SPEC, class_names=NAMES)

    return make_once('scoring-network', make) / 'packed'


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / 'photos'
    folder.mkdir()
    for seed in range(IMAGES):
        write_image(folder / f'{seed}.png', seed=seed)
    return folder


@pytest.fixture(params=list(ENGINES))
def engine(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def start(*arguments):
    command = [sys.executable, '-W', 'ignore', '-m', 'bmx_melius', 'score', *map(str, arguments)]
    environment = {**os.environ, 'PYTHONPATH': PATHS}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT, start_new_session=True
    )


def score(*arguments, status=0):
    """Run the command; return its output, or its errors if it is to fail."""
    process = start(*arguments)
    output, errors = process.communicate()
    assert process.returncode == status, output + errors
    return errors if status else output


def rows(folder):
    """Return the rows of all files in the order of images; the columns without classes and probabilities as from `Session`."""
    import pyarrow.parquet

    found = pyarrow.parquet.read_table(str(folder)).to_pylist()
    return sorted(found, key=lambda row: row['image'])


def assert_rows_are_those_of_session(folder, packed, photos, top):
    session, images = bmx.Session(packed), sorted(photos.iterdir())
    found = rows(folder)
    assert [row['image'] for row in found] == [str(image) for image in images]
    for row, image in zip(found, images):
        assert row['error'] is None
        expected = session.classify(image, top)
        assert [(row[f'name_{number}'], row[f'probability_{number}']) for number in range(1, top + 1)] == expected
        assert [NAMES[row[f'class_{number}']] for number in range(1, top + 1)] == [name for name, _ in expected]


class EndedError(Exception):
    """The program has ended without reading an image."""


def open_when_read(pipe, process):
    """Wait until a worker of a process opens a named pipe to read an image, and waits for the content. Return a file to write it."""
    while process.poll() is None:
        try:
            return open(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK), 'wb')
        except OSError as error:
            assert error.errno == errno.ENXIO  # nobody reads
        time.sleep(0.01)
    raise EndedError


def reader_of(pipe):
    """Return the number of the other process that has opened a file."""
    for number in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(FileNotFoundError, PermissionError):  # processes that have ended, or belong to other users
            links = pathlib.Path(f'/proc/{number}/fd').iterdir()
            if number != str(os.getpid()) and any(os.readlink(link) == str(pipe) for link in links):
                return int(number)
    raise AssertionError(f'no process reads {pipe}')


def kill_reader(pipe, process):
    """Wait until a worker reads an image, kill it, and wait for its end."""
    with open_when_read(pipe, process) as file:
        while True:
            with contextlib.suppress(AssertionError):  # it is still about to open the file
                os.kill(reader_of(pipe), signal.SIGKILL)
                break
        wait_until_nobody_reads(file)


def wait_until_nobody_reads(file):
    poll = select.poll()
    poll.register(file, 0)  # readiness for nothing but the error that there is no reader
    assert poll.poll(60_000)  # a worker that goes on would wait for the test forever


@pytest.fixture
def pipe(photos):
    """An image that is a named pipe, so that a worker which reads it waits for the test; and its content."""
    image = photos / '5.png'
    content = image.read_bytes()
    image.unlink()
    os.mkfifo(image)
    return image, content


def finish(process, pipe, content, photos):
    with open_when_read(pipe, process) as file:
        file.write(content)
    output, errors = process.communicate()
    assert process.returncode == 0, output + errors
    pipe.unlink()
    pipe.write_bytes(content)


@pytest.fixture
def job(packed, photos, tmp_path):
    return Job(list_images([str(photos)]), IMAGES, str(tmp_path / 'scores'), prefix=str(packed), **OPTIONS)


def copy_network(packed, prefix):
    for suffix in ('-symbol.json', '-0000.params'):
        shutil.copy(f'{packed}{suffix}', f'{prefix}{suffix}')
    return prefix


def change_network(prefix):
    """Give a class of a network another name, in its file."""
    symbol = pathlib.Path(f'{prefix}-symbol.json')
    symbol.write_text(symbol.read_text().replace('cat', 'cow'))


def error_at_the_end(process):
    """Wait for the end of a program that fails; return the last line that it printed, its only error."""
    errors = process.communicate()[1].splitlines()
    assert process.returncode == 2 and [line for line in errors if line.startswith('error: ')] == errors[-1:], errors
    assert not [line for line in errors if 'Traceback' in line]
    return errors[-1]
