"""Rules for the selection of positions of maps, in any order and any number of times."""

import numpy as np

from ....graph.operations import PositionSelection
from ..builder import map_shape
from .table import rule


@rule(PositionSelection)
def _select_positions(builder, node):
    """Convert to `gather`. ONNX models have them."""
    _, height, width = map_shape(node.shape)
    places = np.array(node.operation.places).reshape(height, width)
    builder.set(node, gathered(builder, [builder.real(source) for source in builder.network.sources(node)], places))


def gathered(builder, numbers, places):
    """Add a map of positions of values, counted row by row, of one value after the other; `places` has its shape. Return its number."""
    values = [builder.value(number) for number in numbers]
    positions, (height, width) = sum(value.height * value.width for value in values), places.shape
    return builder.add('gather', numbers, {'places': places.astype(np.int32)}, positions=positions, height=height, width=width)
