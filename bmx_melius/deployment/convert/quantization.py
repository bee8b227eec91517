"""Post-training quantization of a program: real-valued layers become layers of 8-bit integers.

Weights have 8 bits, symmetric, with one scale for each filter; inputs of layers are bytes with one zero point for a tensor, whose range
comes from calibration images (`calibration`), and a scale for each channel (`equalization`). Sums have 32 bits and are rescaled by an
integer multiplier and a shift with one rounding, as in gemmlowp and CMSIS-NN (`program.operation_table`, ``rescale``): to bytes where only
such layers read them, otherwise to 16 bits.

A value of the program that is written is a *grid*, an affine-quantized value: integers n that stand for the real numbers n scale[c] +
shift[c]. Sums of binary layers are one from the beginning. Normalizations only change the scale and the shift of a grid; comparisons
become comparisons of integers; maxima, concatenations and moves leave integers as they are. So nothing but rescaling lies between
integer layers. An operation without a form for integers reads real numbers, and the report names it.
"""

import dataclasses
import math
from typing import Optional

import numpy as np

from ..program.by_operation import ByOperation
from ..program.layer_weights import bias_of, expanded, weight_of
from ..program.operation_table import MAX_BYTE, MAX_INT16, OFFSET_SHIFT, OPERATIONS
from ..program.operations import BITS_KIND, PADDING, Operation, range_of_sums
from ..program.program import Program

_MAX_WEIGHT = 127
_HEADROOM = 4  # 16-bit results may exceed the largest magnitude in calibration by this factor
_MAX_SUMMAND = MAX_INT16 // 2  # so that sums of two stay 16-bit integers
_FRACTION_BITS = 8  # of means
_TINY = 1e-30  # a range of only zeros has this length
_ROUNDING = 1e-6  # of a scale, relative


@dataclasses.dataclass(frozen=True)
class ValueRange:
    """Numbers of a value on calibration images.

    Attributes
    ----------
    low, high : float
        The range that bytes are to cover, after division by the factors.
    smallest, largest : float
    factors : numpy.ndarray or None
        (channels,): factors of the scales of the channels (`equalization`); None: 1.
    """

    low: float
    high: float
    smallest: float
    largest: float
    factors: Optional[np.ndarray] = None

    @property
    def magnitude(self):
        return max(abs(self.smallest), abs(self.largest))


@dataclasses.dataclass
class Quantized:
    """A quantized program.

    Attributes
    ----------
    program : Program
    number_of : dict of int to int
        Value of the given program -> value of this one, for bits and outputs.
    layers : int
        Number of layers of 8-bit integers.
    real : dict of str to int
        Operations that compute with real numbers, except at the inputs and outputs -> their number.
    """

    program: Program
    number_of: dict
    layers: int
    real: dict


@dataclasses.dataclass
class _Grid:
    """Integers of the new program, value `number`, that stand for min(max(n scale[c] + shift[c], low), high)."""

    number: int
    scale: np.ndarray
    shift: np.ndarray
    bounds: 'tuple[float, float]'  # of the integers
    low: float = -math.inf
    high: float = math.inf

    def assign(self, other):
        """Take the integers of another grid, which stand for the same numbers."""
        self.number, self.scale, self.shift, self.bounds = other.number, other.scale, other.shift, other.bounds
        self.low, self.high = other.low, other.high

    @property
    def is_clipped(self):
        return self.low > -math.inf or self.high < math.inf

    def lies_within(self, low, high):
        """Return whether the integers stand for numbers from `low` to `high` only, but for rounding."""
        reached = np.array([self.scale * bound + self.shift for bound in self.bounds]).clip(self.low, self.high)
        tolerance = _ROUNDING * np.abs(reached).max()
        return bool(reached.min() >= low - tolerance and reached.max() <= high + tolerance)

    @property
    def has_zero(self):
        """Whether an integer within the bounds stands for 0, or nearly so, as padding does."""
        zero = -self.shift / np.where(self.scale == 0, 1, self.scale)
        return bool(((zero > self.bounds[0] - 0.5) & (zero < self.bounds[1] + 0.5) & (self.scale != 0)).all())

    @property
    def is_bytes(self):
        return not self.is_clipped and self.bounds[0] >= 0 and self.bounds[1] <= MAX_BYTE


