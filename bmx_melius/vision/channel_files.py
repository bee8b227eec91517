"""Image files with any number of channels: arrays of NumPy (``.npy``), and TIFF files, of 8 or 16 bits without a sign.

Pillow reads files with at most four channels. Of a TIFF file with others it gets the strips or tiles as of a gray image, whose rows
have the channels of a pixel side by side, and so decompresses them. tifffile would be another dependency of
every installation, and needs imagecodecs to decompress LZW and JPEG.
"""

import io
import math
import struct
import warnings
from typing import Tuple

import numpy as np

from .npy_header import npy_header
from .tiff_directory import ENTRY, byte_order, numbers_of_entries, unpacked

MAX_CHANNELS = 512  # as in OpenCV
_INTEGERS = {'|u1': np.dtype('u1'), '<u2': np.dtype('<u2'), '>u2': np.dtype('>u2')}
_NO_INTEGERS = 'its channels must be unsigned integers of 8 or 16 bits (uint8, uint16): scale them to 0 ... 255 before'
_DAMAGED = 'it is damaged'

_KINDS = {1: 'u1', 3: 'u2', 4: 'u4'}  # types of numbers in a directory: BYTE, SHORT, LONG
_WIDTH, _HEIGHT, _BITS, _COMPRESSION, _PHOTOMETRIC, _FILL_ORDER, _ORIENTATION = 256, 257, 258, 259, 262, 266, 274
_OFFSETS, _SAMPLES, _ROWS, _LENGTHS, _PLANES, _PREDICTOR = 273, 277, 278, 279, 284, 317
_TILE_WIDTH, _TILE_HEIGHT, _TILE_OFFSETS, _TILE_LENGTHS, _SAMPLE_FORMAT = 322, 323, 324, 325, 339
_COMPRESSIONS = (1, 5, 8, 32946, 32773)  # none, LZW, deflate by its two numbers, PackBits
_SEPARATE, _DIFFERENCES = 2, 2  # values of _PLANES and _PREDICTOR
_MAX_PARTS = 1 << 22  # strips or tiles


def npy_shape(content: bytes) -> Tuple[int, int, int]:
    """Return (height, width, channels) that an .npy file announces. Raises `ValueError` if it has no array with two or three axes."""
    shape = npy_header(content).shape
    if len(shape) not in (2, 3):
        raise ValueError('it must have an array with the axes height, width and channels, or height and width')
    height, width, channels = (*shape, 1)[:3]
    return height, width, channels


def npy_pixels(content: bytes, limit: int) -> np.ndarray:
    """Return the array of an .npy file.

    Parameters
    ----------
    content : bytes
        An array (height, width, channels) or (height, width) of uint8 or uint16.
    limit : int
        Largest number of values, checked before anything is allocated.

    Returns
    -------
    numpy.ndarray, (height, width, channels) uint8
        Of 16 bits the upper 8.

    Raises
    ------
    ValueError
        If the file has no such array, is truncated, or has too many values.
    """
    shape, header = npy_shape(content), npy_header(content)
    _require_size(shape, limit)
    dtype = _INTEGERS.get(header.descr)
    if dtype is None:
        raise ValueError(_NO_INTEGERS)
    if len(content) - header.begin < math.prod(shape) * dtype.itemsize:
        raise ValueError('image file is truncated')
    values = np.frombuffer(content, dtype, math.prod(shape), header.begin)
    return _upper_bits(values.reshape(shape, order=header.order))


def tiff_shape(content: bytes) -> Tuple[int, int, int]:
    """Return (height, width, channels) that a TIFF file announces for its first picture. Raises `ValueError` if it is damaged."""
    return _tiff_shape(_directory(content)[1])


def tiff_pixels(content: bytes, limit: int) -> Tuple[np.ndarray, int]:
    """Return all channels of the first picture of a TIFF file, as they are stored, and its orientation.

    Parameters
    ----------
    content : bytes
    limit : int
        Largest number of values, checked before anything is allocated.

    Returns
    -------
    pixels : numpy.ndarray, (height, width, channels) uint8
        Of 16 bits the upper 8.
    orientation : int
        As in EXIF; `pixels` are not turned.

    Raises
    ------
    ValueError, OSError
        If the file is damaged, its channels are not unsigned integers of 8 or 16 bits, or it has too many values.
    """
    order, fields = _directory(content)
    height, width, channels = _tiff_shape(fields)
    _require_size((height, width, channels), limit)
    bits = set(np.unique(fields.get(_BITS, 1)).tolist())
    if bits not in ({8}, {16}) or np.any(fields.get(_SAMPLE_FORMAT, 1) != 1) or _one(fields, _FILL_ORDER, 1) != 1:
        raise ValueError(_NO_INTEGERS)
    if _one(fields, _COMPRESSION, 1) not in _COMPRESSIONS:
        raise ValueError('its channels must be stored without compression, or compressed by LZW, deflate or PackBits')
    tiled = _TILE_OFFSETS in fields
    offsets, lengths = (fields.get(tag, ()) for tag in ((_TILE_OFFSETS, _TILE_LENGTHS) if tiled else (_OFFSETS, _LENGTHS)))
    block = _one(fields, _TILE_HEIGHT if tiled else _ROWS, height), _one(fields, _TILE_WIDTH, width) if tiled else width
    planes = channels if _one(fields, _PLANES, 1) == _SEPARATE else 1
    number = math.ceil(height / max(1, block[0])) * math.ceil(width / max(1, block[1]))
    if min(block) == 0 or not len(offsets) == len(lengths) == planes * number <= _MAX_PARTS:
        raise ValueError(_DAMAGED)
    if tiled and math.prod(block) * channels > limit:
        raise ValueError(_DAMAGED)
    offsets, lengths = offsets.tolist(), lengths.tolist()
    if sum(lengths) > len(content) or any(first + length > len(content) for first, length in zip(offsets, lengths)):
        raise ValueError('image file is truncated')
    side_by_side, compression = channels // planes, _one(fields, _COMPRESSION, 1)
    parts = [content[first : first + length] for first, length in zip(offsets, lengths)]
    pictures = [
        _gray(
            order,
            (height, width * side_by_side),
            (block[0], block[1] * side_by_side),
            tiled,
            min(bits),
            compression,
            parts[first : first + number],
        )
        for first in range(0, planes * number, number)
    ]
    values = np.stack(pictures, axis=2) if planes > 1 else pictures[0].reshape(height, width, channels)
    if _one(fields, _PREDICTOR, 1) == _DIFFERENCES:
        for left in range(0, width, block[1]):
            part = values[:, left : left + block[1]]
            values[:, left : left + block[1]] = np.cumsum(part, axis=1, dtype=part.dtype)
    return _upper_bits(values), _one(fields, _ORIENTATION, 1)


