"""Arrays as the 32-bit words of a program, and back. The format is described in `bmx_melius.deployment.program.program`."""

import zlib

import numpy as np

from ...arithmetic import ceil_div
from .operations import HALF, require

WORD = np.dtype('<i4')
BITS = np.dtype('<u4')
BOOL_KIND = 'b'  # the kind of NumPy dtype that stands for bits


def words_of(numbers):
    """Numbers, a word each."""
    return np.array(numbers, dtype=WORD)


def checksum_of(words):
    """The CRC-32 of words, as the word that it is."""
    crc = zlib.crc32(np.ascontiguousarray(words).tobytes())
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def word_count(dtype, shape):
    """How many words an array takes."""
    count = 1
    for size in shape[:-1]:
        count *= size
    if dtype.kind == BOOL_KIND:
        return count * ceil_div(shape[-1], 32)
    return ceil_div(count * shape[-1] * dtype.itemsize, 4)


def encode(array):
    """An array as words."""
    if array.dtype == bool:
        return pack_bits(array).reshape(-1).view(WORD)
    data = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(data + b'\0' * (-len(data) % 4), dtype=WORD)


def decode(words, dtype, shape, what):
    """The inverse of `encode`. Raises `ProgramError`, naming the array as `what`, where bits are set that are of no element."""
    if dtype.kind == BOOL_KIND:
        packed = words.view(BITS).reshape(*shape[:-1], -1)
        tail = shape[-1] % 32
        require(not tail or not (packed[..., -1] >> tail).any(), f'{what} has bits set beyond its last element')
        return unpack_bits(packed, shape[-1])
    count = 1
    for size in shape:
        count *= size
    elements = words.view(dtype)
    require(not elements[count:].view(np.uint16).any() if dtype == HALF else True, f'{what} is not padded with 0')
    return elements[:count].reshape(shape)


def pack_bits(bits):
    """Pack the last axis of a bool array, 32 elements a word, the first in the lowest bit: (..., n) -> (..., ceil(n/32)) uint32."""
    count = bits.shape[-1]
    words = ceil_div(count, 32)
    padded = np.zeros((*bits.shape[:-1], words * 32), dtype=bool)
    padded[..., :count] = bits
    return np.packbits(padded, axis=-1, bitorder='little').view(BITS)


def unpack_bits(words, count):
    """The inverse of `pack_bits`: (..., words) uint32 -> (..., count) bool."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=count, bitorder='little').astype(bool)
