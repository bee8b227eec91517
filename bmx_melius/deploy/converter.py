"""Conversion: an exported network becomes packed operators, in files of the same kind.

============  ==================================================================================================
network       symbol and parameters, checked against each other and the input (`network`)
thresholds    how MXNet rounds each batch normalization before a sign, and which comparison that is (`thresholds`)
partition     which nodes become operators (`lowering.requirements`, `partition`)
programs      what the operators do (`lowering.lower`, `folding`)
verification  that they do what MXNet does (`verification`)
assembly      a symbol of packed operators and of the nodes that stay
============  ==================================================================================================
"""

import collections
import dataclasses
import json
import os

import mxnet as mx
import numpy as np

from .. import marks
from ..container import read_arrays, write_parameters
from ..errors import UserError, last_line
from ..files import replacing
from ..graph import load_symbol, symbol_of
from . import folding, thresholds
from .lowering import batch_norm_of, inputs_meant_as_signs, lower
from .network import Entry, Network
from .packed_operator import NAME, is_packed, operator_attributes
from .partition import divide, is_binary_layer
from .program import Program
from .verification import Verification, verify

_MXNET_VERSION = ['int', 10901]  # whose format the symbol has


@dataclasses.dataclass
class Left:
    """A node that stays an operator of MXNet, and why."""

    node: str
    operator: str
    reason: str


@dataclasses.dataclass
class Report:
    """What a conversion did. Printed, it is a summary.

    Attributes
    ----------
    packed_operators : int
        In the new symbol.
    binary_layers : int
        That became part of them.
    converted : dict of str to int
        MXNet's operators that are gone: name -> number.
    left : list of Left
        Those that stay.
    unclear_thresholds : list of str
        Batch normalizations of which MXNet's way to round could not be told: values next to their thresholds may get another sign.
    half : bool
        Whether weights are stored in float16.
    verification : Verification or None
    symbol_file, params_file : str or None
        What was written.
    size_before, size_after : int or None
        Bytes of the parameter files.
    """

    packed_operators: int
    binary_layers: int
    converted: dict
    left: list
    unclear_thresholds: list
    half: bool
    verification: 'Verification | None'
    symbol_file: 'str | None' = None
    params_file: 'str | None' = None
    size_before: 'int | None' = None
    size_after: 'int | None' = None

    def to_json(self):
        """The report as an object that `json` can write."""
        return dataclasses.asdict(self)

    def __str__(self):
        nodes = sum(self.converted.values())
        lines = [f'{nodes} operators with {self.binary_layers} binary layers became {self.packed_operators} packed']
        if self.size_after is not None:
            lines.append(
                f'{self.params_file}: {self.size_after:,} bytes, {self.size_before / self.size_after:.1f} times smaller '
                f'than {self.size_before:,}' + (' (weights of float layers in half precision)' if self.half else '')
            )
        reasons = collections.defaultdict(list)
        for left in self.left:
            reasons[left.reason].append(f'{left.node} ({left.operator})')
        for reason, places in reasons.items():
            shown = ', '.join(places[:3]) + (f' and {len(places) - 3} more' if len(places) > 3 else '')
            lines.append(f'left to MXNet: {shown}: {reason}')
        if self.unclear_thresholds:
            lines.append(f'rounding unclear at {", ".join(self.unclear_thresholds)}: signs next to the threshold may differ')
        lines.append(self._verified())
        return '\n'.join(lines)

    def _verified(self):
        if self.verification is None:
            return 'not verified'
        found = self.verification
        return (
            f'verified on a sample: {found.bits:,} signs and {found.integers:,} results of {found.binary_layers} binary layers equal those '
            f'of MXNet; {found.floats:,} other values within {found.largest_deviation:.1e} of the largest one '
            f'(most at {found.deviating_node or "none"})'
        )


