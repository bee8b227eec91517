"""Rules for normalizations by the mean and the variance of the value itself, which inference computes as well."""

import numpy as np

from ....graph.operations import GroupNormalization, InstanceNormalization, LayerNormalization
from ..builder import UnsupportedError
from .attributes import axis_of
from .table import rule


def _normalize(builder, node, groups, by_position=0):
    """Add `normalize` of a node's input, and the factors and summands of its parameters, one per channel or per group."""
    x, gamma, beta = builder.network.sources(node)
    if gamma.node.depends_on_data or beta.node.depends_on_data:
        raise UnsupportedError('its gamma or beta is computed from data')
    number = builder.real(x)
    channels = builder.value(number).channels
    scale, shift = (np.repeat(array, channels // len(array)) for array in map(builder.network.constant, (gamma, beta)))
    arrays = {'eps': np.array([node.operation.eps], dtype=np.float32)}
    normalized = builder.add('normalize', [number], arrays, groups=groups, by_position=by_position)
    builder.set(node, builder.affine(normalized, scale, shift))


@rule(GroupNormalization)
def _group_norm(builder, node):
    """Convert to `normalize` and `affine`."""
    _normalize(builder, node, node.operation.groups)


@rule(InstanceNormalization)
def _instance_norm(builder, node):
    """Convert to `normalize`, with a group for each channel, and `affine`."""
    _normalize(builder, node, node.shape[1])


@rule(LayerNormalization)
def _layer_norm(builder, node):
    """Convert normalization of the channels, axis 1, to `normalize` and `affine`; other axes have no packed form."""
    axis = axis_of(node)
    if axis != 1:
        raise UnsupportedError(f'it normalizes axis {axis}; the channels, axis 1, can be packed')
    _normalize(builder, node, node.operation.groups, by_position=1)
