"""The packed program: a network as one array of 32-bit words, and its serialization format.

A program is a list of operations on maps of shape (channels, height, width), one per image of a batch, in single-assignment form: the
inputs are values 0, 1, ...; each operation computes the next value from earlier ones. A value is *real* (float32) or *bits* (one of two
states for each element, the result of ``threshold``). A value of rank 2, (channels,) per image, is a *flat* map of height and width 1.
The numbers of channels are fixed, height and width are not: a program accepts any batch and any size that its operations allow.
(``flatten`` turns height and width into channels and allows the sizes that give the number of channels at conversion.)

Layout
------
The format consists of little-endian 32-bit words, so that MXNet can store it as an int32 array. Floats are stored bitwise.

::

    header       0  magic 'BMXP'         4  number of inputs
                 1  format version       5  number of operations
                 2  number of words      6  number of outputs
                 3  CRC-32 of words 4..  7  0
    inputs       rank (2 or 4), channels, height, width: height and width at conversion, as an example; 1 and 1 for rank 2
    operations   opcode, words in this record, number of inputs, inputs (numbers of values), attributes, arrays
    outputs      number of a real value, each

The attributes of an operation are stored in the order of `OPERATIONS`, one word each, followed by its arrays in the order of
`array_shapes`, without gaps. The number of words of a record must be exactly what its operation requires, so that every word of a valid
program is read. `bmx_melius.deployment.program.limits` defines the limits of a program.

Arrays
------
An array begins with its *number*, a word. 0: its elements follow. n > 0: it equals the n-th array whose elements are stored in the program,
counted from 1, and no elements follow. Both must have the same dtype and number of elements, bit arrays also the same last axis. The writer
stores equal arrays once.

* float arrays: one element per word; float16 arrays (``half`` = 1): two elements per word, the first in the low half, padded with 0.
* bit arrays: 32 elements of the last axis per word, the first in the lowest bit; bits beyond the last element are 0.

Structure
---------
The *structure* of a program is the same list of words without the elements of the arrays. It contains everything that shape inference
needs. The numbers of words in its header and records are those of the program; the checksum is that of the structure.

Version 1
---------
Programs and structures of version 1 are read as well, not written. Their arrays have no numbers, and their operations lack the attributes
`ABSENT_IN_VERSION_1`, so that padding is the same on opposite sides: the words of ``pad_top`` and ``pad_left`` were called pad_h and pad_w.
"""

import dataclasses

import numpy as np

from .limits import (
    FILTER_BLOCK,
    MAX_ALL_GROUPS,
    MAX_ALL_OPERANDS,
    MAX_ALL_WEIGHTS,
    MAX_CHANNELS,
    MAX_ELEMENTS,
    MAX_INPUTS,
    MAX_OPERATIONS,
    MAX_OUTPUTS,
    MAX_SIZE,
)
from .operations import ABSENT_IN_VERSION_1, OPERATIONS, REAL_KIND, Operation, ProgramError, Value, array_shapes, result_of
from .stored_arrays import ArrayReader, ArrayWriter, repeated_by_planes
from .words import WORD, checksum_of, word_count, words_of

MAGIC = int.from_bytes(b'BMXP', 'little')
VERSION = 2
VERSIONS = (1, 2)  # that are read
HEADER_WORDS = 8
INPUT_WORDS = 4
RECORD_WORDS = 3  # opcode, length, number of inputs
_COMPARED = ('threshold', 'low', 'high')  # arrays that must not contain NaN
_NAMES = {rule.opcode: name for name, rule in OPERATIONS.items()}


