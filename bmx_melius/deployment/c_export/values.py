"""Where the values of a program lie when it runs in C: buffers of one memory area, and pieces of them.

The channels of a real value are pieces: ranges of channels of buffers. So concatenation and slices need no code and no copies.
"""

import dataclasses
from typing import Optional, Tuple

import numpy as np

from ..program.operation_table import MAX_BYTE, MAX_INT16
from ..program.operations import Value

TYPES = {'f32': 'float', 'i32': 'int32_t', 'i16': 'int16_t', 'u8': 'uint8_t'}  # of real values: kind -> C type
SIZES = {'float': 4, 'int32_t': 4, 'int16_t': 2, 'uint8_t': 1, 'uint32_t': 4}
_INTEGERS = ('u8', 'i16', 'i32')  # each holds the numbers of the types before it
_KINDS = {type: kind for kind, type in TYPES.items()}
_MAX_INTEGER = 1 << 24  # the largest magnitude up to which float32 has all integers


@dataclasses.dataclass(eq=False)
class Buffer:
    """A block of memory.

    Attributes
    ----------
    name : str
        For comments; for `external` values the name of a parameter in C.
    type : str
        C type of its elements.
    elements : int
    external : bool
        Whether it is a parameter of the exported function, which has its own memory and is not written.
    """

    name: str
    type: str
    elements: int
    external: bool = False

    @property
    def bytes(self):
        return self.elements * SIZES[self.type]


@dataclasses.dataclass(frozen=True)
class Piece:
    """Channels of a real value.

    Attributes
    ----------
    buffer : Buffer
    first : int
        Element of the buffer with the first channel of the first pixel.
    channels : int
    stride : int
        Elements between neighbouring pixels; neighbouring channels are next to each other.
    range : tuple (int, int) or None
        The smallest and largest possible value, if all values are integers.
    """

    buffer: Buffer
    first: int
    channels: int
    stride: int
    range: Optional[Tuple[int, int]] = None

    @property
    def kind(self):
        """The type of the elements, a key of `TYPES`."""
        return _KINDS[self.buffer.type]

    def part(self, begin, end):
        """Return the piece with channels `begin` to `end` - 1 of this one."""
        return dataclasses.replace(self, first=self.first + begin, channels=end - begin)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """An input or output of the exported function.

    Attributes
    ----------
    name : str
    type : str
        C type of its elements. Inputs of bytes are pixels, inputs of integers of 32 bits ids.
    value : bmx_melius.deployment.program.operations.Value
    scale, shift : numpy.float32
        An integer n of an output stands for n scale + shift.
    """

    name: str
    type: str
    value: Value
    scale: np.float32 = np.float32(1)
    shift: np.float32 = np.float32(0)

    @property
    def elements(self):
        return self.value.channels * self.value.height * self.value.width

    @property
    def bytes(self):
        return self.elements * SIZES[self.type]


@dataclasses.dataclass(frozen=True)
class Bits:
    """A value of bits: `words` words a pixel. Each of `groups` groups of channels begins with a new word."""

    buffer: Buffer
    channels: int
    words: int
    groups: int = 1


def fits_int16(range):
    """Return whether values of a range, or None for floats, are stored as 16-bit integers."""
    return range is not None and range[0] >= -MAX_INT16 and range[1] <= MAX_INT16


def kind_of(range):
    """Return the kind in which values of a range are stored: integers of 16 or 32 bits, or floats, also if the range is None."""
    if fits_int16(range):
        return 'i16'
    return 'i32' if range is not None and range[0] >= -_MAX_INTEGER and range[1] <= _MAX_INTEGER else 'f32'


def fits_byte(range):
    """Return whether values of a range, or None for floats, can be stored as bytes."""
    return range is not None and range[0] >= 0 and range[1] <= MAX_BYTE


def common_kind(pieces):
    """Return the kind that holds the numbers of all pieces."""
    kinds = {piece.kind for piece in pieces}
    return 'f32' if 'f32' in kinds else max(kinds, key=_INTEGERS.index)


def with_range(piece, range):
    """Return a piece with another range of its values."""
    return dataclasses.replace(piece, range=range)


def total_range(ranges):
    """Return the range of values that each are of one of the ranges; None if one of these is None."""
    ranges = list(ranges)
    return None if None in ranges else (min(low for low, _ in ranges), max(high for _, high in ranges))


def slice_of(pieces, begin, end):
    """Return the pieces of channels `begin` to `end` - 1 of a value."""
    found, first = [], 0
    for piece in pieces:
        low, high = max(begin - first, 0), min(end - first, piece.channels)
        if low < high:
            found.append(piece.part(low, high))
        first += piece.channels
    return found


def aligned(left, right):
    """Return pairs of pieces of two values with the same channels."""
    borders = {0}
    for pieces in (left, right):
        position = 0
        for piece in pieces:
            position += piece.channels
            borders.add(position)
    borders = sorted(borders)
    pairs = [(slice_of(left, *span), slice_of(right, *span)) for span in zip(borders, borders[1:])]
    return [(x, y) for (x,), (y,) in pairs]
