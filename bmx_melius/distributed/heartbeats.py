"""What ends every process of a distributed job when one of them is missing: the heartbeats of MXNet's parameter servers.

Each worker and server sends one to the scheduler, which answers. So the scheduler knows who is missing, and the others know whether the
scheduler is there. There are none before all have come; until then a time limit does it. Without this, MXNet waits for a missing
process for ever.
"""

import contextlib
import ctypes
import logging
import os
import signal
import threading

import mxnet as mx
from mxnet.base import _LIB, check_call

from ..errors import UserError
from ..reporting import LOG

LOST = 3  # exit status of a process that ended because another one is missing
INTERVAL, TIMEOUT = 'PS_HEARTBEAT_INTERVAL', 'PS_HEARTBEAT_TIMEOUT'  # environment variables of MXNet, in whole seconds
JOIN_TIMEOUT = 'BMX_MELIUS_JOIN_TIMEOUT'  # in seconds: a job that has not begun by then has lost a process
DEFAULTS = {INTERVAL: '1', TIMEOUT: '15', JOIN_TIMEOUT: '600'}
POLLS = 3  # in a row must find a process missing: at the start the scheduler's first answer comes after one interval

# Processes by MXNet's numbers for them.
SCHEDULER = {1: 'the scheduler (it has ended or cannot be reached; if it ended the job, it says why)'}


def workers_and_servers():
    """All processes of the job but the scheduler."""
    return {
        first + 2 * rank: f'{role} {rank}'
        for first, role in ((9, 'worker'), (8, 'server'))
        for rank in range(int(os.environ[f'DMLC_NUM_{role.upper()}']))
    }


class Heartbeats:
    """Joins a job and watches other processes of it; when one is missing, says so and ends this process with the status `LOST`.

    A process is missing `TIMEOUT` seconds and `POLLS` intervals after its last heartbeat, or when the job has not begun after
    `JOIN_TIMEOUT` seconds. The environment may say these numbers.

    Parameters
    ----------
    store : str
        A name of `mx.kv.create`, ``dist...``. For a worker this returns when all processes of the job are there, for others at once.
    watched : dict of int to str
        `SCHEDULER` or `workers_and_servers`.
    how_to_resume : str
        What the message ends with.

    Attributes
    ----------
    kvstore : mx.kv.KVStore

    Raises
    ------
    UserError
        Where the environment says no number.
    """

    def __init__(self, store, watched, how_to_resume):
        self._watched, self._how_to_resume = watched, how_to_resume
        self._timeout, self._interval, limit = map(_seconds, (TIMEOUT, INTERVAL, JOIN_TIMEOUT))
        self._has_begun, self._stopped = False, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._joining = threading.Timer(limit, self._end, [f'its processes have not all come within {limit} s ({JOIN_TIMEOUT})'])
        self._joining.daemon = True
        self._joining.start()
        with _signals_that_end_at_once():  # Python's own handlers would wait for MXNet
            self.kvstore = mx.kv.create(store)

    def start(self):
        """Watch from now on, in a thread."""
        self._thread.start()

    def stop(self):
        """Watch no longer."""
        self._stopped.set()
        self._thread.join()
        self._joining.cancel()

    def has_begun(self):
        """Whether all processes of the job have come."""
        if not self._has_begun:  # not asked again: when the job is over, MXNet says what it said before
            self._has_begun = self._is_running()
        return self._has_begun

    def _watch(self):
        while not self.has_begun():
            if self._stopped.wait(self._interval):
                return
        self._joining.cancel()
        polls = 0
        while not self._stopped.wait(self._interval):
            missing = [name for node, name in self._watched.items() if self._is_missing(node, self._timeout)]
            polls = polls + 1 if missing else 0
            if polls == POLLS:
                self._end(f'a process is missing: {", ".join(missing)}')

    def _end(self, why):
        LOG.error('the job ends, because %s. %s', why, self._how_to_resume)
        logging.shutdown()
        os._exit(LOST)  # the main thread waits in MXNet for the missing process

    def _is_running(self):
        # In a server or scheduler that is not far enough in `MXKVStoreRunServer`, which another thread calls, MXNet follows a null
        # pointer when it is asked for the rank, and reads a table that is being written when it is asked for missing processes. The
        # number of workers is 0 until the pointer is there; from then on the rank is an error until the table is complete.
        if not self.kvstore.num_workers:
            return False
        try:
            return self.kvstore.rank >= 0
        except mx.MXNetError:
            return False

    def _is_missing(self, node, timeout):
        if not self._is_running():  # the job has just ended
            return False
        number = ctypes.c_int()
        check_call(_LIB.MXKVStoreGetNumDeadNode(self.kvstore.handle, ctypes.c_int(node), ctypes.byref(number), ctypes.c_int(timeout)))
        return bool(number.value)


def _seconds(name):
    text = os.environ.setdefault(name, DEFAULTS[name])  # there MXNet reads it, too
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f'{name} is {text!r}: give a whole number of seconds, at least 1')
    return int(text)


@contextlib.contextmanager
def _signals_that_end_at_once():
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
