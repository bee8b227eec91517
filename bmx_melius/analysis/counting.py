"""The rule by which the operations and bytes of a layer are counted: that of the MeliusNet paper (Bethge et al.).

One multiply-accumulate (MAC) of a convolution is one operation, taps that fall on the padding included. Those on two binary operands
are BOPs, all others FLOPs, and ``OPs = BOPs / 64 + FLOPs``. Dense layers, normalization, pooling and elementwise arithmetic count as 0.
Parameters take the bits of their quantizer if they have one and 32 otherwise; running means and variances do not count.

Beyond the paper: a convolution of k-bit weights with m-bit activations takes k * m binary operations a MAC (DoReFa-Net, Zhou et al.
2016, equation 3), and one of quantized weights with float activations is float.
"""

import dataclasses
import math
from typing import Any, Dict, Tuple

from .. import marks
from ..errors import UserError
from ..symbol_json import integers
from .graph import Graph, Node

FLOAT_BITS = 32
BOPS_PER_OP = 64

# Where a layer's operations are: the values of `Layer.kind`, in the order in which they are listed.
FIRST_CONVOLUTION = 'first convolution'
LARGE_CONVOLUTION = 'other k x k convolution'
POINTWISE_CONVOLUTION = '1x1 convolution'
BINARY = 'binary layer'
QUANTIZED = 'k-bit layer'
DENSE = 'dense layer'
OUTPUT = 'output layer'
NORMALIZATION = 'normalization'
OTHER = 'other'
KINDS = (FIRST_CONVOLUTION, LARGE_CONVOLUTION, POINTWISE_CONVOLUTION, BINARY, QUANTIZED, DENSE, OUTPUT, NORMALIZATION, OTHER)

# Operators that multiply by weights -> which of their inputs the weights are.
_WEIGHT_INPUT = {
    'Convolution': 1,
    'Convolution_v1': 1,
    'Deconvolution': 1,
    '_contrib_DeformableConvolution': 2,
    '_contrib_ModulatedDeformableConvolution': 3,
    'FullyConnected': 1,
}
_DENSE_OPERATORS = {'FullyConnected'}
_NORMALIZATIONS = {'BatchNorm', 'BatchNorm_v1', '_contrib_SyncBatchNorm', 'LayerNorm', 'GroupNorm', 'InstanceNorm'}


@dataclasses.dataclass(frozen=True)
class Layer:
    """One row of a summary: a node that holds parameters or multiplies by weights.

    Attributes
    ----------
    name : str
        Name of the node in the symbol.
    kind : str
        One of `KINDS`.
    operator : str
        MXNet's name of the operator.
    output_shape : tuple of int
    macs : int
        Multiply-accumulates. Those of dense layers are given here, but count in neither `bops` nor `flops`.
    bits, activation_bits : int
        Of a weight and of an activation; 32 means float.
    bops, flops : int
    binary_params, quantized_params, float_params : int
        Numbers of parameters with 1 bit, with 2 to 31 bits (`bits` each) and with 32 bits. A parameter that several layers share
        belongs to the first of them.
    size_bits : int
        What the parameters take, in bits.
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
        """Number of parameters of any width."""
        return self.binary_params + self.quantized_params + self.float_params

    def to_json(self) -> Dict[str, Any]:
        """The row as an object that `json` can write."""
        return {**dataclasses.asdict(self), 'output_shape': list(self.output_shape), 'ops': self.ops, 'parameters': self.parameters}


def count_layers(graph: Graph) -> Dict[Node, Layer]:
    """Node -> `Layer`, for the nodes of a `Graph` that hold parameters or multiply by weights, in the graph's order.

    Raises `UserError` for a convolution of a sort that is not known here and for a malformed mark; it names the node.
    """
    behind = _parameters_behind(graph)
    bits = _quantized_weights(graph, behind)
    owned = _owned_parameters(graph, behind)
    multiplying = [node for node in graph.nodes if _multiplies(node)]
    last = _last(graph, multiplying)
    layers = {}
    for node in graph.nodes:
        if node in owned or _multiplies(node):
            kind = _kind(node, is_first=node in multiplying[:1], is_last=node in last)
            layers[node] = _layer(node, owned.get(node, ()), bits, kind)
    return layers


def _multiplies(node):
    """Whether data meets weights in this node. Raises `UserError` for a convolution of a sort that is not known here."""
    if node.operator not in _WEIGHT_INPUT and 'conv' in (node.operator or '').lower():
        raise UserError(f'cannot count node {node.name}: its operator {node.operator} is none of {", ".join(_WEIGHT_INPUT)}')
    return node.operator in _WEIGHT_INPUT and node.depends_on_data


def _weight_bits(node):
    """Bits of a weight of a multiplying node, by its mark; 32 where it has none."""
    return marked_bits(node) if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE) else FLOAT_BITS


def marked_bits(node: Node) -> int:
    """The bits that the node's mark gives: of the weights of a layer, of the values of an activation. Raises `UserError` if malformed."""
    bits = node.marks.get('bits', '')
    if not bits.isdigit() or not 1 <= int(bits) <= FLOAT_BITS:
        raise UserError(f'node {node.name} is marked with {bits!r} bits; 1 to {FLOAT_BITS} are possible')
    return int(bits)


