"""The lock on the folder of a run: two processes that train in one folder would overwrite and delete each other's files."""

import contextlib
import datetime
import fcntl
import json
import os
import socket

from ...errors import UserError
from ...reporting import LOG

FILE = 'run.lock'


@contextlib.contextmanager
def locked(folder):
    """Within the block this process is the only one that holds the lock on `folder`, which is made if it is missing.

    The lock is the system's (`flock`) on a file that says who has it, so it ends with the process, however that ends. The file is removed
    at the end of the block; what a killed process left of it locks nothing. Where the file system has no locks, that is a warning.

    Raises
    ------
    UserError
        Naming the process that holds the lock, its host and since when.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, FILE)
    with _open_locked(path) as file:
        try:
            file.truncate(0)
            json.dump({'process': os.getpid(), 'host': socket.gethostname(), 'since': _now()}, file)
            file.flush()
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _open_locked(path):
    while True:
        file = open(path, 'a+', encoding='utf-8')  # noqa: SIM115  the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
            file.close()  # the process that had it has ended and removed it meanwhile
        except BlockingIOError as error:
            with file:
                raise UserError(
                    f'{os.path.dirname(path)} is in use: {_owner(file)} trains in it; wait for it, end it, or choose another --save-dir'
                ) from error
        except OSError as error:
            LOG.warning('%s cannot be locked (%s): see to it that no other process trains there', os.path.dirname(path), error.strerror)
            return file


def _is_at(file, path):
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _owner(file):
    """Who holds the lock, in words."""
    file.seek(0)
    try:
        owner = json.load(file)
        return f'process {owner["process"]} on {owner["host"]}, since {owner["since"]},'
    except (ValueError, LookupError, TypeError):  # it has not yet written that, or a network file system has not yet passed it on
        return 'another process'


def _now():
    return datetime.datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')
