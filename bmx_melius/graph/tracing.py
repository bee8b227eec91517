"""Graphs of MXNet: tracing of blocks, loading of symbols, inference of the shape of every node."""

import collections
import json
import os
import re
from typing import Sequence, Set, Union

import mxnet as mx

from ..errors import UserError, last_line, name_some
from ..files.io import read_text
from ..files.symbol_json import VARIABLE, SymbolJson, require_different_names
from ..nn.marks import read_marks
from .mxnet_operators import read_operation
from .nodes import Graph, InputShape, Node, shapes_by_name

NetworkLike = Union[mx.gluon.Block, mx.sym.Symbol, str, os.PathLike]  # a Gluon block, a symbol, or the path of an exported symbol

_ARRAY = 'NDArray-or-Symbol'  # in the types of arguments that MXNet states for its operators: the argument is an input


def read_graph(network: NetworkLike, input_shape: InputShape) -> Graph:
    """Trace or load a network and infer the shape of every node. The network does not change and need not be initialized.

    Parameters
    ----------
    network : mxnet.gluon.Block, mxnet.sym.Symbol or path
        A path leads to an exported ``-symbol.json``.
    input_shape : tuple of int, or dict of str to tuple of int
        Shape of the input `data`, with the batch axis; a dict of input names to shapes for networks with several inputs.

    Raises
    ------
    UserError
        If the file cannot be read or is not a symbol, the block cannot be traced, two variables have one name, or shapes are
        inconsistent or cannot be inferred.
    """
    shapes = shapes_by_name(input_shape)
    symbol = symbol_of(network, list(shapes))
    require_different_names(symbol.list_inputs())
    arguments = symbol.list_arguments()
    for name in shapes:
        if name not in arguments:
            raise UserError(
                f'the network has no input {name!r}: give shapes by name, {{name: shape}}; its variables are {name_some(arguments)}'
            )
    internals = symbol.get_internals()
    described = SymbolJson.of(internals)
    output_shapes = _infer(internals, shapes)

    statistics = set(symbol.list_auxiliary_states())
    graph = Graph(nodes=[], parameters=[], statistics=[], outputs=[], output_slots=[])
    shapes_of = collections.defaultdict(list)
    for (index, _, _), shape in zip(described.heads, output_shapes):  # the outputs of a node are consecutive
        shapes_of[index].append(shape)
    labels: Set[str] = set()
    for index, entry in enumerate(described.nodes):
        inputs = [graph.nodes[source] for source, _, _ in entry['inputs']]
        is_variable = entry['op'] == 'null'
        node = Node(
            index=index,
            name=entry['name'],
            operator=None if is_variable else entry['op'],
            attributes=entry['attrs'],
            operation=None if is_variable else read_operation(entry['op'], entry['attrs']),
            marks=read_marks(entry['attrs']),
            inputs=inputs,
            input_slots=[slot for _, slot, _ in entry['inputs']],
            shapes=shapes_of[index],
            depends_on_data=entry['name'] in shapes if is_variable else any(source.depends_on_data for source in inputs),
        )
        if 'subgraphs' in entry:
            raise UserError(f'node {node.name} ({node.operator}) contains a subgraph (a loop or a fused operator), which is not supported')
        if node.operator and node.operator.endswith('Output'):  # SoftmaxOutput and similar operators have a label as input
            labels.update(source.name for source in inputs[1:])
        graph.nodes.append(node)
    for node in graph.nodes:
        if node.operator is None and node.name in statistics:
            graph.statistics.append(node)
        elif node.operator is None and node.name not in shapes and node.name not in labels:
            graph.parameters.append(node)
    heads = SymbolJson.of(symbol).heads
    graph.outputs = [graph.nodes[index] for index, _, _ in heads]
    graph.output_slots = [slot for _, slot, _ in heads]
    _require_known_shapes(graph, shapes)
    return graph


def load_symbol(path: Union[str, os.PathLike]) -> mx.sym.Symbol:
    """Read an exported ``-symbol.json``. Raises `UserError` if it cannot be read or does not contain a symbol."""
    content = read_text(path)
    SymbolJson.parse(content, path)
    return load_checked(content, path)


