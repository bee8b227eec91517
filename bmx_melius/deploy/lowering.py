"""From the nodes of a network to the operations of a program: one rule for each of MXNet's operators.

A rule is a function of a `Builder` and a node. It asks the builder for the values it reads, as numbers (`real`) or as bits (`bits`),
and adds operations. What it asks for is what the node depends on in a program: a binary convolution reads the bits of an activation,
and an activation reads what comes before the batch normalization that its threshold contains. So a rule run alone tells whether and
on what a node can be converted (`requirements`), and run together with others it writes the program (`lower`).
"""

import dataclasses
import re

import numpy as np

from .. import marks
from ..counting import marked_bits
from ..errors import UserError
from .network import Entry, is_channelwise_batch_norm, is_sign, is_true
from .program import BITS_KIND, OPERATIONS, REAL_KIND, Operation, Program, ProgramError, Value, result_of
from .thresholds import BatchNorm

_FLOAT32 = np.finfo(np.float32)


class UnsupportedError(Exception):
    """A node cannot become part of a program; the message says why."""


@dataclasses.dataclass
class Lowered:
    """A part of a network as a program.

    Attributes
    ----------
    program : Program
    inputs, outputs : list of Entry
        The values of the network that the program reads and makes.
    origins : dict of int to Entry
        Value of the program -> the value of the network that it equals. Bits stand for it as its encoding says.
    """

    program: Program
    inputs: list
    outputs: list
    origins: dict


def requirements(network, node, thresholds):
    """The values that a node depends on in a program. Raises `UnsupportedError` if it cannot be part of one."""
    builder = Builder(network, thresholds)
    builder.lower(node)
    return builder.inputs


def lower(network, nodes, outputs, thresholds):
    """Convert nodes that can be converted, in topological order, to a program that makes the values `outputs`.

    Parameters
    ----------
    network : Network
    nodes : list of Node
    outputs : list of Entry
    thresholds : callable (node) -> (threshold, flip)
        Folds a BatchNorm node.

    Returns
    -------
    Lowered
    """
    builder = Builder(network, thresholds)
    for node in nodes:
        builder.lower(node)
    numbers = [builder.real(entry) for entry in outputs]
    return builder.finish(numbers, outputs)


