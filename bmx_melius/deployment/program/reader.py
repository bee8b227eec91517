"""Reading and validation of the words of a program or a structure, whose format `bmx_melius.deployment.program.program` defines.

A message begins with the place: a word, an operation with its name, and the field. The reader in C++ (``csrc/program/reader.h``) makes the
same checks in the same order and names the same place.
"""

import dataclasses
from typing import Dict, List, Optional, Sequence, Tuple

import numpy as np

from .limits import (
    FILTER_BLOCK,
    MAX_ALL_GROUPS,
    MAX_ALL_OPERANDS,
    MAX_ALL_WEIGHTS,
    MAX_INPUTS,
    MAX_OPERATIONS,
    MAX_OUTPUTS,
)
from .operation_table import FIRST_VERSION, OPERATIONS, REAL_KIND, OperationType
from .operations import Operation, ProgramError, Value, array_shapes, result_of
from .stored_arrays import ArrayReader, repeated_by_planes
from .words import HEADER_WORDS, INPUT_WORDS, MAGIC, RECORD_WORDS, VERSION, WORD, checksum_of, word_count

_NAMES = {row.opcode: name for name, row in OPERATIONS.items()}


def named_result(number: int, operation: Operation, values: Sequence[Value]) -> Value:
    """Return the `Value` that an operation computes. A `ProgramError` names the operation by its number."""
    try:
        return result_of(operation, [values[source] for source in operation.inputs])
    except ProgramError as error:
        raise ProgramError(f'{FieldPlace(number, operation.name)}: {error}') from error


def check_length(words: np.ndarray, length: int) -> None:
    """Raise `ProgramError` unless the header has this number of words."""
    if words[2] != length:
        raise ProgramError(f'word 2, length: the header says {words[2]} words, there are {length}: the file is damaged')


def read_header(words: np.ndarray, has_arrays: bool) -> None:
    """Validate the header, except for the length of a structure."""
    if words.dtype != WORD or words.ndim != 1:
        raise ProgramError(f'a program is a vector of int32, not {words.dtype} of shape {words.shape}')
    if len(words) < HEADER_WORDS:
        raise ProgramError(f'header: a program has at least {HEADER_WORDS} words, not {len(words)}: the file is cut short')
    magic, version, _, checksum, inputs, operations, outputs, zero = words[:HEADER_WORDS].tolist()
    if magic != MAGIC:
        raise ProgramError('word 0, magic: not a packed program')
    if not FIRST_VERSION <= version <= VERSION:
        advice = 'convert the network again' if version < FIRST_VERSION else 'update bmx-melius'
        raise ProgramError(f'word 1, version: format version {version}; this release reads version {VERSION}: {advice}')
    if has_arrays:
        check_length(words, len(words))
    if checksum != checksum_of(words[4:]):
        raise ProgramError('word 3, checksum: it does not match: the file is damaged')
    if zero != 0:
        raise ProgramError(f'word 7, zero: it is {zero}')
    for word, number, what, limit in (
        (4, inputs, 'inputs', MAX_INPUTS),
        (5, operations, 'operations', MAX_OPERATIONS),
        (6, outputs, 'outputs', MAX_OUTPUTS),
    ):
        if number > limit:
            raise ProgramError(f'word {word}, {what}: there are {number}; at most {limit} are possible')


@dataclasses.dataclass
class FieldPlace:
    """An operation, or a part of it, for messages."""

    number: int
    name: str = ''
    field: str = ''

    def __str__(self) -> str:
        return f'operation {self.number}' + (f' ({self.name})' if self.name else '') + (f', {self.field}' if self.field else '')

    def of(self, field: str) -> 'FieldPlace':
        return FieldPlace(self.number, self.name, field)


