"""File format of BMXNet-v2's model_converter: symbols with two operators that exist only in BMXNet-v2, and packed weights.

==============================  ===================  ==================================================================================
operator                        weights              words of 32 bits, lowest bit first; bit 1 represents +1
==============================  ===================  ==================================================================================
BinaryInferenceConvolution      (O, I, kh, kw)       in the order of the weights
BinaryInferenceFullyConnected   (O, I)               (I / 32, O): word (j, o) holds the weights 32 j to 32 j + 31 of output o
==============================  ===================  ==================================================================================

The files declare the words as float32. They are read as bytes, because as numbers some of them are NaN.
"""

import ast
import json
import math
import re

import numpy as np

from ..errors import UserError
from ..files import read_text

CONVOLUTION, DENSE = 'BinaryInferenceConvolution', 'BinaryInferenceFullyConnected'
_WORD = 32  # bits
_BROKEN_WORD = 64
_MOST_OUTPUTS = 1000  # per node; more than any node has, to detect damaged numbers


# --- nodes ----------------------------------------------------------------------------------------------------------------------------


def read_nodes(symbol_file):
    """Read the JSON of a symbol and check the fields that this package uses; MXNet checks the others."""
    content = read_text(symbol_file)
    try:
        described = json.loads(content)
        for index, node in enumerate(described['nodes']):
            node['attrs'] = dict(node.get('attrs', {}))
            if not all(isinstance(text, str) for text in (node['op'], node['name'], *node['attrs'].values())):
                raise ValueError(f'node {index} has a name, an operator or an attribute that is not a string')
            if not all(_is_index(source[0], index) and _is_index(source[1], _MOST_OUTPUTS) for source in node['inputs']):
                raise ValueError(f'node {node["name"]} reads a node that does not come before it')
        if not all(_is_index(head[0], len(described['nodes'])) and _is_index(head[1], _MOST_OUTPUTS) for head in described['heads']):
            raise ValueError('an output is not a node')
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UserError(f'{symbol_file} holds no symbol of MXNet, or is damaged: {error!r}') from error
    return described


def _is_index(value, count):
    return type(value) is int and 0 <= value < count  # 1.0 and true are equal to 1


def attribute(node, name, kind, default=None):
    """Parse an attribute of a node: an int, a bool or a pair of ints, for `kind` int, bool or tuple."""
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


def constant_padding(node):
    """Return ((height, width), sign of the value) of a node that pads symmetrically with a constant; None for other nodes."""
    widths = re.fullmatch(r'[(\[]0, ?0, ?0, ?0, ?(\d+), ?\1, ?(\d+), ?\2[)\]]', node['attrs'].get('pad_width', ''))
    if node['op'] != 'Pad' or node['attrs'].get('mode') != 'constant' or not widths or len(node['inputs']) != 1:
        return None
    try:
        value = float(node['attrs'].get('constant_value', 0))
    except ValueError:
        return None  # MXNet reports the malformed value
    return (int(widths.group(1)), int(widths.group(2))), 1 if value >= 0 else -1


# --- weights --------------------------------------------------------------------------------------------------------------------------


def unpack(operator, node, words, params_file):
    """Unpack words to the weights of `node`: float32 of its shape, -1 and +1."""
    name, needed = f'{params_file}: the weight {node.name} of shape {node.shape}', math.prod(node.shape)
    if words.dtype == np.float64 or words.size * _BROKEN_WORD == needed:
        raise UserError(
            f'{name} is packed in words of {_BROKEN_WORD} bits; such files of BMXNet-v2 are known to be broken: '
            f'convert the original network with words of {_WORD} bits, or import its float checkpoint'
        )
    if words.dtype != np.float32 or node.shape[1] % _WORD or words.size * _WORD != needed:
        raise UserError(
            f'{name} needs {needed / _WORD:g} words of {_WORD} bits (float32), '
            f'but has {words.size} of type {words.dtype} in the shape {words.shape}'
        )
    if words.ndim == 1 and _is_rounded(words):
        raise UserError(
            f"{name} holds words that were rounded to the nearest float32, as by BMXNet-v2's converter in Python: "
            'bits are lost; convert the original network with its converter in C++, or import its float checkpoint'
        )
    bits = np.unpackbits(np.frombuffer(words.tobytes(), dtype=np.uint8), bitorder='little')  # bytes are little-endian, as the file is
    if operator == DENSE:
        units, inputs = node.shape
        bits = bits.reshape(inputs // _WORD, units, _WORD).transpose(1, 0, 2)
    return np.where(bits.reshape(node.shape), 1, -1).astype(np.float32)


def _is_rounded(words):
    """Return whether words were converted to float by value instead of by bits; random bits hardly ever look like that."""
    return bool(np.isfinite(words).all() and (words >= 0).all() and (words == np.floor(words)).all() and words.max() > 1)