class Builder:
    """Collects the operations of a program. Values have provisional numbers: those of inputs are only known at the end."""

    def __init__(self, network, thresholds):
        self.network, self.thresholds = network, thresholds
        self.inputs = []  # Entry
        self._operations = []  # (number of the result, Operation)
        self._values = []  # number -> Value
        self._real, self._bits = {}, {}  # Entry -> number
        self._input_numbers = []

    def lower(self, node):
        """Add the operations of a node. Raises `UnsupportedError`."""
        for entry in [Entry(node, slot) for slot in range(len(node.shapes))]:
            if len(self.network.shape(entry)) not in (2, 4):
                raise UnsupportedError(f'it makes a value of shape {self.network.shape(entry)}; maps and vectors can be packed')
            if not self.network.is_float32(entry):
                raise UnsupportedError('it does not compute in float32')
        rule = _quantized_activation if node.marks.get(marks.ROLE) == marks.ACTIVATION else _RULES.get(node.operator)
        if rule is None:
            raise UnsupportedError(f'the operator {node.operator} has no packed form')
        try:
            rule(self, node)
        except ProgramError as error:
            raise UnsupportedError(str(error)) from error
        except UserError:
            raise
        except (KeyError, ValueError) as error:
            raise UnsupportedError(f'its attributes are malformed: {error}') from error

    # --- values ---------------------------------------------------------------------------------------------------------------------

    def real(self, entry):
        """The number of a value of the network as numbers."""
        if entry not in self._real:
            if entry in self._bits:
                self._real[entry] = self.add('expand', [self._bits[entry]], low=-1 if self.network.encoding(entry) == 'sign' else 0)
            else:
                self._real[entry] = self._input(entry)
        return self._real[entry]

    def bits(self, entry, encoding):
        """The number of a value in {-1, 1} or {0, 1} as bits."""
        if entry not in self._bits:
            x = self.real(entry)
            channels = self._values[x].channels
            middle = np.full(channels, 0 if encoding == 'sign' else 0.5, dtype=np.float32)
            self._bits[entry] = self.add('threshold', [x], {'threshold': middle, 'flip': np.zeros(channels, dtype=bool)})
        return self._bits[entry]

    def set(self, node, number, slot=0):
        """Say which number a value that `node` makes has."""
        values = self._bits if self._values[number].kind == BITS_KIND else self._real
        values[Entry(node, slot)] = number

    def value(self, number):
        """The `Value` with a number."""
        return self._values[number]

    def _input(self, entry):
        shape = self.network.shape(entry)
        if not entry.node.depends_on_data:
            raise UnsupportedError('it combines data with a parameter in a way that has no packed form')
        if len(shape) not in (2, 4) or not self.network.is_float32(entry):
            raise UnsupportedError(f'it reads a value of shape {shape} that is no float32 map or vector')
        self.inputs.append(entry)
        self._input_numbers.append(self._new(Value(REAL_KIND, *shape[1:], *(1,) * (4 - len(shape)), flat=len(shape) == 2)))
        return self._input_numbers[-1]

    def _new(self, value):
        self._values.append(value)
        return len(self._values) - 1

    # --- operations -----------------------------------------------------------------------------------------------------------------

    def add(self, name, inputs, arrays=None, **attributes):
        """Add an operation, and return the number of its result."""
        for attribute, (least, most) in OPERATIONS[name].attributes.items():
            if not least <= attributes[attribute] <= most:
                raise UnsupportedError(f'{attribute} is {attributes[attribute]}; {least} to {most} can be packed')
        operation = Operation(name, tuple(inputs), attributes, arrays or {})
        number = self._new(result_of(operation, [self._values[source] for source in inputs]))
        self._operations.append((number, operation))
        return number

    def affine(self, node, x, scale, shift):
        """x scale + shift, each a number or one a channel, as the result of `node`."""
        channels = self._values[x].channels
        arrays = {'scale': np.broadcast_to(scale, channels), 'shift': np.broadcast_to(shift, channels)}
        if any(not (np.abs(array) <= _FLOAT32.max).all() for array in arrays.values()):
            raise UnsupportedError('its factors or summands are too large for float32')
        arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
        self.set(node, self.add('affine', [x], arrays))

    def move(self, node, name, sources, **attributes):
        """An operation that moves elements, on bits where the values are signs; `name` None for none at all."""
        encoding = self.network.encoding(Entry(node, 0))
        inputs = [self.bits(source, encoding) if encoding else self.real(source) for source in sources]
        return self.add(name, inputs, **attributes) if name else inputs[0]

    def finish(self, outputs, output_entries):
        """The `Lowered` program with the outputs of the given numbers."""
        inputs = sorted(zip(self.inputs, self._input_numbers), key=lambda pair: (pair[0].node.index, pair[0].slot))
        order = [*(number for _, number in inputs), *(number for number, _ in self._operations)]
        final = {number: position for position, number in enumerate(order)}
        operations = [
            dataclasses.replace(operation, inputs=tuple(final[source] for source in operation.inputs)) for _, operation in self._operations
        ]
        program = Program([self._values[number] for _, number in inputs], operations, [final[number] for number in outputs])
        # of the values that several nodes share, because some change nothing, the first one is the origin
        origins = {}
        for entry, number in [*self._bits.items(), *self._real.items()]:
            origins.setdefault(final[number], entry)
        return Lowered(program, [entry for entry, _ in inputs], list(output_entries), origins)


# --- attributes -----------------------------------------------------------------------------------------------------------------------


def _pair(node, name, default):
    """A pair of numbers, height and width, among a node's attributes."""
    numbers = tuple(int(number) for number in node.attributes.get(name, '').strip('()[] ').split(',') if number.strip())
    if len(numbers) not in (0, 2):
        raise UnsupportedError(f'its {name} has {len(numbers)} axes; maps of height and width can be packed')
    return numbers or (default, default)


