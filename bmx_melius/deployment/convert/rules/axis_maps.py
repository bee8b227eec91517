"""Rules for operators that compute rows of a map from rows, and columns from columns: resizing, and padding by elements of the map.

Such an operator is a matrix for each axis. A program has no operation for it, but it repeats rows and takes every n-th one; so with p
copies of each row, of which every q-th one remains, row i of the result is beside row i q / p of the map. What it reads are rows a few
places away from there: for each distance there is a map moved by it, which is multiplied with constants for each row, and the products are
added. The distances are few if q / p is close to the ratio of the sizes: two or three for bilinear interpolation. If the matrices only
select rows and columns, and more than one distance is needed, the positions are gathered, for maps of one size only.
"""

import functools

import numpy as np

from ....graph.operations import AxisMaps, BilinearResizing, Padding
from ...program.operations import SIDES
from ..builder import UnsupportedError, as_float32
from .attributes import POINT
from .resizing import pad_widths, pads_with_zeros, zero_padding
from .selections import gathered
from .table import rule

_MAX_TERMS = 80  # products that are added for an axis
_MAX_LENGTH = 255  # of kernels, strides, padding and factors of repetition
_REPETITIONS, _STRIDES = range(1, 17), range(1, 65)  # which are tried


@rule(AxisMaps)
def _map_axes(builder, node):
    """Convert products of axes with constant matrices, inputs 1 and 2. ONNX models have them."""
    source, *matrices = builder.network.sources(node)
    rank = len(builder.network.shape(source))
    matrices = {axis + 4 - rank: builder.network.constant(matrix) for axis, matrix in zip(node.operation.axes, matrices)}
    builder.set(node, mapped(builder, builder.real(source), matrices.get(2), matrices.get(3)))


@rule(Padding)
def _pad(builder, node):
    """Convert zeros to padding of the next float `conv`, or a depthwise one; `edge` and `reflect` to sums of moved maps of one size."""
    if node.operation.mode == 'constant':
        if not pads_with_zeros(node.operation):
            raise UnsupportedError('it pads with other numbers than 0')
        return builder.set(node, zero_padding(builder, node))
    widths = pad_widths(node.operation)
    x = builder.real(builder.network.sources(node)[0])
    sizes = zip('hw', builder.network.shape(builder.network.sources(node)[0])[2:])
    matrices = []
    for axis, size in sizes:
        places = np.pad(np.arange(size), tuple(widths[side] for side in SIDES[axis]), mode=node.operation.mode)
        matrices.append(np.eye(size)[places])
    builder.set(node, mapped(builder, x, *matrices))


@rule(BilinearResizing)
def _bilinear_resize(builder, node):
    """Convert `mode='size'`, and `scale_height` with `scale_width`, to sums of moved maps of one size."""
    source = builder.network.sources(node)[0]
    if len(node.inputs) > 1 or node.operation.mode != 'size':
        raise UnsupportedError('its size is taken from another value, or odd; a fixed size can be packed')
    corners = node.operation.aligns_corners
    sizes = zip(builder.network.shape(source)[2:], node.shape[2:])
    builder.set(node, mapped(builder, builder.real(source), *(_bilinear(before, after, corners) for before, after in sizes)))


def _bilinear(before, after, corners):
    """Return the matrix of linear interpolation, float64 (after, before), with MXNet's coordinates."""
    if corners:
        places = np.arange(after) * ((before - 1) / (after - 1) if after > 1 else 0)
    else:
        places = np.maximum((np.arange(after) + 0.5) * before / after - 0.5, 0)
    first = np.minimum(places.astype(int), before - 1)
    share = places - first
    return np.eye(before)[first] * (1 - share)[:, None] + np.eye(before)[np.minimum(first + 1, before - 1)] * share[:, None]


def mapped(builder, x, rows, columns):
    """Add the products of the axes of a value with matrices; return the number of the result.

    Parameters
    ----------
    builder : Builder
    x : int
    rows, columns : numpy.ndarray or None
        Of shape (size after, size before); None for an axis that stays as it is.

    Raises
    ------
    UnsupportedError
        If a row or column of the result is computed from others that are too far apart.
    """
    matrices = [(axis, matrix) for axis, matrix in (('h', rows), ('w', columns)) if matrix is not None and not _is_identity(matrix)]
    repetitions = [_repetition(matrix) for _, matrix in matrices]
    if matrices and all(repetitions):
        scales = {'scale_h': 1, 'scale_w': 1, **{f'scale_{axis}': count for (axis, _), count in zip(matrices, repetitions)}}
        return builder.add('upsample', [x], repeat=1, **scales)
    places = _places(builder.value(x), rows, columns)
    if places is not None and any(len(_terms(matrix)[2]) > 1 for _, matrix in matrices):
        return gathered(builder, [x], places)
    for axis, matrix in sorted(matrices, key=lambda pair: len(pair[1]) / pair[1].shape[1]):  # fewer elements first
        x = _mapped(builder, x, matrix, axis)
    return x


