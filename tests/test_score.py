"""`bmx-melius score`: each image has exactly one row, equal to what `Session` computes, on every engine, also after workers were killed."""

import concurrent.futures
import concurrent.futures.process
import contextlib
import errno
import json
import os
import pathlib
import select
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import PIL.Image
import pytest
from mxnet.gluon import nn
from small_networks import initialized, sequence
from test_command_line import NAMES, SPEC, write_image

import bmx_melius as bmx
from bmx_melius.__main__ import main
from bmx_melius.errors import UserError
from bmx_melius.scoring import engines
from bmx_melius.scoring import part as parts_module
from bmx_melius.scoring.engines import ENGINES, PARTS_PER_WORKER, run_locally, run_on_dask
from bmx_melius.scoring.images import list_images
from bmx_melius.scoring.job import Job
from bmx_melius.scoring.part import Part, is_complete, score_part

pytest.importorskip('pyarrow', reason='make test-scale installs what `bmx-melius score` needs')
import pyarrow.parquet  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGES = {'local': 'pyarrow', 'dask': 'distributed', 'ray': 'ray'}
IMAGES = 9
PART = 2


@pytest.fixture(scope='module')
def packed(make_once):
    def make(folder):
        net = sequence(nn.Conv2D(8, 3, 2), bmx.BinaryConv2D(16, 3, padding=1), nn.GlobalAvgPool2D(), nn.Dense(len(NAMES)))
        initialized(net, (1, *SPEC.shape)).export(str(folder / 'net'))
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
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
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
    """Return the rows of all files in the order of images; the columns without classes and probabilities are those of `Session`."""
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


def test_each_image_has_the_classes_of_session_on_every_engine(packed, photos, tmp_path, engine, monkeypatch):
    monkeypatch.setenv('RAY_ADDRESS', '127.0.0.1:1')  # of another cluster, which only --address auto uses
    arguments = [packed, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 2, '--part-size', PART, '--top', 3]
    output = json.loads(score(*arguments, '--json'))
    assert (output['images'], output['scored_now'], output['unreadable_now']) == (IMAGES, IMAGES, 0)
    assert_rows_are_those_of_session(tmp_path / 'scores', packed, photos, 3)
    assert len(list((tmp_path / 'scores').glob('*.parquet'))) == 5 and (tmp_path / 'scores' / '_SUCCESS').exists()


def test_logits_are_those_of_session_for_any_batch(packed, photos, tmp_path):
    score(packed, photos, '--output', tmp_path / 'scores', '--logits', '--batch-size', 4, '--top', 1)
    session = bmx.Session(packed)
    for row in rows(tmp_path / 'scores'):
        np.testing.assert_array_equal(np.float32(row['logits']), session(SPEC.array(row['image']))[0])


def test_an_image_that_cannot_be_decoded_has_a_row_with_the_reason(packed, photos, tmp_path):
    (photos / '4.png').write_bytes(b'no image')
    pathlib.Path(os.fsdecode(os.fsencode(photos) + b'/\xff.png')).write_bytes(b'no image, and its name is not UTF-8')
    output = score(packed, photos, '--output', tmp_path / 'scores', '--logits')
    assert output.startswith(f'{os.path.relpath(tmp_path / "scores", ROOT)}: 10 images') and '2 could not be read' in output
    bad = [row for row in rows(tmp_path / 'scores') if row['error'] is not None]
    assert [row['image'] for row in bad] == [f'{photos}/4.png', f'{photos}/\\udcff.png']
    assert '4.png cannot be decoded' in bad[0]['error'] and '\\udcff.png cannot be decoded' in bad[1]['error']
    assert {value for row in bad for name, value in row.items() if name not in ('image', 'error')} == {None}


def test_the_same_command_computes_only_what_is_missing_or_damaged(packed, photos, tmp_path):
    folder = tmp_path / 'scores'
    arguments = [packed, photos, '--output', folder, '--part-size', PART, '--workers', 1]
    score(*arguments)
    before = {path.name: (path.stat().st_mtime_ns, rows(path)) for path in folder.glob('*.parquet')}
    (folder / 'part-000001.parquet').unlink()
    (folder / 'part-000003.parquet').write_bytes(b'damaged')
    content = (folder / 'part-000000.parquet').read_bytes()
    footer = int.from_bytes(content[-8:-4], 'little')
    (folder / 'part-000000.parquet').write_bytes(content[: -8 - footer] + bytes(footer) + content[-8:])
    (folder / '.abcdefgh-part-000001.parquet').write_bytes(b'from a killed worker')
    assert json.loads(score(*arguments, '--json'))['scored_now'] == 3 * PART
    after = {path.name: (path.stat().st_mtime_ns, rows(path)) for path in folder.glob('*.parquet')}
    assert {name for name in before if before[name][0] != after[name][0]} == {f'part-00000{number}.parquet' for number in (0, 1, 3)}
    assert {name: found for name, (_, found) in before.items()} == {name: found for name, (_, found) in after.items()}
    assert not [path.name for path in folder.iterdir() if path.name.startswith('.')]
    assert json.loads(score(*arguments, '--json'))['scored_now'] == 0


