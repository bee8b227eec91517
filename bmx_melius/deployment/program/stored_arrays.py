"""Arrays of a program that are stored once and used by several operations. See `bmx_melius.deployment.program.program` for the format."""

import dataclasses
import hashlib
from typing import Dict, List, Optional, Tuple

import numpy as np

from .limits import REPEATED_PER_STORED, REPEATED_WORDS
from .operations import Operation, ProgramError
from .words import BOOL_KIND, decode, encode, word_count

_Layout = Tuple[str, int, int]


def _layout(dtype: np.dtype, shape: Tuple[int, ...]) -> _Layout:
    """Return what equal arrays have in common: dtype, number of elements, and the last axis of bit arrays, whose rows are padded."""
    return dtype.str, int(np.prod(shape, dtype=np.int64)), shape[-1] if dtype.kind == BOOL_KIND else 0


def repeated_by_planes(operation: Operation, words: int) -> int:
    """Return how many words an array of an operation has in addition to its `words` stored words, which are used for several planes."""
    return (operation.attributes.get('planes', 1) - 1) * words


class _Words:
    """The words of arrays that are stored, and of arrays and planes that use them again, so far."""

    def __init__(self) -> None:
        self.stored = self.repeated = 0

    @property
    def max_repeated(self) -> int:
        """The possible number of words of arrays that are not stored; it limits the memory that a small file can request."""
        return REPEATED_WORDS + REPEATED_PER_STORED * self.stored


@dataclasses.dataclass
class Written:
    """An array as it is written: its number, and the number of words of its elements.

    `array` is None for an array of a structure.
    """

    number: int
    words: int
    array: 'np.ndarray | None'

    def elements(self) -> np.ndarray:
        """Return the elements as words."""
        return encode(self.array)


class ArrayWriter:
    """Assignment of numbers to the arrays of a program, in the order of the file."""

    def __init__(self) -> None:
        self._known: Dict[Tuple[_Layout, bytes], int] = {}  # content -> number
        self._stored, self._words = 0, _Words()  # stored arrays; equal arrays among them beyond the limit

    def write(self, operation: Operation, name: str, dtype: np.dtype, shape: Tuple[int, ...]) -> Written:
        """Return the next array, `Written`. Raises ValueError if it has another dtype or shape than the operation requires."""
        words = word_count(dtype, shape)
        if name not in operation.arrays:
            return Written(operation.array_numbers[name], words, None)
        array = np.asarray(operation.arrays[name])
        if array.shape != shape or array.dtype != dtype:
            raise ValueError(f'{operation.name}: {name} must be {dtype} {shape}, not {array.dtype} {array.shape}')
        content = _layout(dtype, shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()
        number = self._known.get(content, 0)
        self._words.repeated += repeated_by_planes(operation, words)
        if number and self._words.repeated + words <= self._words.max_repeated:
            self._words.repeated += words
            return Written(number, words, array)
        self._words.stored += words
        self._stored += 1
        self._known.setdefault(content, self._stored)
        return Written(0, words, array)


class ArrayReader:
    """The arrays of a program that have been read."""

    def __init__(self) -> None:
        self._layouts: List[_Layout] = []
        self._arrays: List[Optional[np.ndarray]] = []
        self._words = _Words()

    def first(self, words: Optional[np.ndarray], dtype: np.dtype, shape: Tuple[int, ...], what: object) -> Optional[np.ndarray]:
        """Return the array with the given words, or None if these are None, and give it the next number.

        `what` names it in messages. Raises `ProgramError` if bits beyond its elements are set.
        """
        array = None if words is None else decode(words, dtype, shape, what)
        self._words.stored += word_count(dtype, shape)
        self._layouts.append(_layout(dtype, shape))
        self._arrays.append(array)
        return array

    def again(self, number: int, dtype: np.dtype, shape: Tuple[int, ...], what: object, word: int) -> Optional[np.ndarray]:
        """Return array `number`, read at `word`, in the given shape, or None. Raises `ProgramError` if it has another layout."""
        if not 1 <= number <= len(self._layouts):
            raise ProgramError(f'word {word}, {what}: stored array {number}, of {len(self._layouts)} so far')
        if self._layouts[number - 1] != _layout(dtype, shape):
            raise ProgramError(f'word {word}, {what}: stored array {number}, which has another type or size')
        self.repeat(word_count(dtype, shape), what)
        array = self._arrays[number - 1]
        return None if array is None else array.reshape(shape)

    def repeat(self, words: int, what: object) -> None:
        """Count words that are used again. Raises `ProgramError` if there are too many."""
        self._words.repeated += words
        if self._words.repeated > self._words.max_repeated:
            raise ProgramError(
                f'{what}: {self._words.repeated} words of repeated arrays so far; at most {self._words.max_repeated} are possible'
            )
