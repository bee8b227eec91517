"""Forms of an exported network that give the same result in MXNet's stock operators, faster: what a packed network has to beat.

A form is a function of a symbol and its parameters (a dict of name to NDArray) to another such pair. The slices around grouped
convolutions stay in all of them: they keep the plain memory layout, in which MXNet's pooling and normalization are fast.
"""

import collections
import json

import mxnet as mx
import numpy as np

from ..container import read_arrays
from ..marks import ACTIVATION, ACTIVATION_INPUT, ROLE, is_sign, read_marks

_BLOCK_OPTIONS = {'static_alloc': True, 'static_shape': True}


def as_exported(symbol, parameters):
    """Nothing changed."""
    return symbol, parameters


def folded(symbol, parameters):
    """Weights binarized beforehand; each binary activation one comparison, without the terms that only training needs."""
    graph = _Graph(symbol, parameters)
    graph.fold_parameters()
    graph.compare_only()
    return fused(*graph.result())


def thresholds(symbol, parameters):
    """As `folded`, and batch normalization before a comparison is a threshold of its input, where no channel's gamma is <= 0."""
    graph = _Graph(symbol, parameters)
    graph.fold_parameters()
    graph.compare_only()
    graph.fold_thresholds()
    return fused(*graph.result())


FORMS = {'exported': as_exported, 'folded': folded, 'thresholds': thresholds}


def fused(symbol, parameters):
    """The graph with the operators fused that oneDNN can fuse, such as convolution, normalization and ReLU."""
    return symbol.get_backend_symbol('MKLDNN'), parameters


def load_exported(prefix):
    """Symbol and parameters of the files that ``export`` wrote."""
    arrays = read_arrays(f'{prefix}-0000.params')
    return mx.sym.load(f'{prefix}-symbol.json'), {name: mx.nd.array(array, dtype=array.dtype) for name, array in arrays.items()}


def to_block(symbol, parameters):
    """A hybridized block with the input `data`."""
    block = mx.gluon.SymbolBlock(symbol, mx.sym.var('data'))
    for name, parameter in block.collect_params().items():
        parameter.shape = parameters[name].shape
        parameter.initialize(ctx=mx.cpu())
        parameter.set_data(parameters[name])
    block.hybridize(**_BLOCK_OPTIONS)
    return block


class _Graph:
    """The nodes of a symbol as MXNet writes them to JSON, to be changed in place."""

    def __init__(self, symbol, parameters):
        self.symbol, self.parameters = symbol, dict(parameters)
        self.content = json.loads(symbol.tojson())
        self.nodes = self.content['nodes']

    def fold_parameters(self):
        """Replace what is computed from parameters alone by its value."""
        depends = []
        for node in self.nodes:
            inputs = [depends[index] for index, *_ in node['inputs']]
            depends.append(node['name'] == 'data' if node['op'] == 'null' else any(inputs))
        constants = {
            index
            for node, needed in zip(self.nodes, depends)
            for index, *_ in node['inputs']
            if needed and not depends[index] and self.nodes[index]['op'] != 'null'
        }
        constants = sorted(constants)
        if not constants:
            return
        internals = self.symbol.get_internals()
        group = mx.sym.Group([internals[self.nodes[index]['name'] + '_output'] for index in constants])
        values = group.eval(ctx=mx.cpu(), **{name: self.parameters[name] for name in group.list_arguments()})
        for index, value in zip(constants, values):
            self._make_parameter(index, self.nodes[index]['name'], value)

    def compare_only(self):
        """Reduce each binary activation to x >= 0, or to 2 (x >= 0) - 1 where it gives signs."""
        first = None
        for index, node in enumerate(self.nodes):
            facts = read_marks(node.get('attrs', {}))
            role = facts.get(ROLE)
            if role == ACTIVATION_INPUT:
                first = index
            elif role == ACTIVATION and is_sign(facts):
                compared = self.nodes[first]['inputs']
                if facts['encoding'] == 'bit':
                    self._replace(index, '_greater_equal_scalar', compared, {'scalar': '0'})
                else:  # the nodes between the first and the last one have no other use
                    self._replace(first, '_greater_equal_scalar', compared, {'scalar': '0'})
                    self._replace(first + 1, '_mul_scalar', [[first, 0, 0]], {'scalar': '2'})
                    self._replace(index, '_minus_scalar', [[first + 1, 0, 0]], {'scalar': '1'})
        self._drop_unused()

    def fold_thresholds(self):
        """BN(x) >= 0 becomes x >= mean - beta sqrt(variance + eps) / gamma."""
        uses = collections.Counter(source for node in self.nodes for source, *_ in node['inputs'])
        for index, node in enumerate(self.nodes):
            if node['op'] != '_greater_equal_scalar':
                continue
            source = node['inputs'][0][0]
            norm = self.nodes[source]
            if norm['op'] != 'BatchNorm' or norm['attrs'].get('fix_gamma', 'True') == 'True' or uses[source] > 1:
                continue
            variables = [number for number, *_ in norm['inputs'][1:]]
            gamma, beta, mean, variance = (self.parameters[self.nodes[number]['name']].asnumpy().astype('f8') for number in variables)
            if gamma.min() <= 0:
                continue
            threshold = mean - beta * np.sqrt(variance + float(norm['attrs']['eps'])) / gamma
            self._make_parameter(variables[0], norm['name'] + '_threshold', mx.nd.array(threshold.reshape(1, -1, 1, 1)))  # gamma's place
            self._replace(index, 'broadcast_greater_equal', [norm['inputs'][0], [variables[0], 0, 0]], {})
        self._drop_unused()

    def result(self):
        """The symbol and its parameters."""
        content = {
            **self.content,
            'nodes': self.nodes,
            'arg_nodes': [index for index, node in enumerate(self.nodes) if node['op'] == 'null'],
            'node_row_ptr': list(range(len(self.nodes) + 1)),
        }
        symbol = mx.sym.load_json(json.dumps(content))
        return symbol, {name: self.parameters[name] for name in symbol.list_inputs() if name in self.parameters}

    def _drop_unused(self):
        needed, stack = set(), [index for index, *_ in self.content['heads']]
        while stack:
            index = stack.pop()
            if index not in needed:
                needed.add(index)
                stack += [source for source, *_ in self.nodes[index]['inputs']]
        position = {old: new for new, old in enumerate(sorted(needed))}

        def moved(entries):
            return [[position[index], output, 0] for index, output, *_ in entries]

        self.nodes = [{**self.nodes[index], 'inputs': moved(self.nodes[index]['inputs'])} for index in sorted(needed)]
        self.content['heads'] = moved(self.content['heads'])

    def _make_parameter(self, index, name, value):
        self.nodes[index] = {'op': 'null', 'name': name, 'inputs': []}
        self.parameters[name] = value

    def _replace(self, index, operator, inputs, attributes):
        self.nodes[index].update(op=operator, inputs=inputs, attrs=attributes)
