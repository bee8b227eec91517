"""Header of .npy files, arrays of NumPy.

NumPy's own reader evaluates the header as a Python literal, which raises exceptions of many types if the file is damaged.
"""

import re
import struct
from typing import NamedTuple, Tuple

NPY_START = b'\x93NUMPY'
MAX_HEADER = 4096  # bytes before the first number; NumPy writes 128 unless there are many axes
_FIELDS = re.compile(
    rb"(?=[^\n]*'descr': *'([^'\n]*)')(?=[^\n]*'fortran_order': *(True|False))(?=[^\n]*'shape': *\(((?:\d{1,18}, *)*(?:\d{1,18})?)\))"
)


class NpyHeader(NamedTuple):
    """What the header of an .npy file says.

    Attributes
    ----------
    descr : str
        Type of the numbers, as ``numpy.dtype.str``; not checked.
    shape : tuple of int
    order : str
        Order of the numbers as in `numpy.ndarray`: 'C' or 'F'.
    begin : int
        Position of the first number in the file.
    """

    descr: str
    shape: Tuple[int, ...]
    order: str
    begin: int


def npy_header(content: bytes) -> NpyHeader:
    """Read the header of an .npy file with an array of one type of numbers; `content` is the file, or its first `MAX_HEADER` bytes.

    Raises
    ------
    ValueError
        If it is not such a header.
    """
    major, layout = content[6:7], '<H' if content[6:7] == b'\x01' else '<I'
    begin = 8 + struct.calcsize(layout)
    if not content.startswith(NPY_START) or major not in (b'\x01', b'\x02', b'\x03') or len(content) < begin:
        raise ValueError('it does not begin as an .npy file')
    end = begin + struct.unpack_from(layout, content, 8)[0]
    found = _FIELDS.match(content, begin, end) if end <= min(len(content), MAX_HEADER) else None
    if found is None:
        raise ValueError('its header is damaged, or announces no array of numbers')
    descr, by_columns, lengths = found.groups()
    shape = tuple(int(length) for length in lengths.split(b',') if length.strip())
    return NpyHeader(descr.decode('latin-1'), shape, 'F' if by_columns == b'True' else 'C', end)
