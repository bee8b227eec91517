"""Graphs of packed networks with the operations of their programs, so that they are counted and drawn like other networks."""

import collections
import dataclasses

from ..graph.mxnet_operators import operator_name
from ..graph.nodes import Graph, Node
from ..graph.operations import (
    AxisSlice,
    Concatenation,
    Convolution,
    Dense,
    Elementwise,
    Flatten,
    GlobalPooling,
    MatrixProduct,
    Pooling,
    Unknown,
    Window,
)
from ..nn import marks
from .program.operations import BITS_KIND, HALF, INT8, SIDES, array_shapes
from .program.packed_operator import is_packed, read_structure

_POOL_TYPES = {'maximum': 'max', 'mean': 'avg'}
_OPERATIONS = {  # operations that are counted or drawn as others than their traits say -> attributes to the operation of graphs
    'add': lambda _: Elementwise('add'),
    'multiply': lambda _: Elementwise('multiply', repeats=True),
    'concat': lambda _: Concatenation(),
    'flatten': lambda _: Flatten(),
    'matmul': lambda attributes: MatrixProduct(attributes['heads'], bool(attributes['transposed'])),
    'row_matmul': lambda attributes: MatrixProduct(attributes['heads'], bool(attributes['transposed']), by_row=True),
    'slice': lambda attributes: AxisSlice(1, attributes['begin'], attributes['end']),
}
_UNCOUNTED_ARRAYS = ('flip', 'eps', 'pad')  # the direction of a comparison, a constant, what stands for 0: not parameters


def with_operations(graph):
    """Return a `Graph` in which nodes that stand for the operations of its program replace each packed operator.

    Binary convolutions and the comparisons before them have the marks of quantized layers. Arrays are variables; equal arrays that the
    program stores once are one. The rest of the graph stays as it is.

    Parameters
    ----------
    graph : bmx_melius.graph.nodes.Graph

    Raises
    ------
    ProgramError
        If a program is damaged, or does not accept the shapes of its inputs.
    """
    if not any(is_packed(node.operator, node.attributes) for node in graph.nodes):
        return graph
    return _Replacement(graph).graph


class _Replacement:
    def __init__(self, graph):
        self.graph = Graph(nodes=[], parameters=[], statistics=[], outputs=[], output_slots=[])
        self._entries = {}  # (node, slot) of the given graph -> (node, slot) of the new one
        programs = {node.inputs[-1] for node in graph.nodes if is_packed(node.operator, node.attributes)}
        for node in graph.nodes:
            if is_packed(node.operator, node.attributes):
                self._add_program(node)
            elif node not in programs:
                self._add_copy(node, graph)
        outputs = [self._entries[entry] for entry in zip(graph.outputs, graph.output_slots)]
        self.graph.outputs, self.graph.output_slots = [node for node, _ in outputs], [slot for _, slot in outputs]

    def _add(self, node, entries=()):
        """Append a copy of a node, which reads `entries`, and return it."""
        inputs, slots = [entry[0] for entry in entries], [entry[1] for entry in entries]
        self.graph.nodes.append(dataclasses.replace(node, index=len(self.graph.nodes), inputs=inputs, input_slots=slots))
        return self.graph.nodes[-1]

    def _add_copy(self, node, graph):
        copy = self._add(node, [self._entries[entry] for entry in zip(node.inputs, node.input_slots)])
        self._entries.update({(node, slot): (copy, slot) for slot in range(len(node.shapes))})
        for kept, nodes in ((self.graph.parameters, graph.parameters), (self.graph.statistics, graph.statistics)):
            if node in nodes:
                kept.append(copy)

    def _add_program(self, packed):
        program, _ = read_structure(packed.attributes)
        entries = [self._entries[entry] for entry in zip(packed.inputs[:-1], packed.input_slots)]
        shapes = [node.shapes[slot] for node, slot in entries]
        values = program.values([shape[2:] for shape in shapes])
        planes, bits, signs, stored = _planes(program, values), _bits_of_integers(program), _signs(program), []
        for number, operation in enumerate(program.operations, start=len(program.inputs)):
            x = values[operation.inputs[0]]
            name = f'{packed.name}_{operation.name}{number}'
            variables = self._add_arrays(operation, x, name, stored)
            computed = _operation_of_graph(operation, x)
            node = Node(
                index=0,
                name=name,
                operator=operator_name(computed),
                attributes={},
                operation=computed,
                marks=_marks(operation, x, planes.get(number, 1), bits[operation.inputs[0]], signs.issuperset(operation.inputs)),
                inputs=[],
                input_slots=[],
                shapes=[(shapes[0][0], *values[number].shape)],
                depends_on_data=True,
            )
            entries.append((self._add(node, [*(entries[source] for source in operation.inputs), *variables]), 0))
        self._entries.update({(packed, slot): entries[number] for slot, number in enumerate(program.outputs)})

    def _add_arrays(self, operation, x, name, stored):
        """Add the arrays of an operation on `x`; `stored` has the variables of the arrays that the program has stored so far."""
        variables = []
        for array, (dtype, shape) in array_shapes(operation, x.channels).items():
            number, shape = operation.array_numbers[array], _variable_shape(operation, array, shape, x)
            bits = _stored_bits(operation, array, dtype)
            variable = stored[number - 1] if number else None
            if array not in _UNCOUNTED_ARRAYS:
                if variable is None or variable.shape != shape:
                    facts = {'stored_bits': str(bits)} if bits else {}
                    variable = self._add(Node(0, f'{name}_{array}', None, {}, None, facts, [], [], [shape], depends_on_data=False))
                    self.graph.parameters.append(variable)
                variables.append((variable, 0))
            if not number:
                stored.append(variable)
        return variables


