"""Rules for nodes marked by this package's layers: sign activations, and convolutions and dense layers with 1-bit weights."""

import numpy as np

from ....analysis.counting import marked_bits
from ....errors import UserError
from ....graph.operations import Dense
from ....nn import marks
from ..builder import UnsupportedError, for_each_depth
from ..network import Entry, is_sign
from .maps_3d import convolution
from .table import marked_rule


@marked_rule(marks.ACTIVATION, maps_3d=True)
def _quantized_activation(builder, node):
    """Convert a marked activation (`node` is its last node), with the batch normalization and shifts before it, to a threshold."""
    network = builder.network
    levels = network.levels(Entry(node, 0))
    if not is_sign(node) and not levels:
        raise UnsupportedError(
            f'it quantizes to {marked_bits(node)} bits by {node.marks.get("method")}; the sign can be packed, and one to four bits by '
            'round, hwgq and lq_net, if the levels rise from 0'
        )
    if network.activation_input(node) is None:
        raise UnsupportedError('the start of the activation is not marked')
    x, comparisons = builder.comparisons(node)
    number = builder.real(x)
    channels = builder.value(number).channels
    comparisons = [tuple(for_each_depth(array, channels) for array in comparison) for comparison in comparisons]
    if levels:
        builder.set_levels(Entry(node, 0), number, levels, comparisons)
    else:
        ((threshold, flip),) = comparisons
        builder.set(node, builder.add('threshold', [number], {'threshold': threshold, 'flip': flip}))


def binary_layer(builder, node, role, **attributes):
    """Add `node` if it is a marked layer with binary weights and sign inputs. Return whether it is one."""
    if node.marks.get(marks.ROLE) != role or not is_sign(node):
        return False
    network = builder.network
    pad_value = pad_value_of(node)
    x = _signs_read_by(network, node)
    if x is None:
        return False
    if pad_value not in (-1, 0, 1):
        raise UnsupportedError(f'it pads with {pad_value:g}; -1, 0 and 1 can be packed')
    weight_entry = network.sources(node)[1]
    if weight_entry.node.depends_on_data:
        raise UnsupportedError('its weight is computed from data')
    weight = network.constant(weight_entry)  # signs, times a positive number
    if (np.abs(weight) != abs(weight.flat[0])).any():
        raise UnsupportedError('its weights are not signs')
    number = flat_if_dense(builder, node, builder.bits(x, node.marks['encoding']))
    attributes.update(out_channels=len(weight), offset=int(node.marks.get('offset', 0)), planes=1)
    builder.set(node, convolution(builder, node, 'binary_conv', number, {'weight': weight >= 0}, int(pad_value), **attributes))
    builder.binary_layers.append(node)
    return True


def _signs_read_by(network, node):
    """Return the value in {-1, 1} or {0, 1} that a marked binary layer reads, or None if it reads something else.

    A network input that a binary layer reads directly is assumed to hold signs.
    """
    encoding, x = node.marks.get('encoding'), value_read_by(network, node)
    return x if x and encoding and (network.encoding(x) == encoding or network.is_input(x)) else None


def value_read_by(network, node):
    """Return the value that a marked layer reads, before the padding value is subtracted, or None if its marks are inconsistent."""
    pad_value = pad_value_of(node)
    x = network.before_identities(network.sources(node)[0])
    if node.marks.get('encoding') == 'sign' and pad_value:
        if x.node.marks.get(marks.ROLE) != marks.CONVOLUTION_INPUT or pad_value_of(x.node) != pad_value:
            return None
        x = network.before_identities(network.sources(x.node)[0])
    return x


def pad_value_of(node):
    """Return the padding value in the mark of a convolution."""
    text = node.marks.get('pad_value', '0')
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f'node {node.name} is marked with the padding {text!r}, which is not a number') from error


def inputs_meant_as_signs(network):
    """Return a dict from the name of each network input that binary layers read directly to its encoding, ``sign`` or ``bit``."""
    found = {}
    for node in network.graph.nodes:
        if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE) and is_sign(node):
            x = _signs_read_by(network, node)
            if x is not None and network.is_input(x):
                found[x.node.name] = node.marks['encoding']
    return found


def flat_if_dense(builder, node, x):
    """Return value `x`, flattened if `node` is a dense layer and `x` is a map."""
    return builder.flattened(x, node.inputs[0].shape) if isinstance(node.operation, Dense) else x
