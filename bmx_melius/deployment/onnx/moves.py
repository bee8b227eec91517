"""Operators that move elements in a way that has no operation of its own, found by evaluation: what they do to the numbers of the elements.

A space-to-depth block is a `Reshape`, a `Transpose` and a `Reshape`, or slices that are concatenated; channels are repeated, reversed and
selected by `Tile`, `Expand`, `Gather` and `Slice`. Whatever the operators are, each channel of their result has the elements of one channel
from some row and column on, and a number of rows and columns apart. That is a convolution whose kernels are 1 at one place and 0 elsewhere.
"""

import dataclasses
import math

import numpy as np

from ...graph.operations import AxisSlice, Convolution, Identity, PositionSelection, Reshape, Window
from .evaluation import Cone

MOVING = frozenset(
    (
        *('Concat', 'Expand', 'Flatten', 'Gather', 'Identity', 'Reshape', 'Slice', 'SpaceToDepth', 'Split', 'Squeeze', 'Tile'),
        *('Transpose', 'Unsqueeze'),
    )
)
_MAX_OPERATORS = 256
_MAX_ELEMENTS = 1 << 24  # whose numbers float32 has
_MAX_KERNEL = 16
_MAX_WEIGHTS = 1 << 22


@dataclasses.dataclass
class Selection:
    """A selection of channels, rows and columns of a map.

    Attributes
    ----------
    channels, rows, columns : numpy.ndarray of int, shape (channels,)
        The channel from which each channel has its elements, and the row and column of the first one.
    strides : tuple of int
        Between rows and between columns.
    kernel : tuple of int
        Height and width of a convolution that has no more rows and columns than the result.
    """

    channels: np.ndarray
    rows: np.ndarray
    columns: np.ndarray
    strides: tuple
    kernel: tuple


@dataclasses.dataclass
class Positions:
    """Positions of maps, counted row by row, of one map after the other, and of each some successive channels.

    Attributes
    ----------
    sources : list of str
        The maps.
    channels : slice
    places : numpy.ndarray of int
    """

    sources: list
    channels: slice
    places: np.ndarray


def moving_cone(evaluator, name, is_map):
    """Return the `Cone` of operators that move elements of one value for which `is_map` holds to another value, or None."""
    sources, operators = _moving_operators(evaluator, name, is_map)
    return Cone(sources[0], operators) if len(sources) == 1 else None


def _moving_operators(evaluator, name, is_map):
    """Return the values for which `is_map` holds and the operators that move elements of these to another value; no values if others do."""
    sources, operators, waiting = set(), set(), [name]
    while waiting:
        value = waiting.pop()
        operator = evaluator.producers.get(value)
        if value != name and is_map(value):
            sources.add(value)
        elif operator is None or operator.kind not in MOVING or len(operators) == _MAX_OPERATORS:
            return [], []
        elif operator not in operators:
            operators.add(operator)
            waiting.extend(source for source in operator.inputs if source in evaluator.varying)
    return sorted(sources), [operator for operator in evaluator.model.operators if operator in operators]


