"""Reader and writer of MXNet's parameter files (``PREFIX-0000.params``) that does not need MXNet.

Layout, all numbers little-endian::

    uint64 0x112, uint64 0, uint64 number of arrays
    each array    uint32 magic, int32 storage type (0: dense), int32 rank, int64 for each axis,
                  int32 device type, int32 device number, int32 data type, data
    uint64 number of names
    each name     uint64 length, bytes (UTF-8)
"""

import os
import struct

import numpy as np

from ..errors import UserError, is_printable
from .io import read_bytes, replacing

_HEADER = struct.pack('<QQ', 0x112, 0)
_ARRAY_MAGIC = 0xF993FAC9  # MXNet 1.x; the next one is written with NumPy shape semantics enabled, the format is the same
_NUMPY_ARRAY_MAGIC = 0xF993FACA
_DENSE = 0
_CPU = 1
_MAX_RANK = 32  # the limit of NumPy
_DTYPES = {0: '<f4', 1: '<f8', 2: '<f2', 3: '|u1', 4: '<i4', 5: '|i1', 6: '<i8', 7: '|b1'}
_CODES = {np.dtype(name): code for code, name in _DTYPES.items()}


def write_parameters(path, arrays):
    """Write a file that ``mx.nd.load`` reads.

    Parameters
    ----------
    path : str or os.PathLike
    arrays : dict of str to numpy.ndarray
        Keys are ``arg:NAME`` and ``aux:NAME`` as in MXNet. Each array has at least one axis and one element.
    """
    with replacing(path) as temporary, open(temporary, 'wb') as file:
        file.write(_HEADER + struct.pack('<Q', len(arrays)))
        for name, array in arrays.items():
            if array.ndim == 0 or array.size == 0:
                raise ValueError(f'{name} has the shape {array.shape}, which the format cannot represent')
            code = _CODES[array.dtype.newbyteorder('<')]
            file.write(struct.pack(f'<Iii{array.ndim}q', _ARRAY_MAGIC, _DENSE, array.ndim, *array.shape))
            file.write(struct.pack('<iii', _CPU, 0, code))
            file.write(np.ascontiguousarray(array, dtype=_DTYPES[code]).tobytes())
        file.write(struct.pack('<Q', len(arrays)))
        for name in arrays:
            encoded = name.encode()
            file.write(struct.pack('<Q', len(encoded)) + encoded)


def read_parameters(path):
    """Read a file written by ``mx.nd.save`` or `write_parameters`.

    Returns
    -------
    dict of str to numpy.ndarray

    Raises
    ------
    UserError
        If the file is missing, truncated, damaged or of a kind that exported networks do not have; the message names the file.
    """
    return _Reader(os.fspath(path), read_bytes(path)).arrays()


def is_parameter_file(path):
    """Return whether a file has the header of a parameter file. Raises `UserError` if it cannot be read."""
    return read_bytes(path, len(_HEADER)) == _HEADER


def read_arrays(path):
    """Read a file as `read_parameters` does, with the variable names of the symbol as keys: without ``arg:`` and ``aux:``."""
    return {name.partition(':')[2] if name.startswith(('arg:', 'aux:')) else name: array for name, array in read_parameters(path).items()}


def difference(stored, needed):
    """Return a description of how the arrays of a file differ from a network's.

    Parameters
    ----------
    stored, needed : dict of str to tuple of int
        Names and shapes of the arrays in the file and in the network.

    Returns
    -------
    str or None
        None if every array of the file exists in the network with the same shape.
    """
    wrong = [name for name, shape in stored.items() if needed.get(name) != shape]
    if not wrong:
        return None
    name, more = wrong[0], f' (and {len(wrong) - 1} more)' if wrong[1:] else ''
    if name not in needed:
        return f'{name}, {stored[name]} in the file, is unknown to the network{more}'
    return f'{name} is {stored[name]} in the file, but {needed[name]} in the network{more}'


def decode_array(content, source):
    """Decode one array from bytes in MXNet's format, as stored in parameter files and by ``NDArray.__getstate__``.

    Raises
    ------
    UserError
        If the bytes are not exactly one such array. The message begins with `source`, the name of their origin.
    """
    reader = _Reader(source, content)
    array = reader.array()
    reader.end()
    return array


class _Reader:
    """Sequential reader of the file content; raises `UserError` instead of reading past its end."""

    def __init__(self, path, content):
        self.path, self.content, self.position = path, content, 0

    def error(self, message):
        return UserError(f'{self.path} {message}')

    def skip(self, count):
        """Advance by `count` bytes; return the position before."""
        begin = self.position
        if not 0 <= count <= len(self.content) - begin:
            raise self.error(f'is damaged: at byte {begin} {count} more bytes are expected, but only {len(self.content) - begin} follow')
        self.position += count
        return begin

    def take(self, form):
        return struct.unpack_from(form, self.content, self.skip(struct.calcsize(form)))

    def count(self, what):
        """Read the number of items that follow, each of at least 8 bytes; `what` names them in errors."""
        (number,) = self.take('<Q')
        if number > (len(self.content) - self.position) // 8:
            raise self.error(f'is damaged: it is too short for the {number} {what} that it declares')
        return number

    def arrays(self):
        if len(self.content) < 24 or not self.content.startswith(_HEADER):
            raise self.error('is not a parameter file of MXNet, or is damaged')
        self.skip(len(_HEADER))
        arrays = [self.array() for _ in range(self.count('arrays'))]
        names = [self.name() for _ in range(self.count('names'))]
        if not names and arrays:
            raise self.error('holds arrays without names; a parameter file of an exported network is needed')
        if len(names) != len(arrays) or len(set(names)) != len(names):
            raise self.error(f'is damaged: it has {len(arrays)} arrays and {len(set(names))} different names')
        self.end()
        return dict(zip(names, arrays))

    def end(self):
        if self.position != len(self.content):
            raise self.error(f'is damaged: {len(self.content) - self.position} bytes follow its end')

    def array(self):
        place = f'the array at byte {self.position}'
        magic, storage, rank = self.take('<Iii')
        if magic not in (_ARRAY_MAGIC, _NUMPY_ARRAY_MAGIC):
            raise self.error(f'is damaged or from an old MXNet: {place} has an unknown header; load and save the file again with MXNet 1.9')
        if storage != _DENSE:
            raise self.error(f'holds a sparse array ({place}); only dense arrays can be read')
        if not 1 <= rank <= _MAX_RANK:
            raise self.error(f'is damaged: {place} has rank {rank}')
        shape = self.take(f'<{rank}q')
        _, _, code = self.take('<iii')
        if code not in _DTYPES:
            raise self.error(f'is damaged, or holds a data type that cannot be read: {place} has type {code}')
        dtype, size = np.dtype(_DTYPES[code]), 1
        for length in shape:
            if length < 1:
                raise self.error(f'is damaged: {place} has the shape {shape}')
            size *= length
        begin = self.skip(size * dtype.itemsize)
        return np.frombuffer(self.content, dtype, size, begin).reshape(shape)

    def name(self):
        (length,) = self.take('<Q')
        begin = self.skip(length)
        try:
            name = self.content[begin : self.position].decode()
        except UnicodeDecodeError as error:
            raise self.error(f'is damaged: the name at byte {begin} is not valid UTF-8') from error
        if not is_printable(name):
            raise self.error(f'is damaged: the name at byte {begin} has control characters')
        return name
