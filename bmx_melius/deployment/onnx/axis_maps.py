"""Operators that compute rows of a map from rows, and columns from columns, found by evaluation: resizing, padding by elements of the map.

Resizing has some dozens of forms: kinds of interpolation, of coordinates, of rounding, sizes or scales. All of them are a matrix for each
axis, and so are padding by the elements at the edge, mirrored or from the other end, and slices of rows that are concatenated. The matrices
are what ONNX Runtime computes of maps that are 1 in one row and 0 elsewhere.
"""

import numpy as np

from ...graph.operations import AxisMaps
from .evaluation import Cone

_MAX_ELEMENTS = 1 << 32  # that the operators compute in all
_MAX_MATRIX = 1 << 24  # elements
_SEPARABLE = 1e-5  # error relative to the largest element


def axis_matrices(evaluator, cone, name):
    """Return the matrices (size after, size before) of the axes from 2 on by which a cone makes a value of its source, or None."""
    before, after = evaluator.shape(cone.source), evaluator.shape(name)
    if len(before) not in (3, 4) or len(after) != len(before) or before[:2] != after[:2] or 0 in before:
        return None
    runs = sum(-(-size // (before[0] * before[1])) for size in before[2:])
    if max(np.prod(before), np.prod(after)) * runs > _MAX_ELEMENTS or max(map(np.multiply, before[2:], after[2:])) > _MAX_MATRIX:
        return None
    matrices = [_matrix(evaluator, cone, name, axis) for axis in range(2, len(before))]
    return matrices if _makes(matrices, evaluator.sampled[cone.source], evaluator.sampled[name]) else None


def _matrix(evaluator, cone, name, axis):
    """Return the matrix of an axis: what the cone makes of maps that are 1 in one row, as many at once as there are channels."""
    before, after = evaluator.shape(cone.source), evaluator.shape(name)
    at_once, columns = before[0] * before[1], []
    for begin in range(0, before[axis], at_once):
        maps = np.zeros((at_once, *before[2:]), np.float32)
        count = min(at_once, before[axis] - begin)
        np.moveaxis(maps, axis - 1, 1)[np.arange(count), begin + np.arange(count)] = 1
        results = evaluator.moved(cone, name, maps.reshape(before)).reshape(at_once, *after[2:])
        results = np.moveaxis(results, axis - 1, 1)
        columns.append(results.reshape(*results.shape[:2], -1)[:count, :, 0])  # all columns are the same
    return np.concatenate(columns).T


def _makes(matrices, x, expected):
    """Return whether the products of the axes of an array with the matrices are another one."""
    y = x.astype(np.float64)
    for axis, matrix in enumerate(matrices, 2):
        y = np.moveaxis(np.tensordot(matrix.astype(np.float64), y, (1, axis)), 0, axis)
    return bool(np.abs(y - expected).max() <= _SEPARABLE * np.abs(expected).max())


def add_axis_maps(t, operator, cone=None):
    """Set the output of an operator to the products of the axes of a map with matrices; return whether it is that.

    `cone` is the operators that make it, if it is more than the operator itself.
    """
    name = operator.outputs[0]
    cone = cone or Cone(operator.inputs[0], [operator])
    source, matrices = t.entry(cone.source), axis_matrices(t.evaluator, cone, name)
    if matrices is None:
        return False
    constants = [t.network.add_constant(matrix, f'{operator.name}_axis{axis}') for axis, matrix in enumerate(matrices, 2)]
    t.add(operator, AxisMaps(tuple(range(2, 2 + len(matrices)))), [source, *constants])
    if all(set(np.unique(matrix)) <= {0, 1} and (matrix.sum(axis=1) == 1).all() for matrix in matrices):
        t.keep_signs(operator, cone.source)
    return True
