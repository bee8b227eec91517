"""Distributed training: workers that exchange gradients by MXNet's kvstore or Horovod, and detection of missing processes.

A worker joins its job with `join_workers`; the servers and the scheduler of MXNet's parameter servers run `servers.serve`;
``python -m bmx_melius.distributed.launcher`` starts all of them.
"""

from .horovod_workers import HorovodWorkers
from .kvstore_workers import KVStoreWorkers
from .workers import Workers


def join_workers(kvstore, how_to_resume):
    """Wait for all processes of the job and join it as a worker.

    Parameters
    ----------
    kvstore : str
        Value of the flag ``--kvstore``.
    how_to_resume : str
        Hint printed when this process ends because another one is missing.

    Returns
    -------
    Workers
    """
    if kvstore == 'horovod':
        return HorovodWorkers()
    return KVStoreWorkers(kvstore, how_to_resume) if kvstore.startswith('dist') else Workers(kvstore)