@dataclasses.dataclass
class Packed:
    """A converted network: a symbol as JSON text, its arrays (names with arg: or aux:), its inputs, and the report."""

    symbol: str
    arrays: dict
    input_names: list
    report: Report


def convert(symbol_file, params_file, prefix, input_shape, verify=True, half=False):
    """Convert an exported network and write PREFIX-symbol.json and PREFIX-0000.params.

    MXNet loads them like other exported networks after ``import bmx_melius``; `bmx_melius.Session` runs them without MXNet if all of
    the network could be converted. They take any batch and any size of input that the network allows.

    Parameters
    ----------
    symbol_file, params_file : path
        As ``HybridBlock.export`` or ``Module.save_checkpoint`` wrote them.
    prefix : path
        Of the files to write.
    input_shape : tuple of int, or dict of str to tuple of int
        Batch included; a dict names the inputs of a network with several.
    verify : bool
        Compare each layer with MXNet on a sample.
    half : bool
        Store the weights of float convolutions and dense layers in half precision.

    Returns
    -------
    Report

    Raises
    ------
    UserError, OSError
        Naming the file, the parameter or the node, and what is wrong. Nothing is written then.
    """
    symbol_file, params_file, prefix = os.fspath(symbol_file), os.fspath(params_file), os.fspath(prefix)
    written_symbol, written_params = f'{prefix}-symbol.json', f'{prefix}-0000.params'
    for source in (symbol_file, params_file):
        for target in (written_symbol, written_params):
            if os.path.exists(target) and os.path.exists(source) and os.path.samefile(source, target):
                raise UserError(f'{target} would overwrite the network that is converted: choose another prefix')
    for target in (written_symbol, written_params):
        if os.path.isdir(target):
            raise UserError(f'{target} is a folder: choose another prefix')
        if not os.path.isdir(os.path.dirname(target) or '.'):
            raise UserError(f'there is no folder {os.path.dirname(target)}: create it, or choose another prefix')
    symbol = load_symbol(symbol_file)
    arrays = read_arrays(params_file)
    packed = pack(symbol, arrays, _shapes(symbol, arrays, input_shape), verify, half)

    # the old pair is replaced when both new files are complete
    with replacing(written_symbol) as symbol_path, replacing(written_params) as params_path:
        with open(symbol_path, 'w', encoding='utf-8') as file:
            file.write(packed.symbol)
        write_parameters(params_path, packed.arrays)
    report = packed.report
    report.symbol_file, report.params_file = written_symbol, written_params
    report.size_before, report.size_after = os.path.getsize(params_file), os.path.getsize(written_params)
    return report


def deploy(net, input_shape):
    """The packed form of a live network or layer: a block that computes the same, for inference.

    Parameters
    ----------
    net : mxnet.gluon.HybridBlock
        Initialized. A lone `QConv2D` or `QDense` is meant to read signs.
    input_shape : tuple of int, or dict of str to tuple of int
        Batch included; a dict names the inputs of a network with several, in their order.

    Returns
    -------
    mxnet.gluon.SymbolBlock
    """
    shapes = dict(input_shape) if isinstance(input_shape, dict) else {'data': tuple(input_shape)}
    try:
        net(*[mx.nd.zeros(shape) for shape in shapes.values()])  # parameters get their shapes from the first input
        arrays = {name: parameter.data().asnumpy() for name, parameter in net.collect_params().items()}
    except (RuntimeError, ValueError, mx.MXNetError) as error:  # not initialized, or an input that does not fit
        raise UserError(f'{type(net).__name__} does not run on an input of shape {input_shape}: {last_line(error)}') from error
    packed = pack(symbol_of(net, list(shapes)), arrays, shapes, verification=False, half=False)
    block = mx.gluon.SymbolBlock(mx.sym.load_json(packed.symbol), [mx.sym.var(name) for name in packed.input_names])
    values = {name.partition(':')[2]: array for name, array in packed.arrays.items()}
    for name, parameter in block.collect_params().items():
        parameter.dtype, parameter.shape, parameter.grad_req = values[name].dtype, values[name].shape, 'null'
        parameter.initialize(mx.init.Zero())
        parameter.set_data(mx.nd.array(values[name], dtype=values[name].dtype))
    return block


