"""Construction of a program: the operations added so far, and which values of the network they compute, as float32 or as bits."""

import dataclasses

import numpy as np

from ..program.operations import BITS_KIND, OPERATIONS, REAL_KIND, Operation, Value, result_of
from ..program.program import Program
from .network import Entry

_FLOAT32 = np.finfo(np.float32)
_EQUAL = 1e-6  # relative to the highest level: differences of levels that differ by less are equal up to rounding


class UnsupportedError(Exception):
    """A node cannot be converted; the message gives the reason."""


def as_float32(array, infinite=False):
    """Return an array as float32. Raise `UnsupportedError` unless all elements are representable, with `infinite` also infinities."""
    if not ((np.abs(array) <= _FLOAT32.max) | (infinite & np.isinf(array))).all():
        raise UnsupportedError('its factors or summands are too large for float32')
    return array.astype(np.float32)


def map_shape(shape):
    """Return (channels, height, width) in a program of a value of a network: (N, C), (N, C, W), (N, C, H, W) or (N, C, D, H, W).

    The program has D C channels for the last one, of one depth after the other (`rules.maps_3d`).
    """
    depth, sizes = (shape[2], shape[3:]) if is_3d(shape) else (1, shape[2:])
    return shape[1] * depth, *(1,) * (2 - len(sizes)), *sizes


def is_3d(shape):
    """Return whether a value of this shape is a 3-D map."""
    return len(shape) == 5


