"""Rules for convolutions and dense layers (binary and float), batch normalization and pooling."""

from ....graph.operations import BatchNormalization, Convolution, Dense, GlobalPooling, Pooling
from ....nn import marks
from ..builder import UnsupportedError, is_3d
from ..network import is_channelwise_batch_norm
from .attributes import POINT, geometry_of, require_channels_second
from .binary import binary_layer, flat_if_dense
from .low_bit import low_bit_layer
from .maps_3d import convolution, global_pooling, pooling
from .resizing import pad_widths, pads_with_zeros
from .table import rule


@rule(Convolution, maps_3d=True)
def _convolution(builder, node):
    """Convert marked layers of few bits to `binary_conv`, others to `conv`, or with few levels `level_conv` or `level_int8_conv`."""
    require_channels_second(node.operation)
    attributes = {**geometry_of(node.operation.window), 'groups': node.operation.groups}
    if not any(layer(builder, node, marks.CONVOLUTION, **attributes) for layer in (binary_layer, low_bit_layer)):
        _float_layer(builder, node, **attributes)


@rule(Dense, maps_3d=True)
def _fully_connected(builder, node):
    """Convert dense layers to a 1 x 1 `binary_conv` or `conv` of a vector; `flatten=False` on a map has no packed form."""
    if not node.operation.flattens and len(node.inputs[0].shape) != 2:
        raise UnsupportedError('it is applied along the last axis of a map (flatten=False)')
    if not any(layer(builder, node, marks.DENSE, groups=1, **POINT) for layer in (binary_layer, low_bit_layer)):
        _float_layer(builder, node, groups=1, **POINT)


def _float_layer(builder, node, **attributes):
    network = builder.network
    x, *parameters = network.sources(node)
    if isinstance(node.operation, Convolution) and pads_with_zeros(x.node.operation):
        attributes = {**attributes, **{side: attributes[side] + size for side, size in pad_widths(x.node.operation).items()}}
        x = network.sources(x.node)[0]
    if any(parameter.node.depends_on_data for parameter in parameters):
        raise UnsupportedError('its weight or bias is computed from data')
    weight, *bias = [network.constant(parameter) for parameter in parameters]
    arrays = {'weight': weight, **({'bias': bias[0]} if bias else {})}
    number = flat_if_dense(builder, node, builder.real(x))
    fixed = dict(out_channels=len(weight), has_bias=len(bias), half=0)
    builder.set(node, convolution(builder, node, 'conv', number, arrays, **fixed, **attributes))


@rule(BatchNormalization, maps_3d=True)
def _batch_norm(builder, node):
    """Convert to `affine`, or to a part of the thresholds of the sign after it; only the channels, axis 1."""
    if not is_channelwise_batch_norm(node):
        raise UnsupportedError('it does not normalize the channels (axis 1) with constant parameters')
    x = builder.real(builder.network.sources(node)[0])
    builder.set(node, builder.affine(x, *builder.network.batch_norm(node).affine()))


@rule(Pooling, maps_3d=True)
@rule(GlobalPooling, maps_3d=True)
def _pooling(builder, node):
    """Convert max and average pooling, also global, and sums without windows beyond the map; `lp` has no packed form."""
    operation, kind = node.operation, node.operation.kind
    require_channels_second(operation)
    x = builder.real(builder.network.sources(node)[0])
    if isinstance(operation, GlobalPooling):
        if kind not in ('avg', 'max'):
            raise UnsupportedError(f'global pooling of the kind {kind} has no packed form; avg and max have one')
        depths = node.inputs[0].shape[2] if is_3d(node.shape) else 1
        builder.set(node, global_pooling(builder, x, depths, kind))
        return
    convention = operation.convention
    if is_3d(node.shape) and (kind in ('max', 'avg') or kind == 'sum' and convention == 'valid') and convention in ('valid', 'full'):
        builder.set(node, pooling(builder, node, x, kind))
        return
    geometry = geometry_of(operation.window, dilation=False)
    if kind == 'sum' and convention == 'valid':
        mean = builder.add('avg_pool', [x], ceil=0, count_pad=1, **geometry)
        builder.set(node, builder.affine(mean, geometry['kernel_h'] * geometry['kernel_w'], 0))
        return
    if kind not in ('max', 'avg') or convention not in ('valid', 'full'):
        raise UnsupportedError(f'pooling of the kind {kind} by the convention {convention} has no packed form')
    counting = {'count_pad': int(operation.counts_padding)} if kind == 'avg' else {}
    builder.set(node, builder.add(f'{kind}_pool', [x], ceil=int(convention == 'full'), **counting, **geometry))
