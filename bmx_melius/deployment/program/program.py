"""The packed program: a network as one array of 32-bit words, and its serialization format.

A program is a list of operations on maps of shape (channels, height, width), one per image of a batch, in single-assignment form: the
inputs are values 0, 1, ...; each operation computes the next value from earlier values. A value is *real* (float32) or *bits* (one of two
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

* float32 and int32 arrays: one element per word; float16 arrays (``half`` = 1): two elements per word, int8 arrays four, the first in the
  lowest bits, padded with 0.
* bit arrays: 32 elements of the last axis per word, the first in the lowest bit; bits beyond the last element are 0.

Structure
---------
The *structure* of a program is the same list of words without the elements of the arrays. It contains everything that shape inference
needs. The numbers of words in its header and records are the program's; the checksum covers the structure.
"""

import dataclasses
from typing import Iterator, List, Optional, Sequence, Tuple

import numpy as np

from .limits import MAX_CHANNELS, MAX_ELEMENTS, MAX_SIZE
from .operation_table import FIRST_VERSION, REAL_KIND
from .operations import Operation, ProgramError, Value, array_shapes
from .reader import Reader, check_length, named_result, read_header
from .stored_arrays import ArrayWriter, Written
from .words import INPUT_WORDS, MAGIC, RECORD_WORDS, checksum_of, words_of


@dataclasses.dataclass
class Program:
    """A packed network: the `Value` of each input (height and width are examples), operations, and numbers of the output values.

    The operations of a program that `from_structure` returns have no arrays: it has shapes, but cannot run.
    """

    inputs: List[Value]
    operations: List[Operation]
    outputs: List[int]

    def values(self, sizes: Optional[Sequence[Tuple[int, ...]]] = None) -> List[Value]:
        """Return the `Value` of every input and operation for inputs of the given (height, width), by default as at conversion.

        Raises
        ------
        ProgramError
            If an operation does not accept its inputs; the message names it.
        """
        values: List[Value] = []
        converted = self.values() if sizes is not None else None
        for number, value in enumerate(self.inputs):
            if sizes is not None and not value.flat:
                height, width = sizes[number]
                value = dataclasses.replace(value, height=height, width=width)
            _check_input(number, value)
            values.append(value)
        for number, operation in enumerate(self.operations):
            values.append(named_result(number, operation, values))
            if converted is not None and values[-1].channels != converted[len(values) - 1].channels:  # flatten's depend on the size
                raise ProgramError(
                    f'operation {number} ({operation.name}), channels: it makes {values[-1].channels} of this input; the network was'
                    f' converted with {converted[len(values) - 1].channels}: give inputs of the size at conversion'
                )
        for number in self.outputs:
            if values[number].kind != REAL_KIND:
                raise ProgramError(f'output value {number}: it holds bits')
        return values

    def to_words(self) -> np.ndarray:
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

    def to_structure(self) -> np.ndarray:
        """Return the structure of the program as an int32 array of shape (words,)."""
        records = list(self._records())
        words = [words_of([*head, *(array.number for array in arrays)]) for head, arrays in records]
        omitted = sum(array.words for _, arrays in records for array in arrays if not array.number)
        return self._with_header(np.concatenate([self._input_words(), *words, words_of(self.outputs)]), omitted)

    @classmethod
    def with_structure(cls, words: np.ndarray, decodes: bool = True) -> Tuple['Program', np.ndarray]:
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
        """
        program, reader = cls._read(words, has_arrays=True, decodes=decodes)
        kept = np.concatenate([words[begin:end] for begin, end in reader.spans_between_arrays()])
        kept[3] = checksum_of(kept[4:])
        return program, kept

    def _input_words(self) -> np.ndarray:
        return words_of([number for x in self.inputs for number in (2 if x.flat else 4, x.channels, x.height, x.width)])

    def _records(self) -> Iterator[Tuple[List[int], List[Written]]]:
        """Yield for each operation the words of its record before its arrays, and a list of `stored_arrays.Written`."""
        values, writer = self.values(), ArrayWriter()
        for operation in self.operations:
            row = operation.row
            body = [*operation.inputs, *(operation.attributes[name] for name in row.attributes)]
            shapes = array_shapes(operation, values[operation.inputs[0]].channels)
            arrays = [writer.write(operation, name, *shape) for name, shape in shapes.items()]
            length = RECORD_WORDS + len(body) + sum(1 + (0 if array.number else array.words) for array in arrays)
            yield [row.opcode, length, len(operation.inputs), *body], arrays

    def _with_header(self, body: np.ndarray, omitted: int = 0) -> np.ndarray:
        """Return the header and the body of a program, or of a structure, from which `omitted` words were left out."""
        rest = np.concatenate([words_of([len(self.inputs), len(self.operations), len(self.outputs), 0]), body])
        version = max([FIRST_VERSION, *(operation.row.since for operation in self.operations)])
        return np.concatenate([words_of([MAGIC, version, len(rest) + 4 + omitted, checksum_of(rest)]), rest])

    @classmethod
    def from_words(cls, words: np.ndarray) -> 'Program':
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
    def from_structure(cls, words: np.ndarray) -> 'Program':
        """Read and validate a structure as `from_words` does a program. The operations of the result have no arrays."""
        return cls._read(words, has_arrays=False)[0]

    @classmethod
    def _read(cls, words: np.ndarray, has_arrays: bool, decodes: bool = True) -> Tuple['Program', Reader]:
        """Return the program and its `Reader`."""
        words = np.asarray(words)
        read_header(words, has_arrays)
        reader = Reader(words, has_arrays, decodes)
        program = cls([reader.input() for _ in range(reader.count(4, INPUT_WORDS, 'inputs'))], [], [])
        values = program.values()
        for number in range(reader.count(5, RECORD_WORDS + 1, 'operations')):
            program.operations.append(reader.operation(number, values))
        program.outputs += reader.sources(reader.count(6, 1, 'outputs'), len(values), 'outputs')
        if reader.left:
            raise ProgramError(f'word {reader.position}: {reader.left} words follow the last output')
        check_length(words, reader.position + reader.omitted)
        for number in program.outputs:
            if values[number].kind != REAL_KIND:
                raise ProgramError(f'output value {number}: it holds bits')
        return program, reader


def _check_input(number: int, value: Value) -> None:
    possible = 1 <= value.channels <= MAX_CHANNELS and 1 <= value.height <= MAX_SIZE and 1 <= value.width <= MAX_SIZE
    if not possible or value.channels * value.height * value.width >= MAX_ELEMENTS:
        raise ProgramError(f'input {number}, size: {value} is not possible')
