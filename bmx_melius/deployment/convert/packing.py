"""In-memory conversion of a network to packed operators.

The steps are:

============  ====================================================================================================================
network       read the graph and check the parameters and the input shapes against it (`network`, of MXNet: `traced_network`)
comparisons   find what each sign compares, with the rounding of the network's framework (`thresholds`, for MXNet `batch_norms`)
partition     choose the nodes that become packed operators (`lowering.requirements`, `partition`)
programs      lower these nodes to programs (`lowering.lower`, `folding`, `global_means`, `integer_layers`, `few_levels`)
verification  compare the programs with the framework (`verification`)
quantization  replace real-valued layers by integer layers, if calibration images are given (`calibration`, `quantization`)
assembly      write a symbol of packed operators and unconverted nodes (`assembly`)
============  ====================================================================================================================
"""

import collections
import dataclasses

import numpy as np

from ...analysis.counting import reads_unknown_values
from ...errors import UserError
from ...nn import marks
from ..program.layer_weights import weight_bits
from ..program.operation_table import MAX_LEVEL_BITS
from ..program.packed_operator import is_packed
from ..program.program import Program
from . import folding
from .assembly import assemble
from .calibration import quantized
from .few_levels import with_levels
from .global_means import with_means_of_summands
from .integer_layers import with_integer_layers, with_thresholds_of_sums
from .lowering import lower
from .partition import NOT_CONNECTED, divide
from .report import Left, Report
from .rules import inputs_meant_as_signs
from .verification import verify


@dataclasses.dataclass
class Packed:
    """A converted network.

    Attributes
    ----------
    symbol : str
        JSON text.
    arrays : dict of str to numpy.ndarray
        Parameters, named with the prefix ``arg:`` or ``aux:``.
    input_names : list of str
    report : Report
    """

    symbol: str
    arrays: dict
    input_names: list
    report: Report


def pack(network, verification, layers, input_spec=None):
    """Convert a network.

    Parameters
    ----------
    network : bmx_melius.deployment.convert.network.Network
    verification : bool
        Compare the programs with the framework of the network.
    layers : LayerOptions
        Read by `calibration_images.with_images`.
    input_spec : InputSpec or None
        Preprocessing of the input.

    Returns
    -------
    Packed

    Raises
    ------
    UserError
        If a node cannot be converted; the message names it.
    """
    try:
        return _pack(network, verification, layers, input_spec)
    except MemoryError as error:
        sizes = ', '.join(map(str, network.shapes.values()))
        raise UserError(f'there is not enough memory to convert with an input of shape {sizes}: give a smaller batch or size') from error


def _pack(network, verification, layers, input_spec):
    sample, half = _sample(network), layers.half
    comparisons = network.comparisons(sample)
    partition = divide(network, comparisons)
    lowered_regions = {region: lower(network, region.nodes, region.outputs, comparisons) for region in partition.regions}
    if not any(lowered.program.operations for lowered in lowered_regions.values()):
        raise UserError(f'there is nothing to convert: {_why_nothing(network, partition)}')
    programs, words = {}, {}
    for region, lowered in lowered_regions.items():
        lowered = _renumbered(lowered, *folding.fold_affines(lowered.program, into_convolutions=not half))
        lowered = _renumbered(lowered, *with_means_of_summands(lowered.program))
        lowered = _with_integer_layers(lowered)
        program = with_levels(lowered.program, half)
        words[region] = (folding.halve(program) if half else program).to_words()
        programs[region] = dataclasses.replace(lowered, program=Program.from_words(words[region]))
    checked = verify(network, list(programs.values()), sample, half) if verification else None
    for region, lowered in programs.items():  # after the verification, which has the float32 numbers that thresholds are compared with
        programs[region] = _renumbered(lowered, *with_thresholds_of_sums(lowered.program))
        words[region] = programs[region].program.to_words()
    quantization = None if layers.calibration is None else _quantize(programs, words, partition, layers, input_spec)
    symbol_json, packed_arrays, kept = assemble(network, partition, programs, words)
    report = Report(
        packed_operators=len(programs),
        binary_layers=sum(len(lowered.binary_layers) for lowered in lowered_regions.values()),
        converted=dict(
            collections.Counter(node.operator for node in network.graph.nodes if node.operator is not None and node not in kept)
        ),
        float_signs=_float_signs(network, lowered_regions.values()),
        left=[Left(node.name, node.operator, reason) for node, reason in sorted(partition.reasons.items(), key=lambda pair: pair[0].index)],
        unclear_thresholds=comparisons.unclear,
        half=half,
        verification=checked,
        level_bits=_level_bits(programs.values()),
        integer_bits={node.name: bits for part in programs.values() for node, bits in part.integer_layers.items()},
        quantization=quantization,
    )
    return Packed(symbol_json, packed_arrays, network.input_names, report)


