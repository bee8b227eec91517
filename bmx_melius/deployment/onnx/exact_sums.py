"""Steps of sums of integers: where rounding errors of ONNX Runtime would decide, the exact sum does.

A layer of signs whose weights are signs times a number a for each filter computes a n + b, with an integer n, the bias b, and rounding
errors. If its result goes to a sign without a normalization, many of these sums are at the threshold: for b = 0 all with n = 0, which
ONNX Runtime has as 0 or as a rounding error of either sign, depending on the order in which it adds. In exact arithmetic they are equal to
the threshold, and the sign has the value that it takes there. A threshold half a step away, between two multiples of a, gives that value
to each of them, whatever the rounding.
"""

import dataclasses

import numpy as np

from .moves import MOVING
from .recognition import StepFunction

_EQUAL = 1e-5  # numbers that differ by less, relative to the larger one, are equal up to rounding
_TIE_TOLERANCE = 4e-6  # of the spacing, times the multiple: what is nearer to a threshold is equal to it
_MAX_ERROR = 1 / 64  # of the spacing, in a sample
_SAFETY = 8  # rounding errors are at most so many times the errors in a sample
_MAX_PARTS = 8  # of the smallest of several levels that their differences may be
_MAX_MULTIPLE = 1 << 12  # of one level


@dataclasses.dataclass
class Multiples:
    """The elements of a value that are, up to rounding errors, integer multiples of `spacing` plus `offset`: float64 (channels,) each."""

    spacing: np.ndarray
    offset: np.ndarray

    def __post_init__(self):
        self.spacing, self.offset = (np.asarray(array, np.float64).reshape(-1) for array in (self.spacing, self.offset))

    @property
    def is_uniform(self):
        """Whether all channels have the same spacing and offset."""
        same = np.ptp(self.spacing) <= _EQUAL * self.spacing.max()
        return bool(same and np.ptp(self.offset) <= _EQUAL * self.spacing.max())

    def contains(self, number):
        """Return whether a number is one of the multiples of each channel."""
        places = (number - self.offset) / self.spacing
        return bool((np.abs(places - np.rint(places)) <= _EQUAL * np.maximum(1, np.abs(places))).all())

    def of_channels(self, channels):
        """Return the multiples of a value with this many channels, if they are the same for all channels; else None."""
        return Multiples(np.full(channels, self.spacing[0]), np.full(channels, self.offset[0])) if self.is_uniform else None


def exact_steps(evaluator, steps):
    """Return the steps of sums of integers whose thresholds are such sums, with thresholds between two of them.

    Parameters
    ----------
    evaluator : Evaluator
    steps : dict of str to recognition.StepFunction or None
        Name of a value -> its step.

    Returns
    -------
    exact : dict of str to recognition.StepFunction
    shares : dict of str to float
        Name of a value -> share of its elements in a sample that ONNX Runtime computes on the other side of a threshold.
    """
    found = _Search(evaluator, steps).multiples()
    exact, shares = {}, {}
    for name, step in steps.items():
        multiples = found.get(step.source) if step and not steps.get(step.source) else None
        x = evaluator.sampled[step.source] if multiples else None
        moved = _between(x, step, multiples) if multiples else None
        if moved is not None:
            exact[name] = moved
            shares[name] = float((_levels(step, x) != _levels(moved, x)).mean())
    return exact, shares


def _levels(step, x):
    by_channel = (1, -1, *(1,) * (x.ndim - 2))
    return sum(((x >= limit.reshape(by_channel)) != flip.reshape(by_channel)).astype(int) for limit, flip in step.comparisons)


def _between(x, step, multiples):
    """Return a step whose thresholds that are multiples are moved between two of them; None if there are none, or x is something else."""
    by_channel = (1, -1, *(1,) * (x.ndim - 2))
    places = (x - multiples.offset.reshape(by_channel)) / multiples.spacing.reshape(by_channel)
    error = np.abs(places - np.rint(places)).max()
    if not 0 < error <= _MAX_ERROR:  # 0: without rounding errors, comparisons are exact already
        return None
    comparisons, changed = [], False
    for threshold, flip in step.comparisons:
        finite = np.isfinite(threshold)
        place = (np.where(finite, threshold, 0).astype(np.float64) - multiples.offset) / multiples.spacing
        nearest = np.rint(place)
        is_tie = np.abs(place - nearest) <= _TIE_TOLERANCE * np.maximum(1, np.abs(nearest))
        near = finite & (np.abs(place) < 2**22) & (is_tie | (np.abs(place - nearest) <= _SAFETY * error))
        # what is equal to the threshold in exact arithmetic: 0 itself, or else the nearest float32 number
        equal = (nearest * multiples.spacing + multiples.offset).astype(np.float32)
        equal = np.where(np.abs(threshold) <= np.finfo(np.float32).tiny, np.float32(0), equal)
        first = np.where(is_tie, nearest + (equal < threshold), np.ceil(place))  # the smallest multiple that is not below the threshold
        between = ((first - 0.5) * multiples.spacing + multiples.offset).astype(np.float32)
        comparisons.append((np.where(near, between, threshold).astype(np.float32), flip))
        changed |= bool(near.any())
    return dataclasses.replace(step, comparisons=comparisons, tie_channels=0, upper=None) if changed else None


