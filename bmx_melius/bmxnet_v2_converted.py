"""Networks that BMXNet-v2's model_converter packed (``binarized_NAME-symbol.json`` and ``binarized_NAME-0000.params``) as float networks.

Their binary layers are operators that only BMXNet-v2 knows. Such an operator takes the signs of its input by itself and returns
(h + n) / 2, where h is the product with signs as weights and n the number of weights per output; its weights are bits:

==============================  ===================  ==================================================================================
operator                        weights              words, of 32 bits, lowest bit first; bit 1 stands for +1
==============================  ===================  ==================================================================================
BinaryInferenceConvolution      (O, I, kh, kw)       in the order of the weights
BinaryInferenceFullyConnected   (O, I)               (I / 32, O): word (j, o) holds the weights 32 j to 32 j + 31 of output o
==============================  ===================  ==================================================================================

A file calls the words float32, so they are read as bytes: as numbers some of them are NaN. Here each of these operators becomes the
layers of `bmx_melius.layers` that it was made of; all other nodes stay as they are.

Padding: BMXNet-v2's layers pad with an operator ``Pad`` of its own, with -1, before the convolution. The padding that the convolution
itself can do happens before the signs are taken, with 0, whose sign is +1; no network of BMXNet-v2 uses it.
"""
import ast
import collections
import json
import math
import os
import re

import mxnet as mx
import numpy as np

from .container import read_parameters
from .errors import UserError, last_line
from .graph import Graph
from .layers import QActivation, QConv2D, QDense

CONVOLUTION, DENSE = 'BinaryInferenceConvolution', 'BinaryInferenceFullyConnected'
_WORD = 32  # bits
_BROKEN_WORD = 64
_MOST_OUTPUTS = 1000  # of a node: more than any has, so that a damaged number is found
_DATA = 'data'  # placeholder for the input of a layer


def read_converted(symbol_file, params_file, input_shape):
    """Read a converted pair.

    Parameters
    ----------
    symbol_file, params_file : path
    input_shape : tuple of int
        Of the network's one input, batch included.

    Returns
    -------
    symbol : mxnet.sym.Symbol
        Of stock operators, with the marks of this package's layers.
    arrays : dict of str to numpy.ndarray
        By name with ``arg:`` or ``aux:``; binary weights are -1 and +1, float32.
    binary_layers : dict of str to dict
        Name of each binary weight -> ``operator`` that read it in BMXNet-v2 and ``shape``.

    Raises
    ------
    OSError, UserError
        Naming the file, the node or the array, and what is wrong with it.
    """
    rewritten = _Rewritten(os.fspath(symbol_file), _read_nodes(os.fspath(symbol_file)))
    symbol = rewritten.symbol()
    stored = read_parameters(params_file)
    keys = {key.partition(':')[2]: key for key in stored if key.startswith(('arg:', 'aux:'))}
    if len(keys) != len(stored):
        raise UserError(f'{params_file} was not exported: its names do not begin with arg: or aux:')
    variables = symbol.list_inputs()
    inputs = [name for name in variables if name not in keys]
    if len(inputs) != 1:
        what = f'{", ".join(inputs[:4])} are not in it, of which one alone can be the input' if inputs else 'none is left to be the input'
        raise UserError(f'{params_file} does not hold the variables of {symbol_file}: {what}')
    for name, key in keys.items():
        if name not in variables:
            raise UserError(f'{params_file} holds {key}, which is no variable of {symbol_file}')
    graph = Graph.read(symbol, {inputs[0]: tuple(input_shape)})
    arrays, binary_layers = {}, {}
    for node in graph.parameters + graph.statistics:
        key = keys[node.name]
        if node.name in rewritten.weights:
            operator = rewritten.weights[node.name]
            arrays[key] = _unpack(operator, node, stored[key], params_file)
            binary_layers[node.name] = {'operator': operator, 'shape': list(node.shape)}
        elif stored[key].shape != node.shape:
            raise UserError(f'{params_file} does not fit {symbol_file} and an input of shape {tuple(input_shape)}: '
                            f'{key} has shape {stored[key].shape}, but {node.shape} is needed')
        else:
            arrays[key] = stored[key]
    return symbol, arrays, binary_layers


# --- the graph ------------------------------------------------------------------------------------------------------------------------