def _is_identity(matrix):
    return matrix.shape[0] == matrix.shape[1] and np.array_equal(matrix, np.eye(len(matrix)))


def _repetition(matrix):
    """Return how often each element is repeated, 0 if the matrix does something else."""
    rows, columns = matrix.shape
    count, rest = divmod(rows, columns)
    return count if not rest and np.array_equal(matrix, np.eye(columns).repeat(count, axis=0)) else 0


def _places(value, rows, columns):
    """Return the numbers of the positions of a map, row by row, that matrices of its axes select; None if these do something else."""
    selected = []
    for matrix, size in ((rows, value.height), (columns, value.width)):
        matrix = np.eye(size) if matrix is None else matrix
        if not ((matrix == 0) | (matrix == 1)).all() or (matrix.sum(axis=1) != 1).any():
            return None
        selected.append(matrix.argmax(axis=1))
    return selected[0][:, None] * value.width + selected[1]


def _mapped(builder, x, matrix, axis):
    repeated, stride, terms = _terms(matrix)
    after, before = matrix.shape
    count = (after - 1) * stride // repeated + 1  # rows that are repeated
    same = {offset: factors[0] for offset, factors in terms.items() if repeated == 1 and (factors == factors[0]).all()}
    numbers = [_sampled(builder, x, axis, same, stride, after, before)] if same else []  # one convolution
    for offset, factors in terms.items():
        if offset in same:
            continue
        if repeated == 1:
            number = _sampled(builder, x, axis, {offset: 1.0}, stride, after, before)
        else:
            number = _sampled(builder, x, axis, {offset: 1.0}, 1, count, before)
            number = builder.add('upsample', [number], repeat=1, **{'scale_h': 1, 'scale_w': 1, f'scale_{axis}': repeated})
            number = _sampled(builder, number, axis, {0: 1.0}, stride, after, count * repeated)
        if not (factors == 1).all():
            shape = (1, -1, 1) if axis == 'h' else (1, 1, -1)
            number = builder.add_positionwise('scale_map', number, factors.reshape(shape))
        numbers.append(number)
    return functools.reduce(lambda first, second: builder.add('add', [first, second]), numbers)


def _terms(matrix):
    """Return how often rows are repeated, which of them remain, and a dict from a distance to the factors of the rows at that distance.

    Row i of the result is the sum of the factors times the rows at i stride // repeated + distance; a row beyond the map is 0 and may have
    any factor.
    """
    (rows, columns), (after, before) = np.nonzero(matrix), matrix.shape
    best = None
    repetitions = {*_REPETITIONS, min(-(-after // before), _MAX_LENGTH)}
    for repeated in sorted(repetitions):
        for stride in {*_STRIDES, max(1, min(before // after, _MAX_LENGTH))} if repeated == 1 else _STRIDES:
            count = (after - 1) * stride // repeated + 1
            distances = np.unique(columns - rows * stride // repeated)
            cost = len(distances) * (repeated * count * (repeated > 1) + after + count)
            longest = max(count * repeated - (after - 1) * stride, abs(count - before) + np.abs(distances).max() + 1)
            if longest <= _MAX_LENGTH and len(distances) <= _MAX_TERMS and (best is None or cost < best[0]):
                best = cost, repeated, stride, distances
    if best is None:
        raise UnsupportedError('it computes rows or columns from others that are too far apart')
    _, repeated, stride, distances = best
    places, terms = np.arange(after) * stride // repeated, {}
    for distance in distances:
        within = (places + distance >= 0) & (places + distance < before)
        factors = np.where(within, matrix[np.arange(after), np.clip(places + distance, 0, before - 1)], 0)
        inner = factors[within]
        terms[int(distance)] = np.full(after, inner[0]) if (inner == inner[0]).all() else factors
    return repeated, stride, terms


def _sampled(builder, x, axis, taps, stride, count, size):
    """Add a convolution along an axis of `size` elements; return the number of the result.

    Element i of `count` ones is the sum of the factors in `taps`, a dict of int to float, times the elements at i stride + the key, where
    elements beyond the map are 0.
    """
    if taps == {0: 1.0} and stride == 1 and count == size:
        return x
    before = max(0, -min(taps))
    after = max(0, (count - 1) * stride + max(taps) + 1 - size)
    line = np.zeros(before + size + after - (count - 1) * stride)
    for offset, factor in taps.items():
        line[offset + before] = factor
    first, last = SIDES[axis]
    geometry = {**POINT, f'kernel_{axis}': len(line), f'stride_{axis}': stride, first: before, last: after}
    channels = builder.value(x).channels
    weight = line.reshape(1, 1, -1, 1) if axis == 'h' else line.reshape(1, 1, 1, -1)
    arrays = {'weight': as_float32(np.repeat(weight, channels, axis=0))}
    return builder.add('conv', [x], arrays, out_channels=channels, groups=channels, has_bias=0, half=0, **geometry)
