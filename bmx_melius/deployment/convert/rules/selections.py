"""Rules for the selection of positions of maps, in any order and any number of times."""

import numpy as np

from ....graph.operations import PositionSelection, Reshape
from ..builder import map_shape
from .table import rule


@rule(PositionSelection)
def _select_positions(builder, node):
    """Convert to `gather`. ONNX models have them."""
    builder.set(node, selected(builder, node, node.shape))


def selected(builder, node, shape):
    """Add the positions that a node selects, in a map of another shape; return the number of the result."""
    _, height, width = map_shape(shape)
    sources = [before_arranging(builder.network, source) for source in builder.network.sources(node)]
    return gathered(builder, [builder.real(source) for source in sources], np.array(node.operation.places).reshape(height, width))


def arranges(before, after):
    """Return whether a reshape from one shape to another only arranges the positions of a map in other rows."""
    return {len(before), len(after)} <= {3, 4} and before[:2] == after[:2]


def before_arranging(network, entry):
    """Return the map whose positions, row by row, are those of another one."""
    while isinstance(entry.node.operation, Reshape):
        before = network.sources(entry.node)[0]
        if not arranges(network.shape(before), network.shape(entry)):
            break
        entry = before
    return entry


def gathered(builder, numbers, places):
    """Add a map of positions of values, counted row by row, of one value after the other; `places` has its shape. Return its number."""
    values = [builder.value(number) for number in numbers]
    positions, (height, width) = sum(value.height * value.width for value in values), places.shape
    return builder.add('gather', numbers, {'places': places.astype(np.int32)}, positions=positions, height=height, width=width)
