"""Reading and validation of the words of a program or a structure, whose format `bmx_melius.deployment.program.program` defines."""

import dataclasses

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
from .operations import OPERATIONS, REAL_KIND, Operation, ProgramError, Value, array_shapes, result_of
from .stored_arrays import ArrayReader, repeated_by_planes
from .words import HEADER_WORDS, INPUT_WORDS, MAGIC, RECORD_WORDS, VERSION, WORD, checksum_of, word_count

_COMPARED = ('threshold', 'low', 'high')  # arrays that must not contain NaN
_NAMES = {rule.opcode: name for name, rule in OPERATIONS.items()}


def named_result(number, operation, values):
    """Return the `Value` that an operation computes. A `ProgramError` names the operation by its number."""
    try:
        return result_of(operation, [values[source] for source in operation.inputs])
    except ProgramError as error:
        raise ProgramError(f'operation {number}: {error}') from error


def check_length(words, length):
    """Raise `ProgramError` unless the header has this number of words."""
    if words[2] != length:
        raise ProgramError(f'the header says {words[2]} words, there are {length}: the file is damaged')


def read_header(words, has_arrays):
    """Validate the header, except for the length of a structure; return the numbers of inputs, operations and outputs."""
    if words.dtype != WORD or words.ndim != 1:
        raise ProgramError(f'a program is a vector of int32, not {words.dtype} of shape {words.shape}')
    if len(words) < HEADER_WORDS:
        raise ProgramError(f'a program has at least {HEADER_WORDS} words, not {len(words)}: the file is cut short')
    magic, version, _, checksum, inputs, operations, outputs, zero = words[:HEADER_WORDS].tolist()
    if magic != MAGIC:
        raise ProgramError('no packed program: the magic word is missing')
    if version != VERSION:
        raise ProgramError(f'format version {version}; this release reads version {VERSION}: convert the network again')
    if has_arrays:
        check_length(words, len(words))
    if checksum != checksum_of(words[4:]):
        raise ProgramError('the checksum does not match: the file is damaged')
    if zero != 0:
        raise ProgramError('word 7 is not 0')
    for number, what, most in (
        (inputs, 'inputs', MAX_INPUTS),
        (operations, 'operations', MAX_OPERATIONS),
        (outputs, 'outputs', MAX_OUTPUTS),
    ):
        if number > most:
            raise ProgramError(f'{number} {what}; at most {most} are possible')
    return inputs, operations, outputs


@dataclasses.dataclass
class _Place:
    """An operation, or a part of it, for messages."""

    number: int
    name: str = ''
    what: str = ''

    def __str__(self):
        return (f'{self.what} of ' if self.what else '') + f'operation {self.number}' + (f' ({self.name})' if self.name else '')

    def of(self, what):
        return _Place(self.number, self.name, what)


