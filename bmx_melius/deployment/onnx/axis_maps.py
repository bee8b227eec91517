"""Operators that compute rows of a map from rows, and columns from columns, found by evaluation: resizing, padding by elements of the map.

Resizing has some dozens of forms: kinds of interpolation, of coordinates, of rounding, sizes or scales. All of them are a matrix for each
axis, and so are padding by the elements at the edge, mirrored or from the other end, and slices of rows that are concatenated. The matrices
are what ONNX Runtime computes of maps that are 1 in one row and 0 elsewhere.
"""

import numpy as np

from .evaluation import Cone

_MAX_ELEMENTS = 1 << 28  # that the operators compute in all
_SEPARABLE = 1e-5  # error relative to the largest element


def axis_matrices(evaluator, cone, name):
    """Return the matrices (size after, size before) of the axes from 2 on by which a cone makes a value of its source, or None."""
    before, after = evaluator.shape(cone.source), evaluator.shape(name)
    if len(before) not in (3, 4) or len(after) != len(before) or before[:2] != after[:2] or 0 in before:
        return None
    at_once = before[0] * before[1]
    if max(np.prod(before), np.prod(after)) * -(-sum(before[2:]) // at_once) > _MAX_ELEMENTS:
        return None
    axes = range(2, len(before))
    inputs = np.zeros((sum(before[2:]), *before[2:]), np.float32)  # the rows of all axes
    places = iter(range(len(inputs)))
    for axis in axes:
        for place in range(before[axis]):
            np.moveaxis(inputs[next(places)], axis - 2, 0)[place] = 1
    results = []
    for begin in range(0, len(inputs), at_once):
        batch = np.zeros((at_once, *before[2:]), np.float32)
        batch[: len(inputs) - begin] = inputs[begin : begin + at_once]
        results.append(evaluator.moved(cone, name, batch.reshape(before)).reshape(at_once, *after[2:]))
    results, matrices = np.concatenate(results), []
    for axis in axes:
        rows, results = results[: before[axis]], results[before[axis] :]
        others = tuple(other - 1 for other in axes if other != axis)
        matrices.append(rows[(slice(None), *(slice(None) if other == axis else 0 for other in axes))].T if others else rows.T)
    return matrices if _makes(matrices, evaluator.sampled[cone.source], evaluator.sampled[name]) else None


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
    t.add(operator, 'map_axes', [source, *constants], {'axes': tuple(range(2, 2 + len(matrices)))})
    if all(set(np.unique(matrix)) <= {0, 1} and (matrix.sum(axis=1) == 1).all() for matrix in matrices):
        t.keep_signs(operator, cone.source)
    return True