@pytest.mark.parametrize('change', [('--top', 2), ('--part-size', 3), ('--logits',), ('--mean', '1,2,3'), 'image', 'network'])
def test_a_folder_with_the_rows_of_another_job_is_refused_and_unchanged(packed, photos, tmp_path, change, monkeypatch):
    folder, network = tmp_path / 'scores', tmp_path / 'packed'
    for suffix in ('-symbol.json', '-0000.params'):
        pathlib.Path(f'{network}{suffix}').write_bytes(pathlib.Path(f'{packed}{suffix}').read_bytes())
    score(network, photos, '--output', folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    if change == 'image':
        write_image(photos / 'new.png')
    elif change == 'network':
        symbol = pathlib.Path(f'{network}-symbol.json')
        symbol.write_text(symbol.read_text().replace('cat', 'cow'))
    errors = score(network, photos, '--output', folder, *([] if isinstance(change, str) else change), status=2)
    assert f'{folder} has the rows of another job' in errors and errors.count('\n') == 1
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_images_that_pillow_reads_with_a_warning_are_scored_without_a_message(packed, photos, tmp_path):
    image = PIL.Image.open(photos / '0.png').convert('RGB').quantize(16)
    image.save(photos / '0.png', transparency=bytes(range(16)))
    with pytest.warns(UserWarning, match='Palette images with Transparency'):
        SPEC.array(photos / '0.png')
    command = [sys.executable, '-m', 'bmx_melius', 'score', packed, photos, '--output', tmp_path / 'scores', '--workers', '1']
    environment = {**os.environ, 'PYTHONPATH': str(ROOT)}
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, env=environment)
    assert done.stdout.count(b'\n') == 1 and b'9 images' in done.stdout


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
        with contextlib.suppress(FileNotFoundError, PermissionError):  # processes that have ended, and those of other users
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


def test_a_killed_worker_loses_and_doubles_nothing(packed, photos, pipe, tmp_path, engine):
    image, content = pipe
    process = start(packed, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 2, '--part-size', PART, '--top', 3)
    kill_reader(image, process)
    finish(process, image, content, photos)
    assert_rows_are_those_of_session(tmp_path / 'scores', packed, photos, 3)


def test_workers_that_are_always_killed_end_the_command_with_one_line(packed, photos, pipe, tmp_path, engine):
    process = start(packed, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 1, '--part-size', IMAGES)
    with contextlib.suppress(EndedError):
        while True:
            kill_reader(pipe[0], process)
    errors = process.communicate()[1].splitlines()
    assert process.returncode == 2 and [line for line in errors if line.startswith('error: ')] == errors[-1:]
    assert 'worker processes were killed' in errors[-1] and not (tmp_path / 'scores' / '_SUCCESS').exists()


def test_a_killed_program_is_continued_and_loses_and_doubles_nothing(packed, photos, pipe, tmp_path):
    image, content = pipe
    arguments = [packed, photos, '--output', tmp_path / 'scores', '--workers', 1, '--part-size', PART, '--top', 3]
    process = start(*arguments)
    with open_when_read(image, process) as file:
        process.kill()
        wait_until_nobody_reads(file)  # the worker does not outlive the program
    process.communicate()
    assert not (tmp_path / 'scores' / '_SUCCESS').exists()
    finish(start(*arguments), image, content, photos)
    assert_rows_are_those_of_session(tmp_path / 'scores', packed, photos, 3)


def test_two_programs_do_not_write_to_one_folder(packed, photos, pipe, tmp_path):
    image, content = pipe
    process = start(packed, photos, '--output', tmp_path / 'scores')
    with open_when_read(image, process) as file:
        errors = score(packed, photos, '--output', tmp_path / 'scores', status=2)
        assert f'{tmp_path / "scores"} is in use: process {process.pid} on ' in errors
        file.write(content)
    assert process.wait() == 0
    process.communicate()


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize('send', [os.kill, os.killpg])  # to the program, or, as Ctrl-C in a terminal, also to its workers
def test_a_signal_ends_program_and_workers_in_the_midst_of_a_part_without_a_message(packed, photos, pipe, tmp_path, number, send):
    process = start(packed, photos, '--output', tmp_path / 'scores', '--workers', 2, '--part-size', PART)
    with open_when_read(pipe[0], process) as file:
        send(process.pid, number)
        wait_until_nobody_reads(file)
    assert process.communicate() == ('', '') and process.returncode == 128 + number
    assert not [path for path in (tmp_path / 'scores').iterdir() if path.name.startswith('.') or path.name in ('_lock', '_SUCCESS')]


