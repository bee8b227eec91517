"""Export of packed programs to QONNX, for FINN and hls4ml: signs are `BipolarQuant`, as are binary weights, all else operators of ONNX.

Numbers of thresholds are `MultiThreshold`, and weights of several bits `Quant`.
https://github.com/fastmachinelearning/qonnx, docs/qonnx-custom-ops, defines it. Where the form of `export` has bits 0 and 1, values are -1
and 1 here, as in a network in training: binary layers multiply signs by signs. A threshold t is the sign of x - t and, where it is flipped,
of t' - x, with the next number t' below t: a difference of two floating-point numbers has the right sign, so bits are equal. Shapes are
fixed, batch 1, and stored for each value, as FINN needs them.
"""

import collections

import numpy as np

from ...errors import UserError
from ..program.by_operation import ByOperation
from ..program.layer_weights import expanded, int8_weight_of
from ..program.operation_table import MAX_BYTE, MAX_SUM, OFFSET_SHIFT
from . import qonnx
from .export import ModelBuilder, windows_of

_FORMS, _FLAT_FORMS = ByOperation(), ByOperation()  # methods of `_QonnxBuilder`


def to_qonnx(program, input_names, output_order=None):
    """Convert a program to a model of QONNX.

    Parameters
    ----------
    program, input_names, output_order
        As of `export.to_onnx`.

    Returns
    -------
    onnx.ModelProto
        Inputs are float32 (1, channels, height, width) or (1, channels).

    Raises
    ------
    UserError
        As of `export.to_onnx`, and for layers of 8-bit integers.
    """
    try:
        import onnx
    except ImportError as error:
        raise UserError('a QONNX model is written by the package onnx, which is not installed: pip install onnx') from error
    largest = _largest_levels(program)
    integers = [
        operation.name
        for operation in program.operations
        if operation.row.is_integer_layer and not _is_sum_of_levels(operation, largest.get(operation.inputs[0]))
    ]
    if integers:
        raise UserError(
            f'the network has layers of 8-bit integers ({integers[0]}), which QONNX has no exact form for: pack it without --int8, or '
            'export it without --qonnx'
        )
    return _QonnxBuilder(onnx, program).build(input_names, output_order)


