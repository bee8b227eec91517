"""Export of packed programs to ONNX, for runtimes without binary operators: the same signs and sums, computed in float32.

Every value is a float32 tensor, bits are 0 and 1. With b the bits, w in {-1, +1} the weights, n their number per output and zero
padding, which represents -1,

    h = conv(2b - 1, w) = conv(b, 2w) - sum(w)        (h + n) / 2 = conv(b, w) + (n - sum(w)) / 2

so a binary layer is one convolution. All sums are integers, exact in float32. A binary weight is stored in one byte (`Cast` converts it to
float when a runtime loads the model), and so is the number of a weight of few levels, the weights of other float layers as in the program.
"""

import dataclasses
from typing import Callable, Mapping

import numpy as np

from ..._version import __version__
from ...errors import UserError
from ..program import reference
from ..program.by_operation import ByOperation
from ..program.layer_weights import expanded, level_numbers
from ..program.operation_table import MAX_BYTE, MAX_INT16, OFFSET_SHIFT
from ..program.operations import BITS_KIND, PADDING
from . import qonnx
from .stored_programs import store_program

OPSET = 13
IR_VERSION = 8  # supported by ONNX 1.10 and newer
TOLERANCE = 2e-5  # relative to the sum of magnitudes: the rounding error of about 10^5 summands in any order


def to_onnx(program, input_names, output_order=None):
    """Convert a program to an ONNX model.

    Parameters
    ----------
    program : bmx_melius.deployment.program.program.Program
    input_names : list of str
        Name of each input.
    output_order : list of int or None
        The number of the program output for each output of the model; None for all in order.

    Returns
    -------
    onnx.ModelProto
        Inputs are float32 (batch, channels, height, width) or (batch, channels). The batch is dynamic, and so are height and width unless
        the network fixes them. Outputs are ``output0``, ``output1`` ..., with a trailing underscore if an input has that name.

    Raises
    ------
    UserError
        If the package onnx is not installed, for an operation without a form in ONNX, or for average pooling with padding that is
        counted and windows beyond the padded map.
    """
    try:
        import onnx
    except ImportError as error:
        raise UserError('an ONNX model is written by the package onnx, which is not installed: pip install onnx') from error
    return ModelBuilder(onnx, program).build(input_names, output_order)


def verify(model, program, inputs):
    """Run a model in ONNX Runtime and compare each operation with the NumPy reference, evaluated on the same inputs of that operation.

    So the rounding of one layer, which may change a sign next to a threshold, neither hides nor causes a difference in another.

    Parameters
    ----------
    model : onnx.ModelProto
        The result of `to_onnx` or `qonnx_export.to_qonnx`.
    program : bmx_melius.deployment.program.program.Program
    inputs : list of numpy.ndarray
        One array for each input of the program.

    Returns
    -------
    float
        The largest difference of an element, relative to the sum of the magnitudes of its summands. Bits and integers are equal.

    Raises
    ------
    UserError
        If the results of an operation differ; the message names it.
    ImportError
        If ONNX Runtime is not installed.
    """
    import onnx
    import onnxruntime

    names = value_names(program, [node.name for node in model.graph.input])
    observed = onnx.ModelProto()
    observed.CopyFrom(model)
    if any(map(qonnx.is_quantizer, model.graph.node)):
        observed = qonnx.without_quantizers(onnx, observed, 'the model')
    del observed.graph.output[:]
    observed.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names[len(inputs) :])
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors
    session = onnxruntime.InferenceSession(observed.SerializeToString(), options, providers=['CPUExecutionProvider'])
    values = [*inputs, *session.run(None, dict(zip(names, inputs)))]
    kinds, deviation = program.values(), 0.0
    for number, operation in enumerate(program.operations, len(inputs)):
        given = [values[source] > 0 if kinds[source].kind == BITS_KIND else values[source] for source in operation.inputs]
        expected, found = reference.apply(operation, given).astype(np.float32), values[number]
        if kinds[number].kind == BITS_KIND:
            clear = np.float32(-1 if (found < 0).any() else 0)  # as in models of QONNX, and in others
            expected = np.where(expected > 0, np.float32(1), clear)
        exact = BITS_KIND in (*operation.row.kinds, kinds[number].kind)
        difference = 0.0 if np.array_equal(found, expected) else np.inf if exact else _difference(operation, given, expected, found)
        if not difference <= TOLERANCE:
            raise UserError(f'{names[number]} of the ONNX model gives another result than operation {number - len(inputs)} of the program')
        deviation = max(deviation, difference)
    return deviation


