"""The processes of a distributed job that do not train: a scheduler, and servers that sum the gradients."""

import logging
import os
import signal
import sys
import threading
import time

from mxnet.kvstore.kvstore_server import KVStoreServer

from .heartbeats import SCHEDULER, Heartbeats, workers_and_servers

GRACE = 60  # seconds that the workers have to stop well when everything is asked to end


def serve(role):
    """Be the ``scheduler`` or a ``server`` of the job that the environment describes, until it is over; return the exit status.

    MXNet would do that while it is imported, and neither notice when a process of the job is missing nor outlive a signal that the
    workers still need it for: batch systems send SIGTERM to all.
    """
    logging.basicConfig(format=f'{role}: %(message)s', level=logging.ERROR, stream=sys.stdout)
    heartbeats = Heartbeats('dist', workers_and_servers() if role == 'scheduler' else SCHEDULER, 'Start all again with --resume')
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: signals.append(number))

    # In a thread, because signals are handled between bytecodes.
    job = threading.Thread(target=KVStoreServer(heartbeats.kvstore).run, daemon=True)
    job.start()
    heartbeats.start()
    asked = None
    while job.is_alive():
        job.join(0.2)
        needed = heartbeats.has_begun()
        if signals and asked is None:
            asked = time.monotonic()
        if len(signals) > 1 or asked is not None and (time.monotonic() > asked + GRACE or not needed):
            os._exit(128 + signals[-1])
    heartbeats.stop()
    return 0
