"""The operators of QONNX and FINN, replaced by operators of ONNX that compute the same: quantizers, and layers with the channels last.

They are defined in https://github.com/fastmachinelearning/qonnx, docs/qonnx-custom-ops, and computed by its `qonnx.custom_op.general`.
Their files declare old versions of ONNX's operators, in which roundings do not exist, and store zero points and limits as integers.
The oldest have quantizers without a domain, or with a shorter one.
"""

import numpy as np

from ...errors import UserError, last_line, printable
from .forms import constants

_LAST = 'qonnx.custom_op.channels_last'
DOMAINS = ('qonnx.custom_op.general', 'onnx.brevitas', 'finn.custom_op.general', 'finn', 'qonnx', _LAST)
_QUANTIZERS = ('BipolarQuant', 'Quant', 'IntQuant', 'Trunc', 'MultiThreshold')
_LAYERS = ('Conv', 'MaxPool', 'BatchNormalization')  # operators of ONNX that may have the channels last
_OPSET = 13  # of ONNX's operators, to which older models are converted
_MAX_THRESHOLDS = 15  # one less than the levels that become bit planes
_ROUNDINGS = ('ROUND', 'HALF_EVEN', 'FLOOR', 'CEIL', 'UP', 'DOWN', 'HALF_UP', 'HALF_DOWN')
_LAYOUTS = {2: 'NC', 3: 'NWC', 4: 'NCHW'}  # of MultiThreshold, where it does not name one


def is_quantizer(node):
    """Return whether a node is of an operator of QONNX."""
    return node.domain in DOMAINS or not node.domain and node.op_type in _QUANTIZERS


def without_quantizers(onnx, proto, path):
    """Return a model with operators of ONNX in place of QONNX.

    Raises
    ------
    UserError
        If one of them is not supported, or the model cannot be converted to operators of a later version.
    """
    del proto.graph.quantization_annotation[:]
    for node in proto.graph.node:
        if is_quantizer(node):
            node.domain = node.domain or DOMAINS[0]
    missing = {node.domain for node in proto.graph.node} - {entry.domain for entry in proto.opset_import} - {'', 'ai.onnx'}
    proto.opset_import.extend(onnx.helper.make_opsetid(domain, 1) for domain in sorted(missing))
    version = next((entry.version for entry in proto.opset_import if entry.domain in ('', 'ai.onnx')), 0)
    if version < _OPSET:
        try:
            proto = onnx.version_converter.convert_version(proto, _OPSET)
        except Exception as error:  # of C++
            raise UserError(f'{path} cannot be converted to version {_OPSET} of the operators of ONNX: {last_line(error)}') from error
    nodes, ranks = list(proto.graph.node), _ranks(onnx, proto)
    del proto.graph.node[:]
    known = constants(onnx, proto)
    for number, node in enumerate(nodes):
        if not is_quantizer(node):
            proto.graph.node.append(node)
            continue
        _Replacement(onnx, proto, node, f'{node.output[0]}_q{number}', path).add(known, ranks)
    kept = [entry for entry in proto.opset_import if entry.domain not in DOMAINS]
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    return proto


def _ranks(onnx, proto):
    """Return the number of axes of values by name, as far as it is known. A quantizer has the shape of its first input."""
    same = onnx.ModelProto()
    same.CopyFrom(proto)
    for node in same.graph.node:
        if is_quantizer(node):
            node.CopyFrom(onnx.helper.make_node('Identity', node.input[:1], node.output))
    try:
        graph = onnx.shape_inference.infer_shapes(same).graph
    except Exception:  # of C++; without ranks, a quantizer that needs one is refused
        return {}
    values = (*graph.input, *graph.value_info, *graph.output)
    ranks = {value.name: len(value.type.tensor_type.shape.dim) for value in values if value.type.tensor_type.HasField('shape')}
    return {**ranks, **{tensor.name: len(tensor.dims) for tensor in graph.initializer}}


