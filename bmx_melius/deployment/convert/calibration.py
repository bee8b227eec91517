"""Calibration of 8-bit layers: the ranges of values on images, and what quantization changes on the same images."""

import dataclasses
import math
import numbers
import time
from typing import Any, Optional, Sequence

import numpy as np

from ...errors import UserError, counted, name_some
from ...reporting import ProgressLine
from ..program.operation_table import BITS_KIND, MAX_BYTE
from ..program.operations import Operation
from ..program.program import Program
from ..runtime import engine
from .equalization import ChannelStatistics, channel_factors
from .quantization import ValueRange, observed_values, quantize

RANGES = ('mse', 'percentile', 'minmax')  # ways of choosing a range, the default first
_PERCENTILE = 99.99  # of the numbers on each side that a range covers
_SAMPLE = 8192  # numbers of a value and an image that are kept
_CANDIDATES = 64  # ranges that are tried
_ROUNDING = 0.01  # of a pixel that is normalized and back
_SAME = 1e-3  # of the outputs: smaller differences between images may not have an integer of their own
_LOST = 0.01  # of a difference between outputs: what is smaller is the same
_NOISE = 1e-3  # of a number of an image, less than the rounding to 8 bits
_MEASURED = 32  # images on which the layers are quantized one at a time
_MOST_TIME = 1.05  # of 8-bit layers, relative to float layers; beyond it the report says that they do not pay
_TURNS, _LEAST_TURNS, _TIMED_SECONDS = 50, 3, 1.0  # in which both programs are timed


@dataclasses.dataclass(frozen=True, eq=False)  # arrays have no equality
class LayerOptions:
    """How real-valued layers are stored and computed: arguments of `convert`, which describes them. Raises `UserError` for wrong ones."""

    half: bool = False
    calibration: Any = None  # as `convert` takes images; for `quantized` a list of inputs, float32 (N, C, H, W) or (N, C)
    ranges: str = RANGES[0]
    keep_float: Sequence[str] = ()
    min_correlation: float = 0.5  # of small trained networks, the lowest was .79

    def __post_init__(self):
        if self.ranges not in RANGES:
            raise UserError(f'the range of 8-bit numbers is chosen by {", ".join(RANGES)}, not by {self.ranges!r}')
        if not isinstance(self.min_correlation, numbers.Real) or not -1 <= float(self.min_correlation) <= 1:
            raise UserError(f'min_correlation is a number from -1 to 1, not {self.min_correlation!r}')
        if self.calibration is None and self.keep_float:
            raise UserError('keep_float names layers that do not become 8-bit integers: give calibration, too, or leave it out')
        if self.calibration is not None and self.half:
            raise UserError(
                'layers are stored either in half precision or as 8-bit integers: give half (--half) or calibration (--int8), not both'
            )


@dataclasses.dataclass
class QuantizationReport:
    """What quantization changes on the calibration images.

    Attributes
    ----------
    images : int
    layers : int
        Number of layers of 8-bit integers.
    real : dict of str to int
        Operations that still compute with real numbers, and their number.
    signs : dict of str to float
        Sign activation, by the name of its node -> share of its signs that differ.
    correlation : float
        Of the outputs of both programs.
    told_apart : float
        Share of the images whose outputs still differ from the outputs of the median image. 1 if all images are the same, 0 if only their
        outputs are.
    same_class : float or None
        Share of the images of which the largest output is the same one; None unless there is one output, a vector of several classes.
    ranges : str
        How ranges were chosen, one of `RANGES`.
    changes : dict of str to float
        Layer, by the name of its node -> change of the outputs if only this layer has 8 bits: root of the mean square, relative to the
        standard deviation of the outputs. Includes the layers in `keep_float`.
    keep_float : list of str
        Layers that remain float32 by request.
    milliseconds : list of float
        Of an image on this processor, in one thread, with float layers and with 8-bit layers: the least of several runs.
    """

    images: int
    layers: int
    real: dict
    signs: dict
    correlation: float
    told_apart: float
    same_class: Optional[float]
    ranges: str
    changes: dict
    keep_float: list
    milliseconds: list

    def __str__(self):
        lines = [
            f'8-bit layers: {self.layers}' + (f'; real numbers in {_listed(self.real)}' if self.real else '; no operation on real numbers')
        ]
        if self.signs:
            shares = np.array(list(self.signs.values()))
            worst = sorted(self.signs, key=self.signs.__getitem__, reverse=True)[:3]
            lines.append(
                f'on {counted(self.images, "image")}, signs that differ: {shares.mean():.2%} on average, most in '
                + ', '.join(f'{name} ({self.signs[name]:.2%})' for name in worst)
            )
        lines.append(
            f'correlation of outputs: {self.correlation:.5f}' + ('' if self.same_class is None else f', same class: {self.same_class:.1%}')
        )
        if self.changes:
            order = sorted(self.changes, key=self.changes.__getitem__, reverse=True)
            lines.append(
                'change of the outputs by each layer alone: '
                + ', '.join(f'{name} ({self.changes[name]:.2%})' for name in order)
                + (f'; float32: {", ".join(self.keep_float)}' if self.keep_float else '')
            )
        before, after = self.milliseconds
        if after > _MOST_TIME * before:
            lines.append(
                f'8-bit layers do not pay on this processor: {after:.3g} ms an image, with float layers {before:.3g}; do without them if '
                'the network runs here and the size of its files permits it'
            )
        return '\n'.join(lines)


