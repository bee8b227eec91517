"""What ends every process of a distributed job when one of them is missing: the heartbeats of MXNet's parameter servers.

Each worker and server sends one to the scheduler, which answers. So the scheduler knows who is missing, and the others know whether the
scheduler is there. Without this, MXNet waits for a missing process for ever.
"""
import ctypes
import logging
import os
import threading

import mxnet as mx
from mxnet.base import _LIB, check_call

from .report import LOG

LOST = 3  # exit status of a process that ended because another one is missing
INTERVAL, TIMEOUT = 'PS_HEARTBEAT_INTERVAL', 'PS_HEARTBEAT_TIMEOUT'  # environment variables of MXNet, in whole seconds
DEFAULTS = {INTERVAL: '1', TIMEOUT: '15'}
POLLS = 3  # in a row must find a process missing: at the start the scheduler's first answer comes after one interval

# Processes by MXNet's numbers for them.
SCHEDULER = {1: 'the scheduler (it has ended or cannot be reached; if it ended the job, it says why)'}


def workers_and_servers():
    """All processes of the job but the scheduler."""
    return {first + 2 * rank: f'{role} {rank}'
            for first, role in ((9, 'worker'), (8, 'server')) for rank in range(int(os.environ[f'DMLC_NUM_{role.upper()}']))}


class Heartbeats:
    """Watches other processes of the job; when one is missing, says so and ends this process with the status `LOST`.

    A process is missing `timeout` seconds and `POLLS` intervals after its last heartbeat.

    Parameters
    ----------
    kvstore : mx.kv.KVStore
    watched : dict of int to str
        `SCHEDULER` or `workers_and_servers`.
    how_to_resume : str
        What the message ends with.
    """

    def __init__(self, kvstore, watched, how_to_resume):
        self._kvstore, self._watched, self._how_to_resume = kvstore, watched, how_to_resume
        self.timeout, self._interval = int(os.environ[TIMEOUT]), int(os.environ[INTERVAL])
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    @staticmethod
    def configure():
        """Turn heartbeats on, which MXNet does not by itself, unless the environment says how; before a store is made."""
        for name, value in DEFAULTS.items():
            os.environ.setdefault(name, value)

    def start(self):
        """Watch from now on, in a thread."""
        self._thread.start()

    def stop(self):
        """Watch no longer."""
        self._stopped.set()
        self._thread.join()

    def _watch(self):
        polls = 0
        while not self._stopped.wait(self._interval):
            missing = self._missing()
            polls = polls + 1 if missing else 0
            if polls == POLLS:
                LOG.error('the job ends, because a process is missing: %s. %s', ', '.join(missing), self._how_to_resume)
                logging.shutdown()
                os._exit(LOST)  # the main thread waits in MXNet for the missing process

    def _missing(self):
        number, missing = ctypes.c_int(), []
        for node, name in self._watched.items():
            try:
                check_call(_LIB.MXKVStoreGetNumDeadNode(
                    self._kvstore.handle, ctypes.c_int(node), ctypes.byref(number), ctypes.c_int(self.timeout)))
            except mx.MXNetError:  # a server or scheduler has not begun to run yet
                return []
            if number.value:
                missing.append(name)
        return missing
