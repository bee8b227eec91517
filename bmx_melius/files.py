"""Reading files, and writing them so that a reader sees the old content or the new one, never half of it."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile

from .errors import FileError, UserError

_CHUNK = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r'\.[a-z0-9_]{8}-.+')  # the names of `replacing` and `scratch_folder`: those of `tempfile`
_SCRATCH = '-scratch'  # the end of the latter's


def read_bytes(path):
    """The content of a file. Raises `FileError`, which names it, when it cannot be read."""
    try:
        with open(path, 'rb') as file:
            return file.read()
    except OSError as error:
        raise FileError(error.errno, error.strerror, os.fspath(path)) from error


def read_text(path):
    """The content of a file in UTF-8; bytes that are none become U+FFFD. Raises `FileError`, which names it, when it cannot be read."""
    return read_bytes(path).decode(errors='replace')


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path beside `path`; when the block ends well, it becomes `path` in one step.

    The content is flushed to the disk before the rename, so neither a killed process nor a crash leaves a torn file. When the
    block raises, the temporary file is removed and `path` is untouched.

    Parameters
    ----------
    path : str or os.PathLike
        The final name. Its folder must exist. The temporary name keeps the suffix, because many writers choose a format by it.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    try:
        handle, temporary = tempfile.mkstemp(prefix='.', suffix='-' + name, dir=folder or '.')
    except OSError as error:
        error.filename = path  # the temporary name means nothing to the user
        raise
    os.close(handle)
    try:
        yield temporary
        with open(temporary, 'rb') as written:
            os.fsync(written.fileno())
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp makes files only the owner can read
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and (error.filename == temporary or error.filename is None and error.errno in _NO_ROOM):
            error.filename = path  # Python says which file it cannot open, but not which one does not fit
        raise


def scratch_folder(folder):
    """A context that makes a folder within `folder` and removes it: for writers that choose the names of their files."""
    return tempfile.TemporaryDirectory(prefix='.', suffix=_SCRATCH, dir=folder)


def remove_leftovers(folder):
    """Delete what killed processes had begun with `replacing` and `scratch_folder` in a folder, in which nobody must be writing now."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in [os.path.join(folder, name) for name in os.listdir(folder) if _TEMPORARY.fullmatch(name)]:
            if not os.path.isdir(path):
                os.unlink(path)
            elif path.endswith(_SCRATCH):
                shutil.rmtree(path)


def require_writable(path):
    """Raise `UserError` where no file could be written to `path`: what takes minutes to make should not be lost then."""
    folder = os.path.dirname(path) or '.'
    if not os.path.isdir(folder):
        raise UserError(f'cannot write {path}: there is no folder {folder}')
    check_folder(folder)
    if os.path.isdir(path):
        raise UserError(f'{path} is a folder: give another name')


def sha256(path):
    """The SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for chunk in iter(lambda: file.read(_CHUNK), b''):
            digest.update(chunk)
    return digest.hexdigest()


def check_folder(path):
    """Make sure that files can be written to a folder, which may have to be made first, without leaving anything there.

    Returns
    -------
    int
        Bytes that are free there.

    Raises
    ------
    UserError
    """
    existing = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b'\0')
    except OSError as error:
        raise UserError(f'no files can be written to {path}: {existing}: {error.strerror}') from error
    return shutil.disk_usage(existing).free
