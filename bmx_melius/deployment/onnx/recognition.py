"""Recognition of binarization by evaluation: values that take few levels, and weights that are signs, whatever computes them.

Exporters leave the estimators of gradients in a model: a sign is a chain of comparisons, polynomials, sums and differences whose result
is -1 or 1 up to a rounding error. So no pattern is looked for. A value that is computed element by element from another one is evaluated
on float32 numbers of all magnitudes; if it takes few levels, the numbers at which it changes are found by a search over the order of
float32 (`bmx_melius.deployment.convert.thresholds`), with ONNX Runtime's own rounding.
"""

import dataclasses
import math

import numpy as np

from ..convert.thresholds import NotMonotoneError, switching_points
from ..convert.weight_levels import clusters

MAX_LEVELS = 16  # of a value that becomes bit planes
_EQUAL = 1e-4  # levels that differ by less, relative to the largest one, are one level with rounding errors
# Magnitudes up to which a value must have its levels: all numbers, numbers whose square is finite, and numbers beside which a difference of
# 1 keeps its first digits, as in (sign(x) - x) + x.
_BOUNDS = (float(np.finfo(np.float32).max), 1e15, 2.0**12)
_LARGEST_SUM = 1e6  # of integers, such as activations and weights of 4 bits
_ROUNDING = 2.0**-22  # error of a sum relative to the largest number in it
_TIE = 16  # numbers at which a sign may be 0 because its argument is 0 up to rounding
_WIGGLE = 5  # tolerances: more than numbers of one level differ by
_CHANNELS = 16  # whose changes are looked for at a time, and which are tried before all of them
_COARSE = 37  # of so many numbers one is tried first
_NEAR = 1 / 64  # of the difference of two levels: what is nearer to one of them is this level


@dataclasses.dataclass
class StepFunction:
    """A value that is a step function of another one.

    Attributes
    ----------
    source : str
        Name of the value that it compares.
    levels : numpy.ndarray of float64, shape (n, channels)
        Its levels, rising.
    comparisons : list of (numpy.ndarray of float32, numpy.ndarray of bool), each (channels,)
        For each level but the lowest one, threshold and flip: it has this level or a higher one where (x >= threshold) != flip.
    bound : float
        Largest magnitude of x for which this holds.
    tolerance : float
        Largest rounding error of a level.
    tie_channels : int
        Number of channels in which a number has the level between both, as 0 has in sign(x).
    upper : (numpy.ndarray of float32, numpy.ndarray of bool) or None
        Where this level ends; None unless there are two.
    """

    source: str
    levels: np.ndarray
    comparisons: list
    bound: float
    tolerance: float
    tie_channels: int = 0
    upper: 'tuple | None' = None

    def of_channels(self, part):
        """Return the step in the channels of a slice."""
        comparisons = [(threshold[part], flip[part]) for threshold, flip in self.comparisons]
        upper = self.upper and tuple(array[part] for array in self.upper)
        return dataclasses.replace(self, levels=self.levels[:, part], comparisons=comparisons, upper=upper)


def find_step(evaluator, name):
    """Return the `StepFunction` by which a value is computed, or None."""
    if not has_few_numbers(evaluator.sampled[name]):
        return None
    for cone in evaluator.cones(name):
        step = _step_from(evaluator, cone, name)
        if step is not None:
            return step
    return None


def _step_from(evaluator, cone, name):
    """Return the `StepFunction` from the source of a cone to a value, or None."""
    function, channels = evaluator.function(cone, name), evaluator.shape(name)[1]
    largest = float(np.abs(evaluator.sampled[cone.source]).max())
    bounds = [bound for bound in _BOUNDS if not bound < largest]  # within a lower one, levels of the sample may be missing
    signed = [(-bound, bound) for bound in bounds]
    # without negative numbers, a sign that is 0 for 0 has two levels; one that is 1 for 0 has them only with negative numbers
    nonnegative = [(0.0, bound) for bound in bounds] if is_nonnegative(evaluator, cone.source) else []
    for low, bound in nonnegative + signed:
        try:
            step = _step_of(
                lambda x: function(np.clip(x, low, bound)).astype(np.float64),  # noqa: B023  called here only
                channels,
                bound,
                largest,
            )
        except NotMonotoneError:
            step = None
        if step is not None and _holds_beside_changes(evaluator, cone, name, step, low):
            step.source = cone.source
            return step
    return None


