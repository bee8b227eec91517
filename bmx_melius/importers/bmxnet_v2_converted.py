"""Importer of networks packed by BMXNet-v2's model_converter (``binarized_NAME-symbol.json``, ``binarized_NAME-0000.params``).

Their binary layers are operators that exist only in BMXNet-v2. Such an operator takes the signs of its input and returns (h + n) / 2,
where h is the product with binary weights and n the number of weights per output. Weights are stored as bits (`bmxnet_v2_format`). Each of
these operators is replaced by the corresponding layers of `bmx_melius.nn.layers`; all other nodes are not changed.

Padding: BMXNet-v2's layers pad with -1 by a separate operator ``Pad`` before the convolution. The packed convolution can also pad its
input before it takes the signs, with 0, whose sign is +1; no network of BMXNet-v2 uses this.
"""

import collections
import os

import mxnet as mx

from ..errors import UserError, last_line
from ..files.parameters import read_parameters
from ..files.symbol_json import VARIABLE, SymbolJson
from ..graph.tracing import load_checked, read_graph
from ..nn.layers import QActivation, QConv2D, QDense
from .bmxnet_v2_format import CONVOLUTION, DENSE, attribute, constant_padding, unpack

_DATA = 'data'  # placeholder for the input of a layer


def read_converted(symbol_file, params_file, input_shape):
    """Read a packed network as a float network of stock operators.

    Parameters
    ----------
    symbol_file, params_file : path
    input_shape : tuple of int
        Shape of the only input, with the batch axis.

    Returns
    -------
    symbol : mxnet.sym.Symbol
        Consists of stock operators, with the marks of this package's layers.
    arrays : dict of str to numpy.ndarray
        Keys are ``arg:NAME`` and ``aux:NAME``; binary weights are -1 and +1, float32.
    binary_layers : dict of str to dict
        Name of each binary weight -> ``operator`` of BMXNet-v2 that used it, and ``shape``.

    Raises
    ------
    UserError
        If the files are damaged, do not match or are not supported; the message names the file, the node or the array.
    """
    rewritten = _Rewritten(os.fspath(symbol_file))
    symbol = rewritten.symbol()
    stored = read_parameters(params_file)
    keys = {key.partition(':')[2]: key for key in stored if key.startswith(('arg:', 'aux:'))}
    if len(keys) != len(stored):
        raise UserError(f'{params_file} is not an exported file: its names do not begin with arg: or aux:')
    variables = symbol.list_inputs()
    inputs = [name for name in variables if name not in keys]
    if len(inputs) != 1:
        what = f'{", ".join(inputs[:4])} are not in it, and only one of them can be the input' if inputs else 'none is left to be the input'
        raise UserError(f'{params_file} does not hold the variables of {symbol_file}: {what}')
    for name, key in keys.items():
        if name not in variables:
            raise UserError(f'{params_file} holds {key}, which is not a variable of {symbol_file}')
    graph = read_graph(symbol, {inputs[0]: tuple(input_shape)})
    arrays, binary_layers = {}, {}
    for node in graph.parameters + graph.statistics:
        key = keys[node.name]
        if node.name in rewritten.weights:
            operator = rewritten.weights[node.name]
            arrays[key] = unpack(operator, node, stored[key], params_file)
            binary_layers[node.name] = {'operator': operator, 'shape': list(node.shape)}
        elif stored[key].shape != node.shape:
            raise UserError(
                f'{params_file} does not fit {symbol_file} and an input of shape {tuple(input_shape)}: '
                f'{key} has shape {stored[key].shape}, but {node.shape} is needed'
            )
        else:
            arrays[key] = stored[key]
    return symbol, arrays, binary_layers


