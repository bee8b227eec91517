"""RecordIO: the frames of a record file, and its index. Does not need MXNet.

A record is a sequence of frames: uint32 magic number, uint32 length in the lower 29 bits, data, padding to four bytes. Usually it is one
frame; a record that contains the magic number is split there, and the upper three bits number the kind of frame: 0 whole, 1 first, 2
middle, 3 last. Images follow the header of `mx.recordio.IRHeader`.
"""

import io
import mmap
import os
import pathlib
import struct
import warnings

import numpy as np

from ..errors import UserError

MAGIC = 0xCED7230A
LENGTH_BITS = 29  # lower bits of the second word of a frame; the upper 3 bits are set if the record is split into parts
FRAME = 8  # bytes before each part of a record: magic number and length
MAX_CLASSES = 1 << 20  # labels are smaller: a network has memory for each class
LABEL_HEADER = 24  # bytes of mx.recordio.IRHeader: flag, label, id, id2
_WHOLE, _FIRST_OF_SEVERAL, _LAST = 0, 1, 3  # upper bits of a frame
_OF_AN_INDEX = b'0123456789 \t\r\n'


def read_index(path):
    """Read the index of a record file.

    MXNet's reader stops at the first character that is not part of an integer: it would skip the remaining records without an error, and
    read beyond its memory if there are no others. Here such an index is an error.

    Returns
    -------
    keys, offsets : numpy.ndarray of int64
        Numbers of the records and the bytes where they begin, in the order of the file.

    Raises
    ------
    OSError
        When the file cannot be read.
    UserError
        When it is not an index, or is empty.
    """
    content, meaning = pathlib.Path(path).read_bytes(), 'is not an index of a record file (lines of number, tab, offset)'
    others = content.translate(None, _OF_AN_INDEX)
    if others:
        raise UserError(f'{path} {meaning}: it contains {others[:20]!r}')
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings('ignore', message='.*no data', category=UserWarning)  # raised as an error below
            warnings.filterwarnings('error', category=DeprecationWarning)  # NumPy converts larger integers than those of 64 bits by float
            index = np.loadtxt(io.BytesIO(content), dtype=np.int64, delimiter='\t', ndmin=2)
    except (ValueError, OverflowError) as error:
        raise UserError(f'{path} {meaning}: {error}') from error
    if index.shape[1] != 2:
        raise UserError(f'{path} holds no records: pack the images again with im2rec')
    index = index[np.argsort(index[:, 1], kind='stable')]
    return index[:, 0], index[:, 1]


def scan_offsets(path):
    """Return the bytes where the records of a file begin, a list of int; only the frames are read.

    Raises
    ------
    OSError
        When the file cannot be read.
    UserError
        When it is not a record file, or is truncated.
    """
    size, offsets, position = os.path.getsize(path), [], 0
    if not size:
        raise UserError(f'{path} holds no records: pack the images again with im2rec')
    with open(path, 'rb') as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        while position < size:
            end = end_of_record(content, position)
            if end is None:
                raise UserError(f'{path}: no complete record begins at byte {position}. Copy the file again, or pack it with im2rec')
            offsets.append(position)
            position = end
    return offsets


def end_of_record(content, position):
    """Return the byte after the record that begins at `position` of the bytes of a file; None if the record is incomplete or damaged."""
    kind = None
    while kind not in (_WHOLE, _LAST):
        begins = kind is None
        if position + FRAME > len(content):
            return None
        magic, word = struct.unpack_from('<II', content, position)
        kind = word >> LENGTH_BITS
        position += FRAME + _padded(word)
        if magic != MAGIC or kind > _LAST or (kind <= _FIRST_OF_SEVERAL) != begins or position > len(content):
            return None
    return position


def read_record(file):
    """Read the data of the record that begins at the position of a binary file, bytes. Raises `ValueError` unless it is complete."""
    parts, kind = [], None
    while kind not in (_WHOLE, _LAST):
        frame = file.read(FRAME)
        magic, word = struct.unpack('<II', frame) if len(frame) == FRAME else (0, 0)
        kind, length = word >> LENGTH_BITS, _length(word)
        is_frame = magic == MAGIC and kind <= _LAST and (kind <= _FIRST_OF_SEVERAL) != bool(parts)
        data = file.read(_padded(word)) if is_frame else b''
        if not is_frame or len(data) < length:
            raise ValueError('a frame of the record is incomplete')
        parts.append(data[:length])
    return struct.pack('<I', MAGIC).join(parts)


def without_labels(record):
    """Return the image in the data of a record, without its header and the labels after it, if there are several."""
    if len(record) < LABEL_HEADER:
        raise ValueError('the record has no label and no image')
    (labels,) = struct.unpack_from('<I', record)  # 0: one label, in the header
    return record[LABEL_HEADER + 4 * labels :]


def _length(word):
    """Return the bytes of the data of a frame, from its second word."""
    return word & (1 << LENGTH_BITS) - 1


def _padded(word):
    """Return the bytes of the data of a frame with their padding, from its second word."""
    return (_length(word) + 3) // 4 * 4
