"""Values and operations of a program, and the shapes of results.

`operation_table` has the operations with their attributes and arrays; the shape rules that it names are here.
"""

import dataclasses
import re
from typing import Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np

from ...errors import UserError
from .limits import MAX_CHANNELS, MAX_ELEMENTS, MAX_INT8_WEIGHTS, MAX_SIZE, MAX_WEIGHTS
from .operation_table import BITS_KIND, OPERATIONS, PADDING, REAL_KIND, SIDES, OperationType

__all__ = ['BITS_KIND', 'OPERATIONS', 'PADDING', 'REAL_KIND', 'SIDES']  # of the table, beside what is defined here

FLOAT = np.dtype('<f4')
HALF = np.dtype('<f2')
INT8 = np.dtype('i1')
_DTYPES = {'float32': FLOAT, 'float16': HALF, 'int32': np.dtype('<i4'), 'int8': INT8, 'bits': np.dtype(bool)}
_MAX_WEIGHTS: Dict[Optional[str], int] = {'binary': MAX_WEIGHTS, 'int8': MAX_INT8_WEIGHTS}  # products -> weights of an output, exclusive
SIZE_TERMS = re.compile(r'([*/]?) ?(2\^)?(\w+)')  # of a size of an array: operator, whether it is a power, name or number


class ProgramError(UserError):
    """The words are not a valid program, or a program cannot run on the given input; the message gives the place and the reason."""


@dataclasses.dataclass(frozen=True)
class Value:
    """Kind and shape (for one image) of a value. Flat values have height and width 1."""

    kind: str
    channels: int
    height: int
    width: int
    flat: bool

    @property
    def shape(self) -> Tuple[int, ...]:
        """Shape for one image: (channels,) or (channels, height, width)."""
        return (self.channels,) if self.flat else (self.channels, self.height, self.width)

    def __str__(self) -> str:
        return f'{self.kind} ({", ".join(map(str, self.shape))})'


@dataclasses.dataclass
class Operation:
    """One operation: its name in `OPERATIONS`, the numbers of its input values, its attributes and its arrays.

    An operation of a structure has no arrays, but the words before each of them (`program`, *Arrays*) as ``array_numbers``.
    """

    name: str
    inputs: Tuple[int, ...]
    attributes: Dict[str, int] = dataclasses.field(default_factory=dict)
    arrays: Dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    array_numbers: Dict[str, int] = dataclasses.field(default_factory=dict)

    @property
    def row(self) -> OperationType:
        """Its row of the table of operations."""
        return OPERATIONS[self.name]


# --- arrays ---------------------------------------------------------------------------------------------------------------------------


def array_shapes(operation: Operation, channels: int) -> Dict[str, Tuple[np.dtype, Tuple[int, ...]]]:
    """Return the arrays of an operation with `channels` input channels, in the order of the file: name -> (dtype, shape)."""
    attributes = operation.attributes
    return {
        name: (_dtype(array.dtype, attributes), tuple(_size(size, attributes, channels) for size in array.shape))
        for name, array in operation.row.arrays.items()
        if array.exists is None or attributes[array.exists]
    }


def _dtype(text: str, attributes: Dict[str, int]) -> np.dtype:
    name, _, flag = text.partition(' if ')
    return _DTYPES[name] if not flag or attributes[flag] else FLOAT


def _size(text: str, attributes: Dict[str, int], channels: int) -> int:
    terms, _, flag = text.partition(' if ')
    if flag and not attributes[flag]:
        return 1
    number = 1
    for operator, power, name in SIZE_TERMS.findall(terms):
        term = channels if name == 'C' else int(name) if name.isdigit() else attributes[name]
        term = 1 << term if power else term
        number = number // term if operator == '/' else number * term
    return number


