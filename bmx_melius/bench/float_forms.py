"""Optimized forms of an exported network in MXNet's stock operators, with the same results: the baselines for a packed network.

A form is a function from a symbol and its parameters (a dict of name to NDArray) to another such pair. All forms keep the slices
around grouped convolutions, which preserve the plain memory layout in which MXNet's pooling and normalization are fast.
"""

import collections

import mxnet as mx
import numpy as np

from ..files.parameters import read_arrays
from ..files.symbol_json import VARIABLE, SymbolJson
from ..graph.mxnet_operators import read_operation
from ..graph.operations import BatchNormalization
from ..graph.tracing import load_symbol
from ..nn.marks import ACTIVATION, ACTIVATION_INPUT, ROLE, is_sign, read_marks

_BLOCK_OPTIONS = {'static_alloc': True, 'static_shape': True}


def as_exported(symbol, parameters):
    """Return the network unchanged."""
    return symbol, parameters


def folded(symbol, parameters):
    """Binarize the weights ahead of time and reduce each binary activation to one comparison, without the terms for its gradient."""
    graph = _Graph(symbol, parameters)
    graph.fold_parameters()
    graph.compare_only()
    return fused(*graph.result())


def thresholds(symbol, parameters):
    """Apply `folded`, and fold batch normalization before a comparison into a threshold if gamma is positive in all channels."""
    graph = _Graph(symbol, parameters)
    graph.fold_parameters()
    graph.compare_only()
    graph.fold_thresholds()
    return fused(*graph.result())


FORMS = {'exported': as_exported, 'folded': folded, 'thresholds': thresholds}


def fused(symbol, parameters):
    """Fuse the operators that oneDNN can fuse, such as convolution, normalization and ReLU."""
    return symbol.get_backend_symbol('MKLDNN'), parameters


def load_exported(prefix):
    """Return symbol and parameters from the files written by ``export``."""
    arrays = read_arrays(f'{prefix}-0000.params')
    return load_symbol(f'{prefix}-symbol.json'), {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()}


def to_block(symbol, parameters):
    """Return a hybridized block with the input `data`."""
    block = mx.gluon.SymbolBlock(symbol, mx.sym.var('data'))
    for name, parameter in block.collect_params().items():
        parameter.shape = parameters[name].shape
        parameter.initialize(ctx=mx.cpu())
        parameter.set_data(parameters[name])
    block.hybridize(**_BLOCK_OPTIONS)
    return block


class _Graph:
    """The nodes of a symbol in MXNet's JSON form, modified in place."""

    def __init__(self, symbol, parameters):
        self.symbol, self.parameters = symbol, dict(parameters)
        self.json = SymbolJson.of(symbol)

    def fold_parameters(self):
        """Replace each value that is computed only from parameters by a constant."""
        nodes, depends = self.json.nodes, []
        for node in nodes:
            inputs = [depends[index] for index, *_ in node['inputs']]
            depends.append(node['name'] == 'data' if node['op'] == VARIABLE else any(inputs))
        constants = {
            index
            for node, needed in zip(nodes, depends)
            for index, *_ in node['inputs']
            if needed and not depends[index] and nodes[index]['op'] != VARIABLE
        }
        constants = sorted(constants)
        if not constants:
            return
        internals = self.symbol.get_internals()
        group = mx.sym.Group([internals[nodes[index]['name'] + '_output'] for index in constants])
        values = group.eval(ctx=mx.cpu(), **{name: self.parameters[name] for name in group.list_arguments()})
        for index, value in zip(constants, values):
            self._make_parameter(index, nodes[index]['name'], value)

    def compare_only(self):
        """Reduce each binary activation to x >= 0, or to 2 (x >= 0) - 1 if its encoding is ``sign``."""
        first = None
        for index, node in enumerate(self.json.nodes):
            facts = read_marks(node['attrs'])
            role = facts.get(ROLE)
            if role == ACTIVATION_INPUT:
                first = index
            elif role == ACTIVATION and is_sign(facts):
                compared = self.json.nodes[first]['inputs']
                if facts['encoding'] == 'bit':
                    self.json.replace(index, '_greater_equal_scalar', compared, {'scalar': '0'})
                else:  # the nodes between the first and the last one have no other use
                    self.json.replace(first, '_greater_equal_scalar', compared, {'scalar': '0'})
                    self.json.replace(first + 1, '_mul_scalar', [[first, 0, 0]], {'scalar': '2'})
                    self.json.replace(index, '_minus_scalar', [[first + 1, 0, 0]], {'scalar': '1'})
        self.json.drop_unused()

    def fold_thresholds(self):
        """Replace BN(x) >= 0 by x >= mean - beta sqrt(variance + eps) / gamma."""
        nodes = self.json.nodes
        uses = collections.Counter(source for node in nodes for source, *_ in node['inputs'])
        for index, node in enumerate(nodes):
            if node['op'] != '_greater_equal_scalar':
                continue
            source = node['inputs'][0][0]
            norm = nodes[source]
            operation = read_operation(norm['op'], norm['attrs'])
            if not isinstance(operation, BatchNormalization) or operation.fixes_gamma or uses[source] > 1:
                continue
            variables = [number for number, *_ in norm['inputs'][1:]]
            if any(nodes[number]['op'] != VARIABLE for number in variables):
                continue  # a learned scale (`bmx_melius.nn.channelwise`)
            gamma, beta, mean, variance = (self.parameters[nodes[number]['name']].asnumpy().astype('f8') for number in variables)
            if gamma.min() <= 0:
                continue
            threshold = mean - beta * np.sqrt(variance + operation.eps) / gamma
            self._make_parameter(variables[0], norm['name'] + '_threshold', mx.nd.array(threshold.reshape(1, -1, 1, 1)))  # gamma's place
            self.json.replace(index, 'broadcast_greater_equal', [norm['inputs'][0], [variables[0], 0, 0]])
        self.json.drop_unused()

    def result(self):
        """Return the symbol and its parameters."""
        symbol = mx.sym.load_json(self.json.text())
        return symbol, {name: self.parameters[name] for name in symbol.list_inputs() if name in self.parameters}

    def _make_parameter(self, index, name, value):
        self.json.replace(index, VARIABLE, name=name)
        self.parameters[name] = value
