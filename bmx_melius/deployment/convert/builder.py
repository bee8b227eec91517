"""Construction of a program: the operations added so far, and which values of the network they compute, as float32 or as bits."""

import dataclasses

import numpy as np

from ..program.operations import BITS_KIND, OPERATIONS, REAL_KIND, Operation, Value, result_of
from ..program.program import Program
from .traced_network import Entry

_FLOAT32 = np.finfo(np.float32)


class UnsupportedError(Exception):
    """A node cannot be converted; the message gives the reason."""


def _float32(array, infinite=False):
    """Return an array as float32. Raise `UnsupportedError` unless all elements are representable, with `infinite` also infinities."""
    if not ((np.abs(array) <= _FLOAT32.max) | (infinite & np.isinf(array))).all():
        raise UnsupportedError('its factors or summands are too large for float32')
    return array.astype(np.float32)


def map_shape(shape):
    """Return (channels, height, width) in a program of a value with a shape (N, C), (N, C, W) or (N, C, H, W) in the network."""
    return shape[1], *(1,) * (4 - len(shape)), *shape[2:]


@dataclasses.dataclass
class Lowered:
    """A part of a network, converted to a program.

    Attributes
    ----------
    program : Program
    inputs, outputs : list of Entry
        The values of the network that the program reads and computes.
    origins : dict of int to Entry
        Value of the program -> the equal value of the network. Bits represent it by its encoding.
    """

    program: Program
    inputs: list
    outputs: list
    origins: dict


class Builder:
    """Collect the operations of a program; the conversion rules add them.

    `thresholds` is a callable (nodes) -> (threshold, flip) that folds the nodes before a comparison, see `batch_norms`.

    Values have provisional numbers until `finish`, because the number of inputs is not known before.
    """

    def __init__(self, network, thresholds):
        self.network, self.thresholds = network, thresholds
        self.inputs = []  # Entry
        self._operations = []  # (number of the result, Operation)
        self._values = []  # number -> Value
        self._real, self._bits = {}, {}  # Entry -> number
        self._input_numbers = []

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def real(self, entry):
        """Return the number of the float32 program value for `entry`; expand bits or add a program input where necessary."""
        if entry not in self._real:
            if entry in self._bits:
                self._real[entry] = self.add('expand', [self._bits[entry]], low=-1 if self.network.encoding(entry) == 'sign' else 0)
            else:
                self._real[entry] = self._input(entry)
        return self._real[entry]

    def bits(self, entry, encoding):
        """Return the number of the bits program value for `entry`, whose elements are in {-1, 1} or {0, 1}."""
        if entry not in self._bits:
            x = self.real(entry)
            channels = self._values[x].channels
            middle = np.full(channels, 0 if encoding == 'sign' else 0.5, dtype=np.float32)
            self._bits[entry] = self.add('threshold', [x], {'threshold': middle, 'flip': np.zeros(channels, dtype=bool)})
        return self._bits[entry]

    def set(self, node, number, slot=0):
        """Record `number` as the program value of output `slot` of `node`."""
        values = self._bits if self._values[number].kind == BITS_KIND else self._real
        values[Entry(node, slot)] = number

    def value(self, number):
        """Return the `Value` with the given number."""
        return self._values[number]

    def _input(self, entry):
        shape = self.network.shape(entry)
        if not entry.node.depends_on_data:
            raise UnsupportedError('it combines data with a parameter in a way that has no packed form')
        if len(shape) not in (2, 3, 4) or not self.network.is_float32(entry):
            raise UnsupportedError(f'it reads a value of shape {shape} that is not a float32 map or vector')
        self.inputs.append(entry)
        self._input_numbers.append(self._new(Value(REAL_KIND, *map_shape(shape), flat=len(shape) == 2)))
        return self._input_numbers[-1]

    def _new(self, value):
        self._values.append(value)
        return len(self._values) - 1

    # --- operations -----------------------------------------------------------------------------------------------------------------

    def add(self, name, inputs, arrays=None, **attributes):
        """Add an operation and return the number of its result."""
        for attribute, (least, most) in OPERATIONS[name].attributes.items():
            if not least <= attributes[attribute] <= most:
                raise UnsupportedError(f'{attribute} is {attributes[attribute]}; {least} to {most} can be packed')
        operation = Operation(name, tuple(inputs), attributes, arrays or {})
        number = self._new(result_of(operation, [self._values[source] for source in inputs]))
        self._operations.append((number, operation))
        return number

    def add_channelwise(self, name, x, **arrays):
        """Add an operation with one constant per channel, given as scalars or arrays (channels,); return the number of its result."""
        channels = self._values[x].channels
        infinite = name == 'clip'  # bounds may be infinite
        return self.add(name, [x], {key: _float32(np.broadcast_to(array, channels), infinite) for key, array in arrays.items()})

    def affine(self, x, scale, shift):
        """Add x * scale + shift, where scale and shift are scalars or arrays (channels,); return the number of the result."""
        return self.add_channelwise('affine', x, scale=scale, shift=shift)

    def add_positionwise(self, name, x, constants):
        """Add ``scale_map`` or ``shift_map`` with `constants` (channels, height, width), or 1 for axes along which they are repeated."""
        by_channel, height, width = constants.shape
        array = 'factor' if name == 'scale_map' else 'summand'
        return self.add(name, [x], {array: _float32(constants)}, by_channel=int(by_channel > 1), height=height, width=width)

    def move(self, node, name, sources, **attributes):
        """Add an operation that only moves elements, on bits where the values are signs. `name` None adds none and returns the source."""
        encoding = self.network.encoding(Entry(node, 0))
        inputs = [self.bits(source, encoding) if encoding else self.real(source) for source in sources]
        return self.add(name, inputs, **attributes) if name else inputs[0]

    def finish(self, outputs, output_entries):
        """Return the `Lowered` program whose outputs are the values with the given numbers."""
        inputs = sorted(zip(self.inputs, self._input_numbers), key=lambda pair: (pair[0].node.index, pair[0].slot))
        order = [*(number for _, number in inputs), *(number for number, _ in self._operations)]
        final = {number: position for position, number in enumerate(order)}
        operations = [
            dataclasses.replace(operation, inputs=tuple(final[source] for source in operation.inputs)) for _, operation in self._operations
        ]
        program = Program([self._values[number] for _, number in inputs], operations, [final[number] for number in outputs])
        # several entries share a value where nodes are identities: the first one is the origin
        origins = {}
        for entry, number in [*self._bits.items(), *self._real.items()]:
            origins.setdefault(final[number], entry)
        return Lowered(program, [entry for entry, _ in inputs], list(output_entries), origins)
