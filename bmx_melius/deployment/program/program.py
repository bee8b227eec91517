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

An operation's attributes follow each other in the order of `OPERATIONS`, one word each; its arrays follow in that order too, without
gaps. The word count of a record must be what its operation needs, so nothing in a valid program is unread.

* float arrays: one element per word; float16 arrays (``half`` = 1): two elements per word, the first in the low half, padded with 0.
* bit arrays: 32 elements of the last axis per word, the first in the lowest bit; bits beyond the last element are 0.
"""

import dataclasses

import numpy as np

from .operations import (
    MAX_CHANNELS,
    MAX_ELEMENTS,
    MAX_SIZE,
    OPERATIONS,
    REAL_KIND,
    Operation,
    ProgramError,
    Value,
    array_shapes,
    require,
    result_of,
)
from .words import WORD, checksum_of, decode, encode, word_count, words_of

MAGIC = int.from_bytes(b'BMXP', 'little')
VERSION = 1
HEADER_WORDS = 8
INPUT_WORDS = 4
RECORD_WORDS = 3  # opcode, length, number of inputs
MAX_OPERATIONS = 1 << 16  # giving all values their place takes time that grows with the square
_NAMES = {rule.opcode: name for name, rule in OPERATIONS.items()}


@dataclasses.dataclass
class Program:
    """A packed network: the `Value` of each input (height and width are examples), operations, and numbers of the output values."""

    inputs: list
    operations: list
    outputs: list

    def values(self, sizes=None):
        """The `Value` of every input and operation, for inputs of the given (height, width) each; by default those at conversion.

        Raises
        ------
        ProgramError
            Naming the operation that does not fit.
        """
        values = []
        converted = self.values() if sizes is not None else None
        for number, value in enumerate(self.inputs):
            if sizes is not None and not value.flat:
                height, width = sizes[number]
                value = dataclasses.replace(value, height=height, width=width)
            require(
                1 <= value.channels <= MAX_CHANNELS
                and 1 <= value.height <= MAX_SIZE
                and 1 <= value.width <= MAX_SIZE
                and value.channels * value.height * value.width < MAX_ELEMENTS,
                f'input {number}: size {value.shape} is not possible',
            )
            values.append(value)
        for number, operation in enumerate(self.operations):
            try:
                values.append(result_of(operation, [values[source] for source in operation.inputs]))
            except ProgramError as error:
                raise ProgramError(f'operation {number}: {error}') from error
            if converted is not None and values[-1].channels != converted[len(values) - 1].channels:  # flatten's depend on the size
                raise ProgramError(
                    f'operation {number}: {operation.name} makes {values[-1].channels} channels of this input; the network was converted'
                    f' with {converted[len(values) - 1].channels}: give inputs of the size at conversion'
                )
        for number in self.outputs:
            require(values[number].kind == REAL_KIND, f'output value {number} holds bits')
        return values

    def to_words(self):
        """The program as an int32 array of shape (words,), checked by reading it back."""
        values = self.values()
        parts = []
        for value in self.inputs:
            parts.append(words_of([2 if value.flat else 4, value.channels, value.height, value.width]))
        for operation in self.operations:
            rule = OPERATIONS[operation.name]
            body = [words_of([*operation.inputs, *(operation.attributes[name] for name in rule.attributes)])]
            for name, (dtype, shape) in array_shapes(operation, values[operation.inputs[0]].channels).items():
                array = np.asarray(operation.arrays[name])
                if array.shape != shape or array.dtype != dtype:
                    raise ValueError(f'{operation.name}: {name} must be {dtype} {shape}, not {array.dtype} {array.shape}')
                body.append(encode(array))
            length = RECORD_WORDS + sum(map(len, body))
            parts += [words_of([rule.opcode, length, len(operation.inputs)]), *body]
        parts.append(words_of(self.outputs))
        rest = np.concatenate([words_of([len(self.inputs), len(self.operations), len(self.outputs), 0]), *parts])
        words = np.concatenate([words_of([MAGIC, VERSION, len(rest) + 4, checksum_of(rest)]), rest])
        Program.from_words(words)
        return words

    @classmethod
    def from_words(cls, words):
        """Read and validate a program completely.

        Parameters
        ----------
        words : numpy.ndarray of int32, shape (words,)

        Raises
        ------
        ProgramError
            Saying at which word and why it is no valid program.
        """
        words = np.asarray(words)
        require(words.dtype == WORD and words.ndim == 1, f'a program is a vector of int32, not {words.dtype} of shape {words.shape}')
        require(len(words) >= HEADER_WORDS, f'a program has at least {HEADER_WORDS} words, not {len(words)}: the file is cut short')
        magic, version, length, checksum, inputs, operations, outputs, zero = (int(word) for word in words[:HEADER_WORDS])
        require(magic == MAGIC, 'no packed program: the magic word is missing')
        require(version == VERSION, f'format version {version}; this release reads version {VERSION}: convert the network again')
        require(length == len(words), f'the header says {length} words, there are {len(words)}: the file is damaged')
        require(checksum == checksum_of(words[4:]), 'the checksum does not match: the file is damaged')
        require(zero == 0, 'word 7 is not 0')
        reader = _Reader(words)
        program = cls([reader.input() for _ in range(reader.count(inputs, INPUT_WORDS, 'inputs'))], [], [])
        values = program.values()
        require(operations <= MAX_OPERATIONS, f'{operations} operations; at most {MAX_OPERATIONS} are possible')
        for number in range(reader.count(operations, RECORD_WORDS + 1, 'operations')):
            operation = reader.operation(number, values)
            program.operations.append(operation)
            values.append(_named(number, result_of, operation, [values[source] for source in operation.inputs]))
        for _ in range(reader.count(outputs, 1, 'outputs')):
            program.outputs.append(reader.source(len(values), 'an output'))
        require(reader.position == len(words), f'{len(words) - reader.position} words follow the last output')
        program.values()
        return program


def _named(number, function, *arguments):
    try:
        return function(*arguments)
    except ProgramError as error:
        raise ProgramError(f'operation {number}: {error}') from error


class _Reader:
    """Takes words one after the other, and never one that is not there."""

    def __init__(self, words):
        self.words, self.position = words, HEADER_WORDS

    def take(self, count, what):
        left = len(self.words) - self.position
        require(0 <= count <= left, f'word {self.position}: {what} needs {count} words, {left} are left')
        self.position += count
        return self.words[self.position - count : self.position]

    def count(self, number, least_words, what):
        """`number` itself, if that many things of at least `least_words` words can follow and there is at least one."""
        left = len(self.words) - self.position
        require(1 <= number <= left // least_words, f'the header says {number} {what}; {left} words are left')
        return number

    def source(self, existing, what):
        number = int(self.take(1, what)[0])
        require(0 <= number < existing, f'word {self.position - 1}: {what} is value {number}, of {existing} so far')
        return number

    def input(self):
        rank, channels, height, width = (int(word) for word in self.take(INPUT_WORDS, 'an input'))
        require(rank in (2, 4), f'word {self.position - INPUT_WORDS}: an input of rank {rank}; 2 and 4 exist')
        require(rank == 4 or (height, width) == (1, 1), f'word {self.position - INPUT_WORDS}: an input of rank 2 has height and width 1')
        return Value(REAL_KIND, channels, height, width, rank == 2)

    def operation(self, number, values):
        start = self.position
        opcode, length, inputs = (int(word) for word in self.take(RECORD_WORDS, f'operation {number}'))
        require(opcode in _NAMES, f'word {start}: operation {number} has the unknown code {opcode}')
        name = _NAMES[opcode]
        rule, place = OPERATIONS[name], f'operation {number} ({name})'
        require(rule.inputs[0] <= inputs <= rule.inputs[1], f'word {start}: {place} has {inputs} inputs')
        sources = tuple(self.source(len(values), f'an input of {place}') for _ in range(inputs))
        attributes = {}
        for attribute, (least, most) in rule.attributes.items():
            value = int(self.take(1, place)[0])
            require(least <= value <= most, f'word {self.position - 1}: {place} has {attribute} {value}; {least} to {most} exist')
            attributes[attribute] = value
        operation = Operation(name, sources, attributes)
        _named(number, result_of, operation, [values[source] for source in sources])  # before sizes are computed from it
        for array, (dtype, shape) in array_shapes(operation, values[sources[0]].channels).items():
            what = f'{array} of {place}'
            operation.arrays[array] = decode(self.take(word_count(dtype, shape), what), dtype, shape, what)
        require(self.position - start == length, f'word {start}: {place} takes {self.position - start} words, its record says {length}')
        if name == 'threshold':
            require(not np.isnan(operation.arrays['threshold']).any(), f'{place} has a threshold that is not a number')
        return operation