@dataclasses.dataclass
class Program:
    """A packed network: the `Value` of each input (height and width are examples), operations, and numbers of the output values.

    The operations of a program that `from_structure` returns have no arrays: it has shapes, but cannot run.
    """

    inputs: list
    operations: list
    outputs: list

    def values(self, sizes=None):
        """Return the `Value` of every input and operation for inputs of the given (height, width), by default those at conversion.

        Raises
        ------
        ProgramError
            If an operation does not accept its inputs; the message names it.
        """
        values = []
        converted = self.values() if sizes is not None else None
        for number, value in enumerate(self.inputs):
            if sizes is not None and not value.flat:
                height, width = sizes[number]
                value = dataclasses.replace(value, height=height, width=width)
            _check_input(number, value)
            values.append(value)
        for number, operation in enumerate(self.operations):
            values.append(_named_result(number, operation, values))
            if converted is not None and values[-1].channels != converted[len(values) - 1].channels:  # flatten's depend on the size
                raise ProgramError(
                    f'operation {number}: {operation.name} makes {values[-1].channels} channels of this input; the network was converted'
                    f' with {converted[len(values) - 1].channels}: give inputs of the size at conversion'
                )
        for number in self.outputs:
            if values[number].kind != REAL_KIND:
                raise ProgramError(f'output value {number} holds bits')
        return values

    def to_words(self):
        """Return the program as an int32 array of shape (words,), validated by reading it back."""
        parts = [self._input_words()]
        for head, arrays in self._records():
            parts.append(words_of(head))
            for array in arrays:
                parts += [words_of([array.number]), *([] if array.number else [array.elements()])]
        parts.append(words_of(self.outputs))
        words = self._with_header(np.concatenate(parts))
        Program.from_words(words)
        return words

    def to_structure(self):
        """Return the structure of the program as an int32 array of shape (words,)."""
        records = list(self._records())
        words = [words_of([*head, *(array.number for array in arrays)]) for head, arrays in records]
        omitted = sum(array.words for _, arrays in records for array in arrays if not array.number)
        return self._with_header(np.concatenate([self._input_words(), *words, words_of(self.outputs)]), omitted)

    @classmethod
    def with_structure(cls, words, decodes=True):
        """Read and validate a program as `from_words` does, and its structure.

        Parameters
        ----------
        words : numpy.ndarray of int32, shape (words,)
        decodes : bool
            Whether to decode the arrays and check their elements. Otherwise operations have no arrays, as with `from_structure`.

        Returns
        -------
        program : Program
        structure : numpy.ndarray of int32, shape (words,)
            In the version of the program.
        """
        program, reader = cls._read(words, has_arrays=True, decodes=decodes)
        kept = np.concatenate([words[begin:end] for begin, end in reader.spans_between_arrays()])
        kept[3] = checksum_of(kept[4:])
        return program, kept

    def _input_words(self):
        return words_of([number for x in self.inputs for number in (2 if x.flat else 4, x.channels, x.height, x.width)])

    def _records(self):
        """Yield for each operation the words of its record before its arrays, and a list of `stored_arrays.Written`."""
        values, writer = self.values(), ArrayWriter()
        for operation in self.operations:
            rule = OPERATIONS[operation.name]
            body = [*operation.inputs, *(operation.attributes[name] for name in rule.attributes)]
            shapes = array_shapes(operation, values[operation.inputs[0]].channels)
            arrays = [writer.write(operation, name, *shape) for name, shape in shapes.items()]
            length = RECORD_WORDS + len(body) + sum(1 + (0 if array.number else array.words) for array in arrays)
            yield [rule.opcode, length, len(operation.inputs), *body], arrays

    def _with_header(self, body, omitted=0):
        """Return the header and the body of a program, or of a structure, from which `omitted` words were left out."""
        rest = np.concatenate([words_of([len(self.inputs), len(self.operations), len(self.outputs), 0]), body])
        return np.concatenate([words_of([MAGIC, VERSION, len(rest) + 4 + omitted, checksum_of(rest)]), rest])

    @classmethod
    def from_words(cls, words):
        """Read and validate a program completely.

        Parameters
        ----------
        words : numpy.ndarray of int32, shape (words,)

        Raises
        ------
        ProgramError
            If the program is invalid; the message gives the position and the reason.
        """
        return cls._read(words, has_arrays=True)[0]

    @classmethod
    def from_structure(cls, words):
        """Read and validate a structure as `from_words` does a program. The operations of the result have no arrays."""
        return cls._read(words, has_arrays=False)[0]

    @classmethod
    def _read(cls, words, has_arrays, decodes=True):
        """Return the program and its `_Reader`."""
        words = np.asarray(words)
        inputs, operations, outputs = _read_header(words, has_arrays)
        reader = _Reader(words, has_arrays, decodes)
        program = cls([reader.input() for _ in range(reader.count(inputs, INPUT_WORDS, 'inputs'))], [], [])
        values = program.values()
        for number in range(reader.count(operations, RECORD_WORDS + 1, 'operations')):
            program.operations.append(reader.operation(number, values))
        program.outputs += reader.sources(reader.count(outputs, 1, 'outputs'), len(values), 'the list of outputs', 'an output')
        if reader.left:
            raise ProgramError(f'{reader.left} words follow the last output')
        _check_length(words, reader.position + reader.omitted)
        for number in program.outputs:
            if values[number].kind != REAL_KIND:
                raise ProgramError(f'output value {number} holds bits')
        return program, reader