def _directory(content):
    """Return the byte order, '<' or '>', and the numbers in the first directory of a TIFF file, a dict of tags to arrays."""
    order, fields = byte_order(content), {}
    (begin,) = unpacked(f'{order}I', content, 4)
    if len(content) < 8 or begin + 2 > len(content):
        raise ValueError(_DAMAGED)
    for tag, kind, count, first in numbers_of_entries(content, order, begin):
        dtype = np.dtype(order + _KINDS[kind]) if kind in _KINDS else None
        if dtype and count and first + count * dtype.itemsize <= len(content):
            fields.setdefault(tag, np.frombuffer(content, dtype, count, first))  # no copy: a tag may have as many numbers as the file
    return order, fields


def _one(fields, tag, default):
    """Return the first number of a field, or a default."""
    return int(fields[tag][0]) if tag in fields else default


def _tiff_shape(fields):
    shape = _one(fields, _HEIGHT, 0), _one(fields, _WIDTH, 0), _one(fields, _SAMPLES, 1)
    if 0 in shape:
        raise ValueError(_DAMAGED)
    return shape


def _gray(order, shape, block, tiled, bits, compression, parts):
    """Return the pixels of a gray image whose strips or tiles have the content `parts`: a TIFF file with them, decoded by Pillow."""
    import PIL.Image

    places = (_TILE_OFFSETS, _TILE_LENGTHS) if tiled else (_OFFSETS, _LENGTHS)
    fields = {_HEIGHT: [shape[0]], _WIDTH: [shape[1]], _BITS: [bits], _COMPRESSION: [compression], _PHOTOMETRIC: [1], _SAMPLES: [1]}
    fields.update({_TILE_HEIGHT: [block[0]], _TILE_WIDTH: [block[1]]} if tiled else {_ROWS: [block[0]]})
    directory = 8 + 2 + ENTRY * (len(fields) + 2) + 4  # bytes up to the end of the directory
    lists = 8 * len(parts) if len(parts) > 1 else 0
    lengths = [len(part) for part in parts]
    offsets = [directory + lists + sum_before for sum_before in np.cumsum([0, *lengths[:-1]]).tolist()]
    fields.update({places[0]: offsets, places[1]: lengths})
    file, behind = io.BytesIO(), io.BytesIO()
    file.write(struct.pack(f'{order}2sHIH', b'II' if order == '<' else b'MM', 42, 8, len(fields)))
    for tag in sorted(fields):
        numbers = fields[tag]
        (value,) = numbers if len(numbers) == 1 else (directory + behind.tell(),)
        if len(numbers) > 1:
            behind.write(struct.pack(f'{order}{len(numbers)}I', *numbers))
        file.write(struct.pack(f'{order}HHII', tag, 4, len(numbers), value))
    file.write(bytes(4) + behind.getvalue() + b''.join(parts))
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', PIL.Image.DecompressionBombWarning)  # the size was checked, and Pillow counts channels as pixels
        with PIL.Image.open(file, formats=['TIFF']) as image:
            image.load()
            pixels = np.array(image)
    if pixels.shape != shape:
        raise ValueError(_DAMAGED)
    return pixels


def _require_size(shape, limit):
    """Raise `ValueError` unless an image has from 1 to `limit` values and at most `MAX_CHANNELS` channels."""
    height, width, channels = shape
    if not 0 < math.prod(shape) <= limit or channels > MAX_CHANNELS:
        raise ValueError(
            f'it has {width} x {height} pixels with {channels} channels; at most {limit} numbers and {MAX_CHANNELS} channels are possible'
        )


def _upper_bits(values):
    return np.ascontiguousarray(values if values.dtype == np.uint8 else (values >> 8).astype(np.uint8))
