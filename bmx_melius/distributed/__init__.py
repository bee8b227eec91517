"""The processes of a training job: workers, their gradient exchange by MXNet's kvstore or Horovod, and what ends all when one is missing.

A process joins its job with `join_workers`; servers and the scheduler of MXNet's parameter servers run `servers.serve`, and
``python -m bmx_melius.distributed.launcher`` starts all of them.
"""

from .horovod_workers import HorovodWorkers
from .kvstore_workers import KVStoreWorkers
from .workers import Workers


def join_workers(kvstore, how_to_resume):
    """Join the other processes of the job, once all are there.

    Parameters
    ----------
    kvstore : str
        Value of the flag ``--kvstore``.
    how_to_resume : str
        What a process prints when it ends because another one is missing.

    Returns
    -------
    Workers
    """
    if kvstore == 'horovod':
        return HorovodWorkers()
    return KVStoreWorkers(kvstore, how_to_resume) if kvstore.startswith('dist') else Workers(kvstore)
