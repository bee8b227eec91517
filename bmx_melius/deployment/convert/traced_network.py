"""An exported network of MXNet with its parameters, and computation of any value with MXNet."""

import collections
from typing import Tuple

import mxnet as mx
import numpy as np

from ...analysis.counting import marked_bits
from ...errors import UserError, last_line
from ...files.symbol_json import VARIABLE, SymbolJson
from ...graph.nodes import Node, first_node
from ...graph.tracing import read_graph
from ...nn import marks
from .batch_norms import FoldedBatchNorms
from .mxnet_rounding import MxnetBatchNorm
from .network import MAX_ACTIVATION_BITS, Entry, Network, combines, is_channelwise_batch_norm, is_marked_shift
from .thresholds import rising_levels

_STEP_FUNCTIONS = ('round', 'hwgq', 'lq_net')  # quantizers of activations that map each element to a level, whatever the others are
_MAX_COMPARED = 1e15  # magnitude to which arguments of step functions are limited: lq_net is NaN where the sum of squares overflows


class TracedNetwork(Network):
    """A network of MXNet.

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

    framework = 'MXNet'

    def __init__(self, symbol, arrays, shapes):
        super().__init__(read_graph(symbol, shapes), arrays, shapes)
        self._internals = symbol.get_internals()
        heads = SymbolJson.of(self._internals).heads
        self._position = {(index, slot): position for position, (index, slot, _) in enumerate(heads)}
        self._check_arrays()
        dtypes = {**{name: np.dtype(np.float32) for name in shapes}, **{name: array.dtype for name, array in arrays.items()}}
        known = {name: dtypes[name] for name in symbol.list_arguments() if name in dtypes}
        self._dtypes = self._infer_types(known)
        self._levels = {}
        self._readers = collections.Counter(source for node in self.graph.nodes for source in node.inputs)
        self._readers.update(self.graph.outputs)
        self.require_positive_variances()

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

    def is_float32(self, entry):
        """Return whether MXNet computes a value in float32."""
        return self._dtypes[self._position[entry.node.index, entry.slot]] == np.float32

    def compute(self, entries, inputs):
        """Run the network in MXNet, hybridized as in normal use, and return internal values."""
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

    def activation_function(self, node):
        """Return the function that the marked activation with the last node `node` computes, on MXNet arrays (N, channels, H, W)."""
        cut = SymbolJson.of(self._internals)
        first = first_node(node, marks.ACTIVATION_INPUT)  # a reshape that changes no shape
        assert first is not None, node.name  # QActivation marks it
        cut.replace(first.index, VARIABLE, name='x')
        cut.heads = [[node.index, 0, 0]]
        cut.drop_unused()
        function = mx.nd.CachedOp(mx.sym.load_json(cut.text()))
        names = [variable['name'] for variable in cut.nodes if variable['op'] == VARIABLE]
        constants = {name: mx.nd.array(self.arrays[name], dtype=self.arrays[name].dtype) for name in names if name != 'x'}
        return lambda x: function(*(constants.get(name, mx.nd.clip(x, -_MAX_COMPARED, _MAX_COMPARED)) for name in names))

    def levels(self, entry):
        node = self.before_identities(entry).node
        if node not in self._levels:
            is_step_function = node.marks.get(marks.ROLE) == marks.ACTIVATION and node.marks.get('method') in _STEP_FUNCTIONS
            has_planes = is_step_function and self.activation_input(node) and marked_bits(node) <= MAX_ACTIVATION_BITS
            self._levels[node] = self._rising_levels(node) if has_planes else None
        return self._levels[node]

    def _rising_levels(self, node):
        function = self.activation_function(node)
        return rising_levels(lambda x: function(mx.nd.array(x.reshape(1, 1, -1, 1))).asnumpy().reshape(-1), 2 ** marked_bits(node))

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
        nodes: Tuple[Node, ...] = ()
        start = self.before_identities(entry)
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
        if not combines(node, 'add', 'subtract') or len(node.shape) not in (2, 3, 4, 5):
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
        operator = mx.nd.broadcast_add if combines(node, 'add') else mx.nd.broadcast_sub
        return lambda x: operator(*(x if array is None else array for array in arrays))

    def batch_norm(self, node):
        """Return the `MxnetBatchNorm` of a node with constant parameters."""
        return MxnetBatchNorm(**vars(super().batch_norm(node)))

    def comparisons(self, sample):
        """Return `FoldedBatchNorms`, with the rounding of MXNet on this sample."""
        return FoldedBatchNorms(self, sample)
