"""Operation and size counts of layers, by the rules of the MeliusNet paper (Bethge et al.).

One multiply-accumulate (MAC) of a convolution is one operation; kernel taps on the padding are included. MACs of two binary operands are
BOPs, all others FLOPs, and ``OPs = BOPs / 64 + FLOPs``. Dense layers, normalization, pooling and elementwise operators count as 0. A
parameter takes the bits of its quantizer, or 32 without one; running means and variances are not counted.

Extensions to the paper: a MAC of k-bit weights and m-bit activations counts as k * m binary operations (DoReFa-Net, Zhou et al. 2016,
equation 3), and a convolution of quantized weights with float activations as float. A layer with several binary bases consists of several
binary convolutions, and each of them counts: 5 bases of the weights and 5 of the activations count 25 times. Bases of weights that several
convolutions share are stored once. A product of matrices that both depend on the data, as attention has, counts like a 1x1 convolution
whose weights are the second matrix. docs/tables.md compares these rules with the figures that the paper prints for other methods.
"""

import dataclasses
import math
from typing import Any, Dict, Tuple

from ..errors import UserError
from ..graph.nodes import Graph, Node
from ..graph.operations import (
    Convolution,
    DeformableConvolution,
    Dense,
    MatrixProduct,
    TransposedConvolution,
    Unknown,
)
from ..nn import marks

FLOAT_BITS = 32
BOPS_PER_OP = 64

# Values of `LayerCounts.kind`, in the order in which tables list them.
FIRST_CONVOLUTION = 'first convolution'
LARGE_CONVOLUTION = 'other k x k convolution'
POINTWISE_CONVOLUTION = '1x1 convolution'
BINARY = 'binary layer'
QUANTIZED = 'k-bit layer'
DENSE = 'dense layer'
PRODUCT = 'matrix product'
OUTPUT = 'output layer'
NORMALIZATION = 'normalization'
OTHER = 'other'
KINDS = (FIRST_CONVOLUTION, LARGE_CONVOLUTION, POINTWISE_CONVOLUTION, BINARY, QUANTIZED, PRODUCT, DENSE, OUTPUT, NORMALIZATION, OTHER)

_LAYERS = (Convolution, DeformableConvolution, TransposedConvolution, Dense)  # operations that multiply by weights
_ACTIVATIONS = (marks.ACTIVATION, marks.FLOAT_ACTIVATION)
# By operators of MXNet: some normalizations have no class, as they are not packed, and the class of `_copy` is also that of `BlockGrad`.
_MOVES = {'Concat', 'Dropout', 'Flatten', 'Reshape', 'SwapAxis', '_copy', 'expand_dims', 'slice', 'slice_axis', 'squeeze', 'transpose'}
_NORMALIZATIONS = {'BatchNorm', 'BatchNorm_v1', '_contrib_SyncBatchNorm', 'LayerNorm', 'GroupNorm', 'InstanceNorm'}


@dataclasses.dataclass(frozen=True)
class LayerCounts:
    """One row of a summary: a node that holds parameters or multiplies, by weights or two values.

    Attributes
    ----------
    name : str
        Name of the node in the symbol.
    kind : str
        One of `KINDS`.
    operator : str
        Name of the operator in MXNet.
    output_shape : tuple of int
    macs : int
        Multiply-accumulates. In dense layers they are given here, but not counted in `bops` or `flops`.
    bits, activation_bits : int
        Bits per weight and per activation; 32 means float.
    bops, flops : int
    binary_params, quantized_params, float_params : int
        Numbers of parameters with 1 bit, with 2 to 31 bits and with 32 bits. A shared parameter is counted in the first layer that uses
        it.
    size_bits : int
        Size of the parameters in bits.
    """

    name: str
    kind: str
    operator: str
    output_shape: Tuple[int, ...]
    macs: int
    bits: int
    activation_bits: int
    bops: int
    flops: int
    binary_params: int
    quantized_params: int
    float_params: int
    size_bits: int

    @property
    def ops(self) -> float:
        """BOPs / 64 + FLOPs."""
        return self.bops / BOPS_PER_OP + self.flops

    @property
    def parameters(self) -> int:
        """Total number of parameters."""
        return self.binary_params + self.quantized_params + self.float_params

    def to_json(self) -> Dict[str, Any]:
        """Return the row as a dict that `json` can serialize."""
        return {**dataclasses.asdict(self), 'output_shape': list(self.output_shape), 'ops': self.ops, 'parameters': self.parameters}


