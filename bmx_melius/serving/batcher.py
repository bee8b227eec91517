"""Dynamic batching: requests for the same network that wait at the same time run as one batch, in worker threads.

While every worker is busy, requests collect and form the next batch, so that batches grow with the load and a request on an idle service
does not wait. Results of the compiled engine do not depend on the batch, so nobody can tell from an answer what else was computed.
"""

import asyncio
import concurrent.futures
import dataclasses
import time
from typing import Any, Tuple

import numpy as np

from ..errors import UserError
from .batch_queue import BatchQueue


@dataclasses.dataclass(frozen=True)
class _Request:
    """A request that waits: its network, arrays with the same first axis, and the future of its outputs."""

    network: Any
    arrays: Tuple[np.ndarray, ...]
    future: 'asyncio.Future'

    @property
    def images(self):
        return len(self.arrays[0])


def _ignore(network, images, seconds):
    """Observe nothing."""


class Batcher:
    """Runs networks on batches. Must be used in one event loop.

    Parameters
    ----------
    max_batch : int
        Images of a batch.
    max_delay : float
        Seconds for which the first request of a batch waits for others although a worker is idle.
    workers : int
        Batches that are computed at the same time.
    observe : callable
        Called in the thread of the event loop as ``observe(network, images, seconds)`` after each run.
    """

    def __init__(self, max_batch, max_delay=0.0, workers=1, observe=_ignore):
        self._queue = BatchQueue(max_batch, max_delay)
        self._executor = concurrent.futures.ThreadPoolExecutor(workers, 'bmx-melius-run')
        self._idle, self._observe, self._timer = workers, observe, None

    async def run(self, network, arrays):
        """Run a network on arrays, possibly together with the arrays of other requests.

        Parameters
        ----------
        network : object
            Has a function ``run(*arrays)`` that returns a list of arrays. It is called in a worker thread.
        arrays : sequence of numpy.ndarray
            Inputs; the first axis is the batch, from 1 to `max_batch`.

        Returns
        -------
        list of numpy.ndarray

        Raises
        ------
        Exception
            Whatever the network raises for these arrays.

        If the call is cancelled, the request leaves the queue.
        """
        loop = asyncio.get_running_loop()
        request = _Request(network, tuple(arrays), loop.create_future())
        group = id(network), tuple(array.shape[1:] for array in arrays)
        self._queue.put(group, request, request.images, loop.time())
        self._start_runs()
        try:
            return await request.future
        finally:
            self._queue.remove(group, request)  # if the call has been cancelled

    def images_waiting(self):
        """Return the number of images that wait for a run."""
        return self._queue.images()

    def close(self):
        """End the worker threads. No request may be waiting."""
        self._executor.shutdown()

    def _start_runs(self):
        """Start a run in each idle worker for which a batch is ready, and set the timer if another one will be."""
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._idle:
            batch = self._queue.take(loop.time())
            if not batch:
                break
            batch = [request for request in batch if not request.future.done()]  # the others have just been cancelled
            if not batch:
                continue
            self._idle -= 1
            run = loop.run_in_executor(self._executor, _timed, batch)
            run.add_done_callback(lambda run, batch=batch: self._finish(batch, run))
        ready_at = self._queue.ready_at()
        if self._idle and ready_at is not None:
            self._timer = loop.call_at(ready_at, self._start_runs)

    def _finish(self, batch, run):
        """Hand out the results of a run, and start the next one."""
        self._idle += 1
        seconds, results = run.result()
        for request, (outputs, error) in zip(batch, results):
            if request.future.done():  # cancelled
                continue
            if error is None:
                request.future.set_result(outputs)
            else:
                request.future.set_exception(error)
        self._observe(batch[0].network, sum(request.images for request in batch), seconds)
        self._start_runs()


def _timed(batch):
    """Run a batch in a worker thread; return its seconds, and the outputs and the error, one of them None, of each request."""
    begin = time.perf_counter()
    results = _results(batch)
    return time.perf_counter() - begin, results


def _results(batch):
    """Return (outputs, None) or (None, error) of each request. If the whole batch fails, its requests run one by one.

    So that a request never fails because of others: together they may need more memory than there is or a run may take.
    """
    try:
        return [(outputs, None) for outputs in _outputs(batch)]
    except Exception as error:  # handed to the request, whatever it is
        if len(batch) == 1 or not isinstance(error, (UserError, MemoryError)):
            return [(None, error)] * len(batch)
        return [result for request in batch for result in _results([request])]


def _outputs(batch):
    """Run a batch and return the outputs of each request, lists of arrays."""
    network = batch[0].network
    if len(batch) == 1:
        return [network.run(*batch[0].arrays)]
    ends = np.cumsum([request.images for request in batch])[:-1]
    together = [np.concatenate(arrays) for arrays in zip(*(request.arrays for request in batch))]
    parts = [np.split(output, ends) for output in network.run(*together)]
    return [list(outputs) for outputs in zip(*parts)]
