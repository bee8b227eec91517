"""Attention transfer: a student follows the spatial attention maps of its teacher (Zagoruyko and Komodakis 2017, arXiv:1612.03928)."""

import warnings

import mxnet as mx

from ..errors import UserError
from ..graph.operations import Convolution, Dense
from ..graph.tracing import read_graph, symbol_of
from ..nn.marks import ACTIVATION_INPUT, ROLE

INPUT = 'data'
EPSILON = 1e-12  # keeps the gradient finite where the maps of student and teacher are equal


class AttentionTransfer:
    """Distance between the attention maps of a student and of its teacher.

    The maps of a network are found in its graph: for each height and width, the map of the last layer with this size through which all data
    flow, so that no shortcut bypasses it. In a network of stages these are the outputs of the stem and of the stages; if a normalization or
    an activation function follows the last block of a stage, its output. Quantized activations are not used: the
    squares of signs are constant. Maps of student and teacher with equal height and width are compared; their channels may differ.

    Parameters
    ----------
    student, teacher : gluon.HybridBlock
        Initialized networks that map images to logits.
    input_shape : tuple of int
        Shape (C, H, W) of the images.
    weight : float
        Factor of the loss.

    Attributes
    ----------
    sizes : list of (int, int)
        Heights and widths of the compared maps.
    student, teacher : gluon.SymbolBlock
        Networks with the same parameters, whose outputs are a list of the logits and the compared maps, (N, C, H, W) each.

    Raises
    ------
    UserError
        When the networks have no maps of equal size.
    """

    def __init__(self, student, teacher, input_shape, weight):
        self.weight = weight
        symbols = [symbol_of(net, [INPUT]) for net in (student, teacher)]
        own, its = (find_maps(symbol, input_shape) for symbol in symbols)
        self.sizes = [size for size in own if size in its]
        if not self.sizes:
            raise UserError(
                f'--attention-weight: the feature maps of the network, {_format_sizes(own)}, and those of its teacher, '
                f'{_format_sizes(its)}, have no size in common; choose another teacher, or leave the flag out'
            )
        self.student, self.teacher = (
            _with_outputs(net, symbol, [maps[size] for size in self.sizes])
            for net, symbol, maps in ((student, symbols[0], own), (teacher, symbols[1], its))
        )

    def loss(self, maps, teacher_maps):
        """Return the loss of each image, (N,) float32: `weight` times the sum of `distance` over lists of maps."""
        return self.weight * sum(distance(own, its) for own, its in zip(maps, teacher_maps))

    def __str__(self):
        return f'attention maps of {_format_sizes(self.sizes)} (weight {self.weight:g})'


def distance(features, teacher_features):
    """Return the Euclidean distances between the attention maps of feature maps (N, C, H, W) and (N, D, H, W), (N,) float32."""
    difference = attention_map(features) - attention_map(teacher_features)
    return mx.nd.sqrt(difference.square().sum(axis=1) + EPSILON)


def attention_map(features):
    """Return the attention maps of feature maps (N, C, H, W): sums over channels of squares, scaled to norm 1, (N, H * W) float32."""
    return mx.nd.L2Normalization(features.astype('float32', copy=False).square().sum(axis=1).flatten(), mode='instance')


def find_maps(symbol, input_shape):
    """Find the feature maps for attention transfer, as described at `AttentionTransfer`.

    Parameters
    ----------
    symbol : mx.sym.Symbol
        With the input `INPUT`.
    input_shape : tuple of int
        Shape (C, H, W) of an image.

    Returns
    -------
    dict of (int, int) to str
        Height and width -> name of the output in ``symbol.get_internals()``; heights decrease. Maps of one pixel are left out.
    """
    nodes = [node for node in read_graph(symbol, (1, *input_shape)).nodes if node.depends_on_data]
    last_use = {node.index: node.index for node in nodes}
    for node in nodes:
        for source in node.inputs:
            last_use[source.index] = node.index  # the nodes are in topological order
    known, convolved, quantized = set(symbol.get_internals().list_outputs()), set(), set()
    found, bypass = {}, -1  # index of the last use of a value computed so far
    for node in nodes:
        sources = {source.index for source in node.inputs}
        if isinstance(node.operation, (Convolution, Dense)):
            convolved.add(node.index)
        else:
            convolved |= {node.index} if sources & convolved else set()
            quantized |= {node.index} if sources & quantized or node.marks.get(ROLE) == ACTIVATION_INPUT else set()
        is_map = len(node.shape) == 4 and node.shape[2] * node.shape[3] > 1 and f'{node.name}_output' in known
        if is_map and bypass <= node.index and node.index in convolved and node.index not in quantized:
            size = node.shape[2:]
            if not found or size <= list(found)[-1]:  # padding makes maps larger
                found[size] = f'{node.name}_output'
        bypass = max(bypass, last_use[node.index])
    return found


def _with_outputs(net, symbol, names):
    """Return a block with the parameters of `net` and its `symbol`, with the outputs of `net` and the internal outputs in `names`."""
    internals = symbol.get_internals()
    with warnings.catch_warnings():
        warnings.filterwarnings('ignore', message='Cannot decide type')  # of the input, which is float32
        block = mx.gluon.SymbolBlock([symbol, *(internals[name] for name in names)], [mx.sym.var(INPUT)], params=net.collect_params())
    block.hybridize(static_alloc=True, static_shape=True)
    return block


def _format_sizes(sizes):
    return ', '.join(f'{height}x{width}' for height, width in sizes) or 'none'
