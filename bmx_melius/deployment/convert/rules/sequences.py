"""Rules for operators on sequences, which are maps of one row: embeddings, products, softmax, the exchange of channels and positions."""

import numpy as np

from ....graph.operations import Embedding, MatrixProduct, Softmax, SwapAxes, Transpose
from ..builder import UnsupportedError
from .selections import before_arranging
from .table import rule


@rule(MatrixProduct)
def _matrix_product(builder, node):
    """Convert products of two values to `matmul` or `row_matmul`. ONNX models have them."""
    x, y = (builder.real(source) for source in builder.network.sources(node))
    right, operation = builder.value(y), node.operation
    name, positions = ('row_matmul', right.width) if operation.by_row else ('matmul', right.height * right.width)
    builder.set(node, builder.add(name, [x, y], heads=operation.heads, positions=positions, transposed=int(operation.transposed)))


@rule(Embedding)
def _embedding(builder, node):
    """Convert rows of a table with given numbers to `embedding`. ONNX models have it."""
    numbers, table = builder.network.sources(node)
    table = builder.network.constant(table).astype(np.float32)
    line = builder.add('transpose', [builder.add('unflatten', [builder.real(numbers)])], height=1, width=1)
    rows, features = table.shape
    builder.set(node, builder.add('embedding', [line], {'table': table}, rows=rows, features=features, half=0))


@rule(Softmax)
def _softmax(builder, node):
    """Convert softmax of the channels, or of groups of them, to `softmax`. ONNX models have it."""
    builder.set(node, builder.add('softmax', [builder.real(builder.network.sources(node)[0])], groups=node.operation.groups))


_EXCHANGES = Transpose((0, 2, 1)), SwapAxes(1, 2), SwapAxes(2, 1)


@rule(SwapAxes)
@rule(Transpose)
def _transpose(builder, node):
    """Convert the exchange of channels and positions of a map (N, C, W) to `transpose`; else only as a part of a channel shuffle."""
    source = builder.network.sources(node)[0]
    if len(node.shape) != 3 or node.operation not in _EXCHANGES:
        raise UnsupportedError('it permutes axes; channel shuffles, and the exchange of both axes of a sequence, can be packed')
    x = builder.real(before_arranging(builder.network, source))
    value = builder.value(x)
    builder.set(node, builder.add('transpose', [x], height=value.height, width=value.width))