def count_layers(graph: Graph) -> Dict[Node, LayerCounts]:
    """Count the operations and parameters of each layer of a `Graph`.

    Returns
    -------
    dict of Node to LayerCounts
        One entry for each node that holds parameters or multiplies by weights, and each product of matrices, in topological order.

    Raises
    ------
    UserError
        For an unknown kind of convolution or a malformed mark; the message names the node.
    """
    behind = _parameters_behind(graph)
    bits = _quantized_weights(graph, behind)
    owned = _owned_parameters(graph, behind)
    multiplying = [node for node in graph.nodes if _multiplies(node)]
    last = _last(graph, multiplying)
    layers = {}
    for node in graph.nodes:
        if node in owned or _multiplies(node) or isinstance(node.operation, MatrixProduct):
            kind = _kind(node, is_first=node in multiplying[:1], is_last=node in last)
            layers[node] = _layer(node, owned.get(node, ()), bits, kind)
    return layers


def _multiplies(node):
    """Return whether the node multiplies data by weights. Raises `UserError` for an unknown kind of convolution."""
    if isinstance(node.operation, Unknown) and 'conv' in node.operator.lower():
        reason = node.operation.reason or 'it is a convolution of an unknown kind'
        raise UserError(f'cannot count node {node.name} ({node.operator}): {reason}')
    return isinstance(node.operation, _LAYERS) and node.depends_on_data


def _weight_of(node):
    """Return the input of a multiplying node that holds its weights."""
    deformable = isinstance(node.operation, DeformableConvolution)  # offsets and masks come before its weights
    return node.inputs[1 + deformable + (deformable and node.operation.modulated)]


def _normalizes(node):
    """Return whether a node is a normalization, not a learned scale or shift that is computed by the same operator."""
    return node.operator in _NORMALIZATIONS and node.marks.get(marks.ROLE) not in (marks.SCALE, marks.SHIFT)


def _weight_bits(node):
    """Return the bits per weight of a multiplying node, from its mark; 32 if it has none."""
    return marked_bits(node) if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE) else FLOAT_BITS


def marked_bits(node: Node, fact: str = 'bits') -> int:
    """Return the number of bits in the marks of a node, of its weights or activations. Raises `UserError` if malformed."""
    bits = node.marks.get(fact, '')
    if not bits.isdigit() or not 1 <= int(bits) <= FLOAT_BITS:
        raise UserError(f'node {node.name} is marked with {bits!r} bits; expected 1 to {FLOAT_BITS}')
    return int(bits)


def _activation_bits(node):
    """Return the bits per input value of a quantized layer, from the quantizers between it and the layers before it.

    If it reads the input of the network, that is assumed to be quantized like the weights, as the layer expects, unless
    it is marked with other bits.
    """
    if 'input_bits' in node.marks:
        return marked_bits(node, 'input_bits')
    return max((_source_bits(source, node) for source in _sources_of_values(node)), default=FLOAT_BITS)


def _source_bits(source, layer):
    if source.marks.get(marks.ROLE) == marks.ACTIVATION:
        return marked_bits(source)
    return _weight_bits(layer) if source.operator is None else FLOAT_BITS


def reads_unknown_values(node: Node) -> bool:
    """Return whether a quantized layer reads values other than marked activations and the input of the network."""
    sources = _sources_of_values(node)
    return any(source.operator is not None and source.marks.get(marks.ROLE) not in _ACTIVATIONS for source in sources)


def _sources_of_values(node):
    """Return the nodes that determine the values that a layer reads: activations, layers and normalizations before it, and inputs.

    A function of a network input, such as a sign that is not marked, is returned in place of the input.
    """
    found, seen, waiting = [], set(), [(node.inputs[0], None)]
    while waiting:
        source, function = waiting.pop()
        if (source, function) in seen or not source.depends_on_data:
            continue
        seen.add((source, function))
        if source.operator is None:
            found.append(function or source)
        elif source.marks.get(marks.ROLE) in _ACTIVATIONS or isinstance(source.operation, _LAYERS) or _normalizes(source):
            found.append(source)
        else:
            moves = source.operator in _MOVES or source.marks.get(marks.ROLE) == marks.CONVOLUTION_INPUT
            waiting.extend((before, function if moves else function or source) for before in source.inputs)
    return found


def _parameters_behind(graph):
    """Map each node that does not depend on data to the set of parameters that it is computed from (a parameter to itself)."""
    behind = {node: {node} for node in graph.parameters}
    for node in graph.nodes:
        if node.operator is not None and not node.depends_on_data:
            behind[node] = set().union(*(behind.get(source, ()) for source in node.inputs))
    return behind


