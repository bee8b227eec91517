"""Distribution of the parts of a job over processes of this machine, or over the workers of Dask or Ray.

Each function yields the results of `score_part` as parts are finished, in any order. At most `PARTS_PER_WORKER` parts for each worker are
submitted and not finished, so that queues do not grow with the number of images, and no worker waits for the next part. Workers need this
package, the packed files and the images under the same paths. A part whose worker is killed is computed again by another one, at most
`RETRIES` times; then `UserError` is raised. Local processes are killed all together when one of them is; there the limit is the limit of
losses between two parts that are finished.
"""

import concurrent.futures
import concurrent.futures.process
import contextlib
import functools
import itertools
import logging
import multiprocessing
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import signal
import socket
import threading

from ..errors import UserError
from ..reporting import LOG
from .part import score_part

RETRIES = 3
PARTS_PER_WORKER = 4
CONNECT_SECONDS = 10  # to reach the cluster of an address
_ENVIRONMENT = {  # of workers
    'OMP_NUM_THREADS': '1',
    'PYTHONWARNINGS': 'ignore',  # Pillow warns about images that it reads nevertheless, of which there may be thousands
}
_INSTALLATION = "the workers need the same version of bmx-melius, with 'bmx-melius[score]' or 'bmx-melius[ray]'"


def _in_flight(parts, workers, submit, wait):
    """Submit parts, and yield the futures of finished parts.

    Parameters
    ----------
    parts : iterable of Part
    workers : callable
        Returns the number of workers, which may change.
    submit : callable
        part -> future
    wait : callable
        set of futures -> the finished futures, at least one
    """
    parts, running = iter(parts), set()
    while True:
        room = PARTS_PER_WORKER * max(1, workers()) - len(running)
        running.update(map(submit, itertools.islice(parts, max(0, room))))
        if not running:
            return
        for future in wait(running):
            running.discard(future)
            yield future


def run_locally(scoring, parts, workers, address=None):
    """Compute parts in `workers` processes of this machine."""
    pending, losses = {part.number: part for part in parts}, 0
    while pending:
        for result in _run_in_pool(scoring, list(pending.values()), workers):
            del pending[result[0]]
            losses = 0
            yield result
        losses += bool(pending)
        if losses > RETRIES:
            raise _lost(len(pending))


def _run_in_pool(scoring, parts, workers):
    """Yield the results of parts until all are finished or a worker is killed, which ends the others."""

    def submit(part):
        try:
            with _environment(), _without_interrupts():  # it may start a process
                return pool.submit(score_part, scoring, part)
        except concurrent.futures.process.BrokenProcessPool as error:  # others may have been finished before
            future = concurrent.futures.Future()
            future.set_exception(error)
            return future

    def wait(futures):
        return concurrent.futures.wait(futures, return_when=concurrent.futures.FIRST_COMPLETED).done

    with _pool(workers) as pool:
        for future in _in_flight(parts, lambda: workers, submit, wait):
            if not isinstance(future.exception(), concurrent.futures.process.BrokenProcessPool):  # which all get that are not finished
                yield future.result()


@contextlib.contextmanager
def _pool(workers):
    """Yield a pool of worker processes. When the block raises, the workers end immediately instead of finishing their parts."""
    context = multiprocessing.get_context('spawn')
    ended, program = context.Pipe(duplex=False)
    with ended, program:
        pool = concurrent.futures.ProcessPoolExecutor(workers, context, _end_with_program, (ended,))
        try:
            yield pool
        except BaseException:
            program.close()
            raise
        finally:
            pool.shutdown()


