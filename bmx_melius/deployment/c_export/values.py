"""Where the values of a program lie when it runs in C: buffers of one memory area, and pieces of them.

The channels of a real value are pieces: ranges of channels of buffers. So concatenation and slices need no code and no copies.
"""

import dataclasses
from typing import Optional, Tuple

from ..program.operation_table import MAX_INT16

SIZES = {'float': 4, 'int16_t': 2, 'uint32_t': 4}


@dataclasses.dataclass(eq=False)
class Buffer:
    """A block of memory.

    Attributes
    ----------
    name : str
        For comments; for `external` ones the name of a parameter in C.
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
        """The type of the elements, a key of `kernel_sources.TYPES`."""
        return 'i16' if self.buffer.type == 'int16_t' else 'f32'

    def part(self, begin, end):
        """Return the piece with channels `begin` to `end` - 1 of this one."""
        return dataclasses.replace(self, first=self.first + begin, channels=end - begin)


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