class _Rewritten:
    """Graph of a packed network in which layers of this package replace the operators of BMXNet-v2.

    Attributes
    ----------
    weights : dict of str to str
        Name of each packed weight -> the operator that uses it.
    """

    def __init__(self, path):
        self.path, self.weights = path, {}
        self._source = SymbolJson.read(path)
        self._result, self._position = (
            SymbolJson(attributes=self._source.attributes),
            [],
        )  # positions in the result of the nodes of the source
        self._readers = collections.Counter(source for node in self._source.nodes for source, *_ in node['inputs'])
        for node in self._source.nodes:
            if node['op'] in (CONVOLUTION, DENSE):
                self._position.append(self._add_layers(node))
            else:
                self._position.append(self._result.add(node['op'], node['name'], map(self._moved, node['inputs']), node['attrs']))
        if not self.weights:
            raise UserError(
                f"{path} holds no {CONVOLUTION} or {DENSE}: it was not written by BMXNet-v2's model_converter; "
                'to import a network that was not converted, give its parameter file and --model NAME'
            )
        self._result.heads = list(map(self._moved, self._source.heads))

    def symbol(self):
        """Return the graph as an MXNet symbol. Raises `UserError` for an operator that MXNet does not know."""
        known = {VARIABLE, *mx.operator.get_all_registered_operators()}
        for node in self._result.nodes:
            if node['op'] not in known:
                raise UserError(f'{self.path}: MXNet knows no operator {node["op"]} (node {node["name"]})')
        return load_checked(self._result.text(), self.path)

    def _moved(self, source):
        return [self._position[source[0]], source[1], 0]

    def _add_layers(self, node):
        """Add the layers that replace an operator; return the position of the last node."""
        name = node['name']
        if len(node['inputs']) != 2 or not attribute(node, 'no_bias', bool, True):
            raise UserError(f'{self.path}: node {name} has a bias, which the layers of BMXNet-v2 do not have and its operators ignore')
        (data, data_slot, *_), (weight, *_) = node['inputs']
        variable = self._source.nodes[weight]
        if variable['op'] != VARIABLE or self._readers[weight] != 1:
            raise UserError(f'{self.path}: the weight of {name} must be a variable that no other node reads')
        self.weights[variable['name']] = node['op']
        prefix = name[: -len('fwd')] if name.endswith('_fwd') else name + '_'
        try:
            if node['op'] == DENSE:
                layer = QDense(
                    attribute(node, 'num_hidden', int), flatten=attribute(node, 'flatten', bool, True), encoding='bit', prefix=prefix
                )
            else:
                layer, data, data_slot = self._convolution(node, prefix, data, data_slot)
            activation = QActivation(encoding=layer.binarization.encoding, prefix=prefix + 'qactivation_')
            symbol = layer(activation(mx.sym.var(_DATA)))
        except mx.MXNetError as error:
            raise UserError(f'{self.path}: node {name} cannot be computed: {last_line(error)}') from error
        layers = SymbolJson.of(symbol)
        for added in layers.nodes:
            if added['name'] == layer.weight.name:
                added['name'] = variable['name']
        ((last, *_),) = self._result.splice(layers, {_DATA: self._moved([data, data_slot])})
        return last

    def _convolution(self, node, prefix, data, data_slot):
        """Return the layer, and the node and slot of its input. A ``Pad`` before it becomes the padding of the layer."""
        if attribute(node, 'num_group', int, 1) != 1 or node['attrs'].get('layout', 'NCHW') not in ('NCHW', 'None'):
            raise UserError(f'{self.path}: node {node["name"]} has groups or another layout than NCHW, which BMXNet-v2 does not support')
        padding, pad_value = attribute(node, 'pad', tuple, (0, 0)), 1
        before = constant_padding(self._source.nodes[data])
        if before and not any(padding):
            padding, pad_value = before
            data, data_slot, *_ = self._source.nodes[data]['inputs'][0]
        if not any(padding):
            pad_value = -1  # without padding any value is correct, and layers are fastest with this one
        layer = QConv2D(
            attribute(node, 'num_filter', int),
            attribute(node, 'kernel', tuple),
            attribute(node, 'stride', tuple, (1, 1)),
            padding,
            attribute(node, 'dilate', tuple, (1, 1)),
            pad_value=pad_value,
            encoding='bit' if pad_value == -1 else 'sign',
            prefix=prefix,
        )
        return layer, data, data_slot