def quantized(program, options, input_spec=None, names=None, layers=None):
    """Quantize a program for calibration images.

    Parameters
    ----------
    program : Program
        With one input.
    options : LayerOptions
        With the images as a list.
    input_spec : InputSpec or None
        Preprocessing of the input. If that is normalized pixels of 0 to 255, the first layer reads these pixels.
    names : dict of int to str or None
        Names of values, for the report; the default is the number and the name of the operation.
    layers : list of str or None
        Name of each convolution of the program, in order; the default is as for `names`.

    Returns
    -------
    Quantized, QuantizationReport

    Raises
    ------
    UserError
        If there is no image, a value is not finite, no layer has a name in `keep_float`, or the correlation is below `min_correlation`.
    """
    results, batches = _layers(program, layers), options.calibration
    unknown = [name for name in options.keep_float if name not in results]
    if unknown:
        raise UserError(f'keep_float: no real-valued layer is named {name_some(unknown)}; these are {", ".join(results) or "none"}')
    if not batches or not sum(map(len, batches)):
        raise UserError('there are no calibration images')
    spec = input_spec if _are_pixels(batches, input_spec) else None
    ranges = _ranges(program, ProgressLine(batches, total=len(batches), description='calibrating', unit='batches'), options.ranges)
    result = quantize(program, ranges, spec, [number for name in options.keep_float for number in results[name]])
    report = _compared(program, result, options, names or {})
    if not min(report.correlation, report.told_apart) >= options.min_correlation:  # written this way because a correlation may be NaN
        low, high = min(batch.min() for batch in batches), max(batch.max() for batch in batches)
        repeated = _correlation_after_noise(program, batches)
        if repeated < options.min_correlation <= report.told_apart:
            advice = (
                f'Changes of the images by {_NOISE:.1%} have the same effect on float layers, a correlation of {repeated:.3f}: networks '
                'that have not been trained amplify each rounding error from sign to sign. Train the network first, or try '
            )
        else:
            advice = (
                f'The images have numbers from {low:.3g} to {high:.3g}: if the network is used on images of another range, give such '
                'images. Otherwise try '
            )
        raise UserError(
            f'with 8-bit layers, the outputs on the {report.images} calibration images correlate by {report.correlation:.3f} with the '
            f'outputs of float layers, and tell {report.told_apart:.0%} of the images apart: less than {float(options.min_correlation):g}; '
            f'nothing was written. {advice}--int8-ranges percentile (ranges) or --keep-float (keep_float), or allow it by '
            '--min-correlation (min_correlation)'
        )
    report.changes = _changes(program, ranges, spec, results, batches)
    return result, report


def _layers(program, names):
    """Return a dict from the name of each layer of `conv` to the numbers of its results; a layer may consist of several convolutions."""
    first, found = len(program.inputs), {}
    numbers = [number for number, operation in enumerate(program.operations, first) if operation.row.products == 'floats']
    for number, name in zip(numbers, names or [f'{number - first} (conv)' for number in numbers]):
        found.setdefault(name, []).append(number)
    return found


