"""Attributes of the operations of graphs, as programs and rules need them."""

from ....graph.operations import Window
from ...program.operations import SIDES
from ..builder import UnsupportedError


def geometry_of(window, dilation=True):
    """Return height and width of kernel, stride, pad and, with `dilation`, dilation of a `Window` as attributes of an operation.

    The window of lines (N, C, W) has the height 1; the depth of a window of 3-D maps is left out.
    """
    axes = [(1, 1, (0, 0), 1), *zip(window.kernel, window.strides, window.pads, window.dilations)][-2:]
    attributes = {}
    for axis, (kernel, stride, pads, distance) in zip('hw', axes):
        attributes.update({f'kernel_{axis}': kernel, f'stride_{axis}': stride, **dict(zip(SIDES[axis], pads))})
        if dilation:
            attributes[f'dilation_{axis}'] = distance
    return attributes


# A 1x1 window, as a dense layer has it.
POINT = geometry_of(Window((1, 1)))


def require_channels_second(operation):
    """Raise `UnsupportedError` unless the layout of an operation is NCW, NCHW or NCDHW."""
    if operation.layout not in (None, 'NCW', 'NCHW', 'NCDHW'):
        raise UnsupportedError(f'its layout is {operation.layout}; NCW, NCHW and NCDHW can be packed')


def of_maps(weight):
    """Return the weight of a dense layer (units, inputs) or of a convolution of lines (out, in, width) as a weight for maps."""
    return weight.reshape(*weight.shape[:2], *(1,) * (4 - weight.ndim), *weight.shape[2:])


def axis_of(node):
    """Return the axis of the operation of a node as a non-negative number."""
    axis = node.operation.axis
    return axis + len(node.inputs[0].shape) if axis < 0 else axis


def reduced_axes(reduction, rank):
    """Return the set of the axes of a value with `rank` axes over which a `Reduction` goes, none if it does not name any."""
    axes = {axis % rank for axis in reduction.axes}
    return set(range(rank)) - axes if reduction.excludes else axes


def require_channel_axis(node):
    """Raise `UnsupportedError` unless the operation of a node is along the channels, axis 1."""
    if axis_of(node) != 1:
        raise UnsupportedError(f'it works along axis {axis_of(node)}; the channels, axis 1, can be packed')
