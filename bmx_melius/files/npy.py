"""Reader of ``.npy`` files, arrays of NumPy: arrays of numbers and text; pickles are refused, and nothing in a file is evaluated."""

import math
import os
import re

import numpy as np

from ..errors import UserError
from ..vision.npy_header import MAX_HEADER, npy_header
from .io import read_bytes

_TYPES = re.compile(r'[<>|=]?[biufcSU][1-9]\d{0,5}')  # text of no characters would let any shape fit into a file
_ARCHIVE = b'PK'  # first bytes of a ZIP archive


def open_npy(path):
    """Open an array without reading it: what is used of it is read from the file.

    Returns
    -------
    numpy.memmap

    Raises
    ------
    UserError
        If the file cannot be read, is not an .npy file of numbers or text, or is shorter than its header announces.
    """
    start = read_bytes(path, MAX_HEADER)
    if start.startswith(_ARCHIVE):
        raise UserError(f'{path} is an archive of arrays (.npz); give one array (.npy)')
    try:
        shape, dtype, order, begin = _layout(start, os.path.getsize(path))
        return np.memmap(path, dtype, 'r', begin, shape, order)
    except ValueError as error:
        raise UserError(f'{path} cannot be read as an .npy file: {error}') from error


def npy_array(content):
    """Return a copy of the array in the content of an .npy file. Raises `ValueError` as `open_npy`."""
    shape, dtype, order, begin = _layout(content, len(content))
    return np.ndarray(shape, dtype, content, begin, order=order).copy(order='K')


def _layout(content, size):
    """Return shape, dtype, order and position of the array in a file of `size` bytes that begins with `content`."""
    descr, shape, order, begin = npy_header(content)
    try:
        dtype = np.dtype(descr) if _TYPES.fullmatch(descr) else None
    except TypeError:  # such as <f3
        dtype = None
    if dtype is None:
        raise ValueError(f'it has no numbers or text, but objects of the type {descr!r}')
    if size < begin + math.prod(shape) * dtype.itemsize:
        raise ValueError(f'it is truncated: an array {shape} of {dtype} does not fit into its {size} bytes')
    return shape, dtype, order, begin
