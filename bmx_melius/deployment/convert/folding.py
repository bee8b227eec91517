"""Optimizations of a program: merging constant factors and summands into the operation before, and half-precision weights."""

import collections
import dataclasses

import numpy as np

from ..program.by_operation import ByOperation
from ..program.program import Program

_MERGING = ByOperation()  # (operation before, operation, whether into convolutions) -> what computes both, or None


def fold_affines(program, into_convolutions=True):
    """Merge each ``affine`` into the ``affine`` or ``conv`` before it if nothing else reads that result, ``scale_map`` into ``scale_map``.

    Merging changes rounding errors. So what is rounded to integers, directly or through elementwise operations and moves, stays as it is:
    next to a tie, an error of one bit would become one of a whole step.

    Parameters
    ----------
    program : Program
    into_convolutions : bool
        Whether convolution weights may be scaled. Must be False for half precision, where small factors would cost accuracy.

    Returns
    -------
    program : Program
    number_of : dict of int to int
        Old number -> new number of each remaining value.
    """
    readers = collections.Counter(source for operation in program.operations for source in operation.inputs)
    readers.update(program.outputs)
    first, rounded = len(program.inputs), _rounded_values(program)
    operations, number_of = [], {number: number for number in range(first)}
    for number, operation in enumerate(program.operations, first):
        source = operation.inputs[0]
        operation = dataclasses.replace(operation, inputs=tuple(number_of[read] for read in operation.inputs))
        before = number_of[source] - first
        merge = _MERGING.get(operation.name)
        if merge and before >= 0 and readers[source] == 1 and number not in rounded:
            merged = merge(operations[before], operation, into_convolutions)
            if merged is not None:
                operations[before] = merged
                number_of[number] = number_of.pop(source)
                continue
        operations.append(operation)
        number_of[number] = first + len(operations) - 1
    return Program(program.inputs, operations, [number_of[number] for number in program.outputs]), number_of


def _rounded_values(program):
    """Return the numbers of values that are rounded to integers, and of values from which elementwise operations and views follow."""
    first, rounded = len(program.inputs), set()
    for number, operation in reversed(list(enumerate(program.operations, first))):
        row = operation.row
        if row.rounds_inputs or number in rounded and (row.elementwise or row.view):
            rounded.update(operation.inputs)
    return rounded


@_MERGING.of('affine')
def _merged_affine(before, affine, into_convolutions):
    scale, shift = (affine.arrays[name].astype(np.float64) for name in ('scale', 'shift'))
    arrays = {name: array.astype(np.float64) for name, array in before.arrays.items()}
    attributes = before.attributes
    if before.name == affine.name:
        arrays = {'scale': arrays['scale'] * scale, 'shift': arrays['shift'] * scale + shift}
    elif before.row.products == 'floats' and not before.row.weight_levels and into_convolutions:
        arrays = {'weight': arrays['weight'] * scale[:, None, None, None], 'bias': arrays.get('bias', 0) * scale + shift}
        attributes = {**attributes, 'has_bias': 1}
    else:
        return None
    return _replaced(before, attributes, arrays)


@_MERGING.of('scale_map')
def _merged_scales(before, scale, _):
    """Merge factors of rows and of columns, but not factors of channels and of positions: their product has far more elements."""
    if before.name != scale.name or before.attributes['by_channel'] != scale.attributes['by_channel']:
        return None
    factor = before.arrays['factor'].astype(np.float64) * scale.arrays['factor'].astype(np.float64)
    _, height, width = factor.shape
    return _replaced(before, {**before.attributes, 'height': height, 'width': width}, {'factor': factor})


def _replaced(operation, attributes, arrays):
    """Return the operation with other attributes and arrays, or None if these overflow in float32."""
    if any(np.abs(array).max() > np.finfo(np.float32).max for array in arrays.values()):
        return None
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    return dataclasses.replace(operation, attributes=attributes, arrays=arrays)


def halve(program):
    """Return the program with weights and tables in float16, except of few levels, or with a number beyond the float16 range."""
    operations = []
    for operation in program.operations:
        name = 'table' if operation.row.looks_up else 'weight'
        if 'half' in operation.attributes and np.abs(operation.arrays[name]).max() <= np.finfo(np.float16).max:
            arrays = {**operation.arrays, name: operation.arrays[name].astype(np.float16)}
            operation = dataclasses.replace(operation, attributes={**operation.attributes, 'half': 1}, arrays=arrays)
        operations.append(operation)
    return Program(program.inputs, operations, program.outputs)