class _Search:
    """Search for the values of a model that are multiples of a number, in the order of its operators.

    Parameters
    ----------
    evaluator : Evaluator
    steps : dict of str to StepFunction or None
    """

    def __init__(self, evaluator, steps):
        self._evaluator, self._steps, self._found = evaluator, steps, {}

    def multiples(self):
        """Return a dict from the name of a value to its `Multiples`."""
        for operator in self._evaluator.model.operators:
            for output in operator.outputs:
                if output in self._evaluator.varying and len(self._evaluator.shape(output)) > 1:
                    step = self._steps.get(output)
                    found = _of_levels(step) if isinstance(step, StepFunction) else self._of(operator, output)
                    if found is not None and np.isfinite(found.spacing).all() and (found.spacing > 0).all():
                        self._found[output] = found
        return self._found

    def _of(self, operator, output):
        x = self._found.get(operator.inputs[0]) if operator.inputs else None
        if operator.kind in _SUMS:
            return self._sum(operator, output)
        if operator.kind in ('Mul', 'Div', 'BatchNormalization'):
            return self._scaled(operator, output)
        if operator.kind == 'Concat':
            return self._joined(operator, output)
        if x is None:
            return None
        if operator.kind in _LAYERS:
            return self._layer(operator, x)
        if operator.kind in _SELECTING:
            return x
        if operator.kind in ('Relu', 'Neg'):
            return x if operator.kind == 'Relu' and x.contains(0) else Multiples(x.spacing, -x.offset) if operator.kind == 'Neg' else None
        if operator.kind == 'Pad':
            return x if self._pads_with_multiples(operator, x) else None
        if operator.kind in ('GlobalAveragePool', 'ReduceMean', 'AveragePool'):
            return self._mean(operator, output, x)
        if operator.kind in MOVING:
            return x.of_channels(self._evaluator.shape(output)[1])
        return None

    def _constant(self, name):
        return self._evaluator.constant(name) if name else None

    def _by_channel(self, name, output):
        """Return the constant of each channel, float64 (channels,), or None."""
        array = self._constant(name)
        shape = self._evaluator.shape(output)
        array = None if array is None or array.dtype != np.float32 else self._evaluator.by_channel(name, shape)
        if array is None:
            return None
        return np.broadcast_to(array.astype(np.float64).reshape(-1), shape[1]) if array.size in (1, shape[1]) else None

    def _sum(self, operator, output):
        signs = (1, -1) if operator.kind == 'Sub' else (1,) * len(operator.inputs)
        offset, spacings = 0, []
        for name, sign in zip(operator.inputs, signs):
            number, found = self._by_channel(name, output), self._found.get(name)
            if number is None and (found is None or self._evaluator.shape(name) != self._evaluator.shape(output)):
                return None
            offset = offset + sign * (found.offset if number is None else number)
            spacings += [] if number is not None else [found.spacing]
        if not spacings:
            return None
        smallest = np.min(spacings, axis=0)
        ratios = np.array(spacings) / smallest
        whole = (np.abs(ratios - np.rint(ratios)) <= _EQUAL * ratios).all() and ratios.max() <= _MAX_MULTIPLE
        return Multiples(smallest, np.broadcast_to(offset, smallest.shape)) if whole else None

    def _scaled(self, operator, output):
        if operator.kind == 'BatchNormalization':
            x = self._found.get(operator.inputs[0])
            parameters = [self._by_channel(name, output) for name in operator.inputs[1:5]]
            if x is None or any(array is None for array in parameters):
                return None
            gamma, beta, mean, variance = parameters
            factor = gamma / np.sqrt(variance + operator.attributes.get('epsilon', 1e-5))
            return Multiples(x.spacing * np.abs(factor), (x.offset - mean) * factor + beta)
        names = operator.inputs if operator.kind == 'Div' or operator.inputs[0] in self._found else operator.inputs[::-1]
        x, factor = self._found.get(names[0]), self._by_channel(names[1], output)
        if x is None or factor is None or self._evaluator.shape(names[0]) != self._evaluator.shape(output):
            return None
        with np.errstate(divide='ignore', invalid='ignore'):
            factor = 1 / factor if operator.kind == 'Div' else factor
            return Multiples(x.spacing * np.abs(factor), x.offset * factor)

    def _joined(self, operator, output):
        parts = [self._found.get(name) for name in operator.inputs]
        if None in parts or operator.attributes['axis'] % len(self._evaluator.shape(output)) != 1:
            return None
        return Multiples(*(np.concatenate([getattr(part, name) for part in parts]) for name in ('spacing', 'offset')))

    def _layer(self, operator, x):
        """Return the multiples of the sums of products of x and weights that are multiples as well."""
        weight = self._constant(operator.inputs[1])
        bias = self._constant(operator.inputs[2]) if len(operator.inputs) > 2 else None
        a = operator.attributes
        biased = len(operator.inputs) > 2 and operator.inputs[2]
        if weight is None or weight.dtype != np.float32 or not x.is_uniform or biased and bias is None:
            return None
        if operator.kind == 'Gemm':
            if a.get('transA', 0):
                return None
            weight = (weight if a.get('transB', 0) else weight.T) * np.float32(a.get('alpha', 1))
            bias = None if bias is None else bias * np.float32(a.get('beta', 1))
        elif operator.kind == 'MatMul':
            if weight.ndim != 2 or len(self._evaluator.shape(operator.outputs[0])) != 2:
                return None
            weight = weight.T
        rows = weight.astype(np.float64).reshape(len(weight), -1)
        spacing = _common_spacing(rows)
        pads = any(a.get('pads', ())) or a.get('auto_pad', 'NOTSET') not in ('NOTSET', 'VALID')
        offset = np.zeros(len(rows)) if bias is None else bias.astype(np.float64).reshape(-1)
        if spacing is None or offset.size not in (1, len(rows)):
            return None
        if not x.contains(0):
            if pads:
                return None
            return Multiples(x.spacing[0] * spacing, x.offset[0] * rows.sum(axis=1) + offset)
        return Multiples(x.spacing[0] * spacing, np.broadcast_to(offset, len(rows)))

    def _pads_with_multiples(self, operator, x):
        if operator.attributes.get('mode', 'constant') != 'constant':
            return True
        given = len(operator.inputs) > 2 and operator.inputs[2]
        value = self._constant(operator.inputs[2]) if given else operator.attributes.get('value', 0.0)
        channels = self._evaluator.shape(operator.inputs[0])[1] == self._evaluator.shape(operator.outputs[0])[1]
        return channels and value is not None and x.contains(float(np.reshape(value, -1)[0]))

    def _mean(self, operator, output, x):
        before, after = (self._evaluator.shape(name) for name in (operator.inputs[0], output))
        if operator.kind == 'AveragePool':
            a = operator.attributes
            padded = any(a.get('pads', ())) or a.get('auto_pad', 'NOTSET') not in ('NOTSET', 'VALID') or a.get('ceil_mode', 0)
            return None if padded else Multiples(x.spacing / np.prod(a['kernel_shape']), x.offset)
        if after[:2] != before[:2] or set(after[2:]) - {1}:
            return None
        return Multiples(x.spacing / np.prod(before[2:]), x.offset)


