"""Reader of ``.npz`` files, ZIP archives of arrays, with a limit of memory: a compressed file can announce a thousand times its size."""

import io
import zipfile
import zlib

from ..errors import UserError, last_line
from .io import read_bytes
from .npy import npy_array

MAX_BYTES = 1 << 31  # of all arrays of a file


def read_npz(path):
    """Read all arrays of a file written by `numpy.savez` or `numpy.savez_compressed`. Pickles in it are refused, not executed.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    UserError
        If the file cannot be read, is damaged, contains other objects than arrays of numbers and text, or has arrays of more than
        `MAX_BYTES`.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(path))) as archive:
            size = sum(member.file_size for member in archive.infolist())
            if size > MAX_BYTES:
                raise UserError(f'{path} holds {size} bytes; at most {MAX_BYTES} are possible')
            return {member.filename[: -len('.npy')]: npy_array(archive.read(member)) for member in archive.infolist()}
    except UserError:
        raise
    except (OSError, EOFError, ValueError, RuntimeError, NotImplementedError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f'{path} is damaged, or is not an .npz file of arrays: {last_line(error)}') from error
