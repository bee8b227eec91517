"""Rule for marked layers with weights or activations of few bits, which become sums of binary convolutions of bit planes.

An activation with the levels 0 = a_0 < a_1 < ... < a_n is a sum of planes of bits, the comparisons with its levels: with s_i = +1 for set
and -1 for clear bits, and d_i = a_i - a_(i-1), it is the sum of d_i (s_i + 1) / 2. Planes with equal d are read by one convolution: if all
distances are equal (``round``, ``hwgq``) there is one, for ``lq_net``, whose levels are 0, v1, v2 and v1 + v2, two.

Weights are a sum of parts, w = sum of f_j w_j + m (`WeightParts`), each the product of signs w_j and a factor f_j per filter: one part for
signs and for the multiples of signs by ``scaled_sign`` and ``lq_net``, k parts for k bits by ``dorefa``, with the factors 2^j / (2^k - 1).
If the magnitudes depend on the position in the kernel (SYQ, arXiv:1807.00301), see `_parts_of_positions`. With the integers
H_ij = conv(s_i, w_j), P = sum of f_j w_j, and S = sum of all P over a filter,

    conv(a, P) = (sum of d_i f_j H_ij + a_n S) / 2             if a is padded with 0, and s with -1

For another padding p let s be padded with 0, and U_j be the same convolution of a plane of set bits. S - sum of f_j U_j is the sum of the
weights on padding, and

    conv(a, P) = (sum of d_i f_j H_ij + (a_n - 2p) sum of f_j U_j + 2p S) / 2

A mean m per filter multiplies the sum of the window. A 1 x 1 binary convolution with one filter of ones adds the channels of each pixel;
one float convolution of this map, for all filters, adds the window and multiplies by m. If the binary convolutions pad with another value q
than the padding p of the layer (because m is not 0, or signs are padded with a number other than -1, 0 and 1), the sum of (p - q) P + p m
over the weights on padding is missing. It is the sum over all weights minus a convolution of a map of ones, which is a second channel of
the map of sums, or the only one if m is 0.
"""

import dataclasses
import itertools

import numpy as np

from ....analysis.counting import marked_bits
from ....graph.operations import Convolution
from ....nn import marks
from ...program.operations import SIDES
from ..builder import UnsupportedError, as_float32, by_step, is_3d
from ..network import MAX_BITS, MAX_PRODUCTS, is_sign
from ..weight_levels import WeightParts, weight_parts
from .attributes import POINT, of_maps
from .binary import flat_if_dense, pad_value_of, value_read_by
from .maps_3d import convolution

_WEIGHTS_OF_BITS = ('dorefa', 'ttq')  # methods of weights with several bits
_WEIGHTS_OF_LEVELS = ('adabin', 'ttq')  # methods of weights with other levels than opposites or multiples of a number


def low_bit_layer(builder, node, role, **attributes):
    """Add `node` if it is a marked layer whose weights and input are represented by bit planes. Return whether it is one.

    Others are float layers, which `few_levels` stores with the bits of their weights.

    Raises
    ------
    UnsupportedError
        If it reads signs in place of other values (`Network.weight_parts`), and its weights cannot be represented by bit planes.
    """
    if node.marks.get(marks.ROLE) != role:
        return False
    network = builder.network
    x = value_read_by(network, node)
    levels = network.levels(x) if x else None
    weights, biases = network.weight_parts(node), network.sources(node)[2:]
    if weights is None:
        if not _has_planes(network, node, x, levels, attributes):
            return False
        weights, biases = _weight_parts(network, node), []  # the bias of a marked layer is its offset, which is added here
        if weights is None or not all(_can_divide(of_maps(part), attributes) for part in weights.parts):
            return False
    number = _sum(builder, node, x, levels, weights, attributes)
    for bias in biases:
        number = builder.affine(number, 1, network.constant(bias))
    builder.set(node, number)
    builder.binary_layers.append(node)
    return True


