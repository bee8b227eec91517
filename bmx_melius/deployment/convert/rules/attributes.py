"""Translation of MXNet operator attributes to the attributes of program operations."""

from ....files.symbol_json import integers
from ...program.operations import PADDING, SIDES
from ..builder import UnsupportedError


def _pair(node, name, default):
    """Return the (height, width) attribute `name` of a node, without the depth. 1-D maps (N, C, W) have the height 1."""
    numbers = integers(node.attributes.get(name, ''))
    if len(numbers) == 1:
        return (default, *numbers)
    if len(numbers) > 3:
        raise UnsupportedError(f'its {name} has {len(numbers)} axes; 1-D, 2-D and 3-D maps can be packed')
    return numbers[-2:] or (default, default)


def geometry_of(node, dilation=True):
    """Return kernel, stride, pad and, with `dilation`, dilation of a node's window as attributes of an operation."""
    names = {'kernel': 1, 'stride': 1, 'pad': 0}
    pairs = {name: _pair(node, name, default) for name, default in names.items()}
    if dilation:
        pairs['dilation'] = _pair(node, 'dilate', 1)
    begins = pairs.pop('pad')
    ends = _pair(node, 'pad_end', 0) if 'pad_end' in node.attributes else begins  # networks of other frameworks have different ones
    attributes = {f'{name}_{axis}': pair[i] for name, pair in pairs.items() for i, axis in enumerate('hw')}
    return {**attributes, **{side: pad[i] for i, axis in enumerate('hw') for side, pad in zip(SIDES[axis], (begins, ends))}}


# A 1x1 window, as a dense layer has it.
POINT = {**{f'{name}_{axis}': 1 for name in ('kernel', 'stride', 'dilation') for axis in 'hw'}, **dict.fromkeys(PADDING, 0)}


def require_channels_second(node):
    """Raise `UnsupportedError` unless the layout is NCW, NCHW or NCDHW."""
    if node.attributes.get('layout', 'None') not in ('None', 'NCW', 'NCHW', 'NCDHW'):
        raise UnsupportedError(f'its layout is {node.attributes["layout"]}; NCW, NCHW and NCDHW can be packed')


def of_maps(weight):
    """Return the weight of a dense layer (units, inputs) or of a convolution of lines (out, in, width) as that of a convolution of maps."""
    return weight.reshape(*weight.shape[:2], *(1,) * (4 - weight.ndim), *weight.shape[2:])


def axis_of(node, name, default=None):
    """Return the axis attribute `name` of a node as a non-negative number."""
    axis = int(node.attributes.get(name, default))
    return axis + len(node.inputs[0].shape) if axis < 0 else axis


def require_channel_axis(node, axis):
    """Raise `UnsupportedError` unless `axis` is the channel axis, 1."""
    if axis != 1:
        raise UnsupportedError(f'it works along axis {axis}; the channels, axis 1, can be packed')
