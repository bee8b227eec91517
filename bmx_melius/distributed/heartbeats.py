"""Heartbeats: end every process of a distributed job when one of them is missing; MXNet would wait for it forever.

Workers and servers of MXNet's parameter servers send heartbeats to the scheduler, which answers. So the scheduler can detect missing
processes, and the others can detect a missing scheduler. Heartbeats begin when all processes have joined; until then a time limit applies.
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
INTERVAL, TIMEOUT = 'PS_HEARTBEAT_INTERVAL', 'PS_HEARTBEAT_TIMEOUT'  # environment variables of MXNet, integers in seconds
JOIN_TIMEOUT = 'BMX_MELIUS_JOIN_TIMEOUT'  # in seconds: time limit for all processes to join the job
DEFAULTS = {INTERVAL: '1', TIMEOUT: '15', JOIN_TIMEOUT: '600'}
POLLS = 3  # consecutive polls that must find a process missing: the scheduler first answers one interval after the start

# Node numbers of MXNet -> names of processes.
SCHEDULER = {1: 'the scheduler (it has ended or cannot be reached; if it ended the job, its output has the reason)'}


def workers_and_servers():
    """Return the processes of the job except the scheduler, a dict of node numbers to names."""
    return {
        first + 2 * rank: f'{role} {rank}'
        for first, role in ((9, 'worker'), (8, 'server'))
        for rank in range(int(os.environ[f'DMLC_NUM_{role.upper()}']))
    }


class Heartbeats:
    """Membership in a distributed job; monitors other processes and, when one is missing, ends this process with status `LOST`.

    A process is considered missing `TIMEOUT` seconds and `POLLS` intervals after its last heartbeat, or when the job has not begun after
    `JOIN_TIMEOUT` seconds. Environment variables with these names set the times.

    Parameters
    ----------
    store : str
        Argument of `mx.kv.create`, ``dist...``. In a worker the constructor blocks until all processes of the job have joined.
    watched : dict of int to str
        The processes to monitor: `SCHEDULER` or `workers_and_servers()`.
    how_to_resume : str
        Hint at the end of the error message.

    Attributes
    ----------
    kvstore : mx.kv.KVStore

    Raises
    ------
    UserError
        When one of the environment variables is not a positive integer.
    """

    def __init__(self, store, watched, how_to_resume):
        self._watched, self._how_to_resume = watched, how_to_resume
        self._timeout, self._interval, limit = map(_seconds, (TIMEOUT, INTERVAL, JOIN_TIMEOUT))
        self._has_begun, self._stopped = False, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._joining = threading.Timer(limit, self._end, [f'not all of its processes have joined within {limit} s ({JOIN_TIMEOUT})'])
        self._joining.daemon = True
        self._joining.start()
        with _default_signal_handlers():  # Python runs its handlers only after MXNet has returned
            self.kvstore = mx.kv.create(store)

    def start(self):
        """Start monitoring in a thread."""
        self._thread.start()

    def stop(self):
        """Stop monitoring."""
        self._stopped.set()
        self._thread.join()
        self._joining.cancel()

    def has_begun(self):
        """Return whether all processes of the job have joined."""
        if not self._has_begun:  # not asked again: MXNet's answer does not change when the job is over
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
        LOG.error('the job ends because %s. %s', why, self._how_to_resume)
        logging.shutdown()
        os._exit(LOST)  # sys.exit would not work: the main thread is blocked in MXNet

    def _is_running(self):
        # In servers and the scheduler another thread runs `MXKVStoreRunServer`. Until that has initialized the job, asking MXNet for the
        # rank dereferences a null pointer, and asking for missing processes reads a table that is being written. The number of workers is
        # 0 until the pointer is set; after that, asking for the rank is an error until the table is complete.
        if not self.kvstore.num_workers:
            return False
        try:
            return self.kvstore.rank >= 0
        except mx.MXNetError:
            return False

    def _is_missing(self, node, timeout):
        """Return whether the last heartbeat of a process is more than `timeout` seconds ago."""
        if not self._is_running():  # the job has just ended
            return False
        number = ctypes.c_int()
        check_call(_LIB.MXKVStoreGetNumDeadNode(self.kvstore.handle, ctypes.c_int(node), ctypes.byref(number), ctypes.c_int(timeout)))
        return bool(number.value)


def _seconds(name):
    """Return the value of an environment variable in seconds, after setting it to its default if it is missing."""
    text = os.environ.setdefault(name, DEFAULTS[name])  # MXNet reads it from the environment, too
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f'{name} is {text!r}: give a whole number of seconds, at least 1')
    return int(text)


@contextlib.contextmanager
def _default_signal_handlers():
    """Restore the system's handling of SIGINT and SIGTERM within the block."""
    handlers = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