def _sum(builder, node, x, levels, weights, attributes):
    """Add the convolutions of a layer and their sum; return the number of the result.

    Parameters
    ----------
    x : Entry
        What the layer reads: signs, or numbers with the given levels.
    levels : tuple of float or None
    weights : WeightParts
    attributes : dict
        Geometry and groups of the layer.
    """
    parts = [part for weight in weights.parts for part in _parts(of_maps(weight), attributes)]
    total, pad_value = sum(part.sums for part in parts), _padding(node)
    if levels:
        planes, source = builder.planes(x, levels)
        read, middle = [(plane.bits, plane.step / 2, plane.count) for plane in planes], levels[-1] / 2
        by_level = pad_value == 0 or weights.means is not None
        bit_padding, represented_padding = (-1, 0) if by_level else (0, pad_value)
        shift = total * (middle if by_level else pad_value)
    else:
        read, middle, shift = [(builder.bits(x, node.marks.get('encoding', 'sign')), 1, 1)], 0, 0
        bit_padding = represented_padding = int(pad_value) if pad_value in (-1, 0, 1) else -1

    def products(bits, factor, planes):
        """Add the convolutions of `bits` with all parts; return terms of a sum (number, factor)."""
        number = flat_if_dense(builder, node, bits)
        return [(part.convolution(builder, node, number, bit_padding, planes), factor * part.factor) for part in parts]

    # before the binary convolutions: the engine adds a result that exists in the step of a convolution
    window_sums = _window_sums(builder, node, weights, read, middle, represented_padding, pad_value, attributes)
    terms = [term for plane in read for term in products(*plane)]
    if represented_padding and levels:
        channels = builder.value(source).channels
        always = {'threshold': np.full(channels, -np.inf, dtype=np.float32), 'flip': np.zeros(channels, dtype=bool)}
        terms += products(builder.add('threshold', [source], always), middle - pad_value, 1)
    terms += window_sums
    if int(node.marks.get('offset', 0)):
        terms = [(number, factor / 2) for number, factor in terms]
        shift = (shift + weights.parts[0][0].size) / 2
    return builder.weighted_sum(terms, shift)


def _window_sums(builder, node, weights, read, middle, padding, pad_value, attributes):
    """Add what the means of the weights contribute, and the padding that the binary convolutions do not represent.

    Parameters
    ----------
    weights : WeightParts
    read : list of tuple (int, float, int)
        Number of bits, factor and number of planes: the layer reads `middle` plus the sum of the factors times signs.
    padding, pad_value : float
        What the binary convolutions pad with, as a value that the layer reads, and what the layer pads with.

    Returns
    -------
    list of tuple (int, int)
        The terms of a sum (number, factor), one or none.
    """
    by_tap, size = sum(weights.parts).sum(axis=1, keepdims=True), weights.parts[0].shape[1]
    means = np.zeros_like(by_tap)
    if weights.means is not None:
        means += weights.means.reshape(-1, *(1,) * (means.ndim - 1))
    beyond = (pad_value - padding) * by_tap + pad_value * size * means
    # channels of a map: their weights, and what they are: a factor of the sum over the channels that are read, and a summand
    channels = [channel for channel in ((means, 1, size * middle), (-beyond, 0, 1)) if channel[0].any()]
    if not channels:
        return []
    kernels, factors, summands = zip(*channels)
    groups = attributes['groups'] * (node.inputs[0].shape[2] if is_3d(node.shape) else 1)
    ones = np.ones((len(channels) * groups, 1, 1, size), dtype=bool)
    fixed = dict(out_channels=len(ones), groups=groups, pad_value=0, offset=0, **POINT)
    sums = []
    for bits, factor, planes in read:
        number = builder.add('binary_conv', [flat_if_dense(builder, node, bits)], {'weight': ones}, planes=planes, **fixed)
        sums.append((number, factor * np.tile(factors, groups)))
    number = builder.weighted_sum(sums, np.tile(summands, groups))
    arrays = {'weight': np.concatenate(kernels, axis=1), 'bias': beyond.reshape(len(beyond), -1).sum(axis=1)}
    arrays = {name: as_float32(array) for name, array in arrays.items()}
    fixed = dict(out_channels=len(beyond), has_bias=1, half=0)
    return [(convolution(builder, node, 'conv', number, arrays, **fixed, **attributes), 1)]


def _has_planes(network, node, x, levels, attributes):
    """Return whether the input of a layer and, by their number of bits, its weights are represented by bit planes, and no form is faster.

    Layers of one bit each, `binary_layer` has added. So one with signs as weights has planes only if it reads several levels.
    """
    if is_3d(node.shape) or network.sources(node)[1].node.depends_on_data:
        return False
    bits = marked_bits(node)
    if bits > 1 and (bits > MAX_BITS or node.marks.get('method') not in _WEIGHTS_OF_BITS):
        return False
    if levels:
        few = bits * (len(levels) - 1) <= MAX_PRODUCTS or (bits == 1 and not _are_integers(levels, node))
        return few and (len(levels) == 2 or attributes['groups'] == 1)
    signs = x is not None and network.encoding(x) == node.marks.get('encoding', 'sign')
    return signs and not is_sign(node) and _padding(node) in (-1, 0, 1)


def _are_integers(levels, node):
    """Return whether the levels that a layer reads, and what it pads them with, are multiples of one number.

    Then it becomes a sum of integers (`integer_layers`), or with scales by position a float layer, which is faster than planes, too.
    """
    return len(by_step(levels)) == 1 and _padding(node) == 0


