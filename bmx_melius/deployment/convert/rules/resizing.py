"""Rules for operators that enlarge or reduce maps: transposed convolution, upsampling, padding, maximum over the map."""

import numpy as np

from ....graph.operations import Padding, Reduction, TransposedConvolution, Upsampling, Window
from ...program.operations import SIDES
from ..builder import UnsupportedError
from .attributes import POINT, geometry_of, of_maps, reduced_axes, require_channels_second
from .table import rule


@rule(TransposedConvolution)
def _deconvolution(builder, node):
    """Convert to `upsample` with zeros and `conv`; 3-D maps and `target_shape` have no packed form."""
    require_channels_second(node.operation)
    if any(node.operation.output_shape):
        raise UnsupportedError('it has a target_shape; with pad and adj it can be packed')
    weight, *bias = _constants(builder, node)
    builder.set(node, _transposed(builder, node, node.operation, of_maps(weight), bias))


@rule(Upsampling)
def _up_sampling(builder, node):
    """Convert `nearest` of one value to `upsample`, and `bilinear` with constant weights to `upsample` with zeros and `conv`."""
    scale = node.operation.scale
    if node.operation.kind == 'bilinear':
        (weight,) = _constants(builder, node)
        window = Window((2 * scale - scale % 2,) * 2, (scale, scale), ((scale // 2, scale // 2),) * 2)
        return builder.set(node, _transposed(builder, node, TransposedConvolution(window, len(weight)), weight, []))
    if len(node.inputs) > 1:
        raise UnsupportedError('it joins several values of different sizes; one value can be packed')
    x = builder.real(builder.network.sources(node)[0])
    builder.set(node, builder.add('upsample', [x], scale_h=scale, scale_w=scale, repeat=1))


def _constants(builder, node):
    """Return the arrays of all inputs of a node except the first one."""
    _, *parameters = builder.network.sources(node)
    if any(parameter.node.depends_on_data for parameter in parameters):
        raise UnsupportedError('its weight or bias is computed from data')
    return [builder.network.constant(parameter) for parameter in parameters]


def _transposed(builder, node, operation, weight, bias):
    """Add a transposed convolution: the convolution of a map with zeros between its elements, with the kernel turned by 180 degrees.

    `weight` has the shape (in, out / groups, kernel_h, kernel_w); `bias` is a list of one array or none.
    """
    geometry, groups = geometry_of(operation.window), operation.groups
    stride = {f'scale_{axis}': geometry[f'stride_{axis}'] for axis in 'hw'}
    padding = {}
    for axis, added in zip('hw', (0, 0, *operation.output_padding)[-2:]):
        before, after = SIDES[axis]
        padding[before] = geometry[f'dilation_{axis}'] * (geometry[f'kernel_{axis}'] - 1) - geometry[before]
        padding[after] = padding[before] + added
    if min(padding.values()) < 0:
        raise UnsupportedError('its padding is larger than its kernel')
    inputs, outputs, *kernel = weight.shape
    turned = weight[:, :, ::-1, ::-1].reshape(groups, inputs // groups, outputs, *kernel).swapaxes(1, 2)
    arrays = {'weight': np.ascontiguousarray(turned.reshape(groups * outputs, inputs // groups, *kernel))}
    arrays.update(zip(('bias',), bias))
    x = builder.add('upsample', [builder.real(builder.network.sources(node)[0])], repeat=0, **stride)
    attributes = {**geometry, **padding, 'stride_h': 1, 'stride_w': 1}
    return builder.add('conv', [x], arrays, out_channels=groups * outputs, groups=groups, has_bias=len(bias), half=0, **attributes)


def pad_widths(padding):
    """Return the widths of a `Padding` of height and width as attributes of a window."""
    if len(padding.pads) != 4 or any(map(any, padding.pads[:2])):
        raise UnsupportedError('it pads other axes than height and width')
    return {side: width for axis, widths in zip('hw', padding.pads[2:]) for side, width in zip(SIDES[axis], widths)}


def pads_with_zeros(operation):
    """Return whether an operation pads with zeros."""
    return isinstance(operation, Padding) and operation.mode == 'constant' and operation.value == 0


def zero_padding(builder, node):
    """Add the zeros of a `Padding`, as a depthwise convolution; return the number of the result."""
    x = builder.real(builder.network.sources(node)[0])
    channels = builder.value(x).channels
    arrays = {'weight': np.ones((channels, 1, 1, 1), dtype=np.float32)}
    attributes = {**POINT, **pad_widths(node.operation), 'out_channels': channels, 'groups': channels, 'has_bias': 0, 'half': 0}
    return builder.add('conv', [x], arrays, **attributes)


@rule(Reduction, 'max')
def _max(builder, node):
    """Convert the maximum over height and width to `global_max_pool`; other axes have no packed form."""
    (source,) = builder.network.sources(node)
    rank = len(builder.network.shape(source))
    axes = reduced_axes(node.operation, rank)
    if rank < 3 or axes != set(range(2, rank)):
        raise UnsupportedError(f'it is the maximum over the axes {sorted(axes)}; that over the map can be packed')
    maximum = builder.add('global_max_pool', [builder.real(source)])
    builder.set(node, maximum if node.operation.keeps_axes else builder.add('flatten', [maximum]))
