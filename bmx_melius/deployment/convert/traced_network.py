"""An exported network with its parameters: constants, encodings of values, and computation of any value with MXNet."""

import collections

import mxnet as mx
import numpy as np

from ...analysis.counting import marked_bits
from ...analysis.graph import Graph, first_node
from ...errors import UserError, last_line
from ...files.symbol_json import VARIABLE, SymbolJson, truth
from ...nn import marks
from .thresholds import BatchNorm, rising_levels

Entry = collections.namedtuple('Entry', 'node slot')  # an output of a node: a value of the network

SUMS = ('elemwise_add', '_plus', '_Plus', 'broadcast_add', 'broadcast_plus')  # of two values
DIFFERENCES = ('elemwise_sub', '_minus', '_Minus', 'broadcast_sub', 'broadcast_minus')
PRODUCTS = ('elemwise_mul', '_mul', '_Mul', 'broadcast_mul')
QUOTIENTS = ('elemwise_div', '_div', '_Div', 'broadcast_div')

MAX_BITS = 2  # of activations and weights of layers that are packed as bit planes
_STEP_FUNCTIONS = ('round', 'hwgq', 'lq_net')  # quantizers of activations that map each element to a level, whatever the others are
_MAX_COMPARED = 1e15  # magnitude to which arguments of step functions are limited: lq_net is NaN where the sum of squares overflows

_IDENTITIES = ('_copy', 'identity', 'BlockGrad', 'stop_gradient')
_MOVES = (
    *(*_IDENTITIES, 'Dropout', 'Reshape', 'reshape', 'Flatten', 'SwapAxis', 'transpose', 'slice_axis', 'SliceChannel', 'Concat'),
    'Pooling',  # max pooling only
)  # operators whose result elements are elements of their inputs


