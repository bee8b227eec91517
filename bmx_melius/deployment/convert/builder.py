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
    middles : dict of int to list of float
        Bit planes of the program (`Builder.planes`) -> the numbers that the value exceeds where the bits of each plane are set.
    """

    program: Program
    inputs: list
    outputs: list
    origins: dict
    middles: dict = dataclasses.field(default_factory=dict)


def _middles(steps):
    """Return the numbers in the middle between the levels 0, 1/steps ... 1."""
    return [(level - 0.5) / steps for level in range(1, steps + 1)]


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
        self._planes = {}  # Entry -> what `planes` returns
        self._input_numbers = []

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def real(self, entry):
        """Return the number of the float32 program value for `entry`; expand bits or add a program input where necessary."""
        if entry not in self._real:
            if entry in self._planes:
                self._real[entry] = self._levels(*self._planes[entry])
            elif entry in self._bits:
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

    def planes(self, entry, steps):
        """Return bit planes of `entry`, whose elements are in {0, 1/steps, ..., 1}, and add them where necessary.

        Returns
        -------
        bits : int
            Number of a value with steps times the channels: which elements are at least 1/steps, which ones 2/steps, and so on.
        x : int
            Number of the float32 value from which they are computed.
        """
        if entry not in self._planes:
            x = self.real(entry)
            shape = self._values[x].channels
            levels = [(np.full(shape, middle, dtype=np.float32), np.zeros(shape, dtype=bool)) for middle in _middles(steps)]
            self.set_planes(entry, x, levels)
        return self._planes[entry]

    def set_planes(self, entry, x, levels):
        """Add the bit planes of `entry`: comparisons of value `x` with thresholds, for each level (threshold, flip)."""
        thresholds, flips = (np.concatenate(arrays) for arrays in zip(*levels))
        repeated = self.add('concat', [x] * len(levels)) if len(levels) > 1 else x
        self._planes[entry] = self.add('threshold', [repeated], {'threshold': thresholds, 'flip': flips}), x

    def _levels(self, bits, x):
        """Add the float32 value of bit planes."""
        channels = self._values[x].channels
        steps = self._values[bits].channels // channels
        slices = (self.add('slice', [bits], begin=step * channels, end=(step + 1) * channels) for step in range(steps))
        total, *others = [self.add('expand', [plane], low=0) for plane in slices]
        for other in others:
            total = self.add('add', [total, other])
        return self.affine(total, 1 / steps, 0)

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
        middles = {}
        for entry, (bits, x) in self._planes.items():
            origins[final[bits]], middles[final[bits]] = entry, _middles(self._values[bits].channels // self._values[x].channels)
        return Lowered(program, [entry for entry, _ in inputs], list(output_entries), origins, middles)
