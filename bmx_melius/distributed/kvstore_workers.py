"""Workers that exchange gradients through MXNet's parameter servers."""

import ctypes
import os
import signal

import mxnet as mx
from mxnet.base import _LIB, check_call

from .heartbeats import SCHEDULER, Heartbeats
from .workers import Workers

FIRST_KEY = 1 << 20  # in a store, of sums; below are the trainer's keys, the numbers of the parameters
END = 60  # seconds in which a process whose work is over ends


class KVStoreWorkers(Workers):
    """Processes that exchange gradients through the servers of a distributed `mx.kv.KVStore`.

    Where a process of the job is missing, the context ends this one as `Heartbeats` says.

    Parameters
    ----------
    kvstore : str
        A name of `mx.kv.create`, ``dist_...``.
    how_to_resume : str
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
        # MXNet leaves the job when the store is deleted. That takes milliseconds, unless a process dies just now: then for ever.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(END)

    def make_trainer(self, parameters, optimizer, arguments):
        trainer = super().make_trainer(parameters, optimizer, arguments)
        trainer.save_states(os.devnull)  # so that it joins the store now, with all others, not when process 0 writes a checkpoint
        return trainer

    def _sum(self, array):
        key, total = FIRST_KEY + len(array), mx.nd.zeros(len(array))
        if key not in self._keys:
            self._kvstore.init(key, total)
            self._keys.add(key)
        self._kvstore.push(key, mx.nd.array(array))
        self._kvstore.pull(key, out=total)
        return total.asnumpy()