def observed_values(program):
    """Return the numbers of the values whose ranges `quantize` needs, sorted."""
    found = set()
    for number, operation in enumerate(program.operations, len(program.inputs)):
        if _RULES.get(operation.name) in _RULES_WITH_RANGES:
            found |= {*operation.inputs, number}
    kinds = [value.kind for value in program.values()]
    return sorted(number for number in found if kinds[number] != BITS_KIND)


def quantize(program, ranges, input_spec=None, keep_float=()):
    """Quantize a program.

    Parameters
    ----------
    program : Program
        With arrays; its float convolutions have weights of any form.
    ranges : dict of int to ValueRange
        Of each of `observed_values`.
    input_spec : InputSpec or None
        Preprocessing of the only input. The first layer then reads the pixels, 0 to 255, from which the input was computed.
    keep_float : collection of int
        Results of convolutions that remain float32.

    Returns
    -------
    Quantized
    """
    return _Quantizer(program, ranges, input_spec, keep_float).run()


_RULES = ByOperation()  # methods of `_Quantizer`: (operation, grids) -> a grid, or the number of bits
_RULES_WITH_RANGES = set()


def _with_ranges(rule):
    """Note that a rule needs the ranges of the inputs and of the result of its operation."""
    _RULES_WITH_RANGES.add(rule)
    return rule