def _read_nodes(symbol_file):
    """The JSON of a symbol, checked as far as it is looked at here; MXNet checks the rest."""
    with open(symbol_file, encoding='utf-8', errors='replace') as file:
        content = file.read()
    try:
        described = json.loads(content)
        for index, node in enumerate(described['nodes']):
            node['attrs'] = dict(node.get('attrs', {}))
            if not all(isinstance(text, str) for text in (node['op'], node['name'], *node['attrs'].values())):
                raise ValueError(f'node {index} has a name, an operator or an attribute that is no text')
            if not all(_is_index(source[0], index) and _is_index(source[1], _MOST_OUTPUTS) for source in node['inputs']):
                raise ValueError(f'node {node["name"]} reads a node that does not come before it')
        if not all(_is_index(head[0], len(described['nodes'])) and _is_index(head[1], _MOST_OUTPUTS) for head in described['heads']):
            raise ValueError('an output is no node')
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f'{symbol_file} holds no symbol of MXNet, or is damaged: {error!r}') from error
    return described


def _is_index(value, count):
    return type(value) is int and 0 <= value < count  # 1.0 and true are equal to 1


class _Rewritten:
    """A converted network's graph with layers of this package in place of BMXNet-v2's operators.

    Attributes
    ----------
    weights : dict of str to str
        Name of each packed weight -> the operator that reads it.
    """

    def __init__(self, path, described):
        self.path, self.weights = path, {}
        self._source, self._attributes, self._nodes, self._position = described['nodes'], described.get('attrs', {}), [], []
        self._readers = collections.Counter(source[0] for node in self._source for source in node['inputs'])
        for node in self._source:
            if node['op'] in (CONVOLUTION, DENSE):
                self._position.append(self._add_layers(node))
            else:
                self._position.append(self._add({**node, 'inputs': [self._moved(source) for source in node['inputs']]}))
        if not self.weights:
            raise UserError(f"{path} holds no {CONVOLUTION} or {DENSE}: it was not written by BMXNet-v2's model_converter; "
                            'a network that was not converted is imported by its parameter file and --model NAME')
        self._heads = [self._moved(head) for head in described['heads']]

    def symbol(self):
        """The graph as MXNet loads it. Raises `UserError` for an operator that it does not know."""
        known = set(mx.operator.get_all_registered_operators())
        for node in self._nodes:
            if node['op'] != 'null' and node['op'] not in known:
                raise UserError(f'{self.path}: MXNet knows no operator {node["op"]} (node {node["name"]})')
        try:
            return mx.sym.load_json(json.dumps({
                'nodes': self._nodes,
                'arg_nodes': [index for index, node in enumerate(self._nodes) if node['op'] == 'null'],
                'heads': self._heads,
                'attrs': self._attributes,
            }))
        except mx.MXNetError as error:
            raise UserError(f'{self.path} holds no symbol that MXNet can load: {last_line(error)}') from error

    def _add(self, node):
        self._nodes.append(node)
        return len(self._nodes) - 1

    def _moved(self, source):
        return [self._position[source[0]], source[1], 0]

    def _add_layers(self, node):
        """Add the layers that an operator stands for; return the position of the last node."""
        name = node['name']
        if len(node['inputs']) != 2 or not _attribute(node, 'no_bias', bool, True):
            raise UserError(f'{self.path}: node {name} has a bias, which layers of BMXNet-v2 do not have and its operators do not add')
        (data, data_slot, *_), (weight, *_) = node['inputs']
        variable = self._source[weight]
        if variable['op'] != 'null' or self._readers[weight] != 1:
            raise UserError(f'{self.path}: the weight of {name} must be a variable that no other node reads')
        self.weights[variable['name']] = node['op']
        prefix = name[:-len('fwd')] if name.endswith('_fwd') else name + '_'
        try:
            if node['op'] == DENSE:
                layer = QDense(_attribute(node, 'num_hidden', int), flatten=_attribute(node, 'flatten', bool, True), encoding='bit',
                               prefix=prefix)
            else:
                layer, data, data_slot = self._convolution(node, prefix, data, data_slot)
            activation = QActivation(encoding=layer.encoding, prefix=prefix + 'qactivation_')
            symbol = layer(activation(mx.sym.var(_DATA)))
        except mx.MXNetError as error:
            raise UserError(f'{self.path}: node {name} cannot be computed: {last_line(error)}') from error
        return self._splice(symbol, layer.weight.name, variable['name'], self._moved([data, data_slot]))

    def _convolution(self, node, prefix, data, data_slot):
        """The layer, and the node and slot that it reads: what is before a padding that the layer does by itself."""
        if _attribute(node, 'num_group', int, 1) != 1 or node['attrs'].get('layout', 'NCHW') not in ('NCHW', 'None'):
            raise UserError(f'{self.path}: node {node["name"]} has groups or another layout than NCHW, which BMXNet-v2 cannot compute')
        padding, pad_value = _attribute(node, 'pad', tuple, (0, 0)), 1
        before = _constant_padding(self._source[data])
        if before and not any(padding):
            padding, pad_value = before
            data, data_slot, *_ = self._source[data]['inputs'][0]
        if not any(padding):
            pad_value = -1  # whatever it is; layers are fastest with this one
        layer = QConv2D(
            _attribute(node, 'num_filter', int), _attribute(node, 'kernel', tuple), _attribute(node, 'stride', tuple, (1, 1)), padding,
            _attribute(node, 'dilate', tuple, (1, 1)), pad_value=pad_value, encoding='bit' if pad_value == -1 else 'sign', prefix=prefix)
        return layer, data, data_slot

    def _splice(self, symbol, weight, weight_name, data):
        """Add the nodes of a layer's symbol that reads `data` and calls its weight `weight_name`; return the position of the last."""
        entries = []
        for node in json.loads(symbol.tojson())['nodes']:
            if node['op'] == 'null' and node['name'] == _DATA:
                entries.append(data)
                continue
            inputs = [entries[index] if slot == 0 else [entries[index][0], slot, 0] for index, slot, _ in node['inputs']]
            name = weight_name if node['name'] == weight else node['name']
            entries.append([self._add({**node, 'name': name, 'inputs': inputs}), 0, 0])
        return entries[-1][0]