def range_of_sums(operation: Operation, channels: int) -> Optional[Tuple[int, int]]:
    """Return the smallest and the largest possible sum of a binary convolution of so many channels; None if its sums may be halves."""
    attributes = operation.attributes
    n = attributes['kernel_h'] * attributes['kernel_w'] * (channels // attributes['groups'])
    if attributes['offset'] and attributes['pad_value'] == 0 and any(attributes[side] for side in PADDING):
        return None
    return (0 if attributes['offset'] else -n), n


ShapeAndRank = Tuple[int, int, int, bool]


# --- shape rules: (operation, inputs) -> channels, height, width, and whether the result is flat ----------------------------------------


def _same(_: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    return x.channels, x.height, x.width, x.flat


def _convolution(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), attributes = inputs, operation.attributes
    groups, channels = attributes['groups'], attributes['out_channels']
    if x.channels % groups or channels % groups:
        raise ProgramError(f'{operation.name} cannot split {x.channels} into {channels} channels in {groups} groups')
    window = attributes['kernel_h'] * attributes['kernel_w'] * x.channels
    limit = _MAX_WEIGHTS.get(operation.row.products)
    if limit and window // groups >= limit:
        raise ProgramError(f'{operation.name} with {window // groups} weights per output; fewer than {limit} are exact')
    if x.channels // groups % attributes.get('planes', 1):
        planes = attributes['planes']
        raise ProgramError(f'{operation.name} cannot split the {x.channels // groups} channels of a group into {planes} planes')
    if operation.row.products != 'binary' and window >= MAX_ELEMENTS:
        raise ProgramError(f'{operation.name} has {MAX_ELEMENTS} or more elements in a window')
    height, width = _windows(operation, x, ceil=False)
    return channels, height, width, x.flat


def _pooling(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), name, attributes = inputs, operation.name, operation.attributes
    if any(attributes[side] >= attributes[f'kernel_{axis}'] for axis in 'hw' for side in SIDES[axis]):
        raise ProgramError(f'{name} with a pad as large as its kernel has windows without an element')
    height, width = _windows(operation, x, ceil=bool(attributes['ceil']))
    last_row, last_column = (
        (size - 1) * attributes[f'stride_{axis}'] - attributes[SIDES[axis][0]] for size, axis in ((height, 'h'), (width, 'w'))
    )
    if last_row >= x.height or last_column >= x.width:
        raise ProgramError(f'{name} has a last window without an element of the map')
    return x.channels, height, width, x.flat


def _windows(operation: Operation, x: Value, ceil: bool) -> List[int]:
    """Return height and width of the result of sliding the window of an operation over `x`."""
    sizes = []
    for axis, size in (('h', x.height), ('w', x.width)):
        kernel, stride = (operation.attributes[f'{name}_{axis}'] for name in ('kernel', 'stride'))
        pad = sum(operation.attributes[side] for side in SIDES[axis])
        extent = operation.attributes.get(f'dilation_{axis}', 1) * (kernel - 1) + 1
        if x.flat and (extent, stride, pad) != (1, 1, 0):
            raise ProgramError(f'{operation.name} of a flat value must have kernel 1')
        room = size + pad - extent
        if room < 0:
            raise ProgramError(f'{operation.name} has a window of {extent} on a padded map of {size + pad}')
        sizes.append((room + stride - 1 if ceil else room) // stride + 1)
    return sizes


def _global(_: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    return x.channels, 1, 1, x.flat


def _one_channel(_: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    return 1, x.height, x.width, x.flat


def _equal(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    x = inputs[0]
    for y in inputs:
        if x != y:
            raise ProgramError(f'{operation.name} of {x} and {y}')
    return x.channels, x.height, x.width, x.flat


def _broadcast(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    x, y = inputs
    if y.channels not in (1, x.channels) or y.height not in (1, x.height) or y.width not in (1, x.width):
        raise ProgramError(f'{operation.name} of {x} and {y}')
    return x.channels, x.height, x.width, x.flat


def _positions(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), attributes = inputs, operation.attributes
    if attributes['height'] not in (1, x.height) or attributes['width'] not in (1, x.width):
        raise ProgramError(
            f'{operation.name} has constants for a map of {attributes["height"]} x {attributes["width"]}, not of {x.height} x {x.width}: '
            'give inputs of the size at conversion'
        )
    return x.channels, x.height, x.width, x.flat


def _joined(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    x = inputs[0]
    for y in inputs:
        if y.height != x.height or y.width != x.width:
            raise ProgramError(f'{operation.name} of {x} and {y}')
    return sum(y.channels for y in inputs), x.height, x.width, x.flat


def _cut(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), begin, end = inputs, operation.attributes['begin'], operation.attributes['end']
    if not begin < end <= x.channels:
        raise ProgramError(f'{operation.name} of channels {begin} to {end} of {x.channels}')
    return end - begin, x.height, x.width, x.flat


def _groups(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), groups = inputs, operation.attributes['groups']
    if x.channels % groups:
        raise ProgramError(f'{operation.name} of {x.channels} channels in {groups} groups')
    return x.channels, x.height, x.width, x.flat


def _enlarged(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), attributes = inputs, operation.attributes
    if x.flat:
        raise ProgramError(f'{operation.name} of {x}')
    height, width = (
        size * attributes[scale] if attributes['repeat'] else (size - 1) * attributes[scale] + 1
        for size, scale in ((x.height, 'scale_h'), (x.width, 'scale_w'))
    )
    return x.channels, height, width, x.flat


def _flat(_: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    return x.channels * x.height * x.width, 1, 1, True


def _transposed(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), attributes = inputs, operation.attributes
    if x.flat or (attributes['height'], attributes['width']) != (x.height, x.width):
        raise ProgramError(
            f'{operation.name} is of a map of {attributes["height"]} x {attributes["width"]}, not of {x}: give inputs of the size at '
            'conversion'
        )
    return x.height * x.width, 1, x.channels, False


def _arranged(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,), positions = inputs, inputs[0].height * inputs[0].width
    length = operation.attributes['row_length'] or positions
    if x.flat or positions % length:
        raise ProgramError(f'{operation.name} of {x} in rows of {length}')
    return x.channels, positions // length, length, False


def _gathered(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    x, attributes = inputs[0], operation.attributes
    if any(y.channels != x.channels for y in inputs):
        raise ProgramError(f'{operation.name} of values with different numbers of channels')
    positions = sum(y.height * y.width for y in inputs)
    if x.flat or positions != attributes['positions']:
        raise ProgramError(f'{operation.name} from {attributes["positions"]} positions, of {x}: give inputs of the size at conversion')
    return x.channels, attributes['height'], attributes['width'], False


def _product(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (_, y) = inputs
    return _product_of(operation, inputs, y.height * y.width)


def _product_of_rows(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x, y) = inputs
    if x.height != y.height:
        raise ProgramError(f'{operation.name} of {x} and {y}, which have different numbers of rows')
    return _product_of(operation, inputs, y.width)


def _product_of(operation: Operation, inputs: Sequence[Value], found: int) -> ShapeAndRank:
    (x, y), heads, positions = inputs, operation.attributes['heads'], operation.attributes['positions']
    if found != positions:
        raise ProgramError(f'{operation.name} with {positions} positions, of {y}: give inputs of the size at conversion')
    channels, inner = (heads * positions, y.channels) if operation.attributes['transposed'] else (y.channels, heads * positions)
    if x.flat or x.channels % heads or y.channels % heads or x.channels != inner:
        raise ProgramError(f'{operation.name} of {x} and {y} in {heads} groups')
    return channels, x.height, x.width, False


def _looked_up(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    if x.channels != 1:
        raise ProgramError(f'{operation.name} of {x}, which has more than one number at a position')
    return operation.attributes['features'], x.height, x.width, x.flat


def _map(operation: Operation, inputs: Sequence[Value]) -> ShapeAndRank:
    (x,) = inputs
    if not x.flat:
        raise ProgramError(f'{operation.name} of {x}')
    return x.channels, x.height, x.width, False


SHAPES: Dict[str, Callable[[Operation, Sequence[Value]], ShapeAndRank]] = {
    'same': _same,
    'convolution': _convolution,
    'pooling': _pooling,
    'global': _global,
    'one_channel': _one_channel,
    'equal': _equal,
    'broadcast': _broadcast,
    'positions': _positions,
    'joined': _joined,
    'cut': _cut,
    'groups': _groups,
    'enlarged': _enlarged,
    'flat': _flat,
    'map': _map,
    'transposed': _transposed,
    'arranged': _arranged,
    'product': _product,
    'product_of_rows': _product_of_rows,
    'gathered': _gathered,
    'looked_up': _looked_up,
}


def result_of(operation: Operation, inputs: Sequence[Value]) -> Value:
    """Return the `Value` that an operation computes from the values `inputs`.

    Raises
    ------
    ProgramError
        If the operation does not accept them.
    """
    name, row, x = operation.name, operation.row, inputs[0]
    for value in inputs:
        if value.kind not in row.kinds:
            raise ProgramError(f'{name} does not take {value}')
        if value.kind != x.kind or value.flat != x.flat:
            raise ProgramError(f'{name} mixes {x} with {value}')
    low, high = (operation.attributes.get(limit, 0) for limit in ('result_min', 'result_max'))
    if low > high:
        raise ProgramError(f'{name} limits its results to {low} to {high}')
    channels, height, width, flat = SHAPES[row.shape](operation, inputs)
    if channels > MAX_CHANNELS:
        raise ProgramError(f'{name} makes {channels} channels; at most {MAX_CHANNELS} are possible')
    if height > MAX_SIZE or width > MAX_SIZE:
        raise ProgramError(f'{name} makes a map of {height} x {width}; at most {MAX_SIZE} a side')
    if channels * height * width >= MAX_ELEMENTS:
        raise ProgramError(f'{name} makes a map of {MAX_ELEMENTS} or more elements')
    return Value(row.result or x.kind, channels, height, width, flat)