def _are_pixels(batches, spec):
    """Return whether inputs are normalized pixels of 0 to 255."""
    if spec is None or batches[0].ndim != 4 or batches[0].shape[1] != spec.channels:
        return False
    mean, std = (np.float32(numbers)[:, None, None] for numbers in (spec.mean, spec.std))
    limits = [limit for batch in batches for pixels in [batch * std + mean] for limit in (pixels.min(), pixels.max())]
    return min(limits) > -_ROUNDING and max(limits) < MAX_BYTE + _ROUNDING


# --- ranges -----------------------------------------------------------------------------------------------------------------------------


def _ranges(program, batches, method):
    """Return the `ValueRange` of each of `observed_values`."""
    numbers, values = observed_values(program), program.values()
    computed = _Runner(program, [number for number in numbers if number >= len(program.inputs)])
    observers = {number: _Observer(values[number].channels) for number in numbers}
    for batch in batches:
        arrays = dict(zip(computed.numbers, computed(batch)))
        for number in numbers:
            observers[number].add(arrays.get(number, batch))
    layers = [operation for operation in program.operations if operation.row.products == 'floats']
    readers = {number: [layer for layer in layers if layer.inputs[0] == number] for number in observers}
    for found in readers.values():
        if any(layer.row.weight_levels for layer in found):  # which factors of channels would multiply
            found.clear()
    return {number: observer.range(method, readers[number]) for number, observer in observers.items()}