def _operation_of_graph(operation, x):
    """Return an operation of a program on `x` as an operation of graphs, `Unknown` if graphs have none."""
    row, attributes = operation.row, operation.attributes
    if row.products:
        return Dense() if x.flat else Convolution(_window(attributes), attributes['groups'])
    if row.reduces and row.shape == 'pooling':
        return Pooling(_POOL_TYPES[row.reduces], _window(attributes))
    if row.reduces and row.shape == 'global':
        return GlobalPooling(_POOL_TYPES[row.reduces])
    other = _OPERATIONS.get(operation.name)
    return other(attributes) if other else Unknown(operation.name)


def _window(attributes):
    kernel, strides = (tuple(attributes[f'{word}_{axis}'] for axis in 'hw') for word in ('kernel', 'stride'))
    pads = tuple((attributes[begin], attributes[end]) for begin, end in SIDES.values())
    return Window(kernel, strides, pads)


def _marks(operation, x, planes, input_bits, of_signs):
    """Return the marks of a quantized layer. n planes are the n + 1 levels of an activation.

    `input_bits` are of integers; `of_signs` is whether the inputs are signs in float32.
    """
    layer = {marks.ROLE: marks.DENSE if x.flat else marks.CONVOLUTION}
    if operation.row.products == 'binary':
        return {**layer, 'bits': '1'}
    if operation.row.weight_levels:
        read = 32 if operation.row.products == 'floats' else input_bits
        return {**layer, 'bits': str(operation.attributes['bits']), 'input_bits': str(read)}
    if operation.row.range == 'counts':
        return {marks.ROLE: marks.ACTIVATION, 'bits': str(operation.attributes['thresholds'].bit_length()), 'method': 'round'}
    if operation.row.shape in ('product', 'product_of_rows') and of_signs:
        return {'bits': '1'}
    if operation.row.compares:
        return {marks.ROLE: marks.ACTIVATION, 'bits': str(planes.bit_length()), 'method': 'sign' if planes == 1 else 'round'}
    return {}


def _variable_shape(operation, array, shape, x):
    """Return the shape of an array in MXNet; `shape` is the shape in the program."""
    attributes = operation.attributes
    if array == 'codes':
        shape = (attributes['out_channels'], x.channels // attributes['groups'], attributes['kernel_h'], attributes['kernel_w'])
        return shape[:2] if x.flat else shape
    if array != 'weight':
        return shape
    outputs, *kernel, inputs = shape if operation.row.products == 'binary' else (shape[0], *shape[2:], shape[1])
    return (outputs, inputs) if x.flat else (outputs, inputs, *kernel)


def _stored_bits(operation, array, dtype):
    """Return the bits of an element of an array; None for 32, and for 1, which follows from the mark of the layer."""
    if array == 'codes':
        return operation.attributes['bits']
    return 8 * dtype.itemsize if dtype in (HALF, INT8) else None


def _bits_of_integers(program):
    """Return the bits of each value of numbers of thresholds, and of those that are moved or are maxima; other integers are bytes."""
    found = collections.defaultdict(lambda: 8)
    for number, operation in enumerate(program.operations, len(program.inputs)):
        if operation.row.range == 'counts':
            found[number] = operation.attributes['thresholds'].bit_length()
        elif operation.row.moves or operation.row.reduces == 'maximum':
            found[number] = max(found[source] for source in operation.inputs)
    return found


def _signs(program):
    """Return the numbers of values that are signs, -1 or 1, in float32: expanded bits, and channels of them."""
    found = set()
    for number, operation in enumerate(program.operations, start=len(program.inputs)):
        row = operation.row
        expands = row.range == 'bits' and not row.compares and operation.attributes['low'] == -1
        if expands or row.view == 'channels' and found.issuperset(operation.inputs):
            found.add(number)
    return found


def _planes(program, values):
    """Return for each value of bits how many planes the convolutions that read it take from it."""
    planes = {}
    for number, operation in reversed(list(enumerate(program.operations, start=len(program.inputs)))):
        read = operation.attributes['planes'] if operation.row.products == 'binary' else planes.get(number, 1)
        for source in operation.inputs:
            if values[source].kind == BITS_KIND:
                planes[source] = max(read, planes.get(source, 1))
    return planes