def _padding(node):
    """Return the number with which a layer pads its input, 0 without padding."""
    return pad_value_of(node) if isinstance(node.operation, Convolution) and node.operation.window.is_padded else 0


# --- parts of weights -----------------------------------------------------------------------------------------------------------------


def _weight_parts(network, node):
    """Return the `WeightParts` of the quantized weight of a layer, from its marks; None if it has none."""
    multiplied = (0.5 if int(node.marks.get('offset', 0)) else 1) * (2 if node.marks.get('encoding') == 'bit' else 1)
    constant = network.constant(network.sources(node)[1])  # the layer multiplies the quantized weight by this
    weight, bits = constant.astype(np.float64) / multiplied, marked_bits(node)
    if node.marks.get('method') in _WEIGHTS_OF_LEVELS:
        return weight_parts(weight)
    if bits > 1:
        highest = 2**bits - 1
        levels = np.rint((weight + 1) / 2 * highest).astype(np.int64)
        return WeightParts([np.where(levels >> bit & 1, 1, -1) * (2**bit / highest) for bit in range(bits)], None)
    magnitudes = np.abs(weight)
    return None if (magnitudes != magnitudes[:, :1]).any() else WeightParts([weight], None)


@dataclasses.dataclass
class _Part:
    """A part of the weights of a layer: signs times a factor per filter.

    Attributes
    ----------
    signs : numpy.ndarray of bool, shape (out_channels, in_channels / groups, [depth,] height, width)
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
        return self.factor * np.where(self.signs, 1, -1).reshape(len(self.signs), -1).sum(axis=1)

    def convolution(self, builder, node, bits, pad_value, planes):
        """Add the sum of the convolutions of the planes of `bits` with the signs; return the number of the result, integers."""
        fixed = dict(out_channels=len(self.signs), offset=0, planes=planes)
        return convolution(builder, node, 'binary_conv', bits, {'weight': self.signs}, int(pad_value), **fixed, **self.attributes)


def _parts(weight, attributes):
    """Return the `_Part`s whose sum is a weight that consists of signs times a number for each filter or kernel position."""
    if not _can_divide(weight, attributes):
        raise UnsupportedError('its weights have a number for each kernel position, and it is 3-D or not padded by half the kernel')
    if _has_one_factor(weight):
        return [_Part(weight >= 0, np.abs(weight[:, 0]).reshape(len(weight), -1)[:, 0], attributes)]
    return _parts_of_positions(weight >= 0, np.abs(weight[:, 0]), attributes)


def _has_one_factor(weight):
    factor = np.abs(weight[:, 0]).reshape(len(weight), -1)
    return (factor == factor[:, :1]).all()


def _can_divide(weight, attributes):
    """Return whether signs times a number for each filter or kernel position have `_parts`."""
    if _has_one_factor(weight):
        return True
    pads = [(attributes[SIDES[axis][0]], attributes[f'dilation_{axis}'], attributes[f'kernel_{axis}']) for axis in 'hw']
    return weight.ndim == 4 and all(pad >= dilation * ((kernel - 1) // 2) for pad, dilation, kernel in pads)


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
        filters, channels = map(range, signs.shape[:2])
        geometry = {**attributes, **row_geometry, **column_geometry}
        for row_signs, column_signs in itertools.product(_HADAMARD[len(row_indices)], _HADAMARD[len(column_indices)]):
            pattern = np.multiply.outer(row_signs, column_signs)
            factor = (magnitudes[np.ix_(filters, row_indices, column_indices)] * pattern).mean(axis=(1, 2))
            if factor.any():
                equal = signs[np.ix_(filters, channels, row_indices, column_indices)] == (pattern > 0)
                parts.append(_Part(equal, factor, geometry))
    return parts


_HADAMARD = {1: np.array([[1]]), 2: np.array([[1, 1], [1, -1]])}


def _mirrored(attributes, axis):
    """Return the pairs of kernel indices along an axis that are symmetric about the center: (indices, geometry of a kernel of these)."""
    kernel, dilation = (attributes[f'{name}_{axis}'] for name in ('kernel', 'dilation'))
    pad = attributes[SIDES[axis][0]]  # the same on both sides
    found = []
    for first in range((kernel + 1) // 2):
        last = kernel - 1 - first
        indices = [first] if first == last else [first, last]
        distance = max(1, dilation * (last - first))
        padding = dict.fromkeys(SIDES[axis], pad - dilation * first)
        found.append((indices, {f'kernel_{axis}': len(indices), f'dilation_{axis}': distance, **padding}))
    return found
