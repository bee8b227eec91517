"""Scheduler and servers of a distributed job: the processes that do not train; servers sum the gradients."""

import logging
import os
import signal
import sys
import threading
import time

from mxnet.kvstore.kvstore_server import KVStoreServer

from ..reporting import LOG
from .heartbeats import SCHEDULER, Heartbeats, workers_and_servers

GRACE = 60  # seconds that workers have after a signal to write a checkpoint


class Server(KVStoreServer):
    """Server of MXNet that only sums: it executes no commands.

    MXNet's server unpickles optimizers that are sent to its port, so that whoever reaches the port could execute code. Workers of this
    project update parameters themselves and send none.
    """

    def _controller(self):
        def refuse(command, content, _):
            LOG.error('refused a command (%d, %d bytes): a process that is not of this job has sent it', command, len(content or b''))

        return refuse


def serve(role):
    """Run as ``scheduler`` or ``server`` of the job described by the environment until it is over; return the exit status.

    MXNet does this during its import by default, but without detecting missing processes, and it ends at the first signal, although
    workers need it to write a last checkpoint: batch systems send SIGTERM to all processes.
    """
    logging.basicConfig(format=f'{role}: %(message)s', level=logging.ERROR, stream=sys.stdout)
    heartbeats = Heartbeats('dist', workers_and_servers() if role == 'scheduler' else SCHEDULER, 'Start all processes again with --resume')
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))

    # In a thread: Python handles signals in the main thread only, between bytecodes.
    job = threading.Thread(target=Server(heartbeats.kvstore).run, daemon=True)
    job.start()
    heartbeats.start()
    first_signal = None
    while job.is_alive():
        job.join(0.2)
        needed = heartbeats.has_begun()
        if signals and first_signal is None:
            first_signal = time.monotonic()
        if len(signals) > 1 or first_signal is not None and (time.monotonic() > first_signal + GRACE or not needed):
            os._exit(128 + signals[-1])
    heartbeats.stop()
    return 0