def _with_integer_layers(lowered):
    """Return what was lowered with layers of few levels on both sides as sums of integers."""
    program, number_of, input_bits = with_integer_layers(lowered.program)
    lowered, integer_layers = _renumbered(lowered, program, number_of), {}
    for node, operation in _convolutions(lowered, 'int8'):
        found = weight_bits(operation), input_bits[operation.inputs[0]]
        integer_layers[node] = max(found, integer_layers.get(node, found))  # a 3-D layer is several convolutions
    return dataclasses.replace(lowered, integer_layers=integer_layers)


def _convolutions(lowered, *products):
    """Return pairs of a layer and a convolution of its program that multiplies such numbers."""
    found = (operation for operation in lowered.program.operations if operation.row.products in ('floats', 'int8'))
    return [(node, operation) for node, operation in zip(lowered.float_layers, found) if operation.row.products in products]


def _renumbered(lowered, program, number_of):
    """Return what was lowered with a program whose values have other numbers."""
    origins = {number_of[number]: entry for number, entry in lowered.origins.items() if number in number_of}
    midpoints = {number_of[number]: midpoint for number, midpoint in lowered.midpoints.items() if number in number_of}
    return dataclasses.replace(lowered, program=program, origins=origins, midpoints=midpoints)


def _quantize(programs, words, partition, options, input_spec):
    """Replace the only program and its words by a program of 8-bit layers; return the `QuantizationReport`."""
    if len(programs) != 1 or partition.reasons:
        reasons = [f'{node.name} ({node.operator}), {reason}' for node, reason in partition.reasons.items()]
        raise UserError(
            'only a network that becomes one packed operator can have 8-bit layers'
            + (f': {reasons[0]} remains an operator of MXNet' if reasons else ', this one becomes several')
        )
    ((region, lowered),) = programs.items()
    if len(lowered.program.inputs) != 1:
        raise UserError(f'only a network with one input can have 8-bit layers; this one has {len(lowered.program.inputs)}')
    names = {number: entry.node.name for number, entry in lowered.origins.items()}
    layers = [node.name for node, _ in _convolutions(lowered, 'floats')]
    result, report = quantized(lowered.program, options, input_spec, names, layers)
    words[region] = result.program.to_words()
    programs[region] = dataclasses.replace(lowered, program=Program.from_words(words[region]), origins={}, midpoints={})
    return report


def _sample(network):
    """Return a random array for each input: ids, signs if binary layers read the input directly, or normally distributed numbers."""
    generator = np.random.RandomState(0)
    signs = inputs_meant_as_signs(network)
    sample = {}
    for name, shape in network.shapes.items():
        drawn = generator.randint(network.ids[name], size=shape) if name in network.ids else generator.normal(size=shape)
        x = drawn.astype(np.float32)
        if name in signs:
            x = np.where(x >= 0, 1, -1 if signs[name] == 'sign' else 0).astype(np.float32)
        sample[name] = x
    return sample


def _float_signs(network, lowered):
    """Return the names of layers with weights of signs that are float in the programs, but not by design."""
    binary = {node for part in lowered for node in part.binary_layers}
    marked = (node for node in network.graph.nodes if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE))
    return [node.name for node in marked if node not in binary and marks.is_sign(node.marks) and reads_unknown_values(node)]


def _level_bits(lowered):
    """Return the bits of a weight of each layer of other inputs whose weights have few levels; of several convolutions the most.

    Binary layers are no such layers, though a convolution that adds up windows of theirs has weights of one level.
    """
    found = {}
    for part in lowered:
        for node, operation in _convolutions(part, 'floats', 'int8'):
            if node not in part.integer_layers and node not in part.binary_layers:
                found.setdefault(node.name, []).append(weight_bits(operation))
    return {name: max(bits) for name, bits in found.items() if max(bits) <= MAX_LEVEL_BITS}


def _why_nothing(network, partition):
    if any(is_packed(node.operator, node.attributes) for node in network.graph.nodes):
        return 'the network is packed already'
    left = [node for node in network.graph.nodes if partition.reasons.get(node, NOT_CONNECTED) != NOT_CONNECTED]
    layers = [node for node in left if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE)]
    if layers:
        return f'{layers[0].name} cannot be packed, {partition.reasons[layers[0]]}'
    if not left:
        return 'the network does nothing with its input'
    return f'the network has no binary layers, and {left[0].name} cannot be packed, {partition.reasons[left[0]]}'