def _geometry(node, dilation=True):
    names = {'kernel': 1, 'stride': 1, 'pad': 0}
    pairs = {name: _pair(node, name, default) for name, default in names.items()}
    if dilation:
        pairs['dilation'] = _pair(node, 'dilate', 1)
    return {f'{name}_{axis}': pair[i] for name, pair in pairs.items() for i, axis in enumerate('hw')}


_DENSE_GEOMETRY = {
    f'{name}_{axis}': value for name, value in (('kernel', 1), ('stride', 1), ('pad', 0), ('dilation', 1)) for axis in 'hw'
}


def _require_channels_second(node):
    if node.attributes.get('layout', 'None') not in ('None', 'NCHW'):
        raise UnsupportedError(f'its layout is {node.attributes["layout"]}; NCHW can be packed')


def _axis(node, name, default=None):
    """An axis, counted from the front."""
    axis = int(node.attributes.get(name, default))
    return axis + len(node.inputs[0].shape) if axis < 0 else axis


def _require_channel_axis(node, axis):
    if axis != 1:
        raise UnsupportedError(f'it works along axis {axis}; the channels, axis 1, can be packed')


# --- the rules ------------------------------------------------------------------------------------------------------------------------

_RULES = {}


def _rule(*operators):
    """Decorator: the rule of these operators."""

    def add(function):
        _RULES.update(dict.fromkeys(operators, function))
        return function

    return add


def _quantized_activation(builder, node):
    network = builder.network
    if not is_sign(node):
        raise UnsupportedError(f'it quantizes to {marked_bits(node)} bits by {node.marks.get("method")}; the sign can be packed')
    x = network.activation_input(node)
    if x is None:
        raise UnsupportedError('its mark does not say where the activation begins')
    batch_norm = network.batch_norm_before(x)
    if batch_norm is None:
        number = builder.real(x)
        threshold, flip = np.zeros(builder.value(number).channels, dtype=np.float32), np.zeros(builder.value(number).channels, dtype=bool)
    else:
        number = builder.real(network.sources(batch_norm)[0])
        threshold, flip = builder.thresholds(batch_norm)
    builder.set(node, builder.add('threshold', [number], {'threshold': threshold, 'flip': flip}))


@_rule('Convolution')
def _convolution(builder, node):
    _require_channels_second(node)
    geometry = _geometry(node)
    groups = int(node.attributes.get('num_group', 1))
    if not _binary_layer(builder, node, marks.CONVOLUTION, groups=groups, **geometry):
        _float_layer(builder, node, groups=groups, **geometry)


@_rule('FullyConnected')
def _fully_connected(builder, node):
    if not is_true(node.attributes.get('flatten', 'True')) and len(node.inputs[0].shape) != 2:
        raise UnsupportedError('it is applied along the last axis of a map (flatten=False)')
    if not _binary_layer(builder, node, marks.DENSE, groups=1, **_DENSE_GEOMETRY):
        _float_layer(builder, node, groups=1, **_DENSE_GEOMETRY)


def _flat_if_dense(builder, node, x):
    return builder.add('flatten', [x]) if node.operator == 'FullyConnected' and not builder.value(x).flat else x


def _float_layer(builder, node, **attributes):
    network = builder.network
    x, *parameters = network.sources(node)
    if any(parameter.node.depends_on_data for parameter in parameters):
        raise UnsupportedError('its weight or bias is computed from data')
    weight, *bias = [network.constant(parameter) for parameter in parameters]
    weight = weight.reshape(*weight.shape[:2], *weight.shape[2:] or (1, 1))
    arrays = {'weight': weight, **({'bias': bias[0]} if bias else {})}
    number = _flat_if_dense(builder, node, builder.real(x))
    builder.set(node, builder.add('conv', [number], arrays, out_channels=len(weight), has_bias=len(bias), half=0, **attributes))


