"""From the flags to the processes that train together."""

from .horovod_workers import HorovodWorkers
from .store_workers import StoreWorkers
from .workers import Workers


def join_workers(kvstore, how_to_resume):
    """Join the other processes of the job, once all are there.

    Parameters
    ----------
    kvstore : str
        The flag ``--kvstore``.
    how_to_resume : str
        What a process says when it ends because another one is missing.

    Returns
    -------
    Workers
    """
    if kvstore == 'horovod':
        return HorovodWorkers()
    return StoreWorkers(kvstore, how_to_resume) if kvstore.startswith('dist') else Workers(kvstore)
