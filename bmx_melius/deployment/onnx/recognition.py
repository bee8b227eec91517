"""Recognition of binarization by evaluation: values that take few levels, and weights that are signs, whatever computes them.

Exporters leave the estimators of gradients in a model: a sign is a chain of comparisons, polynomials, sums and differences whose result
is -1 or 1 up to a rounding error. So no pattern is looked for. A value that is computed element by element from another one is evaluated
on float32 numbers of all magnitudes; if it takes few levels, the numbers at which it changes are found by a search over the order of
float32 (`bmx_melius.deployment.convert.thresholds`), with ONNX Runtime's own rounding.
"""

import dataclasses

import numpy as np

from ..convert.thresholds import NotMonotoneError, switching_points
from ..convert.weight_levels import clusters

MAX_LEVELS = 16  # of a value that becomes bit planes
_EQUAL = 1e-4  # levels that differ by less, relative to the largest one, are one level with rounding errors
# Magnitudes up to which a value must have its levels: all numbers, those whose square is finite, and those beside which a difference of 1
# keeps its first digits, as in (sign(x) - x) + x.
_BOUNDS = (float(np.finfo(np.float32).max), 1e15, 2.0**12)
_ROUNDING = 2.0**-22  # error of a sum relative to the largest number in it
_TIE = 16  # numbers at which a sign may be 0 because its argument is 0 up to rounding