class _Totals:
    """Totals over the operations read so far, with their limits."""

    def __init__(self) -> None:
        self.operands = self.groups = self.weights = 0

    def add(self, place: FieldPlace, operation: Operation, channels: int) -> None:
        attributes = operation.attributes
        self.operands += len(operation.inputs)
        if operation.row.shape == 'convolution':
            groups = attributes['groups']
            filters = -(-(attributes['out_channels'] // groups) // FILTER_BLOCK) * FILTER_BLOCK
            self.groups += groups
            self.weights += filters * channels * attributes['kernel_h'] * attributes['kernel_w']
        for total, what, limit in (
            (self.operands, 'all inputs', MAX_ALL_OPERANDS),
            (self.groups, 'all groups', MAX_ALL_GROUPS),
            (self.weights, 'all weights', MAX_ALL_WEIGHTS),
        ):
            if total > limit:
                raise ProgramError(f'{place.of(what)}: {total} so far; at most {limit} are possible')


class Reader:
    """Sequential reader of the words of a program or a structure with bounds checks. Messages are formatted only for errors."""

    def __init__(self, words: np.ndarray, has_arrays: bool, decodes: bool) -> None:
        self.words, self.has_arrays, self.decodes, self.totals = words, has_arrays, has_arrays and decodes, _Totals()
        self.stored = ArrayReader()
        self.position, self.omitted = HEADER_WORDS, 0  # of the next word; number of words of arrays that a structure omits
        self.spans: List[Tuple[int, int]] = []  # (begin, end) of the elements of each array

    @property
    def left(self) -> int:
        return len(self.words) - self.position

    def spans_between_arrays(self) -> List[Tuple[int, int]]:
        """Return (begin, end) of the words before, between and after the elements of arrays."""
        borders = [0, *(border for span in self.spans for border in span), len(self.words)]
        return list(zip(borders[::2], borders[1::2]))

    def take(self, count: int, place: object) -> np.ndarray:
        if not 0 <= count <= self.left:
            raise ProgramError(f'word {self.position}, {place}: {count} words are needed, {self.left} are left')
        self.position += count
        return self.words[self.position - count : self.position]

    def count(self, word: int, min_words: int, what: str) -> int:
        """Return a number of the header, if it is at least 1 and that many items of at least `min_words` words can follow."""
        number = int(self.words[word])
        if not 1 <= number <= self.left // min_words:
            raise ProgramError(f'word {word}, {what}: there are {number}; {self.left} words are left')
        return number

    def sources(self, count: int, existing: int, place: object) -> List[int]:
        """Read `count` numbers of values, each less than `existing`."""
        numbers = self.take(count, place).tolist()
        if min(numbers) < 0 or max(numbers) >= existing:
            index = next(index for index, number in enumerate(numbers) if not 0 <= number < existing)
            raise ProgramError(f'word {self.position - count + index}, {place}: value {numbers[index]}, of {existing} so far')
        return numbers

    def input(self) -> Value:
        start = self.position
        rank, channels, height, width = self.take(INPUT_WORDS, 'inputs').tolist()
        if rank not in (2, 4):
            raise ProgramError(f'word {start}, rank: an input of rank {rank}; 2 and 4 exist')
        if rank == 2 and (height, width) != (1, 1):
            raise ProgramError(f'word {start}, size: an input of rank 2 has height and width 1')
        return Value(REAL_KIND, channels, height, width, rank == 2)

    def operation(self, number: int, values: List[Value]) -> Operation:
        """Read an operation and append its result to `values`."""
        start, omitted = self.position, self.omitted
        opcode, length, inputs = self.take(RECORD_WORDS, FieldPlace(number, field='head')).tolist()
        if opcode not in _NAMES:
            raise ProgramError(f'word {start}, {FieldPlace(number, field="opcode")}: {opcode} is unknown')
        name = _NAMES[opcode]
        row, place = OPERATIONS[name], FieldPlace(number, name)
        low, high = row.inputs
        if not low <= inputs <= high:
            raise ProgramError(f'word {start + 2}, {place.of("inputs")}: there are {inputs}; {low} to {high} are possible')
        sources = self.sources(inputs, len(values), place.of('inputs'))
        operation = Operation(name, tuple(sources), self._attributes(row, place))
        result = named_result(number, operation, values)  # before sizes are computed from it
        channels = values[sources[0]].channels
        self.totals.add(place, operation, channels)
        self._arrays(operation, array_shapes(operation, channels), place)
        words = self.position - start + self.omitted - omitted
        if words != length:
            raise ProgramError(f'word {start + 1}, {place.of("length")}: it has {words} words, its record says {length}')
        values.append(result)
        return operation

    def _arrays(self, operation: Operation, arrays: Dict[str, Tuple[np.dtype, Tuple[int, ...]]], place: FieldPlace) -> None:
        for array, (dtype, shape) in arrays.items():
            what = place.of(array)
            word = self.position
            number = self.take(1, what).tolist()[0]
            if number:
                elements = self.stored.again(number, dtype, shape, what, word)
            else:
                elements = self.stored.first(self._elements(dtype, shape, what), dtype, shape, what)
            self.stored.repeat(repeated_by_planes(operation, word_count(dtype, shape)), what)
            operation.array_numbers[array] = number
            if self.decodes:
                operation.arrays[array] = elements
        for array, facts in operation.row.arrays.items():
            if facts.ordered and array in operation.arrays and np.isnan(operation.arrays[array]).any():
                raise ProgramError(f'{place.of(array)}: it contains NaN')

    def _elements(self, dtype: np.dtype, shape: Tuple[int, ...], what: FieldPlace) -> Optional[np.ndarray]:
        """Take the words of an array; return None if they are not decoded, as in a structure, which omits them."""
        if self.has_arrays:
            elements = self.take(word_count(dtype, shape), what)
            self.spans.append((self.position - len(elements), self.position))
            return elements if self.decodes else None
        self.omitted += word_count(dtype, shape)
        return None

    def _attributes(self, row: OperationType, place: FieldPlace) -> Dict[str, int]:
        start = self.position
        numbers = self.take(len(row.attributes), place.of('attributes')).tolist()
        for index, (number, (name, (low, high))) in enumerate(zip(numbers, row.attributes.items())):
            if not low <= number <= high:
                raise ProgramError(f'word {start + index}, {place.of(name)}: {number}; {low} to {high} exist')
        return dict(zip(row.attributes, numbers))