def pack(symbol, arrays, shapes, verification, half):
    """Convert a symbol in memory.

    Parameters
    ----------
    symbol : mxnet.sym.Symbol
    arrays : dict of str to numpy.ndarray
    shapes : dict of str to tuple of int
        Of each input.
    verification, half : bool

    Returns
    -------
    Packed
    """
    network = Network(symbol, arrays, shapes)
    sample = _sample(network)
    folded = _Thresholds(network, sample)
    partition = divide(network, folded)
    if not partition.regions:
        raise UserError(f'there is nothing to convert: {_why_nothing(network, partition)}')
    programs, words = {}, {}
    for region in partition.regions:
        lowered = lower(network, region.nodes, region.outputs, folded)
        program, number_of = folding.fold_affines(lowered.program, into_convolutions=not half)
        words[region] = (folding.halve(program) if half else program).to_words()
        origins = {number_of[number]: entry for number, entry in lowered.origins.items() if number in number_of}
        programs[region] = dataclasses.replace(lowered, program=Program.from_words(words[region]), origins=origins)
    checked = verify(network, list(programs.values()), sample, half) if verification else None
    symbol_json, packed_arrays, kept = _assemble(network, partition, programs, words)
    report = Report(
        packed_operators=len(programs),
        binary_layers=sum(is_binary_layer(node) for node in partition.region_of),
        converted=dict(
            collections.Counter(node.operator for node in network.graph.nodes if node.operator is not None and node not in kept)
        ),
        left=[
            Left(node.name, node.operator, reason)
            for node, reason in sorted(partition.reasons.items(), key=lambda pair: pair[0].index)
        ],
        unclear_thresholds=folded.unclear,
        half=half,
        verification=checked,
    )
    return Packed(symbol_json, packed_arrays, [name for name in symbol.list_inputs() if name in shapes], report)


def _why_nothing(network, partition):
    if any(is_packed(node.operator, node.attributes) for node in network.graph.nodes):
        return 'the network is packed already'
    for node in network.graph.nodes:
        if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE) and node in partition.reasons:
            return f'{node.name} cannot be packed, {partition.reasons[node]}'
    return 'the network has no binary layers'


# --- reading --------------------------------------------------------------------------------------------------------------------------


def _shapes(symbol, arrays, input_shape):
    """The shape of each input by its name."""
    if isinstance(input_shape, dict):
        return {name: tuple(shape) for name, shape in input_shape.items()}
    described = json.loads(symbol.tojson())['nodes']
    labels = {
        described[source]['name'] for node in described if node['op'].endswith('Output') for source, *_ in node['inputs'][1:]
    }
    names = [name for name in symbol.list_arguments() if name not in arrays and name not in labels]
    if len(names) != 1:
        attributes = symbol.attr_dict()  # Gluon gives a rate to its parameters, and to them alone
        names = [name for name in names if '__lr_mult__' in attributes.get(name, ())] or names
        some = ', '.join(names[:4]) + (', ...' if len(names) > 4 else '')
        raise UserError(
            f'the parameter file lacks {some}: give the one that was exported with this symbol, and the shape of each input by its name '
            'where there are several'
            if names
            else 'the parameter file holds all variables of the symbol, so none is left to be the input'
        )
    return {names[0]: tuple(input_shape)}


def _sample(network):
    """An input for each name: normally distributed, or signs where binary layers read it directly."""
    generator = np.random.RandomState(0)
    signs = inputs_meant_as_signs(network)
    sample = {}
    for name, shape in network.shapes.items():
        x = generator.normal(size=shape).astype(np.float32)
        if name in signs:
            x = np.where(x >= 0, 1, -1 if signs[name] == 'sign' else 0).astype(np.float32)
        sample[name] = x
    return sample


