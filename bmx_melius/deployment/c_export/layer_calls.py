"""A program as calls of the kernels: convolutions, thresholds and pooling.

A scale and shift before max pooling are applied after it, to fewer elements: the maximum of a channel with a negative scale becomes the
minimum. Rounding is monotonic, so the results have the same bits.
"""

import dataclasses

import numpy as np

from ...arithmetic import ceil_div
from ...errors import UserError
from ..program.layer_weights import bias_of, level_numbers
from ..program.operation_table import OPERATIONS, SUMMED_PIXELS
from ..program.operations import range_of_sums
from ..program.words import pack_bits
from .calls import Pointer
from .element_calls import FORMS
from .int8_calls import Integers
from .kernel_sources import names
from .values import Piece, fits_int16, kind_of, with_range


class Lowering(Integers):
    """A program written as calls.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
        Its operations pass `check_operations`.
    shapes : list of bmx_melius.deployment.program.operations.Value
        Of the inputs and operations, at the size of the export.
    spec : bmx_melius.vision.preprocessing.InputSpec, optional
        How the pixels of the only input are normalized.
    """

    def __init__(self, program, shapes, spec=None):
        super().__init__(program, shapes, spec)
        self._planar, self._done = self.facts.planar_convolutions(), {}

    def run(self, outputs):
        """Write all operations and return the `Calls`. `outputs` are the values that become outputs, in order."""
        for number, operation in enumerate(self.program.operations):
            self.to.operation = self.facts.first + number
            shape = self.shapes[self.facts.first + number]
            done = self._done.get(number)
            self.values.append(lowering_of(operation.name)(self, number, operation, shape) if done is None else done)
        for number, value in enumerate(outputs):
            self.to.operation = value
            self.output(value, 'output' if len(outputs) == 1 else f'output{number}')
        return self.to

    # --- thresholds and binary convolutions

    @FORMS.of('threshold')
    def threshold(self, number, operation, shape):
        result, first = self.new_bits(shape.channels, shape), 0
        threshold, flip = operation.arrays['threshold'], operation.arrays['flip']
        for index, piece in enumerate(self.pieces(operation.inputs[0])):
            piece, name = self.thresholds(f'threshold{index}', piece, threshold[first : first + piece.channels], shape)
            span = self.span(shape, piece.channels, piece.stride, 0)
            self.to.call('bmx_threshold_value', span, piece, name, result, result.words, first, value=piece.kind)
            first += piece.channels
        if flip.any():
            self.to.call('bmx_flip', self.pixels(shape), result.words, self.to.array('flip', pack_bits(flip), 'uint32_t'), result)
        self.to.call('BMX_TRACE', self.to.operation, result, result.buffer.elements)
        return result

    @FORMS.of('binary_conv')
    def binary_conv(self, number, operation, shape):
        attributes = operation.attributes
        x, groups = self.shapes[operation.inputs[0]], attributes['groups']
        bits = self._in_groups(operation.inputs[0], groups)
        weight = np.tile(operation.arrays['weight'], attributes['planes'])
        inputs = x.channels // groups
        layer = self.to.structure(
            'binary_conv',
            'bmx_binary_conv',
            window=self.window(attributes, x, shape),
            groups=groups,
            inputs=inputs,
            outputs=shape.channels // groups,
            words=bits.words // groups,
            pad_value=attributes['pad_value'],
            offset=attributes['offset'],
            weights=self.to.array('weights', pack_bits(weight), 'uint32_t'),
        )
        taps = self.to.buffer('uint32_t', attributes['kernel_h'] * attributes['kernel_w'] * bits.words // groups)
        scratch = Piece(taps, 0, 1, 1)
        range = range_of_sums(operation, x.channels)
        result = self._summand(number, range)
        adds = int(result is not None)
        if result is None:
            result = self.new(kind_of(range), shape.channels, shape, range)
        self.to.call('bmx_binary_conv_result', layer, bits, scratch, result, result.stride, adds, result=result.kind)
        return [result]

    def _in_groups(self, value, groups):
        """Return bits of which each group begins with a new word."""
        bits, shape = self.values[value], self.shapes[value]
        if groups == 1 or shape.channels // groups % 32 == 0:
            return bits
        result, length = self._cleared(shape, groups), shape.channels // groups
        for group in range(groups):
            self._copy_bits(shape, bits, group * length, result, 32 * group * ceil_div(length, 32), length)
        return result

    def _summand(self, number, range):
        """Return the piece to which a binary convolution adds its sums, if only an addition to a value in memory reads them.

        The result of that addition is then known.
        """
        addition = self.facts.follower(number, lambda row: row.range == 'total')
        if addition is None or range is None:
            return None
        other = [value for value in self.program.operations[addition].inputs if value != self.facts.first + number]
        if len(other) != 1 or other[0] >= len(self.values) or len(self.values[other[0]]) != 1:
            return None
        (piece,) = self.values[other[0]]
        if piece.range is None or piece.buffer.external:
            return None
        total = (piece.range[0] + range[0], piece.range[1] + range[1])
        readers = self.readers_of(piece.buffer)
        if piece.kind != 'i16' or not fits_int16(total) or any(reader > number and reader != addition for reader in readers):
            return None
        result = with_range(piece, total)
        self._done[addition] = [result]
        return result

    # --- float convolutions

    @FORMS.of('conv')
    def conv(self, number, operation, shape):
        bias = None if self.facts.is_fused(number) else bias_of(operation)
        return [self._sums(number, operation, shape, operation.arrays['weight'], 'f16' if operation.attributes['half'] else 'f32', bias)]

    @FORMS.of('level_conv')
    def level_conv(self, number, operation, shape):
        x, attributes = self.shapes[operation.inputs[0]], operation.attributes
        kernel = attributes['kernel_h'], attributes['kernel_w']
        numbers = level_numbers(operation.arrays['codes']).reshape(shape.channels, x.channels // attributes['groups'], *kernel)
        result = self._sums(number, operation, shape, numbers, 'levels', None)
        if not self.facts.is_fused(number):
            scale, bias = operation.arrays['scale'], bias_of(operation)
            constants = {'scale': scale, 'shift': np.zeros_like(scale) if bias is None else bias}
            names = [self.to.array(name, array, 'float') for name, array in constants.items()]
            span = self.span(shape, shape.channels, result.stride, result.stride)
            self.to.call('bmx_affine_value', span, result, *names, result, value='f32')
        return [result]

    def _sums(self, number, operation, shape, weight, kind, bias):
        """Add the convolution with `weight`, numbers of levels if `kind` is ``levels``, plus a bias or None; return the result."""
        attributes, (value,) = operation.attributes, operation.inputs
        x = self.shapes[value]
        result = self.new('f32', shape.channels, shape)
        if number in self._planar:
            order, (piece,) = (0, 2, 1, 3), self._planar_pieces(value)
            planar = value < self.facts.first and x.channels > 1
            strides = (1, self.pixels(x)) if planar else (piece.stride, 1)
            layer = self._conv_layer('conv', operation, shape, x.channels, weight.transpose(order), kind, bias)
            self.to.call('bmx_conv_planar_weight', layer, piece, *strides, result, result.stride, weight=kind)
            return result
        weight, first = weight.transpose(0, 2, 3, 1), 0
        divides = attributes['groups'] == attributes['kernel_h'] == attributes['kernel_w'] == 1
        pieces = self.pieces(value) if divides else [self.contiguous(value)]
        for index, piece in enumerate(pieces):
            part = weight[..., first : first + piece.channels] if divides else weight
            first += piece.channels
            name = 'conv' if len(pieces) == 1 else f'conv_part{index}'
            layer = self._conv_layer(name, operation, shape, piece.channels, part, kind, bias if first == x.channels else None)
            arguments = (layer, piece, piece.stride, result, result.stride, int(index > 0))
            self.to.call('bmx_conv_value_weight', *arguments, value=piece.kind, weight=kind)
        return result

    def _planar_pieces(self, value):
        """Return a value as one piece of floats; an input where it is given."""
        if value < self.facts.first:
            return self.values[value]
        piece = self.contiguous(value)
        return [piece if piece.kind == 'f32' else self.copy(piece, 'f32', self.shapes[value])]

    def _conv_layer(self, name, operation, shape, channels, weight, kind, bias):
        """Return a `bmx_conv` for a convolution of some channels of its input."""
        attributes = operation.attributes
        if kind == 'levels':
            weights = self._levels(f'{name}_weights', operation, weight.reshape(-1))
        elif kind == 'f16':
            weights = self.to.array(f'{name}_weights', weight.astype('<f2').view('<u2'), 'uint16_t')
        else:
            weights = self.to.array(f'{name}_weights', weight.astype('<f4'), 'float')
        return self.to.structure(
            name,
            'bmx_conv',
            window=self.window(attributes, self.shapes[operation.inputs[0]], shape),
            groups=attributes['groups'],
            inputs=channels // attributes['groups'],
            outputs=shape.channels // attributes['groups'],
            weights=weights,
            bias='NULL' if bias is None else self.to.array('bias', bias.astype('<f4'), 'float'),
        )

    def _levels(self, name, operation, numbers):
        """Return a `bmx_levels` for weights, the numbers of their levels in the order in which they are added."""
        bits, levels = operation.attributes['bits'], operation.arrays['levels']
        codes = pack_bits(np.ascontiguousarray(numbers >> np.arange(bits)[:, None] & 1).astype(bool))
        return self.to.structure(
            name,
            'bmx_levels',
            codes=self.to.array(f'{name}_codes', codes, 'uint32_t'),
            levels=self.to.array('levels', levels.astype('<f4'), 'float'),
            bits=bits,
            words=codes.shape[1],
            step=levels.shape[1] if operation.attributes['by_position'] else 0,
        )

    # --- pooling

    @FORMS.of('max_pool')
    def max_pool(self, number, operation, shape):
        source = operation.inputs[0]
        before = source - self.facts.first
        is_deferred = before >= 0 and self.facts.is_deferred(before)
        if not is_deferred:
            return self.pooled(source, operation.attributes, shape)
        scaling = self.program.operations[before]
        constants = scaling.arrays[scaling.row.scales] if scaling.row.is_integer_layer else dict(self.scale_and_shift(scaling))['scale']
        pooled = self.pooled(scaling.inputs[0], operation.attributes, shape, constants < 0)
        if scaling.row.is_integer_layer:
            return self.rescaled(number, scaling, pooled, shape)
        results, first = [], 0
        names = [self.to.array(name, numbers.astype('<f4'), 'float') for name, numbers in self.scale_and_shift(scaling)]
        for piece in pooled:
            to = piece if piece.kind == 'f32' else self.new('f32', piece.channels, shape)
            offsets = [f'{name} + {first}' if first else name for name in names]
            span = self.span(shape, piece.channels, piece.stride, to.stride)
            self.to.call('bmx_affine_maximum_value', span, piece, *offsets, to, value=piece.kind)
            results.append(with_range(to, None))
            first += piece.channels
        return results

    @FORMS.of('global_max_pool')
    def global_max_pool(self, _, operation, shape):
        x = self.shapes[operation.inputs[0]]
        return self.pooled(operation.inputs[0], {'kernel_h': x.height, 'kernel_w': x.width, 'pad_top': 0, 'pad_left': 0}, shape)

    def pooled(self, value, attributes, shape, falling=None):
        """Compute the maximum of windows, for the channels in the bool array `falling` the minimum."""
        x, results, first = self.shapes[value], [], 0
        window = self.pool_window(attributes, x, shape)
        for index, piece in enumerate(self.pieces(value)):
            falls = None if falling is None else falling[first : first + piece.channels]
            mask = self.to.array(f'falling{index}', pack_bits(falls), 'uint32_t') if falls is not None and falls.any() else 'NULL'
            to = self.new(piece.kind, piece.channels, shape, piece.range)
            span = self.span(shape, piece.channels, piece.stride, to.stride)
            self.to.call('bmx_max_pool_value', window, span, piece, mask, to, value=piece.kind)
            results.append(to)
            first += piece.channels
        return results

    @FORMS.of('avg_pool')
    def avg_pool(self, _, operation, shape):
        attributes, (value,) = operation.attributes, operation.inputs
        x, first = self.shapes[value], 0
        window = self.pool_window(attributes, x, shape)
        result = self.new('f32', shape.channels, shape)
        beyond = (attributes['count_pad'], attributes['pad_bottom'], attributes['pad_right'])
        for piece in self.pieces(value):
            to = result.part(first, first + piece.channels)
            span = self.span(shape, piece.channels, piece.stride, result.stride)
            self.to.call('bmx_avg_pool_value', window, span, piece, *beyond, to, value=piece.kind)
            first += piece.channels
        return [result]

    @FORMS.of('global_avg_pool')
    def global_avg_pool(self, _, operation, shape):
        (value,) = operation.inputs
        x, first = self.shapes[value], 0
        result = self.new('f32', shape.channels, shape)
        template = 'bmx_mean_value' if self.pixels(x) <= SUMMED_PIXELS else 'bmx_long_mean_value'
        for piece in self.pieces(value):
            to = result.part(first, first + piece.channels)
            self.to.call(template, self.span(x, piece.channels, piece.stride, 0), piece, to, value=piece.kind)
            first += piece.channels
        return [result]

    @FORMS.of('channel_mean')
    def channel_mean(self, _, operation, shape):
        piece, result = self.contiguous(operation.inputs[0]), self.new('f32', 1, shape)
        span = self.span(shape, piece.channels, piece.stride, result.stride)
        self.to.call('bmx_channel_mean_value', span, piece, result, value=piece.kind)
        return [result]

    @FORMS.of('upsample')
    def upsample(self, _, operation, shape):
        attributes, (value,) = operation.attributes, operation.inputs
        x, results = self.shapes[value], []
        scales = {'stride_h': attributes['scale_h'], 'stride_w': attributes['scale_w'], 'pad_top': 0, 'pad_left': 0}
        window = self.pool_window(scales, x, shape)
        for piece in self.pieces(value):
            range = piece.range if attributes['repeat'] or piece.range is None else (min(piece.range[0], 0), max(piece.range[1], 0))
            to = self.new(piece.kind, piece.channels, shape, range)
            span = self.span(shape, piece.channels, piece.stride, to.stride)
            self.to.call('bmx_upsample_value', window, span, piece, attributes['repeat'], to, value=piece.kind)
            results.append(to)
        return results

    # --- sequences

    @FORMS.of('transpose')
    def transpose(self, _, operation, shape):
        (value,) = operation.inputs
        x, first = self.shapes[value], 0
        if self.pixels(x) == 1 and len(self.pieces(value)) == 1:  # the same elements in the same order
            return [dataclasses.replace(self.pieces(value)[0], channels=1, stride=1)]
        result = self.new('f32', shape.channels, shape)
        for piece in self.pieces(value):
            to = Pointer(result.buffer, first * result.stride)
            span = self.span(x, piece.channels, piece.stride, 1)
            self.to.call('bmx_transpose_value_result', span, piece, 1, to, result.stride, value=piece.kind, result='f32')
            first += piece.channels
        return [result]

    @FORMS.of('arrange')
    def arrange(self, _, operation, shape):
        return [piece if piece.kind == 'f32' else self.copy(piece, 'f32', shape) for piece in self.pieces(operation.inputs[0])]

    @FORMS.of('matmul')
    @FORMS.of('row_matmul')
    def matmul(self, _, operation, shape):
        attributes, (left, right) = operation.attributes, operation.inputs
        x, y = self.contiguous(left), self.contiguous(right)
        y = y if y.kind == 'f32' else self.copy(y, 'f32', self.shapes[right])
        heads, transposed = attributes['heads'], attributes['transposed']
        result = self.new('f32', shape.channels, shape)
        span = self.span(shape, x.channels, x.stride, result.stride)
        steps = (1, y.stride) if transposed else (y.stride, 1)
        counts = (y.channels // heads, *steps, shape.channels // heads)
        by_row = operation.row.shape == 'product_of_rows'
        maps = (shape.width, y.stride * attributes['positions']) if by_row else (self.pixels(shape), 0)
        self.to.call('bmx_matmul_value', span, *maps, heads, x, y, *counts, result, value=x.kind)
        return [result]

    @FORMS.of('gather')
    def gather(self, _, operation, shape):
        result, begin = self.new('f32', shape.channels, shape), 0
        places = self.to.array('places', operation.arrays['places'].clip(0, operation.attributes['positions'] - 1), 'int32_t')
        for value in operation.inputs:
            pixels, first = self.pixels(self.shapes[value]), 0
            for piece in self.pieces(value):
                to = result.part(first, first + piece.channels)
                span = self.span(shape, piece.channels, piece.stride, result.stride)
                self.to.call('bmx_gather_value', span, places, begin, begin + pixels, piece, to, value=piece.kind)
                first += piece.channels
            begin += pixels
        return [result]

    @FORMS.of('embedding')
    def embedding(self, _, operation, shape):
        piece, result = self.contiguous(operation.inputs[0]), self.new('f32', shape.channels, shape)
        table, kind = operation.arrays['table'], 'f16' if operation.attributes['half'] else 'f32'
        name = self.to.array('table', table.view('<u2') if kind == 'f16' else table, 'uint16_t' if kind == 'f16' else 'float')
        span = self.span(shape, shape.channels, piece.stride, result.stride)
        self.to.call('bmx_embedding_value_weight', span, operation.attributes['rows'], piece, name, result, value=piece.kind, weight=kind)
        return [result]

    @FORMS.of('softmax')
    def softmax(self, _, operation, shape):
        piece, result = self.contiguous(operation.inputs[0]), self.new('f32', shape.channels, shape)
        span = self.span(shape, piece.channels, piece.stride, result.stride)
        self.to.call('bmx_softmax_value', span, operation.attributes['groups'], piece, result, value=piece.kind)
        return [result]

    @FORMS.of('normalize')
    def normalize(self, _, operation, shape):
        attributes, (eps,) = operation.attributes, operation.arrays['eps']
        piece, result = self.contiguous(operation.inputs[0]), self.new('f32', shape.channels, shape)
        span = self.span(shape, piece.channels, piece.stride, result.stride)
        constants = (attributes['groups'], attributes['by_position'], float(eps).hex())
        self.to.call('bmx_normalize_value', span, *constants, piece, result, value=piece.kind)
        return [result]


def lowering_of(name):
    """Return the method that writes an operation: from `FORMS`, or by its kind if there is a kernel of its name; else None."""
    row, method = OPERATIONS[name], FORMS.get(name)
    if method is None and row.elementwise == 'channels' and f'bmx_{name}_value' in names():
        return Lowering.elementwise
    if method is None and row.shape == 'equal' and row.elementwise and f'bmx_{name}_value_result' in names():
        return Lowering.combined
    return method


UNSUPPORTED = tuple(name for name in OPERATIONS if lowering_of(name) is None)


def check_operations(program):
    """Raise `UserError` unless all operations of a program can be written in C; the message names those that cannot."""
    names = [operation.name for operation in program.operations]
    refused = [f'{name} (operation {number})' for number, name in enumerate(names) if name in UNSUPPORTED]
    if refused:
        more = f' and {len(refused) - 3} more' if len(refused) > 3 else ''
        raise UserError(
            f'the network has operations without a form in C: {", ".join(refused[:3])}{more}; deploy it with the engine, or build the '
            'network without them'
        )
    for number, operation in enumerate(program.operations):
        for name, array in operation.arrays.items():
            if array.dtype.kind == 'f' and np.isnan(array).any():
                raise UserError(f'the {name} of {operation.name} (operation {number}) contains NaN: train the network again')