class _Observer:
    """Limits of the numbers of each channel of a value, and a sample of them."""

    def __init__(self, channels):
        self._channels, self._random = channels, np.random.RandomState(0)
        self._samples, self._smallest, self._largest = [], [], []

    def add(self, array):
        """Add the numbers of a batch."""
        if not np.isfinite([array.min(), array.max()]).all():
            raise UserError('a calibration image gives values that are not finite: a parameter or the image is damaged')
        array = array.reshape(len(array), self._channels, -1)
        self._smallest.append(array.min(axis=(0, 2)))
        self._largest.append(array.max(axis=(0, 2)))
        positions, most = array.shape[2], max(1, _SAMPLE // self._channels)
        for image in array:
            self._samples.append(image if positions <= most else image[:, self._random.randint(0, positions, most)])

    def range(self, method, layers):
        """Return the `ValueRange`, with the factors of channels for the layers that read the value."""
        smallest, largest = (limits.astype(np.float64) for limits in (np.min(self._smallest, axis=0), np.max(self._largest, axis=0)))
        sample = np.concatenate(self._samples, axis=1).astype(np.float64)
        factors = None
        if layers:
            factors = channel_factors(ChannelStatistics(smallest, largest, np.square(sample).mean(axis=1)), layers)
            sample = sample / factors[:, None]
        limits = (smallest.min(), largest.max()) if factors is None else ((smallest / factors).min(), (largest / factors).max())
        low, high = _chosen(sample, *limits, method)
        return ValueRange(low, high, smallest.min(), largest.max(), factors)


def _chosen(sample, low, high, method):
    """Return the range that bytes are to cover, for a sample of the numbers and their limits."""
    if method == 'percentile':
        return tuple(np.percentile(sample, (100 - _PERCENTILE, _PERCENTILE)))
    if method == 'minmax' or low == high:
        return low, high
    shares = np.linspace(1, 0.2, _CANDIDATES)
    errors = [_squared_error(sample, low * share, high * share) for share in shares]
    share = shares[int(np.argmin(errors))]
    return low * share, high * share


def _squared_error(sample, low, high):
    low, high = min(low, 0.0), max(high, 0.0)
    scale = (high - low) / MAX_BYTE
    zero = np.rint(-low / scale)
    return np.square((np.rint(sample / scale + zero).clip(0, MAX_BYTE) - zero) * scale - sample).mean()


# --- comparison -------------------------------------------------------------------------------------------------------------------------


class _Runner:
    """A program of which other values are the outputs; bits are 0 and 1."""

    def __init__(self, program, numbers):
        kinds, operations, outputs = program.values(), list(program.operations), []
        for number in numbers:
            if kinds[number].kind == BITS_KIND:
                operations.append(Operation('expand', (number,), {'low': 0}))
                number = len(program.inputs) + len(operations) - 1
            outputs.append(number)
        self.numbers = list(numbers)
        changed = Program(program.inputs, operations, outputs)
        self._runner = engine.Runner(changed, changed.to_words()) if outputs else None

    def __call__(self, batch, threads=0):
        return self._runner.run([np.ascontiguousarray(batch, np.float32)], threads) if self._runner else []


def _changes(program, ranges, spec, layers, batches):
    """Return what each layer changes if only this one has 8 bits, see `QuantizationReport.changes`."""
    sample = np.concatenate(batches)[:_MEASURED]
    expected, found = _outputs(program, sample), {}
    deviation = expected.std()
    for name in ProgressLine(layers, total=len(layers), description='measuring 8-bit layers', unit='layers'):
        others = [number for other, numbers in layers.items() if other != name for number in numbers]
        change = np.sqrt(np.square(_outputs(quantize(program, ranges, spec, others).program, sample) - expected).mean())
        found[name] = float(change / deviation) if deviation else float(change > 0)
    return found


def _outputs(program, batch):
    return np.concatenate([array.reshape(len(batch), -1) for array in _Runner(program, program.outputs)(batch)], axis=1).astype(np.float64)


def _compared(program, result, options, names):
    first, values, batches = len(program.inputs), program.values(), options.calibration
    bits = [number for number, operation in enumerate(program.operations, first) if operation.row.compares]
    before = _Runner(program, [*bits, *program.outputs])
    after = _Runner(result.program, [result.number_of[number] for number in bits] + result.program.outputs)
    different, counted = np.zeros(len(bits)), np.zeros(len(bits))
    outputs = [], []
    for batch in batches:
        expected, found = before(batch), after(batch)
        for position in range(len(bits)):
            different[position] += (expected[position] != found[position]).sum()
            counted[position] += expected[position].size
        for kept, arrays in zip(outputs, (expected, found)):
            kept.append(np.concatenate([array.reshape(len(batch), -1) for array in arrays[len(bits) :]], axis=1))
    expected, found = (np.concatenate(arrays).astype(np.float64) for arrays in outputs)
    scores = values[program.outputs[0]]
    classes = len(program.outputs) == 1 and scores.channels > 1 and scores.height * scores.width == 1
    return QuantizationReport(
        images=len(expected),
        layers=result.layers,
        real=result.real,
        signs={names.get(number, f'{number - first} (threshold)'): float(d / c) for number, d, c in zip(bits, different, counted)},
        correlation=_correlation(expected, found),
        told_apart=_share_told_apart(expected, found, all((batch == batches[0][0]).all() for batch in batches)),
        same_class=float((expected.argmax(axis=1) == found.argmax(axis=1)).mean()) if classes else None,
        ranges=options.ranges,
        changes={},
        keep_float=list(options.keep_float),
        milliseconds=_least_milliseconds([program, result.program], batches[0][:1]),
    )


def _least_milliseconds(programs, image):
    """Return the times of programs, which run in turns so that other load slows all of them."""
    runners = [_Runner(program, program.outputs) for program in programs]
    least, end = [math.inf] * len(runners), time.perf_counter() + _TIMED_SECONDS
    for turn in range(_TURNS):
        if turn >= _LEAST_TURNS and time.perf_counter() > end:
            break
        for number, runner in enumerate(runners):
            begin = time.perf_counter()
            runner(image, threads=1)
            least[number] = min(least[number], 1e3 * (time.perf_counter() - begin))
    return least


def _correlation(x, y):
    x, y = x - x.mean(), y - y.mean()
    power = np.sqrt((x * x).sum() * (y * y).sum())
    return float((x * y).sum() / power) if power else float((x == y).all())


def _correlation_after_noise(program, batches):
    """Return the correlation of the outputs of a program with those on images that differ by noise, a share of each number."""
    sample = np.concatenate(batches)[:_MEASURED]
    noise = _NOISE * np.random.RandomState(0).normal(size=sample.shape)
    return _correlation(_outputs(program, sample), _outputs(program, sample + sample * noise))


def _share_told_apart(x, y, are_same):
    """Of the images whose outputs `x` differ from the outputs of the median image, return the share whose outputs `y` do, too.

    One image with large outputs may determine the correlation, while the outputs of all others became the same. `are_same` is
    whether all images are the same: if they are not, but `x` has no difference at all, the share is 0.
    """
    least = _SAME * np.median(np.abs(x))
    before, after = (np.abs(array - np.median(array, axis=0)).max(axis=1) for array in (x, y))
    differs = before > least
    return float((after[differs] > _LOST * before[differs]).mean()) if differs.any() else float(are_same or before.any())


def _listed(counts):
    return ', '.join(f'{name} ({number})' for name, number in sorted(counts.items()))