@dataclasses.dataclass
class Step:
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
    tied : int
        Number of channels in which a number has the level between both, as 0 has in sign(x).
    """

    source: str
    levels: np.ndarray
    comparisons: list
    bound: float
    tied: int = 0


def find_step(evaluator, name):
    """Return the `Step` by which a value is computed, or None."""
    if not _has_few_numbers(evaluator.sampled[name]):
        return None
    for cone in evaluator.cones(name):
        step = _step_from(evaluator, cone, name)
        if step is not None:
            return step
    return None


def _step_from(evaluator, cone, name):
    """Return the `Step` from the source of a cone to a value, or None."""
    function, channels = evaluator.function(cone, name), evaluator.shape(name)[1]
    signed = [(-bound, bound) for bound in _BOUNDS]
    # without negative numbers, a sign that is 0 for 0 has two levels; one that is 1 for 0 has them only with negative numbers
    for low, bound in [*((0.0, bound) for bound in _BOUNDS if is_nonnegative(evaluator, cone.source)), *signed]:
        try:
            step = _step_of(lambda x: function(np.clip(x, low, bound)).astype(np.float64), channels, bound)  # noqa: B023  called here only
        except NotMonotoneError:
            step = None
        if step is not None:
            step.source = cone.source
            return step
    return None


def _has_few_numbers(array):
    """Return whether a value of a sample has few different numbers in each channel, up to rounding errors."""
    if array.ndim < 2 or array.dtype != np.float32 or not np.isfinite(array).all():
        return False
    scale = max(float(np.abs(array).max()), 1e-30)
    by_channel = np.rint(array.swapaxes(0, 1).reshape(array.shape[1], -1) / (scale * _EQUAL))
    by_channel.sort(axis=1)
    return bool(((np.diff(by_channel, axis=1) > 1).sum(axis=1) < MAX_LEVELS).all())


def _grid(bound):
    magnitudes = np.unique(
        np.concatenate([np.geomspace(1e-44, bound, 600), np.geomspace(1e-3, min(bound, 1e3), 1200), np.linspace(0, min(bound, 64), 800)])
    )
    return np.concatenate([-magnitudes[::-1], magnitudes]).astype(np.float32)


def _step_of(function, channels, bound):
    grid = np.broadcast_to(_grid(bound), (channels, len(_grid(bound))))
    with np.errstate(invalid='ignore', over='ignore'):
        values = function(grid)
    if not np.isfinite(values).all():
        return None
    scale = float(np.abs(values).max())
    tolerance = scale * _EQUAL + (bound * _ROUNDING if bound == _BOUNDS[-1] else 0)
    jumps = (np.diff(np.sort(values, axis=1), axis=1) > tolerance).sum(axis=1)
    if not 1 <= jumps.max() < MAX_LEVELS:
        return None
    found = [clusters(row, tolerance) for row in values]
    levels = _common_levels(found, tolerance)
    if levels is None:
        return None
    comparisons = []
    for lower, upper in zip(levels, levels[1:]):
        middle = ((lower + upper) / 2)[:, None]
        comparisons.append(switching_points(lambda x: function(x) > middle, channels))  # noqa: B023
    tied = 0
    if len(levels) == 3 or len(levels) == 2:
        levels, comparisons, tied = _without_tie(function, levels, comparisons, tolerance)
    step = Step('', levels, comparisons, bound, tied)
    return step if _holds(function, step, grid, tolerance) else None


def _common_levels(found, tolerance):
    """Return levels (n, channels) from those of each channel, of which a constant channel may have one; None if they differ in number."""
    most = max(found, key=len)
    levels = np.array([row if len(row) == len(most) else most for row in found]).T
    for channel, row in enumerate(found):
        if len(row) != len(most) and any(np.abs(levels[:, channel] - level).min() > tolerance for level in row):
            return None
    return levels


def _without_tie(function, levels, comparisons, tolerance):
    """Return levels and comparisons without a level between two others that only a few numbers have, and in how many channels it exists."""
    if len(levels) == 2:  # the grid may have missed such numbers
        lower, upper = levels
        channels, middles = len(lower), [lower * 0.75 + upper * 0.25, lower * 0.25 + upper * 0.75]
        comparisons = [switching_points(lambda x, m=middle: function(x) > m[:, None], channels) for middle in middles]
    (first, flips), (second, other_flips) = comparisons
    constant = np.isinf(first) | np.isinf(second)
    if not np.array_equal(flips[~constant], other_flips[~constant]):
        return levels, comparisons, 0
    width = np.where(constant, first != second, np.abs(_position(first) - _position(second)))
    if width.max() > _TIE:
        return (levels, comparisons, 0) if len(levels) == 3 else (levels, [comparisons[0]], 0)
    if len(levels) == 3:
        levels = levels[[0, 2]]
    return levels, comparisons[:1], int((width > 0).sum())  # such a number counts as the higher level


def _position(x):
    """Return the positions of float32 numbers in their order; 0 and -0 have one."""
    bits = np.where(np.isfinite(x), x, 0).astype(np.float32).view(np.int32).astype(np.int64)
    return np.where(bits >= 0, bits, -(bits & 0x7FFFFFFF))


def _holds(function, step, grid, tolerance):
    """Return whether the comparisons give the levels of the function on a grid and next to the thresholds."""
    near = [grid]
    for threshold, _ in step.comparisons:
        finite = np.where(np.isfinite(threshold), threshold, np.float32(0)).astype(np.float32)[:, None]
        near += [finite * np.float32(factor) for factor in (0.5, 1 - 1e-4, 1 + 1e-4, 2)]
    x = np.clip(np.concatenate(near, axis=1), -step.bound, step.bound).astype(np.float32)
    index = sum(((x >= threshold[:, None]) != flip[:, None]).astype(int) for threshold, flip in step.comparisons)
    expected = np.take_along_axis(step.levels.T, index, axis=1)
    wrong = np.abs(function(x) - expected) > 2 * tolerance
    if step.tied:
        middle = step.levels.mean(axis=0)[:, None]
        wrong &= np.abs(function(x) - middle) > 2 * tolerance
    return not wrong.any()


_NONNEGATIVE = ('Relu', 'Sigmoid', 'Abs', 'Softplus', 'Softmax', 'Exp')
_PRESERVING = (
    *('MaxPool', 'AveragePool', 'GlobalAveragePool', 'GlobalMaxPool', 'Concat', 'Reshape', 'Flatten', 'Transpose', 'Identity', 'Dropout'),
    *('Slice', 'Split', 'Squeeze', 'Unsqueeze', 'Resize', 'Add', 'Sum', 'Mul', 'ReduceMean', 'ReduceMax', 'DepthToSpace'),
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
        if operator.kind == 'Clip' and len(operator.inputs) > 1 and operator.inputs[1]:
            low = evaluator.constant(operator.inputs[1])
            if low is not None and low >= 0:
                continue
            return False
        if operator.kind not in _PRESERVING:
            return False
        count = 1 if operator.kind in ('Reshape', 'Slice', 'Split', 'Squeeze', 'Unsqueeze', 'Resize', 'Dropout', 'ReduceMean') else None
        waiting.extend(source for source in operator.inputs[:count] if source)
    return True