def test_a_network_that_changes_while_its_images_are_scored_is_refused(packed, photos, pipe, tmp_path, engine):
    image, content = pipe
    network = tmp_path / 'packed'
    for suffix in ('-symbol.json', '-0000.params'):
        pathlib.Path(f'{network}{suffix}').write_bytes(pathlib.Path(f'{packed}{suffix}').read_bytes())
    process = start(network, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 1, '--part-size', PART)
    with open_when_read(image, process) as file:  # the part after this one is not computed before
        symbol = pathlib.Path(f'{network}-symbol.json')
        symbol.write_text(symbol.read_text().replace('cat', 'cow'))
        file.write(content)
    errors = process.communicate()[1].splitlines()
    assert process.returncode == 2 and [line for line in errors if line.startswith('error: ')] == errors[-1:]
    assert f'error: the network {network} was changed' in errors[-1]


@pytest.fixture
def job(packed, photos, tmp_path):
    options = {'spec': SPEC, 'class_names': NAMES, 'top': 1, 'logits': False, 'batch_size': 4}
    return Job(list_images([str(photos)]), IMAGES, str(tmp_path / 'scores'), prefix=str(packed), **options)


def test_the_mark_of_completeness_is_removed_while_rows_are_missing_and_partial_files_at_the_end(job, tmp_path):
    for _ in range(2):
        with job.opened() as missing:
            assert missing == job.parts and not (tmp_path / 'scores' / '_SUCCESS').exists()
            score_part(job.scoring, job.parts[0])
            (tmp_path / 'scores' / '.abcdefgh-part-000000.parquet').write_bytes(b'from a worker that was ended')
            job.finish()
        assert sorted(os.listdir(tmp_path / 'scores')) == ['_SUCCESS', '_job.json', job.parts[0].file_name]
        (tmp_path / 'scores' / job.parts[0].file_name).unlink()


def test_a_file_of_rows_that_cannot_be_read_is_an_error_with_its_name(job, tmp_path):
    path = tmp_path / 'scores' / job.parts[0].file_name
    path.mkdir(parents=True)
    with pytest.raises(OSError, match='Is a directory') as refused:
        is_complete(job.scoring, job.parts[0])
    assert refused.value.filename == str(path)


def test_a_batch_that_needs_too_much_memory_is_refused_with_its_first_image(job, photos, monkeypatch):
    def exhaust(scores):
        raise MemoryError

    monkeypatch.setattr(parts_module, 'softmax', exhaust)
    with pytest.raises(UserError, match=f'{photos}/0.png and the 3 images after it need too much memory: choose a smaller --batch-size'):
        score_part(job.scoring, job.parts[0])


def test_killed_workers_do_not_add_up_as_long_as_parts_are_finished(monkeypatch):
    monkeypatch.setattr(engines, '_run_in_pool', lambda scoring, parts, workers: iter([(parts[0].number, 1, 0)]))  # then one is killed
    assert len(list(run_locally(None, [Part(number, ()) for number in range(10)], 1))) == 10


def test_parts_that_are_finished_when_another_one_cannot_be_submitted_are_not_computed_again(monkeypatch):
    class Pool(concurrent.futures.Executor):
        def __init__(self, *arguments):
            pools.append([])

        def submit(self, function, scoring, part):
            if len(pools) == 1 and part.number == 2:
                raise concurrent.futures.process.BrokenProcessPool
            pools[-1].append(part.number)
            future = concurrent.futures.Future()
            future.set_result((part.number, 1, 0))
            return future

    pools = []
    monkeypatch.setattr(concurrent.futures, 'ProcessPoolExecutor', Pool)
    results = list(run_locally(None, [Part(number, ()) for number in range(4)], 1))
    assert sorted(number for number, _, _ in results) == [0, 1, 2, 3] and pools == [[0, 1, 3], [2]]


