"""Factors of channels by which the bytes of a value and the weights that read them share the rounding errors.

A layer computes the same from x[c] / k[c] and k[c] w[c] for any positive k: the bytes of a channel have k[c] times the scale of the
value, and the weights of 8 bits include the factor, so that it costs nothing. With one scale for all channels, channels with small numbers
are rounded coarsely, most of all where a filter reads few channels, as in grouped convolutions. The smaller the factors of other
channels, the coarser the weights. Cross-layer equalization (Nagel et al. 2019, arXiv:1906.04721, section 4.1) takes the geometric mean
between both; here the exponent is chosen for each value by the errors to be expected (as in SmoothQuant, Xiao et al. 2022,
arXiv:2211.10438, equation 4).
"""

import dataclasses

import numpy as np

from ..program.layer_weights import weight_of
from ..program.operation_table import MAX_BYTE

_EXPONENTS = (0.25, 0.5, 0.75, 1.0)  # of the range of a channel; of its weights the difference to 1
_MAX_WEIGHT = 127
_LARGEST_RATIO = 256  # of two factors of a value
_TINY = 1e-30


@dataclasses.dataclass
class ChannelStatistics:
    """Smallest number, largest number and mean square of each channel, arrays (channels,)."""

    smallest: np.ndarray
    largest: np.ndarray
    power: np.ndarray


@dataclasses.dataclass
class _Reader:
    """Weights of a layer by filter and channel of the value; 0 where a filter does not read a channel.

    Attributes
    ----------
    squares, largest : numpy.ndarray
        (filters, channels): sum of the squares and largest magnitude over the window.
    is_read : numpy.ndarray of bool
        (filters, channels).
    window : int
        Weights for each channel.
    """

    squares: np.ndarray
    largest: np.ndarray
    is_read: np.ndarray
    window: int


def channel_factors(statistics, layers):
    """Return the factor of each channel of a value, (channels,), with the largest one 1.

    Parameters
    ----------
    statistics : ChannelStatistics
    layers : list of Operation
        The float convolutions that read the value.
    """
    readers = [_reader(layer, len(statistics.power)) for layer in layers]
    magnitudes = np.maximum(np.abs(statistics.smallest), np.abs(statistics.largest))
    weights = np.max([reader.largest.max(axis=0) for reader in readers], axis=0)
    best = np.ones_like(magnitudes)
    if not (magnitudes.any() and weights.any()):
        return best
    least = _expected_error(best, statistics, readers)
    for exponent in _EXPONENTS:
        factors = _floored(magnitudes) ** exponent / _floored(weights) ** (1 - exponent)
        factors = np.maximum(factors / factors.max(), 1 / _LARGEST_RATIO)
        error = _expected_error(factors, statistics, readers)
        if error < least:
            best, least = factors, error
    return best


def _floored(array):
    return np.maximum(array, array.max() / _LARGEST_RATIO)


def _reader(layer, channels):
    weight, groups = weight_of(layer).astype(np.float64), layer.attributes['groups']
    filters, inputs = weight.shape[:2]
    first = np.repeat(np.arange(groups), filters // groups) * inputs
    columns = first[:, None] + np.arange(inputs)
    squares, largest, is_read = np.zeros((filters, channels)), np.zeros((filters, channels)), np.zeros((filters, channels), bool)
    np.put_along_axis(squares, columns, np.square(weight).sum(axis=(2, 3)), axis=1)
    np.put_along_axis(largest, columns, np.abs(weight).max(axis=(2, 3)), axis=1)
    np.put_along_axis(is_read, columns, True, axis=1)
    return _Reader(squares, largest, is_read, weight.shape[2] * weight.shape[3])


def _expected_error(factors, statistics, readers):
    """Return the mean square of the rounding errors / the mean square of the results, the mean over all filters.

    Errors are independent and uniform within a step, and channels are taken for uncorrelated.
    """
    low, high = min((statistics.smallest / factors).min(), 0), max((statistics.largest / factors).max(), 0)
    of_bytes = np.square(factors * (high - low) / MAX_BYTE) / 12
    relative = []
    for reader in readers:
        steps = (reader.largest * factors).max(axis=1) / _MAX_WEIGHT
        of_weights = np.square(steps) / 12 * reader.window * (reader.is_read @ (statistics.power / np.square(factors)))
        relative.append((reader.squares @ of_bytes + of_weights) / np.maximum(reader.squares @ statistics.power, _TINY))
    return np.concatenate(relative).mean()
