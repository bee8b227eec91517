"""RecordIO: the frames of a record file, and its index. Does not need MXNet.

A record is a sequence of frames: uint32 magic number, uint32 length in the lower 29 bits, data, padding to four bytes. Usually it is one
frame; a record that contains the magic number is split there, and the upper three bits number the kind of frame: 0 whole, 1 first, 2
middle, 3 last. Images follow the header of `mx.recordio.IRHeader`.
"""

import array
import io
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
            warnings.filterwarnings('error', category=DeprecationWarning)  # NumPy converts integers of more than 64 bits by float
            index = np.loadtxt(io.BytesIO(content), dtype=np.int64, delimiter='\t', ndmin=2)
    except (ValueError, OverflowError) as error:
        raise UserError(f'{path} {meaning}: {error}') from error
    if index.shape[1] != 2:
        raise UserError(f'{path} holds no records: pack the images again with im2rec')
    index = index[np.argsort(index[:, 1], kind='stable')]
    return index[:, 0], index[:, 1]


def read_places(path, index_path=None):
    """Return where the records of a file lie, after a check of the whole file: each record begins where the one before it ends.

    Only the headers of records are read, 8 bytes each. All readers of record files use this function, so that a cut or damaged file is
    never read as complete. Without an index the number of records is not known: a file that was cut between two records is accepted.

    Parameters
    ----------
    path : str
        The record file.
    index_path : str, optional
        Its index, which must have each record once.

    Returns
    -------
    keys, offsets, ends : numpy.ndarray of int64
        Numbers of the records, of the index or from 0 on; the bytes where they begin, and those behind them; in the order of the file.

    Raises
    ------
    OSError
        When a file cannot be read.
    UserError
        When one is not what it should be, or when they do not belong together; the message names the file and the first place.
    """
    keys, indexed = read_index(index_path) if index_path else (None, None)
    offsets, ends = _walk(path)
    if not index_path:
        return np.arange(len(offsets)), offsets, ends
    remedy = 'Copy both files again, or pack the images again with im2rec'
    elsewhere = np.flatnonzero(np.isin(indexed, offsets, invert=True))
    if elsewhere.size:
        key, offset = keys[elsewhere[0]], indexed[elsewhere[0]]
        raise UserError(
            f'{index_path} belongs to another record file than {path}, or is damaged: its record {key} would begin at byte {offset:,}, '
            f'where none begins. {remedy}'
        )
    for values, what in ((indexed, 'offset'), (keys, 'number')):
        found, counts = np.unique(values, return_counts=True)
        if (counts > 1).any():
            raise UserError(f'{index_path} is damaged: several of its records have the {what} {found[counts > 1][0]}. {remedy}')
    if len(indexed) < len(offsets):
        missing = np.setdiff1d(offsets, indexed)
        raise UserError(
            f'{index_path} has {len(indexed):,} of the {len(offsets):,} records in {path}: it lacks that at byte {missing[0]:,}. {remedy}'
        )
    return keys, offsets, ends


def _walk(path):
    """Return the bytes where the records of a file begin and end, arrays of int64. Raises `UserError` at the first that is damaged."""
    bounds = array.array('q', [0])
    with open(path, 'rb', buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            raise UserError(f'{path} holds no records: pack the images again with im2rec')
        if hasattr(os, 'posix_fadvise'):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # no read-ahead of the images
        while bounds[-1] < size:
            end, damage = _end_of_record(file.fileno(), bounds[-1], size)
            if damage:
                raise UserError(
                    f'{path}: record {len(bounds) - 1} of the file, at byte {bounds[-1]:,}, is broken: {damage}. Copy the file again, or '
                    'pack it with im2rec'
                )
            bounds.append(end)
    places = np.array(bounds, np.int64)
    return places[:-1], places[1:]


def _end_of_record(descriptor, position, size):
    """Return the byte after the record at a position of a file, and None or what is wrong with it."""
    kind = None
    while kind not in (_WHOLE, _LAST):
        header, begins = os.pread(descriptor, FRAME, position), kind is None
        if len(header) < FRAME:
            return position, 'the file is truncated' if begins else 'its parts are incomplete or damaged'
        magic, word = struct.unpack('<II', header)
        kind = word >> LENGTH_BITS
        if magic != MAGIC and begins:
            return position, 'it does not start with the magic number of a record'
        if magic != MAGIC or kind > _LAST or (kind <= _FIRST_OF_SEVERAL) != begins:
            return position, 'its parts are incomplete or damaged'
        position += FRAME + _padded(word)
        if position > size:
            return position, f'the file is truncated, it lacks {position - size:,} bytes of this record'
    return position, None


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
