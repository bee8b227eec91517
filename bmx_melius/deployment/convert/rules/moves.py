"""Rules for operators that move elements without changing them: concatenation, slicing, shuffling and reshaping of floats or bits."""

import numpy as np

from ....graph.operations import (
    AxisSlice,
    Concatenation,
    Dropout,
    ExpandDims,
    Flatten,
    Identity,
    PositionSelection,
    Reshape,
    Slice,
    Split,
    Squeeze,
    SwapAxes,
    Transpose,
)
from ..builder import UnsupportedError, is_3d, map_shape
from .attributes import POINT, axis_of, require_channel_axis
from .maps_3d import by_depth, joined
from .selections import arranges, selected
from .table import rule


@rule(Concatenation, maps_3d=True)
def _concat(builder, node):
    """Convert concatenation along the channels, of values or of bits."""
    require_channel_axis(node)
    sources = builder.network.sources(node)
    if is_3d(node.shape):
        builder.set(node, by_depth(builder, [(builder.move(node, None, [source]), node.shape[2]) for source in sources]))
    else:
        builder.set(node, builder.move(node, 'concat', sources))


@rule(AxisSlice, maps_3d=True)
def _slice_axis(builder, node):
    """Convert slices of the channels."""
    if builder.network.is_identity(node):
        return _identity(builder, node)
    require_channel_axis(node)
    channels = node.inputs[0].shape[1]
    begin, end, _ = slice(node.operation.begin, node.operation.end).indices(channels)
    if is_3d(node.shape):
        x = builder.move(node, None, builder.network.sources(node))
        pieces = [builder.add('slice', [x], begin=first + begin, end=first + end) for first in range(0, channels * node.shape[2], channels)]
        builder.set(node, joined(builder, pieces))
    else:
        builder.set(node, builder.move(node, 'slice', builder.network.sources(node), begin=begin, end=end))


@rule(Slice)
def _slice(builder, node):
    """Convert the removal of leading rows and columns to less padding of the windows before it (`Builder.without_first`).

    Where there are none, a depthwise convolution whose kernel is 1 in the last corner and 0 elsewhere moves the elements.
    """
    operation = node.operation
    begin = [number or 0 for number in operation.begin]
    if len(begin) != 4 or begin[:2] != [0, 0] or min(begin) < 0 or {*operation.end, *operation.strides} - {None}:
        raise UnsupportedError('it slices the map; only leading rows and columns can be removed')
    height, width = begin[2] + 1, begin[3] + 1
    x = builder.real(builder.network.sources(node)[0])
    windows = builder.without_first(x, *begin[2:])
    if windows is not None:
        return builder.set(node, windows)
    channels = builder.value(x).channels
    weight = np.zeros((channels, 1, height, width), dtype=np.float32)
    weight[:, :, -1, -1] = 1
    geometry = {**POINT, 'kernel_h': height, 'kernel_w': width}
    builder.set(node, builder.add('conv', [x], {'weight': weight}, out_channels=channels, groups=channels, has_bias=0, half=0, **geometry))


@rule(Split)
def _slice_channel(builder, node):
    """Convert to slices of the channels."""
    require_channel_axis(node)
    if node.operation.squeezes:
        raise UnsupportedError('it removes the axis of the channels')
    size = node.shape[1]
    for slot in range(len(node.shapes)):
        piece = builder.move(node, 'slice', builder.network.sources(node), begin=slot * size, end=(slot + 1) * size)
        builder.set(node, piece, slot)


@rule(Reshape, maps_3d=True)
@rule(Flatten, maps_3d=True)
@rule(ExpandDims, maps_3d=True)
@rule(Squeeze, maps_3d=True)
def _reshape(builder, node):
    """Convert flattening, other rows of the positions, vectors to maps of 1 x 1, channel shuffles, `channels.concat`; in 3-D not all."""
    x = builder.network.sources(node)[0]
    before, after = builder.network.shape(x), node.shape
    if before == after:
        return _identity(builder, node)
    if is_3d(before) and len(after) == 2 and before[0] == after[0]:
        return builder.set(node, builder.flattened(builder.move(node, None, [x]), before))
    shuffled = _shuffled(builder.network, node)
    if shuffled is not None:
        source, groups = shuffled
        return builder.set(node, builder.move(node, 'shuffle', [source], groups=groups))
    if arranges(before, after) and map_shape(before) != map_shape(after):
        _, height, width = map_shape(after)
        if isinstance(x.node.operation, PositionSelection):
            return builder.set(node, selected(builder, x.node, after))
        return builder.set(node, builder.add('arrange', [builder.real(x)], row_length=width if height > 1 else 0))
    joined = _joined(builder.network, node)
    if joined is not None:
        return builder.set(node, builder.move(node, 'concat', joined))
    while True:
        move = _move_between(builder.network.shape(x), after)
        if move is not None:
            return builder.set(node, builder.move(node, move or None, [x]))
        if not isinstance(x.node.operation, (Reshape, Flatten, ExpandDims, Squeeze)):
            break
        x = builder.network.sources(x.node)[0]  # several in sequence are like one
    raise UnsupportedError(f'it reshapes {before} to {after}; flattening, channel shuffles and `channels.concat` can be packed')


def _move_between(before, after):
    """Return the name of the operation that reshapes a value, '' if it needs none, or None if there is none."""
    if before[0] != after[0] or not {len(before), len(after)} <= {2, 3, 4, 5}:
        return None
    if is_3d(before) or is_3d(after) and after[2:] != (1, 1, 1):
        return None
    if len(after) == 2:
        return '' if len(before) == 2 else 'flatten'
    return None if map_shape(before) != map_shape(after) else 'unflatten' if len(before) == 2 else ''


_EXCHANGES = (SwapAxes(1, 2), SwapAxes(2, 1), Transpose((0, 2, 1, 3, 4)))  # of groups and the channels in them


def _shuffled(network, node):
    """Return input and groups of the channel shuffle (reshape, swap axes, reshape) that ends with `node`, or None if there is none."""
    swap = node.inputs[0]
    split = swap.inputs[0] if swap.inputs else swap
    if swap.operation not in _EXCHANGES or not isinstance(split.operation, Reshape):
        return None
    x = network.sources(split)[0]
    shape = network.shape(x)
    groups = split.shape[1]
    if len(shape) != 4 or node.shape != shape or split.shape != (shape[0], groups, shape[1] // groups, *shape[2:]):
        return None
    return x, groups


def _joined(network, node):
    """Return the inputs of the `channels.concat` (expand dims, concatenate, reshape) that ends with `node`, or None if there is none."""
    join = node.inputs[0]
    if not isinstance(join.operation, Concatenation) or len(join.shape) not in (3, 5) or axis_of(join) != 2:
        return None
    if join.shape[0] != 1 or node.shape != join.shape[1:]:
        return None
    if any(wide.operation != ExpandDims(0) for wide in join.inputs):
        return None
    return [network.sources(wide)[0] for wide in join.inputs]


@rule(Identity, maps_3d=True)
@rule(Dropout, maps_3d=True)
def _identity(builder, node):
    """Omit what changes nothing at inference."""
    if not builder.network.is_identity(node):
        raise UnsupportedError('it also drops values at inference')
    builder.set(node, builder.move(node, None, builder.network.sources(node)))