def _attribute(node, name, kind, default=None):
    """A number (`kind` int), a truth value (bool) or a pair of numbers (tuple) among a node's attributes."""
    text = node['attrs'].get(name, '()')
    if text == '()' and default is not None:
        return default
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    if type(value) is not kind or kind is tuple and [type(number) for number in value] != [int, int]:
        raise UserError(f'node {node["name"]} ({node["op"]}) has no {name}, or one that is malformed or not of two axes: {text}')
    return value


def _constant_padding(node):
    """((height, width), sign of the value) of a node that pads a map with a constant, both ends of an axis alike; None for others."""
    widths = re.fullmatch(r'[(\[]0, ?0, ?0, ?0, ?(\d+), ?\1, ?(\d+), ?\2[)\]]', node['attrs'].get('pad_width', ''))
    if node['op'] != 'Pad' or node['attrs'].get('mode') != 'constant' or not widths or len(node['inputs']) != 1:
        return None
    try:
        value = float(node['attrs'].get('constant_value', 0))
    except ValueError:
        return None  # MXNet says what is wrong with it
    return (int(widths.group(1)), int(widths.group(2))), 1 if value >= 0 else -1


# --- the weights ----------------------------------------------------------------------------------------------------------------------


def _unpack(operator, node, words, params_file):
    """Words to weights of the shape that `node` has: float32, -1 and +1."""
    name, needed = f'{params_file}: the weight {node.name} of shape {node.shape}', math.prod(node.shape)
    if words.dtype == np.float64 or words.size * _BROKEN_WORD == needed:
        raise UserError(f'{name} is packed in words of {_BROKEN_WORD} bits; such files of BMXNet-v2 are known to be broken: '
                        f'convert the original network with words of {_WORD} bits, or import its float checkpoint')
    if words.dtype != np.float32 or node.shape[1] % _WORD or words.size * _WORD != needed:
        raise UserError(f'{name} needs {needed / _WORD:g} words of {_WORD} bits (float32), '
                        f'but {words.size} of type {words.dtype} in the shape {words.shape} are there')
    if words.ndim == 1 and _is_rounded(words):
        raise UserError(f"{name} holds words that were rounded to the nearest float32, as by BMXNet-v2's converter in Python: "
                        'bits are lost; convert the original network with its converter in C++, or import its float checkpoint')
    bits = np.unpackbits(np.frombuffer(words.tobytes(), dtype=np.uint8), bitorder='little')  # bytes are little-endian, as the file is
    if operator == DENSE:
        units, inputs = node.shape
        bits = bits.reshape(inputs // _WORD, units, _WORD).transpose(1, 0, 2)
    return np.where(bits.reshape(node.shape), 1, -1).astype(np.float32)


def _is_rounded(words):
    """Whether words are the numbers themselves, as floats, instead of the bits of a float: random bits hardly ever look like that."""
    return bool(np.isfinite(words).all() and (words >= 0).all() and (words == np.floor(words)).all() and words.max() > 1)