def has_few_numbers(array):
    """Return whether a value of a sample has few different numbers in each channel, up to rounding errors."""
    if array.ndim < 2 or not array.size or array.dtype not in (np.float32, bool) or not np.isfinite(array).all():
        return False
    scale = max(float(np.abs(array).max()), 1e-30)
    by_channel = np.rint(array.swapaxes(0, 1).reshape(array.shape[1], -1) / (scale * _EQUAL))
    by_channel.sort(axis=1)
    return bool(((np.diff(by_channel, axis=1) > 1).sum(axis=1) < MAX_LEVELS).all())


def _grid(bound):
    magnitudes = np.unique(
        np.concatenate(
            [np.geomspace(1e-44, bound, 600), np.geomspace(1e-3, min(bound, _LARGEST_SUM), 1800), np.linspace(0, min(bound, 64), 800)]
        )
    )
    return np.concatenate([-magnitudes[::-1], magnitudes]).astype(np.float32)


def _step_of(function, channels, bound, largest):
    numbers = _grid(bound)
    grid = np.broadcast_to(numbers, (channels, len(numbers)))
    scale = 0.0
    # first some of the numbers, then some of the channels, which tell most other functions apart
    for part, every in ((channels, _COARSE), (min(channels, _CHANNELS), 1), (channels, 1)):
        with np.errstate(invalid='ignore', over='ignore'):
            values = function(grid[:part, ::every])
        if not np.isfinite(values).all():
            return None
        scale = max(scale, float(np.abs(values).max()))
        tolerance = scale * _EQUAL + (bound * _ROUNDING if bound == _BOUNDS[-1] else 0)
        changes = np.diff(values, axis=1)
        if ((changes > _WIGGLE * tolerance).any(axis=1) & (changes < -_WIGGLE * tolerance).any(axis=1)).any():
            return None  # it rises and falls
        jumps = (np.diff(np.sort(values, axis=1, kind='stable'), axis=1) > tolerance).sum(axis=1)  # stable: fast where they rise already
        if jumps.max() >= MAX_LEVELS:
            return None
    if not jumps.any():
        return None
    found = [clusters(row, tolerance) for row in values]
    levels = _common_levels(found, tolerance)
    if levels is None:
        return None
    step = StepFunction('', levels, [], bound, tolerance)
    for lower, upper in zip(levels, levels[1:]):
        middle = ((lower + upper) / 2)[:, None]
        step.comparisons.append(switching_points(lambda x: function(x) > middle, channels))  # noqa: B023
    if len(levels) in (2, 3):
        _remove_tie(function, step, largest * _ROUNDING)
    return step if _holds(function, step, grid, values) else None


def _common_levels(found, tolerance):
    """Return levels (n, channels) from the levels of each channel; a constant channel may have one; None if numbers differ."""
    most = max(found, key=len)
    levels = np.array([row if len(row) == len(most) else most for row in found]).T
    for channel, row in enumerate(found):
        if len(row) != len(most) and any(np.abs(levels[:, channel] - level).min() > tolerance for level in row):
            return None
    return levels