def _binary_layer(builder, node, role, **attributes):
    """Add a marked layer with binary weights and an input of signs. Returns whether it is one."""
    if node.marks.get(marks.ROLE) != role:
        return False
    if marked_bits(node) > 1:
        raise UnsupportedError(f'its weights have {marked_bits(node)} bits; one bit can be packed')
    if not is_sign(node):
        return False
    network = builder.network
    pad_value = _pad_value(node)
    x = _signs_read_by(network, node)
    if x is None:
        return False
    if pad_value not in (-1, 0, 1):
        raise UnsupportedError(f'it pads with {pad_value:g}; -1, 0 and 1 can be packed')
    weight_entry = network.sources(node)[1]
    weight = network.only_variable_above(weight_entry)
    if weight is None or weight.shape != network.shape(weight_entry):
        raise UnsupportedError('its weight is not computed from one variable of its shape')
    bits = weight.reshape(*weight.shape[:2], *weight.shape[2:] or (1, 1)).transpose(0, 2, 3, 1) >= 0
    number = _flat_if_dense(builder, node, builder.bits(x, node.marks['encoding']))
    attributes.update(out_channels=len(bits), pad_value=int(pad_value), offset=int(node.marks.get('offset', 0)))
    builder.set(node, builder.add('binary_conv', [number], {'weight': np.ascontiguousarray(bits)}, **attributes))
    return True


def _signs_read_by(network, node):
    """The value in {-1, 1} or {0, 1} that a marked binary layer reads; None where it reads something else.

    A layer that reads the network's own input is meant to be fed with signs.
    """
    encoding, pad_value = node.marks.get('encoding'), _pad_value(node)
    x = network.before_identities(network.sources(node)[0])
    if encoding == 'sign' and pad_value:
        if x.node.marks.get(marks.ROLE) != marks.CONVOLUTION_INPUT or _pad_value(x.node) != pad_value:
            return None
        x = network.before_identities(network.sources(x.node)[0])
    return x if encoding and (network.encoding(x) == encoding or network.is_input(x)) else None


def _pad_value(node):
    """The number that a mark says a convolution is padded with."""
    text = node.marks.get('pad_value', '0')
    try:
        return float(text)
    except ValueError as error:
        raise UserError(f'node {node.name} is marked with the padding {text!r}, which is no number') from error


def inputs_meant_as_signs(network):
    """Name of an input of the network that binary layers read directly -> its encoding, ``sign`` or ``bit``."""
    found = {}
    for node in network.graph.nodes:
        if node.marks.get(marks.ROLE) in (marks.CONVOLUTION, marks.DENSE) and is_sign(node):
            x = _signs_read_by(network, node)
            if x is not None and network.is_input(x):
                found[x.node.name] = node.marks['encoding']
    return found


@_rule('BatchNorm')
def _batch_norm(builder, node):
    if not is_channelwise_batch_norm(node):
        raise UnsupportedError('it does not normalize the channels (axis 1) with constant parameters')
    builder.affine(node, builder.real(builder.network.sources(node)[0]), *batch_norm_of(builder.network, node).affine())


def batch_norm_of(network, node):
    """The `BatchNorm` that a node computes."""
    parameters = [network.constant(source) for source in network.sources(node)[1:]]
    return BatchNorm(*parameters, float(node.attributes.get('eps', 1e-3)), is_true(node.attributes.get('fix_gamma', 'True')))


@_rule('Activation')
def _activation(builder, node):
    if node.attributes['act_type'] != 'relu':
        raise UnsupportedError(f'the activation {node.attributes["act_type"]} has no packed form')
    _relu(builder, node)


@_rule('relu')
def _relu(builder, node):
    builder.set(node, builder.add('relu', [builder.real(builder.network.sources(node)[0])]))