class _Thresholds:
    """Folds the batch normalizations before signs, in the arithmetic that MXNet uses for each of them in this network."""

    def __init__(self, network, sample):
        self.unclear = []
        self._network, self._folded = network, {}
        nodes = {}
        for node in network.graph.nodes:
            if node.marks.get(marks.ROLE) == marks.ACTIVATION and network.encoding(Entry(node, 0)):
                batch_norm = network.batch_norm_before(network.activation_input(node))
                if batch_norm:
                    nodes[batch_norm] = None
        entries = [entry for node in nodes for entry in (network.sources(node)[0], Entry(node, 0))]
        values = dict(zip(entries, network.compute(entries, sample))) if entries else {}
        for node in nodes:
            x, y = values[network.sources(node)[0]], values[Entry(node, 0)]
            layout = thresholds.layout_in_use(batch_norm_of(network, node), x, y)
            if layout is None:
                self.unclear.append(node.name)
            self._folded[node] = layout or thresholds.PLAIN

    def __call__(self, node):
        if isinstance(self._folded[node], str):
            try:
                folded = thresholds.fold(batch_norm_of(self._network, node), len(node.shape), self._folded[node])
            except thresholds.NotMonotoneError as error:
                raise UserError(f'the batch normalization {node.name} overflows, its statistics are damaged: {error}') from error
            self._folded[node] = folded
        return self._folded[node]


# --- assembly -------------------------------------------------------------------------------------------------------------------------


def _assemble(network, partition, programs, words):
    """The new symbol as JSON, its arrays, and the nodes that were kept; `programs` and `words` by region."""
    nodes, arrays, position, kept = [], {}, {}, set()

    def add(node):
        nodes.append(node)
        return len(nodes) - 1

    def finish(item):
        """Write an item, a region or a node, all of whose inputs are written."""
        if item not in programs:
            kept.add(item)
            described = {'op': item.operator or 'null', 'name': item.name, 'inputs': [reference(entry) for entry in network.sources(item)]}
            if item.attributes:
                described['attrs'] = item.attributes
            position[item] = add(described)
            if item.operator is None and item.name in network.arrays:
                kind = 'aux:' if item in network.graph.statistics else 'arg:'
                arrays[kind + item.name] = network.arrays[item.name]
            return
        lowered, vector = programs[item], words[item]
        name = lowered.outputs[-1].node.name
        inputs = [reference(entry) for entry in lowered.inputs]
        attributes = {'__dtype__': '4', '__shape__': f'({len(vector)},)'}  # 4: int32
        inputs.append([add({'op': 'null', 'name': f'{name}_program', 'attrs': attributes, 'inputs': []}), 0, 0])
        arrays[f'arg:{name}_program'] = vector
        position[item] = add({'op': NAME, 'name': name, 'attrs': operator_attributes(lowered.program, vector), 'inputs': inputs})

    def reference(entry):
        region = partition.region_of.get(entry.node)
        if region is None:
            return [position[entry.node], entry.slot, 0]
        return [position[region], programs[region].outputs.index(entry), 0]

    def item_of(entry):
        return partition.region_of.get(entry.node, entry.node)

    waiting = [item_of(entry) for entry in reversed(network.outputs)]
    while waiting:
        item = waiting[-1]
        if item not in position:
            entries = programs[item].inputs if item in programs else network.sources(item)
            missing = [item_of(entry) for entry in reversed(entries) if item_of(entry) not in position]
            if missing:
                waiting.extend(missing)
                continue
            finish(item)
        waiting.pop()
    symbol = {
        'nodes': nodes,
        'arg_nodes': [index for index, node in enumerate(nodes) if node['op'] == 'null'],
        'heads': [reference(entry) for entry in network.outputs],
        'attrs': {'mxnet_version': _MXNET_VERSION},
    }
    return json.dumps(symbol, indent=2), arrays, kept