def _check_input(number, value):
    possible = 1 <= value.channels <= MAX_CHANNELS and 1 <= value.height <= MAX_SIZE and 1 <= value.width <= MAX_SIZE
    if not possible or value.channels * value.height * value.width >= MAX_ELEMENTS:
        raise ProgramError(f'input {number}: size {value} is not possible')


def _named_result(number, operation, values):
    try:
        return result_of(operation, [values[source] for source in operation.inputs])
    except ProgramError as error:
        raise ProgramError(f'operation {number}: {error}') from error


def _check_length(words, length):
    if words[2] != length:
        raise ProgramError(f'the header says {words[2]} words, there are {length}: the file is damaged')


def _read_header(words, has_arrays):
    """Validate the header, except for the length of a structure; return the numbers of inputs, operations and outputs."""
    if words.dtype != WORD or words.ndim != 1:
        raise ProgramError(f'a program is a vector of int32, not {words.dtype} of shape {words.shape}')
    if len(words) < HEADER_WORDS:
        raise ProgramError(f'a program has at least {HEADER_WORDS} words, not {len(words)}: the file is cut short')
    magic, version, _, checksum, inputs, operations, outputs, zero = words[:HEADER_WORDS].tolist()
    if magic != MAGIC:
        raise ProgramError('no packed program: the magic word is missing')
    if version not in VERSIONS:
        known = ' and '.join(map(str, VERSIONS))
        raise ProgramError(f'format version {version}; this release reads versions {known}: convert the network again')
    if has_arrays:
        _check_length(words, len(words))
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


class _Reader:
    """Sequential reader of the words of a program or a structure with bounds checks. Messages are formatted only for errors."""

    def __init__(self, words, has_arrays, decodes):
        self.words, self.has_arrays, self.decodes, self.totals = words, has_arrays, has_arrays and decodes, _Totals()
        self.is_version_1, self.stored = words[1] == 1, ArrayReader()
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
        result = _named_result(number, operation, values)  # before sizes are computed from it
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
            number = 0 if self.is_version_1 else self.take(1, place.of(f'the number of {array}')).tolist()[0]
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
        names = [name for name in rule.attributes if not (self.is_version_1 and name in ABSENT_IN_VERSION_1)]
        numbers = self.take(len(names), place.of('the list of attributes')).tolist()
        for index, (name, number) in enumerate(zip(names, numbers)):
            least, most = rule.attributes[name]
            if not least <= number <= most:
                raise ProgramError(f'word {start + index}: {place} has {name} {number}; {least} to {most} exist')
        attributes = dict(zip(names, numbers))
        for name in rule.attributes:
            if name not in attributes:
                value = ABSENT_IN_VERSION_1[name]
                attributes[name] = attributes.get(value, value)
        return attributes