def _remove_tie(function, step, narrow):
    """Take a level between two others that only a few numbers, or an interval of the width `narrow`, have from a step.

    Such a number counts as the higher level. Intervals arise around 0, where two summands cancel and absorb it.
    """
    lower, upper = step.levels[0], step.levels[-1]
    cutoffs = [lower + (upper - lower) * share for share in (_NEAR, 1 - _NEAR)]
    comparisons = [switching_points(lambda x, c=cutoff: function(x) > c[:, None], len(lower)) for cutoff in cutoffs]
    (first, flips), (second, other_flips) = comparisons
    constant = np.isinf(first) | np.isinf(second)
    same = (flips == other_flips) & (~constant | (first == second))
    width = np.where(constant, 0, np.abs(_position(first) - _position(second)))
    with np.errstate(invalid='ignore', over='ignore'):
        few = (width <= _TIE) | (np.abs(first - second) <= narrow)
    if (same & few).all():
        step.levels, step.comparisons, step.tie_channels = step.levels[[0, -1]], comparisons[:1], int((width > 0).sum())
        step.upper = comparisons[1]


def _position(x):
    """Return the positions of float32 numbers in their order; 0 and -0 have one."""
    bits = np.where(np.isfinite(x), x, 0).astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _holds(function, step, grid, values):
    """Return whether the comparisons give the levels of the function on a grid, where it has these values, and next to the thresholds."""
    near = []
    for threshold, _ in step.comparisons:
        finite = np.where(np.isfinite(threshold), threshold, np.float32(0)).astype(np.float32)[:, None]
        near += [finite * np.float32(factor) for factor in (0.5, 1 - 1e-4, 1 + 1e-4, 2)]
    x = np.clip(np.concatenate(near, axis=1), -step.bound, step.bound).astype(np.float32)
    return not _differs(step, grid, values).any() and not _differs(step, x, function(x)).any()


def _differs(step, x, values):
    """Return where values of the function, float (channels, n), are neither the level that the comparisons give nor a tie."""
    compared = [(x >= threshold[:, None]) != flip[:, None] for threshold, flip in step.comparisons]
    wrong = ~(np.abs(values - np.take_along_axis(step.levels.T, sum(each.astype(int) for each in compared), axis=1)) <= 2 * step.tolerance)
    if step.tie_channels:
        threshold, flip = step.upper
        wrong &= compared[0] == ((x >= threshold[:, None]) != flip[:, None])
    return wrong


def _holds_beside_changes(evaluator, cone, name, step, low):
    """Return whether a step holds where a value on the way from the source changes, and between these numbers.

    A grid misses what is narrow: a level that only the numbers between two close thresholds have, and a level around one number. Such
    levels are made of comparisons, or of limits and signs of values, of which each for itself changes where a grid shows it.
    """
    names = [cone.source, *(operator.outputs[0] for operator in cone.operators)]
    functions, channels = evaluator.functions(cone, names[1:]), step.levels.shape[1]
    equal = []  # a number of which a grid shows nothing
    for operator in cone.operators:
        if operator.kind == 'Equal' and evaluator.constant(operator.inputs[0]) is None and evaluator.constant(operator.inputs[1]) is None:
            return False
        if operator.kind == 'Equal':
            value, constant = sorted(operator.inputs, key=lambda name: evaluator.constant(name) is not None)
            numbers = evaluator.by_channel(constant, evaluator.shape(name)).astype(np.float64).reshape(-1)
            equal.append((names.index(value), np.broadcast_to(numbers, channels)))
    grid = _position(np.unique(np.clip(_grid(step.bound), low, step.bound)))

    def holds(first):
        """Return whether it does in a few channels: all values of a cone, for all channels at once, would take gigabytes."""
        part = slice(first, min(first + _CHANNELS, channels))

        def computed(positions):
            x = _number(positions)
            with np.errstate(all='ignore'):
                return [values.astype(np.float64) for values in (x, *functions(x, first))]

        limits = [(number, limit[part]) for number, limit in equal]
        found = np.sort(_changes(computed, np.broadcast_to(grid, (part.stop - first, len(grid))), limits), axis=1)
        between = (found[:, 1:] + found[:, :-1]) // 2
        positions = np.clip(np.concatenate([found - 1, found, found + 1, between], axis=1), grid[0], grid[-1])
        return not _differs(step.of_channels(part), _number(positions), computed(positions)[names.index(name)]).any()

    return all(map(holds, range(0, channels, _CHANNELS)))