class _Replacement:
    """The nodes that replace one operator of QONNX."""

    def __init__(self, onnx, proto, node, prefix, path):
        self._onnx, self._proto, self._node, self._prefix, self._count = onnx, proto, node, prefix, 0
        self._where = f'{path}: node {node.name} ({node.op_type})'
        self._attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}

    def add(self, known, ranks):
        """Add the nodes; `known` has the constants by name, and `ranks` the number of axes of values."""
        if self._node.domain == _LAST:
            self._channels_last(ranks)
        else:
            self._quantizer(known, ranks)
        self._proto.graph.node[-1].output[0] = self._node.output[0]

    def _channels_last(self, ranks):
        """Add the same operator of ONNX between transpositions. Weights have the channels last, too."""
        kind, kernel = self._node.op_type, self._attributes.get('kernel_shape')
        rank = len(kernel) + 2 if kernel else ranks.get(self._node.input[0], 0)
        if kind not in _LAYERS:
            raise UserError(f'{self._where} is of an operator with the channels last that is not supported; {", ".join(_LAYERS)} are')
        if rank < 2:
            raise UserError(f'{self._where} does not say how many axes its input has')
        to_second, to_last = [0, rank - 1, *range(1, rank - 1)], [0, *range(2, rank), 1]
        moved = 2 if kind == 'Conv' else 1
        inputs = [self._op('Transpose', [name], perm=to_second) for name in self._node.input[:moved]]
        found = self._op(kind, [*inputs, *self._node.input[moved:]], self._node.name, **self._attributes)
        self._op('Transpose', [found], perm=to_last)

    def _quantizer(self, known, ranks):
        kinds = {
            'BipolarQuant': ((2,), self._bipolar),
            'Quant': ((4,), self._quant),
            'IntQuant': ((4,), self._quant),
            'Trunc': ((5, 6), self._trunc),
            'MultiThreshold': ((2,), lambda x, thresholds: self._multi_threshold(x, thresholds, known, ranks)),
            'DebugMarker': ((1,), lambda x: self._op('Identity', [x])),
        }
        counts, compute = kinds.get(self._node.op_type, ((), None))
        if compute is None:
            raise UserError(f'{self._where} is of an operator of QONNX that is not supported; {", ".join(_QUANTIZERS)} are')
        if len(self._node.input) not in counts:
            raise UserError(f'{self._where} has {len(self._node.input)} inputs, not {" or ".join(map(str, counts))}')
        self._known = known
        compute(self._node.input[0], *map(self._as_float32, self._node.input[1:]))

    def _bipolar(self, x, scale):
        return self._op('Mul', [self._signs(x), scale])

    def _quant(self, x, scale, zero_point, bits):
        width, offset = self._bits(bits), self._known.get(zero_point)
        shifted = offset is None or offset.any()
        scaled = self._op('Div', [x, scale])
        if shifted:
            scaled = self._op('Add', [scaled, zero_point])
        if width == 1 and self._attributes.get('signed', 1):
            levels = self._signs(scaled)
        else:
            # it rounds before it clips; a limit is an integer, so that the order does not matter except for its cost
            levels = self._clipped(self._rounded(scaled, 'ROUND'), width)
        if shifted:
            levels = self._op('Sub', [levels, zero_point])
        return self._op('Mul', [levels, scale])

    def _trunc(self, x, scale, zero_point, bits, *rest):
        """Add the truncation of integers to their upper bits: in the first version by the difference of bits, later of scales."""
        y = self._op('Round', [self._op('Add', [self._op('Div', [x, scale]), zero_point])])
        if len(rest) == 1:
            step = self._constant(2.0 ** (self._bits(bits) - self._bits(rest[0])))
            y = self._rounded(self._op('Div', [y, step]), 'FLOOR')
            return self._op('Mul', [self._op('Sub', [y, zero_point]), scale])
        before, after = self._number(scale, 'scale'), self._number(rest[0], 'scale')
        if not (0 < before < np.inf and 0 < after < np.inf):
            raise UserError(f'{self._where} truncates from a scale of {before:g} to {after:g}; positive numbers are supported')
        step = self._constant(2.0 ** np.round(np.log2(after / before)))
        y = self._rounded(self._clipped(self._op('Div', [y, step]), self._bits(rest[1])), 'FLOOR')
        return self._op('Mul', [self._op('Sub', [y, self._op('Div', [zero_point, step])]), rest[0]])

    def _multi_threshold(self, x, thresholds, known, ranks):
        """Add the number of thresholds of a channel that are not above x, times a scale, plus a bias."""
        array, source = known.get(self._node.input[1]), self._node.input[0]
        layout = self._text('data_layout', '') or _LAYOUTS.get(ranks.get(source, 0), '')
        if array is None or array.ndim != 2 or not array.size:
            raise UserError(f'{self._where} has thresholds that are not a constant (channels, n)')
        if array.shape[1] > _MAX_THRESHOLDS:
            raise UserError(f'{self._where} compares with {array.shape[1]} thresholds; up to {_MAX_THRESHOLDS} (4 bits) are supported')
        if len(array) > 1 and 'C' not in layout:
            raise UserError(f'{self._where} does not say which axis has the channels: set its data_layout')
        shape = [len(array) if axis == 'C' else 1 for axis in layout] if len(array) > 1 else []
        counted = []
        for column in array.T.astype(np.float32):
            at_least = self._op('Not', [self._op('Less', [x, self._constant(column.reshape(shape))])])
            counted.append(self._op('Cast', [at_least], to=self._onnx.TensorProto.FLOAT))
        count = self._op('Sum', counted) if len(counted) > 1 else counted[0]
        scale, bias = (self._attributes.get(name, default) for name, default in (('out_scale', 1.0), ('out_bias', 0.0)))
        if not isinstance(scale, float) or not isinstance(bias, float):
            raise UserError(f'{self._where} has an out_scale or out_bias that is not a number')
        return self._op('Add', [self._op('Mul', [count, self._constant(scale)]), self._constant(bias)])

    def _signs(self, x):
        zero, one, minus = (self._constant(value) for value in (0.0, 1.0, -1.0))
        return self._op('Where', [self._op('Not', [self._op('Less', [x, zero])]), one, minus])

    def _clipped(self, x, width):
        signed, narrow = bool(self._attributes.get('signed', 1)), bool(self._attributes.get('narrow', 0))
        low = -(2.0 ** (width - 1)) + narrow if signed else 0.0
        high = 2.0 ** (width - 1) - 1 if signed else 2.0**width - 1 - narrow
        return self._op('Clip', [x, self._constant(low), self._constant(high)])

    def _rounded(self, x, default):
        mode = self._text('rounding_mode', default).upper()
        if mode not in _ROUNDINGS:
            raise UserError(f'{self._where} rounds by {printable(mode)}; {", ".join(_ROUNDINGS)} are supported')
        simple = {'ROUND': 'Round', 'HALF_EVEN': 'Round', 'FLOOR': 'Floor', 'CEIL': 'Ceil'}
        if mode in simple:
            return self._op(simple[mode], [x])
        magnitude = self._op('Abs', [x])  # the others round it, and keep the sign
        if mode in ('HALF_UP', 'HALF_DOWN'):
            magnitude = self._op('Add', [magnitude, self._constant(0.5 if mode == 'HALF_UP' else -0.5)])
        return self._op('Mul', [self._op('Sign', [x]), self._op('Ceil' if mode in ('UP', 'HALF_DOWN') else 'Floor', [magnitude])])

    def _text(self, name, default):
        value = self._attributes.get(name, default)
        return value.decode(errors='replace') if isinstance(value, bytes) else str(value)

    def _bits(self, name):
        width = self._number(name, 'number of bits')
        if not 1 <= width <= 32:
            raise UserError(f'{self._where} quantizes to {width:g} bits; 1 to 32 are supported')
        return width

    def _number(self, name, what):
        array = self._known.get(name)
        if array is None or array.size != 1:
            raise UserError(f'{self._where} has a {what} that is not a constant, or not one number')
        return float(array.reshape(-1)[0])

    def _as_float32(self, name):
        """Return the name of an input in float32, which files may have in another type."""
        array = self._known.get(name)
        if array is None:
            return self._op('Cast', [name], to=self._onnx.TensorProto.FLOAT)
        if array.dtype == np.float32:
            return name
        converted = self._constant(array)
        self._known[converted] = array
        return converted

    def _constant(self, array):
        name = self._new()
        self._proto.graph.initializer.append(self._onnx.numpy_helper.from_array(np.asarray(array, np.float32, order='C'), name))
        return name

    def _op(self, kind, inputs, name='', **attributes):
        output = self._new()
        self._proto.graph.node.append(self._onnx.helper.make_node(kind, inputs, [output], name=name or f'{output}_node', **attributes))
        return output

    def _new(self):
        self._count += 1
        return f'{self._prefix}_{self._count}'