class _Totals:
    """Totals over the operations read so far, with their limits."""

    def __init__(self):
        self.operands = self.groups = self.weights = 0

    def add(self, place, operation, channels):
        attributes = operation.attributes
        self.operands += len(operation.inputs)
        if operation.name in ('conv', 'binary_conv'):
            groups = attributes['groups']
            filters = -(-(attributes['out_channels'] // groups) // FILTER_BLOCK) * FILTER_BLOCK
            self.groups += groups
            self.weights += filters * channels * attributes['kernel_h'] * attributes['kernel_w']
        for total, what, most in (
            (self.operands, 'inputs of operations', MAX_ALL_OPERANDS),
            (self.groups, 'groups of convolutions', MAX_ALL_GROUPS),
            (self.weights, 'weights of convolutions', MAX_ALL_WEIGHTS),
        ):
            if total > most:
                raise ProgramError(f'{place}: {total} {what} so far; at most {most} are possible')


class Reader:
    """Sequential reader of the words of a program or a structure with bounds checks. Messages are formatted only for errors."""

    def __init__(self, words, has_arrays, decodes):
        self.words, self.has_arrays, self.decodes, self.totals = words, has_arrays, has_arrays and decodes, _Totals()
        self.stored = ArrayReader()
        self.position, self.omitted = HEADER_WORDS, 0  # of the next word; number of words of arrays that a structure omits
        self.spans = []  # (begin, end) of the elements of each array

    @property
    def left(self):
        return len(self.words) - self.position

    def spans_between_arrays(self):
        """Return (begin, end) of the words before, between and after the elements of arrays."""
        borders = [0, *(border for span in self.spans for border in span), len(self.words)]
        return list(zip(borders[::2], borders[1::2]))

    def take(self, count, what):
        if not 0 <= count <= self.left:
            raise ProgramError(f'word {self.position}: {what} needs {count} words, {self.left} are left')
        self.position += count
        return self.words[self.position - count : self.position]

    def count(self, number, least_words, what):
        """Return `number`, if it is at least 1 and that many items of at least `least_words` words can follow."""
        if not 1 <= number <= self.left // least_words:
            raise ProgramError(f'the header says {number} {what}; {self.left} words are left')
        return number

    def sources(self, count, existing, list_name, name):
        """Read `count` numbers of values, each less than `existing`."""
        numbers = self.take(count, list_name).tolist()
        if min(numbers) < 0 or max(numbers) >= existing:
            index = next(index for index, number in enumerate(numbers) if not 0 <= number < existing)
            raise ProgramError(f'word {self.position - count + index}: {name} is value {numbers[index]}, of {existing} so far')
        return numbers

    def input(self):
        start = self.position
        rank, channels, height, width = self.take(INPUT_WORDS, 'an input').tolist()
        if rank not in (2, 4):
            raise ProgramError(f'word {start}: an input of rank {rank}; 2 and 4 exist')
        if rank == 2 and (height, width) != (1, 1):
            raise ProgramError(f'word {start}: an input of rank 2 has height and width 1')
        return Value(REAL_KIND, channels, height, width, rank == 2)

    def operation(self, number, values):
        """Read an operation and append its result to `values`."""
        start, omitted = self.position, self.omitted
        opcode, length, inputs = self.take(RECORD_WORDS, _Place(number, what='the head')).tolist()
        if opcode not in _NAMES:
            raise ProgramError(f'word {start}: operation {number} has the unknown code {opcode}')
        name = _NAMES[opcode]
        rule, place = OPERATIONS[name], _Place(number, name)
        if not rule.inputs[0] <= inputs <= rule.inputs[1]:
            raise ProgramError(f'word {start}: {place} has {inputs} inputs; {rule.inputs[0]} to {rule.inputs[1]} are possible')
        sources = self.sources(inputs, len(values), place.of('the list of inputs'), place.of('an input'))
        operation = Operation(name, tuple(sources), self._attributes(rule, place))
        result = named_result(number, operation, values)  # before sizes are computed from it
        channels = values[sources[0]].channels
        self.totals.add(place, operation, channels)
        self._arrays(operation, array_shapes(operation, channels), place)
        words = self.position - start + self.omitted - omitted
        if words != length:
            raise ProgramError(f'word {start}: {place} takes {words} words, its record says {length}')
        values.append(result)
        return operation

    def _arrays(self, operation, arrays, place):
        for array, (dtype, shape) in arrays.items():
            what = place.of(array)
            number = self.take(1, place.of(f'the number of {array}')).tolist()[0]
            if number:
                elements = self.stored.again(number, dtype, shape, what)
            else:
                elements = self.stored.first(self._elements(dtype, shape, what), dtype, shape, what)
            self.stored.repeat(repeated_by_planes(operation, word_count(dtype, shape)), what)
            operation.array_numbers[array] = number
            if self.decodes:
                operation.arrays[array] = elements
        for array in _COMPARED:
            if array in operation.arrays and np.isnan(operation.arrays[array]).any():
                raise ProgramError(f'{place} has a {array} that is not a number')

    def _elements(self, dtype, shape, what):
        """Take the words of an array; return None if they are not decoded, as in a structure, which omits them."""
        if self.has_arrays:
            elements = self.take(word_count(dtype, shape), what)
            self.spans.append((self.position - len(elements), self.position))
            return elements if self.decodes else None
        self.omitted += word_count(dtype, shape)
        return None

    def _attributes(self, rule, place):
        start = self.position
        numbers = self.take(len(rule.attributes), place.of('the list of attributes')).tolist()
        for index, (number, (name, (least, most))) in enumerate(zip(numbers, rule.attributes.items())):
            if not least <= number <= most:
                raise ProgramError(f'word {start + index}: {place} has {name} {number}; {least} to {most} exist')
        return dict(zip(rule.attributes, numbers))
