"""Weights of few levels as sums of signs, whatever method or library made them."""

import dataclasses

import numpy as np

_EQUAL = 1e-5  # levels that differ by less, relative to the largest one, are one level with rounding errors; verification allows as much
_MAX_PARTS = 3


def clusters(row, tolerance):
    """Return the mean of each group of numbers that differ by less than the tolerance from the one before, ascending."""
    row = np.sort(row)
    begins = np.concatenate([[0], np.flatnonzero(np.diff(row) > tolerance) + 1])
    return (np.add.reduceat(row, begins) / np.diff(np.append(begins, len(row)))).tolist()


@dataclasses.dataclass
class WeightParts:
    """Weights of few levels as a sum: signs times a number for each filter or kernel position, and a mean for each filter.

    Attributes
    ----------
    parts : list of numpy.ndarray of float64
        Of the shape of the weight.
    means : numpy.ndarray of float64 or None
        (filters,); None if all are 0.
    """

    parts: list
    means: 'np.ndarray | None'

    @property
    def numbers(self):
        """How many numbers describe a filter beside its signs: magnitudes of each part, and a mean."""
        magnitudes = [np.sort(np.abs(part).reshape(len(part), -1), axis=1) for part in self.parts]
        return sum(int((np.diff(row, axis=1) > 0).sum(axis=1).max(initial=0)) + 1 for row in magnitudes) + (self.means is not None)


def weight_parts(weight):
    """Return the `WeightParts` of a weight (filters, ...), or None if it has more than four levels in a filter."""
    weight = weight.astype(np.float64)
    rows = weight.reshape(len(weight), -1)
    if not rows.size or not np.isfinite(rows).all() or not rows.any():
        return None
    tolerances = np.abs(rows).max(axis=1, keepdims=True) * _EQUAL  # of each filter: a normalization may enlarge a small one
    tolerance = tolerances.reshape(-1, *(1,) * (weight.ndim - 1))
    magnitudes = np.abs(weight)
    if weight.ndim > 2:
        by_position = magnitudes.mean(axis=1, keepdims=True)
        if (by_position > tolerance).all() and (np.abs(magnitudes - by_position) <= tolerance).all():
            by_filter = magnitudes.reshape(len(weight), -1).mean(axis=1).reshape(-1, *(1,) * (weight.ndim - 1))
            same = (np.abs(magnitudes - by_filter) <= tolerance).all()
            return WeightParts([np.where(weight > 0, 1, -1) * (by_filter if same else by_position)], None)
    # a row of numbers of which each differs a little from the next one is one level here: the result is compared at the end
    count = int((np.diff(np.sort(rows, axis=1), axis=1) > tolerances).sum(axis=1).max()) + 1
    if count > _MAX_PARTS + 1:
        return None
    levels = [clusters(row, limit) for row, limit in zip(rows, tolerances[:, 0])]
    if all(len(row) == 1 or len(row) == 2 and abs(row[0] + row[1]) <= limit for row, limit in zip(levels, tolerances[:, 0])):
        part = (np.where(rows > 0, 1, -1) * np.abs(rows).mean(axis=1, keepdims=True)).reshape(weight.shape)
        return WeightParts([part], None) if (np.abs(part - weight) <= tolerance).all() else None
    levels = np.array([row + [row[-1]] * (count - len(row)) for row in levels])
    index = np.argmin(np.abs(rows[:, :, None] - levels[:, None, :]), axis=2)
    differences, means = np.diff(levels, axis=1), levels[:, :1] + np.diff(levels, axis=1).sum(axis=1, keepdims=True) / 2
    if count == 4 and (np.abs(differences - differences.mean(axis=1, keepdims=True)) <= 2 * tolerances).all():
        half = differences.mean(axis=1, keepdims=True) / 2
        parts = [np.where(index >> bit & 1, 1, -1) * half * (1 << bit) for bit in (1, 0)]
    else:
        parts = [np.where(index > level, 1, -1) * differences[:, level : level + 1] / 2 for level in range(count - 1)]
    means = np.where(np.abs(means) <= tolerances, 0, means)[:, 0]
    parts = [part.reshape(weight.shape) for part in parts]
    total = sum(parts) + means.reshape(tolerance.shape)
    return WeightParts(parts, means if means.any() else None) if (np.abs(total - weight) <= tolerance).all() else None