def for_each_depth(array, channels):
    """Return a constant per channel, (channels / depth,) or (1,), repeated for each depth of a value with `channels` channels."""
    return np.broadcast_to(np.tile(array, max(1, channels // np.size(array))), channels)


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
    midpoints : dict of int to list of float
        Bit planes (`Planes`) and numbers of levels of the program -> the numbers that the value exceeds where the bits of each plane are
        set, or that are counted.
    binary_layers : list of Node
        The layers whose products are computed by bit operations.
    float_layers : list of Node
        For each convolution of real numbers or of integers of the program, in order, the layer that it computes.
    integer_layers : dict of Node to (int, int)
        The layers that are sums of integers -> bits of a weight and of an input.
    """

    program: Program
    inputs: list
    outputs: list
    origins: dict
    midpoints: dict = dataclasses.field(default_factory=dict)
    binary_layers: list = dataclasses.field(default_factory=list)
    float_layers: list = dataclasses.field(default_factory=list)
    integer_layers: dict = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class Planes:
    """Bit planes of a value that has few levels: which elements have at least certain levels.

    Attributes
    ----------
    bits : int
        Number of a value with the planes one after the other, each with the channels of the value.
    step : float
        Difference between each of these levels and the one below, so that the value is the sum of step times the set bits, over all planes.
    midpoints : list of float
        For each plane, the number halfway between its level and the level below.
    """

    bits: int
    step: float
    midpoints: list

    @property
    def count(self):
        """The number of planes."""
        return len(self.midpoints)


def by_step(levels):
    """Group the levels, except the first one, by their difference from the one below; return (difference, [index from 0 on]) of each."""
    groups = []
    for index, step in enumerate(np.diff(levels)):
        for steps, indices in groups:
            if abs(steps[0] - step) <= _EQUAL * levels[-1]:
                steps.append(step)
                indices.append(index)
                break
        else:
            groups.append(([step], [index]))
    return [(float(np.mean(steps)), indices) for steps, indices in groups]


def _counted(comparisons):
    """Return the arrays of ``multi_threshold`` that counts comparisons; None if these rise and fall in a channel."""
    thresholds, flips = (np.stack(arrays) for arrays in zip(*comparisons))
    constant = np.isinf(thresholds)
    falls, rises = (flips & ~constant).any(axis=0), (~flips & ~constant).any(axis=0)
    if (falls & rises).any():
        return None
    holds = (thresholds == -np.inf) != flips  # of constants: whether they hold
    infinite = np.where(holds != falls, -np.inf, np.inf)
    return {'threshold': np.where(constant, infinite, thresholds).astype(np.float32), 'flip': falls}


class Builder:
    """Collect the operations of a program; the conversion rules add them.

    `comparisons` is a `network.Comparisons`.

    Values have provisional numbers until `finish`, because the number of inputs is not known before.
    """

    def __init__(self, network, comparisons):
        self.network, self.comparisons = network, comparisons
        self.takes_3d = False  # whether the values that are requested may be 3-D maps
        self.node = None  # the node that is being lowered
        self.inputs = []  # Entry
        self.binary_layers = []  # Node
        self._operations = []  # (number of the result, Operation)
        self._float_layers = {}  # number of the result of a `conv` -> Node
        self._values = []  # number -> Value
        self._real, self._bits = {}, {}  # Entry -> number
        self._steps = {}  # Entry -> (number, levels, comparisons) of `set_levels`
        self._planes = {}  # Entry -> what `planes` returns
        self._counts = {}  # Entry -> number of the value with the numbers of its levels
        self._input_numbers = []

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def real(self, entry):
        """Return the number of the float32 program value for `entry`; expand bits or add a program input where necessary."""
        self._require_layout(entry)
        if entry not in self._real:
            if entry in self._steps:
                self._real[entry] = self._real_levels(entry)
            elif entry in self._bits:
                self._real[entry] = self.add('expand', [self._bits[entry]], low=-1 if self.network.encoding(entry) == 'sign' else 0)
            else:
                self._real[entry] = self._input(entry)
        return self._real[entry]

    def bits(self, entry, encoding):
        """Return the number of the bits program value for `entry`, whose elements are in {-1, 1} or {0, 1}."""
        self._require_layout(entry)
        if entry not in self._bits:
            x = self.real(entry)
            channels = self._values[x].channels
            midpoint = np.full(channels, 0 if encoding == 'sign' else 0.5, dtype=np.float32)
            self._bits[entry] = self.add('threshold', [x], {'threshold': midpoint, 'flip': np.zeros(channels, dtype=bool)})
        return self._bits[entry]

    def planes(self, entry, levels):
        """Return bit planes of `entry`, whose elements are among `levels`, ascending from 0, and add them where necessary.

        Returns
        -------
        planes : list of Planes
            A value of bits for each distance between two levels; one if all distances are equal.
        x : int
            Number of the float32 value from which they are computed.
        """
        if entry not in self._planes:
            if entry not in self._steps:
                x = self.real(entry)
                shape = self._values[x].channels
                midpoints = (np.array(levels[1:]) + levels[:-1]) / 2
                comparisons = [(np.full(shape, midpoint, dtype=np.float32), np.zeros(shape, dtype=bool)) for midpoint in midpoints]
                self.set_levels(entry, x, levels, comparisons)
            self._add_planes(entry, *self._steps[entry])
        return self._planes[entry]

    def set_levels(self, entry, x, levels, comparisons):
        """Record that `entry` has these levels: for each of them except the first one, a comparison (threshold, flip) of value `x`."""
        self._steps[entry] = x, levels, comparisons

    def _real_levels(self, entry):
        """Add the float32 value of an entry with few levels: of the numbers of its levels, or if their distances differ of its planes."""
        x, levels, comparisons = self._steps[entry]
        counted = _counted(comparisons) if len(by_step(levels)) == 1 else None
        if counted is None:
            return self._sum_of_planes(*self.planes(entry, levels))
        self._counts[entry] = self.add('multi_threshold', [x], counted, thresholds=len(comparisons))
        return self.affine(self._counts[entry], levels[-1] / (len(levels) - 1), 0)

    def _add_planes(self, entry, x, levels, comparisons):
        planes = []
        for step, indices in by_step(levels):
            thresholds, flips = (np.concatenate(arrays) for arrays in zip(*(comparisons[index] for index in indices)))
            repeated = self.add('concat', [x] * len(indices)) if len(indices) > 1 else x
            bits = self.add('threshold', [repeated], {'threshold': thresholds, 'flip': flips})
            planes.append(Planes(bits, step, [(levels[index] + levels[index + 1]) / 2 for index in indices]))
        self._planes[entry] = planes, x

    def _sum_of_planes(self, planes, x):
        """Add the float32 value of bit planes that are computed from value `x`."""
        channels, terms = self._values[x].channels, []
        for plane in planes:
            slices = (self.add('slice', [plane.bits], begin=i * channels, end=(i + 1) * channels) for i in range(plane.count))
            terms.extend((self.add('expand', [bits], low=0), plane.step) for bits in slices)
        return self.weighted_sum(terms)

    def weighted_sum(self, terms, shift=0):
        """Add the sum of values times factors, plus `shift`; return the number of the result.

        Parameters
        ----------
        terms : list of tuple (int, float or numpy.ndarray)
            Number and factor of each value; factors and shift are scalars or arrays (channels,). Values with one factor are added first.
        """
        by_factor = []
        for number, factor in terms:
            if by_factor and np.array_equal(by_factor[-1][1], factor):
                number = self.add('add', [by_factor.pop()[0], number])
            by_factor.append((number, factor))
        total = None
        for number, factor in by_factor:
            summand = shift if total is None else 0
            scaled = self.affine(number, factor, summand) if np.any(summand) or np.any(np.not_equal(factor, 1)) else number
            total = scaled if total is None else self.add('add', [scaled, total])
        return total

    def output(self, entry):
        """Return the number of the float32 value for an output of the program, with the depths of a channel one after the other."""
        number, shape = self.real(entry), self.network.shape(entry)
        return self._swapped(number, shape[2], shape[1]) if is_3d(shape) else number

    def _swapped(self, number, first, second):
        """Add the exchange of two axes that the channels of a value consist of."""
        return self.add('shuffle', [number], groups=first) if first > 1 and second > 1 else number

    def flattened(self, number, shape):
        """Add the flattening of a value, which has `shape` in the network; return the number of the result."""
        if self._values[number].flat:
            return number
        return self.add('flatten', [self._swapped(number, shape[2], shape[1]) if is_3d(shape) else number])

    def _require_layout(self, entry):
        if is_3d(self.network.shape(entry)) and not self.takes_3d:
            raise UnsupportedError('it combines the elements of a 3-D map in a way that has no packed form')

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
        if len(shape) not in (2, 3, 4, 5) or not self.network.is_float32(entry):
            raise UnsupportedError(f'it reads a value of shape {shape} that is not a float32 map or vector')
        self.inputs.append(entry)
        channels, height, width = map_shape(shape)
        self._input_numbers.append(self._new(Value(REAL_KIND, channels, height, width, flat=len(shape) == 2)))
        return self._swapped(self._input_numbers[-1], shape[1], shape[2]) if is_3d(shape) else self._input_numbers[-1]

    def _new(self, value):
        self._values.append(value)
        return len(self._values) - 1

    # --- operations -----------------------------------------------------------------------------------------------------------------

    def add(self, name, inputs, arrays=None, **attributes):
        """Add an operation and return the number of its result."""
        for attribute, (lower, upper) in OPERATIONS[name].attributes.items():
            if not lower <= attributes[attribute] <= upper:
                raise UnsupportedError(f'{attribute} is {attributes[attribute]}; {lower} to {upper} can be packed')
        operation = Operation(name, tuple(inputs), attributes, arrays or {})
        number = self._new(result_of(operation, [self._values[source] for source in inputs]))
        self._operations.append((number, operation))
        if operation.row.products == 'floats':
            self._float_layers[number] = self.node
        return number

    def add_channelwise(self, name, x, **arrays):
        """Add an operation with one constant per channel, given as scalars or arrays (channels,); return the number of its result."""
        channels, rows = self._values[x].channels, OPERATIONS[name].arrays
        arrays = {key: as_float32(for_each_depth(array, channels), infinite=rows[key].ordered) for key, array in arrays.items()}
        return self.add(name, [x], arrays)

    def affine(self, x, scale, shift):
        """Add x * scale + shift, where scale and shift are scalars or arrays (channels,); return the number of the result."""
        return self.add_channelwise('affine', x, scale=scale, shift=shift)

    def add_positionwise(self, name, x, constants):
        """Add ``scale_map`` or ``shift_map`` with `constants` (channels, height, width), or 1 for axes along which they are repeated."""
        by_channel, height, width = constants.shape
        (array,) = OPERATIONS[name].arrays
        return self.add(name, [x], {array: as_float32(constants)}, by_channel=int(by_channel > 1), height=height, width=width)

    def move(self, node, name, sources, **attributes):
        """Add an operation that only moves elements, on bits where the values are signs. `name` None adds none and returns the source."""
        encoding = self.network.encoding(Entry(node, 0))
        inputs = [self.bits(source, encoding) if encoding else self.real(source) for source in sources]
        return self.add(name, inputs, **attributes) if name else inputs[0]

    def without_first(self, x, rows, columns):
        """Add the operations of value `x` again such that they omit its first rows and columns; return the number of the result.

        Windows with less padding before the map give the same elements, and elementwise operations on them as well. `finish` drops the
        operations whose results are not read. None if `x` is computed in another way, or has too little padding.
        """
        operations, found = dict(self._operations), {}  # each operation is added once, however many others read its result

        def reduced(number):
            if number not in found:
                found[number] = self._with_less_padding(operations.get(number), rows, columns, reduced)
            return found[number]

        return reduced(x)

    def _with_less_padding(self, operation, rows, columns, reduced):
        """Add one of the operations of `without_first`, which is None for a program input. `reduced` does so for the inputs it reads."""
        if operation is None:
            return None
        attributes, inputs = operation.attributes, operation.inputs
        if 'pad_top' in attributes:
            dropped = {'pad_top': attributes['stride_h'] * rows, 'pad_left': attributes['stride_w'] * columns}
            attributes = {**attributes, **{side: attributes[side] - size for side, size in dropped.items()}}
            if min(attributes[side] for side in dropped) < 0:
                return None
        elif operation.row.is_local:
            inputs = [reduced(number) for number in inputs]
            if None in inputs:
                return None
        else:
            return None
        return self.add(operation.name, inputs, operation.arrays, **attributes)

    def _eliminate_dead_operations(self, outputs):
        """Drop the operations on which none of the given values depends."""
        read, kept = set(outputs), []
        for number, operation in reversed(self._operations):
            if number in read:
                read.update(operation.inputs)
                kept.append((number, operation))
        self._operations = kept[::-1]

    def finish(self, outputs, output_entries):
        """Return the `Lowered` program whose outputs are the values with the given numbers."""
        self._eliminate_dead_operations(outputs)
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
            if number in final:
                origins.setdefault(final[number], entry)
        midpoints = {}
        for entry, (planes, _) in self._planes.items():
            for plane in planes:
                if plane.bits in final:
                    origins[final[plane.bits]], midpoints[final[plane.bits]] = entry, plane.midpoints
        for entry, number in self._counts.items():
            levels = self._steps[entry][1]
            if number in final:
                origins[final[number]], midpoints[final[number]] = entry, [(low + high) / 2 for low, high in zip(levels, levels[1:])]
        float_layers = [self._float_layers[number] for number, operation in self._operations if operation.row.products == 'floats']
        return Lowered(program, [entry for entry, _ in inputs], list(output_entries), origins, midpoints, self.binary_layers, float_layers)