def selection(evaluator, cone, name):
    """Return the `Selection` by which the operators of a cone make a value of its source, or None if they do something else."""
    before, after = evaluator.shape(cone.source), evaluator.shape(name)
    if not (2 < len(before) < 5 and 2 < len(after) < 5 and before[0] == after[0]) or max(np.prod(before), np.prod(after)) > _MAX_ELEMENTS:
        return None
    numbers = evaluator.moved(cone, name, np.arange(np.prod(before), dtype=np.float32).reshape(before)).astype(np.int64)
    image = int(np.prod(before[1:]))
    if (numbers.reshape(len(numbers), -1) // image != np.arange(len(numbers))[:, None]).any():
        return None
    sizes, wanted = map_sizes(before), map_sizes(after)
    channels, rows, columns = np.unravel_index(numbers[0].reshape(wanted), sizes)
    strides = _stride(rows[:, :, 0], sizes[1]), _stride(columns[:, 0, :], sizes[2])
    first = channels[:, 0, 0], rows[:, 0, 0], columns[:, 0, 0]
    expected = [
        first[0][:, None, None] + 0 * rows,
        first[1][:, None, None] + strides[0] * np.arange(wanted[1])[None, :, None] + 0 * rows,
        first[2][:, None, None] + strides[1] * np.arange(wanted[2])[None, None, :] + 0 * rows,
    ]
    if min(strides) < 1 or not all(map(np.array_equal, expected, (channels, rows, columns))):
        return None
    kernel = tuple(
        max(int(begin.max()) + 1, size - stride * count + 1)
        for begin, size, stride, count in zip(first[1:], sizes[1:], strides, wanted[1:])
    )
    return Selection(*first, strides, kernel) if max(kernel) <= _MAX_KERNEL else None


def selected_positions(evaluator, name, is_map):
    """Return the `Positions` of values for which `is_map` holds that operators move to another value, or None if they do something else."""
    sources, operators = _moving_operators(evaluator, name, is_map)
    before, after = [evaluator.shape(source) for source in sources], evaluator.shape(name)
    if not sources or {len(shape) for shape in (*before, after)} - {3, 4} or {shape[:2] for shape in before} != {before[0][:2]}:
        return None
    batch, channels = before[0][:2]
    counts = [int(np.prod(shape[2:])) for shape in before]
    positions, kept = sum(counts), len(after) > 2 and after[0] == batch
    if not kept or max(batch * channels * positions, np.prod(after)) > _MAX_ELEMENTS:
        return None
    numbers = np.arange(1, batch * channels * positions + 1, dtype=np.float32).reshape(batch, channels, positions)
    lines = np.split(numbers, np.cumsum(counts)[:-1], axis=2)
    (first, *others), cone = [line.reshape(shape) for line, shape in zip(lines, before)], Cone(sources[0], operators)
    found, opposite = (evaluator.moved(cone, name, sign * first, dict(zip(sources[1:], (sign * x for x in others)))) for sign in (1, -1))
    if not found.size or (found != -opposite).any() or not found.all():
        return None  # constants are among its elements
    images, selected, places = np.unravel_index(found.astype(np.int64).reshape(batch, after[1], -1) - 1, numbers.shape)
    begin = int(selected[0, 0, 0])
    expected = np.arange(batch)[:, None, None], np.arange(begin, begin + after[1])[None, :, None], places[:1, :1]
    if not all((array == other).all() for array, other in zip((images, selected, places), expected)):
        return None
    return Positions(sources, slice(begin, begin + after[1]), places[0, 0])


def map_sizes(shape):
    """Return channels, height and width of a map (N, C, W) or (N, C, H, W)."""
    return shape[1], *(1,) * (4 - len(shape)), *shape[2:]


def _stride(places, size):
    """Return the difference of the first two places (channels, n) along an axis of some size; if there is one, its size."""
    return int(places[0, 1] - places[0, 0]) if places.shape[1] > 1 else size


def add_selection(t, operator, cone, chosen):
    """Set the output of an operator to the convolution that selects elements; return whether it is not too large."""
    source = t.entry(cone.source)
    before, after = t.network.shape(source), t.shape(operator.outputs[0])
    order = np.lexsort((chosen.columns, chosen.rows, chosen.channels))
    groups = _shuffle(order)
    if not groups:
        order = np.arange(len(order))
    groups_of_inputs = _groups(chosen.channels[order], before[1])
    inputs, axes = before[1] // groups_of_inputs, len(before) - 2
    if len(order) * inputs * np.prod(chosen.kernel) > _MAX_WEIGHTS:
        return False
    weight = np.zeros((len(order), inputs, *chosen.kernel), np.float32)
    weight[np.arange(len(order)), chosen.channels[order] % inputs, chosen.rows[order], chosen.columns[order]] = 1
    weight = weight.reshape(len(order), inputs, *chosen.kernel[-axes:])
    window = Window(chosen.kernel[-axes:], chosen.strides[-axes:])
    kernels = t.network.add_constant(weight, f'{operator.name}_weight')
    shape = before[0], len(order), *map_sizes(after)[-axes:]
    entry = t.add_inner(operator, Convolution(window, groups_of_inputs), [source, kernels], shape)
    if groups > 1:
        entry = t.shuffled(operator, entry, groups, shape)
    t.add(operator, Reshape() if shape != after else Identity(), [entry])
    t.keep_signs(operator, cone.source)
    return True


def add_positions(t, operator, chosen):
    """Set the output of an operator to the positions that it selects."""
    entries = [t.entry(source) for source in chosen.sources]
    begin, end = chosen.channels.start, chosen.channels.stop
    for number, entry in enumerate(entries):
        batch, channels, *sizes = t.network.shape(entry)
        if (begin, end) != (0, channels):
            entries[number] = t.add_inner(operator, AxisSlice(1, begin, end), [entry], (batch, end - begin, *sizes))
    if len(entries) == 1 and np.array_equal(chosen.places, np.arange(math.prod(t.network.shape(entries[0])[2:]))):
        t.add(operator, Reshape() if t.network.shape(entries[0]) != t.shape(operator.outputs[0]) else Identity(), entries)
    else:
        t.add(operator, PositionSelection(tuple(chosen.places.tolist())), entries)
    if len(chosen.sources) == 1:
        t.keep_signs(operator, chosen.sources[0])


def _groups(channels, inputs):
    """Return the largest number of groups of channels, as a grouped convolution has them, of which each reads one group of inputs."""
    largest = int(np.gcd(inputs, len(channels)))
    for groups in (groups for groups in range(largest, 1, -1) if largest % groups == 0):
        if (channels // (inputs // groups) == np.arange(len(channels)) // (len(channels) // groups)).all():
            return groups
    return 1


def _shuffle(order):
    """Return the groups of the channel shuffle that undoes an order of channels: 1 if it changes nothing, 0 if it is not a shuffle."""
    count = len(order)
    for groups in (groups for groups in range(1, count) if count % groups == 0):
        shuffled = np.arange(count).reshape(groups, count // groups).T.reshape(-1)
        if np.array_equal(order[shuffled], np.arange(count)):
            return groups
    return 0
