"""Rule for marked layers with weights or activations of few bits, which become sums of binary convolutions of bit planes.

An activation with the levels 0 = a_0 < a_1 < ... < a_n is a sum of planes of bits, the comparisons with its levels: with s_i = +1 for set
bits and -1 for clear ones, and d_i = a_i - a_(i-1), it is the sum of d_i (s_i + 1) / 2. Planes with equal d are read by one convolution: if
all distances are equal (``round``, ``hwgq``) there is one, for ``lq_net``, whose levels are 0, v1, v2 and v1 + v2, two.

Weights are a sum of parts, w = sum of f_j w_j, each the product of signs w_j and a factor f_j per filter: one part for signs and for the
multiples of signs by ``scaled_sign`` and ``lq_net``, k parts for k bits by ``dorefa``, with the factors 2^j / (2^k - 1). If the magnitudes
depend on the position in the kernel (SYQ, arXiv:1807.00301), see `_parts_of_positions`. With the integers H_ij = conv(s_i, w_j), and
S = sum of all w over a filter,

    conv(a, w) = (sum of d_i f_j H_ij + a_n S) / 2             if a is padded with 0, and s with -1

For another padding p let s be padded with 0, and U_j be the same convolution of a plane of set bits. S - sum of f_j U_j is the sum of the
weights on padding, and

    conv(a, w) = (sum of d_i f_j H_ij + (a_n - 2p) sum of f_j U_j + 2p S) / 2
"""

import dataclasses
import itertools

import numpy as np

from ....analysis.counting import marked_bits
from ....nn import marks
from ...program.operations import PADDING, SIDES
from ..builder import UnsupportedError, is_3d
from ..network import MAX_BITS, is_sign
from ..weight_levels import weight_parts
from .attributes import of_maps
from .binary import flat_if_dense, pad_value_of, value_read_by

_OF_REAL_NUMBERS = ('ttq',)  # methods of weights of several bits whose authors' networks have real activations
_WEIGHTS_OF_BITS = ('dorefa', 'ttq')  # methods of weights with several bits


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
    levels = network.levels(x) if x else None
    signs = x is not None and network.encoding(x) == node.marks.get('encoding', 'sign')
    if not levels and (is_sign(node) or not signs and node.marks.get('method') in _OF_REAL_NUMBERS):
        return False
    if is_3d(node.shape):
        raise UnsupportedError('it is 3-D and has numbers of several bits, or real weights; with signs it can be packed')
    _require_planes(network, node, x, levels, attributes)
    weight, pad_value = _weight(network, node), pad_value_of(node)
    parts = _parts(weight, node, attributes)
    padded = any(attributes[side] for side in PADDING)

    def products(bits, factor, value, planes=1):
        """Add the convolutions of `bits` padded with `value` with all parts; return terms of a sum (number, factor)."""
        number = flat_if_dense(builder, node, bits)
        return [(part.convolution(builder, number, value, planes), factor * part.factor) for part in parts]

    if not levels:
        terms = products(builder.bits(x, node.marks.get('encoding', 'sign')), 1, int(pad_value) if padded else 0)
        shift = 0
    else:
        by_level = not padded or pad_value == 0  # padding is the lowest level
        planes, source = builder.planes(x, levels)
        terms = [term for plane in planes for term in products(plane.bits, plane.step / 2, -1 if by_level else 0, plane.count)]
        if not by_level:
            channels = builder.value(source).channels
            always = {'threshold': np.full(channels, -np.inf, dtype=np.float32), 'flip': np.zeros(channels, dtype=bool)}
            terms += products(builder.add('threshold', [source], always), levels[-1] / 2 - pad_value, 0)
        shift = sum(part.sums for part in parts) * (levels[-1] / 2 if by_level else pad_value)
    if int(node.marks.get('offset', 0)):
        terms = [(number, factor / 2) for number, factor in terms]
        shift = (shift + weight[0].size) / 2
    builder.set(node, builder.weighted_sum(terms, shift))
    builder.binary_layers.append(node)
    return True


def _require_planes(network, node, x, levels, attributes):
    """Raise `UnsupportedError` unless input and weights of a layer can be represented by bit planes."""
    bits, method, pad_value = marked_bits(node), node.marks.get('method'), pad_value_of(node)
    if bits > 1 and (bits > MAX_BITS or method not in _WEIGHTS_OF_BITS):
        raise UnsupportedError(
            f'its weights have {bits} bits by {method}; one bit can be packed, and up to {MAX_BITS} by {" and ".join(_WEIGHTS_OF_BITS)}'
        )
    if network.sources(node)[1].node.depends_on_data:
        raise UnsupportedError('its weight is computed from data')
    if not levels and any(attributes[side] for side in PADDING) and pad_value not in (-1, 0, 1):
        raise UnsupportedError(f'it pads with {pad_value:g}; -1, 0 and 1 can be packed')
    if not levels and (x is None or network.encoding(x) != node.marks.get('encoding', 'sign')):
        raise UnsupportedError(
            f'its weights have {bits} bits, and its input is neither signs nor rounded to at most {MAX_BITS} bits by round, hwgq or lq_net'
        )
    if levels and len(levels) > 2 and attributes['groups'] > 1:
        raise UnsupportedError('it reads numbers of several bits in groups; without groups it can be packed')


