"""A program as calls of the kernels: layers of 8-bit integers."""

import numpy as np

from ..program.layer_weights import int8_weight_of
from ..program.operation_table import MAX_BYTE, MAX_INT16, PADDING
from .element_calls import FORMS, Elementwise
from .packed_filters import packed_filters
from .rescaling import limits_of, rescaling_of
from .values import TYPES, fits_byte, kind_of, with_range

_MAX_NUMBER = 1 << 23  # the magnitude to which numbers are limited before they are rescaled


class Integers(Elementwise):
    """Operations on integers."""

    @FORMS.of('rescale')
    def rescale(self, number, operation, shape):
        if number in self.facts.pixels:
            return self.values[0]
        return None if self.facts.is_deferred(number) else self.rescaled(number, operation, self.pieces(operation.inputs[0]), shape)

    def rescaled(self, number, operation, pieces, shape):
        """Rescale pieces; to 16-bit integers in place if possible, to bytes in one map."""
        bounds = [_limited(piece.range, _MAX_NUMBER) for piece in pieces for _ in range(piece.channels)]
        low, high = limits_of(operation, bounds)
        rescaling = rescaling_of(operation, [tuple(np.clip(bound, low, high).tolist()) for bound in bounds])
        range_, kind = _results_of(operation)
        fields = self.to.structure('rescaling', 'bmx_rescaling', **rescaling.fields())
        constants = self.to.array('constants', rescaling.numbers, 'int32_t')
        in_place = [piece.kind == kind and self.is_free_after(piece, number, pieces) for piece in pieces]
        whole = None if any(in_place) else self.new(kind, shape.channels, shape, range_)
        first, results = 0, []
        for piece, stays in zip(pieces, in_place):
            end = first + piece.channels
            part = whole.part(first, end) if whole else self.new(kind, piece.channels, shape, range_)
            to = with_range(piece, range_) if stays else part
            span, offset = self.span(shape, piece.channels, piece.stride, to.stride), first * rescaling.step
            name = f'{constants} + {offset}' if offset else constants
            kinds = {'value': piece.kind, 'result': kind, 'form': rescaling.form}
            self.to.call('bmx_rescale_value_result_form', span, piece, low, high, fields, name, to, **kinds)
            results.append(to)
            first = end
        return [whole] if whole else results

    @FORMS.of('int8_conv', 'level_int8_conv')
    def int8_conv(self, _, operation, shape):
        attributes, (value,) = operation.attributes, operation.inputs
        x, groups = self.shapes[value], attributes['groups']
        weight, range_, kind = int8_weight_of(operation), *_results_of(operation)
        sums = weight.astype(np.int64).reshape(len(weight), -1)
        bounds = [(int(row[row < 0].sum()) * MAX_BYTE, int(row[row > 0].sum()) * MAX_BYTE) for row in sums]
        rescaling = rescaling_of(operation, bounds)
        piece, result = self._bytes(value), self.new(kind, shape.channels, shape, range_)
        extends = any(attributes[side] for side in PADDING)
        pad = operation.arrays['pad'].clip(0, MAX_BYTE).astype('u1')
        taps, kinds = attributes['kernel_h'] * attributes['kernel_w'], {'result': kind, 'form': rescaling.form}
        depthwise = taps > 1 and x.channels == groups > 1
        largest = max([_limited(piece.range, MAX_BYTE)[1], *(pad.tolist() if extends else ())])
        packed = None if depthwise else packed_filters(operation, largest)
        if packed is None:
            filters, kinds['filter'] = {'weights': self.to.array('weights', weight.transpose(0, 2, 3, 1), 'int8_t')}, 'i8'
        else:
            kinds['filter'] = packed.kind
            filters = {
                'weights': self.to.array('weights', packed.codes, 'uint32_t'),
                'levels': self.to.shared('levels', packed.levels, 'int8_t' if packed.kind == 'codes' else 'uint32_t'),
                'level_bits': packed.bits,
                'codes': packed.in_word,
            }
        layer = self.to.structure(
            'int8_conv',
            'bmx_int8_conv',
            window=self.window(attributes, x, shape),
            groups=groups,
            inputs=x.channels // groups,
            outputs=shape.channels // groups,
            **filters,
            pad=self.to.array('pad', pad, 'uint8_t') if extends else 'NULL',
            constants=self.to.array('constants', rescaling.numbers, 'int32_t'),
            rescaling='{' + ', '.join(map(str, rescaling.fields().values())) + '}',
        )
        if depthwise:
            window = self.new('i32', 2 * taps, self.pixel)
            del kinds['filter']
            self.to.call('bmx_int8_depthwise_result_form', layer, piece, piece.stride, window, result, result.stride, **kinds)
            return [result]
        window = self.new('u8', taps * x.channels // groups, self.pixel) if taps > 1 or extends else 'NULL'
        self.to.call('bmx_int8_conv_result_form_filter', layer, piece, piece.stride, window, result, result.stride, **kinds)
        return [result]

    @FORMS.of('multi_threshold')
    def multi_threshold(self, _, operation, shape):
        count, first = operation.attributes['thresholds'], 0
        result = self.new('u8', shape.channels, shape, (0, count))
        numbers = operation.arrays['threshold'].T  # those of a channel together
        flips = self.to.array('flips', operation.arrays['flip'].astype('u1'), 'uint8_t')
        for index, piece in enumerate(self.pieces(operation.inputs[0])):
            end = first + piece.channels
            piece, name = self.thresholds(f'thresholds{index}', piece, numbers[first:end], shape)
            part, of_part = result.part(first, end), f'{flips} + {first}' if first else flips
            span = self.span(shape, piece.channels, piece.stride, part.stride)
            self.to.call('bmx_multi_threshold_value', span, piece, name, of_part, count, part, value=piece.kind)
            first = end
        return [result]

    def thresholds(self, name, piece, numbers, shape):
        """Add an array of thresholds as numbers of the type of a piece. Returns the piece to compare with them, and the array's name."""
        if piece.kind == 'u8':  # bytes have no threshold that none of them reaches
            piece = self.copy(piece, 'i16', shape)
        if piece.kind != 'f32':
            limits = np.iinfo(TYPES[piece.kind][:-2])
            numbers = np.clip(np.ceil(numbers.astype(np.float64)), limits.min, limits.max).astype(limits.dtype)
        return piece, self.to.array(name, numbers, TYPES[piece.kind])

    def _bytes(self, value):
        """Return a value as one piece of bytes: integers, limited to 0 to 255."""
        pieces, shape, first = self.pieces(value), self.shapes[value], 0
        if len(pieces) == 1 and pieces[0].kind == 'u8':
            return pieces[0]
        whole = self.new('u8', shape.channels, shape, (0, MAX_BYTE))
        for piece in pieces:
            span = self.span(shape, piece.channels, piece.stride, whole.stride)
            self.to.call('bmx_bytes_value', span, piece, whole.part(first, first + piece.channels), value=piece.kind)
            first += piece.channels
        return whole

    @FORMS.of('integer_mean')
    def integer_mean(self, _, operation, shape):
        x = self.shapes[operation.inputs[0]]
        attributes = {**operation.attributes, 'kernel_h': x.height, 'kernel_w': x.width, **dict.fromkeys(PADDING, 0), 'count_pad': 0}
        return self._means(operation.inputs[0], attributes, shape)

    @FORMS.of('integer_avg_pool')
    def integer_avg_pool(self, _, operation, shape):
        return self._means(operation.inputs[0], operation.attributes, shape)

    def _means(self, value, attributes, shape):
        window = self.pool_window(attributes, self.shapes[value], shape)
        elements, bits = attributes['kernel_h'] * attributes['kernel_w'], attributes['fraction_bits']
        beyond = (attributes['count_pad'], attributes['pad_bottom'], attributes['pad_right'], bits)
        results = []
        for piece in self.pieces(value):
            low, high = _limited(piece.range, MAX_INT16)
            dividend = elements * (max(abs(low), abs(high)) * (2 << bits) + 1)
            if attributes['count_pad'] and any(attributes[side] for side in PADDING):
                low, high = min(low, 0), max(high, 0)
            range_ = low << bits, high << bits
            result = self.new(kind_of(range_), piece.channels, shape, range_)
            span = self.span(shape, piece.channels, piece.stride, result.stride)
            kinds = {'value': piece.kind, 'result': result.kind, 'sum': 'i32' if dividend < 2**31 else 'i64'}
            self.to.call('bmx_integer_mean_value_result_sum', window, span, piece, *beyond, result, **kinds)
            results.append(result)
        return results


def _limited(range_, magnitude):
    """Return the range of numbers that are limited to a magnitude; None is the range of floats."""
    low, high = (-magnitude, magnitude) if range_ is None else range_
    return tuple(min(max(bound, -magnitude), magnitude) for bound in (low, high))


def _results_of(operation):
    """Return the range of the results of a rescaling, and their kind."""
    range_ = operation.attributes['result_min'], operation.attributes['result_max']
    return range_, 'u8' if fits_byte(range_) else kind_of(range_)