def test_the_number_of_parts_in_flight_is_bounded(packed, photos, tmp_path, engine, monkeypatch):
    def counted(function):
        def call(*arguments):
            submitted.append(function)
            return function(*arguments)

        return call

    submitted, most, finished = [], 0, 0
    options = {'spec': SPEC, 'class_names': NAMES, 'top': 1, 'logits': False, 'batch_size': 4}
    job = Job(list_images([str(photos)]), 1, str(tmp_path / 'scores'), prefix=str(packed), **options)
    parts = job.parts
    if engine == 'local':
        pool = concurrent.futures.ProcessPoolExecutor
        monkeypatch.setattr(pool, 'submit', counted(pool.submit))
    else:
        parts = map(counted(lambda part: part), parts)  # which is submitted as soon as it is asked for
    with job.opened():
        for _ in ENGINES[engine](job.scoring, parts, 1):
            most, finished = max(most, len(submitted) - finished), finished + 1
        job.finish()
    assert finished == len(submitted) == IMAGES and most == PARTS_PER_WORKER < IMAGES


ALLOWED = threading.Semaphore(0)


def score_when_allowed(scoring, part):
    ALLOWED.acquire()
    return part.number, 1, 0


def test_workers_that_join_a_cluster_get_parts(monkeypatch):
    distributed = pytest.importorskip('distributed')
    monkeypatch.setattr(engines, 'score_part', score_when_allowed)
    submitted, count = [], 5 * PARTS_PER_WORKER
    parts = (submitted.append(number) or Part(number, ()) for number in range(count))
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        results = run_on_dask(None, parts, None, cluster.scheduler_address)
        ALLOWED.release()
        next(results)
        assert len(submitted) == PARTS_PER_WORKER
        cluster.scale(3)
        cluster.wait_for_workers(3)
        ALLOWED.release()
        next(results)
        assert len(submitted) == 1 + 3 * PARTS_PER_WORKER
        for _ in range(count):
            ALLOWED.release()
        assert len(list(results)) == count - 2


def test_workers_that_are_killed_before_all_parts_are_submitted_end_the_command_with_one_line(monkeypatch):
    class Pool(concurrent.futures.Executor):
        def __init__(self, *arguments):
            pass

        def submit(self, *arguments):
            raise concurrent.futures.process.BrokenProcessPool

    monkeypatch.setattr(concurrent.futures, 'ProcessPoolExecutor', Pool)
    with pytest.raises(UserError, match='1 parts are missing, because worker processes were killed 4 times'):
        list(run_locally(None, [Part(0, ())], 1))


@pytest.mark.parametrize(
    ('engine', 'address'), [('dask', 'tcp://127.0.0.1:1'), ('dask', 'scheduler'), ('ray', '127.0.0.1:1'), ('ray', 'head')]
)
def test_a_cluster_that_cannot_be_reached_is_refused_with_its_address(monkeypatch, engine, address):
    pytest.importorskip(PACKAGES[engine])
    monkeypatch.setattr(engines, 'CONNECT_SECONDS', 0.1)
    with pytest.raises(UserError, match=f'can be reached at {address} .*: give '):
        list(ENGINES[engine](None, [], None, address))


@pytest.mark.parametrize(
    ('error', 'message'),
    [
        (ModuleNotFoundError("No module named 'pyarrow'", name='pyarrow'), 'a worker does not have the package pyarrow'),
        (concurrent.futures.CancelledError(), 'the connection to the Dask scheduler was lost'),
    ],
)
def test_errors_of_a_cluster_are_one_line(monkeypatch, error, message):
    distributed = pytest.importorskip('distributed')

    def fail(scoring, part):
        raise error

    monkeypatch.setattr(engines, 'score_part', fail)
    cluster = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None)
    with cluster, pytest.raises(UserError, match=message):
        list(run_on_dask(None, [Part(0, ())], None, cluster.scheduler_address))


@pytest.mark.parametrize(('engine', 'package'), [('local', 'pyarrow'), ('dask', 'distributed'), ('ray', 'ray')])
def test_a_missing_package_is_reported_before_the_images_are_listed(packed, tmp_path, monkeypatch, capsys, engine, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert main(['score', str(packed), str(tmp_path / 'none'), '--output', str(tmp_path / 'scores'), '--engine', engine]) == 2
    assert f'this command needs the package {package}, which is not installed: pip install' in capsys.readouterr().err
    assert not (tmp_path / 'scores').exists()


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (['--address', 'tcp://127.0.0.1:1'], '--engine local'),
        (['--address', 'tcp://127.0.0.1:1', '--engine', 'dask', '--workers', '2'], '--workers'),
    ],
)
def test_contradictions_end_with_one_line(packed, photos, tmp_path, arguments, words):
    errors = score(packed, photos, '--output', tmp_path / 'scores', *arguments, status=2)
    assert errors.startswith('error: ') and errors.count('\n') == 1 and words in errors
    assert not (tmp_path / 'scores').exists()


def test_a_folder_of_something_else_is_refused(packed, photos, tmp_path):
    errors = score(packed, photos, '--output', photos, status=2)
    assert f'{photos} has other files: give a new folder' in errors and len(list(photos.iterdir())) == IMAGES
