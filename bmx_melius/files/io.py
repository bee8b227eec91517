"""File input and output with one-line errors, and atomic writing: a reader sees the old or the new content, never a partial file."""

import contextlib
import encodings.utf_8_sig  # noqa: F401  it would be imported at the first use, see `forking`
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile

from .. import forking
from ..errors import FileError, UserError

_CHUNK = 1 << 20
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TEMPORARY = re.compile(r'\.[a-z0-9_]{8}-.+')  # names of temporary files and folders, as `tempfile` makes them
_SCRATCH = '-scratch'  # suffix of the folders of `scratch_folder`


def read_bytes(path, max_bytes=-1):
    """Return the content of a file, or its first `max_bytes` bytes. Raises `FileError`, which names the file, if it cannot be read."""
    try:
        with open(path, 'rb') as file:
            return file.read(max_bytes)
    except OSError as error:
        raise FileError(error.errno, error.strerror, os.fspath(path)) from error


def read_text(path):
    """Return the content of a UTF-8 file without a byte order mark; invalid bytes become U+FFFD.

    Raises `FileError`, which names the file, if it cannot be read.
    """
    return read_bytes(path).decode('utf-8-sig', errors='replace')


@contextlib.contextmanager
def replacing(path):
    """Yield a temporary path in the folder of `path`; at the end of the block it is renamed to `path` atomically.

    The content is flushed to the disk before the renaming, so neither a killed process nor a system crash leaves a partial file. If the
    block raises, the temporary file is removed and `path` is not changed.

    Parameters
    ----------
    path : str or os.PathLike
        The final path. Its folder must exist. The temporary path has the same suffix, because many writers choose the format by it.
    """
    path = os.fspath(path)
    folder, name = os.path.split(path)
    try:
        with forking.changing:  # `tempfile` has a lock, too
            handle, temporary = tempfile.mkstemp(prefix='.', suffix='-' + name, dir=folder or '.')
    except OSError as error:
        error.filename = path  # the user does not know the temporary name
        raise
    os.close(handle)
    try:
        yield temporary
        with open(temporary, 'rb') as written:
            os.fsync(written.fileno())
        with forking.changing:  # other threads would read 0, and children inherit it
            umask = os.umask(0)  # can only be read by setting it
            os.umask(umask)
        os.chmod(temporary, 0o666 & ~umask)  # mkstemp creates files that only the owner can read
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        if isinstance(error, OSError) and (error.filename == temporary or error.filename is None and error.errno in _NO_ROOM):
            error.filename = path  # when the disk is full, the error has no file name
        raise


def write_json(path, content):
    """Write a JSON file, which replaces an older one atomically; see `replacing`."""
    with replacing(path) as temporary, open(temporary, 'w', encoding='utf-8') as file:
        json.dump(content, file, indent=1)


def scratch_folder(folder):
    """Return a context manager of a temporary folder within `folder`, for writers that choose the names of their files."""
    with forking.changing:
        return tempfile.TemporaryDirectory(prefix='.', suffix=_SCRATCH, dir=folder)


def remove_leftovers(folder):
    """Delete temporary files that killed processes left in a folder (`replacing`, `scratch_folder`). Nobody may be writing there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in [os.path.join(folder, name) for name in os.listdir(folder) if _TEMPORARY.fullmatch(name)]:
            if not os.path.isdir(path):
                os.unlink(path)
            elif path.endswith(_SCRATCH):
                shutil.rmtree(path)


def require_suffix(path, suffixes):
    """Raise `UserError` unless the name of a file ends with one of the suffixes, which name the formats that can be written."""
    if os.path.splitext(path)[1] not in suffixes:
        raise UserError(f'cannot write {path}: its name must end with one of {", ".join(suffixes)}')


def require_writable(path):
    """Raise `UserError` if no file can be written to `path`. Called before long computations, so that their result is not lost."""
    folder = os.path.dirname(path) or '.'
    if not os.path.isdir(folder):
        raise UserError(f'cannot write {path}: there is no folder {folder}')
    check_folder(folder)
    if os.path.isdir(path):
        raise UserError(f'{path} is a folder: give another name')


def sha256(path):
    """Return the SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, 'rb') as file:
        for chunk in iter(lambda: file.read(_CHUNK), b''):
            digest.update(chunk)
    return digest.hexdigest()


def check_folder(path):
    """Check that files can be written to a folder, or to its nearest existing parent. Nothing is left there.

    Returns
    -------
    int
        Free disk space in bytes.

    Raises
    ------
    UserError
        If no file can be written.
    """
    existing = os.path.abspath(path)
    while not os.path.lexists(existing):
        existing = os.path.dirname(existing)
    try:
        with forking.changing, tempfile.TemporaryFile(dir=existing) as file:
            file.write(b'\0')
    except OSError as error:
        raise UserError(f'no files can be written to {path}: {existing}: {error.strerror}') from error
    return shutil.disk_usage(existing).free
