"""Rule for marked layers with weights or activations of few bits, which become binary convolutions of bit planes.

An activation a in {0, 1/n, ..., 1} is the mean of n planes of bits, the comparisons with its levels: a = (s_1 + ... + s_n + n) / 2n with
s = +1 for set bits and -1 for clear ones. A weight w of k bits in {-1, ..., 1} is a sum of signs: w = (w_0 + 2 w_1 + 4 w_2 + ...) /
(2^k - 1). With H = sum of 2^j conv(s_i, w_j) over all planes and levels, an integer, and S = sum of 2^j w_j over a filter,

    conv(a, w) = (H + n S) / (2n (2^k - 1))            if a is padded with 0, and s with -1

For another padding p let s be padded with 0, and U be the same sum as H for one plane of set bits. S - U is the sum of the weights on
padding, and

    conv(a, w) = (H + n (1 - 2p) U + 2n p S) / (2n (2^k - 1))
"""

import numpy as np

from .... import marks
from ....analysis.counting import marked_bits
from ..builder import UnsupportedError
from ..traced_network import MOST_BITS, is_sign
from .attributes import of_maps
from .binary import flat_if_dense, pad_value_of, value_read_by


def low_bit_layer(builder, node, role, **attributes):
    """Add `node` if it is a marked layer that reads or has numbers of few bits. Return whether it is one.

    Raises
    ------
    UnsupportedError
        If it has weights that are not signs, and these or its input cannot be represented by bit planes.
    """
    if node.marks.get(marks.ROLE) != role:
        return False
    network = builder.network
    x = value_read_by(network, node)
    steps = network.steps(x) if x else None
    if is_sign(node) and not steps:
        return False
    _require_planes(network, node, x, steps, attributes)
    layer = _Layer(builder, node, attributes)
    pad_value = pad_value_of(node)
    padded = attributes['pad_h'] or attributes['pad_w']
    if not steps:
        number = flat_if_dense(builder, node, builder.bits(x, 'sign'))
        total, scale, shift = layer.sums(number, int(pad_value) if padded else 0), 1, 0
    else:
        bits, source = builder.planes(x, steps)
        number, scale = flat_if_dense(builder, node, bits), 1 / (2 * steps)
        if not padded or pad_value == 0:
            total, shift = layer.sums(number, -1, steps), layer.weight_sums / 2
        else:
            channels = builder.value(source).channels
            always = {'threshold': np.full(channels, -np.inf, dtype=np.float32), 'flip': np.zeros(channels, dtype=bool)}
            inside = builder.affine(layer.sums(builder.add('threshold', [source], always), 0), steps * (1 - 2 * pad_value), 0)
            total, shift = builder.add('add', [inside, layer.sums(number, 0, steps)]), pad_value * layer.weight_sums
    scale, shift = scale / layer.divisor, shift / layer.divisor
    if int(node.marks.get('offset', 0)):
        scale, shift = scale / 2, (shift + layer.weights[0][0].size) / 2
    builder.set(node, builder.affine(total, scale, shift))
    return True


def _require_planes(network, node, x, steps, attributes):
    """Raise `UnsupportedError` unless input and weights of a layer can be represented by bit planes."""
    bits, method, pad_value = marked_bits(node), node.marks.get('method'), pad_value_of(node)
    if not is_sign(node) and (bits > MOST_BITS or method != 'dorefa'):
        raise UnsupportedError(f'its weights have {bits} bits by {method}; signs, and up to {MOST_BITS} bits by dorefa, can be packed')
    if not steps and (x is None or network.encoding(x) != 'sign'):
        raise UnsupportedError(
            f'its weights have {bits} bits, and its input is neither signs nor rounded to at most {MOST_BITS} bits by the method round'
        )
    if not steps and (attributes['pad_h'] or attributes['pad_w']) and pad_value not in (-1, 0, 1):
        raise UnsupportedError(f'it pads with {pad_value:g}; -1, 0 and 1 can be packed')
    if steps and steps > 1 and attributes['groups'] > 1:
        raise UnsupportedError('it reads numbers of several bits in groups; without groups it can be packed')


class _Layer:
    """The weights of a layer as planes of signs, and the convolutions with them.

    Attributes
    ----------
    weights : list of numpy.ndarray of bool, shape (out_channels, kernel_h, kernel_w, in_channels / groups)
        w_0, w_1, ... of the module's docstring.
    divisor : int
    weight_sums : numpy.ndarray of int, shape (out_channels,)
        S of the module's docstring.
    """

    def __init__(self, builder, node, attributes):
        self._builder, self._attributes = builder, attributes
        entry = builder.network.sources(node)[1]
        constant = of_maps(builder.network.constant(entry)).transpose(0, 2, 3, 1)
        if is_sign(node):
            self.divisor, self.weights = 1, [constant >= 0]
        else:
            bits = marked_bits(node)
            self.divisor = 2**bits - 1
            factor = 0.5 if int(node.marks.get('offset', 0)) else 1  # of the weights that MXNet multiplies
            levels = np.rint((constant / factor + 1) / 2 * self.divisor).astype(np.int64)
            self.weights = [levels >> bit & 1 == 1 for bit in range(bits)]
        self.weight_sums = sum(2**bit * np.where(signs, 1, -1).sum(axis=(1, 2, 3)) for bit, signs in enumerate(self.weights))

    def sums(self, bits, pad_value, planes=1):
        """Add the sum of 2^j conv(s, w_j) over the planes of `bits`; return its number. All numbers are integers."""
        builder, total = self._builder, None
        for bit, signs in enumerate(self.weights):
            weight = np.ascontiguousarray(np.tile(signs, (1, 1, 1, planes)))
            fixed = dict(out_channels=len(signs), pad_value=pad_value, offset=0)
            product = builder.add('binary_conv', [bits], {'weight': weight}, **fixed, **self._attributes)
            total = product if total is None else builder.add('add', [builder.affine(product, 2**bit, 0), total])
        return total