class _Quantizer:
    def __init__(self, program, ranges, input_spec, keep_float):
        self._old, self._ranges, self._spec, self._keep_float = program, ranges, input_spec, keep_float
        self._values = program.values()
        self._readers = [[] for _ in self._values]
        for operation in program.operations:
            for source in operation.inputs:
                self._readers[source].append(operation)
        self._result_of = {id(operation): number for number, operation in enumerate(program.operations, len(program.inputs))}
        self._operations = []
        self._known = []  # by value of the old program: a _Grid, or the number of a real value or of bits
        self._real, self._layers = {}, 0

    def run(self):
        for number in range(len(self._old.inputs)):
            self._known.append(self._input(number))
        for operation in self._old.operations:
            inputs = [self._known[source] for source in operation.inputs]
            takes_grids = operation.name in _RULES and all(isinstance(x, _Grid) for x in inputs)
            if self._has_8_bits(operation) or takes_grids and not operation.row.products:
                self._known.append(_RULES[operation.name](self, operation, *inputs))
            else:
                self._known.append(self._as_before(operation, inputs))
        outputs = [self._real_number(self._known[number]) for number in self._old.outputs]
        number_of = {old: new if isinstance(new, int) else new.number for old, new in enumerate(self._known)}
        number_of.update(zip(self._old.outputs, outputs))
        return Quantized(Program(self._old.inputs, self._operations, outputs), number_of, self._layers, self._real)

    def _has_8_bits(self, operation):
        """Return whether an operation becomes a layer of 8-bit integers."""
        return operation.row.products == 'floats' and self._result_of[id(operation)] not in self._keep_float

    # --- writing

    def _emit(self, name, inputs, attributes=None, arrays=None):
        self._operations.append(Operation(name, tuple(inputs), attributes or {}, arrays or {}))
        return len(self._old.inputs) + len(self._operations) - 1

    def _as_before(self, operation, inputs):
        """Write an operation on real numbers or bits as it is."""
        numbers = [self._real_number(x) for x in inputs]
        row, result = operation.row, self._values[self._result_of[id(operation)]]
        number = self._emit(operation.name, numbers, operation.attributes, operation.arrays)
        if result.kind == BITS_KIND or row.moves:
            return number
        if row.range and (row.is_exact or row.products == 'int8'):
            bounds = _bounds_of(operation, self._values[operation.inputs[0]].channels)
            return number if bounds is None else _Grid(number, np.ones(result.channels), np.zeros(result.channels), bounds)
        self._real[operation.name] = self._real.get(operation.name, 0) + 1
        return number

    def _real_number(self, x):
        """Return the number of a value with the real numbers of a grid."""
        if not isinstance(x, _Grid):
            return x
        number = x.number
        if (x.scale != 1).any() or x.shift.any():
            number = self._emit('affine', [number], arrays={'scale': x.scale.astype(np.float32), 'shift': x.shift.astype(np.float32)})
        if x.is_clipped:
            limits = {name: np.full(len(x.scale), limit, np.float32) for name, limit in (('low', x.low), ('high', x.high))}
            number = self._emit('clip', [number], arrays=limits)
        return number

    def _rescaled(self, x, scale, zero, low, high):
        """Write the rescaling of a grid to integers low to high that stand for (n - zero) scale, one scale or one for each channel."""
        if x.is_clipped and np.ptp(scale) and (x.low not in (0, -math.inf) or x.high < math.inf):
            x = self._without_limits(x)  # these would be other integers for each channel
        smallest = np.min(scale)
        low = max(low, _whole(x.low / smallest + zero, low))
        high = min(high, _whole(x.high / smallest + zero, high))
        rescaling, arrays = _rescaling(x.scale / scale, x.shift / scale + zero, low, high)
        number = self._emit('rescale', [x.number], rescaling, arrays)
        channels = len(x.scale)
        return _Grid(number, np.full(channels, scale), np.full(channels, -zero * scale, np.float64), (low, high))

    def _without_limits(self, x):
        """Return a grid without limits of its own: `x`, from now on with other integers if it has limits."""
        if x.is_clipped:
            x.assign(self._in_16_bits(x))
        return x

    def _in_16_bits(self, x):
        """Return a grid of 16 bits, with one positive scale, for the numbers of `x`."""
        largest = max(np.abs(x.scale * bound + x.shift).max() for bound in x.bounds)
        if math.isfinite(x.low) and math.isfinite(x.high):
            largest = min(largest, max(abs(x.low), abs(x.high)))
        return self._rescaled(x, max(largest, _TINY) / MAX_INT16, 0, -MAX_INT16, MAX_INT16)

    # --- 8 bits

    def _bytes_of_readers(self, number):
        """Return scales (channels,) and zero point of the bytes of a value, or None if something else than 8-bit layers reads it."""
        if number in self._old.outputs or not self._readers[number]:
            return None
        found = [self._bytes_for(reader, number) for reader in self._readers[number]]
        if any(each is None for each in found) or any((each[0] != found[0][0]).any() or each[1] != found[0][1] for each in found):
            return None
        return found[0]

    def _bytes_for(self, reader, number):
        """Return scales and zero point that an operation requires of the value `number` that it reads, or None."""
        if self._has_8_bits(reader):
            return self._byte_scales(number)
        scales_before = _SCALES_BEFORE.get(reader.name)
        if scales_before is None:
            return None
        found = self._bytes_of_readers(self._result_of[id(reader)])
        return None if found is None else (scales_before(reader, found[0]), found[1])

    def _byte_scales(self, number):
        """Return scales (channels,) and zero point of bytes for the range of a value."""
        values = self._ranges[number]
        low, high = min(values.low, 0.0), max(values.high, 0.0)
        scale = max(high - low, _TINY) / MAX_BYTE
        factors = np.ones(self._values[number].channels) if values.factors is None else values.factors
        return scale * factors, min(max(round(-low / scale), 0), MAX_BYTE)

    def _bytes(self, x, scales, zero):
        """Return a grid of bytes with the numbers of `x`, a grid or the number of a real value."""
        if isinstance(x, _Grid) and x.is_bytes and x.has_zero:
            return x
        if isinstance(x, _Grid):
            return self._rescaled(x, scales, zero, 0, MAX_BYTE)
        return self._rounded(x, 1 / scales, np.full(len(scales), zero), scales, -zero * scales)

    def _rounded(self, number, factor, summand, scale, shift):
        """Write the rounding of real numbers times `factor` plus `summand` to bytes, which stand for n scale + shift."""
        scaled = self._emit('affine', [number], arrays={'scale': factor.astype(np.float32), 'shift': summand.astype(np.float32)})
        channels = len(factor)
        rescaling = {'shift': OFFSET_SHIFT, 'result_min': 0, 'result_max': MAX_BYTE}
        arrays = {'multiplier': np.full(channels, 1 << OFFSET_SHIFT, np.int32), 'offset': np.zeros(channels, np.int32)}
        rounded = self._emit('rescale', [scaled], rescaling, arrays)
        return _Grid(rounded, np.broadcast_to(scale, channels), np.broadcast_to(shift, channels), (0, MAX_BYTE))

    def _input(self, number):
        value = self._old.inputs[number]
        if self._spec is None or value.flat or value.channels != self._spec.channels:
            return number
        mean, std = (np.array(numbers, np.float64) for numbers in (self._spec.mean, self._spec.std))
        return self._rounded(number, std, mean, 1 / std, -mean / std)

    # --- operations on grids

    @_RULES.of('conv', 'level_conv')
    @_with_ranges
    def _conv(self, operation, x):
        number = self._result_of[id(operation)]
        source = operation.inputs[0]
        x = self._bytes(x, *self._byte_scales(source))
        name, weight_arrays, rounded, scale = self._int8_weight(operation, x)
        attributes = {key: value for key, value in operation.attributes.items() if key in OPERATIONS[name].attributes}
        filters, inputs = rounded.shape[:2]
        of_filter = np.repeat(np.arange(attributes['groups']), filters // attributes['groups'])
        zero, bias = -x.shift / x.scale, bias_of(operation)
        bias = np.zeros(filters) if bias is None else bias.astype(np.float64)
        bias = bias - scale * (rounded * zero.reshape(-1, inputs)[of_filter][:, :, None, None]).sum(axis=(1, 2, 3))
        bytes_of_readers = self._bytes_of_readers(number)
        if bytes_of_readers is None:
            step, zero_out = max(self._ranges[number].magnitude, _TINY) * _HEADROOM / MAX_INT16, 0
            rectified = self._readers[number] and all(reader.row.rectifies for reader in self._readers[number])
            limits = 0 if rectified and number not in self._old.outputs else -MAX_INT16, MAX_INT16
        else:
            step, zero_out = bytes_of_readers
            limits = 0, MAX_BYTE
        rescaling, arrays = _rescaling(scale / step, bias / step + zero_out, *limits)
        arrays = {**weight_arrays, 'pad': np.rint(zero).clip(0, MAX_BYTE).astype(np.int32), **arrays}
        result = self._emit(name, [x.number], {**attributes, **rescaling}, arrays)
        self._layers += 1
        return _Grid(result, np.full(filters, step), np.full(filters, -zero_out * step, np.float64), limits)

    @staticmethod
    def _int8_weight(operation, x):
        """Return the weight of a layer that reads the grid `x` in 8 bits.

        Returns
        -------
        name : str
            Of the operation that has it: ``level_int8_conv`` if it has few levels, and all channels of x the same scale.
        arrays : dict of str to numpy.ndarray
        weight : numpy.ndarray of int8, shape (filters, channels / groups, height, width)
        scale : numpy.ndarray, shape (filters,)
            The numbers by which filters are multiplied, and the scale of x.
        """
        arrays = operation.arrays
        if operation.row.weight_levels and np.ptp(x.scale) == 0:
            levels = arrays['levels'].astype(np.float64)
            largest = np.abs(levels).max()
            are_integers = (levels == np.rint(levels)).all() and largest <= _MAX_WEIGHT
            unit = 1.0 if are_integers else max(largest, _TINY) / _MAX_WEIGHT
            made = {'codes': arrays['codes'], 'levels': np.rint(levels / unit).astype(np.int8)}
            shape = weight_of(operation).shape
            return 'level_int8_conv', made, expanded(shape, *made.values()), arrays['scale'] * unit * x.scale[0]
        weight = weight_of(operation).astype(np.float64)
        filters, inputs = weight.shape[:2]
        of_filter = np.repeat(np.arange(operation.attributes['groups']), filters // operation.attributes['groups'])
        weight = weight * x.scale.reshape(-1, inputs)[of_filter][:, :, None, None]
        scale = np.maximum(np.abs(weight).max(axis=(1, 2, 3)), _TINY) / _MAX_WEIGHT
        rounded = np.rint(weight / scale[:, None, None, None]).astype(np.int8)
        return 'int8_conv', {'weight': rounded}, rounded, scale

    @_RULES.of('affine')
    def _affine(self, operation, x):
        x = self._without_limits(x)
        scale, shift = (operation.arrays[name].astype(np.float64) for name in ('scale', 'shift'))
        return dataclasses.replace(x, scale=x.scale * scale, shift=x.shift * scale + shift)

    @_RULES.of('relu')
    def _relu(self, operation, x):
        return _limited(x, 0.0, math.inf)

    @_RULES.of('clip')
    def _clip(self, operation, x):
        low, high = (operation.arrays[name].astype(np.float64) for name in ('low', 'high'))
        if (low != low[0]).any() or (high != high[0]).any():
            return self._as_before(operation, [x])
        return _limited(x, low[0], high[0])

    @_RULES.of('prelu')
    def _prelu(self, operation, x):
        """max(x, 0) + min(slope x, 0), and max(slope x, 0) where the slope is negative and x, too."""
        x = self._without_limits(x)
        slope = operation.arrays['slope'].astype(np.float64)
        largest = max(np.abs((x.scale * bound + x.shift) * np.maximum(np.abs(slope), 1)).max() for bound in x.bounds)
        scale = max(largest, _TINY) / _MAX_SUMMAND
        parts = [(np.ones_like(slope), 0, _MAX_SUMMAND), (slope.clip(0), -_MAX_SUMMAND, 0), (slope.clip(max=0), 0, _MAX_SUMMAND)]
        grids = [
            self._rescaled(dataclasses.replace(x, scale=x.scale * factor, shift=x.shift * factor), scale, 0, low, high)
            for factor, low, high in parts
            if factor.any()
        ]
        number = grids[0].number
        for grid in grids[1:]:
            number = self._emit('add', [number, grid.number])
        return dataclasses.replace(grids[0], number=number, bounds=(-_MAX_SUMMAND, _MAX_SUMMAND))

    @_RULES.of('max_pool')
    def _max_pool(self, operation, x):
        number = self._result_of[id(operation)]
        if self._bytes_of_readers(number) is not None:
            x = self._bytes(x, *self._bytes_of_readers(number))
        if (x.scale <= 0).any():
            x = self._in_16_bits(x)
        return dataclasses.replace(x, number=self._emit('max_pool', [x.number], operation.attributes))

    @_RULES.of('threshold', 'multi_threshold')
    def _threshold(self, operation, x):
        threshold, flip = operation.arrays['threshold'].astype(np.float64), operation.arrays['flip'].copy()
        with np.errstate(all='ignore'):
            exact = (threshold - x.shift) / x.scale
            first = np.where(x.scale > 0, np.ceil(exact), np.floor(exact) + 1)  # the smallest integer with the other result
        always = (threshold <= x.low) | (threshold == -np.inf) | ((x.scale == 0) & (x.shift >= threshold))
        never = ~always & ((threshold > x.high) | (threshold == np.inf) | (x.scale == 0))
        turned = x.scale < 0
        first = np.where(always | never, np.where(always != turned, -np.inf, np.inf), first).astype(np.float32)
        number = self._emit(operation.name, [x.number], operation.attributes, {'threshold': first, 'flip': flip ^ turned})
        if operation.row.result == BITS_KIND:
            return number
        return _Grid(number, np.ones_like(x.scale), np.zeros_like(x.scale), _bounds_of(operation, len(flip)))

    @_RULES.of('concat')
    def _concat(self, operation, *inputs):
        grids = [self._without_limits(x) for x in inputs]
        number = self._emit('concat', [x.number for x in grids])
        return _joined(number, grids)

    @_RULES.of('slice')
    def _slice(self, operation, x):
        begin, end = operation.attributes['begin'], operation.attributes['end']
        number = self._emit('slice', [x.number], operation.attributes)
        return dataclasses.replace(x, number=number, scale=x.scale[begin:end], shift=x.shift[begin:end])

    @_RULES.of('shuffle')
    def _shuffle(self, operation, x):
        number = self._result_of[id(operation)]
        groups = operation.attributes['groups']
        if self._bytes_of_readers(number) is not None:
            x = self._bytes(x, *self._bytes_for(operation, operation.inputs[0]))
        moved = [_shuffled(array, groups) for array in (x.scale, x.shift)]
        return dataclasses.replace(x, number=self._emit('shuffle', [x.number], operation.attributes), scale=moved[0], shift=moved[1])

    @_RULES.of('flatten')
    def _flatten(self, operation, x):
        value = self._values[operation.inputs[0]]
        repeated = [np.repeat(array, value.height * value.width) for array in (x.scale, x.shift)]
        return dataclasses.replace(x, number=self._emit('flatten', [x.number]), scale=repeated[0], shift=repeated[1])

    @_RULES.of('unflatten')
    def _unflatten(self, operation, x):
        return dataclasses.replace(x, number=self._emit('unflatten', [x.number]))

    @_RULES.of('add')
    @_with_ranges
    def _add(self, operation, x, y):
        x, y = (self._without_limits(one) for one in (x, y))
        if (x.scale != y.scale).any():
            numbers = [*operation.inputs, self._result_of[id(operation)]]
            largest = max(self._ranges[number].magnitude for number in numbers)
            scale = max(largest, _TINY) * _HEADROOM / _MAX_SUMMAND
            x, y = (self._rescaled(one, scale, 0, -_MAX_SUMMAND, _MAX_SUMMAND) for one in (x, y))
        bounds = x.bounds[0] + y.bounds[0], x.bounds[1] + y.bounds[1]
        return _Grid(self._emit('add', [x.number, y.number]), x.scale, x.shift + y.shift, bounds)

    @_RULES.of('global_avg_pool')
    def _global_avg_pool(self, operation, x):
        return self._mean('integer_mean', operation, x)

    @_RULES.of('avg_pool')
    def _avg_pool(self, operation, x):
        return self._mean('integer_avg_pool', operation, x)

    def _mean(self, name, operation, x):
        x = self._without_limits(x)
        if max(map(abs, x.bounds)) > MAX_INT16:  # as means are
            x = self._in_16_bits(x)
        attributes = operation.attributes
        if attributes.get('count_pad') and any(attributes[side] for side in PADDING) and x.shift.any():
            x = self._in_16_bits(x)  # so that padding is 0
        number = self._emit(name, [x.number], {**attributes, 'fraction_bits': _FRACTION_BITS})
        bounds = tuple(bound * 2**_FRACTION_BITS for bound in x.bounds)
        return dataclasses.replace(x, number=number, scale=x.scale / 2**_FRACTION_BITS, bounds=bounds)


def _bounds_of(operation, channels):
    """Return bounds of the integers that an operation makes of `channels` channels of bits or integers; None if they may be halves."""
    attributes, rule = operation.attributes, operation.row.range
    if rule == 'limits':
        return float(attributes['result_min']), float(attributes['result_max'])
    if rule == 'counts':
        return 0.0, float(attributes['thresholds'])
    range = (-1, 1) if rule == 'bits' else range_of_sums(operation, channels)
    return range and (-float(max(map(abs, range))), float(max(map(abs, range))))


def _shuffled(array, groups):
    return array.reshape(groups, -1).T.reshape(-1)


_SCALES_BEFORE = ByOperation()  # operations that leave bytes as they are: (operation, scales of its result) -> scales of its input


@_SCALES_BEFORE.of('relu', 'clip', 'max_pool')
def _same_scales(_, scales):
    return scales


@_SCALES_BEFORE.of('shuffle')
def _scales_before_shuffle(shuffle, scales):
    return _shuffled(scales, len(scales) // shuffle.attributes['groups'])


def _limited(x, low, high):
    """Return a grid with limits of its numbers, which nothing computes until they matter."""
    if x.lies_within(low, high):
        return x
    return dataclasses.replace(x, low=min(max(x.low, low), high), high=min(max(x.high, low), high))


def _joined(number, grids):
    bounds = min(x.bounds[0] for x in grids), max(x.bounds[1] for x in grids)
    return _Grid(number, np.concatenate([x.scale for x in grids]), np.concatenate([x.shift for x in grids]), bounds)


def _whole(x, default):
    return int(np.rint(np.clip(x, -(2.0**31), 2.0**31))) if math.isfinite(x) else default


def _rescaling(factor, summand, low, high):
    """Return attributes and arrays of the rescaling n factor[c] + summand[c], limited to low to high.

    The shift is the largest with which results between the limits, and what they are computed from, fit into 32 bits, so that engines need
    no more. That makes multipliers of 23 bits and a shift for bytes, of 16 for results of 16 bits.
    """
    largest = np.abs(factor).max()
    shift = math.floor(math.log2(2**31 / (max(abs(low), abs(high)) + 1)))
    if largest > 0:
        shift = min(shift, math.floor(30 - math.log2(largest)))
    shift = max(shift, OFFSET_SHIFT)
    limit = 2.0**31 - 1
    multiplier = np.rint(factor * 2.0**shift).clip(-limit, limit).astype(np.int32)
    offset = np.rint(summand * 2.0**OFFSET_SHIFT).clip(-limit, limit).astype(np.int32)
    return {'shift': shift, 'result_min': int(low), 'result_max': int(high)}, {'multiplier': multiplier, 'offset': offset}