@_rule('Pooling')
def _pooling(builder, node):
    _require_channels_second(node)
    kind = node.attributes.get('pool_type', 'max')
    x = builder.real(builder.network.sources(node)[0])
    if is_true(node.attributes.get('global_pool', 'False')):
        if kind != 'avg':
            raise UnsupportedError(f'global pooling of the kind {kind} has no packed form')
        builder.set(node, builder.add('global_avg_pool', [x]))
        return
    convention = node.attributes.get('pooling_convention', 'valid')
    if kind not in ('max', 'avg') or convention not in ('valid', 'full'):
        raise UnsupportedError(f'pooling of the kind {kind} by the convention {convention} has no packed form')
    counting = {'count_pad': int(node.attributes.get('count_include_pad', 'None') in ('None', 'True', '1'))} if kind == 'avg' else {}
    geometry = _geometry(node, dilation=False)
    builder.set(node, builder.add(f'{kind}_pool', [x], ceil=int(convention == 'full'), **counting, **geometry))


@_rule('elemwise_add', '_plus', '_Plus', 'broadcast_add', 'broadcast_plus')
def _sum(builder, node):
    sources = builder.network.sources(node)
    if all(source.node.depends_on_data for source in sources):
        builder.set(node, builder.add('add', [builder.real(source) for source in sources]))
    else:
        x, constant, _ = _data_and_constant(builder, node)
        builder.affine(node, x, 1, constant)


@_rule('add_n', 'ElementWiseSum')
def _sum_of_many(builder, node):
    first, *rest = [builder.real(source) for source in builder.network.sources(node)]
    for number in rest:
        first = builder.add('add', [first, number])
    builder.set(node, first)


@_rule('elemwise_sub', '_minus', '_Minus', 'broadcast_sub', 'broadcast_minus')
def _difference(builder, node):
    x, constant, data_is_first = _data_and_constant(builder, node)
    builder.affine(node, x, *((1, -constant) if data_is_first else (-1, constant)))


@_rule('elemwise_mul', '_mul', '_Mul', 'broadcast_mul')
def _product(builder, node):
    x, constant, _ = _data_and_constant(builder, node)
    builder.affine(node, x, constant, 0)


def _data_and_constant(builder, node):
    """The number of the input that is data, the other one as numbers of channels (float64), and whether data comes first."""
    first, second = builder.network.sources(node)
    if first.node.depends_on_data and second.node.depends_on_data:
        raise UnsupportedError(f'the operator {node.operator} of two values that are data has no packed form')
    data, other = (first, second) if first.node.depends_on_data else (second, first)
    constant = builder.network.constant(other).astype(np.float64)
    constant = constant.reshape((1,) * (len(node.shape) - constant.ndim) + constant.shape)
    if builder.network.shape(data) != node.shape or constant.size != constant.shape[1]:
        raise UnsupportedError('it combines data with a parameter that is not one number for each channel')
    return builder.real(data), constant.reshape(-1), data is first


def _scalar_rule(operator, of_scalar):
    """The rule of x -> x scale + shift, with both numbers given by the operator's scalar."""

    @_rule(operator)
    def rule(builder, node):
        builder.affine(node, builder.real(builder.network.sources(node)[0]), *of_scalar(float(node.attributes['scalar'])))


_scalar_rule('_plus_scalar', lambda scalar: (1, scalar))
_scalar_rule('_minus_scalar', lambda scalar: (1, -scalar))
_scalar_rule('_rminus_scalar', lambda scalar: (-1, scalar))
_scalar_rule('_mul_scalar', lambda scalar: (scalar, 0))
_scalar_rule('_div_scalar', lambda scalar: (1 / scalar if scalar else np.inf, 0))


@_rule('Concat')
def _concat(builder, node):
    _require_channel_axis(node, _axis(node, 'dim', 1))
    builder.set(node, builder.move(node, 'concat', builder.network.sources(node)))


@_rule('slice_axis')
def _slice_axis(builder, node):
    if builder.network.is_identity(node):
        return _identity(builder, node)
    _require_channel_axis(node, _axis(node, 'axis'))
    channels = node.inputs[0].shape[1]
    begin, end = (node.attributes.get(name, 'None') for name in ('begin', 'end'))
    begin, end, _ = slice(int(begin), None if end == 'None' else int(end)).indices(channels)
    builder.set(node, builder.move(node, 'slice', builder.network.sources(node), begin=begin, end=end))


