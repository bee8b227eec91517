"""A program as calls of the kernels: moves of values, and operations on single elements."""

from ...arithmetic import ceil_div
from ..program.by_operation import ByOperation
from ..program.layer_weights import bias_of
from ..program.operation_table import BITS_KIND, MAX_BYTE
from ..program.operations import REAL_KIND, Value
from .calls import Calls, Pointer
from .facts import Facts
from .values import TYPES, Bits, Buffer, Parameter, Piece, aligned, common_kind, kind_of, slice_of, total_range, with_range

FORMS = ByOperation()  # methods of `Lowering` and its bases: (number, operation, `Value` of the result) -> pieces or bits of the result


class Moves:
    """Values of a program and the memory they occupy: the base of `Lowering`.

    Attributes
    ----------
    facts : Facts
    to : Calls
        Receives the calls.
    values : list
        For each value computed so far a list of `Piece`, or `Bits`; None for values that are never in memory.
    inputs, outputs : list of Parameter
        Of the exported function. `output` adds an output.
    """

    pixel = Value(REAL_KIND, 1, 1, 1, False)  # the size of a map of one pixel

    def __init__(self, program, shapes, spec=None):
        self.program, self.shapes = program, shapes
        self.facts, self.to = Facts(program, shapes, spec), Calls()
        self.values, self._inputs, self._scales = [], {}, {}
        self.inputs, self.outputs = [], []
        takes_pixels = bool(self.facts.pixels)
        for number, shape in enumerate(shapes[: len(program.inputs)]):
            name = 'input' if len(program.inputs) == 1 else f'input{number}'
            ids = self.facts.ids.get(number)
            type, range = ('uint8_t', (0, MAX_BYTE)) if takes_pixels else ('int32_t', (0, ids - 1)) if ids else ('float', None)
            self.inputs.append(Parameter(name, type, shape))
            buffer = Buffer(name, type, self.inputs[-1].elements, external=True)
            self.values.append([Piece(buffer, 0, shape.channels, shape.channels, range)])

    def pixels(self, shape):
        return shape.height * shape.width

    def pieces(self, value):
        """Return the pieces of a real value. An input is copied, unless its elements are already in the order of maps in memory."""
        shape = self.shapes[value]
        if value >= self.facts.first or shape.channels == 1 or self.pixels(shape) == 1:
            return self.values[value]
        if value not in self._inputs:
            (source,) = self.values[value]
            piece = self.new(source.kind, shape.channels, shape, source.range)
            span = self.span(shape, shape.channels, 1, piece.stride)
            self.to.call('bmx_transpose_value_result', span, source, self.pixels(shape), piece, 1, value=source.kind, result=source.kind)
            self._inputs[value] = [piece]
        return self._inputs[value]

    def span(self, shape, channels, x_stride, y_stride):
        """Return a pointer to a `bmx_span` in C."""
        return self.to.span(pixels=self.pixels(shape), channels=channels, x_stride=x_stride, y_stride=y_stride)

    def new(self, kind, channels, shape, range=None):
        """Return a piece of a new buffer for channels of a map of this size."""
        return Piece(self.to.buffer(TYPES[kind], channels * self.pixels(shape)), 0, channels, channels, range)

    def new_bits(self, channels, shape, groups=1):
        words = groups * ceil_div(channels // groups, 32)
        return Bits(self.to.buffer('uint32_t', words * self.pixels(shape)), channels, words, groups)

    def is_free_after(self, piece, number, pieces):
        """Return whether operation `number` may write its result over a piece of an operand.

        Parameters
        ----------
        pieces : list of Piece
            The pieces of all operands: two must not lie in the same buffer.
        """
        buffer = piece.buffer
        if buffer.external or sum(other.buffer is buffer for other in pieces) > 1:
            return False
        return all(reader <= number for reader in self.readers_of(buffer))

    def readers_of(self, buffer):
        """Return the numbers of the operations that read a buffer, a set."""
        holders = [value for value, held in enumerate(self.values) if isinstance(held, list) and any(p.buffer is buffer for p in held)]
        holders += [value for value, held in self._inputs.items() if held[0].buffer is buffer]
        return {reader for value in holders for reader in self.facts.readers(value)}

    def copy(self, piece, kind, shape):
        """Copy a piece to a new buffer and return the copy."""
        copy = self.new(kind, piece.channels, shape, piece.range)
        span = self.span(shape, piece.channels, piece.stride, copy.stride)
        self.to.call('bmx_copy_value_result', span, piece, copy, value=piece.kind, result=kind)
        return copy

    def contiguous(self, value):
        """Return a value as one piece, which is a copy if it has several."""
        pieces, shape = self.pieces(value), self.shapes[value]
        if len(pieces) == 1:
            return pieces[0]
        kind = common_kind(pieces)
        whole = self.new(kind, shape.channels, shape, total_range(piece.range for piece in pieces))
        first = 0
        for piece in pieces:
            span = self.span(shape, piece.channels, piece.stride, whole.stride)
            self.to.call('bmx_copy_value_result', span, piece, whole.part(first, first + piece.channels), value=piece.kind, result=kind)
            first += piece.channels
        return whole

    def output(self, value, name):
        """Copy a value to the parameter `name`, in the order of arrays (channels, height, width).

        Integers are copied as such to outputs of networks with layers of 8-bit integers.
        """
        shape, first, pieces = self.shapes[value], 0, self.values[value]
        kind = common_kind(pieces) if self.facts.has_integers else 'f32'
        kind = 'i16' if kind == 'u8' else kind
        self.outputs.append(Parameter(name, TYPES[kind], shape, *self._scales.get(value, ())))
        buffer = Buffer(name, TYPES[kind], self.outputs[-1].elements, external=True)
        planar = value < self.facts.first and shape.channels > 1
        for piece in pieces:
            stride, channel = (1, self.pixels(shape)) if planar else (piece.stride, 1)
            to = Pointer(buffer, first * self.pixels(shape))
            span = self.span(shape, piece.channels, stride, 1)
            self.to.call('bmx_transpose_value_result', span, piece, channel, to, self.pixels(shape), value=piece.kind, result=kind)
            first += piece.channels

    @staticmethod
    def window(attributes, x, shape):
        """Return a ``bmx_window`` in C, for a window over a map `x`."""
        sizes = [x.height, x.width, shape.height, shape.width]
        names = ('kernel_h', 'kernel_w', 'stride_h', 'stride_w', 'pad_top', 'pad_left', 'dilation_h', 'dilation_w')
        return '{' + ', '.join(map(str, sizes + [attributes.get(name, 1) for name in names])) + '}'

    def pool_window(self, attributes, x, shape):
        """Return a pointer in C to the window of a layer that has no other constants."""
        return self.to.structure('pool', 'bmx_window', window=self.window(attributes, x, shape)[1:-1])


class Elementwise(Moves):
    """Operations on single elements and moves."""

    def changed(self, number, value, template, constants=(), result='f32'):
        """Apply a kernel to each piece of a value, in place if possible.

        Parameters
        ----------
        constants : tuple of (str, numpy.ndarray)
            Arrays with a float for each channel, which follow the input in the call.
        result : {'f32', None}
            Kind of the result; None for the kind of the piece, whose range it keeps.
        """
        pieces, first, results = self.pieces(value), 0, []
        names = [self.to.array(name, numbers.astype('<f4'), 'float') for name, numbers in constants]
        shape = self.shapes[value]
        for piece in pieces:
            kind, range = result or piece.kind, None if result else piece.range
            if piece.kind == kind and self.is_free_after(piece, number, pieces):
                to = with_range(piece, range)
            else:
                to = self.new(kind, piece.channels, shape, range)
            span = self.span(shape, piece.channels, piece.stride, to.stride)
            offsets = [f'{name} + {first}' if first else name for name in names]
            self.to.call(template, span, piece, *offsets, to, **{'signed' if template.endswith('_signed') else 'value': piece.kind})
            results.append(to)
            first += piece.channels
        return results

    @FORMS.of('affine')
    def affine(self, number, operation, _):
        if number in self.facts.pixels:
            return self.values[0]
        if self.facts.is_deferred(number):
            return None
        scale = self.facts.common_scale(number) if self.facts.has_integers else None
        if scale and all(piece.range and piece.kind != 'f32' for piece in self.pieces(operation.inputs[0])):
            self._scales[self.facts.first + number] = scale
            return self.pieces(operation.inputs[0])
        return self.changed(number, operation.inputs[0], 'bmx_affine_value', self.scale_and_shift(operation))

    def scale_and_shift(self, operation):
        """Return the constants of an affine operation, with what is fused of the convolution before it: pairs of a name and an array."""
        scale, shift = operation.arrays['scale'], operation.arrays['shift']
        before = operation.inputs[0] - self.facts.first
        if before >= 0 and self.facts.is_fused(before):
            convolution = self.program.operations[before]
            bias = bias_of(convolution)
            shift = shift if bias is None else shift + bias * scale
            scale = scale * convolution.arrays['scale'] if convolution.row.weight_levels else scale
        return ('scale', scale), ('shift', shift)

    @FORMS.of('relu')
    def relu(self, number, operation, _):
        (value,) = operation.inputs
        if self._is_positive(value):
            return self.pieces(value)
        ranges = [piece.range for piece in self.pieces(value)]
        pieces = self.changed(number, value, 'bmx_relu_signed', result=None)
        return [with_range(piece, range and (max(range[0], 0), max(range[1], 0))) for piece, range in zip(pieces, ranges)]

    @FORMS.of('abs')
    def abs(self, number, operation, _):
        (value,) = operation.inputs
        if self._is_positive(value):
            return self.pieces(value)
        ranges = [piece.range for piece in self.pieces(value)]
        pieces = self.changed(number, value, 'bmx_abs_signed', result=None)
        return [with_range(piece, range and (0, max(map(abs, range)))) for piece, range in zip(pieces, ranges)]

    def _is_positive(self, value):
        """Return whether a value has no negative numbers, as bytes never have."""
        return all(piece.range and piece.range[0] >= 0 for piece in self.pieces(value))

    def elementwise(self, number, operation, _):
        """Call the kernel of an operation on elements and constants of their channels."""
        constants = tuple((name, operation.arrays[name]) for name in operation.row.arrays)
        return self.changed(number, operation.inputs[0], f'bmx_{operation.name}_value', constants)

    @FORMS.of('add')
    def add(self, number, operation, shape):
        return self.combined(number, operation, shape, lambda x, y: (x[0] + y[0], x[1] + y[1]))

    @FORMS.of('maximum')
    def maximum(self, number, operation, shape):
        return self.combined(number, operation, shape, lambda x, y: (max(x[0], y[0]), max(x[1], y[1])))

    def combined(self, number, operation, shape, range_of=lambda x, y: None):
        """Call the kernel of an operation on the elements of two values of equal shape, in place of one of them if possible.

        `range_of` returns the range of the result for the ranges of the operands; None for floats.
        """
        left, right = (self.pieces(value) for value in operation.inputs)
        results = []
        for x, y in aligned(left, right):
            range = None if None in (x.range, y.range) else range_of(x.range, y.range)
            kind = kind_of(range)
            if not self._can_hold(number, x, kind, left + right):
                x, y = y, x
            base = x if self._can_hold(number, x, kind, left + right) else self.copy(x, kind, shape)
            span = self.span(shape, y.channels, y.stride, base.stride)
            self.to.call(f'bmx_{operation.name}_value_result', span, y, base, value=y.kind, result=kind)
            results.append(with_range(base, range))
        return results

    def _can_hold(self, number, piece, kind, pieces):
        """Return whether the result of a combination can be written over a piece: pieces of aligned pairs may share a buffer."""
        owners = [other for other in pieces if other.buffer is piece.buffer]
        return piece.kind == kind and self.is_free_after(piece, number, owners[:1]) and len(owners) == 1

    @FORMS.of('multiply')
    def multiply(self, number, operation, shape):
        x, y = operation.inputs
        factor = self.shapes[y]
        results = self._writable(number, x, self.pieces(y))
        factors = self.pieces(y) if factor.channels == shape.channels else self.pieces(y) * len(results)
        pairs = aligned(results, factors) if factor.channels == shape.channels else list(zip(results, factors))
        for piece, other in pairs:
            row = other.stride * factor.width if factor.height > 1 else 0
            column = other.stride if factor.width > 1 else 0
            span = self.span(shape, piece.channels, 0, piece.stride)
            steps = (row, column, int(factor.channels > 1))
            self.to.call('bmx_multiply_value', span, shape.width, other, *steps, piece, value=other.kind)
        return results

    @FORMS.of('scale_map')
    def scale_map(self, number, operation, shape):
        return self.with_map(number, operation, shape, 'bmx_multiply_value', operation.arrays['factor'])

    @FORMS.of('shift_map')
    def shift_map(self, number, operation, shape):
        return self.with_map(number, operation, shape, 'bmx_shift_value', operation.arrays['summand'])

    def with_map(self, number, operation, shape, template, constants):
        """Combine a value with constants of shape (channels or 1, height or 1, width or 1)."""
        results, first = self._writable(number, operation.inputs[0], []), 0
        channels, height, width = constants.shape
        name = self.to.array('map', constants.transpose(1, 2, 0).astype('<f4'), 'float')
        steps = (channels * width if height > 1 else 0, channels if width > 1 else 0, int(channels > 1))
        for piece in results:
            span = self.span(shape, piece.channels, 0, piece.stride)
            self.to.call(template, span, shape.width, f'{name} + {first if channels > 1 else 0}', *steps, piece, value='f32')
            first += piece.channels
        return results

    def _writable(self, number, value, others):
        """Return the pieces of a value as floats that may be overwritten, copied where necessary."""
        pieces = self.pieces(value)
        return [
            piece
            if piece.kind == 'f32' and self.is_free_after(piece, number, pieces + others)
            else self.copy(with_range(piece, None), 'f32', self.shapes[value])
            for piece in pieces
        ]

    # --- moves

    @FORMS.of('concat')
    def concat(self, _, operation, shape):
        if shape.kind == BITS_KIND:
            result, first = self._cleared(shape), 0
            for value in operation.inputs:
                self._copy_bits(shape, self.values[value], 0, result, first, self.values[value].channels)
                first += self.values[value].channels
            return result
        return [piece for value in operation.inputs for piece in self.pieces(value)]

    @FORMS.of('slice')
    def slice(self, _, operation, shape):
        begin, end = operation.attributes['begin'], operation.attributes['end']
        (value,) = operation.inputs
        if shape.kind == BITS_KIND:
            result = self._cleared(shape)
            self._copy_bits(shape, self.values[value], begin, result, 0, end - begin)
            return result
        return slice_of(self.pieces(value), begin, end)

    @FORMS.of('shuffle')
    def shuffle(self, _, operation, shape):
        groups, first = operation.attributes['groups'], 0
        (value,) = operation.inputs
        if shape.kind == BITS_KIND:
            result, length = self._cleared(shape), shape.channels // groups
            for group in range(groups):
                self._copy_bits(shape, self.values[value], group * length, result, group, length, groups)
            return result
        pieces = self.pieces(value)
        kind = common_kind(pieces)
        result = self.new(kind, shape.channels, shape, total_range(piece.range for piece in pieces))
        for piece in pieces:
            span = self.span(shape, piece.channels, piece.stride, result.stride)
            order = (shape.channels, groups, first)
            self.to.call('bmx_shuffle_value_result', span, *order, piece, result, value=piece.kind, result=kind)
            first += piece.channels
        return [result]

    @FORMS.of('flatten')
    def flatten(self, number, operation, shape):
        (value,) = operation.inputs
        x = self.shapes[value]
        if x.kind == BITS_KIND:
            if self.pixels(x) == 1:
                return self.values[value]
            result = self._cleared(shape)
            self.to.call('bmx_flatten_bits', self.pixels(x), x.channels, self.values[value], result)
            return result
        pieces = self.pieces(value)
        if self.facts.is_view(number):
            return pieces
        kind = common_kind(pieces)
        result, first = self.new(kind, shape.channels, shape, total_range(piece.range for piece in pieces)), 0
        for piece in pieces:
            to = result.part(first * self.pixels(x), shape.channels)
            span = self.span(x, piece.channels, piece.stride, 1)
            self.to.call('bmx_transpose_value_result', span, piece, 1, to, self.pixels(x), value=piece.kind, result=kind)
            first += piece.channels
        return [result]

    @FORMS.of('unflatten')
    def unflatten(self, _, operation, shape):
        (value,) = operation.inputs
        return self.values[value] if shape.kind == BITS_KIND else self.pieces(value)

    @FORMS.of('expand')
    def expand(self, _, operation, shape):
        low = operation.attributes['low']
        bits, result = self.values[operation.inputs[0]], self.new('i16', shape.channels, shape, (low, 1))
        self.to.call('bmx_expand', self.span(shape, shape.channels, bits.words, result.stride), bits, low, result)
        return [result]

    def _cleared(self, shape, groups=1):
        result = self.new_bits(shape.channels, shape, groups)
        self.to.call('bmx_clear_bits', result.buffer.elements, result)
        return result

    def _copy_bits(self, shape, bits, first, result, to, channels, step=1):
        self.to.call('bmx_copy_bits', self.span(shape, channels, bits.words, result.words), bits, first, result, to, step)
