"""A program as calls of C functions, and what these need: constants and memory."""

import dataclasses

import numpy as np

from .kernel_sources import instance
from .values import Bits, Buffer, Piece


@dataclasses.dataclass(frozen=True)
class Constant:
    """A constant of an exported network.

    Attributes
    ----------
    name : str
    type : str
        C type of the elements, or of the structure.
    content : numpy.ndarray or dict of str to str
        The elements, or the fields of a structure in C.
    operation : int
        Number of the operation that it belongs to.
    """

    name: str
    type: str
    content: object
    operation: int

    @property
    def bytes(self):
        """Size on a 32-bit processor, whose pointers have 4 bytes."""
        return self.content.nbytes if isinstance(self.content, np.ndarray) else 4 * sum(self._words(text) for text in self.content.values())

    @staticmethod
    def _words(text):
        return text.count(',') + 1


@dataclasses.dataclass(frozen=True)
class Pointer:
    """An argument that points to an element of a buffer."""

    buffer: Buffer
    first: int = 0


@dataclasses.dataclass(frozen=True)
class Call:
    """A call of a kernel: its template and types, as for `kernel_sources.instance`, and its arguments, `Pointer` or C expressions."""

    operation: int
    template: str
    kinds: dict
    arguments: tuple

    @property
    def function(self):
        return instance(self.template, self.kinds)

    @property
    def buffers(self):
        return [argument.buffer for argument in self.arguments if isinstance(argument, Pointer)]


class Calls:
    """The calls of a network, in order, and its constants and buffers.

    Attributes
    ----------
    calls : list of Call
    constants : dict of str to Constant
    operation : int
        The operation to which the next calls and constants belong.
    """

    def __init__(self):
        self.calls, self.constants, self.operation = [], {}, 0
        self._buffers = 0

    def call(self, template, *arguments, **kinds):
        """Add a call for the types `kinds`. Arguments are `Pointer`, pieces and bits, which become pointers, and text or numbers."""
        self.calls.append(Call(self.operation, template, kinds, tuple(map(self._argument, arguments))))

    @staticmethod
    def _argument(argument):
        if isinstance(argument, Piece):
            return Pointer(argument.buffer, argument.first)
        if isinstance(argument, Bits):
            return Pointer(argument.buffer)
        return argument if isinstance(argument, Pointer) else str(argument)

    def array(self, name, elements, type):
        """Add an array of constants and return its name in C. One of the same name is used again."""
        name = f'{name}_{self.operation}'
        self.constants.setdefault(name, Constant(name, type, np.ascontiguousarray(elements), self.operation))
        return name

    def shared(self, name, elements, type):
        """Return the name of an array with these elements, which layers share; add it if there is none."""
        equal = (one for one in self.constants.values() if one.type == type and np.array_equal(one.content, elements))
        return next((one.name for one in equal), None) or self.array(name, elements, type)

    def structure(self, name, type, **fields):
        """Add a structure of constants and return a pointer to it in C."""
        return self._structure(f'{name}_{self.operation}', type, fields)

    def span(self, **fields):
        """Return a pointer in C to a `bmx_span`. Layers with maps of the same size share it.

        It is not passed by value: compilers for RISC-V would copy it by calls of ``memcpy``.
        """
        return self._structure('_'.join(map(str, ('span', *fields.values()))), 'bmx_span', fields)

    def _structure(self, name, type, fields):
        self.constants.setdefault(name, Constant(name, type, {field: str(content) for field, content in fields.items()}, self.operation))
        return f'&{name}'

    def buffer(self, type, elements):
        """Return a new buffer."""
        self._buffers += 1
        return Buffer(f'buffer {self._buffers}', type, elements)