def _changes(function, grid, more_limits):
    """Return positions (channels, n) at which one of several values crosses one of its limits; for each limit the outermost two.

    Parameters
    ----------
    function : callable
        Maps positions (channels, n) to the values, a list of float64 (channels, n).
    grid : numpy.ndarray of int64, shape (channels, n)
        Ascending.
    more_limits : list of (int, numpy.ndarray)
        Number of a value and a limit (channels,), in addition to `_limits`.
    """
    values = function(grid)
    tried = [(number, limit) for number, one in enumerate(values) for limit in _limits(one)] + more_limits
    limits, before, after = [], [grid[:, :1]], [grid[:, -1:]]
    for number, limit in tried:
        changed = np.diff(values[number] >= limit[:, None], axis=1)
        if changed.any():
            outermost = np.stack([changed.argmax(axis=1), changed.shape[1] - 1 - changed[:, ::-1].argmax(axis=1)], axis=1)
            limits.append((number, limit[:, None]))
            before.append(np.take_along_axis(grid, outermost, axis=1))
            after.append(np.take_along_axis(grid, outermost + 1, axis=1))
    before, after = np.concatenate(before, axis=1), np.concatenate(after, axis=1)

    def crossed(positions):
        values = function(positions)
        columns = [values[number][:, 2 * i + 1 : 2 * i + 3] >= limit for i, (number, limit) in enumerate(limits)]
        return np.concatenate([np.zeros((len(positions), 1), bool), *columns], axis=1)

    first, start = before[:, :1].copy(), crossed(before)
    while (after[:, 1:] - before[:, 1:] > 1).any():
        middle = (before + after) // 2
        same = crossed(middle) == start
        before, after = np.where(same, middle, before), np.where(same, after, middle)
    return np.concatenate([first, after], axis=1)


def _limits(values):
    """Return numbers (n, channels) at which what is narrow begins in another value: between few levels; or the extremes, and 0."""
    finite = np.where(np.isfinite(values), values, 0)
    numbers = _few_numbers(finite)
    if numbers is not None:
        return np.broadcast_to(((numbers[1:] + numbers[:-1]) / 2)[:, None], (len(numbers) - 1, len(values)))
    low, high = finite.min(axis=1), finite.max(axis=1)
    smallest = np.finfo(np.float64).tiny  # values are float32: not less means above 0
    return np.stack([np.nextafter(low, np.inf), high, np.zeros_like(low), np.full_like(low, smallest)])


def _few_numbers(values):
    """Return the different numbers in an array (channels, n), ascending, or None if there are more than `MAX_LEVELS`."""
    if len(np.unique(values[0])) > MAX_LEVELS:
        return None
    numbers, rest = [], values.reshape(-1)
    while rest.size:
        if len(numbers) == MAX_LEVELS:
            return None
        numbers.append(rest[0])
        rest = rest[rest != rest[0]]
    return np.sort(numbers)


def _number(positions):
    """Return the float32 numbers at positions in their order."""
    bits = np.where(positions >= 0, positions, (1 << 31) - positions)
    return bits.astype(np.uint32).view(np.float32)


_POSITIVE = ('Sigmoid', 'Softplus', 'Softmax', 'Exp')
_NONNEGATIVE = (*_POSITIVE, 'Relu', 'Abs', 'Sqrt', 'ReduceL1', 'ReduceL2', 'ReduceSumSquare')
_PRESERVING = (
    *('MaxPool', 'AveragePool', 'GlobalAveragePool', 'GlobalMaxPool', 'Concat', 'Reshape', 'Flatten', 'Transpose', 'Identity', 'Dropout'),
    *('Slice', 'Split', 'Squeeze', 'Unsqueeze', 'Resize', 'Add', 'Sum', 'Mul', 'ReduceMean', 'ReduceMax', 'ReduceSum', 'DepthToSpace'),
    *('Expand', 'Div', 'Reciprocal'),
)