def run_on_dask(scoring, parts, workers, address=None):
    """Compute parts on the Dask cluster whose scheduler has this address, ``tcp://HOST:PORT``, or on a new one of `workers` processes."""
    import distributed

    with contextlib.ExitStack() as stack:
        if address is None:
            stack.enter_context(_environment())
            with _without_interrupts():  # the thread that starts and replaces workers inherits this
                cluster = distributed.LocalCluster(
                    n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.CRITICAL
                )
            client = stack.enter_context(distributed.Client(stack.enter_context(cluster)))
        else:
            client = stack.enter_context(_dask_client(address))
        completed = distributed.as_completed()

        def submit(part):
            future = client.submit(score_part, scoring, part, pure=False)
            completed.add(future)
            return future

        try:
            for future in _in_flight(parts, lambda: sum(client.nthreads().values()), submit, lambda futures: [next(completed)]):
                yield future.result()
        except distributed.KilledWorker as error:
            raise _lost('some of the') from error
        except (concurrent.futures.CancelledError, OSError, distributed.TimeoutError) as error:
            if getattr(error, 'errno', None):  # of the system, in a worker: a full disk
                raise
            reason = '' if isinstance(error, concurrent.futures.CancelledError) else f' ({error})'
            raise UserError(f'the connection to the Dask scheduler was lost{reason}; the same command continues') from error
        except ModuleNotFoundError as error:
            raise _incomplete(error) from error


def _dask_client(address):
    import distributed

    logging.getLogger('distributed.client').setLevel(logging.CRITICAL)  # it would report a lost connection by tracebacks
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise UserError(f'no Dask scheduler can be reached at {address} ({error}): give tcp://HOST:PORT') from error
    if not client.scheduler_info()['workers']:
        LOG.warning('the Dask scheduler at %s has no workers: waiting for the first one (dask worker %s --nthreads 1)', address, address)
    return client


def run_on_ray(scoring, parts, workers, address=None):
    """Compute parts on the Ray cluster with this address, ``HOST:PORT`` or ``auto``, or on a new one of `workers` processes."""
    import ray

    with _same_handler(signal.SIGTERM):  # Ray's would print a stack trace
        _connect_to_ray(workers, address)
    try:
        task = ray.remote(max_retries=RETRIES, runtime_env={'env_vars': _ENVIRONMENT})(score_part)
        submit = functools.partial(task.remote, scoring)
        for finished in _in_flight(parts, _ray_workers, submit, lambda references: ray.wait(list(references))[0]):
            yield ray.get(finished)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise _lost('some of the') from error
    except ray.exceptions.RayTaskError as error:  # its message is the traceback of the worker
        if isinstance(error.cause, ModuleNotFoundError):
            raise _incomplete(error.cause) from error
        raise error.cause from error
    finally:
        ray.shutdown()


def _ray_workers():
    """Return the number of cores of all nodes, each of which computes a part."""
    import ray

    return int(ray.cluster_resources().get('CPU', 0))


def _connect_to_ray(workers, address):
    import ray

    if address is None:  # 'local': None would mean a cluster that already runs on this machine
        ray.init(address='local', num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level=logging.WARNING)
        return
    try:
        host, colon, port = address.rpartition('//')[2].rpartition(':')
        if colon:  # Ray itself would wait for minutes
            socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f'no Ray cluster can be reached at {address} ({error}): give HOST:PORT or auto') from error


ENGINES = {'local': run_locally, 'dask': run_on_dask, 'ray': run_on_ray}


def _lost(count):
    return UserError(
        f'{count} parts are missing, because worker processes were killed {RETRIES + 1} times (the system kills processes that need too '
        'much memory: choose a smaller --batch-size or fewer --workers); the same command continues'
    )


def _incomplete(error):
    return UserError(f'a worker does not have the package {error.name}: {_INSTALLATION}')


def _end_with_program(ended):
    """End this worker process when the program that started it ends or closes the other end of the connection `ended`."""

    def wait():
        multiprocessing.connection.wait([ended])
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


@contextlib.contextmanager
def _without_interrupts():
    """Start worker processes without the signal of Ctrl-C, which reaches all processes of a terminal: the program ends its workers."""
    multiprocessing.resource_tracker.ensure_running()  # otherwise the first worker would start it, which unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _same_handler(number):
    """Restore the handler of a signal after the block. Only the main thread can change it."""
    before = signal.getsignal(number)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(number, before)


@contextlib.contextmanager
def _environment():
    """Set the variables of worker processes that are started in the block."""
    before = {name: os.environ.get(name) for name in _ENVIRONMENT}
    os.environ.update(_ENVIRONMENT)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