def _activation_bits(node):
    """Bits of what a quantized layer is fed with: those of the quantizers between it and the layers before it.

    Where there is no layer before it, the network's input is taken to be quantized as the weights are, which is what the layer expects.
    """
    found, seen, waiting = [], set(), [node.inputs[0]]
    while waiting:
        source = waiting.pop()
        if source in seen or not source.depends_on_data:
            continue
        seen.add(source)
        if source.marks.get(marks.ROLE) == marks.ACTIVATION:
            found.append(marked_bits(source))
        elif source.operator is None:
            found.append(_weight_bits(node))
        elif source.operator in _WEIGHT_INPUT or source.operator in _NORMALIZATIONS:
            found.append(FLOAT_BITS)
        else:
            waiting.extend(source.inputs)
    return max(found, default=FLOAT_BITS)


def _parameters_behind(graph):
    """Node that does not depend on data -> the parameters it is computed from; a parameter depends on itself."""
    behind = {node: {node} for node in graph.parameters}
    for node in graph.nodes:
        if node.operator is not None and not node.depends_on_data:
            behind[node] = set().union(*(behind.get(source, ()) for source in node.inputs))
    return behind


def _quantized_weights(graph, behind):
    """Parameter -> its bits, for the weights of quantized layers."""
    bits = {}
    for node in graph.nodes:
        if _multiplies(node) and _weight_bits(node) < FLOAT_BITS:
            weights = behind.get(node.inputs[_WEIGHT_INPUT[node.operator]], ())
            if len(weights) != 1:
                raise UserError(
                    f'node {node.name} is marked as a quantized layer, but its weight is computed from {len(weights)} parameters, not one'
                )
            bits.update({weight: _weight_bits(node) for weight in weights})
    return bits


def _owned_parameters(graph, behind):
    """Node -> its parameters: each belongs to the first node where it, or what is computed from it, meets data."""
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
    """Those of the multiplying nodes after which no other comes."""
    followed = set()
    for node in reversed(graph.nodes):
        if node in followed or _multiplies(node):
            followed.update(node.inputs)
    return {node for node in multiplying if node not in followed}


def _kind(node, is_first, is_last):
    if node.operator not in _WEIGHT_INPUT:
        return NORMALIZATION if node.operator in _NORMALIZATIONS else OTHER
    bits = _weight_bits(node)
    if bits < FLOAT_BITS:
        return BINARY if bits == 1 else QUANTIZED
    if is_first and node.operator not in _DENSE_OPERATORS:
        return FIRST_CONVOLUTION
    if is_last:
        return OUTPUT
    if node.operator in _DENSE_OPERATORS:
        return DENSE
    return POINTWISE_CONVOLUTION if math.prod(kernel(node)) == 1 else LARGE_CONVOLUTION


def kernel(node: Node, attribute: str = 'kernel') -> Tuple[int, ...]:
    """The kernel of a convolution or pooling, one number for each spatial axis; with ``attribute='stride'`` its strides (() = all 1)."""
    return integers(node.attributes.get(attribute, ''))


def _layer(node, parameters, bits, kind):
    macs = bops = flops = 0
    layer_bits = activation_bits = FLOAT_BITS
    if node.operator in _WEIGHT_INPUT:
        layer_bits = _weight_bits(node)
        activation_bits = _activation_bits(node) if layer_bits < FLOAT_BITS else FLOAT_BITS
        macs = _macs(node)
        if node.operator not in _DENSE_OPERATORS and activation_bits < FLOAT_BITS:
            bops = macs * layer_bits * activation_bits
        elif node.operator not in _DENSE_OPERATORS:
            flops = macs
    sizes = [(bits.get(parameter, FLOAT_BITS), math.prod(parameter.shape)) for parameter in parameters]
    return Layer(
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
    """Each output value takes one MAC per weight of its filter; the other way round, each input value of a transposed convolution."""
    weight = node.inputs[_WEIGHT_INPUT[node.operator]].shape
    values = node.inputs[0].shape if node.operator == 'Deconvolution' else node.shape
    return math.prod(values) * math.prod(weight[1:])
