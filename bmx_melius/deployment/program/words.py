"""Words of a program: constants of the format, which `bmx_melius.deployment.program.program` defines, and encoding of arrays."""

import zlib
from typing import Sequence, Tuple

import numpy as np

from ...arithmetic import ceil_div
from .operation_table import OPERATIONS
from .operations import ProgramError

MAGIC = int.from_bytes(b'BMXP', 'little')
VERSION = max(row.since for row in OPERATIONS.values())  # the latest one
HEADER_WORDS = 8
INPUT_WORDS = 4
RECORD_WORDS = 3  # opcode, length, number of inputs
WORD = np.dtype('<i4')
BITS = np.dtype('<u4')
BOOL_KIND = 'b'  # the kind of the NumPy dtype for bits


def words_of(numbers: Sequence[int]) -> np.ndarray:
    """Return numbers as words, one each."""
    return np.array(numbers, dtype=WORD)


def checksum_of(words: np.ndarray) -> int:
    """Return the CRC-32 of words as a signed 32-bit word."""
    crc = zlib.crc32(np.ascontiguousarray(words))
    return crc - (1 << 32) if crc >= 1 << 31 else crc


def word_count(dtype: np.dtype, shape: Tuple[int, ...]) -> int:
    """Return the number of words of an encoded array."""
    count = 1
    for size in shape[:-1]:
        count *= size
    if dtype.kind == BOOL_KIND:
        return count * ceil_div(shape[-1], 32)
    return ceil_div(count * shape[-1] * dtype.itemsize, 4)


def encode(array: np.ndarray) -> np.ndarray:
    """Encode an array as words."""
    if array.dtype == bool:
        return pack_bits(array).reshape(-1).view(WORD)
    data = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(data + b'\0' * (-len(data) % 4), dtype=WORD)


def decode(words: np.ndarray, dtype: np.dtype, shape: Tuple[int, ...], what: object) -> np.ndarray:
    """Decode words encoded by `encode`. Raise `ProgramError`, which names the array as `what`, if bits beyond its elements are set."""
    if dtype.kind == BOOL_KIND:
        packed = words.view(BITS).reshape(*shape[:-1], -1)
        tail = shape[-1] % 32
        if tail and (packed[..., -1] >> tail).any():
            raise ProgramError(f'{what}: bits are set beyond its last element')
        return unpack_bits(packed, shape[-1])
    count = 1
    for size in shape:
        count *= size
    elements = words.view(dtype)
    if elements[count:].view(np.uint8).any():
        raise ProgramError(f'{what}: it is not padded with 0')
    return elements[:count].reshape(shape)


def pack_bits(bits: np.ndarray) -> np.ndarray:
    """Pack the last axis of a bool array, 32 elements per word, the first in the lowest bit: (..., n) -> (..., ceil(n/32)) uint32."""
    count = bits.shape[-1]
    words = ceil_div(count, 32)
    padded = np.zeros((*bits.shape[:-1], words * 32), dtype=bool)
    padded[..., :count] = bits
    return np.packbits(padded, axis=-1, bitorder='little').view(BITS)


def unpack_bits(words: np.ndarray, count: int) -> np.ndarray:
    """Unpack bits packed by `pack_bits`: (..., words) uint32 -> (..., count) bool."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    return np.unpackbits(octets, axis=-1, count=count, bitorder='little').astype(bool)