class _QonnxBuilder(ModelBuilder):
    """Builder of a model in which bits are -1 and 1."""

    forms = collections.ChainMap(_FORMS, ModelBuilder.forms)
    flat_forms = _FLAT_FORMS
    domains = (qonnx.DOMAINS[0],)

    def build(self, input_names, output_order):
        model = super().build(input_names, output_order)
        computed = self._onnx.ModelProto()
        computed.CopyFrom(model)
        inferred = self._onnx.shape_inference.infer_shapes(qonnx.without_quantizers(self._onnx, computed, 'the model'), data_prop=True)
        kept = {name for node in model.graph.node for name in node.output} - {output.name for output in model.graph.output}
        model.graph.value_info.extend(value for value in inferred.graph.value_info if value.name in kept)
        return model

    def _is_recognized(self, operation):
        return operation.row.recognized or operation.name in _FORMS

    def _sizes(self, name, value):
        return [1, value.channels] if value.flat else [1, value.channels, value.height, value.width]

    def _sizes_like(self, value, x, channels=None, scales=(1, 1)):
        sizes = [value.height * scales[0], value.width * scales[1]]
        return self._constant('sizes', np.array([1, channels or value.channels, *sizes]))

    def _add(self, operator, *inputs, **attributes):
        """Add a node, with each input once: the cleanup of qonnx renames only the first of equal inputs of a node."""
        different = [super(_QonnxBuilder, self)._add('Identity', x) if x in inputs[:number] else x for number, x in enumerate(inputs)]
        return super()._add(operator, *different, **attributes)

    def _bipolar(self, x):
        return self._add('BipolarQuant', x, self._constant('one', np.float32(1)), domain=self.domains[0])

    @_FORMS.of('binary_conv')
    def binary_conv(self, _, s, groups, weight, out_channels, pad_value, offset, planes, **geometry):
        signs, attributes = _signs(weight, planes), windows_of(geometry)
        if pad_value and any(attributes['pads']):
            top, left, bottom, right = attributes['pads']
            attributes['pads'] = [0] * 4
            pads = self._constant('pads', np.array([0, 0, top, left, 0, 0, bottom, right]))
            s = self._add('Pad', s, pads, self._constant('border', np.float32(pad_value)))
        y = self._add('Conv', s, self._bipolar(self._constant('weight', signs)), group=groups, **attributes)
        return self._affine(y, 0.5, signs[0].size / 2) if offset else y

    @_FLAT_FORMS.of('binary_conv')
    def binary_dense(self, value, s, groups, weight, offset, planes, **attributes):
        if groups > 1:  # a matrix with zeros would not be of signs
            return self._on_maps(self.binary_conv, value, s, groups=groups, weight=weight, offset=offset, planes=planes, **attributes)
        signs = _signs(weight, planes)
        y = self._add('MatMul', s, self._bipolar(self._constant('weight', signs[:, :, 0, 0].T)))
        return self._affine(y, 0.5, signs[0].size / 2) if offset else y

    @_FLAT_FORMS.of('conv')
    def dense(self, value, x, groups, weight, has_bias, bias=None, **attributes):
        if groups > 1:
            return self._on_maps(self.conv, value, x, groups=groups, weight=weight, has_bias=has_bias, bias=bias, **attributes)
        y = self._add('MatMul', x, self._floats('weight', weight[:, :, 0, 0].T))
        return self._add('Add', y, self._constant('bias', bias)) if has_bias else y

    @_FORMS.of('level_int8_conv')
    def level_int8_conv(self, value, x, groups, codes, levels, pad, offset, out_channels, kernel_h, kernel_w, **others):
        weight = expanded((out_channels, value.channels // groups, kernel_h, kernel_w), codes, levels).astype(np.float32)
        attributes = windows_of({'kernel_h': kernel_h, 'kernel_w': kernel_w, **others})
        if pad[0] and any(attributes['pads']):
            top, left, bottom, right = attributes['pads']
            attributes['pads'] = [0] * 4
            pads = self._constant('pads', np.array([0, 0, top, left, 0, 0, bottom, right]))
            x = self._add('Pad', x, pads, self._constant('border', np.float32(pad[0])))
        bits = int(np.abs(levels.astype(np.int64) * 2 + 1).max()).bit_length()  # of two's complement
        constants = [self._constant(name, np.float32(number)) for name, number in (('unit', 1), ('zero', 0), ('bits', bits))]
        weight = self._add(
            'Quant', self._constant('weight', weight), *constants, domain=self.domains[0], signed=1, narrow=0, rounding_mode='ROUND'
        )
        y = self._add('Conv', x, weight, group=groups, **attributes)
        if not offset.any():
            return y
        return self._add('Add', y, self._constant('offset', (offset / (1 << OFFSET_SHIFT)).astype(np.float32).reshape(-1, 1, 1)))

    @_FORMS.of('threshold')
    def threshold(self, value, x, threshold, flip):
        x, numbers = self._compared(value, x, threshold, flip)
        return self._bipolar(self._add('Add', x, self._of_channels('threshold', -numbers, value)))

    @_FORMS.of('multi_threshold')
    def multi_threshold(self, value, x, thresholds, threshold, flip):
        x, numbers = self._compared(value, x, threshold, flip)
        limits = self._constant('thresholds', np.sort(numbers.T, axis=1))
        names = {'out_dtype': f'UINT{thresholds.bit_length()}', 'data_layout': 'NC' if value.flat else 'NCHW'}
        return self._add('MultiThreshold', x, limits, domain=self.domains[0], **names)

    def _compared(self, value, x, threshold, flip):
        """Return a value, turned around in channels that flip, and the thresholds (..., channels) that it reaches where they hold."""
        if self._reads_integers():  # tools expect them to be compared with integers
            threshold = np.ceil(threshold)
            below = threshold - 1
        else:
            below = np.nextafter(threshold, np.float32(-np.inf))
        limit = np.finfo(np.float32).max
        numbers = np.where(flip, below, threshold).clip(-limit, limit).astype(np.float32)
        if not flip.any():
            return x, numbers
        directions = np.where(flip, -1, 1).astype(np.float32)
        return self._add('Mul', x, self._of_channels('direction', directions, value)), numbers * directions

    def _reads_integers(self):
        """Return whether the operation reads sums of integers; halves of sums with zeros for padding are not integers."""
        number = self._operation.inputs[0] - len(self._program.inputs)
        source = self._program.operations[number] if number >= 0 else None
        if source is None or source.row.products != 'binary':
            return source is not None and source.row.products == 'int8'
        return not source.attributes['offset'] or source.attributes['pad_value'] != 0

    @_FORMS.of('expand')
    def expand(self, _, s, low):
        return s if low == -1 else self._affine(s, 0.5, 0.5)


def _largest_levels(program):
    """Return the largest number of each value of numbers of thresholds, or of such numbers that were moved or are maxima."""
    found = {}
    for number, operation in enumerate(program.operations, len(program.inputs)):
        sources = [found.get(source) for source in operation.inputs]
        if operation.row.range == 'counts':
            found[number] = operation.attributes['thresholds']
        elif (operation.row.moves or operation.row.reduces == 'maximum') and None not in sources:
            found[number] = max(sources)
    return found


def _is_sum_of_levels(operation, largest):
    """Return whether an 8-bit layer that reads integers 0 to `largest`, or None, is a sum of products, exact in float32 and unlimited."""
    attributes, arrays = operation.attributes, operation.arrays
    if largest is None or not operation.row.weight_levels or np.ptp(arrays['pad']) or not 0 <= arrays['pad'][0] <= MAX_BYTE:
        return False
    if (arrays['multiplier'] != 1 << attributes['shift']).any() or (arrays['offset'] % (1 << OFFSET_SHIFT)).any():
        return False
    weight = int8_weight_of(operation).astype(np.int64).reshape(attributes['out_channels'], -1)
    magnitudes = np.abs(weight).sum(axis=1) * max(largest, arrays['pad'][0]) + np.abs(arrays['offset'] >> OFFSET_SHIFT)
    limits = -attributes['result_min'], attributes['result_max']
    return bool(magnitudes.max() <= min(*limits, MAX_SUM))


def _signs(weight, planes):
    """Return the weights of a binary layer as -1 and 1, float32 (filters, channels, height, width)."""
    return np.where(np.tile(weight, planes), 1, -1).astype(np.float32).transpose(0, 3, 1, 2)