def _difference(operation, given, expected, found):
    """Return the largest difference of an element, relative to the sum of the magnitudes of its summands."""
    positive = dataclasses.replace(operation, arrays={name: np.abs(array) for name, array in operation.arrays.items()})
    magnitude = np.maximum(reference.apply(positive, [np.abs(x) for x in given]), np.finfo(np.float32).tiny)
    if operation.name in _MAGNITUDES:
        magnitude = _MAGNITUDES[operation.name](operation, given[0], magnitude)
    with np.errstate(invalid='ignore'):  # of infinities, which are equal
        return float(np.where(found == expected, 0, np.abs(found - expected) / magnitude).max())


_MAGNITUDES = ByOperation()  # of summands that the operation on magnitudes does not add: (operation, input, that result) -> magnitude


@_MAGNITUDES.of('elu')
def _magnitude_of_elu(elu, _, magnitude):
    """An exponential and 1 are subtracted."""
    return magnitude + np.abs(elu.arrays['slope']).max()


@_MAGNITUDES.of('normalize')
def _magnitude_of_normalization(normalization, x, _):
    """Differences from the mean are divided by at least the root of eps."""
    return np.abs(x).max() / np.sqrt(normalization.arrays['eps'][0]) + 1


def value_names(program, input_names):
    """Return the name of each value of the program in the model."""
    results = (f'{operation.name}{number}' for number, operation in enumerate(program.operations, len(input_names)))
    return [*input_names, *(_free(name, input_names) for name in results)]


def _free(name, taken):
    """Return `name`, with underscores appended until it is not in `taken`."""
    while name in taken:
        name += '_'
    return name


_FORMS = ByOperation()  # methods of `ModelBuilder`
_AROUND_CHANNELS = (('begin', 0), ('end', 1)), (('begin', 2), ('end', 4))  # of the axes of a map


