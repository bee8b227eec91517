"""File format of BMXNet-v2's model_converter: symbols with two operators that exist only in BMXNet-v2, and packed weights.

==============================  ===================  ==================================================================================
operator                        weights              words of 32 bits, lowest bit first; bit 1 represents +1
==============================  ===================  ==================================================================================
BinaryInferenceConvolution      (O, I, kh, kw)       in the order of the weights
BinaryInferenceFullyConnected   (O, I)               (I / 32, O): word (j, o) holds the weights 32 j to 32 j + 31 of output o
==============================  ===================  ==================================================================================

The files declare the words as float32. They are read as bytes, because as numbers some of them are NaN.
"""

import math

import numpy as np

from ..errors import UserError
from ..files.symbol_json import integers, truth
from ..graph.mxnet_operators import read_operation
from ..graph.operations import Padding

CONVOLUTION, DENSE = 'BinaryInferenceConvolution', 'BinaryInferenceFullyConnected'
_WORD = 32  # bits
_BROKEN_WORD = 64


# --- nodes ----------------------------------------------------------------------------------------------------------------------------


def attribute(node, name, kind, default=None):
    """Parse an attribute of a node: an int, a bool or a pair of ints, for `kind` int, bool or tuple."""
    text = node['attrs'].get(name, '()')
    if text == '()' and default is not None:
        return default
    try:
        return _KINDS[kind](text)
    except ValueError as error:
        raise UserError(f'node {node["name"]} ({node["op"]}) has no {name}, or one that is malformed or not of two axes: {text}') from error


def _pair(text):
    numbers = integers(text)
    if len(numbers) != 2 or None in numbers:
        raise ValueError(f'{text} is not a pair')
    return numbers


_KINDS = {int: int, bool: truth, tuple: _pair}


def constant_padding(node):
    """Return ((height, width), sign of the value) of a node that pads symmetrically with a constant; None for other nodes."""
    padding = read_operation(node['op'], node['attrs'])  # MXNet reports what is malformed
    if not isinstance(padding, Padding) or padding.mode != 'constant' or len(node['inputs']) != 1:
        return None
    if len(padding.pads) != 4 or padding.pads[:2] != ((0, 0), (0, 0)) or any(before != after for before, after in padding.pads):
        return None
    return tuple(before for before, _ in padding.pads[2:]), 1 if padding.value >= 0 else -1


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