def load_checked(text: str, path: Union[str, os.PathLike]) -> mx.sym.Symbol:
    """Load a JSON text, of a symbol that `SymbolJson.parse` has accepted. Raises `UserError` if MXNet cannot, or would corrupt memory."""
    try:
        _require_inputs(text, path)
        symbol = mx.sym.load_json(text)
        described, internals = (json.loads(one.tojson()) for one in (symbol, symbol.get_internals()))
    except (mx.MXNetError, UnicodeDecodeError) as error:  # MXNet's message quotes bytes of the text, which may end within a character
        decoded = not isinstance(error, UnicodeDecodeError)
        reason = last_line(error) if decoded else error.object.decode(errors='replace').splitlines()[0]
        raise UserError(f'{os.fspath(path)} holds a symbol that MXNet cannot load: {reason}') from error
    existing = {(index, slot) for index, slot, *_ in internals['heads']}  # MXNet uses other outputs of nodes without a check
    used = [(internals['nodes'], node['inputs']) for node in internals['nodes']]
    for nodes, entries in [*used, (described['nodes'], described['heads'])]:
        for index, slot, *_ in entries:
            if (index, slot) not in existing:
                raise UserError(f'{os.fspath(path)} is damaged: it uses output {slot} of node {nodes[index]["name"]}, which does not exist')
    return symbol


def _require_inputs(text, path):
    """Raise `UserError` if a node without inputs is of an operator that reads some: MXNet infers shapes from the input that is missing."""
    alone = ((node['op'], node['name']) for node in json.loads(text)['nodes'] if not node['inputs'] and node['op'] != VARIABLE)
    for operator, name in alone:
        if any(_ARRAY in kind for kind in mx.operator.get_operator_arguments(operator).types):
            raise UserError(f'{os.fspath(path)} is damaged: node {name} ({operator}) has no input')


def symbol_of(network: NetworkLike, input_names: Sequence[str]) -> mx.sym.Symbol:
    """Return the symbol of a path, a symbol or a block, which is traced with inputs of these names. Raises as `read_graph` does."""
    if isinstance(network, mx.sym.Symbol):
        return network
    if isinstance(network, (str, os.PathLike)):
        return load_symbol(network)
    if not isinstance(network, mx.gluon.Block):
        raise TypeError(f'expected a Gluon block, a symbol or the path of a -symbol.json, not {type(network).__name__}')
    try:
        outputs = network(*[mx.sym.var(name) for name in input_names])
    except Exception as error:  # a forward pass written for arrays can raise anything for a symbol
        raise UserError(
            f'{type(network).__name__} cannot be traced with the inputs {", ".join(input_names)}; '
            f'it must be hybridizable, or exported first: {error}'.splitlines()[0]
        ) from error
    return mx.sym.Group(_flatten(outputs))


def _flatten(outputs):
    if isinstance(outputs, (list, tuple)):
        return [symbol for output in outputs for symbol in _flatten(output)]
    return [outputs]


def _infer(internals, shapes):
    try:
        # infer_shape would print to standard output before it raises
        return internals.infer_shape_partial(**shapes)[1]
    except mx.MXNetError as error:
        message = str(error)
        node = re.search(r'Error in operator ([^:\s]+): *(.*)', message)
        place, reason = (f' at node {node.group(1)}', node.group(2)) if node else ('', message.splitlines()[0])
        reason = reason.split('Check failed: ')[-1]  # without the time and source line of MXNet
        raise UserError(f'the input shape {_spell(shapes)} does not fit the network{place}: {reason}') from error


def _require_known_shapes(graph, shapes):
    for node in graph.nodes:
        if node.operator is not None and not _is_known(node.shape):
            unknown = ', '.join(source.name for source in node.inputs if not _is_known(source.shape))
            raise UserError(
                f'the shapes at node {node.name} ({node.operator}) do not follow from the input shape {_spell(shapes)}'
                + (f': unknown there: {unknown}' if unknown else '')
            )


def _is_known(shape):
    return bool(shape) and all(size > 0 for size in shape)


def _spell(shapes):
    return str(shapes['data']) if list(shapes) == ['data'] else str(shapes)
