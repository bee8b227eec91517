"""3-D maps (N, C, D, H, W), which a program has as maps of D C channels: first the channels of the first depth, then of the next.

Operations on single elements and constants per channel, repeated for each depth, need nothing else. A convolution computes each depth of
its result from the depths that its window covers, which are slices of the channels, adjacent in general. All of these convolutions
have the same weights, which are stored once, because depths beyond the map are filled with the padding value. Only binary convolutions
that pad with 0 leave out weights there.
"""

from typing import List, Optional

import numpy as np

from ...program.operations import REAL_KIND
from ..builder import UnsupportedError
from .attributes import geometry_of


def _read_depths(node):
    """Return, for each depth of a node's result, the depths that its window reads; some may be beyond the map."""
    window = node.operation.window
    firsts = [depth * window.strides[0] - window.pads[0][0] for depth in range(node.shape[2])]
    return [[first + tap * window.dilations[0] for tap in range(window.kernel[0])] for first in firsts]


class _Slices:
    """The depths of a value of a program.

    Parameters
    ----------
    builder : Builder
    x : int
        Number of the value, of `count` depths.
    """

    def __init__(self, builder, x, count):
        self._builder, self._x, self.count = builder, x, count
        self._channels = builder.value(x).channels // count

    def run(self, first, last):
        """Add the slice of the depths `first` to `last`."""
        if (first, last) == (0, self.count - 1):
            return self._x
        return self._builder.add('slice', [self._x], begin=first * self._channels, end=(last + 1) * self._channels)

    def each(self):
        """Add all depths; return a list of numbers."""
        return [self.run(depth, depth) for depth in range(self.count)]

    def window(self, depths, outside):
        """Add the given depths, one after the other; `outside` is the number of the value of a depth beyond the map."""
        runs: List[Optional[List[int]]] = []  # [first, last] of adjacent depths, or None
        for depth in depths:
            if not 0 <= depth < self.count:
                runs.append(None)
            elif runs and runs[-1] and runs[-1][1] == depth - 1:
                runs[-1][1] = depth
            else:
                runs.append([depth, depth])
        return joined(self._builder, [self.run(*run) if run else outside for run in runs])

    def filled(self, value):
        """Add a depth of which all elements are `value`: any float, or, of bits, -1 or 1."""
        builder, one = self._builder, self.run(0, 0)
        if builder.value(one).kind == REAL_KIND:
            return builder.affine(one, 0, value)
        arrays = {'threshold': np.full(self._channels, -np.inf, np.float32), 'flip': np.full(self._channels, value < 0)}
        return builder.add('threshold', [builder.add('expand', [one], low=-1)], arrays)


def joined(builder, numbers):
    """Add the values one after the other along the channels."""
    return builder.add('concat', numbers) if len(numbers) > 1 else numbers[0]


def by_depth(builder, values):
    """Add the concatenation along the channels of values, pairs (number, depths), with all channels of a depth one after the other."""
    return joined(builder, [number for depth in zip(*(_Slices(builder, *value).each() for value in values)) for number in depth])


def convolution(builder, node, name, x, arrays, pad_value=0, **attributes):
    """Add the convolution of a node with 2-D or 3-D maps; return the number of the result.

    Parameters
    ----------
    name : {'conv', 'binary_conv'}
    x : int
        Number of the input.
    arrays : dict of str to numpy.ndarray
        ``weight`` (out_channels, in_channels / groups, [depth,] [height,] width), of bool for a binary convolution; for others ``bias``.
    pad_value : int
        With what the map is padded.
    **attributes
        Of the operation, except for the padding value.
    """
    weight = arrays['weight']
    if name == 'binary_conv':
        attributes = {**attributes, 'pad_value': pad_value}

    def of_two_axes(x, weight):
        """Add the convolution of value `x`, with a weight (out_channels, in_channels / groups, height, width)."""
        weight = weight.transpose(0, 2, 3, 1) if name == 'binary_conv' else weight
        return builder.add(name, [x], {**arrays, 'weight': np.ascontiguousarray(weight)}, **attributes)

    if weight.ndim < 5:
        return of_two_axes(x, weight.reshape(*weight.shape[:2], *(1,) * (4 - weight.ndim), *weight.shape[2:]))
    slices, groups = _Slices(builder, x, node.inputs[0].shape[2]), attributes['groups']
    windows = _read_depths(node)
    beyond = any(not 0 <= depth < slices.count for window in windows for depth in window)
    omits = name == 'binary_conv' and pad_value == 0
    outside = slices.filled(pad_value) if beyond and not omits else None
    results = []
    for window in windows:
        taps = [tap for tap, depth in enumerate(window) if not omits or 0 <= depth < slices.count]
        if not taps:
            raise UnsupportedError('it has windows that cover only padding')
        y, read = slices.window([window[tap] for tap in taps], outside), weight[:, :, taps]
        if groups > 1:  # the channels of a group are adjacent then, each with all of its depths
            y = builder.add('shuffle', [y], groups=len(taps)) if len(taps) > 1 else y
        else:
            read = read.swapaxes(1, 2)
        y = of_two_axes(y, read.reshape(len(weight), -1, *weight.shape[3:]))
        omitted = weight[0].size - read[0].size
        if omitted and attributes.get('offset'):  # half the number of all weights
            y = builder.affine(y, 1, omitted / 2)
        results.append(y)
    return joined(builder, results)


# --- pooling --------------------------------------------------------------------------------------------------------------------------


def pooling(builder, node, x, kind):
    """Add max, average or sum pooling of a 3-D map: of each depth, then over the depths. Return the number of the result."""
    operation, full = node.operation, node.operation.convention == 'full'
    geometry = geometry_of(operation.window, dilation=False)
    counts_padding = kind == 'sum' or kind == 'avg' and operation.counts_padding
    counting = {} if kind == 'max' else {'count_pad': int(counts_padding)}
    if any(size != (attribute[:3] != 'pad') for attribute, size in geometry.items()):
        x = builder.add('max_pool' if kind == 'max' else 'avg_pool', [x], ceil=int(full), **counting, **geometry)
    slices = _Slices(builder, x, node.inputs[0].shape[2])
    depths, padded, results = slices.each(), slices.count + operation.window.pads[0][0], []
    for window in _read_depths(node):
        inside = [depths[depth] for depth in window if 0 <= depth < slices.count]
        if not inside:
            raise UnsupportedError('it has windows that cover only padding')
        if kind == 'max':
            results.append(_largest(builder, inside))
            continue
        size = sum(depth < padded for depth in window) if counts_padding else len(inside)
        factor = geometry['kernel_h'] * geometry['kernel_w'] if kind == 'sum' else 1 / size
        results.append(builder.weighted_sum([(number, factor) for number in inside]))
    return joined(builder, results)


def global_pooling(builder, x, count, kind):
    """Add the average or the maximum of a value with `count` depths over all of its positions."""
    if count == 1:
        return builder.add(f'global_{kind}_pool', [x])
    depths = _Slices(builder, builder.add(f'global_{kind}_pool', [x]), count).each()
    return _largest(builder, depths) if kind == 'max' else builder.weighted_sum([(number, 1 / count) for number in depths])


def _largest(builder, numbers):
    largest, *others = numbers
    for number in others:
        largest = builder.add('maximum', [largest, number])
    return largest