def _weight(network, node):
    """Return the quantized weight of a layer, float64 (out_channels, kernel_h, kernel_w, in_channels / groups)."""
    multiplied = (0.5 if int(node.marks.get('offset', 0)) else 1) * (2 if node.marks.get('encoding') == 'bit' else 1)
    constant = network.constant(network.sources(node)[1])  # the layer multiplies the quantized weight by this
    return of_maps(constant).transpose(0, 2, 3, 1).astype(np.float64) / multiplied


# --- parts of weights -----------------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class _Part:
    """A part of the weights of a layer: signs times a factor per filter.

    Attributes
    ----------
    signs : numpy.ndarray of bool, shape (out_channels, height, width, in_channels / groups)
    factor : numpy.ndarray of float64, shape (out_channels,)
    attributes : dict
        Geometry and groups of the convolution with these weights.
    """

    signs: np.ndarray
    factor: np.ndarray
    attributes: dict

    @property
    def sums(self):
        """The sum of the weights of each filter, float64 (out_channels,)."""
        return self.factor * np.where(self.signs, 1, -1).sum(axis=(1, 2, 3))

    def convolution(self, builder, bits, pad_value, planes):
        """Add the sum of the convolutions of the planes of `bits` with the signs; return the number of the result, integers."""
        fixed = dict(out_channels=len(self.signs), pad_value=pad_value, offset=0, planes=planes)
        return builder.add('binary_conv', [bits], {'weight': np.ascontiguousarray(self.signs)}, **fixed, **self.attributes)


def _parts(weight, node, attributes):
    """Return the list of parts whose sum is the quantized weight of a layer."""
    bits = marked_bits(node)
    if node.marks.get('method') == 'ttq':
        found = weight_parts(weight.reshape(len(weight), -1))
        if found is None:
            raise UnsupportedError('its weights have more than four levels in a filter')
        parts = [_Part(part.reshape(weight.shape) >= 0, np.abs(part[:, 0]), attributes) for part in found.parts]
        ones = np.ones(weight.shape, dtype=bool)
        return parts if found.means is None else [*parts, _Part(ones, found.means, attributes)]
    if bits > 1:
        highest = 2**bits - 1
        levels = np.rint((weight + 1) / 2 * highest).astype(np.int64)
        return [_Part(levels >> bit & 1 == 1, np.full(len(weight), 2**bit / highest), attributes) for bit in range(bits)]
    magnitudes = np.abs(weight)
    if (magnitudes != magnitudes[..., :1]).any():
        raise UnsupportedError('its weights are not signs times a number for each filter and kernel position')
    magnitudes = magnitudes[..., 0]
    if (magnitudes == magnitudes[:, :1, :1]).all():
        return [_Part(weight >= 0, magnitudes[:, 0, 0], attributes)]
    return _parts_of_positions(weight >= 0, magnitudes, attributes)


def _parts_of_positions(signs, magnitudes, attributes):
    """Return the parts of weights that are `signs` times `magnitudes` (out_channels, kernel_h, kernel_w).

    The engine convolves with all positions of a kernel. Kernels that consist of only some of the positions exist for sets that are
    symmetric about the center, with a larger dilation and a smaller padding: the center, two positions in one row or column, or four. Their
    magnitudes are a linear combination of as many vectors of signs, the rows of a Hadamard matrix. So a 3 x 3 kernel becomes one
    convolution of one position, four of two and four of four, 25 positions in total instead of nine.
    """
    parts = []
    rows, columns = (_mirrored(attributes, axis) for axis in 'hw')
    for (row_indices, row_geometry), (column_indices, column_geometry) in itertools.product(rows, columns):
        place = np.ix_(range(len(signs)), row_indices, column_indices)
        geometry = {**attributes, **row_geometry, **column_geometry}
        for row_signs, column_signs in itertools.product(_HADAMARD[len(row_indices)], _HADAMARD[len(column_indices)]):
            pattern = np.multiply.outer(row_signs, column_signs)
            factor = (magnitudes[place] * pattern).mean(axis=(1, 2))
            if factor.any():
                parts.append(_Part(signs[place] == (pattern[:, :, None] > 0), factor, geometry))
    return parts


_HADAMARD = {1: np.array([[1]]), 2: np.array([[1, 1], [1, -1]])}


def _mirrored(attributes, axis):
    """Return the pairs of kernel indices along an axis that are symmetric about the center: (indices, geometry of a kernel of these)."""
    kernel, dilation = (attributes[f'{name}_{axis}'] for name in ('kernel', 'dilation'))
    pad = attributes[SIDES[axis][0]]  # the same on both sides
    found = []
    for first in range((kernel + 1) // 2):
        last = kernel - 1 - first
        if pad < dilation * first:
            raise UnsupportedError('its weights have a number for each kernel position; with a padding of half the kernel it can be packed')
        indices = [first] if first == last else [first, last]
        distance = max(1, dilation * (last - first))
        padding = dict.fromkeys(SIDES[axis], pad - dilation * first)
        found.append((indices, {f'kernel_{axis}': len(indices), f'dilation_{axis}': distance, **padding}))
    return found