_SUMS = ('Add', 'Sub', 'Sum')
_LAYERS = ('Conv', 'Gemm', 'MatMul')
_SELECTING = ('MaxPool', 'GlobalMaxPool', 'Identity', 'Dropout')  # elements of the same channel


def _of_levels(step):
    """Return the `Multiples` of a value with the levels of a step, or None."""
    spacing = _common_spacing(step.levels.T)
    return None if spacing is None else Multiples(spacing, np.zeros(len(spacing)))


def _common_spacing(rows):
    """Return for each row the number of which all its elements are integer multiples, up to rounding errors; None if there is none."""
    magnitudes = np.abs(rows)
    largest = magnitudes.max(axis=1)
    if not np.isfinite(rows).all() or not (largest > 0).all():
        return None
    smallest = np.where(magnitudes > _EQUAL * largest[:, None], magnitudes, np.inf).min(axis=1)
    spacing = np.zeros(len(rows))
    for parts in range(1, _MAX_PARTS + 1):
        places = magnitudes / (smallest / parts)[:, None]
        whole = (np.abs(places - np.rint(places)) <= _EQUAL * np.maximum(1, places)).all(axis=1) & (places.max(axis=1) <= _MAX_MULTIPLE)
        spacing = np.where((spacing == 0) & whole, smallest / parts, spacing)
    # numbers that differ a little from a multiple, each in another way: the mean, in which large numbers count most
    if not (spacing > 0).all():
        return None
    places = np.rint(magnitudes / spacing[:, None])
    return magnitudes.sum(axis=1) / places.sum(axis=1)