@_rule('slice')
def _slice(builder, node):
    """Leave out the first rows and columns: a convolution of each channel whose window has a 1 in its last corner and zeros elsewhere."""
    numbers = {name: re.findall(r'None|-?\d+', node.attributes.get(name, '')) for name in ('begin', 'end', 'step')}
    begin = [0 if number == 'None' else int(number) for number in numbers['begin']]
    if len(begin) != 4 or begin[:2] != [0, 0] or min(begin) < 0 or {*numbers['end'], *numbers['step']} - {'None'}:
        raise UnsupportedError('it takes a part of the map other than all but the first rows and columns')
    height, width = begin[2] + 1, begin[3] + 1
    x = builder.real(builder.network.sources(node)[0])
    channels = builder.value(x).channels
    weight = np.zeros((channels, 1, height, width), dtype=np.float32)
    weight[:, :, -1, -1] = 1
    geometry = {**_DENSE_GEOMETRY, 'kernel_h': height, 'kernel_w': width}
    builder.set(node, builder.add('conv', [x], {'weight': weight}, out_channels=channels, groups=channels, has_bias=0, half=0, **geometry))


@_rule('SliceChannel')
def _slice_channel(builder, node):
    _require_channel_axis(node, _axis(node, 'axis', 1))
    if is_true(node.attributes.get('squeeze_axis', 'False')):
        raise UnsupportedError('it removes the axis of the channels')
    size = node.shape[1]
    for slot in range(len(node.shapes)):
        piece = builder.move(node, 'slice', builder.network.sources(node), begin=slot * size, end=(slot + 1) * size)
        builder.set(node, piece, slot)


@_rule('Reshape', 'reshape', 'Flatten')
def _reshape(builder, node):
    x = builder.network.sources(node)[0]
    before, after = builder.network.shape(x), node.shape
    if before == after:
        return _identity(builder, node)
    if len(before) == 4 and after == (before[0], before[1] * before[2] * before[3]):
        return builder.set(node, builder.move(node, 'flatten', [x]))
    shuffled = _shuffled(builder.network, node)
    if shuffled is not None:
        source, groups = shuffled
        return builder.set(node, builder.move(node, 'shuffle', [source], groups=groups))
    joined = _joined(builder.network, node)
    if joined is None:
        raise UnsupportedError(f'it reshapes {before} to {after}; flattening, channel shuffles and `layers.concat` can be packed')
    return builder.set(node, builder.move(node, 'concat', joined))


def _shuffled(network, node):
    """The value and the groups of a channel shuffle that ends with `node`: split the channels, swap both parts, join them; else None."""
    swap = node.inputs[0]
    split = swap.inputs[0] if swap.inputs else swap
    axes = {swap.attributes.get(name) for name in ('dim1', 'dim2')} if swap.operator == 'SwapAxis' else swap.attributes.get('axes')
    if axes not in ({'1', '2'}, '(0, 2, 1, 3, 4)') or split.operator not in ('Reshape', 'reshape'):
        return None
    x = network.sources(split)[0]
    shape = network.shape(x)
    groups = split.shape[1]
    if len(shape) != 4 or node.shape != shape or split.shape != (shape[0], groups, shape[1] // groups, *shape[2:]):
        return None
    return x, groups


def _joined(network, node):
    """The values that `layers.concat` joins, if `node` is its end: an axis of 1 in front, and then along the channels; else None."""
    join = node.inputs[0]
    if join.operator != 'Concat' or len(join.shape) not in (3, 5) or _axis(join, 'dim') != 2:
        return None
    if join.shape[0] != 1 or node.shape != join.shape[1:]:
        return None
    if not all(wide.operator == 'expand_dims' and wide.attributes.get('axis') == '0' for wide in join.inputs):
        return None
    return [network.sources(wide)[0] for wide in join.inputs]


@_rule('_copy', 'identity', 'BlockGrad', 'stop_gradient', 'Dropout')
def _identity(builder, node):
    if not builder.network.is_identity(node):
        raise UnsupportedError('it drops values at inference, too')
    builder.set(node, builder.move(node, None, builder.network.sources(node)))
