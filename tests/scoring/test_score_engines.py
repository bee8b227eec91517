"""Engines of `bmx-melius score`: parts in flight, workers that are killed, and clusters."""

import concurrent.futures
import concurrent.futures.process
import contextlib
import errno
import gc
import json
import os
import subprocess
import sys
import threading
import time

import pytest
from support.scoring_runs import (
    IMAGES,
    OPTIONS,
    PACKAGES,
    PART,
    PATHS,
    EndedError,
    assert_rows_are_those_of_session,
    change_network,
    copy_network,
    error_at_the_end,
    finish,
    kill_reader,
    open_when_read,
    start,
)

from bmx_melius.errors import UserError
from bmx_melius.scoring import engines
from bmx_melius.scoring.engines import ENGINES, PARTS_PER_WORKER, run_locally, run_on_dask
from bmx_melius.scoring.images import list_images
from bmx_melius.scoring.job import Job
from bmx_melius.scoring.part import Part

pytest.importorskip('pyarrow', reason='make test-scale installs what `bmx-melius score` needs')
pytest_plugins = ['support.scoring_runs']  # its fixtures


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
    assert 'worker processes were killed' in error_at_the_end(process) and not (tmp_path / 'scores' / '_SUCCESS').exists()


def test_a_network_that_changes_while_its_images_are_scored_is_refused(packed, photos, pipe, tmp_path, engine):
    image, content = pipe
    network = copy_network(packed, tmp_path / 'packed')
    process = start(network, photos, '--output', tmp_path / 'scores', '--engine', engine, '--workers', 1, '--part-size', PART)
    with open_when_read(image, process) as file:  # the part after this one is not computed before
        change_network(network)
        file.write(content)
    assert f'error: the network {network} was changed' in error_at_the_end(process)


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


def test_workers_that_are_killed_before_all_parts_are_submitted_end_the_command_with_one_line(monkeypatch):
    class Pool(concurrent.futures.Executor):
        def __init__(self, *arguments):
            pass

        def submit(self, *arguments):
            raise concurrent.futures.process.BrokenProcessPool

    monkeypatch.setattr(concurrent.futures, 'ProcessPoolExecutor', Pool)
    with pytest.raises(UserError, match='1 parts are missing, because worker processes were killed 4 times'):
        list(run_locally(None, [Part(0, ())], 1))


def test_the_number_of_parts_in_flight_is_bounded(packed, photos, tmp_path, engine, monkeypatch):
    def counted(function):
        def call(*arguments):
            submitted.append(function)
            return function(*arguments)

        return call

    submitted, max_in_flight, finished = [], 0, 0
    job = Job(list_images([str(photos)]), 1, str(tmp_path / 'scores'), prefix=str(packed), **OPTIONS)
    parts = job.parts
    if engine == 'local':
        pool = concurrent.futures.ProcessPoolExecutor
        monkeypatch.setattr(pool, 'submit', counted(pool.submit))
    else:
        parts = map(counted(lambda part: part), parts)  # which is submitted as soon as it is asked for
    with job.opened():
        for _ in ENGINES[engine](job.scoring, parts, 1):
            max_in_flight, finished = max(max_in_flight, len(submitted) - finished), finished + 1
        job.finish()
    assert finished == len(submitted) == IMAGES and max_in_flight == PARTS_PER_WORKER < IMAGES


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


@pytest.mark.parametrize(
    ('engine', 'address'), [('dask', 'tcp://127.0.0.1:1'), ('dask', 'scheduler'), ('ray', '127.0.0.1:1'), ('ray', 'head')]
)
def test_a_cluster_that_cannot_be_reached_is_refused_with_its_address(monkeypatch, engine, address):
    pytest.importorskip(PACKAGES[engine])
    monkeypatch.setattr(engines, 'CONNECT_SECONDS', 0.1)
    with pytest.raises(UserError, match=f'can be reached at {address} .*: give '):
        list(ENGINES[engine](None, [], None, address))
    gc.collect()  # Dask's client closes its loop when it is collected, and waits forever if that happens while another one is started


@pytest.mark.parametrize(
    ('error', 'kind', 'message'),
    [
        (ModuleNotFoundError("No module named 'pyarrow'", name='pyarrow'), UserError, 'a worker does not have the package pyarrow'),
        (concurrent.futures.CancelledError(), UserError, 'the connection to the Dask scheduler was lost'),
        (OSError('in <TCP (closed) ...>: Stream is closed'), UserError, 'the connection to the Dask scheduler was lost .*Stream is closed'),
        (OSError(errno.ENOSPC, 'No space left on device', 'part-000000.parquet'), OSError, 'No space left'),
    ],
)
def test_errors_of_a_cluster_are_one_line_and_those_of_the_system_in_a_worker_are_raised(monkeypatch, error, kind, message):
    distributed = pytest.importorskip('distributed')

    def fail(scoring, part):
        raise error

    monkeypatch.setattr(engines, 'score_part', fail)
    cluster = distributed.LocalCluster(n_workers=1, processes=False, dashboard_address=None)
    with cluster, pytest.raises(kind, match=message) as raised:
        list(run_on_dask(None, [Part(0, ())], None, cluster.scheduler_address))
    assert getattr(raised.value, 'errno', None) == getattr(error, 'errno', None) or kind is UserError


@pytest.fixture
def scheduler(tmp_path):
    """A Dask scheduler with one worker in processes of their own: its process and its address."""
    pytest.importorskip('distributed')
    file, environment = tmp_path / 'scheduler.json', {**os.environ, 'PYTHONPATH': PATHS}

    def begin(kind, *arguments):
        command = [sys.executable, '-m', f'distributed.cli.dask_{kind}', '--scheduler-file', str(file), '--no-dashboard', *arguments]
        return subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)

    processes = [begin('scheduler', '--port', '0'), begin('worker', '--nthreads', '1')]
    while not file.exists():
        time.sleep(0.01)
    yield processes[0], json.loads(file.read_text())['address']
    for process in processes:
        process.kill()
        process.wait()


def test_a_killed_scheduler_ends_the_command_with_one_line(packed, photos, pipe, tmp_path, scheduler):
    process, address = scheduler
    command = start(packed, photos, '--output', tmp_path / 'scores', '--engine', 'dask', '--address', address, '--part-size', PART)
    with open_when_read(pipe[0], command):
        process.kill()
        assert 'error: the connection to the Dask scheduler was lost' in error_at_the_end(command)