def is_nonnegative(evaluator, name):
    """Return whether a value cannot be negative, because of the operators that compute it."""
    waiting, seen = [name], set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        constant = evaluator.constant(value)
        if constant is not None:
            if constant.dtype.kind == 'f' and not (constant >= 0).all():
                return False
            continue
        operator = evaluator.producers.get(value)
        if operator is None:
            return False
        if operator.kind in _NONNEGATIVE:
            continue
        if operator.kind == 'Clip':
            limits = [evaluator.constant(limit) if limit else None for limit in (*operator.inputs[1:], '', '')[:2]]
            if limits[0] is None or limits[0] < 0 or limits[1] is None and operator.inputs[2:] and operator.inputs[2]:
                return False
            if limits[1] is not None and not limits[1] >= 0:  # it is what is left where the limits cross
                return False
            continue
        if operator.kind not in _PRESERVING or operator.attributes.get('mode', 'nearest') == 'cubic':
            return False
        if operator.kind == 'Mul' and operator.inputs[0] == operator.inputs[1]:
            continue
        count = 1 if operator.kind in _OF_THE_FIRST else None
        waiting.extend(source for source in operator.inputs[:count] if source)
    return True


# Operators whose other inputs are sizes and axes.
_OF_THE_FIRST = ('Reshape', 'Slice', 'Split', 'Squeeze', 'Unsqueeze', 'Resize', 'Dropout', 'ReduceMean', 'ReduceMax', 'ReduceSum', 'Expand')


def is_positive(evaluator, name):
    """Return whether a value is positive, because of the operators that compute it."""
    constant, operator = evaluator.constant(name), evaluator.producers.get(name)
    if constant is not None:
        return constant.dtype.kind == 'f' and bool((constant > 0).all())
    if operator is None:
        return False
    if operator.kind in ('Sqrt', 'Expand', 'Identity'):
        return is_positive(evaluator, operator.inputs[0])
    if operator.kind == 'Reciprocal':
        return is_nonnegative(evaluator, operator.inputs[0])
    if operator.kind in ('Mul', 'Div'):
        return all(is_positive(evaluator, source) for source in operator.inputs)
    if operator.kind == 'Add':
        return is_nonnegative(evaluator, name) and any(is_positive(evaluator, source) for source in operator.inputs)
    return operator.kind in _POSITIVE


_GELU_OPERATORS = 8  # of a chain that computes GELU by Erf
_GELU_ERROR = 2e-6


def gelu_source(evaluator, operator):
    """Return the name of the value whose GELU, times a factor, the last operator of a chain with `Erf` computes, and the factor.

    '' and 0 if it computes another function.
    """
    if operator.kind not in ('Mul', 'Div'):
        return '', 0.0
    name = operator.outputs[0]
    for cone in evaluator.cones(name):
        if len(cone.operators) <= _GELU_OPERATORS and any(other.kind == 'Erf' for other in cone.operators):
            channels = evaluator.shape(name)[1]
            x = np.linspace(-6, 6, 97, dtype=np.float32)
            expected = x * (1 + np.array([math.erf(number / math.sqrt(2)) for number in x])) / 2
            found = evaluator.function(cone, name)(np.broadcast_to(x, (channels, len(x))))
            factor = float(found[0, -1] / expected[-1])
            factor = round(factor) if abs(factor - round(factor)) <= _GELU_ERROR else factor
            if factor and np.abs(found - factor * expected).max() <= _GELU_ERROR * abs(factor):
                return cone.source, factor
    return '', 0.0