class Network:
    """A graph with the arrays of its variables, and queries about its values.

    Parameters
    ----------
    symbol : mxnet.sym.Symbol
    arrays : dict of str to numpy.ndarray
        The parameters and running statistics by name.
    shapes : dict of str to tuple of int
        Shape of each input.

    Raises
    ------
    UserError
        If a parameter is missing, has a wrong shape or is not finite, if a batch normalization has a variance + eps that is not positive,
        or if the shapes do not fit the network.
    """

    def __init__(self, symbol, arrays, shapes):
        self.symbol, self.arrays, self.shapes = symbol, arrays, shapes
        self.graph = Graph.read(symbol, shapes)
        self.outputs = [Entry(*output) for output in zip(self.graph.outputs, self.graph.output_slots)]
        self._internals = symbol.get_internals()
        heads = SymbolJson.of(self._internals).heads
        self._position = {(index, slot): position for position, (index, slot, _) in enumerate(heads)}
        self._check_arrays()
        known = {**{name: np.dtype(np.float32) for name in shapes}, **{name: array.dtype for name, array in arrays.items()}}
        known = {name: dtype for name, dtype in known.items() if name in symbol.list_arguments()}
        self._dtypes = self._infer_types(known)
        self._constants, self._levels = {}, {}
        self._readers = collections.Counter(source for node in self.graph.nodes for source in node.inputs)
        self._readers.update(self.graph.outputs)
        self._check_batch_norms()
        self._encodings = self._find_encodings()

    def _check_arrays(self):
        for node in self.graph.parameters + self.graph.statistics:
            array = self.arrays.get(node.name)
            if array is None:
                raise UserError(
                    f'the parameter {node.name} is missing: give the parameters that were exported with this symbol, '
                    'and its shape if it is an input'
                )
            if array.shape != node.shape:
                raise UserError(f'the parameter {node.name} has the shape {array.shape}; with this input the network needs {node.shape}')
            if array.dtype.kind == 'f' and array.dtype != np.float32:
                raise UserError(f'the parameter {node.name} is {array.dtype}: cast the network to float32 before it is exported')
            if node in self.graph.statistics and array.dtype != np.float32:
                raise UserError(f'the running statistic {node.name} is {array.dtype}, not float32: export the network again')
            if not np.isfinite(array).all():
                raise UserError(f'the parameter {node.name} holds values that are not finite: the file is damaged or training diverged')

    def _infer_types(self, known):
        try:
            return self._internals.infer_type_partial(**known)[1]
        except mx.MXNetError as error:
            odd = [f'{name} ({dtype})' for name, dtype in known.items() if dtype != np.float32]
            if not odd:
                raise UserError(f'the network does not take inputs of float32: {last_line(error)}') from error
            raise UserError(f'the parameters {", ".join(odd)} do not fit their operators: export the network again, in float32') from error

    def _check_batch_norms(self):
        """Raise `UserError` unless variance + eps is positive. MXNet computes NaN without an error, which no program can reproduce."""
        for node in self.graph.nodes:
            if node.operator != 'BatchNorm' or self.sources(node)[4].node.depends_on_data:
                continue
            eps, variance = _eps(node), self.constant(self.sources(node)[4])
            if not np.isfinite(eps):
                raise UserError(f'node {node.name} (BatchNorm) has eps={eps}: the symbol is damaged')
            # in both precisions, because MXNet uses either, depending on the layout of the input
            positive = (variance.astype(np.float64) + eps > 0) & (variance.astype(np.float32) + np.float32(eps) > 0)
            if not positive.all():
                channel = int(np.argmin(positive))
                raise UserError(
                    f'node {node.name} (BatchNorm): {self.sources(node)[4].node.name} is {variance[channel]:g} in channel {channel}, and '
                    f'with eps={eps:g} the sum must be positive: the file is damaged or training diverged'
                )

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def sources(self, node):
        """Return the inputs of a node."""
        return [Entry(*source) for source in zip(node.inputs, node.input_slots)]

    def shape(self, entry):
        """Return the shape of a value, batch included."""
        return entry.node.shapes[entry.slot]

    def is_float32(self, entry):
        """Return whether MXNet computes a value in float32."""
        return self._dtypes[self._position[entry.node.index, entry.slot]] == np.float32

    def is_input(self, entry):
        """Return whether a value is an input of the network."""
        return entry.node.operator is None and entry.node.name in self.shapes

    def constant(self, entry):
        """Return the array of a value that does not depend on the inputs, computed by MXNet."""
        if entry.node.operator is None:
            return self.arrays[entry.node.name]
        if entry not in self._constants:
            self._constants[entry] = self.compute([entry], {})[0]
        return self._constants[entry]

    def compute(self, entries, inputs):
        """Run the network in MXNet, hybridized as in normal use, and return internal values.

        Parameters
        ----------
        entries : list of Entry
        inputs : dict of str to numpy.ndarray

        Returns
        -------
        list of numpy.ndarray
        """
        symbol = mx.sym.Group([self._internals[self._position[entry.node.index, entry.slot]] for entry in entries])
        arrays = [inputs[name] if name in inputs else self.arrays[name] for name in symbol.list_inputs()]
        arrays = [mx.nd.array(array, dtype=array.dtype) for array in arrays]
        if not arrays:  # CachedOp requires an input
            symbol, arrays = mx.sym.Group([symbol, mx.sym.var('unused')]), [mx.nd.zeros(1)]
        try:
            results = mx.nd.CachedOp(symbol)(*arrays)
            results = results if isinstance(results, list) else [results]
            return [result.asnumpy() for result in results[: len(entries)]]
        except mx.MXNetError as error:
            raise UserError(f'MXNet cannot run the network: {last_line(error)}') from error

    # --- marked layers and activations ----------------------------------------------------------------------------------------------

    def activation_input(self, node):
        """Return the input of a marked activation whose last node is `node`, or None if its marks are inconsistent."""
        return self.marked_input(node, marks.ACTIVATION_INPUT)

    def marked_input(self, node, role):
        """Return input 0 of the node marked with `role` with which the computation of `node` begins, or None (`graph.first_node`)."""
        first = first_node(node, role)
        return self.sources(first)[0] if first else None

    def operands(self, node):
        """Return the inputs of a node that combines them elementwise, each before it is repeated to the shape of the others."""
        return [self._before_repetition(source) for source in self.sources(node)]

    def _before_repetition(self, entry):
        entry = self.before_identities(entry)
        while entry.node.marks.get(marks.ROLE) == marks.REPETITION:
            value = self.marked_input(entry.node, marks.REPETITION_INPUT)
            if value is None:
                break
            entry = self.before_identities(value)
        return entry

    def activation_interior(self, node):
        """Return the nodes of the marked activation whose last node is `node`, except `node`."""
        interior, waiting = set(), list(node.inputs)
        while waiting:
            inner = waiting.pop()
            if inner not in interior and inner.depends_on_data and inner.operator is not None:
                interior.add(inner)
                if inner.marks.get(marks.ROLE) != marks.ACTIVATION_INPUT:
                    waiting.extend(inner.inputs)
        return interior

    def encoding(self, entry):
        """Return ``sign`` for a value marked as {-1, +1}, ``bit`` for one marked as {0, 1}, otherwise None."""
        return self._encodings.get(entry.node)

    def activation_function(self, node):
        """Return the function that the marked activation with the last node `node` computes, on MXNet arrays (N, channels, H, W)."""
        cut = SymbolJson.of(self._internals)
        first = first_node(node, marks.ACTIVATION_INPUT).index  # a reshape that changes no shape
        cut.replace(first, VARIABLE, name='x')
        cut.heads = [[node.index, 0, 0]]
        cut.drop_unused()
        function = mx.nd.CachedOp(mx.sym.load_json(cut.text()))
        names = [variable['name'] for variable in cut.nodes if variable['op'] == VARIABLE]
        constants = {name: mx.nd.array(self.arrays[name], dtype=self.arrays[name].dtype) for name in names if name != 'x'}
        return lambda x: function(*(constants.get(name, mx.nd.clip(x, -_MAX_COMPARED, _MAX_COMPARED)) for name in names))

    def levels(self, entry):
        """Return the levels to which a marked activation of up to `MAX_BITS` bits rounds a value: 0 and positive numbers, ascending.

        None for other values, and for activations whose levels do not rise with the input or depend on other elements.
        """
        node = self.before_identities(entry).node
        if node not in self._levels:
            is_step_function = node.marks.get(marks.ROLE) == marks.ACTIVATION and node.marks.get('method') in _STEP_FUNCTIONS
            has_planes = is_step_function and self.activation_input(node) and marked_bits(node) <= MAX_BITS
            self._levels[node] = rising_levels(self.activation_function(node), 2 ** marked_bits(node)) if has_planes else None
        return self._levels[node]

    def _find_encodings(self):
        encodings = {}
        for node in self.graph.nodes:
            if node.marks.get(marks.ROLE) == marks.ACTIVATION:
                if is_sign(node) and self.activation_input(node):
                    encodings[node] = node.marks.get('encoding', 'sign')
            elif node.operator in _MOVES and node.attributes.get('mode') != 'always':
                if node.operator == 'Pooling' and node.attributes.get('pool_type', 'max') != 'max':
                    continue
                found = {encodings.get(source) for source in node.inputs}
                if len(found) == 1:
                    encodings[node] = found.pop()
        return encodings

    def is_identity(self, node):
        """Return whether the result of a node equals its input."""
        if node.operator in _IDENTITIES:
            return True
        if node.operator == 'Dropout':
            return node.attributes.get('mode', 'training') != 'always'
        if node.operator == 'slice_axis' and node.attributes['axis'] != '1' and node.attributes.get('end') != 'None':
            return False  # it is an identity for this input size only
        return node.operator in ('Reshape', 'reshape', 'slice_axis') and node.shape == self.shape(self.sources(node)[0])

    def before_identities(self, entry):
        """Return the value before the identity nodes that end with `entry`."""
        while self.is_identity(entry.node):
            entry = self.sources(entry.node)[0]
        return entry

    def before_comparison(self, entry):
        """Return what precedes the comparison of `entry` with 0 and can be folded into it: a batch normalization and learned shifts.

        Shifts that follow no batch normalization are exact in a program, too. Of these only those are folded that nothing else reads.

        Returns
        -------
        entry : Entry
            The value from which `entry` is computed.
        nodes : tuple of Node
            The nodes that compute it, the first one first: a BatchNorm or none, then sums and differences with constants per channel.
        """
        nodes, start = (), self.before_identities(entry)
        while start.slot == 0 and self._is_channelwise_shift(start.node):
            nodes = (start.node, *nodes)
            data = next(source for source in self.sources(start.node) if source.node.depends_on_data)
            entry, start = data, self.before_identities(data)
        if start.slot == 0 and is_channelwise_batch_norm(start.node):
            return self.sources(start.node)[0], (start.node, *nodes)
        shared = [position for position, node in enumerate(nodes[:-1]) if self._readers[node] > 1]
        if shared:
            entry, nodes = Entry(nodes[shared[-1]], 0), nodes[shared[-1] + 1 :]
        return entry, nodes

    def _is_channelwise_shift(self, node):
        """Return whether a node adds or subtracts a constant for each channel."""
        if is_marked_shift(node):
            return is_channelwise_batch_norm(node)
        if node.operator not in SUMS + DIFFERENCES or len(node.shape) not in (2, 3, 4, 5):
            return False
        data = [source for source in node.inputs if source.depends_on_data]
        if len(data) != 1 or data[0].shape != node.shape:
            return False
        (constant,) = (source for source in node.inputs if not source.depends_on_data)
        shape = (1,) * (len(node.shape) - len(constant.shape)) + constant.shape
        return all(size == 1 for axis, size in enumerate(shape) if axis != 1)

    def shift(self, node):
        """Return the function of a node that adds or subtracts constants per channel: MXNet's operator on arrays (N, channels, H, W)."""
        if is_marked_shift(node):
            shift = mx.nd.array(self.constant(self.sources(node)[2]).reshape(1, -1, 1, 1))
            return lambda x: mx.nd.broadcast_add(x, shift)  # with the rounding of the node
        arrays = [
            None if source.node.depends_on_data else mx.nd.array(self.constant(source).reshape(1, -1, 1, 1))
            for source in self.sources(node)
        ]
        operator = mx.nd.broadcast_add if node.operator in SUMS else mx.nd.broadcast_sub
        return lambda x: operator(*(x if array is None else array for array in arrays))

    def batch_norm(self, node):
        """Return the `BatchNorm` of a node with constant parameters."""
        parameters = [self.constant(source) for source in self.sources(node)[1:]]
        return BatchNorm(*parameters, _eps(node), truth(node.attributes.get('fix_gamma', 'True')))


def _eps(node):
    """Return the eps of a BatchNorm node."""
    return float(node.attributes.get('eps', 1e-3))


def is_sign(node):
    """Return whether a node is marked with a quantizer that is the sign."""
    return marked_bits(node) == 1 and marks.is_sign(node.marks)


def is_marked_shift(node):
    """Return whether a node is marked as learned shifts of channels."""
    return node.marks.get(marks.ROLE) == marks.SHIFT


def is_channelwise_batch_norm(node):
    """Return whether a node is a BatchNorm of axis 1 of a map or a vector, with constant parameters."""
    return (
        node.operator == 'BatchNorm'
        and node.attributes.get('axis', '1') == '1'
        and len(node.shape) in (2, 3, 4, 5)
        and not any(source.depends_on_data for source in node.inputs[1:])
        and not truth(node.attributes.get('output_mean_var', 'False'))
    )
