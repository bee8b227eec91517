"""Lock on an output folder: two processes writing to one folder would overwrite and delete each other's files."""

import contextlib
import datetime
import fcntl
import json
import os
import socket

from ..errors import UserError
from ..reporting import LOG

FILE = 'run.lock'


@contextlib.contextmanager
def locked(folder, name=FILE):
    """Hold an exclusive lock on `folder` within the block; the folder is created if it does not exist.

    The lock is an `flock` on a file that names its owner, so the system releases it when the process ends for any reason. The file is
    removed at the end of the block; a file left by a killed process does not lock the folder. If the file system does not support locks, a
    warning is logged.

    Parameters
    ----------
    folder : str
    name : str
        Name of the lock file in the folder.

    Raises
    ------
    UserError
        When another process holds the lock; the message names the process, its host and the time.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name)
    with _open_locked(path) as file:
        now = datetime.datetime.now().astimezone().isoformat(sep=' ', timespec='seconds')
        try:
            file.truncate(0)
            json.dump({'process': os.getpid(), 'host': socket.gethostname(), 'since': now}, file)
            file.flush()
            yield
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)


def _open_locked(path):
    """Open and lock the lock file; return it."""
    while True:
        file = open(path, 'a+', encoding='utf-8')  # noqa: SIM115  the caller closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                return file
            file.close()  # the previous owner has removed the file meanwhile
        except BlockingIOError as error:
            with file:
                raise UserError(
                    f'{os.path.dirname(path)} is in use: {_owner(file)} writes to it; wait for it, end it, or choose another folder'
                ) from error
        except OSError as error:
            LOG.warning('%s cannot be locked (%s): make sure that no other process writes to it', os.path.dirname(path), error.strerror)
            return file


def _is_at(file, path):
    """Return whether an open file is still the one at `path`."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    return False


def _owner(file):
    """Return a description of the process that holds the lock."""
    file.seek(0)
    try:
        owner = json.load(file)
        return f'process {owner["process"]} on {owner["host"]}, since {owner["since"]},'
    except (ValueError, LookupError, TypeError):  # not yet written, or not yet visible on a network file system
        return 'another process'