class ModelBuilder:
    """Builder of a model: the nodes and constants added so far.

    Attributes
    ----------
    forms, flat_forms : dict of str to callable
        Methods by operation; the latter for flat values, in place of a form for maps of one position.
    domains : tuple of str
        Of the operators that are not ONNX's.
    """

    forms: 'Mapping[str, Callable]' = _FORMS
    flat_forms: 'Mapping[str, Callable]' = {}
    domains: 'tuple[str, ...]' = ()

    def __init__(self, onnx, program):
        self._onnx, self._program, self._values = onnx, program, program.values()
        self._nodes, self._constants = [], []

    def build(self, input_names, output_order):
        helper, floats = self._onnx.helper, self._onnx.TensorProto.FLOAT
        inputs = []
        self._names, self._taken = value_names(self._program, input_names), set(input_names)
        for name, value in zip(input_names, self._program.inputs):
            inputs.append(helper.make_tensor_value_info(name, floats, self._sizes(name, value)))
        for number, operation in enumerate(self._program.operations, len(inputs)):
            sources = [self._names[source] for source in operation.inputs]
            of_source = self._values[operation.inputs[0]]
            self._label = self._names[number]
            arguments = {**operation.attributes, **operation.arrays}
            self._operation, self._result, convert = operation, self._values[number], self.forms.get(operation.name)
            if convert is None:
                raise UserError(f'{operation.name} (operation {number - len(inputs)}) has no form in ONNX: build the network without it')
            if of_source.flat and operation.name in self.flat_forms:
                y = self.flat_forms[operation.name](self, of_source, *sources, **arguments)
            elif of_source.flat and operation.row.on_maps:  # in ONNX these operators accept only maps
                y = self._on_maps(convert.__get__(self), of_source, *sources, **arguments)
            else:
                y = convert(self, of_source, *sources, **arguments)
            if y in sources:
                self._add('Identity', y)
            self._nodes[-1].output[0] = self._label
        outputs = []
        for index, order in enumerate(range(len(self._program.outputs)) if output_order is None else output_order):
            number = self._program.outputs[order]
            name, value = _free(f'output{index}', self._taken), self._values[number]
            self._nodes.append(helper.make_node('Identity', [self._names[number]], [name]))
            outputs.append(helper.make_tensor_value_info(name, floats, self._sizes(name, value)))
        graph = helper.make_graph(self._nodes, 'network', inputs, outputs, self._constants)
        model = helper.make_model(
            graph,
            producer_name='bmx-melius',
            producer_version=__version__,
            ir_version=IR_VERSION,
            opset_imports=[helper.make_opsetid('', OPSET), *(helper.make_opsetid(domain, 1) for domain in self.domains)],
        )
        self._onnx.checker.check_model(model)
        if not all(map(self._is_recognized, self._program.operations)):
            store_program(model, self._program, range(len(self._program.outputs)) if output_order is None else output_order)
        return model

    def _is_recognized(self, operation):
        """Return whether an import recognizes the operation in what this builder makes of it."""
        return operation.row.recognized and not operation.row.is_integer_layer

    def _on_maps(self, convert, value, x, **arguments):
        """Return what a form for maps returns for a flat value."""
        axes = self._constant('axes', np.array([2, 3]))
        return self._add('Squeeze', convert(value, self._add('Unsqueeze', x, axes), **arguments), axes)

    def _sizes(self, name, value):
        """Return the sizes of an input or output: numbers, and names of open ones."""
        return ['batch', value.channels] if value.flat else ['batch', value.channels, f'{name}_height', f'{name}_width']

    def _sizes_like(self, value, x, channels=None, scales=(1, 1)):
        """Return the sizes of a map as `x`, which is `value`: with other channels, if given, and height and width times `scales`."""
        sizes = self._add('Shape', x)
        if scales != (1, 1):
            sizes = self._add('Mul', sizes, self._constant('scales', np.array([1, 1, *scales])))
        if channels in (None, value.channels):
            return sizes
        batch, size = (self._add('Slice', sizes, *(self._constant(name, np.array([n])) for name, n in ends)) for ends in _AROUND_CHANNELS)
        return self._add('Concat', batch, self._constant('channels', np.array([channels])), size, axis=0)

    def _add(self, operator, *inputs, **attributes):
        """Add a node and return the name of its result."""
        name = _free(f'{self._label}/{operator}{len(self._nodes)}', self._taken)
        self._nodes.append(self._onnx.helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def _constant(self, name, array):
        """Add a constant and return its name."""
        name = _free(f'{self._label}/{name}{len(self._constants)}', self._taken)
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(array, order='C'), name))
        return name

    def _floats(self, name, array):
        """Add a constant that is stored with its dtype and cast to float32; return the name of the result."""
        name = self._constant(name, array)
        return name if array.dtype == np.float32 else self._add('Cast', name, to=self._onnx.TensorProto.FLOAT)

    # --- operations: (`Value` of the first source, names of the sources, attributes and arrays) -> name of the result ---------------------

    @_FORMS.of('conv')
    def conv(self, _, x, groups, weight, out_channels, has_bias, half, bias=None, **geometry):
        constants = [self._floats('weight', weight)] + ([self._constant('bias', bias)] if has_bias else [])
        return self._add('Conv', x, *constants, group=groups, **windows_of(geometry))

    @_FORMS.of('level_conv')
    def level_conv(self, value, x, groups, codes, levels, scale, out_channels, bits, by_position, has_bias, bias=None, **geometry):
        numbers = level_numbers(codes)
        indices = np.arange(numbers.size) % len(levels) * levels.shape[1] + numbers
        shape = (out_channels, value.channels // groups, geometry['kernel_h'], geometry['kernel_w'])
        indices = indices.astype(np.min_scalar_type(indices.max())).reshape(shape)
        indices = self._add('Cast', self._constant('numbers', indices), to=self._onnx.TensorProto.INT32)
        weight = self._add('Gather', self._constant('levels', levels.reshape(-1)), indices)
        y = self._add(
            'Mul', self._add('Conv', x, weight, group=groups, **windows_of(geometry)), self._constant('scale', scale[:, None, None])
        )
        return self._add('Add', y, self._constant('bias', bias[:, None, None])) if has_bias else y

    @_FORMS.of('binary_conv')
    def binary_conv(self, _, b, groups, weight, out_channels, pad_value, offset, planes, **geometry):
        signs = np.where(np.tile(weight, planes), 1, -1).astype(np.int8).transpose(0, 3, 1, 2)
        n, sums = signs[0].size, signs.sum(axis=(1, 2, 3), dtype=np.int64)
        windows = windows_of(geometry)
        if pad_value == 0 and any(windows['pads']):
            s = self._affine(b, 2, -1)
            y = self._add('Conv', s, self._floats('weight', signs), group=groups, **windows)
            return self._affine(y, 0.5, n / 2) if offset else y
        if pad_value == 1 and any(windows['pads']):
            top, left, bottom, right = windows.pop('pads')
            pads = np.array([0, 0, top, left, 0, 0, bottom, right])
            b = self._add('Pad', b, self._constant('pads', pads), self._constant('one', np.float32(1)))
        factor, bias = (1, (n - sums) / 2) if offset else (2, -sums)
        return self._add(
            'Conv',
            b,
            self._floats('weight', signs * np.int8(factor)),
            self._constant('bias', bias.astype(np.float32)),
            group=groups,
            **windows,
        )

    @_FORMS.of('threshold')
    def threshold(self, value, x, threshold, flip):
        y = self._add('GreaterOrEqual', x, self._of_channels('threshold', threshold, value))
        if flip.any():
            y = self._add('Xor', y, self._of_channels('flip', flip, value))
        return self._add('Cast', y, to=self._onnx.TensorProto.FLOAT)

    @_FORMS.of('affine')
    def affine(self, value, x, scale, shift):
        return self._add('Add', self._add('Mul', x, self._of_channels('scale', scale, value)), self._of_channels('shift', shift, value))

    @_FORMS.of('relu')
    def relu(self, _, x):
        return self._add('Relu', x)

    @_FORMS.of('max_pool')
    def max_pool(self, _, x, ceil, **geometry):
        return self._add('MaxPool', x, ceil_mode=ceil, **windows_of(geometry))

    @_FORMS.of('avg_pool')
    def avg_pool(self, _, x, ceil, count_pad, **geometry):
        windows = windows_of(geometry)
        padded = any(windows['pads'])
        if ceil and count_pad and padded:
            raise UserError('average pooling that counts the padding, with windows beyond the padded map, has no equivalent in ONNX')
        return self._add('AveragePool', x, ceil_mode=ceil, count_include_pad=int(count_pad and padded), **windows)

    @_FORMS.of('global_avg_pool')
    def global_avg_pool(self, _, x):
        return self._add('GlobalAveragePool', x)

    @_FORMS.of('add')
    def add(self, _, x, y):
        return self._add('Add', x, y)

    @_FORMS.of('concat')
    def concat(self, _, *inputs):
        return self._add('Concat', *inputs, axis=1)

    @_FORMS.of('slice')
    def slice(self, _, x, begin, end):
        return self._add(
            'Slice', x, *(self._constant(name, np.array([number])) for name, number in (('begin', begin), ('end', end), ('axis', 1)))
        )

    @_FORMS.of('shuffle')
    def shuffle(self, value, x, groups):
        order = np.arange(value.channels).reshape(groups, -1).T.reshape(-1)
        return self._add('Gather', x, self._constant('order', order), axis=1)

    @_FORMS.of('flatten')
    def flatten(self, _, x):
        return self._add('Flatten', x, axis=1)

    @_FORMS.of('expand')
    def expand(self, _, b, low):
        return self._affine(b, 2, -1) if low == -1 else b

    @_FORMS.of('prelu')
    def prelu(self, value, x, slope):
        return self._add('PRelu', x, self._of_channels('slope', slope, value))

    @_FORMS.of('clip')
    def clip(self, value, x, low, high):
        return self._add('Min', self._add('Max', x, self._of_channels('low', low, value)), self._of_channels('high', high, value))

    @_FORMS.of('sigmoid')
    def sigmoid(self, _, x):
        return self._add('Sigmoid', x)

    @_FORMS.of('abs')
    def abs(self, _, x):
        return self._add('Abs', x)

    @_FORMS.of('multiply')
    def multiply(self, _, x, y):
        return self._add('Mul', x, y)

    @_FORMS.of('channel_mean')
    def channel_mean(self, _, x):
        return self._add('ReduceMean', x, axes=[1], keepdims=1)

    @_FORMS.of('scale_map')
    def scale_map(self, value, x, factor, **_):
        return self._add('Mul', x, self._of_positions('factor', factor, value))

    @_FORMS.of('shift_map')
    def shift_map(self, value, x, summand, **_):
        return self._add('Add', x, self._of_positions('summand', summand, value))

    @_FORMS.of('unflatten')
    def unflatten(self, _, x):
        return self._add('Unsqueeze', x, self._constant('axes', np.array([2, 3])))

    @_FORMS.of('elu')
    def elu(self, value, x, slope):
        zero = self._constant('zero', np.float32(0))
        low = self._add('Sub', self._add('Exp', self._add('Min', x, zero)), self._constant('one', np.float32(1)))
        return self._add('Add', self._add('Relu', x), self._add('Mul', low, self._of_channels('slope', slope, value)))

    @_FORMS.of('softplus')
    def softplus(self, _, x):
        return self._add('Softplus', x)

    @_FORMS.of('gelu')
    def gelu(self, _, x):
        share = self._add('Erf', self._add('Mul', x, self._constant('factor', np.float32(0.5**0.5))))
        return self._add('Mul', x, self._affine(share, 0.5, 0.5))

    @_FORMS.of('upsample')
    def upsample(self, value, x, scale_h, scale_w, repeat):
        """Insert axes after height and width, pad or repeat along these, and join them with the axes before."""
        wide = self._add('Unsqueeze', x, self._constant('axes', np.array([3, 5])))
        if repeat:
            wide = self._add('Tile', wide, self._constant('repeats', np.array([1, 1, 1, scale_h, 1, scale_w])))
        else:
            wide = self._add('Pad', wide, self._constant('pads', np.array([0] * 6 + [0, 0, 0, scale_h - 1, 0, scale_w - 1])))
        y = self._add('Reshape', wide, self._sizes_like(value, x, scales=(scale_h, scale_w)))
        for axis, scale in enumerate((scale_h, scale_w), 2):
            if not repeat and scale > 1:
                ends = (self._constant(name, np.array([number])) for name, number in (('begin', 0), ('end', 1 - scale), ('axis', axis)))
                y = self._add('Slice', y, *ends)
        return y

    @_FORMS.of('global_max_pool')
    def global_max_pool(self, _, x):
        return self._add('GlobalMaxPool', x)

    @_FORMS.of('normalize')
    def normalize(self, value, x, groups, by_position, eps):
        parts = self._add('Reshape', x, self._constant('groups', np.array([0, groups, value.channels // groups, -1])))
        axes = [2] if by_position else [2, 3]
        difference = self._add('Sub', parts, self._add('ReduceMean', parts, axes=axes, keepdims=1))
        variance = self._add('ReduceMean', self._add('Mul', difference, difference), axes=axes, keepdims=1)
        deviation = self._add('Sqrt', self._add('Add', variance, self._constant('eps', eps)))
        return self._add('Reshape', self._add('Div', difference, deviation), self._sizes_like(value, x))

    @_FORMS.of('transpose')
    def transpose(self, value, x, height, width):
        rows = self._add('Reshape', x, self._constant('sizes', np.array([0, value.channels, height * width, 1])))
        return self._add('Transpose', rows, perm=[0, 2, 3, 1])

    @_FORMS.of('arrange')
    def arrange(self, value, x, row_length):
        sizes = [0, value.channels, -1, row_length] if row_length else [0, value.channels, 1, -1]
        return self._add('Reshape', x, self._constant('sizes', np.array(sizes)))

    @_FORMS.of('matmul')
    def matmul(self, value, x, y, heads, positions, transposed):
        """Multiply the matrices with the channels as rows: of the result, too."""
        rows = self._add('Reshape', x, self._constant('sizes', np.array([0, heads, value.channels // heads, -1])))
        others = self._add('Reshape', y, self._constant('sizes', np.array([0, heads, -1, positions])))
        others = self._add('Transpose', others, perm=[0, 1, 3, 2]) if transposed else others
        return self._add('Reshape', self._add('MatMul', others, rows), self._sizes_like(value, x, self._result.channels))

    @_FORMS.of('row_matmul')
    def row_matmul(self, value, x, y, heads, positions, transposed):
        """Multiply the matrices of each row likewise, with the rows before the groups of channels."""
        rows = [self._constant('sizes', np.array([0, heads, channels // heads, value.height, -1])) for channels in self._operand_channels()]
        left, right = (self._add('Reshape', *pair) for pair in zip((x, y), rows))
        left = self._add('Transpose', left, perm=[0, 3, 1, 2, 4])
        right = self._add('Transpose', right, perm=[0, 3, 1, 4, 2] if transposed else [0, 3, 1, 2, 4])
        product = self._add('Transpose', self._add('MatMul', right, left), perm=[0, 2, 3, 1, 4])
        return self._add('Reshape', product, self._sizes_like(value, x, self._result.channels))

    def _operand_channels(self):
        return [self._values[number].channels for number in self._operation.inputs]

    @_FORMS.of('gather')
    def gather(self, value, *inputs, positions, height, width, places):
        sizes = self._constant('sizes', np.array([0, value.channels, -1]))
        lines = [self._add('Reshape', x, sizes) for x in inputs]
        line = lines[0] if len(lines) == 1 else self._add('Concat', *lines, axis=2)
        return self._add('Gather', line, self._constant('places', places.clip(0, positions - 1).astype(np.int64)), axis=2)

    @_FORMS.of('embedding')
    def embedding(self, value, x, rows, features, half, table):
        numbers = self._add(
            'Clip', self._add('Round', x), *(self._constant(name, np.float32(n)) for name, n in (('low', 0), ('high', rows - 1)))
        )
        numbers = self._add('Squeeze', self._add('Cast', numbers, to=self._onnx.TensorProto.INT64), self._constant('axis', np.array([1])))
        found = self._add('Gather', self._floats('table', table), numbers, axis=0)
        return found if value.flat else self._add('Transpose', found, perm=[0, 3, 1, 2])

    @_FORMS.of('softmax')
    def softmax(self, value, x, groups):
        parts = self._add('Reshape', x, self._constant('groups', np.array([0, groups, value.channels // groups, -1])))
        return self._add('Reshape', self._add('Softmax', parts, axis=2), self._sizes_like(value, x))

    @_FORMS.of('maximum')
    def maximum(self, _, x, y):
        return self._add('Max', x, y)

    @_FORMS.of('round')
    def round(self, _, x):
        return self._add('Round', x)

    @_FORMS.of('divide')
    def divide(self, value, x, divisor):
        return self._add('Div', x, self._of_channels('divisor', divisor, value))

    # Integers: exact in the 64 bits in which ONNX computes them, too.

    @_FORMS.of('rescale')
    def rescale(self, value, x, multiplier, offset, shift, result_min, result_max):
        constants = (self._of_channels(name, numbers, value) for name, numbers in _rescaling(multiplier, offset, shift))
        return self._rescaled(self._integers(x, -(2**23), 2**23), *constants, shift, result_min, result_max)

    @_FORMS.of('int8_conv')
    def int8_conv(self, _, x, groups, weight, pad, multiplier, offset, out_channels, shift, result_min, result_max, **geometry):
        windows = windows_of(geometry)
        x = self._rounded(x, 0, MAX_BYTE)
        if any(windows['pads']):  # by zeros; then what is outside of the map gets the number of its channel
            top, left, bottom, right = windows['pads']
            windows['pads'] = [0] * 4
            pads = self._constant('pads', np.array([0, 0, top, left, 0, 0, bottom, right]))
            inside = self._add('Pad', self._affine(x, 0, 1), pads)
            numbers = self._constant('pad', pad.clip(0, MAX_BYTE).astype(np.float32).reshape(-1, 1, 1))
            x = self._add('Add', self._add('Pad', x, pads), self._add('Mul', self._affine(inside, -1, 1), numbers))
        u = self._add('Cast', x, to=self._onnx.TensorProto.UINT8)
        unsigned = self._constant('weight', (weight.astype(np.int16) + 128).astype(np.uint8))  # ONNX Runtime multiplies no signed bytes
        zeros = (self._constant(f'zero_{name}', np.uint8(zero)) for name, zero in (('x', 0), ('weight', 128)))
        sums = self._add('ConvInteger', u, unsigned, *zeros, group=groups, **windows)
        constants = (self._constant(name, numbers.reshape(-1, 1, 1)) for name, numbers in _rescaling(multiplier, offset, shift))
        return self._rescaled(self._add('Cast', sums, to=self._onnx.TensorProto.INT64), *constants, shift, result_min, result_max)

    @_FORMS.of('level_int8_conv')
    def level_int8_conv(self, value, x, groups, codes, levels, out_channels, bits, by_position, kernel_h, kernel_w, **others):
        weight = expanded((out_channels, value.channels // groups, kernel_h, kernel_w), codes, levels)
        return self.int8_conv(value, x, groups, weight, out_channels=out_channels, kernel_h=kernel_h, kernel_w=kernel_w, **others)

    @_FORMS.of('multi_threshold')
    def multi_threshold(self, value, x, thresholds, threshold, flip):
        axis = self._constant('axis', np.array([-1]))
        limits = np.ascontiguousarray(threshold.T if value.flat else threshold.T[:, None, None, :])
        reached = self._add('GreaterOrEqual', self._add('Unsqueeze', x, axis), self._constant('thresholds', limits))
        n = self._add('ReduceSum', self._add('Cast', reached, to=self._onnx.TensorProto.FLOAT), axis, keepdims=0)
        if not flip.any():
            return n
        factor, summand = np.where(flip, -1, 1).astype(np.float32), np.where(flip, thresholds, 0).astype(np.float32)
        turned = self._add('Mul', n, self._of_channels('turns', factor, value))
        return self._add('Add', turned, self._of_channels('count', summand, value))

    @_FORMS.of('integer_mean')
    def integer_mean(self, _, x, fraction_bits):
        n = self._integers(x, -MAX_INT16, MAX_INT16)
        axes = self._constant('axes', np.array([2, 3]))
        sums = self._add('ReduceSum', n, axes, keepdims=1)
        size = self._add('Slice', self._add('Shape', x), self._constant('begin', np.array([2])), self._constant('end', np.array([4])))
        return self._rounded_quotient(sums, self._add('ReduceProd', size, axes=[0], keepdims=0), fraction_bits)

    @_FORMS.of('integer_avg_pool')
    def integer_avg_pool(self, value, x, ceil, count_pad, fraction_bits, **geometry):
        windows = windows_of(geometry)
        positions = int(np.prod(windows['kernel_shape']))
        if ceil or positions * MAX_INT16 >= 2**24:
            raise UserError('averages of integers over more than 512 elements, or with windows beyond the map, have no equivalent in ONNX')
        ones = self._constant('ones', np.ones((value.channels, 1, *windows['kernel_shape']), np.float32))
        n = self._rounded(x, -MAX_INT16, MAX_INT16)
        counted = self._affine(n, 0, 1)
        counts = self._constant('count', np.int64(positions)) if count_pad else self._sums(counted, ones, value, windows)
        return self._rounded_quotient(self._sums(n, ones, value, windows), counts, fraction_bits)

    def _sums(self, x, ones, value, windows):
        sums = self._add('Conv', x, ones, group=value.channels, **windows)  # below 2^24, so exact
        return self._add('Cast', sums, to=self._onnx.TensorProto.INT64)

    def _rounded(self, x, low, high):
        limited = self._add('Clip', x, self._constant('low', np.float32(low)), self._constant('high', np.float32(high)))
        return self._add('Round', limited)

    def _integers(self, x, low, high):
        return self._add('Cast', self._rounded(x, low, high), to=self._onnx.TensorProto.INT64)

    def _rescaled(self, n, multiplier, summand, shift, low, high):
        exact = self._add('Add', self._add('Mul', n, multiplier), summand)
        y = self._floor_quotient(exact, self._constant('divisor', np.int64(1 << shift)))
        limited = self._add('Min', self._add('Max', y, self._constant('low', np.int64(low))), self._constant('high', np.int64(high)))
        return self._add('Cast', limited, to=self._onnx.TensorProto.FLOAT)

    def _rounded_quotient(self, sums, counts, fraction_bits):
        doubled = self._add('Mul', counts, self._constant('two', np.int64(2)))
        scaled = self._add('Mul', sums, self._constant('unit', np.int64(2 << fraction_bits)))
        y = self._floor_quotient(self._add('Add', scaled, counts), doubled)
        return self._add('Cast', y, to=self._onnx.TensorProto.FLOAT)

    def _floor_quotient(self, x, divisor):
        return self._add('Div', self._add('Sub', x, self._add('Mod', x, divisor)), divisor)

    def _affine(self, x, factor, shift):
        return self._add(
            'Add', self._add('Mul', x, self._constant('factor', np.float32(factor))), self._constant('shift', np.float32(shift))
        )

    def _of_channels(self, name, numbers, value):
        """Add a constant with one number per channel, in a shape that broadcasts to the value."""
        return self._constant(name, numbers if value.flat else numbers.reshape(-1, 1, 1))

    def _of_positions(self, name, numbers, value):
        """Add a constant (channels, height, width), in a shape that broadcasts to the value."""
        return self._constant(name, numbers.reshape(-1) if value.flat else numbers)


def _rescaling(multiplier, offset, shift):
    """Return name and numbers of the factors and summands of a rescaling, which include the rounding."""
    summand = (offset.astype(np.int64) << (shift - OFFSET_SHIFT)) + (1 << (shift - 1))
    return ('multiplier', multiplier.astype(np.int64)), ('summand', summand)


def windows_of(geometry):
    """Return the attributes of windows in ONNX."""
    pair = {name: [geometry[f'{name}_h'], geometry[f'{name}_w']] for name in ('kernel', 'stride')}
    attributes = {'kernel_shape': pair['kernel'], 'strides': pair['stride'], 'pads': [geometry[side] for side in PADDING]}
    if 'dilation_h' in geometry:
        attributes['dilations'] = [geometry['dilation_h'], geometry['dilation_w']]
    return attributes
