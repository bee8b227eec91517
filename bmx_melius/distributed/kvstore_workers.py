"""Workers that exchange gradients through MXNet's parameter servers."""

import ctypes
import os
import signal

import mxnet as mx
from mxnet.base import _LIB, check_call

from .heartbeats import SCHEDULER, Heartbeats
from .workers import Workers

FIRST_KEY = 1 << 20  # first key for sums in the store; the trainer uses the parameter numbers as keys
EXIT_TIMEOUT = 60  # seconds until a process that has finished its work is killed


class KVStoreWorkers(Workers):
    """Workers that exchange gradients through the servers of a distributed `mx.kv.KVStore`.

    Within the context, `Heartbeats` ends this process when another one is missing.

    Parameters
    ----------
    kvstore : str
        Argument of `mx.kv.create`, ``dist_...``.
    how_to_resume : str
        Hint at the end of the error message.
    """

    def __init__(self, kvstore, how_to_resume):
        self._heartbeats = Heartbeats(kvstore, SCHEDULER, how_to_resume)
        super().__init__(self._heartbeats.kvstore)
        self.rank, self.count = self._kvstore.rank, self._kvstore.num_workers
        self._keys = set()

    def __enter__(self):
        self._heartbeats.start()
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self._kvstore._barrier()
        else:
            check_call(_LIB.MXKVStoreSetBarrierBeforeExit(self._kvstore.handle, ctypes.c_int(0)))
        self._heartbeats.stop()
        # MXNet leaves the job when the store is deleted. That takes milliseconds, but blocks forever if another process dies meanwhile.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(EXIT_TIMEOUT)

    def make_trainer(self, parameters, optimizer, arguments):
        trainer = super().make_trainer(parameters, optimizer, arguments)
        trainer.save_states(
            os.devnull
        )  # initializes the kvstore now, in all workers; otherwise rank 0 would do it when it writes a checkpoint
        return trainer

    def _sum(self, array):
        key, total = FIRST_KEY + len(array), mx.nd.zeros(len(array))
        if key not in self._keys:
            self._kvstore.init(key, total)
            self._keys.add(key)
        self._kvstore.push(key, mx.nd.array(array))
        self._kvstore.pull(key, out=total)
        return total.asnumpy()
