"""Translation of normalizations by the mean and variance of the value itself: of channels, of groups of them, or at each position.

Exporters write a normalization of groups as one of channels, between a `Reshape` that makes a channel of each group and one back, and that
of the channels at each position between a `Transpose` to the channels last and one back. `Translator.map_of` is the map of what is between.
"""

import numpy as np

from ...graph.operations import GroupNormalization, LayerNormalization
from .translation import UntranslatableError, translate


@translate('InstanceNormalization')
def _instance_normalization(t, operator):
    source, shape = t.map_of(operator.inputs[0]), t.shape(operator.inputs[0])
    if len(shape) < 3 or operator.inputs[0] in t.last or t.network.shape(source)[1] % shape[1]:
        raise UntranslatableError('its channels are neither the channels of a map nor groups of them')
    _normalize(t, operator, source, GroupNormalization(shape[1], _eps(operator)))


@translate('GroupNormalization')
def _group_normalization(t, operator):
    _normalize(t, operator, t.entry(operator.inputs[0]), GroupNormalization(operator.attributes['num_groups'], _eps(operator)))


@translate('LayerNormalization')
def _layer_normalization(t, operator):
    name, rank = operator.inputs[0], len(t.shape(operator.inputs[0]))
    axis = operator.attributes.get('axis', -1) % rank
    if axis == rank - 1 and (rank == 2 or name in t.last):
        return _normalize(t, operator, t.map_of(name), LayerNormalization(1, _eps(operator)))
    parameters = [t.require_constant(operator, position, np.zeros(1, np.float32)) for position in (1, 2)]
    if axis == 1 and all(np.ptp(array) == 0 for array in parameters):
        return _normalize(t, operator, t.entry(name), GroupNormalization(1, _eps(operator)))
    raise UntranslatableError(f'it normalizes {rank - axis} of {rank} axes; the channels can be packed')


def _eps(operator):
    return operator.attributes.get('epsilon', 1e-5)


def _normalize(t, operator, source, operation):
    """Add a normalization of the map `source`."""
    output, shape = operator.outputs[0], t.network.shape(source)
    scale = t.require_constant(operator, 1)
    shift = t.require_constant(operator, 2, np.zeros_like(scale))
    if scale.ndim > 1:  # one number, repeated for all elements that are normalized
        scale, shift = scale.reshape(-1)[:1], shift.reshape(-1)[:1]
    parameters = [t.network.add_constant(a, f'{operator.name}_{name}') for a, name in ((scale, 'gamma'), (shift, 'beta'))]

    def as_map(array):
        return np.moveaxis(array, -1, 1) if operator.inputs[0] in t.last else array.reshape(-1, *shape[1:])

    t.set_map(operator, t.network.add(operation, operator.name, [source, *parameters], shape, value=(output, as_map)))