def _quantized_weights(graph, behind):
    """Map the latent weights of quantized layers, and variables marked with them, to their stored bits."""
    bits = {node: marked_bits(node, 'stored_bits') for node in graph.parameters if 'stored_bits' in node.marks}
    for node in graph.nodes:
        if _multiplies(node) and _weight_bits(node) < FLOAT_BITS:
            parameters = behind.get(_weight_of(node), ())
            sizes = {parameter: math.prod(parameter.shape) for parameter in parameters}
            weights = [parameter for parameter, size in sizes.items() if size == max(sizes.values())]
            if len(weights) != 1:
                raise UserError(
                    f'node {node.name} is marked as a quantized layer, but its weight is computed from {len(parameters)} parameters, '
                    f'{len(weights)} of which are the largest, not one'
                )
            bits[weights[0]] = marked_bits(node, 'stored_bits') if 'stored_bits' in node.marks else _weight_bits(node)
    return bits


def _owned_parameters(graph, behind):
    """Map nodes to their parameters. A parameter belongs to the first data-dependent node that uses it, directly or indirectly."""
    owned, taken = {}, set()
    for node in graph.nodes:
        if node.depends_on_data:
            arriving = set().union(*(behind.get(source, ()) for source in node.inputs)) - taken
            if arriving:
                owned[node] = arriving
                taken |= arriving
    owned.update({node: {node} for node in graph.parameters if node not in taken})  # of an output that does not depend on data
    return owned


def _last(graph, multiplying):
    """Return the multiplying nodes that no other multiplying node follows."""
    followed = set()
    for node in reversed(graph.nodes):
        if node in followed or _multiplies(node):
            followed.update(node.inputs)
    return {node for node in multiplying if node not in followed}


def _kind(node, is_first, is_last):
    if isinstance(node.operation, MatrixProduct):
        return PRODUCT
    if not isinstance(node.operation, _LAYERS):
        return NORMALIZATION if _normalizes(node) else OTHER
    bits = _weight_bits(node)
    if bits < FLOAT_BITS:
        return BINARY if bits == 1 else QUANTIZED
    is_dense = isinstance(node.operation, Dense)
    if is_first and not is_dense:
        return FIRST_CONVOLUTION
    if is_last:
        return OUTPUT
    if is_dense:
        return DENSE
    return POINTWISE_CONVOLUTION if math.prod(node.operation.window.kernel) == 1 else LARGE_CONVOLUTION


def _layer(node, parameters, bits, kind):
    macs = bops = flops = 0
    layer_bits = activation_bits = FLOAT_BITS
    if kind == PRODUCT:
        layer_bits = activation_bits = marked_bits(node) if 'bits' in node.marks else FLOAT_BITS
        macs = math.prod(node.shape) * (node.inputs[0].shape[1] // node.operation.heads)
        bops, flops = (macs * layer_bits * activation_bits, 0) if layer_bits < FLOAT_BITS else (0, macs)
    elif isinstance(node.operation, _LAYERS):
        layer_bits = _weight_bits(node)
        activation_bits = _activation_bits(node) if layer_bits < FLOAT_BITS else FLOAT_BITS
        macs = _macs(node)
        if not isinstance(node.operation, Dense):
            bops, flops = (macs * layer_bits * activation_bits, 0) if activation_bits < FLOAT_BITS else (0, macs)
    sizes = [(bits.get(parameter, FLOAT_BITS), math.prod(parameter.shape)) for parameter in parameters]
    return LayerCounts(
        name=node.name,
        kind=kind,
        operator=node.operator or 'parameter',
        output_shape=node.shape,
        macs=macs,
        bits=layer_bits,
        activation_bits=activation_bits,
        bops=bops,
        flops=flops,
        binary_params=sum(number for width, number in sizes if width == 1),
        quantized_params=sum(number for width, number in sizes if 1 < width < FLOAT_BITS),
        float_params=sum(number for width, number in sizes if width == FLOAT_BITS),
        size_bits=sum(width * number for width, number in sizes),
    )


def _macs(node):
    """Return the MACs of a node: one per output value and weight of a filter; for a transposed convolution, per input value."""
    values = node.inputs[0].shape if isinstance(node.operation, TransposedConvolution) else node.shape
    return math.prod(values) * math.prod(_weight_of(node).shape[1:])
